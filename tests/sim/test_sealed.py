"""Sealed publications: through a relay that cannot read them, into the hands of who has the key."""

import asyncio
import hashlib
from contextlib import asynccontextmanager

import pytest
from tests.sim.forest import assert_unread, held

from kvcs.client import Consumer, ConsumerConfig, Publisher, PublisherConfig
from kvcs.endpoint.connect import connect
from kvcs.errors import ConfigError, IntegrityError, KeyMissing
from kvcs.kv import MANIFEST, RAW, Component, DataTrackName, ScopeKey, parse_manifest
from kvcs.kv.sealing import (
    CipherSuite,
    ObjectKey,
    ObjectKeys,
    SealedPayload,
    SealingLimits,
    SealReason,
    TrackOpener,
    TrackSealer,
)
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.relay import Relay, RelayConfig, allow_all
from kvcs.testing import LinkProfile, run
from kvcs.transport.interface import ServerTls

URL = "moqt://localhost:4433/"
SCOPE_KEY = ScopeKey(bytes(range(32)))
LAYERS, BLOCKS = 6, 5
KEY = ObjectKey(key_id=7, secret=bytes(range(16)))
STRONG = ObjectKey(key_id=8, suite=CipherSuite.AES_256_GCM_SHA512_128, secret=bytes(range(32)))
SEALED = PublisherConfig(object_key=KEY)
KEYS = ConsumerConfig(object_keys=ObjectKeys([KEY]))


@asynccontextmanager
async def relay(world):
    config = RelayConfig(
        tls=ServerTls(certificate_file="", private_key_file=""), authorize=allow_all
    )
    async with Relay(config, transport=world.network) as it:
        yield it


@asynccontextmanager
async def publisher(world, config=SEALED, **options):
    async with connect(URL, transport=world.network) as connection:
        yield Publisher(
            connection,
            scope_key=SCOPE_KEY,
            descriptor=world.descriptor,
            config=config,
            **options,
        )


@asynccontextmanager
async def published(world, config=SEALED, *, layers=LAYERS, pace=0.0, **options):
    """A publication that is being made, or complete, while the block runs."""
    async with (
        publisher(world, config, **options) as source,
        source.publication(world.tokens) as publication,
    ):
        segment = await publication.add_segment()

        async def produce():
            for layer_index in range(layers):
                await asyncio.sleep(pace)
                await world.publish_layer(segment, layer_index)
            await publication.complete()

        task = asyncio.create_task(produce())
        if not pace:
            await task
        yield publication
        await task


async def consume(world, name, config=KEYS, *, delay=0.0, **options):
    await asyncio.sleep(delay)
    async with connect(URL, transport=world.network) as connection:
        it = Consumer(connection, scope_key=SCOPE_KEY, descriptor=world.descriptor, config=config)
        candidate = it.candidate(name, world.tokens)
        async with it.retrieve(candidate, **{"timeout": 60, **options}) as retrieval:
            async for layer in retrieval:
                assert world.is_equal(layer, options.get("blocks"))
            return retrieval.verdict


def assert_whole(verdict, *, layers=LAYERS, blocks=BLOCKS):
    assert verdict.complete
    assert verdict.sealed
    assert verdict.verified == 2 * layers * blocks
    assert (verdict.duplicate, verdict.rejected, verdict.missing) == (0, {}, ())


def newest_manifest(relay, name):
    """The newest manifest of a publication that a relay holds, opened with the key."""
    track = name.track(MANIFEST)
    entry = relay._core.cache._publications[name.namespace()].entries[track]
    obj = max(entry.store.objects(), key=lambda obj: obj.location)
    immutable = TrackSealer(KEY, track).immutable
    place = (obj.group_id, obj.object_id, obj.publisher_priority)
    sealed = SealedPayload(*place, KEY.key_id, immutable, obj.payload)
    return parse_manifest(bytes(TrackOpener(KEYS.object_keys, track).open(sealed)))


