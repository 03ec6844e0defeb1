"""Whether what a parent is asked comes back: circles through relays that say nothing of them.

A relay of another implementation says nothing of its ancestors (`kvcs.relay.ancestry`). So a
parent that does not tell is asked for the status of a Track that nobody but this relay can know of,
at once and from time to time. If somebody asks this relay for that Track, the parent, or a relay
above it, asks here for what it does not know: requests would go round, and wait for themselves.

Source: MOQT draft 22, Sections 4.1 and 9.13; the draft leaves circles to relays.
"""

from collections.abc import Callable
from typing import Final, Protocol

from kvcs.errors import LocalProtocolError
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import Event
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.peer import Peer

__all__ = ("CIRCLE_INTERVAL", "CircleProbe")

#: Seconds between two questions: a circle can also close later, above the parent.
CIRCLE_INTERVAL: Final = 60.0

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

    def __init__(self, relay_id: bytes, host: _Host, *, is_parent: Callable[[Peer], bool]) -> None:
        """Ask nobody yet.

        Args:
            relay_id: Id of this relay, different for every start.
            host: The relay.
            is_parent: Tells whether a session is the one with the parent.
        """
        self.track = FullTrackName(TrackNamespace((_FIRST_FIELD, relay_id)), _NAME)
        self._host = host
        self._is_parent = is_parent

    def __repr__(self) -> str:
        return f"<CircleProbe {self.track}>"

    def watch(self, parent: Peer, now: float) -> None:
        """Ask a parent now, and from time to time while it is the parent."""
        if not self._is_parent(parent) or not parent.is_available:
            return
        try:
            request_id = parent.session.track_status(self.track, now=now)
        except LocalProtocolError:
            # The session is as good as over.
            return
        parent.follow(request_id, lambda event, _: self._receive(parent, request_id, event))
        parent.wake()
        self._host.schedule(now + CIRCLE_INTERVAL, lambda now: self.watch(parent, now))

    def _receive(self, parent: Peer, request_id: RequestId, event: Event) -> None:
        """Forget the question: whatever the answer is, it tells nothing."""
        del event
        parent.forget(request_id)
