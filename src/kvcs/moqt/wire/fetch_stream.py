"""Fetch streams: a header, then records that are written relative to each other.

Encoder and decoder hold what the next record may refer to: the Location of the record
before, and Subgroup and priority of the Object before. They accept records only in the
order of the request, Groups up or down and Objects up.

Source: MOQT draft 22, Section 11.4.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from kvcs.errors import LocalProtocolError
from kvcs.moqt.codepoints import FetchFlag, GroupOrder, RangeMarker, StreamType
from kvcs.moqt.wire.buffer import Reader, violation
from kvcs.moqt.wire.object import Object, decode_object_properties, encode_priority
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.names import Location
from kvcs.varint import MAX_VI64, NeedMore, decode_vi64, encode_vi64

__all__ = (
    "EndOfRange",
    "FetchDecoder",
    "FetchEncoder",
    "FetchHeader",
    "FetchObjectHeader",
)

# Plain integers: an IntFlag costs a microsecond per operation, and this runs per Object.
_SUBGROUP_MODE: Final = int(FetchFlag.SUBGROUP_MODE)
_OBJECT_ID_DELTA: Final = int(FetchFlag.OBJECT_ID_DELTA)
_GROUP_ID_DELTA: Final = int(FetchFlag.GROUP_ID_DELTA)
_PRIORITY: Final = int(FetchFlag.PRIORITY)
_PROPERTIES: Final = int(FetchFlag.PROPERTIES)
_DATAGRAM: Final = int(FetchFlag.DATAGRAM)

_SUBGROUP_ZERO: Final = 0
_SUBGROUP_PRIOR: Final = 1
_SUBGROUP_NEXT: Final = 2
_SUBGROUP_EXPLICIT: Final = 3

type _Data = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class FetchHeader:
    """Header of a fetch stream: the request that it answers."""

    request_id: int

    def encode(self) -> bytes:
        """Encode the header, which begins with the stream type."""
        return encode_vi64(StreamType.FETCH_HEADER) + encode_vi64(self.request_id)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """Decode from the stream type on; the reader moves only on success.

        Raises:
            NeedMore: The bytes end inside the header.
            RemoteProtocolError: The stream type is another.
        """
        stream_type, offset = decode_vi64(reader.data, reader.offset)
        if stream_type != StreamType.FETCH_HEADER:
            raise violation(f"{stream_type:#x} is not the type of a fetch stream")
        request_id, reader.offset = decode_vi64(reader.data, offset)
        return cls(request_id)


class FetchObjectHeader(NamedTuple):
    """What stands before the payload of an Object on a fetch stream.

    Attributes:
        group_id: Group ID.
        object_id: Object ID.
        subgroup_id: Subgroup ID; None when the delivery mode is datagram.
        publisher_priority: 0..255.
        properties: Object Properties.
        payload_length: Octets of payload that follow.
    """

    group_id: int
    object_id: int
    subgroup_id: int | None
    publisher_priority: int
    properties: Properties
    payload_length: int


class EndOfRange(NamedTuple):
    """A record without an Object.

    Attributes:
        marker: What holds for the range.
        location: Its end, inclusive; it begins behind the record before.
    """

    marker: RangeMarker
    location: Location


class FetchEncoder:
    """Writes the records of one fetch stream."""

    __slots__ = ("_group_id", "_is_descending", "_object_id", "_priority", "_subgroup_id")

    def __init__(self, order: GroupOrder) -> None:
        self._is_descending = order == GroupOrder.DESCENDING
        self._group_id: int | None = None
        self._object_id = 0
        # Subgroup that may be referred to; none after an Object in datagram mode, since
        # the draft does not say what is then meant.
        self._subgroup_id: int | None = None
        self._priority: int | None = None

    def __repr__(self) -> str:
        return f"FetchEncoder(after=({self._group_id}, {self._object_id}))"

    def object_header(self, obj: Object, payload_length: int | None = None) -> bytes:
        """Encode everything of an Object before its payload.

        Args:
            obj: The Object.
            payload_length: Octets of a payload that is not in `obj` yet; None if it is.

        Raises:
            LocalProtocolError: The Object is out of order, or its status is not NORMAL.
        """
        length = len(obj.payload) if payload_length is None else payload_length
        if self._continues(obj):
            self._object_id += 1
            return b"\x00" + encode_vi64(length)
        if obj.status:
            raise LocalProtocolError(f"{obj.status.name} on a fetch stream")
        flags, group_field, object_field = self._place(obj.group_id, obj.object_id)
        mode, subgroup_field = self._subgroup(obj.subgroup_id)
        flags |= mode
        fields = group_field + subgroup_field + object_field
        if obj.publisher_priority != self._priority:
            flags |= _PRIORITY
            fields += encode_priority(obj.publisher_priority)
        raw = obj.properties.raw
        if raw:
            flags |= _PROPERTIES
            fields += encode_vi64(len(raw)) + raw
        header = encode_vi64(flags) + fields + encode_vi64(length)
        self._group_id, self._object_id = obj.group_id, obj.object_id
        self._subgroup_id, self._priority = obj.subgroup_id, obj.publisher_priority
        return header

    def _continues(self, obj: Object) -> bool:
        """Tell whether all of an Object follows from the one before, as with most."""
        return (
            obj.object_id == self._object_id + 1
            and obj.group_id == self._group_id
            and obj.publisher_priority == self._priority
            and obj.subgroup_id == self._subgroup_id == 0
            and not obj.properties.raw
            and not obj.status
        )

    def marker(self, marker: RangeMarker, location: Location) -> bytes:
        """Encode the end of a range, `location` inclusive.

        Raises:
            LocalProtocolError: `location` is not behind the record before.
        """
        self._check_order(location.group_id, location.object_id)
        record = encode_vi64(marker) + location.encode()
        self._group_id, self._object_id = location.group_id, location.object_id
        return record

    def _place(self, group_id: int, object_id: int) -> tuple[int, bytes, bytes]:
        """Return flags, Group ID field and Object ID field."""
        self._check_order(group_id, object_id)
        prior = self._group_id
        if group_id != prior:
            if prior is None:
                delta = group_id
            else:
                delta = (prior - group_id if self._is_descending else group_id - prior) - 1
            return _GROUP_ID_DELTA | _OBJECT_ID_DELTA, encode_vi64(delta), encode_vi64(object_id)
        delta = object_id - self._object_id
        return (0, b"", b"") if delta == 1 else (_OBJECT_ID_DELTA, b"", encode_vi64(delta))

    def _subgroup(self, subgroup_id: int | None) -> tuple[int, bytes]:
        """Return flags and Subgroup ID field."""
        prior = self._subgroup_id
        if subgroup_id is None:
            return _DATAGRAM, b""
        if subgroup_id == 0:
            return _SUBGROUP_ZERO, b""
        if prior is not None and subgroup_id in (prior, prior + 1):
            return _SUBGROUP_PRIOR if subgroup_id == prior else _SUBGROUP_NEXT, b""
        return _SUBGROUP_EXPLICIT, encode_vi64(subgroup_id)

    def _check_order(self, group_id: int, object_id: int) -> None:
        prior = self._group_id
        if prior is None:
            return
        if group_id == prior:
            follows = object_id > self._object_id
        else:
            follows = (group_id < prior) == self._is_descending
        if not follows:
            raise LocalProtocolError(
                f"{Location(group_id, object_id)} after {Location(prior, self._object_id)}"
            )


class FetchDecoder:
    """Reads the records of one fetch stream."""

    __slots__ = ("_group_id", "_is_descending", "_object_id", "_priority", "_subgroup_id")

    def __init__(self, order: GroupOrder) -> None:
        self._is_descending = order == GroupOrder.DESCENDING
        self._group_id: int | None = None
        self._object_id = 0
        self._subgroup_id: int | None = None
        self._priority: int | None = None

    def __repr__(self) -> str:
        return f"FetchDecoder(after=({self._group_id}, {self._object_id}))"

    def record(self, reader: Reader) -> FetchObjectHeader | EndOfRange:
        """Decode the next record, of an Object everything before its payload.

        Raises:
            NeedMore: The bytes end inside the record; neither reader nor state has moved.
            RemoteProtocolError: The record breaks a rule.
        """
        data = reader.data
        flags, offset = decode_vi64(data, reader.offset)
        if not flags and self._priority is not None and self._object_id < MAX_VI64:
            return self._next_object(reader, offset)
        if flags > 0x7F:
            return self._end_of_range(reader, flags, offset)
        group_id, offset = self._read_group(data, flags, offset)
        subgroup_id, offset = self._read_subgroup(data, flags, offset)
        object_id, offset = self._read_object(data, flags, offset)
        priority, offset = self._read_priority(data, flags, offset)
        properties = EMPTY_PROPERTIES
        if flags & _PROPERTIES:
            properties, offset = decode_object_properties(data, offset)
        payload_length, reader.offset = decode_vi64(data, offset)
        self._group_id, self._object_id, self._priority = group_id, object_id, priority
        # Peers read the Subgroup ID of an Object in datagram mode as 0.
        self._subgroup_id = subgroup_id or 0
        return FetchObjectHeader(
            group_id, object_id, subgroup_id, priority, properties, payload_length
        )

    def _next_object(self, reader: Reader, offset: int) -> FetchObjectHeader:
        """Decode what most records are: the next Object of the Group, and of Subgroup 0."""
        group_id, priority = self._group_id, self._priority
        assert group_id is not None
        assert priority is not None
        payload_length, reader.offset = decode_vi64(reader.data, offset)
        self._object_id += 1
        self._subgroup_id = 0
        return FetchObjectHeader(
            group_id, self._object_id, 0, priority, EMPTY_PROPERTIES, payload_length
        )

    def _read_group(self, data: _Data, flags: int, offset: int) -> tuple[int, int]:
        prior = self._group_id
        if not flags & _GROUP_ID_DELTA:
            if prior is None:
                raise violation("first fetch record without a Group ID")
            return prior, offset
        delta, offset = decode_vi64(data, offset)
        if prior is None:
            if not flags & _OBJECT_ID_DELTA:
                raise violation("first fetch record without an Object ID")
            return delta, offset
        group_id = prior - delta - 1 if self._is_descending else prior + delta + 1
        if not 0 <= group_id <= MAX_VI64:
            raise violation("Group ID of a fetch record outside 0..2^64-1")
        return group_id, offset

    def _read_subgroup(self, data: _Data, flags: int, offset: int) -> tuple[int | None, int]:
        mode = flags & _SUBGROUP_MODE
        if flags & _DATAGRAM:
            return None, offset
        if mode == _SUBGROUP_ZERO:
            return 0, offset
        if mode == _SUBGROUP_EXPLICIT:
            return decode_vi64(data, offset)
        if self._subgroup_id is None:
            raise violation("fetch record refers to a Subgroup before the first Object")
        subgroup_id = self._subgroup_id + (mode == _SUBGROUP_NEXT)
        if subgroup_id > MAX_VI64:
            raise violation("Subgroup ID of a fetch record above 2^64-1")
        return subgroup_id, offset

    def _read_object(self, data: _Data, flags: int, offset: int) -> tuple[int, int]:
        if flags & _OBJECT_ID_DELTA:
            object_id, offset = decode_vi64(data, offset)
            if flags & _GROUP_ID_DELTA:
                return object_id, offset
            if not object_id:
                raise violation("fetch record repeats an Object ID")
            object_id += self._object_id
        else:
            object_id = self._object_id + 1
        if object_id > MAX_VI64:
            raise violation("Object ID of a fetch record above 2^64-1")
        return object_id, offset

    def _read_priority(self, data: _Data, flags: int, offset: int) -> tuple[int, int]:
        if not flags & _PRIORITY:
            if self._priority is None:
                raise violation("fetch record refers to a priority before the first Object")
            return self._priority, offset
        if offset >= len(data):
            raise NeedMore
        return data[offset], offset + 1

    def _end_of_range(self, reader: Reader, flags: int, offset: int) -> EndOfRange:
        try:
            marker = RangeMarker(flags)
        except ValueError:
            raise violation(f"unknown flags {flags:#x} of a fetch record") from None
        group_id, offset = decode_vi64(reader.data, offset)
        object_id, offset = decode_vi64(reader.data, offset)
        location = Location(group_id, object_id)
        prior = self._group_id
        if prior is not None and not self._is_behind(prior, location):
            raise violation(f"{marker.name} up to {location} is out of order")
        reader.offset = offset
        self._group_id, self._object_id = group_id, object_id
        return EndOfRange(marker, location)

    def _is_behind(self, prior: int, location: Location) -> bool:
        if location.group_id == prior:
            return location.object_id > self._object_id
        return (location.group_id < prior) == self._is_descending
