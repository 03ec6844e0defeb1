"""What a store says it costs, compared with what Python allocates for it."""

import gc
import tracemalloc

import pytest

from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES
from kvcs.names import FullTrackName, TrackNamespace

TRACK = FullTrackName(TrackNamespace((b"n",)), b"t")
# Ids above 256, which are no integers that Python keeps anyway.
FIRST_ID = 300


def fill(store, *, groups, subgroups, objects):
    for group_id in range(FIRST_ID, FIRST_ID + groups):
        for subgroup_id in range(FIRST_ID, FIRST_ID + subgroups):
            for number in range(objects):
                obj = Object(
                    group_id=group_id,
                    object_id=FIRST_ID + number * subgroups + subgroup_id,
                    subgroup_id=subgroup_id,
                    publisher_priority=0,
                    payload=bytes(bytearray(1)),
                )
                store.add(obj, now=group_id * 1.5 + number)
            last = subgroup_id == FIRST_ID + subgroups - 1
            store.finish_subgroup(group_id, subgroup_id, end_of_group=last, now=0.0)


@pytest.mark.parametrize(
    ("groups", "subgroups", "objects"), [(100, 1, 1), (1, 100, 1), (10, 4, 4), (1, 1, 200)]
)
def test_size_of_small_objects_is_what_they_cost_held_and_dropped(groups, subgroups, objects):
    gc.collect()
    tracemalloc.start()
    try:
        store = TrackStore(TRACK, properties=EMPTY_PROPERTIES, authoritative=False)
        before = tracemalloc.get_traced_memory()[0]
        fill(store, groups=groups, subgroups=subgroups, objects=objects)
        held = tracemalloc.get_traced_memory()[0] - before
        size_bytes = store.size_bytes
        store.drop_all()
        gc.collect()  # also empties the free lists of Python
        left = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert 0.9 * held <= size_bytes <= 1.3 * held
    assert 0.9 * left <= store.size_bytes == store.record_bytes


def test_forgotten_store_costs_nothing_and_knows_nothing():
    store = TrackStore(TRACK, properties=EMPTY_PROPERTIES, authoritative=False)
    fill(store, groups=3, subgroups=2, objects=2)

    freed = store.forget()

    assert freed > 0
    assert store.size_bytes == 0
    assert store.known_groups() == ()
