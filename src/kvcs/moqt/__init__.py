"""MOQT draft 22, sans-I/O: bytes and `now` in, actions and events out.

The public names are loaded when they are first used. `kvcs.moqt.wire` has every
message, `kvcs.moqt.session` every action and event, `kvcs.moqt.track` what publishers and
relays serve Tracks with.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kvcs.moqt.codepoints import (
        ALPN,
        GroupOrder,
        LocationFilterType,
        ObjectStatus,
        ParameterType,
        PropertyType,
    )
    from kvcs.moqt.session import (
        Action,
        Event,
        RequestId,
        Session,
        SessionConfig,
        SessionLimits,
        Side,
        StreamId,
        TrackAlias,
    )
    from kvcs.moqt.track import (
        FetchDelivery,
        Outbox,
        SubscriptionDelivery,
        TrackResponder,
        TrackStore,
    )
    from kvcs.moqt.wire import (
        FillParameters,
        LocationFilter,
        LocationRange,
        Message,
        Object,
        Parameters,
        Properties,
        Range,
        RangeFilter,
        SetupOptions,
        SubgroupHeader,
        Token,
        decode_message,
    )

__all__ = (
    "ALPN",
    "Action",
    "Event",
    "FetchDelivery",
    "FillParameters",
    "GroupOrder",
    "LocationFilter",
    "LocationFilterType",
    "LocationRange",
    "Message",
    "Object",
    "ObjectStatus",
    "Outbox",
    "ParameterType",
    "Parameters",
    "Properties",
    "PropertyType",
    "Range",
    "RangeFilter",
    "RequestId",
    "Session",
    "SessionConfig",
    "SessionLimits",
    "SetupOptions",
    "Side",
    "StreamId",
    "SubgroupHeader",
    "SubscriptionDelivery",
    "Token",
    "TrackAlias",
    "TrackResponder",
    "TrackStore",
    "decode_message",
)

_WHERE: Final = {
    "ALPN": "kvcs.moqt.codepoints",
    "GroupOrder": "kvcs.moqt.codepoints",
    "LocationFilterType": "kvcs.moqt.codepoints",
    "ObjectStatus": "kvcs.moqt.codepoints",
    "ParameterType": "kvcs.moqt.codepoints",
    "PropertyType": "kvcs.moqt.codepoints",
    "Action": "kvcs.moqt.session",
    "Event": "kvcs.moqt.session",
    "RequestId": "kvcs.moqt.session",
    "Session": "kvcs.moqt.session",
    "SessionConfig": "kvcs.moqt.session",
    "SessionLimits": "kvcs.moqt.session",
    "Side": "kvcs.moqt.session",
    "StreamId": "kvcs.moqt.session",
    "TrackAlias": "kvcs.moqt.session",
    "FetchDelivery": "kvcs.moqt.track",
    "Outbox": "kvcs.moqt.track",
    "SubscriptionDelivery": "kvcs.moqt.track",
    "TrackResponder": "kvcs.moqt.track",
    "TrackStore": "kvcs.moqt.track",
    "FillParameters": "kvcs.moqt.wire",
    "LocationFilter": "kvcs.moqt.wire",
    "LocationRange": "kvcs.moqt.wire",
    "Message": "kvcs.moqt.wire",
    "Object": "kvcs.moqt.wire",
    "Parameters": "kvcs.moqt.wire",
    "Properties": "kvcs.moqt.wire",
    "Range": "kvcs.moqt.wire",
    "RangeFilter": "kvcs.moqt.wire",
    "SetupOptions": "kvcs.moqt.wire",
    "SubgroupHeader": "kvcs.moqt.wire",
    "Token": "kvcs.moqt.wire",
    "decode_message": "kvcs.moqt.wire",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted((*globals(), *__all__))
