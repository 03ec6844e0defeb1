"""Random operations on the disk store agree with a naive model.

The crash model of the files is worse than any crash: octets change and files end anywhere.
"""

import random
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from tests.seeds import examples

from kvcs.moqt.track.interval import MAX_POSITION, to_position
from kvcs.moqt.track.knowledge import Knowledge
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.disk.operation import TrackWrite
from kvcs.relay.disk.store import DiskStore

TRACKS = [
    FullTrackName(TrackNamespace((b"kvcs-1", namespace)), name)
    for namespace in (b"one", b"two")
    for name in (b"k", b"v")
]
LIFETIMES = dict(zip(TRACKS, (None, 30.0, 90.0, 3000.0), strict=True))


def damage(directory, seed):
    """Change an octet of some file with Objects, or end the file there."""
    source = random.Random(seed)
    files = sorted(path for path in (directory / "objects").rglob("*") if path.is_file())
    if not files:
        return
    path = source.choice(files)
    data = bytearray(path.read_bytes())
    place = source.randrange(len(data))
    if source.random() < 0.5:
        del data[place:]
    else:
        data[place] ^= 1 << source.randrange(8)
    path.write_bytes(data)


class DiskStoreMachine(RuleBasedStateMachine):
    """The model is a dictionary of what was written and when, and whether files were damaged."""

    def __init__(self):
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name)
        self.store = DiskStore(self.path)
        self.time = 1000.0
        self.objects = {track: {} for track in TRACKS}
        self.is_damaged = False

    def teardown(self):
        self.store.close()
        self.directory.cleanup()

    def alive(self, track):
        lifetime = LIFETIMES[track]
        return {
            position: obj
            for position, (obj, received) in self.objects[track].items()
            if lifetime is None or received + lifetime > self.time
        }

    @rule(
        track=st.sampled_from(TRACKS),
        places=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, unique=True),
        size=st.integers(0, 5000),
    )
    def write(self, track, places, size):
        objects = [
            Object(
                group_id=group_id,
                object_id=object_id,
                subgroup_id=object_id % 2,
                publisher_priority=3,
                properties=Properties.of((0x78, object_id)),
                payload=bytes([group_id, object_id]) * (size // 2),
            )
            for group_id, object_id in places
            if group_id << 64 | object_id not in self.objects[track]
        ]
        write = TrackWrite(
            name=track,
            objects=tuple((obj, self.time) for obj in objects),
            knowledge=Knowledge(properties=EMPTY_PROPERTIES),
            lifetime=LIFETIMES[track],
            complete=False,
            used=self.time,
        )
        self.store.write([write], self.time)
        for obj in objects:
            self.objects[track][to_position(obj.location)] = obj, self.time

    @rule(track=st.sampled_from(TRACKS), first=st.integers(0, 3), limit=st.integers(1, 20_000))
    def read(self, track, first, limit):
        loaded = self.store.read(track, first << 64, MAX_POSITION, limit_bytes=limit)
        known, alive = self.objects[track], self.alive(track)
        found = {to_position(obj.location): obj for obj, _ in loaded.objects}
        for position, obj in found.items():
            assert known[position][0] == obj
        expected = {position for position in alive if first << 64 <= position <= loaded.through}
        if not self.is_damaged:
            # A file goes as a whole, a little before its last Objects expire.
            missing = [alive[position] for position in expected - found.keys()]
            received = [known[to_position(obj.location)][1] for obj in missing]
            assert all(LIFETIMES[track] is not None for _ in missing)
            assert all(time + LIFETIMES[track] - self.time < 60 for time in received)

    @rule(seconds=st.floats(0.1, 40))
    def expire(self, seconds):
        self.time += seconds
        _, next_expiry = self.store.expire(self.time)
        assert next_expiry is None or next_expiry > self.time

    @rule(track=st.sampled_from(TRACKS))
    def drop(self, track):
        self.store.drop([track])
        self.objects[track].clear()

    @rule()
    def restart(self):
        self.store.close()
        self.store = DiskStore(self.path)
        self.store.contents(self.time)

    @rule(seed=st.integers(0, 2**32))
    def change_files(self, seed):
        damage(self.path, seed)
        self.is_damaged = True

    @rule()
    def sizes_add_up(self):
        total = sum(track.size_bytes for track in self.store.contents(self.time).tracks)
        files = [path for path in (self.path / "objects").rglob("*") if path.is_file()]
        if not self.is_damaged:
            assert total == sum(-(-path.stat().st_size // 4096) * 4096 for path in files)


DiskStoreMachine.TestCase.settings = settings(
    max_examples=examples(20), stateful_step_count=25, deadline=None
)
TestDiskStore = DiskStoreMachine.TestCase
