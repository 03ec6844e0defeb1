"""Objects in datagrams, and padding.

Source: MOQT draft 22, Sections 11.2 and 11.5.
"""

from dataclasses import dataclass, field
from typing import Final, Self

from kvcs.moqt.codepoints import ObjectStatus, StreamType
from kvcs.moqt.wire.buffer import Reader, violation
from kvcs.moqt.wire.object import (
    Object,
    decode_object_properties,
    decode_status,
    encode_priority,
)
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.varint import NeedMore, decode_vi64, encode_vi64

__all__ = ("ObjectDatagram", "encode_padding", "is_padding_datagram")

_PROPERTIES: Final = 0x01
_END_OF_GROUP: Final = 0x02
_ZERO_OBJECT_ID: Final = 0x04
_DEFAULT_PRIORITY: Final = 0x08
_STATUS: Final = 0x20
_KNOWN: Final = _PROPERTIES | _END_OF_GROUP | _ZERO_OBJECT_ID | _DEFAULT_PRIORITY | _STATUS


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectDatagram:
    """One Object in one datagram.

    Attributes:
        track_alias: Track Alias of the subscription.
        group_id: Group ID.
        object_id: Object ID.
        publisher_priority: Priority, 0..255; None is that of the Track.
        end_of_group: Whether no larger Object is in the Group.
        status: Only NORMAL Objects have properties or a payload.
        properties: Object Properties.
        payload: The payload.

    Raises:
        ValueError: A status other than NORMAL has properties, payload or `end_of_group`.
    """

    track_alias: int
    group_id: int
    object_id: int
    publisher_priority: int | None
    end_of_group: bool = False
    status: ObjectStatus = ObjectStatus.NORMAL
    properties: Properties = EMPTY_PROPERTIES
    payload: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if self.status and (self.payload or self.properties or self.end_of_group):
            raise ValueError(f"{self.status.name} carries nothing else in a datagram")

    @classmethod
    def of(cls, obj: Object, *, track_alias: int, end_of_group: bool = False) -> Self:
        """Return the datagram that carries `obj`."""
        return cls(
            track_alias=track_alias,
            group_id=obj.group_id,
            object_id=obj.object_id,
            publisher_priority=obj.publisher_priority,
            end_of_group=end_of_group,
            status=obj.status,
            properties=obj.properties,
            payload=obj.payload,
        )

    def to_object(self, *, default_priority: int) -> Object:
        """Return the Object, with the priority of its Track where it has none."""
        priority = self.publisher_priority
        return Object(
            group_id=self.group_id,
            object_id=self.object_id,
            subgroup_id=None,
            publisher_priority=default_priority if priority is None else priority,
            status=self.status,
            properties=self.properties,
            payload=self.payload,
        )

    def encode(self) -> bytes:
        """Encode the datagram.

        Raises:
            LocalProtocolError: The priority is not in 0..255.
        """
        flags = _END_OF_GROUP if self.end_of_group else 0
        parts = [encode_vi64(self.track_alias), encode_vi64(self.group_id)]
        if self.object_id:
            parts.append(encode_vi64(self.object_id))
        else:
            flags |= _ZERO_OBJECT_ID
        if self.publisher_priority is None:
            flags |= _DEFAULT_PRIORITY
        else:
            parts.append(encode_priority(self.publisher_priority))
        if self.properties:
            flags |= _PROPERTIES
            parts += (encode_vi64(len(self.properties.raw)), self.properties.raw)
        if self.status:
            flags |= _STATUS
            parts.append(encode_vi64(self.status))
        return b"".join((encode_vi64(flags), *parts, self.payload))

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        """Decode a datagram that is not padding.

        Raises:
            RemoteProtocolError: The datagram is of an unknown type, cut off or malformed.
        """
        try:
            return cls._decode(Reader(data))
        except NeedMore:
            raise violation("datagram ends inside a field") from None

    @classmethod
    def _decode(cls, reader: Reader) -> Self:
        flags = reader.vi64()
        has_status = flags & _STATUS != 0
        if flags & ~_KNOWN or (has_status and flags & _END_OF_GROUP):
            raise violation(f"unknown type {flags:#x} of a datagram")
        track_alias, group_id = reader.vi64(), reader.vi64()
        object_id = 0 if flags & _ZERO_OBJECT_ID else reader.vi64()
        priority = None if flags & _DEFAULT_PRIORITY else reader.u8()
        properties = _decode_properties(reader) if flags & _PROPERTIES else EMPTY_PROPERTIES
        status = _decode_status(reader, properties) if has_status else ObjectStatus.NORMAL
        return cls(
            track_alias=track_alias,
            group_id=group_id,
            object_id=object_id,
            publisher_priority=priority,
            end_of_group=flags & _END_OF_GROUP != 0,
            status=status,
            properties=properties,
            payload=reader.rest(),
        )


def _decode_properties(reader: Reader) -> Properties:
    properties, reader.offset = decode_object_properties(reader.data, reader.offset)
    if not properties:
        raise violation("datagram of a type with properties has none")
    return properties


def _decode_status(reader: Reader, properties: Properties) -> ObjectStatus:
    status, reader.offset = decode_status(reader.data, reader.offset)
    if status and properties:
        raise violation(f"{status.name} with properties")
    if reader.remaining:
        raise violation(f"datagram with {reader.remaining} octets after its status")
    return status


def is_padding_datagram(data: bytes | memoryview) -> bool:
    """Tell whether a datagram is padding, to be discarded."""
    try:
        return decode_vi64(data)[0] == StreamType.PADDING_DATAGRAM
    except NeedMore:
        return False


def encode_padding(kind: StreamType, size_bytes: int) -> bytes:
    """Encode the type of padding and `size_bytes` zero octets."""
    return encode_vi64(kind) + bytes(size_bytes)
