import tracemalloc

import pytest

from kvcs.moqt.codepoints import ObjectStatus, PropertyType
from kvcs.moqt.track.costs import OBJECT_OVERHEAD_BYTES
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.cache import TRACK_BYTES, Cache, track_bytes
from kvcs.relay.statistics import Metrics

UNIT = 1_000_000
ONE = TrackNamespace((b"one",))
TWO = TrackNamespace((b"two",))


class Reader:
    def __init__(self, store):
        self.store = store
        self.is_idle = True
        self.is_forgotten = False
        self.needed = set()

    def needs(self, group_id):
        return group_id in self.needed

    def lost(self):
        pass

    def forgotten(self):
        self.is_forgotten = True

    def victims(self):
        return sorted(self.needed & set(self.store.groups()), reverse=True)

    def sacrifice(self, group_id, *, now):
        pass


class World:
    """A cache for eight units and its slack, whose Tracks take Objects of one unit."""

    def __init__(self):
        self.metrics = Metrics()
        self.complete = []
        self.cache = Cache(
            8_600_000,
            metrics=self.metrics,
            on_complete=lambda track: self.complete.append(track.namespace),
            on_lost=lambda track: self.complete.remove(track.namespace),
        )

    def track(self, namespace, name=b"k", properties=EMPTY_PROPERTIES):
        track = FullTrackName(namespace, name)
        store = TrackStore(track, properties=properties, authoritative=False)
        reader = Reader(store)
        self.cache.add(store, reader, now=0.0)
        return reader

    def receive(self, reader, group_id, *, status=ObjectStatus.NORMAL, now=0.0):
        payload = b"" if status else bytes(UNIT - OBJECT_OVERHEAD_BYTES)
        obj = Object(
            group_id=group_id,
            object_id=0,
            subgroup_id=0,
            publisher_priority=0,
            status=status,
            payload=payload,
        )
        reader.store.add(obj, now=now)
        self.cache.grew(reader.store.track, now=now)
        self.cache.check_complete(reader.store.track)


@pytest.fixture
def world():
    return World()


def test_least_recently_used_namespace_goes_first_with_all_its_tracks(world):
    one, one_v = world.track(ONE), world.track(ONE, b"v")
    two = world.track(TWO)
    world.receive(one, 0, now=1.0)
    world.receive(one_v, 0, now=2.0)
    for group_id in range(7):
        world.receive(two, group_id, now=3.0 + group_id)

    # One of them would have been enough, and the other of no use without it.
    assert world.metrics.evicted_bytes == {"idle": 2 * UNIT}
    assert one.store.groups() == one_v.store.groups() == ()
    assert two.store.groups() == tuple(range(7))
    assert one.is_forgotten
    assert one_v.is_forgotten


def test_properties_and_names_count(world):
    properties = Properties.of((0x3801, bytes(60_000)))
    one = world.track(ONE, bytes(3000), properties=properties)

    assert world.cache.size_bytes >= TRACK_BYTES + 3000 + 2 * 60_000
    world.receive(one, 0)
    for number in range(100):
        world.track(TrackNamespace((b"%d" % number,)), properties=properties)

    assert world.cache.size_bytes <= 8_600_000
    assert one.is_forgotten
    assert not one.store.properties


def test_many_small_properties_count_with_what_they_cost(world):
    world.track(ONE)
    before = world.cache.size_bytes
    one = world.track(TWO)
    tracemalloc.start()
    one.store.properties = Properties.decode(bytes((2, 1)) * 10_000)
    cost = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    world.cache.recount(one.store.track, now=0.0)

    assert world.cache.size_bytes - before >= cost > 40 * len(one.store.properties.raw)


def test_track_that_was_forgotten_counts_again_when_it_is_used(world):
    one = world.track(ONE)
    world.receive(one, 0)
    world.cache.drop_idle(1)
    assert world.cache.size_bytes == 0

    world.cache.recount(one.store.track, now=1.0)
    assert world.cache.size_bytes == track_bytes(one.store)
    world.cache.drop_idle(1)
    world.receive(one, 0, now=2.0)
    assert world.cache.size_bytes > UNIT


