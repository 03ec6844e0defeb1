"""The wire format of MOQT draft 22: bytes to values and back, nothing else.

Decoding a prefix of a stream raises `NeedMore` until enough has arrived; what is
malformed raises `RemoteProtocolError` with the code to close the session with.
"""

from kvcs.moqt.wire.buffer import MAX_REASON_BYTES, MAX_URI_BYTES, Reader
from kvcs.moqt.wire.datagram import ObjectDatagram, encode_padding, is_padding_datagram
from kvcs.moqt.wire.fetch import Fetch, FetchOk
from kvcs.moqt.wire.fetch_stream import (
    EndOfRange,
    FetchDecoder,
    FetchEncoder,
    FetchHeader,
    FetchObjectHeader,
)
from kvcs.moqt.wire.filters import (
    RANGE_FILTERS,
    LocationFilter,
    LocationRange,
    Range,
    RangeFilter,
    matches,
    matches_track,
    range_count,
    replace_filters,
)
from kvcs.moqt.wire.frame import MAX_BODY_BYTES
from kvcs.moqt.wire.goaway import Goaway
from kvcs.moqt.wire.kvp import KeyValuePair
from kvcs.moqt.wire.message import UNKNOWN_STREAM_COUNT, Message, decode_message
from kvcs.moqt.wire.namespace import (
    Namespace,
    NamespaceDone,
    PublishNamespace,
    PublishSkipped,
    SubscribeNamespace,
    SubscribeTracks,
)
from kvcs.moqt.wire.object import MAX_PROPERTIES_BYTES, Object
from kvcs.moqt.wire.parameters import (
    NO_PARAMETERS,
    FillParameters,
    Parameters,
    check_scope,
)
from kvcs.moqt.wire.properties import (
    DEFAULT_PUBLISHER_PRIORITY,
    EMPTY_PROPERTIES,
    Properties,
)
from kvcs.moqt.wire.publish import Publish, PublishDone, PublishStateNotify
from kvcs.moqt.wire.request import Redirect, RequestError, RequestOk, RequestUpdate
from kvcs.moqt.wire.scope import ALLOWED, Scope
from kvcs.moqt.wire.setup import Setup, SetupOptions
from kvcs.moqt.wire.subgroup import (
    ObjectHeader,
    SubgroupHeader,
    decode_object_header,
    encode_object_header,
    is_subgroup_type,
)
from kvcs.moqt.wire.subscribe import Subscribe, SubscribeOk
from kvcs.moqt.wire.token import Token
from kvcs.moqt.wire.track_status import TrackStatus

__all__ = (
    "ALLOWED",
    "DEFAULT_PUBLISHER_PRIORITY",
    "EMPTY_PROPERTIES",
    "MAX_BODY_BYTES",
    "MAX_PROPERTIES_BYTES",
    "MAX_REASON_BYTES",
    "MAX_URI_BYTES",
    "NO_PARAMETERS",
    "RANGE_FILTERS",
    "UNKNOWN_STREAM_COUNT",
    "EndOfRange",
    "Fetch",
    "FetchDecoder",
    "FetchEncoder",
    "FetchHeader",
    "FetchObjectHeader",
    "FetchOk",
    "FillParameters",
    "Goaway",
    "KeyValuePair",
    "LocationFilter",
    "LocationRange",
    "Message",
    "Namespace",
    "NamespaceDone",
    "Object",
    "ObjectDatagram",
    "ObjectHeader",
    "Parameters",
    "Properties",
    "Publish",
    "PublishDone",
    "PublishNamespace",
    "PublishSkipped",
    "PublishStateNotify",
    "Range",
    "RangeFilter",
    "Reader",
    "Redirect",
    "RequestError",
    "RequestOk",
    "RequestUpdate",
    "Scope",
    "Setup",
    "SetupOptions",
    "SubgroupHeader",
    "Subscribe",
    "SubscribeNamespace",
    "SubscribeOk",
    "SubscribeTracks",
    "Token",
    "TrackStatus",
    "check_scope",
    "decode_message",
    "decode_object_header",
    "encode_object_header",
    "encode_padding",
    "is_padding_datagram",
    "is_subgroup_type",
    "matches",
    "matches_track",
    "range_count",
    "replace_filters",
)
