import pytest

from kvcs.moqt.codepoints import ParameterType
from kvcs.moqt.track.object_ids import ObjectIds
from kvcs.moqt.wire.filters import Range, RangeFilter
from kvcs.varint import MAX_VI64


def ids(*ranges, set_id=0, kind=ParameterType.OBJECTID_FILTER):
    return RangeFilter(kind=kind, set_id=set_id, ranges=tuple(Range(*span) for span in ranges))


def test_filters_of_different_sets_add_up():
    wanted = ObjectIds.of([ids((0, 3), (10, 12)), ids((2, 5), (13, None), set_id=1)])

    assert wanted == ObjectIds(((0, 5), (10, MAX_VI64)))


@pytest.mark.parametrize(
    "filters",
    [
        [],
        [RangeFilter(kind=ParameterType.OBJECTID_FILTER)],
        [ids((0, 3)), ids((0, 3), kind=ParameterType.PRIORITY_FILTER)],
    ],
)
def test_no_filter_or_another_kind_is_not_for_the_id_to_say(filters):
    assert ObjectIds.of(filters) is None


def test_next_position_is_in_the_group_or_at_the_start_of_the_next_one():
    wanted = ObjectIds(((2, 3), (6, 6)))

    found = [wanted.next_position(1 << 64 | object_id) for object_id in (0, 3, 4, 7)]

    assert found == [1 << 64 | 2, 1 << 64 | 3, 1 << 64 | 6, 2 << 64 | 2]


def test_parts_are_within_the_whole():
    whole = ObjectIds(((0, 5), (8, 9)))

    assert whole.starting(4) == ObjectIds(((4, 5), (8, 9)))
    assert whole.starting(4).is_within(whole)
    assert not whole.is_within(whole.starting(4))


def test_filter_lets_exactly_these_pass():
    wanted = ObjectIds(((1, 2), (4, MAX_VI64)))

    assert ObjectIds.of([wanted.to_filter()]) == wanted
    assert wanted.to_filter() == ids((1, 2), (4, None))
