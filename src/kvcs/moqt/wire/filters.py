"""Filters: which Objects of a Track a request is about.

A Location Filter is resolved once, against the Largest Object at that moment, into an
inclusive range of Locations. Range filters look at single fields of an Object: Ranges
of one filter are alternatives, filters with one SetID must all pass, and passing for
one SetID is enough.

Source: MOQT draft 22, Sections 3.3, 8.6 and 9.20.9 to 9.20.14.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from kvcs.errors import RequestErrorCode, RequestFailed
from kvcs.moqt.codepoints import LocationFilterType, ParameterType
from kvcs.moqt.wire.buffer import Reader, encode_prefixed, encode_u8, violation
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.names import Location
from kvcs.varint import MAX_VI64, NeedMore, encode_vi64

__all__ = (
    "RANGE_FILTERS",
    "LocationFilter",
    "LocationRange",
    "Range",
    "RangeFilter",
    "filter_conflict",
    "matches",
    "matches_track",
    "range_count",
    "replace_filters",
)

RANGE_FILTERS: Final = frozenset(
    {
        ParameterType.SUBGROUP_FILTER,
        ParameterType.OBJECTID_FILTER,
        ParameterType.PRIORITY_FILTER,
        ParameterType.OBJECT_PROPERTY_FILTER,
        ParameterType.TRACK_PROPERTY_FILTER,
    }
)
_PROPERTY_FILTERS: Final = frozenset(
    {ParameterType.OBJECT_PROPERTY_FILTER, ParameterType.TRACK_PROPERTY_FILTER}
)

_START: Final = Location(0, 0)
# Fields of a Location Filter that follow its type, in the order of the wire.
_FIELDS: Final = ("start_group", "start_object", "end_group_delta", "end_object")
_LAYOUT: Final = {
    LocationFilterType.NONE: 0,
    LocationFilterType.RELATIVE_START: 1,
    LocationFilterType.ABSOLUTE_START: 2,
    LocationFilterType.ABSOLUTE_START_GROUP_END: 3,
    LocationFilterType.ABSOLUTE_RANGE: 4,
    LocationFilterType.NEXT_OBJECT: 0,
}


@dataclass(frozen=True, slots=True)
class LocationRange:
    """A range of Locations, inclusive at both ends.

    Attributes:
        start: First Location.
        end: Last Location, or None when open; its Object ID is 2^64-1 where the range
            goes to the end of the Group. Nothing is inside when it is before `start`.
    """

    start: Location
    end: Location | None = None

    def __contains__(self, location: Location) -> bool:
        return self.start <= location and (self.end is None or location <= self.end)


@dataclass(frozen=True, slots=True)
class LocationFilter:
    """Location Filter, as it stands in a message (Section 9.20.9).

    Attributes:
        kind: Type; fields that it does not have are 0.
        start_group: First Group, or Groups to count back from the Next Group.
        start_object: First Object of the first Group.
        end_group_delta: Last Group minus first Group.
        end_object: Last Object of the last Group, inclusive.

    Raises:
        ValueError: The last Group is above 2^64-1, or a field does not belong to `kind`.
    """

    kind: LocationFilterType
    start_group: int = 0
    start_object: int = 0
    end_group_delta: int = 0
    end_object: int = 0

    def __post_init__(self) -> None:
        if self.start_group + self.end_group_delta > MAX_VI64:
            raise ValueError("End Group of a Location Filter above 2^64-1")
        if any(getattr(self, name) for name in _FIELDS[_LAYOUT[self.kind] :]):
            raise ValueError(f"{self.kind.name} does not have all of these fields")

    @classmethod
    def none(cls) -> Self:
        """Return the filter that lets all pass, or clears one in an update."""
        return cls(LocationFilterType.NONE)

    @classmethod
    def relative_start(cls, groups: int) -> Self:
        """Return the filter that starts `groups` before the Next Group."""
        return cls(LocationFilterType.RELATIVE_START, groups)

    @classmethod
    def next_object(cls) -> Self:
        """Return the filter that starts behind the Largest Object."""
        return cls(LocationFilterType.NEXT_OBJECT)

    @classmethod
    def absolute_start(cls, group_id: int, object_id: int) -> Self:
        """Return the filter that starts at a Location."""
        return cls(LocationFilterType.ABSOLUTE_START, group_id, object_id)

    @classmethod
    def absolute_start_group_end(cls, group_id: int, object_id: int, end_group_delta: int) -> Self:
        """Return the filter from a Location to the end of a Group."""
        kind = LocationFilterType.ABSOLUTE_START_GROUP_END
        return cls(kind, group_id, object_id, end_group_delta)

    @classmethod
    def absolute_range(
        cls, group_id: int, object_id: int, end_group_delta: int, end_object: int
    ) -> Self:
        """Return the filter from a Location to a Location, inclusive."""
        kind = LocationFilterType.ABSOLUTE_RANGE
        return cls(kind, group_id, object_id, end_group_delta, end_object)

    def encode(self) -> bytes:
        """Encode the type and its fields."""
        fields = _FIELDS[: _LAYOUT[self.kind]]
        return encode_vi64(self.kind) + b"".join(encode_vi64(getattr(self, f)) for f in fields)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """Decode; an unknown type hides where the next parameter begins.

        Raises:
            NeedMore: The bytes end inside the filter.
            RemoteProtocolError: The type is unknown, or the last Group above 2^64-1.
        """
        number = reader.vi64()
        try:
            kind = LocationFilterType(number)
        except ValueError:
            raise violation(f"unknown Location Filter type {number:#x}") from None
        fields = [reader.vi64() for _ in range(_LAYOUT[kind])]
        try:
            return cls(kind, *fields)
        except ValueError as error:
            raise violation(str(error)) from None

    def subscription_range(self, largest: Location | None) -> LocationRange:
        """Resolve for a subscription; `largest` is None when nothing is published."""
        return LocationRange(self._start(largest), self._end())

    def fetch_range(self, largest: Location) -> LocationRange | None:
        """Resolve for a FETCH or a fill, never beyond `largest`.

        Returns:
            The range, or None when it is empty (INVALID_RANGE, or no fill).
        """
        start, end = self._start(largest), self._end()
        end = largest if end is None else min(end, largest)
        return LocationRange(start, end) if start <= end else None

    def _start(self, largest: Location | None) -> Location:
        match self.kind:
            case LocationFilterType.NONE:
                return _START
            case LocationFilterType.RELATIVE_START:
                # The draft leaves open what Next Group is before anything is published.
                next_group = 0 if largest is None else largest.group_id + 1
                return Location(min(max(next_group - self.start_group, 0), MAX_VI64), 0)
            case LocationFilterType.NEXT_OBJECT:
                return _START if largest is None else _after(largest)
            case _:
                return Location(self.start_group, self.start_object)

    def _end(self) -> Location | None:
        end_group = self.start_group + self.end_group_delta
        match self.kind:
            case LocationFilterType.ABSOLUTE_START_GROUP_END:
                return Location(end_group, MAX_VI64)
            case LocationFilterType.ABSOLUTE_RANGE:
                return Location(end_group, self.end_object)
            case _:
                return None


def _after(location: Location) -> Location:
    if location.object_id < MAX_VI64:
        return Location(location.group_id, location.object_id + 1)
    return Location(location.group_id + 1, 0)


@dataclass(frozen=True, slots=True)
class Range:
    """Values from `start` to `end`, inclusive; `end` None is open."""

    start: int
    end: int | None = None

    def __contains__(self, value: int) -> bool:
        return self.start <= value and (self.end is None or value <= self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeFilter:
    """One range filter parameter (Sections 8.6 and 9.20.10 to 9.20.14).

    Attributes:
        kind: Which field it looks at, one of `RANGE_FILTERS`.
        set_id: Filters with the same SetID must all pass, 0..255.
        property_type: Even property Type, for the two property filters only.
        ranges: Ascending; only the last may be open. Empty takes back all filters of
            this kind in REQUEST_UPDATE.

    Raises:
        ValueError: One of these rules is broken.
    """

    kind: ParameterType
    set_id: int = 0
    property_type: int | None = None
    ranges: tuple[Range, ...] = ()

    def __post_init__(self) -> None:
        name = self.kind.name
        if self.kind not in RANGE_FILTERS:
            raise ValueError(f"{name} is not a range filter")
        if self.ranges:
            self._check_property_type()
        elif self.set_id or self.property_type is not None:
            raise ValueError(f"{name} without Ranges has neither SetID nor property type")
        previous = 0
        for position, span in enumerate(self.ranges):
            last = position == len(self.ranges) - 1
            if span.end is None and not last:
                raise ValueError(f"{name}: only the last Range may be open")
            end = span.start if span.end is None else span.end
            if not previous <= span.start <= end:
                raise ValueError(f"{name}: Ranges are not ascending")
            previous = end
        limit = 0xFF if self.kind == ParameterType.PRIORITY_FILTER else MAX_VI64
        if previous > limit:
            raise ValueError(f"{name}: {previous} is above {limit}")

    def _check_property_type(self) -> None:
        if (self.property_type is not None) != (self.kind in _PROPERTY_FILTERS):
            raise ValueError(f"{self.kind.name}: property type missing or out of place")
        if self.property_type is not None and self.property_type % 2:
            raise ValueError(f"{self.kind.name}: property type {self.property_type:#x} is odd")

    def encode(self) -> bytes:
        """Encode the value of the parameter, with its length."""
        if not self.ranges:
            return encode_vi64(0)
        parts = [encode_u8(self.set_id, "SetID")]
        if self.property_type is not None:
            parts.append(encode_vi64(self.property_type))
        previous = 0
        for span in self.ranges:
            parts.append(encode_vi64(span.start - previous))
            if span.end is not None:
                parts.append(encode_vi64(span.end - span.start))
                previous = span.end
        return encode_prefixed(b"".join(parts))

    @classmethod
    def decode(cls, kind: ParameterType, value: bytes) -> Self:
        """Decode the value of the parameter, without its length.

        Raises:
            RemoteProtocolError: `value` ends inside a field.
            RequestFailed: INVALID_FILTER, the filter itself makes no sense.
        """
        if not value:
            return cls(kind=kind)
        reader = Reader(value)
        try:
            set_id = reader.u8()
            property_type = reader.vi64() if kind in _PROPERTY_FILTERS else None
            ranges = _decode_ranges(reader)
        except NeedMore:
            raise violation(f"{kind.name} is cut off") from None
        if not ranges:
            raise RequestFailed(RequestErrorCode.INVALID_FILTER, f"{kind.name} without a Range")
        try:
            return cls(kind=kind, set_id=set_id, property_type=property_type, ranges=ranges)
        except ValueError as error:
            raise RequestFailed(RequestErrorCode.INVALID_FILTER, str(error)) from None

    def passes(self, value: int | None) -> bool:
        """Tell whether `value` is in a Range; an absent value is in none."""
        return value is not None and any(value in span for span in self.ranges)


def _decode_ranges(reader: Reader) -> tuple[Range, ...]:
    ranges: list[Range] = []
    end = 0
    while reader.remaining:
        start = end + reader.vi64()
        if not reader.remaining:
            ranges.append(Range(start))
            break
        end = start + reader.vi64()
        ranges.append(Range(start, end))
    return tuple(ranges)


def range_count(filters: Sequence[RangeFilter]) -> int:
    """Count the Ranges of all filters, for MAX_FILTER_RANGES."""
    return sum(len(range_filter.ranges) for range_filter in filters)


def filter_conflict(filters: Sequence[RangeFilter]) -> str | None:
    """Return what makes filters of one message contradict each other, or None."""
    seen: set[tuple[ParameterType, int, int | None]] = set()
    removed = {range_filter.kind for range_filter in filters if not range_filter.ranges}
    for range_filter in filters:
        kind = range_filter.kind
        key = (kind, range_filter.set_id, range_filter.property_type)
        if key in seen:
            return f"{kind.name} repeated for SetID {range_filter.set_id}"
        if kind in removed and range_filter.ranges:
            return f"{kind.name} both taken back and given"
        seen.add(key)
    return None


def replace_filters(
    filters: tuple[RangeFilter, ...], changes: tuple[RangeFilter, ...]
) -> tuple[RangeFilter, ...]:
    """Apply a REQUEST_UPDATE, or what a fill overrides (Sections 3.3.2 and 9.5).

    Args:
        filters: Filters in force.
        changes: They replace all filters of their kind; one without Ranges takes these back.
    """
    kinds = {change.kind for change in changes}
    kept = (item for item in filters if item.kind not in kinds)
    return (*kept, *(change for change in changes if change.ranges))


def matches(
    filters: Sequence[RangeFilter],
    *,
    subgroup_id: int | None,
    object_id: int,
    publisher_priority: int,
    properties: Properties,
    track_properties: Properties = EMPTY_PROPERTIES,
) -> bool:
    """Tell whether an Object passes the filters (Section 3.3.2).

    Args:
        filters: Filters in force; no filters let all pass.
        subgroup_id: Subgroup ID, None for an Object of a datagram.
        object_id: Object ID.
        publisher_priority: Priority of the Object, 0..255.
        properties: Properties of the Object.
        track_properties: Properties of its Track.
    """
    if not filters:
        return True
    fields = {
        ParameterType.SUBGROUP_FILTER: subgroup_id,
        ParameterType.OBJECTID_FILTER: object_id,
        ParameterType.PRIORITY_FILTER: publisher_priority,
    }
    verdicts: dict[int, bool] = {}
    for item in filters:
        if not item.ranges:
            continue
        if item.kind in _PROPERTY_FILTERS:
            is_track = item.kind == ParameterType.TRACK_PROPERTY_FILTER
            value = _integer_property(track_properties if is_track else properties, item)
        else:
            value = fields[item.kind]
        verdicts[item.set_id] = verdicts.get(item.set_id, True) and item.passes(value)
    return not verdicts or any(verdicts.values())


def matches_track(filters: Sequence[RangeFilter], track_properties: Properties) -> bool:
    """Tell whether a Track can have Objects that pass the filters.

    Only TRACK_PROPERTY_FILTER is decided here; a SetID without one stays possible.
    """
    verdicts: dict[int, bool] = {}
    for item in filters:
        if item.ranges:
            passed = item.kind != ParameterType.TRACK_PROPERTY_FILTER or item.passes(
                _integer_property(track_properties, item)
            )
            verdicts[item.set_id] = verdicts.get(item.set_id, True) and passed
    return not verdicts or any(verdicts.values())


def _integer_property(properties: Properties, item: RangeFilter) -> int | None:
    value = None if item.property_type is None else properties.find(item.property_type)
    return value if isinstance(value, int) else None
