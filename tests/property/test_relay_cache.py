"""Random operations on the relay's cache agree with a naive model."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.seeds import examples

from kvcs.moqt.track.costs import OBJECT_OVERHEAD_BYTES
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.cache import Cache, track_bytes
from kvcs.relay.statistics import Metrics

TRACKS = [
    FullTrackName(TrackNamespace((namespace,)), name)
    for namespace in (b"one", b"two", b"three")
    for name in (b"k", b"v")
]
# Tracks and records cost far less than the half unit above the eighth.
UNIT = 1_000_000
CAPACITY = 8 * UNIT + UNIT // 2
LOW_WATER = CAPACITY - CAPACITY // 16


class Reader:
    """Usage of one Track, set by the test."""

    def __init__(self, store):
        self.store = store
        self.is_idle = True
        self.is_forgotten = False
        self.needed = set()

    @property
    def size_bytes(self):
        return 0 if self.is_forgotten else self.store.size_bytes + track_bytes(self.store)

    def needs(self, group_id):
        return not self.is_idle and group_id in self.needed

    def lost(self):
        pass

    def forgotten(self):
        self.is_forgotten = True

    def victims(self):
        held = [group_id for group_id in self.store.groups() if self.needs(group_id)]
        return held[::-1]

    def sacrifice(self, group_id, *, now):
        pass


class CacheMachine(RuleBasedStateMachine):
    """The model lists every held Group and its bytes, and looks at what disappeared."""

    def __init__(self):
        super().__init__()
        self.metrics = Metrics()
        self.complete = []
        self.cache = Cache(
            CAPACITY,
            metrics=self.metrics,
            on_complete=lambda track: self.complete.append(track.namespace),
            on_lost=lambda track: self.complete.remove(track.namespace),
        )
        self.readers = {}
        for track in TRACKS:
            store = TrackStore(track, properties=EMPTY_PROPERTIES, authoritative=False)
            self.readers[track] = Reader(store)
            self.cache.add(store, self.readers[track], now=0.0)
        self.clock = 0.0
        self.used = dict.fromkeys([track.namespace for track in TRACKS], 0.0)
        self.oversized = set()

    def held(self):
        return {
            (track, group_id): sum(
                len(obj.payload) + OBJECT_OVERHEAD_BYTES
                for obj in reader.store.objects()
                if obj.group_id == group_id
            )
            for track, reader in self.readers.items()
            for group_id in reader.store.groups()
        }

    def is_idle(self, namespace):
        return all(
            reader.is_idle for track, reader in self.readers.items() if track.namespace == namespace
        )

    @rule(
        track=st.sampled_from(TRACKS),
        group_id=st.integers(0, 3),
        units=st.integers(1, 3),
    )
    def receive(self, track, group_id, units):
        reader = self.readers[track]
        ids = [obj.object_id for obj in reader.store.objects() if obj.group_id == group_id]
        obj = Object(
            group_id=group_id,
            object_id=max(ids, default=-1) + 1,
            subgroup_id=0,
            publisher_priority=128,
            payload=bytes(units * UNIT - OBJECT_OVERHEAD_BYTES),
        )
        before = self.held()
        self.clock += 1
        self.used[track.namespace] = self.clock
        before[track, group_id] = before.get((track, group_id), 0) + units * UNIT

        reader.store.add(obj, now=self.clock)
        reader.is_forgotten = False
        self.cache.grew(track, now=self.clock)

        self.check_evictions(before)

    def check_evictions(self, before):
        sizes = dict.fromkeys(self.used, 0)
        for (track, _), size in before.items():
            sizes[track.namespace] += size
        self.oversized |= {namespace for namespace, size in sizes.items() if size > CAPACITY}
        after = self.held()
        dropped = {key: size for key, size in before.items() if after.get(key) != size}
        if not dropped:
            assert sum(before.values()) <= CAPACITY
            return
        assert sum(before.values()) > CAPACITY, "evicted without need"
        needed = {key for key in before if self.readers[key[0]].needs(key[1])}
        if needed & dropped.keys():
            assert sum(before[key] for key in needed) > LOW_WATER, "needed Group lost without need"
        for track, group_id in dropped:
            if self.is_idle(track.namespace):
                self.check_whole(track.namespace, after)
                self.check_least_recently_used(track.namespace, after)
            elif track.namespace not in self.oversized:
                idle_left = [key for key in after if self.is_idle(key[0].namespace)]
                assert not idle_left, f"Group {group_id} in use dropped before {idle_left}"

    def check_whole(self, namespace, after):
        left = [track for track, _ in after if track.namespace == namespace]
        assert namespace in self.oversized or not left, "a publication was halved"

    def check_least_recently_used(self, namespace, after):
        older = [
            key
            for key in after
            if self.is_idle(key[0].namespace)
            and self.used[key[0].namespace] < self.used[namespace]
            and key[0].namespace not in self.oversized
        ]
        assert namespace in self.oversized or not older

    @rule(track=st.sampled_from(TRACKS), needed=st.sets(st.integers(0, 3)))
    def read(self, track, needed):
        self.readers[track].is_idle = False
        self.readers[track].needed = needed
        self.readers[track].is_forgotten = False
        self.cache.recount(track, now=self.clock)

    @rule(track=st.sampled_from(TRACKS))
    def stop_reading(self, track):
        self.readers[track].is_idle = True

    @rule(track=st.sampled_from(TRACKS))
    def touch(self, track):
        self.clock += 1
        self.used[track.namespace] = self.clock
        self.cache.touch(track, now=self.clock)

    @rule(track=st.sampled_from(TRACKS))
    def forget(self, track):
        self.cache.remove(track)
        reader = Reader(TrackStore(track, properties=EMPTY_PROPERTIES, authoritative=False))
        self.readers[track] = reader
        self.cache.add(reader.store, reader, now=self.clock)
        self.used[track.namespace] = self.clock

    @invariant()
    def bytes_add_up_and_fit(self):
        assert self.cache.size_bytes == sum(reader.size_bytes for reader in self.readers.values())
        assert self.cache.size_bytes <= CAPACITY


CacheMachine.TestCase.settings = settings(
    max_examples=examples(40), stateful_step_count=40, deadline=None
)
TestRelayCache = CacheMachine.TestCase
