"""Consumers that demand authenticity, and publications that sign their manifest."""

import asyncio
from dataclasses import replace

import pytest
from tests.sim.shelf import DATA, LAYERS, Shelf, retrieved

from kvcs.client import ConsumerConfig, MissingReason, PublisherConfig
from kvcs.cose import Algorithm, SigningKey
from kvcs.errors import NotAuthentic, PublishDoneCode, RequestErrorCode, RequestRejected
from kvcs.kv import (
    MANIFEST,
    SIGNED_MANIFEST,
    ManifestCadence,
    TrustedProducers,
    sign_manifest,
)
from kvcs.moqt.session.events import FetchReceived, SubscribeReceived
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES
from kvcs.testing import LinkProfile, run

PACE = 0.1
BLOCKS = 5
KEY = SigningKey(b"producer-1", Algorithm.ES256, bytes(31) + b"\x07")
OTHER = SigningKey(b"producer-2", Algorithm.EDDSA, bytes(range(32)))
TRUST = ConsumerConfig(trusted_producers=TrustedProducers((OTHER.public, KEY.public)))


async def produce(world, publication, segments):
    for segment in segments:
        for layer_index in range(segment.next_layer, LAYERS):
            await asyncio.sleep(PACE)
            await world.publish_layer(segment, layer_index)
    await publication.complete()


def assert_authentic(verdict):
    assert verdict.complete
    assert verdict.verified == 2 * LAYERS * BLOCKS
    assert (verdict.rejected, verdict.missing, verdict.duplicate) == ({}, (), 0)
    assert verdict.authenticated
    assert verdict.signed_by == b"producer-1"


@pytest.mark.parametrize("threshold", [0, None])
@pytest.mark.parametrize("before", range(LAYERS + 1))
def test_live_join_uses_only_what_is_signed_and_brings_it_once(world, before, threshold):
    async def scenario():
        here = world()
        config = replace(TRUST, parse_threshold_bytes=threshold)
        async with (
            here.publisher(PublisherConfig(signing_key=KEY)) as publisher,
            publisher.publication(here.tokens) as publication,
        ):
            segment = await publication.add_segment()
            for layer_index in range(before):
                await here.publish_layer(segment, layer_index)
            async with here.consumer(config) as consumer, asyncio.TaskGroup() as group:
                (candidate,) = await consumer.discover(here.tokens)
                async with consumer.retrieve(candidate, timeout=10) as retrieval:
                    group.create_task(produce(here, publication, [segment]))
                    async for layer in retrieval:
                        assert here.is_equal(layer)
                        segments = retrieval.manifest.segments
                        listed = segments[0].listed_layers(segments[0].data_tracks())
                        assert layer.layer_index < listed
        return retrieval.verdict

    assert_authentic(run(scenario()))


@pytest.mark.parametrize("seed", range(4))
def test_live_join_survives_lists_that_come_early_or_late(world, seed):
    async def scenario():
        here = world(seed=seed, profile=LinkProfile(delay=0.02, reorder=0.3, bandwidth=200_000))
        async with (
            here.publisher(PublisherConfig(signing_key=KEY)) as publisher,
            publisher.publication(here.tokens) as publication,
        ):
            segments = [await publication.add_segment(2), await publication.add_segment(3)]
            async with here.consumer(TRUST) as consumer, asyncio.TaskGroup() as group:
                candidate = consumer.candidate(publication.name, here.tokens)
                group.create_task(produce(here, publication, segments))
                async with consumer.retrieve(candidate, timeout=30) as retrieval:
                    async for layer in retrieval:
                        assert here.is_equal(layer)
        return retrieval.verdict

    assert_authentic(run(scenario(), seed=seed))


def test_the_first_layer_is_usable_as_soon_as_it_is_signed(world):
    async def scenario():
        here = world()
        async with (
            here.publisher(PublisherConfig(signing_key=KEY)) as publisher,
            publisher.publication(here.tokens) as publication,
        ):
            segment = await publication.add_segment()
            async with here.consumer(TRUST) as consumer, asyncio.TaskGroup() as group:
                candidate = consumer.candidate(publication.name, here.tokens)
                async with consumer.retrieve(candidate, timeout=10) as retrieval:
                    group.create_task(produce(here, publication, [segment]))
                    async for layer in retrieval:
                        assert here.is_equal(layer)
        return retrieval.verdict

    verdict = run(scenario())

    # Lists come after layers 1, 2, 4 and 6: what is listed with a layer is usable with it.
    assert [arrival.layer_index for arrival in verdict.arrivals] == list(range(LAYERS))
    at = [round(arrival.seconds / PACE) for arrival in verdict.arrivals]
    assert at == [1, 2, 4, 4, 6, 6]