@pytest.mark.parametrize("key", [KEY, STRONG], ids=lambda key: key.suite.name)
@pytest.mark.parametrize(
    "opening",
    [
        {"open_threshold_bytes": None},
        {"open_threshold_bytes": 0},
        {"open_threshold_bytes": 1000},
        {"max_sealed_bytes": 0},
        {"max_sealed_bytes": 600, "open_threshold_bytes": 0},
    ],
    ids=str,
)
def test_live_late_and_left_behind_consumers_open_what_was_sealed(world, key, opening):
    config = ConsumerConfig(object_keys=ObjectKeys([KEY, STRONG]), **opening)

    async def scenario():
        here = world()
        async with relay(here):
            sealed = PublisherConfig(object_key=key)
            async with published(here, sealed, pace=0.1) as publication:
                name = publication.name
                live = await asyncio.gather(
                    *(consume(here, name, config, delay=delay) for delay in (0.0, 0.25, 1.0))
                )
                assert await publication.wait_delivered(5.0)
            await asyncio.sleep(1)
            whole = await consume(here, name, config)
            part = await consume(here, name, config, layers=range(1, 3), blocks=2)
        return live, whole, part

    live, whole, part = run(scenario())

    for verdict in (*live, whole):
        assert_whole(verdict)
        assert verdict.excess == 0
    assert_whole(part, layers=2, blocks=2)


@pytest.mark.parametrize("seed", range(6))
def test_sealed_objects_survive_reordering(world, seed):
    async def scenario():
        here = world(seed=seed, profile=LinkProfile(delay=0.02, reorder=0.2, bandwidth=200_000))
        async with relay(here), published(here, pace=0.03) as publication:
            return await asyncio.gather(
                *(
                    consume(here, publication.name, delay=delay, config=config)
                    for delay, config in zip(
                        (0.0, 0.07, 0.2),
                        (
                            KEYS,
                            KEYS,
                            ConsumerConfig(object_keys=KEYS.object_keys, open_threshold_bytes=0),
                        ),
                        strict=True,
                    )
                )
            )

    for verdict in run(scenario(), seed=seed):
        assert_whole(verdict)


def test_a_relay_sees_nothing_of_what_is_sealed(world):
    async def scenario():
        here = world()
        async with relay(here) as it, published(here) as publication:
            assert_whole(await consume(here, publication.name))
            return here, held(it, publication.name)

    here, objects = run(scenario())

    assert len([obj for obj in objects if obj.payload]) > 2 * LAYERS * BLOCKS
    assert_unread(here, objects, KEY.key_id)


def test_digests_of_a_sealed_manifest_are_those_of_the_clear_data(world):
    async def scenario():
        here = world()
        async with relay(here) as it, published(here) as publication:
            assert_whole(await consume(here, publication.name))
            return here, newest_manifest(it, publication.name)

    here, manifest = run(scenario())

    (segment,) = manifest.segments
    assert segment.complete
    size = here.layout.data_bytes(Component.K, 0)
    for component in (Component.K, Component.V):
        name = DataTrackName(component, RAW.name, 0)
        assert segment.object_digests[str(name)] == tuple(
            tuple(
                hashlib.sha256(here.tensor(component, layer)[block * size :][:size]).digest()
                for block in range(BLOCKS)
            )
            for layer in range(LAYERS)
        )


