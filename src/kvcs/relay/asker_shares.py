"""What each client has of the requests that a relay sends to another relay for all of them.

Theory of operation. An `AskerShares` belongs to the session with one relay. Every request there
that somebody here wanted is charged to the session that asked for it first, until it is over; of
those that stand, when that one wants it no longer and others do, one of them is charged. There are
three accounts: requests that stand until somebody ends them, as subscriptions and prefixes; those
that pass by themselves, as FETCHes, so that who has subscribed to much can still fetch what it
lacks; and SUBSCRIBEs that wait there for a publisher, which may be for nothing.

Each session may have as many of a kind as are left free of a part of the streams that the other
relay lets begin, and at least `LEAST_ASKED`: one alone gets half of that part, and who comes next
finds as much as the one before has. That part is smaller than what all sessions together may have
of a kind (`_MOST`), so that there is a rest for those who ask for little. All that lasts stays
below half of the streams, since the QUIC library lets more begin only once half have ended.
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


class Stay(Enum):
    """How long a request has its stream."""

    STANDING = "until somebody ends it"
    PASSING = "until it is answered"
    PENDING = "until somebody publishes the Track"


# In sixteenths of the streams: what one session leaves to others a part of, whoever has it,
_SHARED: Final = {Stay.STANDING: 6, Stay.PASSING: 8, Stay.PENDING: 4}
# and what all sessions together have at most. What is pending is part of what stands.
_MOST: Final = {Stay.STANDING: 7, Stay.PASSING: 6, Stay.PENDING: 4}
_PARTS: Final = 16


class AskerShares:
    """For whose sake requests to one relay are open."""

    __slots__ = ("_charged", "_counts", "_totals")

    def __init__(self) -> None:
        self._charged: dict[RequestId, tuple[PeerId, Stay]] = {}
        self._counts: Counter[tuple[PeerId, Stay]] = Counter()
        self._totals: Counter[Stay] = Counter()

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
        of_all = self._of_all(stay)
        if of_all >= _most(stay, streams):
            return False
        in_use = of_all if stay is Stay.PENDING else taken
        free = streams * _SHARED[stay] // _PARTS - in_use
        return self._counts[asker, stay] < max(LEAST_ASKED, free)

    def has_rest(self, *, streams: int) -> bool:
        """Tell whether one more standing request leaves room for those who have few."""
        most = _most(Stay.STANDING, streams)
        return self._of_all(Stay.STANDING) + min(LEAST_ASKED, most // 4) < most

    def _of_all(self, stay: Stay) -> int:
        pending = self._totals[Stay.PENDING] if stay is Stay.STANDING else 0
        return self._totals[stay] + pending

    def charge(self, request_id: RequestId, asker: PeerId, stay: Stay) -> None:
        """Charge a request to a session, and to no other one any longer."""
        self.end(request_id)
        self._charged[request_id] = asker, stay
        self._counts[asker, stay] += 1
        self._totals[stay] += 1

    def establish(self, request_id: RequestId) -> None:
        """Note that a publisher was found for a request that may have waited for one."""
        account = self._charged.get(request_id)
        if account is not None:
            self.charge(request_id, account[0], Stay.STANDING)

    def end(self, request_id: RequestId) -> None:
        """Note that a request is over; those that are charged to nobody are ignored."""
        account = self._charged.pop(request_id, None)
        if account is not None:
            self._counts[account] -= 1
            self._totals[account[1]] -= 1
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


def _most(stay: Stay, streams: int) -> int:
    """Return how many requests of a kind all sessions together may have."""
    part = streams * _MOST[stay] // _PARTS
    return part if stay is Stay.PENDING else max(LEAST_ASKED, part)