def test_a_publisher_that_has_left_is_authentic_from_what_it_signed(world):
    async def scenario():
        here = world()
        shelf = Shelf(here, signing_key=KEY)
        shelf.add_layers()
        shelf.refusals = {SubscribeReceived: RequestErrorCode.DOES_NOT_EXIST}
        async with shelf.open():
            verdict = await retrieved(shelf, config=TRUST)
            return verdict, shelf.of_track(SubscribeReceived, MANIFEST)

    verdict, asked = run(scenario())

    assert_authentic(verdict)
    assert asked == []


# What is held.


def test_what_no_list_names_is_held_and_never_given(world):
    async def scenario():
        here = world()
        shelf = Shelf(here, signing_key=KEY)
        # The list stops after layer 2, and the publisher goes away.
        shelf.tracks._config = replace(
            shelf.tracks._config, cadence=ManifestCadence(first=(1, 2), every=100)
        )
        given = []
        async with shelf.open():
            shelf.add_layers(range(2))
            async with shelf.consumer(TRUST) as consumer:
                candidate = shelf.candidate(consumer)
                async with consumer.retrieve(candidate, timeout=5) as retrieval:

                    async def rest():
                        await asyncio.sleep(PACE)
                        shelf.add_layers(range(2, LAYERS - 1))

                    events = asyncio.ensure_future(rest())
                    async for layer in retrieval:
                        assert here.is_equal(layer)
                        given.append(layer.layer_index)
                    await events
        return retrieval.verdict, given

    verdict, given = run(scenario())

    assert given == [0, 1]
    assert verdict.verified == 2 * 2 * BLOCKS
    assert not verdict.complete
    unlisted = {gap.layer for gap in verdict.missing if gap.reason is MissingReason.UNLISTED}
    assert unlisted == {2, 3, 4}
    assert verdict.authenticated


def test_what_does_not_fit_is_asked_for_again_when_it_is_listed(world):
    async def scenario():
        here = world()
        config = replace(TRUST, max_unlisted_bytes=4096)
        async with (
            here.publisher(
                PublisherConfig(signing_key=KEY, cadence=ManifestCadence(first=(3,), every=100))
            ) as publisher,
            publisher.publication(here.tokens) as publication,
        ):
            segment = await publication.add_segment()
            async with here.consumer(config) as consumer, asyncio.TaskGroup() as group:
                candidate = consumer.candidate(publication.name, here.tokens)
                async with consumer.retrieve(candidate, timeout=10) as retrieval:
                    group.create_task(produce(here, publication, [segment]))
                    async for layer in retrieval:
                        assert here.is_equal(layer)
        return retrieval.verdict

    verdict = run(scenario())

    assert verdict.complete
    assert verdict.rejected["unlisted"] > 0
    # Those of the first list were fetched while production went on.
    assert round(verdict.first_layer_s / PACE) == 3
    assert verdict.authenticated


def test_a_held_object_that_is_not_what_was_signed_is_fetched_again(world):
    async def scenario():
        here = world()
        shelf = Shelf(here, signing_key=KEY)
        # Nothing between the first layer and the end is listed.
        shelf.tracks._config = replace(
            shelf.tracks._config, cadence=ManifestCadence(first=(1,), every=100)
        )
        name = shelf.tracks.track_names(0)[0]
        track = shelf.tracks.tracks[name.format()]

        async def forge_one_object():
            await asyncio.sleep(PACE)
            full_name = shelf.tracks.name.track(name.format())
            payload, _ = shelf.payload(name.component, 1, 2, shelf.zeros(name.component, 1))
            genuine = TrackStore(full_name, properties=EMPTY_PROPERTIES, authoritative=True)
            for obj in track.store.objects():
                genuine.add(obj, now=0.0)
            add = track.store.add

            def add_both(obj, *, now):
                genuine.add(obj, now=now)
                is_target = (obj.group_id, obj.object_id) == (1, 2)
                return add(obj._replace(payload=payload) if is_target else obj, now=now)

            track.store.add = add_both
            shelf.add_layers(range(1, LAYERS - 1))
            await asyncio.sleep(PACE)
            shelf.add_layers(range(LAYERS - 1, LAYERS))
            # Sent on the subscription as a forgery; whoever fetches gets the genuine one.
            track.store = genuine

        async with shelf.open():
            shelf.add_layers(range(1))
            return await retrieved(shelf, config=TRUST, during=forge_one_object)

    verdict = run(scenario())

    assert verdict.complete
    assert verdict.authenticated
    assert verdict.rejected == {"listed_digest": 1}


def test_a_held_object_that_nobody_has_genuine_is_missing_alone(world):
    async def scenario():
        here = world()
        shelf = Shelf(here, signing_key=KEY)
        shelf.tracks._config = replace(
            shelf.tracks._config, cadence=ManifestCadence(first=(1,), every=100)
        )

        def forge(made):
            name = next(iter(made))
            zeros = shelf.zeros(name.component, 1)
            # The digest that is listed stays that of the genuine Data.
            made[name][2] = (shelf.payload(name.component, 1, 2, zeros)[0], made[name][2][1])

        async def go_on():
            await asyncio.sleep(PACE)
            shelf.add_layers(range(1, 2), lie=forge)
            shelf.add_layers(range(2, LAYERS))

        async with shelf.open():
            shelf.add_layers(range(1))
            return await retrieved(shelf, config=TRUST, during=go_on)

    verdict = run(scenario())

    (gap,) = verdict.missing
    assert (gap.layer, gap.first, gap.end, gap.reason) == (1, 2, 3, MissingReason.REJECTED)
    assert verdict.rejected["listed_digest"] >= 2
    assert verdict.error is None
    assert verdict.verified == 2 * LAYERS * BLOCKS - 1


