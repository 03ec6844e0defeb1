from dataclasses import replace

import pytest

from kvcs.errors import RemoteProtocolError
from kvcs.moqt.codepoints import GroupOrder, ParameterType
from kvcs.moqt.wire import (
    ALLOWED,
    NO_PARAMETERS,
    FillParameters,
    LocationFilter,
    Parameters,
    Range,
    RangeFilter,
    Reader,
    Scope,
    Token,
    check_scope,
)
from kvcs.names import Location, TrackNamespace

FILTER = RangeFilter(kind=ParameterType.OBJECTID_FILTER, ranges=(Range(0, 7),))
# Every parameter, with a value that is not its default.
ALL = {
    ParameterType.OBJECT_DELIVERY_TIMEOUT: {"object_delivery_timeout_ms": 0},
    ParameterType.AUTHORIZATION_TOKEN: {"authorization_tokens": (Token.use_value(b"t"),)},
    ParameterType.RENDEZVOUS_TIMEOUT: {"rendezvous_timeout_ms": 1},
    ParameterType.SUBGROUP_DELIVERY_TIMEOUT: {"subgroup_delivery_timeout_ms": 2},
    ParameterType.EXPIRES: {"expires_ms": 3},
    ParameterType.LARGEST_OBJECT: {"largest_object": Location(0, 0)},
    ParameterType.FILL_TIMEOUT: {"fill_timeout_ms": 4},
    ParameterType.FORWARD: {"forward": False},
    ParameterType.SUBSCRIBER_PRIORITY: {"subscriber_priority": 0},
    ParameterType.LOCATION_FILTER: {"location_filter": LocationFilter.none()},
    ParameterType.GROUP_ORDER: {"group_order": GroupOrder.DESCENDING},
    ParameterType.FILL_PARAMETERS: {"fill": FillParameters()},
    ParameterType.SUBGROUP_FILTER: {
        "range_filters": (RangeFilter(kind=ParameterType.SUBGROUP_FILTER),)
    },
    ParameterType.OBJECTID_FILTER: {"range_filters": (FILTER,)},
    ParameterType.PRIORITY_FILTER: {
        "range_filters": (RangeFilter(kind=ParameterType.PRIORITY_FILTER),)
    },
    ParameterType.OBJECT_PROPERTY_FILTER: {
        "range_filters": (RangeFilter(kind=ParameterType.OBJECT_PROPERTY_FILTER),)
    },
    ParameterType.TRACK_PROPERTY_FILTER: {
        "range_filters": (RangeFilter(kind=ParameterType.TRACK_PROPERTY_FILTER),)
    },
    ParameterType.NEW_GROUP_REQUEST: {"new_group_request": 0},
    ParameterType.TRACK_NAMESPACE_PREFIX: {"track_namespace_prefix": TrackNamespace()},
    ParameterType.INCLUDE_PROPERTIES: {"include_properties": False},
}


def test_every_parameter_has_a_value_here():
    assert set(ALL) == set(ParameterType)


@pytest.mark.parametrize("scope", Scope, ids=lambda scope: scope.name)
@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_parameter_is_decoded_exactly_where_it_is_allowed(kind, scope):
    parameters = Parameters(**ALL[kind])
    encoded = parameters.encode()

    assert parameters.types() == {kind}
    if kind in ALLOWED[scope]:
        check_scope(parameters, scope)
        assert Parameters.decode(Reader(encoded), scope) == parameters
        return
    with pytest.raises(RemoteProtocolError, match=f"{kind.name} is not allowed in {scope.name}"):
        check_scope(parameters, scope)
    with pytest.raises(RemoteProtocolError, match=f"{kind.name} is not allowed in {scope.name}"):
        Parameters.decode(Reader(encoded), scope)


def test_scopes_of_updates_and_answers_are_within_their_unions():
    answers = {Scope.PUBLISH_OK, Scope.UPDATE_OK, Scope.TRACK_STATUS_OK, Scope.NAMESPACE_OK}
    updates = {scope for scope in Scope if scope.name.startswith("UPDATE_")} - answers

    assert len(updates) == 5
    assert all(ALLOWED[scope] <= ALLOWED[Scope.UPDATE] for scope in updates)
    assert all(ALLOWED[scope] <= ALLOWED[Scope.REQUEST_OK] for scope in answers)


def test_parameters_are_written_in_ascending_order_whatever_the_order_given():
    priority = RangeFilter(kind=ParameterType.PRIORITY_FILTER, ranges=(Range(1, 1),))
    parameters = Parameters(range_filters=(priority, FILTER), include_properties=True, forward=True)

    assert parameters.encode().hex(" ") == "04 10 01 16 03 00 00 07 01 03 00 01 00 0e 01"


def test_no_parameters_are_one_octet():
    assert NO_PARAMETERS.encode() == b"\x00"
    assert NO_PARAMETERS.types() == frozenset()


def test_fault_is_never_encoded():
    assert Parameters(filter_fault="x").encode() == NO_PARAMETERS.encode()


def test_block_is_checked_to_its_end_after_a_filter_fault():
    with pytest.raises(RemoteProtocolError, match="TRACK_PROPERTY_FILTER is not allowed in FILL"):
        FillParameters.decode(bytes.fromhex("27 03 00 82 00 02 00"))
    with pytest.raises(RemoteProtocolError, match="unknown parameter 0x37"):
        Parameters.decode(Reader(bytes.fromhex("02 27 03 00 82 00 10 00")), Scope.FETCH)


@pytest.mark.parametrize("filters", [8, 9, 10, 40])
def test_fill_of_many_filters_is_read_with_and_without_its_count(filters):
    fill = FillParameters(
        fill_timeout_ms=10,
        range_filters=tuple(replace(FILTER, set_id=number) for number in range(filters)),
    )
    encoded = fill.encode()

    assert encoded[0] == filters + 1
    assert FillParameters.decode(encoded) == fill
    assert FillParameters.decode(encoded[1:]) == fill


def test_first_filter_fault_is_kept_and_the_rest_decoded():
    data = bytes.fromhex("03 10 01 17 03 00 82 00 01 04 00 03 00 01")

    parameters = Parameters.decode(Reader(data), Scope.SUBSCRIBE)
    assert parameters.forward is True
    assert parameters.range_filters == ()
    assert parameters.filter_fault == "PRIORITY_FILTER: 512 is above 255"


def test_subscriber_priority_out_of_range_is_not_encoded():
    with pytest.raises(ValueError, match="SUBSCRIBER_PRIORITY is"):
        Parameters(subscriber_priority=256).encode()
