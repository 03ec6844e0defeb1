"""A relay with little memory and a disk: random publishers, fetches, crashes and damage.

The model knows what was published. Whatever is fetched is right, and what is left out is marked
or was never published, whatever the disk does. Every walk is replayed by its seed.
"""

import random

from tests.seeds import seeded
from tests.unit.relay.disk_world import DiskWorld
from tests.unit.relay.world import block, status

from kvcs.errors import RequestErrorCode
from kvcs.moqt.codepoints import GroupOrder, ObjectStatus, PropertyType, RangeMarker
from kvcs.moqt.session import events as ev
from kvcs.moqt.track.interval import to_position
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.cache import TRACK_BYTES

TRACKS = [
    FullTrackName(TrackNamespace((b"kvcs-1", namespace)), name)
    for namespace in (b"one", b"two")
    for name in (b"k", b"v")
]
SIZE = 16_000
STEPS = 300


class Walk:
    """One random walk."""

    def __init__(self, directory, seed):
        self.random = random.Random(seed)
        self.world = DiskWorld(
            directory, cache_bytes=len(TRACKS) * TRACK_BYTES + 400_000, read_ahead_bytes=40_000
        )
        self.published = {track: {} for track in TRACKS}
        self.ended = set()
        self.stores = {}
        self.publisher = None
        self.read = self.fetched = 0

    def run(self):
        steps = {
            self.publish: 8,
            self.fetch: 8,
            self.follow: 3,
            self.publisher_goes: 2,
            self.wait: 3,
            self.kill: 1,
            self.block_disk: 2,
            self.fail_disk: 1,
            self.damage: 1,
        }
        for _ in range(STEPS):
            self.random.choices(list(steps), list(steps.values()))[0]()
            statistics = self.world.statistics
            assert statistics.cache_bytes <= statistics.cache_capacity_bytes
            assert statistics.disk_queued_bytes >= 0

    def publish(self):
        if self.publisher is None:
            self.publisher = self.world.client()
            self.publisher.stores = self.stores
            for namespace in dict.fromkeys(track.namespace for track in TRACKS):
                self.publisher.announce(namespace)
            for track in TRACKS:
                lifetime = Properties.of((PropertyType.MAX_CACHE_DURATION, 20_000))
                self.publisher.store(track, lifetime if track.name == b"v" else EMPTY_PROPERTIES)
        track = self.random.choice(TRACKS)
        if track in self.ended:
            return
        known = self.published[track]
        group_id = 1 + max((place >> 64 for place in known), default=-1)
        objects = self.random.randint(1, 6)
        for object_id in range(objects):
            self.publisher.add(block(group_id, object_id, SIZE), track=track)
            known[group_id << 64 | object_id] = None
        kind = self.random.choices([None, ObjectStatus.END_OF_GROUP], [1, 4])[0]
        if kind is not None:
            self.publisher.add(status(group_id, objects, kind), track=track)
        if self.random.random() < 0.1:
            self.ended.add(track)
            self.publisher.end_track(group_id + 1, track=track)

    def publisher_goes(self):
        if self.publisher is not None:
            self.publisher.lose()
            self.publisher = None

    def follow(self):
        consumer = self.world.client()
        consumer.subscribe(track=self.random.choice(TRACKS))
        if self.random.random() < 0.3:
            consumer.room = 50_000  # takes this much, and then nothing any more

    def fetch(self):
        track = self.random.choice(TRACKS)
        first = self.random.randint(0, 6)
        order = self.random.choice(list(GroupOrder))
        asked = LocationFilter.absolute_start_group_end(first, 0, self.random.randint(0, 12))
        consumer = self.world.client()
        before = self.world.statistics.disk_objects_read
        request_id = consumer.fetch(asked, track=track, group_order=order)
        if self.random.random() < 0.3:
            self.world.blocked = False
        self.world.pass_time(self.random.choice([0.5, 2, 40]))
        self.world.blocked = False
        self.world.pass_time(40)
        self.read += self.world.statistics.disk_objects_read - before
        events = consumer.of(request_id)
        answers = consumer.of(request_id, ev.FetchAccepted)
        if answers:
            self.fetched += len(consumer.objects(request_id))  # all payloads are right
            if order is GroupOrder.ASCENDING:
                self.check(track, first << 64, answers[0].end_location, events)
            else:
                self.check_groups(track, first, answers[0].end_location, events)
        else:
            assert consumer.rejection(request_id) in (
                RequestErrorCode.DOES_NOT_EXIST,
                RequestErrorCode.INVALID_RANGE,
                RequestErrorCode.TIMEOUT,
            )
        consumer.lose()

    def nothing_between(self, track, first, last):
        left_out = [place for place in self.published[track] if first <= place <= last]
        assert not left_out, f"{left_out} of {track} left out"

    def check(self, track, start, end, events):
        """Walk through the records of a fetch: every published Object is there or marked."""
        position = start
        for event in events:
            match event:
                case ev.ObjectReceived():
                    place = to_position(event.obj.location)
                    assert place in self.published[track]
                    self.nothing_between(track, position, place - 1)
                    position = place + 1
                case ev.RangeEnded():
                    last = to_position(event.location)
                    if event.marker is RangeMarker.NON_EXISTENT:
                        self.nothing_between(track, position, last)
                    position = max(position, last + 1)
        assert any(isinstance(event, ev.StreamFinished) for event in events)
        self.nothing_between(track, position, to_position(end))

    def check_groups(self, track, first, end, events):
        """Without markers of what is unknown, descending fetches bring every Group whole."""
        if any(isinstance(event, ev.RangeEnded) for event in events):
            return
        received = {
            to_position(event.obj.location)
            for event in events
            if isinstance(event, ev.ObjectReceived)
        }
        asked = range(first << 64, to_position(end) + 1)
        missing = [p for p in self.published[track] if p in asked and p not in received]
        assert not missing, f"{missing} of {track} left out"

    def wait(self):
        self.world.pass_time(self.random.choice([0.1, 1, 8]))

    def kill(self):
        self.world.blocked = False
        self.world.restart(seconds=1)
        self.publisher = None

    def block_disk(self):
        self.world.blocked = True

    def fail_disk(self):
        self.world.fail("full")
        self.world.pass_time(1)
        self.world.jobs.failing = None

    def damage(self):
        """Change an octet of some file with Objects, or end the file there."""
        files = sorted(
            path for path in (self.world.directory / "objects").rglob("*") if path.is_file()
        )
        if not files:
            return
        path = self.random.choice(files)
        data = bytearray(path.read_bytes())
        if not data:
            return
        place = self.random.randrange(len(data))
        if self.random.random() < 0.5:
            del data[place:]
        else:
            data[place] ^= 1 << self.random.randrange(8)
        path.write_bytes(data)


@seeded("seed", range(2), soak=range(2, 12))
def test_everything_published_is_right_or_marked_whatever_the_disk_does(tmp_path, seed):
    walk = Walk(tmp_path / "cache", seed)
    try:
        walk.run()
    finally:
        walk.world.kill()

    assert walk.read > 20, "the disk was not put to use"
    assert walk.fetched > 50
