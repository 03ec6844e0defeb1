"""The Object, as all delivery modes carry it, and its properties field.

Source: MOQT draft 22, Sections 2.1.1, 8.4 and 11.1.
"""

from functools import lru_cache
from typing import Final, NamedTuple

from kvcs.errors import LocalProtocolError
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.wire.buffer import violation
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.names import Location
from kvcs.varint import NeedMore, decode_vi64

__all__ = (
    "MAX_PROPERTIES_BYTES",
    "Object",
    "check_status",
    "decode_object_properties",
    "decode_status",
    "encode_priority",
)

# Room for one value of the largest size and more; the draft sets no limit, so we do.
MAX_PROPERTIES_BYTES: Final = 128 * 1024
# Longer properties are decoded for each Object.
_SHARED_BYTES: Final = 64


class Object(NamedTuple):
    """One Object of a Track.

    A tuple, since every Object that passes through makes one, in a quarter of the time that a
    frozen dataclass takes.

    Attributes:
        group_id: Group ID.
        object_id: Object ID inside the Group.
        subgroup_id: Subgroup ID; None when the delivery mode is datagram.
        publisher_priority: 0..255, lower is more urgent.
        status: Only NORMAL Objects have properties or a payload.
        properties: Object Properties.
        payload: The payload, never changed on its way.
    """

    group_id: int
    object_id: int
    subgroup_id: int | None
    publisher_priority: int
    status: ObjectStatus = ObjectStatus.NORMAL
    properties: Properties = EMPTY_PROPERTIES
    payload: bytes = b""

    def __repr__(self) -> str:
        return (
            f"Object(group_id={self.group_id}, object_id={self.object_id}, "
            f"subgroup_id={self.subgroup_id}, publisher_priority={self.publisher_priority}, "
            f"status={self.status.name}, {len(self.payload)} octets)"
        )

    @property
    def location(self) -> Location:
        """Place of the Object in its Track."""
        return Location(self.group_id, self.object_id)


def check_status(obj: Object) -> None:
    """Check that an Object may be sent.

    Raises:
        LocalProtocolError: A status other than NORMAL has properties or a payload.
    """
    if obj.status and (obj.payload or obj.properties.raw):
        raise LocalProtocolError(f"{obj.status.name} carries neither payload nor properties")


def decode_object_properties(
    data: bytes | bytearray | memoryview, offset: int
) -> tuple[Properties, int]:
    """Decode Properties Length and properties; return them and the offset after them.

    Raises:
        NeedMore: `data` ends inside the field.
        RemoteProtocolError: The length is above our limit, or the pairs cannot be parsed.
    """
    length, offset = decode_vi64(data, offset)
    if not length:
        return EMPTY_PROPERTIES, offset
    if length > MAX_PROPERTIES_BYTES:
        raise violation(f"properties with {length} octets, at most {MAX_PROPERTIES_BYTES}")
    end = offset + length
    if end > len(data):
        raise NeedMore
    raw = bytes(data[offset:end])
    return _decoded(raw) if length <= _SHARED_BYTES else Properties.decode(raw), end


@lru_cache(maxsize=256)
def _decoded(raw: bytes) -> Properties:
    """Decode what all Objects of a Track are likely to have in common; a value, so shared."""
    return Properties.decode(raw)


def decode_status(data: bytes | bytearray | memoryview, offset: int) -> tuple[ObjectStatus, int]:
    """Decode an Object Status; return it and the offset after it.

    Raises:
        NeedMore: `data` ends inside the field.
        RemoteProtocolError: The status is unknown.
    """
    number, offset = decode_vi64(data, offset)
    try:
        return ObjectStatus(number), offset
    except ValueError:
        raise violation(f"unknown Object Status {number:#x}") from None


def encode_priority(priority: int) -> bytes:
    """Encode a Publisher Priority.

    Raises:
        LocalProtocolError: `priority` is not in 0..255.
    """
    if not 0 <= priority <= 0xFF:
        raise LocalProtocolError(f"Publisher Priority is 0..255, got {priority}")
    return priority.to_bytes()
