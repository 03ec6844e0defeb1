"""The Object IDs that range filters let pass, where nothing else about an Object matters.

Whoever knows them need not know an Object to tell that it is not wanted: a relay fetches only
these, and a filtered fetch waits only for these.

Source: MOQT draft 22, Sections 3.3.2 and 8.6.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from kvcs.moqt.codepoints import ParameterType
from kvcs.moqt.wire.filters import Range, RangeFilter
from kvcs.varint import MAX_VI64

__all__ = ("ObjectIds",)


@dataclass(frozen=True, slots=True)
class ObjectIds:
    """A set of Object IDs.

    Attributes:
        spans: First and last, inclusive, of each run; ascending and apart.
    """

    spans: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, filters: Sequence[RangeFilter]) -> Self | None:
        """Return what filters let pass; None if that is everything, or not for the ID to say."""
        in_force = [item for item in filters if item.ranges]
        if not in_force or any(i.kind is not ParameterType.OBJECTID_FILTER for i in in_force):
            return None
        spans = sorted(
            (span.start, MAX_VI64 if span.end is None else span.end)
            for item in in_force
            for span in item.ranges
        )
        merged = [spans[0]]
        for start, end in spans[1:]:
            if start <= merged[-1][1] + 1:
                merged[-1] = merged[-1][0], max(end, merged[-1][1])
            else:
                merged.append((start, end))
        return cls(tuple(merged))

    def __contains__(self, object_id: int) -> bool:
        return any(start <= object_id <= end for start, end in self.spans)

    def __len__(self) -> int:
        """Return how many runs there are: what a filter counts as Ranges."""
        return len(self.spans)

    def is_within(self, other: "ObjectIds") -> bool:
        """Tell whether all of these are among others."""
        return all(
            any(first <= start and end <= last for first, last in other.spans)
            for start, end in self.spans
        )

    def next_id(self, object_id: int) -> int | None:
        """Return the first of these that is not below `object_id`; None if there is none."""
        return next((max(start, object_id) for start, end in self.spans if object_id <= end), None)

    def next_position(self, position: int) -> int:
        """Return the first position, of `kvcs.moqt.track.interval`, not below another."""
        group_id, object_id = position >> 64, position & MAX_VI64
        following = self.next_id(object_id)
        if following is None:
            return (group_id + 1) << 64 | self.spans[0][0]
        return group_id << 64 | following

    def starting(self, object_id: int) -> "ObjectIds":
        """Return those that are not below `object_id`, of which there must be one."""
        spans = ((max(start, object_id), end) for start, end in self.spans if object_id <= end)
        return ObjectIds(tuple(spans))

    def to_filter(self) -> RangeFilter:
        """Return the filter that lets exactly these pass."""
        ranges = (Range(start, None if end == MAX_VI64 else end) for start, end in self.spans)
        return RangeFilter(kind=ParameterType.OBJECTID_FILTER, ranges=tuple(ranges))
