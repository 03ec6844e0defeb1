"""Subgroup streams: a header, then Objects of one Subgroup.

`decode_object_header` and `encode_object_header` run once per Object. They work on
local variables and move the reader only when they succeed.

Source: MOQT draft 22, Section 11.3.
"""

from typing import Final, NamedTuple, Self

from kvcs.errors import LocalProtocolError
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.wire.buffer import Reader, violation
from kvcs.moqt.wire.object import (
    Object,
    check_status,
    decode_object_properties,
    decode_status,
    encode_priority,
)
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.varint import MAX_VI64, decode_vi64, encode_vi64

__all__ = (
    "ObjectHeader",
    "SubgroupHeader",
    "decode_object_header",
    "encode_object_header",
    "is_subgroup_type",
)

_PROPERTIES: Final = 0x01
_SUBGROUP_ID_MODE: Final = 0x06
_MODE_ZERO: Final = 0x00
_MODE_FIRST_OBJECT: Final = 0x02
_MODE_EXPLICIT: Final = 0x04
_END_OF_GROUP: Final = 0x08
_SUBGROUP: Final = 0x10
_DEFAULT_PRIORITY: Final = 0x20
_FIRST_OBJECT: Final = 0x40

_NORMAL: Final = ObjectStatus.NORMAL


def is_subgroup_type(stream_type: int) -> bool:
    """Tell whether a stream that begins with `stream_type` is a Subgroup stream."""
    is_known = stream_type < 0x80 and stream_type & _SUBGROUP != 0
    return is_known and stream_type & _SUBGROUP_ID_MODE != _SUBGROUP_ID_MODE


class SubgroupHeader(NamedTuple):
    """Header of a Subgroup stream; a tuple, since each stream through a relay makes several.

    Attributes:
        track_alias: Track Alias of the subscription.
        group_id: Group ID of all Objects on the stream.
        subgroup_id: Subgroup ID; None is the Object ID of the first Object on the stream.
        publisher_priority: Priority, 0..255; None is that of the Track.
        has_properties: Whether every Object has a properties field, perhaps empty.
        end_of_group: Whether the Group ends with this Subgroup, once the stream has a FIN.
        first_object: Whether the first Object here is the first of the Subgroup.
        explicit_subgroup_id: Whether Subgroup ID 0 is written out, as others always are.
    """

    track_alias: int
    group_id: int
    subgroup_id: int | None
    publisher_priority: int | None
    has_properties: bool = False
    end_of_group: bool = False
    first_object: bool = False
    explicit_subgroup_id: bool = False

    def encode(self) -> bytes:
        """Encode the header, which begins with the stream type.

        Raises:
            LocalProtocolError: The priority is not in 0..255.
        """
        stream_type = _SUBGROUP | self._subgroup_id_mode()
        stream_type |= _PROPERTIES if self.has_properties else 0
        stream_type |= _END_OF_GROUP if self.end_of_group else 0
        stream_type |= _FIRST_OBJECT if self.first_object else 0
        parts = [encode_vi64(self.track_alias), encode_vi64(self.group_id)]
        if self.subgroup_id is not None and stream_type & _MODE_EXPLICIT:
            parts.append(encode_vi64(self.subgroup_id))
        if self.publisher_priority is None:
            stream_type |= _DEFAULT_PRIORITY
        else:
            parts.append(encode_priority(self.publisher_priority))
        return encode_vi64(stream_type) + b"".join(parts)

    def _subgroup_id_mode(self) -> int:
        if self.subgroup_id is None:
            return _MODE_FIRST_OBJECT
        return _MODE_EXPLICIT if self.subgroup_id or self.explicit_subgroup_id else _MODE_ZERO

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """Decode from the stream type on; the reader moves only on success.

        Raises:
            NeedMore: The bytes end inside the header.
            RemoteProtocolError: The stream type is none of a Subgroup stream.
        """
        header = Reader(reader.data, reader.offset)
        stream_type = header.vi64()
        if not is_subgroup_type(stream_type):
            raise violation(f"{stream_type:#x} is no type of a Subgroup stream")
        mode = stream_type & _SUBGROUP_ID_MODE
        track_alias, group_id = header.vi64(), header.vi64()
        subgroup_id = header.vi64() if mode == _MODE_EXPLICIT else 0
        decoded = cls(
            track_alias=track_alias,
            group_id=group_id,
            subgroup_id=None if mode == _MODE_FIRST_OBJECT else subgroup_id,
            publisher_priority=None if stream_type & _DEFAULT_PRIORITY else header.u8(),
            has_properties=stream_type & _PROPERTIES != 0,
            end_of_group=stream_type & _END_OF_GROUP != 0,
            first_object=stream_type & _FIRST_OBJECT != 0,
            explicit_subgroup_id=mode == _MODE_EXPLICIT and subgroup_id == 0,
        )
        reader.offset = header.offset
        return decoded


class ObjectHeader(NamedTuple):
    """What stands before the payload of an Object on a Subgroup stream.

    Attributes:
        object_id: Object ID.
        properties: Object Properties.
        payload_length: Octets of payload that follow.
        status: Object Status; anything but NORMAL has no payload.
    """

    object_id: int
    properties: Properties
    payload_length: int
    status: ObjectStatus


def encode_object_header(
    obj: Object,
    *,
    previous_object_id: int | None,
    has_properties: bool,
    payload_length: int | None = None,
) -> bytes:
    """Encode everything of an Object before its payload.

    Args:
        obj: The Object.
        previous_object_id: Object ID before it on this stream, None for the first.
        has_properties: As in the header of the stream.
        payload_length: Octets of a payload that is not in `obj` yet; None if it is.

    Raises:
        LocalProtocolError: Object IDs do not ascend, there are properties where the header of
            the stream says that there are none, or a status other than NORMAL has content.
    """
    if obj.status:
        check_status(obj)
    object_id = obj.object_id
    delta = object_id if previous_object_id is None else object_id - previous_object_id - 1
    if delta < 0:
        raise LocalProtocolError(f"Object {object_id} after Object {previous_object_id}")
    header = encode_vi64(delta)
    raw = obj.properties.raw
    if has_properties:
        header += encode_vi64(len(raw)) + raw
    elif raw:
        raise LocalProtocolError("properties on a Subgroup stream without PROPERTIES")
    length = len(obj.payload) if payload_length is None else payload_length
    if length:
        return header + encode_vi64(length)
    return header + b"\x00" + encode_vi64(obj.status)


def decode_object_header(
    reader: Reader, *, previous_object_id: int | None, has_properties: bool
) -> ObjectHeader:
    """Decode everything of an Object before its payload; see `encode_object_header`.

    Raises:
        NeedMore: The bytes end inside the header; the reader has not moved.
        RemoteProtocolError: The Object ID is too large, the status is unknown or has
            properties, or the properties cannot be parsed.
    """
    data = reader.data
    object_id, offset = decode_vi64(data, reader.offset)
    if previous_object_id is not None:
        object_id += previous_object_id + 1
        if object_id > MAX_VI64:
            raise violation("Object ID above 2^64-1")
    properties = EMPTY_PROPERTIES
    if has_properties:
        properties, offset = decode_object_properties(data, offset)
    payload_length, offset = decode_vi64(data, offset)
    status = _NORMAL
    if not payload_length:
        status, offset = decode_status(data, offset)
        if status and properties.raw:
            raise violation(f"{status.name} with properties")
    reader.offset = offset
    return ObjectHeader(object_id, properties, payload_length, status)
