from kvcs.moqt.track.interval import MAX_POSITION, IntervalSet, to_location, to_position
from kvcs.names import Location
from kvcs.varint import MAX_VI64


def filled(*intervals):
    found = IntervalSet()
    for start, end in intervals:
        found.add(start, end)
    return found


def test_positions_of_all_locations_stand_in_one_line():
    last = Location(3, MAX_VI64)

    assert to_position(Location(4, 0)) == to_position(last) + 1
    assert to_location(to_position(last)) == last
    assert to_position(Location(MAX_VI64, MAX_VI64)) == MAX_POSITION


def test_add_joins_overlapping_and_adjacent_intervals():
    found = filled((10, 12), (20, 22), (13, 14), (40, 50), (21, 39))

    assert list(found) == [(10, 14), (20, 50)]
    assert found.size == 5 + 31


def test_add_inside_changes_nothing():
    found = filled((0, 2**100), (5, 6))

    assert list(found) == [(0, 2**100)]
    assert found.size == 2**100 + 1


def test_repr_lists_the_intervals():
    assert repr(filled((1, 2))) == "<IntervalSet [(1, 2)]>"
    assert len(filled((1, 2), (5, 6))) == 2


def test_find_and_contains_know_both_ends():
    found = filled((10, 12), (20, 20))

    assert [value for value in range(25) if value in found] == [10, 11, 12, 20]
    assert found.find(12) == (10, 12)
    assert found.find(13) is None


def test_neighbours_of_a_value_outside():
    found = filled((10, 12), (20, 22))

    assert (found.previous_end(15), found.next_start(15)) == (12, 20)
    assert (found.previous_end(5), found.next_start(30)) == (None, None)


def test_discard_splits_and_shrinks():
    found = filled((1, 5), (9, 9))

    for value in (3, 9, 1, 7):
        found.discard(value)

    assert list(found) == [(2, 2), (4, 5)]
    assert found.size == 3


def test_remove_takes_out_what_is_in_and_keeps_the_rest():
    intervals = IntervalSet()
    intervals.add(0, 9)
    intervals.add(20, 29)
    intervals.add(40, 49)

    intervals.remove(5, 24)
    assert list(intervals) == [(0, 4), (25, 29), (40, 49)]
    assert intervals.size == 20

    intervals.remove(10, 20)
    intervals.remove(42, 43)
    intervals.remove(29, 29)
    assert list(intervals) == [(0, 4), (25, 28), (40, 41), (44, 49)]
    assert intervals.size == 17

    intervals.remove(0, 100)
    assert not intervals
    assert intervals.size == 0
