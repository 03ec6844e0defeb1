"""Which parameter is allowed in which message.

REQUEST_UPDATE and REQUEST_OK mean different things on different requests. They are
decoded with the union of their scopes, and checked again once the request is known.

Source: MOQT draft 22, Sections 9.3 to 9.20.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from kvcs.moqt.codepoints import ParameterType as P

__all__ = ("ALLOWED", "Scope")


class Scope(Enum):
    """A message, or what it answers or updates, that parameters belong to."""

    SUBSCRIBE = auto()
    SUBSCRIBE_OK = auto()
    PUBLISH = auto()
    UPDATE = auto()
    UPDATE_SUBSCRIPTION = auto()
    UPDATE_FETCH = auto()
    UPDATE_PUBLISH_NAMESPACE = auto()
    UPDATE_SUBSCRIBE_NAMESPACE = auto()
    UPDATE_SUBSCRIBE_TRACKS = auto()
    FETCH = auto()
    FETCH_OK = auto()
    TRACK_STATUS = auto()
    PUBLISH_NAMESPACE = auto()
    SUBSCRIBE_NAMESPACE = auto()
    SUBSCRIBE_TRACKS = auto()
    REQUEST_OK = auto()
    PUBLISH_OK = auto()
    UPDATE_OK = auto()
    TRACK_STATUS_OK = auto()
    NAMESPACE_OK = auto()
    STATE_NOTIFY = auto()
    FILL = auto()


_OBJECT_FILTERS: Final = frozenset(
    {P.SUBGROUP_FILTER, P.OBJECTID_FILTER, P.PRIORITY_FILTER, P.OBJECT_PROPERTY_FILTER}
)
_FILL: Final = _OBJECT_FILTERS | {
    P.FILL_TIMEOUT,
    P.SUBSCRIBER_PRIORITY,
    P.LOCATION_FILTER,
    P.GROUP_ORDER,
}
_UPDATE_SUBSCRIPTION: Final = _OBJECT_FILTERS | {
    P.OBJECT_DELIVERY_TIMEOUT,
    P.AUTHORIZATION_TOKEN,
    P.SUBGROUP_DELIVERY_TIMEOUT,
    P.FORWARD,
    P.SUBSCRIBER_PRIORITY,
    P.LOCATION_FILTER,
    P.FILL_PARAMETERS,
    P.NEW_GROUP_REQUEST,
}
_SUBSCRIBE: Final = _UPDATE_SUBSCRIPTION | {
    P.RENDEZVOUS_TIMEOUT,
    P.GROUP_ORDER,
    P.INCLUDE_PROPERTIES,
}
_TOKEN: Final = frozenset({P.AUTHORIZATION_TOKEN})
_EXPIRES: Final = frozenset({P.EXPIRES})
_LARGEST: Final = frozenset({P.LARGEST_OBJECT})
# The draft's lists for SUBSCRIBE_TRACKS contradict its rule that all parameters of
# SUBSCRIBE are valid there; the wider reading is accepted.
_UPDATE_SUBSCRIBE_TRACKS: Final = _UPDATE_SUBSCRIPTION | {
    P.TRACK_PROPERTY_FILTER,
    P.TRACK_NAMESPACE_PREFIX,
}

ALLOWED: Final[Mapping[Scope, frozenset[P]]] = {
    Scope.SUBSCRIBE: _SUBSCRIBE,
    Scope.SUBSCRIBE_OK: _EXPIRES | _LARGEST,
    Scope.PUBLISH: frozenset(
        {
            P.OBJECT_DELIVERY_TIMEOUT,
            P.AUTHORIZATION_TOKEN,
            P.SUBGROUP_DELIVERY_TIMEOUT,
            P.EXPIRES,
            P.LARGEST_OBJECT,
            P.FORWARD,
            P.SUBSCRIBER_PRIORITY,
            P.LOCATION_FILTER,
            P.GROUP_ORDER,
        }
    ),
    Scope.UPDATE: _UPDATE_SUBSCRIBE_TRACKS,
    Scope.UPDATE_SUBSCRIPTION: _UPDATE_SUBSCRIPTION,
    Scope.UPDATE_FETCH: _TOKEN | {P.SUBSCRIBER_PRIORITY},
    Scope.UPDATE_PUBLISH_NAMESPACE: _TOKEN,
    Scope.UPDATE_SUBSCRIBE_NAMESPACE: _TOKEN | {P.TRACK_NAMESPACE_PREFIX},
    Scope.UPDATE_SUBSCRIBE_TRACKS: _UPDATE_SUBSCRIBE_TRACKS,
    Scope.FETCH: _FILL | {P.AUTHORIZATION_TOKEN, P.INCLUDE_PROPERTIES},
    Scope.FETCH_OK: frozenset(),
    Scope.TRACK_STATUS: _TOKEN | {P.INCLUDE_PROPERTIES},
    Scope.PUBLISH_NAMESPACE: _TOKEN,
    Scope.SUBSCRIBE_NAMESPACE: _TOKEN,
    Scope.SUBSCRIBE_TRACKS: _SUBSCRIBE | {P.TRACK_PROPERTY_FILTER},
    Scope.REQUEST_OK: _EXPIRES | _LARGEST,
    Scope.PUBLISH_OK: _EXPIRES,
    Scope.UPDATE_OK: _EXPIRES | _LARGEST,
    Scope.TRACK_STATUS_OK: _LARGEST,
    Scope.NAMESPACE_OK: _EXPIRES,
    Scope.STATE_NOTIFY: frozenset({P.LARGEST_OBJECT, P.FORWARD, P.LOCATION_FILTER}),
    Scope.FILL: _FILL,
}
