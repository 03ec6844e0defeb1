"""What sessions hold of what has not come whole, in all sessions together.

Theory of operation. Each stream that stands inside an Object, or that waits for what explains it,
has a `Holding`; those of a session make its `PartialShare`, and the shares of sessions that have
joined a `PartialBudget` are bounded by its capacity. When that would be exceeded, the session gives
way that has cost the most: octets times the seconds that they have been held. So a peer that
begins Objects and leaves them costs more and more, and one that finishes what it begins costs
little, however many octets it has under way at the moment. What gives way is one stream at a time.
"""

import sys
from collections.abc import Callable
from typing import Final

__all__ = ("Holding", "PartialBudget", "PartialShare")

_UNLIMITED: Final = sys.maxsize


class PartialBudget:
    """Octets that the sessions of a process may hold together of what is not whole.

    Attributes:
        capacity_bytes: How many.
        size_bytes: What they hold.
        streams_given_up: Streams of which something was held that gave way to others.
    """

    __slots__ = ("_shares", "capacity_bytes", "size_bytes", "streams_given_up")

    def __init__(self, capacity_bytes: int = _UNLIMITED) -> None:
        self.capacity_bytes = capacity_bytes
        self.size_bytes = 0
        self.streams_given_up = 0
        self._shares: dict[PartialShare, None] = {}

    def __repr__(self) -> str:
        return f"<PartialBudget {self.size_bytes}/{self.capacity_bytes} of {len(self._shares)}>"

    def has_room(self, size_bytes: int) -> bool:
        """Tell whether so many octets more may be held."""
        return self.size_bytes + size_bytes <= self.capacity_bytes

    def join(self, share: "PartialShare") -> None:
        """Count what a session holds from now on."""
        self._shares[share] = None
        self.size_bytes += share.size_bytes

    def leave(self, share: "PartialShare") -> None:
        """Count what a session holds no longer; one that has not joined is ignored."""
        if share in self._shares:
            del self._shares[share]
            self.size_bytes -= share.size_bytes

    def relieve(self, asker: "PartialShare", size_bytes: int, *, now: float) -> bool:
        """Let the session that has cost the most give way to another one.

        Args:
            asker: The session that is to hold more.
            size_bytes: How much more.
            now: Monotonic seconds.

        Returns:
            Whether something was given up. Not where the asker itself costs the most.
        """
        worst = max(
            self._shares,
            key=lambda share: (
                share.cost(now),
                share.size_bytes + (size_bytes if share is asker else 0),
                share is asker,
            ),
            default=asker,
        )
        if worst is asker:
            # The stream that asks, or a less urgent one of its session, gives way.
            self.streams_given_up += 1
            return False
        before = self.size_bytes
        worst.give_up(before + size_bytes - self.capacity_bytes, now)
        return self.size_bytes < before


class PartialShare:
    """What one session holds.

    Attributes:
        size_bytes: Octets that it holds.
        moments: The sum of the times at which they came, in monotonic seconds.
        budget: What bounds it together with others.
    """

    __slots__ = ("_give_up", "budget", "moments", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self.moments = 0.0
        self.budget = PartialBudget()
        self._give_up: Callable[[int, float], None] = _keep_all

    def __repr__(self) -> str:
        return f"<PartialShare {self.size_bytes}>"

    def join(self, budget: PartialBudget, give_up: Callable[[int, float], None]) -> None:
        """Be bounded together with others.

        Args:
            budget: The bound.
            give_up: Called with octets and the time: ends streams until as much is free.
        """
        self.budget = budget
        self._give_up = give_up
        budget.join(self)

    def leave(self) -> None:
        """Be bounded alone: the session is over."""
        self.budget.leave(self)
        self.budget = PartialBudget()
        self._give_up = _keep_all

    def cost(self, now: float) -> float:
        """Return octets times the seconds that they have been held."""
        return now * self.size_bytes - self.moments

    def make_room(self, size_bytes: int, *, now: float) -> bool:
        """Tell whether so many octets more may be held, once others have given way."""
        budget = self.budget
        while not budget.has_room(size_bytes):
            if not budget.relieve(self, size_bytes, now=now):
                return False
        return True

    def give_up(self, size_bytes: int, now: float) -> None:
        """End streams until so many octets are free, or all."""
        self._give_up(size_bytes, now)

    def has_room(self, size_bytes: int) -> bool:
        """Tell whether so many octets more may be held as things are."""
        budget = self.budget
        return budget.size_bytes + size_bytes <= budget.capacity_bytes

    def release(self, size_bytes: int, moments: float) -> None:
        """Count octets that are held no longer."""
        self.size_bytes -= size_bytes
        self.moments = self.moments - moments if self.size_bytes else 0.0
        self.budget.size_bytes -= size_bytes

    def note_given_up(self) -> None:
        """Count a stream that gave way."""
        self.budget.streams_given_up += 1


class Holding:
    """What one stream holds.

    Attributes:
        size_bytes: How many octets.
    """

    __slots__ = ("_moments", "_share", "size_bytes")

    def __init__(self, share: PartialShare) -> None:
        self.size_bytes = 0
        self._moments = 0.0
        self._share = share

    def __repr__(self) -> str:
        return f"<Holding {self.size_bytes}>"

    def add(self, size_bytes: int, *, now: float) -> None:
        """Hold so many octets more."""
        moments, share = size_bytes * now, self._share
        self.size_bytes += size_bytes
        self._moments += moments
        share.size_bytes += size_bytes
        share.moments += moments
        share.budget.size_bytes += size_bytes

    def release(self) -> None:
        """Hold nothing any more."""
        self._share.release(self.size_bytes, self._moments)
        self.size_bytes = 0
        self._moments = 0.0


def _keep_all(size_bytes: int, now: float) -> None:
    """End nothing."""
