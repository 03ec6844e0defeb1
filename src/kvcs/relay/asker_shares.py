"""What each client has of the requests that a relay sends to another relay for all of them.

Theory of operation. An `AskerShares` belongs to the session with one relay. Every request there
that somebody here wanted is charged to the session that asked for it first, until it is over;
when that one wants it no longer and others do, one of those is charged. There are two accounts:
requests that stand until somebody ends them, as subscriptions and prefixes, and those that pass by
themselves, as FETCHes, so that who has subscribed to much can still fetch what it lacks.

Each session may have as many of a kind as are left free of half of the streams that the other
relay lets begin, and in any case `LEAST_ASKED`. So one alone gets a quarter, who comes next finds
as much as the one before has, and a few requests are always possible, however many ask. Half,
since the QUIC library lets more streams begin only once half of them have ended.
"""

from collections import Counter
from collections.abc import Collection
from enum import Enum
from typing import Final

from kvcs.moqt.session.actions import RequestId
from kvcs.relay.namespaces import PeerId

__all__ = ("LEAST_ASKED", "AskerShares", "Stay")

# Both Tracks and the manifest of two publications, and a prefix or two.
LEAST_ASKED: Final = 8
# Of the streams that may be open, one in so many may be held for long.
_USABLE_SHARE: Final = 2


class Stay(Enum):
    """How long a request has its stream."""

    STANDING = "until somebody ends it"
    PASSING = "until it is answered"


class AskerShares:
    """For whose sake requests to one relay are open."""

    __slots__ = ("_charged", "_counts")

    def __init__(self) -> None:
        self._charged: dict[RequestId, tuple[PeerId, Stay]] = {}
        self._counts: Counter[tuple[PeerId, Stay]] = Counter()

    def __repr__(self) -> str:
        return f"<AskerShares {dict(self._counts)}>"

    def has_room(self, asker: PeerId, stay: Stay, *, streams: int, taken: int) -> bool:
        """Tell whether one more request may be sent for the sake of a session.

        Args:
            asker: The session.
            stay: How long the request will have its stream.
            streams: Streams that may be open at a time.
            taken: Those that are.
        """
        free = streams // _USABLE_SHARE - taken
        return self._counts[asker, stay] < max(LEAST_ASKED, free)

    def charge(self, request_id: RequestId, asker: PeerId, stay: Stay) -> None:
        """Charge a request to a session, and to no other one any longer."""
        self.end(request_id)
        self._charged[request_id] = asker, stay
        self._counts[asker, stay] += 1

    def end(self, request_id: RequestId) -> None:
        """Note that a request is over; those that are charged to nobody are ignored."""
        account = self._charged.pop(request_id, None)
        if account is not None:
            self._counts[account] -= 1
            if not self._counts[account]:
                del self._counts[account]

    def pass_on(self, request_id: RequestId, wanting: Collection[PeerId]) -> None:
        """Charge a request to the first of those who want it, unless it is to one of them."""
        account = self._charged.get(request_id)
        if account is not None and wanting and account[0] not in wanting:
            self.charge(request_id, next(iter(wanting)), account[1])

    def asker(self, request_id: RequestId) -> PeerId | None:
        """Return to which session a request is charged."""
        account = self._charged.get(request_id)
        return None if account is None else account[0]
