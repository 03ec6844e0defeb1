"""Sealed Objects on their way into memory: in pieces, jointly encoded, closed in the middle."""

import random

import pytest

from kvcs.client import ConsumerConfig
from kvcs.client.intake import MAX_SEAL_OVERHEAD_BYTES, TrackIntake
from kvcs.client.opening import Opening, TrackOpening
from kvcs.client.selection import WantedSegment
from kvcs.kv.naming import Component, DataTrackName
from kvcs.kv.sealing import ObjectKey, ObjectKeys, TrackSealer
from kvcs.moqt.codepoints import PropertyType
from kvcs.moqt.wire.properties import Properties
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.testing import run

K = Component.K
K_TRACK = DataTrackName(K, "raw", 0)
KEY = ObjectKey(key_id=7, secret=bytes(range(16)))
KEYS = ObjectKeys([KEY])
TRACK = FullTrackName(TrackNamespace((b"kvcs-1", b"publication")), b"k.raw.s0")


class Site:
    def __init__(self, sample, desk, **options):
        wanted = WantedSegment(
            segment=0, first_block=0, blocks=4, wanted_blocks=4, tracks=(K_TRACK,)
        )
        self.desk = desk
        self.sealer = TrackSealer(KEY, TRACK)
        self.intake = TrackIntake(
            desk.context, wanted, K_TRACK, layers=range(3), manifest=sample.manifest
        )
        opening = Opening(ConsumerConfig(object_keys=KEYS, **options), lambda: None)
        self.opening = TrackOpening(opening, KEYS, TRACK, key_id_property=0x78)

    def sealed(self, obj, **options):
        payload = self.sealer.seal(obj.group_id, obj.object_id, 0, obj.payload, **options)
        properties = Properties.of((PropertyType.IMMUTABLE_PROPERTIES, self.sealer.immutable))
        return obj._replace(payload=payload, properties=properties)

    def begin(self, obj, cuts):
        """Hand an Object in, cut at these places; return whether every piece was wanted."""
        octets = memoryview(obj.payload)
        first, *rest = (octets[a:b] for a, b in zip((0, *cuts), (*cuts, len(octets)), strict=True))
        arrival = self.intake.begin(obj, len(octets), first, self.opening)
        taken = [arrival.take(piece) for piece in rest] if arrival else []
        assert not rest or taken == [False] * (len(rest) - 1) + [True]


@pytest.mark.parametrize("seed", range(20))
def test_any_cut_of_a_sealed_object_gives_the_same_data(sample, desk, seed):
    chance = random.Random(seed)
    site = Site(sample, desk, open_threshold_bytes=chance.choice([None, 0]))

    async def scenario():
        for block in range(4):
            obj = site.sealed(sample.obj(K, 1, block))
            size = len(obj.payload)
            site.begin(obj, sorted(chance.sample(range(1, size), chance.randrange(6))))
            assert site.intake.is_opening

    run(scenario(), seed=seed)

    size = sample.layout.data_bytes(K, 1)
    assert bytes(desk.buffers[K, 1][: 4 * size]) == b"".join(
        sample.data(K, 1, block) for block in range(4)
    )
    assert [whole for _, whole in desk.verified] == [False, False, False, True]
    assert not site.intake.is_opening


def test_what_is_opened_after_the_end_is_not_written(sample, desk):
    site = Site(sample, desk)

    async def scenario():
        site.begin(site.sealed(sample.obj(K, 1, 2)), [])
        desk.context.placement.close()

    run(scenario())

    assert desk.verified == []
    assert not any(desk.buffers[K, 1])
    assert not site.intake.is_opening


def test_a_sealed_object_may_have_encrypted_properties_but_not_many(sample, desk):
    site = Site(sample, desk)
    fits = len(sample.obj(K, 1, 0).payload) + MAX_SEAL_OVERHEAD_BYTES - KEY.suite.tag_bytes

    async def scenario():
        site.begin(site.sealed(sample.obj(K, 1, 0), padded_bytes=fits), [50])
        assert site.intake.is_opening
        long = site.sealed(sample.obj(K, 1, 1), padded_bytes=fits + 1)
        assert site.intake.begin(long, len(long.payload), memoryview(b""), site.opening) is None

    run(scenario())

    assert desk.counters.verified == 1
    assert desk.counters.rejected == {"payload_length": 1}


def test_a_sealed_object_that_came_twice_is_a_duplicate(sample, desk):
    site = Site(sample, desk)
    obj = site.sealed(sample.obj(K, 1, 2))

    async def scenario():
        site.begin(obj, [10])
        site.begin(obj, [20])

    run(scenario())

    assert (desk.counters.verified, desk.counters.duplicate) == (1, 1)
