"""Requests of clients that wait because their client has its share of what is asked of a relay.

Theory of operation. Whoever cannot ask now, but may once other requests of its client or of others
are over (`kvcs.relay.asker_shares`), leaves here what is to be done then. The requests of each
client on one account have their turns in the order in which they came; neither clients nor accounts
wait for each other.
All are looked at a few times a second: the end of a request has no place of its own to tell of it.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from kvcs.moqt.session.events import SubscribeReceived
from kvcs.relay.asker_shares import Stay
from kvcs.relay.namespaces import PeerId, Route
from kvcs.relay.waiting import Question, Waiting

__all__ = ("MAX_WAIT", "Turns")

# Long enough for what is under way, and over before a client takes the silence for a loss (30 s).
MAX_WAIT: Final = 10.0
_LOOK_INTERVAL: Final = 0.25


type _Request = Waiting[SubscribeReceived] | Question


class _Turn(NamedTuple):
    """A request that waits: until when, whether it may go on, and how it does."""

    until: float
    may_go: Callable[[], bool]
    then: Callable[[Route, float], None]


class Turns:
    """The requests that wait, by the session that they came on and the account."""

    __slots__ = ("_is_looking", "_schedule", "_waiting")

    def __init__(self, schedule: Callable[[float, Callable[[float], None]], None]) -> None:
        """Have nothing wait.

        Args:
            schedule: Calls its second argument with the time when its first one has passed.
        """
        self._schedule = schedule
        self._waiting: dict[tuple[PeerId, Stay], dict[Route, _Turn]] = {}
        self._is_looking = False

    def __repr__(self) -> str:
        return f"<Turns {sum(map(len, self._waiting.values()))} waiting>"

    def wait(
        self,
        request: _Request,
        may_go: Callable[[], bool],
        then: Callable[[Route, float], None],
        *,
        now: float,
    ) -> bool:
        """Have a request wait, unless it can go on or has waited long enough.

        Args:
            request: The request.
            may_go: Tells whether it can go on.
            then: Called with it and the time when it can, or when its time is over.
            now: Monotonic seconds.

        Returns:
            Whether it waits.
        """
        if may_go():
            return False
        if request.turn_until is None:
            request.turn_until = now + MAX_WAIT
        if now >= request.turn_until:
            return False
        route = request.peer.route(request.event.request_id)
        is_subscribe = isinstance(request.event, SubscribeReceived)
        stay = Stay.STANDING if is_subscribe else Stay.PASSING
        turn = _Turn(request.turn_until, may_go, then)
        self._waiting.setdefault((route.peer, stay), {}).setdefault(route, turn)
        self._look_later(now)
        return True

    def forget(self, route: Route) -> None:
        """Have a request wait no longer; others are ignored."""
        for stay in (Stay.STANDING, Stay.PASSING):
            queue = self._waiting.get((route.peer, stay))
            if queue is not None:
                queue.pop(route, None)
                if not queue:
                    del self._waiting[route.peer, stay]

    def _look_later(self, now: float) -> None:
        if self._waiting and not self._is_looking:
            self._is_looking = True
            self._schedule(now + _LOOK_INTERVAL, self._look)

    def _look(self, now: float) -> None:
        """Let those go on that can, of each queue as many as come before one that cannot."""
        self._is_looking = False
        try:
            for queue in tuple(self._waiting.values()):
                for route, turn in tuple(queue.items()):
                    if now < turn.until and not turn.may_go():
                        break
                    self.forget(route)
                    turn.then(route, now)
        finally:
            # A fault in what belongs to one request leaves the others their turns.
            self._look_later(now)
