"""Sets of Locations as few intervals, however many Locations are in them.

A Location is one number here: Group ID times 2^64 plus Object ID. All Locations of a Track
stand in one line then, Groups of 2^64 Objects included, and an interval costs the same
whatever its length.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

from kvcs.names import Location
from kvcs.varint import MAX_VI64

__all__ = ("MAX_POSITION", "IntervalSet", "to_location", "to_position")

MAX_POSITION: Final = 2**128 - 1


def to_position(location: Location) -> int:
    """Return the place of `location` among all Locations of a Track."""
    return location.group_id << 64 | location.object_id


def to_location(position: int) -> Location:
    """Return the Location at `position`."""
    return Location(position >> 64, position & MAX_VI64)


class IntervalSet:
    """A set of integers, held as disjoint intervals that are inclusive at both ends."""

    __slots__ = ("_ends", "_starts", "size")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def __contains__(self, value: int) -> bool:
        index = bisect_right(self._starts, value) - 1
        return index >= 0 and value <= self._ends[index]

    def __repr__(self) -> str:
        return f"<IntervalSet {list(self)}>"

    def add(self, start: int, end: int) -> None:
        """Add `start` to `end`, inclusive; adjacent intervals become one."""
        first = bisect_left(self._ends, start - 1)
        last = bisect_right(self._starts, end + 1)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
            self.size -= sum(
                self._ends[index] - self._starts[index] + 1 for index in range(first, last)
            )
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
        self.size += end - start + 1

    def discard(self, value: int) -> None:
        """Take `value` out, if it is in."""
        self.remove(value, value)

    def remove(self, start: int, end: int) -> None:
        """Take out what is in from `start` to `end`, inclusive."""
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first >= last:
            return
        least, greatest = self._starts[first], self._ends[last - 1]
        self.size -= sum(
            self._ends[index] - self._starts[index] + 1 for index in range(first, last)
        )
        left = [(least, start - 1)] if least < start else []
        right = [(end + 1, greatest)] if greatest > end else []
        pieces = left + right
        self._starts[first:last] = [piece[0] for piece in pieces]
        self._ends[first:last] = [piece[1] for piece in pieces]
        self.size += sum(piece[1] - piece[0] + 1 for piece in pieces)

    def find(self, value: int) -> tuple[int, int] | None:
        """Return the interval that contains `value`, or None."""
        index = bisect_right(self._starts, value) - 1
        if index >= 0 and value <= self._ends[index]:
            return self._starts[index], self._ends[index]
        return None

    def next_start(self, value: int) -> int | None:
        """Return where the first interval above `value` starts, or None."""
        index = bisect_right(self._starts, value)
        return self._starts[index] if index < len(self._starts) else None

    def previous_end(self, value: int) -> int | None:
        """Return where the last interval below `value` ends, or None."""
        index = bisect_left(self._ends, value) - 1
        return self._ends[index] if index >= 0 else None
