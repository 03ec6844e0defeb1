import pytest

from kvcs.moqt.codepoints import LocationFilterType, ParameterType
from kvcs.moqt.wire import (
    EMPTY_PROPERTIES,
    LocationFilter,
    LocationRange,
    Properties,
    Range,
    RangeFilter,
    matches,
    matches_track,
    range_count,
    replace_filters,
)
from kvcs.names import Location
from kvcs.varint import MAX_VI64

L = Location(4, 7)
START = Location(0, 0)


@pytest.mark.parametrize(
    ("chosen", "start", "end"),
    [
        (LocationFilter.none(), START, None),
        (LocationFilter.relative_start(0), Location(5, 0), None),
        (LocationFilter.relative_start(1), Location(4, 0), None),
        (LocationFilter.relative_start(9), START, None),
        (LocationFilter.absolute_start(9, 2), Location(9, 2), None),
        (LocationFilter.absolute_start_group_end(5, 2, 2), Location(5, 2), Location(7, MAX_VI64)),
        (LocationFilter.absolute_range(5, 2, 2, 9), Location(5, 2), Location(7, 9)),
        (LocationFilter.next_object(), Location(4, 8), None),
    ],
)
def test_subscription_range_counts_from_largest(chosen, start, end):
    assert chosen.subscription_range(L) == LocationRange(start, end)


@pytest.mark.parametrize(
    ("largest", "start"),
    [
        (None, START),
        (Location(3, MAX_VI64), Location(4, 0)),
        (Location(3, MAX_VI64 - 1), Location(3, MAX_VI64)),
    ],
)
def test_next_object_is_behind_largest(largest, start):
    assert LocationFilter.next_object().subscription_range(largest).start == start


def test_relative_start_stays_between_the_first_and_the_last_group():
    relative = LocationFilter.relative_start(0)

    assert relative.subscription_range(None).start == START
    assert relative.subscription_range(Location(MAX_VI64, 0)).start == Location(MAX_VI64, 0)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (LocationFilter.none(), LocationRange(START, L)),
        (LocationFilter.relative_start(1), LocationRange(Location(4, 0), L)),
        (LocationFilter.relative_start(0), None),
        (LocationFilter.absolute_start(4, 7), LocationRange(L, L)),
        (LocationFilter.absolute_start(4, 8), None),
        (
            LocationFilter.absolute_start_group_end(1, 0, 2),
            LocationRange(Location(1, 0), Location(3, MAX_VI64)),
        ),
        (LocationFilter.absolute_start_group_end(1, 0, 9), LocationRange(Location(1, 0), L)),
        (
            LocationFilter.absolute_range(1, 0, 0, 3),
            LocationRange(Location(1, 0), Location(1, 3)),
        ),
        (LocationFilter.absolute_range(1, 5, 0, 3), None),
        (LocationFilter.next_object(), None),
    ],
)
def test_fetch_range_ends_at_largest_or_is_empty(chosen, expected):
    assert chosen.fetch_range(L) == expected


def test_location_range_is_inclusive_at_both_ends():
    closed = LocationRange(Location(1, 2), Location(3, 4))

    assert Location(1, 2) in closed
    assert Location(3, 4) in closed
    assert Location(2, MAX_VI64) in closed
    assert Location(1, 1) not in closed
    assert Location(3, 5) not in closed
    assert Location(MAX_VI64, 0) in LocationRange(START)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": LocationFilterType.NEXT_OBJECT, "start_group": 1},
        {"kind": LocationFilterType.RELATIVE_START, "start_object": 1},
        {"kind": LocationFilterType.ABSOLUTE_START, "end_object": 1},
        {
            "kind": LocationFilterType.ABSOLUTE_RANGE,
            "start_group": MAX_VI64,
            "end_group_delta": 1,
        },
    ],
)
def test_location_filter_with_fields_out_of_place_is_refused(fields):
    with pytest.raises(ValueError, match=r"Location Filter|does not have"):
        LocationFilter(**fields)


def objects(*ranges, set_id=0):
    return RangeFilter(
        kind=ParameterType.OBJECTID_FILTER,
        set_id=set_id,
        ranges=tuple(Range(*span) for span in ranges),
    )


