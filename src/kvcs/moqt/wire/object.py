"""The Object, as all delivery modes carry it, and its properties field.

Source: MOQT draft 22, Sections 2.1.1, 8.4 and 11.1.
"""

from dataclasses import dataclass, field
from typing import Final

from kvcs.errors import LocalProtocolError
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.wire.buffer import violation
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.names import Location
from kvcs.varint import NeedMore, decode_vi64

__all__ = (
    "MAX_PROPERTIES_BYTES",
    "Object",
    "decode_object_properties",
    "decode_status",
    "encode_priority",
)

# Room for one value of the largest size and more; the draft sets no limit, so we do.
MAX_PROPERTIES_BYTES: Final = 128 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Object:
    """One Object of a Track.

    Attributes:
        group_id: Group ID.
        object_id: Object ID inside the Group.
        subgroup_id: Subgroup ID; None when the delivery mode is datagram.
        publisher_priority: 0..255, lower is more urgent.
        status: Only NORMAL Objects have properties or a payload.
        properties: Object Properties.
        payload: The payload, never changed on its way.

    Raises:
        ValueError: A status other than NORMAL has properties or a payload.
    """

    group_id: int
    object_id: int
    subgroup_id: int | None
    publisher_priority: int
    status: ObjectStatus = ObjectStatus.NORMAL
    properties: Properties = EMPTY_PROPERTIES
    payload: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if self.status and (self.payload or self.properties.raw):
            raise ValueError(f"{self.status.name} carries neither payload nor properties")

    @property
    def location(self) -> Location:
        """Place of the Object in its Track."""
        return Location(self.group_id, self.object_id)


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
    return Properties.decode(bytes(data[offset:end])), end


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