# Who is asked for what.


def test_only_signed_manifests_are_asked_for(world):
    async def scenario():
        here = world()
        async with Shelf(here, signing_key=KEY).open() as shelf:
            shelf.add_layers()
            verdict = await retrieved(shelf, config=TRUST)
            plain = shelf.of_track(SubscribeReceived, MANIFEST) + shelf.of_track(
                FetchReceived, MANIFEST
            )
            return verdict, plain, shelf.of_track(SubscribeReceived, SIGNED_MANIFEST)

    verdict, plain, signed = run(scenario())

    assert_authentic(verdict)
    assert plain == []
    assert len(signed) == 1


def test_a_publication_that_does_not_sign_is_refused_with_one_sentence(world):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            shelf.add_layers()
            with pytest.raises(NotAuthentic, match="does not sign its manifest") as caught:
                await retrieved(shelf, config=TRUST)
            return caught.value.reason, [e for e in shelf.asked if e.track.name in DATA]

    reason, asked = run(scenario())

    assert reason == "unsigned"
    assert asked == []


def test_a_publication_that_is_not_there_is_not_called_unsigned(world):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            shelf.refusals = {
                (kind, name): RequestErrorCode.DOES_NOT_EXIST
                for kind in (SubscribeReceived, FetchReceived)
                for name in (MANIFEST, SIGNED_MANIFEST)
            }
            with pytest.raises(RequestRejected) as caught:
                await retrieved(shelf, config=TRUST)
        return caught.value.code

    assert run(scenario()) == RequestErrorCode.DOES_NOT_EXIST


@pytest.mark.parametrize("kind", [SubscribeReceived, FetchReceived])
@pytest.mark.parametrize(
    "code",
    [
        RequestErrorCode.TIMEOUT,
        RequestErrorCode.UNAUTHORIZED,
        RequestErrorCode.INTERNAL_ERROR,
        RequestErrorCode.EXCESSIVE_LOAD,
    ],
)
def test_whoever_does_not_care_is_not_led_to_the_plain_manifest_either(world, kind, code):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            shelf.add_layers()
            shelf.refusals = {(kind, SIGNED_MANIFEST): code}
            with pytest.raises(RequestRejected) as caught:
                await retrieved(shelf, config=ConsumerConfig(allow_unverified=True))
            asked = shelf.of_track(SubscribeReceived, MANIFEST)
        assert caught.value.code in (code, RequestErrorCode.DOES_NOT_EXIST)
        assert asked == []

    run(scenario())


@pytest.mark.parametrize("signing_key", [KEY, None])
def test_whoever_does_not_care_reads_either_and_nothing_is_authentic(world, signing_key):
    async def scenario():
        here = world()
        async with Shelf(here, signing_key=signing_key).open() as shelf:
            shelf.add_layers()
            return await retrieved(shelf, config=ConsumerConfig(allow_unverified=True))

    verdict = run(scenario())

    assert verdict.complete
    assert not verdict.authenticated
    assert verdict.signed_by is None


def test_versions_of_a_broken_off_subscription_are_asked_for_again(world):
    async def scenario():
        here = world()
        async with Shelf(here, signing_key=KEY).open() as shelf:
            shelf.add_layers(range(2))

            async def lose():
                await asyncio.sleep(PACE)
                (peer,) = shelf.peers
                peer.end(shelf.tracks.manifest_track, PublishDoneCode.INTERNAL_ERROR, drain=False)
                await asyncio.sleep(PACE)
                shelf.add_layers(range(2, LAYERS))

            return await retrieved(shelf, config=TRUST, during=lose)

    assert_authentic(run(scenario()))


def test_another_producer_cannot_go_on_with_a_publication(world):
    async def scenario():
        here = world()
        async with Shelf(here, signing_key=KEY).open() as shelf:
            shelf.add_layers(range(2))

            async def usurp():
                await asyncio.sleep(PACE)
                tracks = shelf.tracks
                data = sign_manifest(tracks.manifest, tracks.name, tracks._next_version, OTHER)
                shelf.add_object(SIGNED_MANIFEST, tracks._next_version, data)
                tracks._next_version += 1
                shelf.add_layers(range(2, LAYERS))

            return await retrieved(shelf, config=TRUST, during=usurp)

    verdict = run(scenario())

    assert verdict.complete
    assert verdict.signed_by == b"producer-1"
    assert verdict.rejected == {"manifest": 1}