def by_property(number, *ranges, kind=ParameterType.OBJECT_PROPERTY_FILTER, set_id=0):
    return RangeFilter(
        kind=kind,
        set_id=set_id,
        property_type=number,
        ranges=tuple(Range(*span) for span in ranges),
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": ParameterType.FORWARD},
        {"kind": ParameterType.OBJECTID_FILTER, "ranges": (Range(1), Range(2))},
        {"kind": ParameterType.OBJECTID_FILTER, "ranges": (Range(3, 2),)},
        {"kind": ParameterType.OBJECTID_FILTER, "ranges": (Range(3, 5), Range(4, 6))},
        {"kind": ParameterType.OBJECTID_FILTER, "ranges": (Range(MAX_VI64 + 1),)},
        {"kind": ParameterType.PRIORITY_FILTER, "ranges": (Range(0, 256),)},
        {"kind": ParameterType.OBJECTID_FILTER, "ranges": (Range(1),), "property_type": 2},
        {"kind": ParameterType.OBJECT_PROPERTY_FILTER, "ranges": (Range(1),)},
        {"kind": ParameterType.TRACK_PROPERTY_FILTER, "ranges": (Range(1),), "property_type": 3},
        {"kind": ParameterType.OBJECTID_FILTER, "set_id": 1},
        {"kind": ParameterType.OBJECT_PROPERTY_FILTER, "property_type": 2},
    ],
)
def test_range_filter_that_makes_no_sense_is_refused(fields):
    with pytest.raises(ValueError, match=r"range filter|Range|above|property"):
        RangeFilter(**fields)


def test_set_id_above_255_is_not_encoded():
    with pytest.raises(ValueError, match="SetID"):
        objects((1, 2), set_id=256).encode()


def passes(filters, *, object_id=5, properties=EMPTY_PROPERTIES, track=EMPTY_PROPERTIES):
    return matches(
        filters,
        subgroup_id=None,
        object_id=object_id,
        publisher_priority=128,
        properties=properties,
        track_properties=track,
    )


def test_no_filter_or_one_taken_back_lets_all_pass():
    assert passes(())
    assert passes((RangeFilter(kind=ParameterType.OBJECTID_FILTER),))


def test_ranges_of_one_filter_are_alternatives():
    both = (objects((0, 2), (5, 5)),)

    assert passes(both, object_id=0)
    assert passes(both, object_id=5)
    assert not passes(both, object_id=3)


def test_filters_of_one_set_must_all_pass_and_one_set_is_enough():
    priority = RangeFilter(kind=ParameterType.PRIORITY_FILTER, ranges=(Range(0, 10),))

    assert not passes((objects((5, 5)), priority))
    assert passes((objects((5, 5)), priority, objects((4,), set_id=1)))


def test_object_of_a_datagram_fails_every_subgroup_filter():
    anything = RangeFilter(kind=ParameterType.SUBGROUP_FILTER, ranges=(Range(0),))

    assert not passes((anything,))


def test_property_filters_look_at_object_and_track_and_fail_without_the_property():
    of_object = (by_property(0x3800, (1, 4)),)
    of_track = (by_property(0x3800, (1, 4), kind=ParameterType.TRACK_PROPERTY_FILTER),)
    properties = Properties.of((0x3800, 4))

    assert passes(of_object, properties=properties)
    assert not passes(of_object, track=properties)
    assert passes(of_track, track=properties)
    assert not passes(of_track, properties=properties)
    assert not passes(of_object, properties=Properties.of((0x3800, 5)))


def test_track_is_possible_when_one_set_does_not_exclude_it():
    of_track = by_property(0x3800, (1, 4), kind=ParameterType.TRACK_PROPERTY_FILTER)
    fitting, other = Properties.of((0x3800, 1)), Properties.of((0x3800, 9))

    assert matches_track((), other)
    assert matches_track((of_track,), fitting)
    assert not matches_track((of_track,), other)
    assert not matches_track((of_track, objects((1, 1))), other)
    assert matches_track((of_track, objects((1, 1), set_id=1)), other)
    assert matches_track((RangeFilter(kind=ParameterType.TRACK_PROPERTY_FILTER),), other)


def test_ranges_of_all_filters_are_counted():
    assert range_count((objects((0, 2), (5, 5)), by_property(2, (1,)))) == 3
    assert range_count(()) == 0


def test_changed_filters_replace_all_of_their_kind_and_leave_the_others():
    old, other = objects((0, 2)), by_property(2, (1,))
    new, second = objects((5, 5)), objects((7, 9), set_id=1)
    taken_back = RangeFilter(kind=ParameterType.OBJECTID_FILTER)

    assert replace_filters((old, other), ()) == (old, other)
    assert replace_filters((old, other), (new, second)) == (other, new, second)
    assert replace_filters((old, other), (taken_back,)) == (other,)
