"""When deliveries may look on through what they have not to send: a share of the time, for all.

A FETCH or fill passes over what is filtered out, absent or unknown. A peer chooses how much that
is, and nothing leaves meanwhile that its window could hold back. So each of them looks at a little
at once, and beyond that waits for a slot; there is one slot in each `WALK_INTERVAL`, whatever the
number of those that wait and of their sessions.
"""

from typing import Final

from kvcs.moqt.track.delivery import Delivery

__all__ = ("MAX_WAIT", "STEPS_PER_SLOT", "WALK_INTERVAL", "WalkQueue", "Walks")

#: Seconds from a slot to the next one.
WALK_INTERVAL: Final = 0.01
#: Seconds to a slot at most: sessions that come, take one and go must not push it away for ever.
MAX_WAIT: Final = 5.0
#: Steps of one delivery in a slot.
STEPS_PER_SLOT: Final = 8


class Walks:
    """The slots of all queues that share this."""

    __slots__ = ("_free_at",)

    def __init__(self) -> None:
        self._free_at = 0.0

    def __repr__(self) -> str:
        return f"<Walks free_at={self._free_at}>"

    def reserve(self, *, now: float) -> float:
        """Take the next slot that is free; return when it is, in monotonic seconds."""
        at = min(max(now, self._free_at), now + MAX_WAIT)
        self._free_at = at + WALK_INTERVAL
        return at


class WalkQueue:
    """The deliveries of one session that wait for a slot, of which it has one at a time.

    Attributes:
        walks: The slots; those of one process share them.
    """

    __slots__ = ("_at", "_waiting", "walks")

    def __init__(self, walks: Walks) -> None:
        self.walks = walks
        self._waiting: dict[Delivery, None] = {}
        self._at: float | None = None

    def __repr__(self) -> str:
        return f"<WalkQueue {len(self._waiting)} waiting, at={self._at}>"

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, delivery: Delivery) -> bool:
        return delivery in self._waiting

    @property
    def due_at(self) -> float | None:
        """When the first one may walk, in monotonic seconds; None if none waits."""
        return self._at if self._waiting else None

    def add(self, delivery: Delivery, *, now: float) -> None:
        """Let a delivery wait, behind those that do."""
        self._waiting[delivery] = None
        if self._at is None:
            self._at = self.walks.reserve(now=now)

    def discard(self, delivery: Delivery) -> None:
        """Forget a delivery; its slot is for the next one."""
        self._waiting.pop(delivery, None)

    def take(self, *, now: float) -> Delivery | None:
        """Return the first one if its slot is there, and take the next slot for the others."""
        due_at = self.due_at
        if due_at is None or now < due_at:
            return None
        delivery = next(iter(self._waiting))
        del self._waiting[delivery]
        self._at = self.walks.reserve(now=now) if self._waiting else None
        return delivery