def test_touch_saves_a_namespace_from_eviction(world):
    one, two = world.track(ONE), world.track(TWO)
    for group_id in range(4):
        world.receive(one, group_id, now=1.0)
        world.receive(two, group_id, now=2.0)

    world.cache.touch(one.store.track, now=3.0)
    third = world.track(TrackNamespace((b"three",)))
    world.receive(third, 0, now=4.0)

    assert one.store.groups() == (0, 1, 2, 3)
    assert two.store.groups() == ()


def test_groups_that_all_have_passed_go_before_needed_ones_last_first(world):
    one = world.track(ONE)
    other = world.track(TWO)
    one.is_idle = other.is_idle = False
    one.needed = {5}
    other.needed = {0, 1}
    for group_id in range(6):
        world.receive(one, group_id)

    for group_id in range(3):
        world.receive(other, group_id)

    assert one.store.groups() == (0, 1, 2, 3, 5)
    assert other.store.groups() == (0, 1, 2)
    assert world.metrics.evicted_bytes == {"passed": UNIT}


def test_publication_above_the_budget_does_not_evict_in_a_circle(world):
    one = world.track(ONE)
    one.is_idle = False
    for group_id in range(20):
        one.needed = {group_id}
        world.receive(one, group_id)

    assert world.cache.size_bytes <= 8_600_000
    assert 19 in one.store.groups()
    assert set(world.metrics.evicted_bytes) == {"oversized"}


def test_publication_above_the_budget_leaves_others_alone_once_that_is_known(world):
    one = world.track(ONE)
    one.is_idle = False
    for group_id in range(9):
        one.needed = {group_id}
        world.receive(one, group_id)
    other = world.track(TWO)
    for group_id in range(4):
        world.receive(other, group_id)

    for group_id in range(9, 20):
        one.needed = {group_id}
        world.receive(one, group_id)

    assert other.store.groups() == (0, 1, 2, 3)


def test_needed_groups_are_sacrificed_when_they_exceed_the_budget(world):
    one = world.track(ONE)
    one.is_idle = False
    one.needed = set(range(20))

    for group_id in range(10):
        world.receive(one, group_id)

    assert one.store.groups() == tuple(range(8))
    assert world.metrics.evicted_bytes == {"needed": 2 * UNIT}


def test_complete_track_is_reported_once_and_lost_with_its_first_group(world):
    one = world.track(ONE)
    for group_id in range(2):
        world.receive(one, group_id)
        one.store.finish_subgroup(group_id, 0, end_of_group=True, now=0.0)
    assert world.complete == []

    world.receive(one, 2, status=ObjectStatus.END_OF_TRACK)
    world.cache.check_complete(one.store.track)
    assert world.complete == [ONE]
    assert world.cache.is_complete(one.store.track)

    world.cache.remove(one.store.track)
    assert world.complete == []
    assert len(world.cache) == 0


def test_expiry_ends_completeness_at_the_first_object_and_frees_at_the_last(world):
    properties = Properties.of((PropertyType.MAX_CACHE_DURATION, 10_000))
    one = world.track(ONE, properties=properties)
    world.receive(one, 0, now=100.0)
    one.store.finish_subgroup(0, 0, end_of_group=True, now=100.0)
    world.receive(one, 1, status=ObjectStatus.END_OF_TRACK, now=105.0)
    assert world.complete == [ONE]
    assert world.cache.next_deadline() == 110.0

    world.cache.expire(now=109.0)
    assert world.complete == [ONE]

    world.cache.expire(now=110.0)
    assert world.complete == []
    assert world.cache.size_bytes > 0
    assert world.cache.next_deadline() == 115.0

    world.cache.expire(now=115.0)
    assert world.cache.size_bytes == 0
    assert one.is_forgotten
    assert world.cache.next_deadline() is None
    assert set(world.metrics.evicted_bytes) == {"expired"}
