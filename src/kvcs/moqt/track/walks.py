"""When deliveries may look on through what they have not to send: a share of the time, for all.

A FETCH or fill passes over what is filtered out, absent or unknown. A peer chooses how much that
is, and nothing leaves meanwhile that its window could hold back. So each of them looks at a little
at once, and beyond that waits for a slot; there is one slot in each `WALK_INTERVAL`, whatever the
number of those that wait and of their sessions.
"""

from typing import Final

__all__ = ("MAX_WAIT", "STEPS_PER_SLOT", "WALK_INTERVAL", "Walks")

#: Seconds from a slot to the next one.
WALK_INTERVAL: Final = 0.01
#: Seconds to a slot at most: sessions that come, take one and go must not push it away for ever.
MAX_WAIT: Final = 5.0
#: Steps of one delivery in a slot.
STEPS_PER_SLOT: Final = 8


class Walks:
    """The slots of all outboxes that share this."""

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
