"""Code points of MOQT draft 22: types, flags and the numbers that go with them.

Error codes live in `kvcs.errors`, beside the exceptions that carry them.

Source: MOQT draft 22, Sections 6.4.1, 8.9, 9, 9.1, 9.20, 10, 11 and 16.
"""

from enum import IntEnum, IntFlag
from typing import Final

__all__ = (
    "ALPN",
    "FetchFlag",
    "GroupOrder",
    "LocationFilterType",
    "MessageType",
    "ObjectStatus",
    "ParameterType",
    "PropertyType",
    "RangeMarker",
    "SetupOption",
    "StreamType",
    "TokenAliasType",
)

ALPN: Final = "moqt-22"


class MessageType(IntEnum):
    """Control messages (Section 9, Table 5)."""

    REQUEST_UPDATE = 0x02
    SUBSCRIBE = 0x03
    SUBSCRIBE_OK = 0x04
    REQUEST_ERROR = 0x05
    PUBLISH_NAMESPACE = 0x06
    REQUEST_OK = 0x07
    NAMESPACE = 0x08
    PUBLISH_DONE = 0x0B
    TRACK_STATUS = 0x0D
    NAMESPACE_DONE = 0x0E
    PUBLISH_SKIPPED = 0x0F
    GOAWAY = 0x10
    FETCH = 0x16
    FETCH_OK = 0x18
    PUBLISH = 0x1D
    PUBLISH_STATE_NOTIFY = 0x22
    SUBSCRIBE_NAMESPACE = 0x50
    SUBSCRIBE_TRACKS = 0x51
    SETUP = 0x2F00


class StreamType(IntEnum):
    """First vi64 of a unidirectional stream, besides the subgroup types (Section 6.4.1)."""

    FETCH_HEADER = 0x05
    CONTROL = 0x2F00
    PADDING = 0x132B3E28
    PADDING_DATAGRAM = 0x132B3E29


class SetupOption(IntEnum):
    """Setup Options (Section 9.1)."""

    PATH = 0x01
    AUTHORIZATION_TOKEN = 0x03
    MAX_AUTH_TOKEN_CACHE_SIZE = 0x04
    AUTHORITY = 0x05
    MAX_FILTER_RANGES = 0x06
    MOQT_IMPLEMENTATION = 0x07
    MAX_REQUEST_UPDATES = 0x08


class ParameterType(IntEnum):
    """Message Parameters (Section 9.20)."""

    OBJECT_DELIVERY_TIMEOUT = 0x02
    AUTHORIZATION_TOKEN = 0x03
    RENDEZVOUS_TIMEOUT = 0x04
    SUBGROUP_DELIVERY_TIMEOUT = 0x06
    EXPIRES = 0x08
    LARGEST_OBJECT = 0x09
    FILL_TIMEOUT = 0x0A
    FORWARD = 0x10
    SUBSCRIBER_PRIORITY = 0x20
    LOCATION_FILTER = 0x21
    GROUP_ORDER = 0x22
    FILL_PARAMETERS = 0x23
    SUBGROUP_FILTER = 0x25
    OBJECTID_FILTER = 0x26
    PRIORITY_FILTER = 0x27
    OBJECT_PROPERTY_FILTER = 0x28
    TRACK_PROPERTY_FILTER = 0x29
    NEW_GROUP_REQUEST = 0x32
    TRACK_NAMESPACE_PREFIX = 0x34
    INCLUDE_PROPERTIES = 0x35


class LocationFilterType(IntEnum):
    """Location Filter types (Section 9.20.9, Table 6)."""

    NONE = 0x00
    RELATIVE_START = 0x01
    ABSOLUTE_START = 0x02
    ABSOLUTE_START_GROUP_END = 0x03
    ABSOLUTE_RANGE = 0x04
    NEXT_OBJECT = 0x05


class GroupOrder(IntEnum):
    """Order of Groups in a delivery (Section 9.20.8)."""

    ASCENDING = 0x1
    DESCENDING = 0x2


class PropertyType(IntEnum):
    """Track and Object Properties (Section 10)."""

    OBJECT_DELIVERY_TIMEOUT = 0x02
    MAX_CACHE_DURATION = 0x04
    SUBGROUP_DELIVERY_TIMEOUT = 0x06
    IMMUTABLE_PROPERTIES = 0x0B
    DEFAULT_PUBLISHER_PRIORITY = 0x0E
    DEFAULT_PUBLISHER_GROUP_ORDER = 0x22
    DYNAMIC_GROUPS = 0x30
    PRIOR_GROUP_ID_GAP = 0x3C
    PRIOR_OBJECT_ID_GAP = 0x3E


class ObjectStatus(IntEnum):
    """Object Status (Section 11.1.1)."""

    NORMAL = 0x0
    END_OF_GROUP = 0x3
    END_OF_TRACK = 0x4


class TokenAliasType(IntEnum):
    """Forms of an authorization token (Section 8.9)."""

    DELETE = 0x0
    REGISTER = 0x1
    USE_ALIAS = 0x2
    USE_VALUE = 0x3


class FetchFlag(IntFlag):
    """Serialization flags of a fetch record (Section 11.4)."""

    SUBGROUP_MODE = 0x03
    OBJECT_ID_DELTA = 0x04
    GROUP_ID_DELTA = 0x08
    PRIORITY = 0x10
    PROPERTIES = 0x20
    DATAGRAM = 0x40


class RangeMarker(IntEnum):
    """Records that end a range without an Object (Section 11.4.1.2)."""

    NON_EXISTENT = 0x8C
    UNKNOWN = 0x10C
    TIMED_OUT = 0x20C
