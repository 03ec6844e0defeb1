"""The picture of what is held of a Track: true, and of bounded size."""

import pytest
from tests.unit.relay.world import BLOCKS, TRACK, status

from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES
from kvcs.relay.arrival import MAX_CELLS, MAX_COLUMNS, arrival


@pytest.fixture
def store():
    return TrackStore(TRACK, properties=EMPTY_PROPERTIES, authoritative=False)


def at(group_id, object_id, subgroup_id=0):
    return Object(
        group_id=group_id,
        object_id=object_id,
        subgroup_id=subgroup_id,
        publisher_priority=0,
        payload=b"x",
    )


def add(store, group_id, *object_ids):
    for object_id in object_ids:
        store.add(at(group_id, object_id), now=0.0)


def test_empty_track_has_no_picture(store):
    picture = arrival(store)

    assert (picture.groups, picture.objects, picture.columns) == (0, 0, ())


def test_cells_say_what_is_held_and_what_is_not_here_yet(store):
    add(store, 0, 0, 1, 2, 3)
    add(store, 2, 1)

    picture = arrival(store)

    assert picture.group_ids == (0, 2)
    assert (picture.objects, picture.objects_per_cell) == (4, 1)
    assert picture.columns == ("9999", ".9..")


def test_ends_of_groups_are_not_objects(store):
    add(store, 0, *range(BLOCKS))
    store.add(status(0, BLOCKS), now=0.0)
    add(store, 1, 0)
    store.add(status(1, 1), now=0.0)
    store.add(status(2, 0, ObjectStatus.END_OF_TRACK, 128), now=0.0)

    picture = arrival(store)

    assert picture.objects == BLOCKS
    assert picture.columns == ("9999", "9---", "----")


def test_end_of_a_group_is_known_from_its_stream_too(store):
    store.open_subgroup(0, 0, first_object_id=0, ends_group=True)
    add(store, 0, 0, 2)
    store.finish_subgroup(0, 0, end_of_group=True, final_object_id=2, now=0.0)
    add(store, 1, 4)

    assert arrival(store).columns == ("9.9--", "....9")


def test_what_was_dropped_is_told_from_what_never_came(store):
    add(store, 0, 0, 1)
    add(store, 1, 2)
    store.drop_group(0)

    assert arrival(store).columns == ("xx.", "..9")


def test_many_objects_share_cells_and_a_part_shows_as_a_part(store):
    add(store, 0, *range(100))
    add(store, 1, 0, 50, 51)

    picture = arrival(store)

    assert picture.objects_per_cell == 4
    assert picture.columns[0] == "9" * 25
    assert picture.columns[1] == "2" + "." * 11 + "4" + "." * 12


def test_one_of_many_shows_and_one_that_is_missing_does_too(store):
    add(store, 0, 0)
    add(store, 1, *range(1599))
    store.add(at(1, 3199), now=0.0)

    picture = arrival(store)

    assert picture.objects_per_cell == 100
    assert picture.columns == ("1" + "." * 31, "9" * 15 + "8" + "." * 15 + "1")


def test_picture_is_bounded_by_cells_and_columns(store):
    add(store, 0, 2**62 - 1)
    for group_id in range(1, MAX_COLUMNS + 10):
        add(store, group_id, 0)

    picture = arrival(store)

    assert picture.groups == MAX_COLUMNS + 10
    assert picture.group_ids == tuple(range(10, MAX_COLUMNS + 10))
    assert all(len(column) <= MAX_CELLS for column in picture.columns)


def test_picture_of_the_largest_object_id_is_bounded_too(store):
    add(store, 0, 2**62 - 1)

    (column,) = arrival(store).columns

    assert len(column) <= MAX_CELLS
    assert column[-1] == "1"


def test_objects_of_several_subgroups_are_counted_together(store):
    store.add(at(0, 0), now=0.0)
    store.add(at(0, 1, subgroup_id=1), now=0.0)

    assert arrival(store).columns == ("99",)


def test_what_is_on_disk_only_is_told_from_what_was_dropped(store):
    add(store, 0, 0, 1, 2)
    store.drop_group(0)
    add(store, 0, 2)

    picture = arrival(store, is_on_disk=lambda first, through: first <= 1 <= through)

    assert picture.columns == ("xd9",)
