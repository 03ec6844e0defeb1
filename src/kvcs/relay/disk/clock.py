"""The clock of the disk tier: how times outlive the process.

Inside a process times are monotonic seconds, on disk they are stamps: wall-clock seconds.
The wall clock can be set, and must not let an Object live longer for that:

* set forward: time has passed, or is said to have. Objects may expire early;
* set back while the relay runs: the stamps on disk are moved along, so that nothing changes;
* set back while it does not: nobody knows how long that was. `DiskStore.contents` deletes
  all that ever expires.
"""

from collections.abc import Callable
from typing import Final

__all__ = ("DiskClock",)

# Clocks that are steered run a little slow at times; that is no jump.
_TOLERANCE: Final = 1.0


class DiskClock:
    """Translates between monotonic seconds and stamps."""

    __slots__ = ("_offset", "_wall")

    def __init__(self, wall: Callable[[], float], *, now: float) -> None:
        """Start from what the wall clock says.

        Args:
            wall: Returns wall-clock seconds.
            now: Monotonic seconds.
        """
        self._wall = wall
        self._offset = wall() - now

    def __repr__(self) -> str:
        return f"<DiskClock offset={self._offset}>"

    def stamp(self, now: float) -> float:
        """Return the stamp of an instant."""
        return now + self._offset

    def instant(self, stamp: float) -> float:
        """Return the monotonic seconds of a stamp."""
        return stamp - self._offset

    def adjust(self, *, now: float) -> float:
        """Look at the wall clock; return by how much the stamps on disk must be moved."""
        drift = self._wall() - self.stamp(now)
        if -_TOLERANCE < drift <= 0:
            return 0.0
        self._offset += drift
        return min(drift, 0.0)
