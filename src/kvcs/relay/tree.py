"""Where a relay stands in a tree of relays: its parent, its ancestors, and what its children know.

Theory of operation. `Tree` sees the SETUP and the end of every session. A session that this
relay dialled to have a parent becomes that if no circle would come of it, and replaces the
parent before; a session of a relay below is ended if it would close a circle, or when it was
not told of a relay that is above it now. A parent that does
not tell where it is is asked for what would come back (`kvcs.relay.circle`), and let go if it does.
Which parent is dialled, and when, is not decided here.

Source: `kvcs.relay.ancestry`.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from kvcs.errors import TerminationCode
from kvcs.moqt.wire.kvp import KeyValuePair
from kvcs.moqt.wire.setup import SetupOptions
from kvcs.names import FullTrackName
from kvcs.relay.ancestry import Ancestry
from kvcs.relay.circle import CircleProbe
from kvcs.relay.peer import Peer

__all__ = ("Tree",)

_logger = logging.getLogger("kvcs.relay")


class _Host(Protocol):
    """What the tree needs of the relay."""

    def peers(self) -> Iterable[Peer]:
        """Return the open sessions."""
        ...

    def parent_gained(self, parent: Peer, *, now: float) -> None:
        """Ask and tell a new parent what is to be asked and told."""
        ...

    def parent_lost(self, *, now: float) -> None:
        """Do without a parent."""
        ...

    def schedule(self, deadline: float, alarm: Callable[[float], None]) -> None:
        """Call `alarm` with the time when `deadline` has passed."""
        ...


class Tree:
    """The place of one relay.

    Attributes:
        ancestry: Its id, and the relays above it.
        parent: The session with its parent, None while there is none.
    """

    def __init__(self, relay_id: bytes, secret: bytes, host: _Host) -> None:
        self.ancestry = Ancestry(relay_id)
        self.parent: Peer | None = None
        self._host = host
        self._probe = CircleProbe(secret, host, is_parent=lambda peer: peer is self.parent)

    def __repr__(self) -> str:
        return f"<Tree {self.ancestry.relay_id.hex()} parent={self.parent}>"

    def options(self) -> tuple[KeyValuePair, ...]:
        """Return the Setup Options that tell other relays of this place."""
        return (self.ancestry.encode(),)

    def begin(self, peer: Peer) -> None:
        """Note what our SETUP says in a new session."""
        peer.told = frozenset(self.ancestry.line)

    def set_up(self, peer: Peer, options: SetupOptions, *, now: float) -> None:
        """Take the SETUP of a peer, and end the session if it cannot be part of the tree."""
        peer.ancestry = Ancestry.decode(options)
        if peer.is_parent:
            self._set_up_parent(peer, now)
        elif peer.ancestry is not None:
            self._check_child(peer, peer.ancestry, now)

    def end(self, peer: Peer, *, now: float) -> None:
        """Note that a session is over."""
        if peer is self.parent:
            self._lose_parent(now)

    def _set_up_parent(self, peer: Peer, now: float) -> None:
        above = peer.ancestry
        refusal = None if above is None else self.ancestry.refusal_of_parent(above)
        if refusal is not None:
            _close(peer, f"not used as a parent: {refusal}", now)
            return
        before = self.parent
        if before is not None:
            self._lose_parent(now)
            _close(before, "another parent is used", now)
        self.parent = peer
        line = () if above is None else above.line
        self.ancestry = Ancestry(self.ancestry.relay_id, line)
        for child in tuple(self._host.peers()):
            if not child.is_parent and child.ancestry is not None:
                self._check_child(child, child.ancestry, now)
        self._host.parent_gained(peer, now=now)
        if above is None:
            self._probe.watch(peer, now)

    def closes_circle(self, track: FullTrackName, *, now: float) -> bool:
        """Tell whether a request shows a circle, and let go of the parent that it came through."""
        if track != self._probe.track:
            return False
        if self.parent is not None and self._probe.was_asked(self.parent):
            _close(self.parent, "not used as a parent: what it is asked for comes back", now)
        return True

    def _lose_parent(self, now: float) -> None:
        self.parent = None
        self.ancestry = Ancestry(self.ancestry.relay_id)
        self._host.parent_lost(now=now)

    def _check_child(self, peer: Peer, child: Ancestry, now: float) -> None:
        refusal = self.ancestry.refusal_of_child(child)
        if refusal is not None:
            _close(peer, f"not taken as a child: {refusal}", now)
        elif not peer.told.issuperset(self.ancestry.line):
            _close(peer, "there are other relays above this one now", now)


def _close(peer: Peer, reason: str, now: float) -> None:
    if not peer.session.is_closed:
        _logger.warning(
            "relay session %d ended: %s",
            peer.id,
            reason,
            extra={"session": peer.id, "peer": peer.address},
        )
        peer.session.close(TerminationCode.NO_ERROR, reason, now=now)
        peer.wake()
