"""The orderly end of a relay: everybody is asked to leave, and gets a bounded time for it.

Theory of operation. Once it has begun, every session that was accepted gets GOAWAY when its
SETUP has arrived; new sessions are refused by the server around. What is running goes on; new
requests are refused with GOING_AWAY, which the session does by itself. A session on which
nothing is left to do is closed cleanly: that it advertises namespaces, or listens for them, is
nothing to wait for.
A little before the time is over the rest is told so: subscriptions end with PUBLISH_DONE
GOING_AWAY, fetches are reset with GOING_AWAY. Who is still there at the deadline is closed
with GOAWAY_TIMEOUT, which the session does by itself too. Sessions to parents stay until the
relay closes: downstream goes first.

Source: MOQT draft 22, Sections 6.6.1, 7.4.1 and 9.2.
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from kvcs.errors import TerminationCode
from kvcs.moqt.session.limits import Side
from kvcs.relay.auth import AccessAction
from kvcs.relay.peer import Peer
from kvcs.relay.tracks import Track

__all__ = ("Drain",)

# How often it is looked for sessions that have nothing to do.
_LOOK_INTERVAL: Final = 0.25
# What a peer gets to read GOAWAY in, and to close the session by itself.
_GRACE: Final = 1.0
# How long before the deadline what is left is told to end; at most half of the whole time.
_LAST_CALL: Final = 1.0
# Requests that go on for as long as their session does.
_STANDING: Final = frozenset(
    {
        AccessAction.PUBLISH_NAMESPACE,
        AccessAction.SUBSCRIBE_NAMESPACE,
        AccessAction.SUBSCRIBE_TRACKS,
    }
)


class _Host(Protocol):
    """What draining needs of the relay around it."""

    def peers(self) -> Iterable[Peer]:
        """Return the open sessions."""
        ...

    def tracks(self) -> Iterable[Track]:
        """Return the Tracks with any state."""
        ...

    def schedule(self, deadline: float, alarm: Callable[[float], None]) -> None:
        """Call `alarm` with the time when `deadline` has passed."""
        ...


class Drain:
    """Whether a relay is being drained, and how far that is.

    Attributes:
        deadline: When it is over at the latest, in monotonic seconds; None before it begins.
    """

    __slots__ = ("_asked", "_host", "_uri", "deadline")

    def __init__(self, host: _Host) -> None:
        self.deadline: float | None = None
        self._host = host
        self._uri = ""
        self._asked: dict[Peer, float] = {}

    def __repr__(self) -> str:
        return f"<Drain until={self.deadline} asked={len(self._asked)}>"

    @property
    def is_over(self) -> bool:
        """Whether it began and nobody is left."""
        return self.deadline is not None and not any(self._accepted())

    def begin(self, timeout: float, uri: str, *, now: float) -> None:
        """Ask everybody to leave; what is asked once is not asked again.

        Args:
            timeout: Seconds that everybody gets.
            uri: Where to go; empty is the URI of this relay.
            now: Monotonic seconds.
        """
        if self.deadline is not None:
            return
        self.deadline = now + timeout
        self._uri = uri
        for peer in self._accepted():
            if peer.session.peer_options is not None:
                self.ask(peer, now=now)
        self._host.schedule(self.deadline - min(_LAST_CALL, timeout / 2), self._end_all)
        self._host.schedule(now + _LOOK_INTERVAL, self._look)

    def ask(self, peer: Peer, *, now: float) -> None:
        """Ask one peer to leave, if it is time for that; its SETUP has arrived."""
        session = peer.session
        if self.deadline is None or session.side is Side.CLIENT or session.is_leaving:
            return
        # With no time left, as little as there is: 0 would leave it to the session's own limit.
        session.goaway(self._uri, max(self.deadline - now, 0.001), now=now)
        self._asked[peer] = now
        peer.wake()

    def forget(self, peer: Peer) -> None:
        """Note that a session is over."""
        self._asked.pop(peer, None)

    def _accepted(self) -> Iterable[Peer]:
        return [peer for peer in self._host.peers() if peer.session.side is Side.SERVER]

    def _look(self, now: float) -> None:
        """Close the sessions on which nothing is left to do."""
        for peer, asked_at in tuple(self._asked.items()):
            if now >= asked_at + _GRACE and (peer.session.is_idle or not _has_work(peer)):
                peer.session.close(TerminationCode.NO_ERROR, "drained", now=now)
                peer.wake()
        self._host.schedule(now + _LOOK_INTERVAL, self._look)

    def _end_all(self, now: float) -> None:
        for track in tuple(self._host.tracks()):
            track.demand.leave(now=now)


def _has_work(peer: Peer) -> bool:
    """Tell whether anything is served to a peer, or received from it."""
    decided = (peer.granted.get(request_id) for request_id in peer.followed())
    return any(access is None or access.action not in _STANDING for access in decided)
