"""A store that recalls what another knew answers as that one did, Objects aside."""

import pytest

from kvcs.errors import MalformedTrack
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.track.contents import Absent, Unknown
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES
from kvcs.names import FullTrackName, Location, TrackNamespace

TRACK = FullTrackName(TrackNamespace((b"n",)), b"t")
NORMAL, END_OF_GROUP, END_OF_TRACK = ObjectStatus


def make_store():
    return TrackStore(TRACK, properties=EMPTY_PROPERTIES, authoritative=False)


def add(store, group_id, object_id, status=NORMAL, **options):
    obj = Object(
        group_id=group_id,
        object_id=object_id,
        subgroup_id=0,
        publisher_priority=0,
        status=status,
        payload=b"" if status else b"payload",
    )
    store.add(obj, now=0.0, **options)


@pytest.fixture
def complete():
    store = make_store()
    for group_id in range(2):
        for object_id in range(3):
            add(store, group_id, object_id)
        add(store, group_id, 3, END_OF_GROUP)
    add(store, 2, 0, END_OF_TRACK)
    return store


def recall(store):
    recalled = make_store()
    recalled.recall(store.knowledge())
    return recalled


def test_recalled_store_knows_largest_ends_and_gaps_and_holds_nothing(complete):
    recalled = recall(complete)

    assert recalled.knowledge() == complete.knowledge()
    assert recalled.largest == Location(2, 0)
    assert recalled.end == Location(2, 0)
    assert recalled.group_end(0) == Location(0, 3)
    assert recalled.groups() == ()
    assert isinstance(recalled.lookup(Location(0, 3), now=0.0), Absent)
    assert recalled.lookup(Location(1, 0), now=0.0) == Unknown(
        start=Location(1, 0), through=Location(1, 2)
    )


def test_recalled_store_is_complete_once_it_holds_all_data_again(complete):
    recalled = recall(complete)

    for obj in [obj for obj in complete.objects() if obj.status is NORMAL]:
        assert not recalled.is_complete()
        recalled.add(obj, now=0.0, fetched=True)

    assert recalled.is_complete()


def test_what_was_unknown_stays_unknown():
    store = make_store()
    add(store, 0, 1)
    store.mark_absent(Location(0, 4), Location(0, 5))

    recalled = recall(store)

    assert recalled.end is None
    assert recalled.lookup(Location(0, 0), now=0.0) == Unknown(
        start=Location(0, 0), through=Location(0, 3)
    )
    assert isinstance(recalled.lookup(Location(0, 4), now=0.0), Absent)
    assert isinstance(recalled.lookup(Location(0, 6), now=0.0), Unknown)


def test_rules_about_ends_hold_after_recall(complete):
    recalled = recall(complete)

    with pytest.raises(MalformedTrack, match="beyond the end of its Group"):
        add(recalled, 0, 4)
    with pytest.raises(MalformedTrack, match="beyond the end"):
        add(recalled, 3, 0)


def test_track_that_ended_with_data_ends_behind_it():
    store = make_store()
    add(store, 0, 0)
    store.finish_track(Location(0, 0))

    recalled = recall(store)

    add(recalled, 0, 0)
    assert recalled.is_complete()
    with pytest.raises(MalformedTrack):
        add(recalled, 0, 1)


def test_recall_merges_with_what_came_first(complete):
    store = make_store()
    add(store, 0, 0)
    add(store, 0, 3, END_OF_GROUP)

    store.recall(complete.knowledge())

    assert store.groups() == (0,)
    assert store.end == Location(2, 0)
    assert store.group_end(1) == Location(1, 3)


@pytest.mark.parametrize(
    ("objects", "why"),
    [
        ([(0, 5, NORMAL)], "Group 0 ended at 3"),
        ([(0, 3, NORMAL)], "Group 0 ended at 3"),
        ([(1, 2, END_OF_GROUP)], "Group 1 ended at 3"),
        ([(3, 1, NORMAL)], "Track ended at"),
        ([(3, 0, END_OF_TRACK)], "Track ended at"),
    ],
)
def test_recall_that_contradicts_changes_nothing(complete, objects, why):
    store = make_store()
    for group_id, object_id, status in objects:
        add(store, group_id, object_id, status)
    before = store.knowledge()

    with pytest.raises(MalformedTrack, match=why):
        store.recall(complete.knowledge())

    assert store.knowledge() == before


def test_recall_does_not_make_held_data_absent():
    store = make_store()
    store.mark_absent(Location(0, 0), Location(1, 2**64 - 1))
    other = make_store()
    add(other, 0, 7)

    other.recall(store.knowledge())

    assert other.groups() == (0,)
    assert other.held(0, 7, now=0.0) is not None
    assert isinstance(other.lookup(Location(0, 6), now=0.0), Absent)


def test_version_differs_whenever_knowledge_does():
    store, seen = make_store(), set()
    steps = (
        lambda: add(store, 0, 0),
        lambda: add(store, 0, 1, END_OF_GROUP),
        lambda: store.mark_absent(Location(1, 0), Location(1, 3)),
        lambda: store.raise_largest(Location(1, 4)),
        lambda: store.finish_track(Location(1, 4)),
    )

    for step in steps:
        step()
        assert store.knowledge_version not in seen
        seen.add(store.knowledge_version)

    before = store.knowledge_version
    add(store, 0, 0)
    assert store.knowledge_version == before


def test_version_stays_when_data_and_ends_that_were_recalled_come_again(complete):
    recalled = recall(complete)
    before = recalled.knowledge_version

    for group_id in range(2):
        for object_id in range(3):
            add(recalled, group_id, object_id, fetched=True)
        add(recalled, group_id, 3, END_OF_GROUP, fetched=True)
    add(recalled, 2, 0, END_OF_TRACK, fetched=True)

    assert recalled.groups() == (0, 1, 2)
    assert recalled.knowledge_version == before
