"""Whether what a parent is asked comes back: circles through relays that say nothing of them.

A relay of another implementation says nothing of its ancestors (`kvcs.relay.ancestry`). So a
parent that does not tell is asked for the status of a Track whose name is a secret of this relay,
at once and from time to time. If somebody asks this relay for that Track, the parent, or a relay
above it, asks here for what it does not know: requests would go round, and wait for themselves.
The id of the relay would be no such secret: every client is told it.

Source: MOQT draft 22, Sections 4.1 and 9.13; the draft leaves circles to relays.
"""

from collections.abc import Callable
from typing import Final, Protocol

from kvcs.errors import LocalProtocolError
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import Event
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.peer import Peer

__all__ = ("CIRCLE_INTERVAL", "SECRET_BYTES", "CircleProbe")

#: Seconds between two questions: a circle can also close later, above the parent.
CIRCLE_INTERVAL: Final = 60.0
#: Octets of the secret.
SECRET_BYTES: Final = 16

_FIRST_FIELD: Final = b"kvcs-relay"
_NAME: Final = b"circle"


class _Host(Protocol):
    """What a probe needs of the relay around it."""

    def schedule(self, deadline: float, alarm: Callable[[float], None]) -> None:
        """Call `alarm` with the time when `deadline` has passed."""
        ...


class CircleProbe:
    """Asks a parent for what only this relay can be asked for.

    Attributes:
        track: What it asks for.
    """

    def __init__(self, secret: bytes, host: _Host, *, is_parent: Callable[[Peer], bool]) -> None:
        """Ask nobody yet.

        Args:
            secret: What only parents are told that do not tell where they are.
            host: The relay.
            is_parent: Tells whether a session is the one with the parent.
        """
        self.track = FullTrackName(TrackNamespace((_FIRST_FIELD, secret)), _NAME)
        self._host = host
        self._is_parent = is_parent
        self._asked: Peer | None = None

    def __repr__(self) -> str:
        return f"<CircleProbe asked={self._asked}>"

    def watch(self, parent: Peer, now: float) -> None:
        """Ask a parent now, and from time to time while it is the parent."""
        if not self._is_parent(parent) or not parent.is_available:
            return
        try:
            request_id = parent.session.track_status(self.track, now=now)
        except LocalProtocolError:
            # The session is as good as over.
            return
        self._asked = parent
        parent.follow(request_id, lambda event, _: self._receive(parent, request_id, event))
        parent.wake()
        self._host.schedule(now + CIRCLE_INTERVAL, lambda now: self.watch(parent, now))

    def was_asked(self, peer: Peer) -> bool:
        """Tell whether a peer was asked last, and so may have passed on what it was asked."""
        return peer is self._asked

    def _receive(self, parent: Peer, request_id: RequestId, event: Event) -> None:
        """Forget the question: whatever the answer is, it tells nothing."""
        del event
        parent.forget(request_id)