def test_priorities_arrive_as_they_were_sealed(world):
    async def scenario():
        here = world()
        async with relay(here) as it, published(here) as publication:
            assert_whole(await consume(here, publication.name))
            return {
                (obj.group_id, obj.publisher_priority)
                for obj in held(it, publication.name)
                if obj.status is ObjectStatus.NORMAL and obj.publisher_priority
            }

    seen = run(scenario())

    assert seen == {(layer, 128 * layer // LAYERS) for layer in range(1, LAYERS)}


# Keys.


def failing(world, config, *, sealed=SEALED, **options):
    async def scenario():
        here = world()
        async with relay(here), published(here, sealed) as publication:
            await consume(here, publication.name, config, **options)

    return scenario()


def test_without_keys_a_sealed_publication_says_which_key_is_needed(world):
    with pytest.raises(KeyMissing, match="Key ID 7") as caught:
        run(failing(world, ConsumerConfig()))

    assert caught.value.key_id == 7


def test_with_other_keys_it_says_so_too(world):
    with pytest.raises(KeyMissing, match="Key ID 7"):
        run(failing(world, ConsumerConfig(object_keys=ObjectKeys([STRONG]))))


def test_a_wrong_secret_opens_nothing(world):
    wrong = ObjectKey(key_id=7, secret=bytes(16))

    with pytest.raises(IntegrityError) as caught:
        run(failing(world, ConsumerConfig(object_keys=ObjectKeys([wrong]))))

    assert caught.value.reason == SealReason.SEAL


def test_who_demands_seals_takes_nothing_in_clear(world):
    with pytest.raises(IntegrityError) as caught:
        run(failing(world, KEYS, sealed=PublisherConfig()))

    assert caught.value.reason == SealReason.UNSEALED


def test_a_publication_names_its_key_where_both_sides_say(world):
    sealed = PublisherConfig(object_key=KEY, key_id_property=0x3800)

    async def scenario():
        here = world()
        async with relay(here), published(here, sealed) as publication:
            config = ConsumerConfig(object_keys=KEYS.object_keys, key_id_property=0x3800)
            verdict = await consume(here, publication.name, config)
            with pytest.raises(IntegrityError) as caught:
                await consume(here, publication.name)
            return verdict, caught.value.reason

    verdict, reason = run(scenario())

    assert_whole(verdict)
    assert reason == SealReason.UNSEALED


def test_publications_of_an_old_and_a_new_key_are_read_side_by_side(world):
    async def scenario():
        here = world()
        config = ConsumerConfig(object_keys=ObjectKeys([KEY], current=STRONG))
        newer = PublisherConfig(object_key=STRONG)
        async with relay(here), published(here) as old, published(here, newer) as new:
            return [await consume(here, it.name, config) for it in (old, new)]

    for verdict in run(scenario()):
        assert_whole(verdict)


def test_a_running_publisher_changes_its_key(world):
    async def scenario():
        here = world()
        config = ConsumerConfig(object_keys=ObjectKeys([KEY], current=STRONG))
        async with here.publisher(SEALED) as source, source.publication(here.tokens) as before:
            source.use_object_key(STRONG)
            verdicts = []
            async with source.publication(here.tokens) as after:
                for publication in (before, after):
                    segment = await publication.add_segment()
                    await here.publish_all(segment)
                    await publication.complete()
                    verdicts.append(await consume(here, publication.name, config))
                with pytest.raises(KeyMissing, match="Key ID 8"):
                    await consume(here, after.name, KEYS)
        return verdicts

    for verdict in run(scenario()):
        assert_whole(verdict)


@pytest.mark.parametrize("threshold", [None, 0], ids=["loop", "thread"])
@pytest.mark.parametrize(
    "limits",
    [SealingLimits(max_objects=2 * BLOCKS + 1), SealingLimits(max_cipher_blocks=29 * BLOCKS)],
    ids=["objects", "cipher blocks"],
)
def test_a_key_that_has_sealed_as_much_as_it_may_is_named_and_nothing_of_that_layer_goes_out(
    world, limits, threshold
):
    config = PublisherConfig(object_key=KEY, hash_threshold_bytes=threshold)

    async def scenario():
        here = world()
        async with relay(here), publisher(here, config) as source:
            async with source.publication(here.tokens) as publication:
                segment = await publication.add_segment()
                tracks = publication.tracks.data_tracks(0)
                for track in tracks:
                    track.sealer._limits = limits
                for layer_index in range(2):
                    await here.publish_layer(segment, layer_index)
                with pytest.raises(ConfigError, match="another Key ID") as refused:
                    await here.publish_layer(segment, 2)
                groups = [max(track.store.groups()) for track in tracks]
                listed = publication.manifest.segments[0].object_digests
            source.use_object_key(STRONG)
            async with source.publication(here.tokens) as publication:
                await here.publish_all(await publication.add_segment())
                await publication.complete()
                keys = ConsumerConfig(object_keys=ObjectKeys([STRONG]))
                verdict = await consume(here, publication.name, keys)
        return refused.value, groups, {len(digests) for digests in listed.values()}, verdict

    refusal, groups, listed, verdict = run(scenario())

    assert (refusal.key, refusal.got) == ("object_key", "Key ID 7")
    assert groups == [1, 1]
    assert listed == {2}
    assert_whole(verdict)


@pytest.mark.parametrize("number", [0x79, 0x02, 0x04, 0x0B])
@pytest.mark.parametrize("config", [PublisherConfig, ConsumerConfig])
def test_a_property_with_a_meaning_of_its_own_cannot_name_the_key(config, number):
    with pytest.raises(ConfigError, match="key_id_property"):
        config(key_id_property=number)


def test_jointly_encoded_tracks_are_sealed_and_padded(world):
    config = PublisherConfig(object_key=KEY, components=(Component.KV,), pad_segment_blocks=4)

    async def scenario():
        here = world()
        async with relay(here), published(here, config) as publication:
            return await consume(here, publication.name)

    verdict = run(scenario())

    assert verdict.complete
    assert (verdict.verified, verdict.padding) == (LAYERS * BLOCKS, 3 * LAYERS)


# Publishing again.


def test_a_layer_whose_publishing_was_cancelled_can_be_published_again(world):
    async def scenario():
        here = world()
        config = PublisherConfig(object_key=KEY, hash_threshold_bytes=None)
        async with (
            relay(here),
            publisher(here, config) as source,
            source.publication(here.tokens) as publication,
        ):
            segment = await publication.add_segment()
            original = publication.publish_layer
            publication.publish_layer = _fail
            with pytest.raises(asyncio.CancelledError):
                await here.publish_layer(segment, 0)
            publication.publish_layer = original
            await here.publish_all(segment)
            await publication.complete()
            return await consume(here, publication.name)

    def _fail(*_):
        raise asyncio.CancelledError

    assert_whole(run(scenario()))


# Padding.


PADDED = PublisherConfig(object_key=KEY, pad_segment_blocks=4)


def test_padding_hides_the_number_of_blocks_and_reaches_nobody(world):
    async def scenario():
        here = world()
        async with relay(here) as it:
            async with published(here, PADDED, pace=0.1) as publication:
                live = await consume(here, publication.name)
                objects = held(it, publication.name)
                name = publication.name
                assert await publication.wait_delivered(5.0)
            await asyncio.sleep(1)
            late = await consume(here, name)
            part = await consume(here, name, blocks=2)
        return live, late, part, objects

    live, late, part, objects = run(scenario())

    for verdict in (live, late):
        assert_whole(verdict)
        assert (verdict.excess, verdict.padding) == (0, 2 * LAYERS * 3)
    assert_whole(part, blocks=2)
    assert part.padding == 0
    data = [obj for obj in objects if obj.publisher_priority or obj.group_id]
    ends = [obj for obj in objects if obj.status is ObjectStatus.END_OF_GROUP]
    assert {obj.object_id for obj in ends} == {8}
    sizes = {len(obj.payload) for obj in data if obj.payload and len(obj.payload) < 1000}
    assert len(sizes) == 1


def test_a_padded_publication_needs_no_filters(world):
    async def scenario():
        here = world(filter_ranges=0)
        async with here.publisher(PADDED) as source, source.publication(here.tokens) as it:
            segment = await it.add_segment()
            await here.publish_all(segment)
            await it.complete()
            return [await consume(here, it.name, blocks=blocks) for blocks in (2, BLOCKS)]

    part, whole = run(scenario())

    assert_whole(part, blocks=2)
    assert_whole(whole)


def test_manifests_of_contexts_that_are_padded_alike_are_equally_long(world):
    async def scenario(blocks):
        here = world()
        here.tokens = here.tokens[: 4 * blocks]
        async with here.publisher(PADDED) as source, source.publication(here.tokens) as it:
            segment = await it.add_segment()
            await here.publish_all(segment)
            track = it.tracks.manifest_track
            return [len(obj.payload) for obj in track.store.objects()]

    sizes = [run(scenario(blocks)) for blocks in (1, 2, 3, 4, 5)]

    assert sizes[0] == sizes[1] == sizes[2] == sizes[3] != sizes[4]


@pytest.mark.parametrize(
    "options",
    [{"pad_segment_blocks": 4}, {"pad_segment_blocks": 0, "object_key": KEY}],
    ids=["in clear", "by nothing"],
)
def test_padding_that_cannot_be_is_refused(options):
    with pytest.raises(ConfigError, match="pad_segment_blocks"):
        PublisherConfig(**options)
