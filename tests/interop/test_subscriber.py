"""aiomoqt reads our publication: from our publisher itself, and through our relay."""

import asyncio

import pytest
from aiomoqt.messages import LocationFilter, RangeFilter
from aiomoqt.messages.params import D20ParamType
from aiomoqt.types import (
    GroupOrder,
    MOQTRequestError,
    ObjectStatus,
    ParamType,
    RequestErrorCode,
    SubscribeDoneCode,
)
from tests.interop.sites import (
    BLOCKS,
    LAYERS,
    PATIENCE,
    K,
    V,
    client,
    client_config,
    dialing,
    listening,
    relay_of,
    relayed,
    url,
)
from tests.interop.subscriber import Reader, by_location

from kvcs.client import Publisher
from kvcs.endpoint.connect import connect
from kvcs.kv import MANIFEST, publisher_priority
from kvcs.kv.manifest import parse_manifest
from kvcs.moqt.codepoints import PropertyType
from kvcs.names import FullTrackName, TrackNamespace

ROUTES = pytest.mark.parametrize("route", [listening, dialing, relayed])
HALF = LAYERS // 2
WHOLE = LocationFilter.absolute(0, 0)
CURRENT = LocationFilter.relative(1)


def end_of_group(layer_index):
    return (layer_index, BLOCKS), ObjectStatus.END_OF_GROUP, publisher_priority(layer_index, LAYERS)


END_OF_TRACK = ((LAYERS, 0), ObjectStatus.END_OF_TRACK, 128)


@ROUTES
async def test_join_in_mid_production_is_exactly_once(route, prompt, certificate):
    async with (
        asyncio.timeout(PATIENCE),
        route(prompt, certificate) as site,
        site.publisher.publication(prompt.tokens) as publication,
    ):
        segment = await publication.add_segment()
        await prompt.publish(segment, range(HALF))
        reader = Reader(await site.session())

        joined = {
            name: await reader.subscribe(publication.name.track(name.format()), fill=WHOLE)
            for name in (K, V)
        }
        await prompt.publish(segment, range(HALF, LAYERS))
        await publication.complete()
        for arrivals in joined.values():
            await reader.finished(arrivals, fills=1)

    for name, arrivals in joined.items():
        assert arrivals.largest == (HALF - 1, BLOCKS)
        assert by_location(arrivals.fetched) == prompt.objects(name, range(HALF))
        assert by_location(arrivals.live) == prompt.objects(name, range(HALF, LAYERS))
        assert not arrivals.markers
        assert sorted(arrivals.statuses) == [
            *map(end_of_group, range(HALF, LAYERS)),
            END_OF_TRACK,
        ]
        assert arrivals.done.status_code == SubscribeDoneCode.TRACK_ENDED
        # A stream for each live Group, one for End of Track, and the fill.
        assert arrivals.done.stream_count == LAYERS - HALF + 2
        assert sorted(arrivals.ended) == [*range(HALF, LAYERS + 1)]
        assert not arrivals.unclean


@ROUTES
async def test_subscription_from_the_start_needs_no_fill(route, prompt, certificate):
    async with (
        asyncio.timeout(PATIENCE),
        route(prompt, certificate) as site,
        site.publisher.publication(prompt.tokens) as publication,
    ):
        segment = await publication.add_segment()
        reader = Reader(await site.session())

        arrivals = await reader.subscribe(publication.name.track(K.format()), fill=WHOLE)
        await prompt.publish(segment, range(LAYERS))
        await publication.complete()
        await reader.finished(arrivals, fills=0)

    assert arrivals.largest == (None, None)
    assert arrivals.fetched == []
    assert by_location(arrivals.live) == prompt.objects(K)
    assert sorted(arrivals.statuses) == [*map(end_of_group, range(LAYERS)), END_OF_TRACK]
    assert arrivals.done.stream_count == LAYERS + 1


@ROUTES
async def test_pause_and_resumption_with_a_fill_lose_nothing(route, prompt, certificate):
    async with (
        asyncio.timeout(PATIENCE),
        route(prompt, certificate) as site,
        site.publisher.publication(prompt.tokens) as publication,
    ):
        segment = await publication.add_segment()
        reader = Reader(await site.session())
        track = publication.name.track(K.format())
        arrivals, witness = await reader.subscribe(track), await reader.subscribe(track)

        await prompt.publish(segment, range(1))
        await arrivals.signal.until(lambda: arrivals.ended == [0])
        await reader.update(arrivals, forward=False)
        await prompt.publish(segment, range(1, HALF))
        # Whoever serves the subscription has everything by now.
        await witness.signal.until(lambda: len(witness.ended) == HALF)
        resumed = await reader.update(arrivals, forward=True, fill=LocationFilter.absolute(1, 0))
        assert await reader.filled(resumed)
        await prompt.publish(segment, range(HALF, LAYERS))
        await publication.complete()
        await reader.finished(arrivals, fills=1)
        await reader.finished(witness, fills=0)

    assert by_location(resumed.fetched) == prompt.objects(K, range(1, HALF))
    assert by_location(witness.live) == prompt.objects(K)
    assert by_location([*arrivals.live, *resumed.fetched]) == prompt.objects(K)
    assert sorted(arrivals.statuses) == [
        end_of_group(0),
        *map(end_of_group, range(HALF, LAYERS)),
        END_OF_TRACK,
    ]
    assert not resumed.markers


@ROUTES
async def test_large_objects_arrive_whole(route, large_prompt, certificate):
    async with (
        asyncio.timeout(PATIENCE),
        route(large_prompt, certificate) as site,
        site.publisher.publication(large_prompt.tokens) as publication,
    ):
        segment = await publication.add_segment()
        await large_prompt.publish(segment, range(1))
        reader = Reader(await site.session())

        arrivals = await reader.subscribe(publication.name.track(V.format()), fill=WHOLE)
        await large_prompt.publish(segment, range(1, LAYERS))
        await publication.complete()
        await reader.finished(arrivals, fills=1)

    assert by_location(arrivals.fetched) == large_prompt.objects(V, range(1))
    assert by_location(arrivals.live) == large_prompt.objects(V, range(1, LAYERS))


@ROUTES
async def test_manifest_track_brings_the_current_version_and_all_later_ones(
    route, prompt, certificate
):
    async with (
        asyncio.timeout(PATIENCE),
        route(prompt, certificate) as site,
        site.publisher.publication(prompt.tokens) as publication,
    ):
        segment = await publication.add_segment()
        await prompt.publish(segment, range(HALF))
        reader = Reader(await site.session())

        arrivals = await reader.subscribe(publication.name.track(MANIFEST), fill=CURRENT)
        # An old version is dropped when nobody is owed it; a relay may ask for it later.
        assert await reader.filled(arrivals)
        await prompt.publish(segment, range(HALF, LAYERS))
        await publication.complete()
        await reader.finished(arrivals, fills=1)

    versions = by_location([*arrivals.fetched, *arrivals.live])
    manifests = [parse_manifest(payload) for _, (_, payload) in sorted(versions.items())]
    assert [manifest.complete for manifest in manifests] == [False, False, True]
    assert manifests[-1] == publication.manifest
    # A status Object would move Largest, so there is none.
    assert arrivals.statuses == []
    assert arrivals.done.status_code == SubscribeDoneCode.TRACK_ENDED


@ROUTES
async def test_fetches_bring_ranges_of_layers_and_blocks(route, prompt, certificate):
    first_blocks = {D20ParamType.OBJECTID_FILTER: RangeFilter(ranges=((0, 1),))}
    async with (
        asyncio.timeout(PATIENCE),
        route(prompt, certificate) as site,
        site.publisher.publication(prompt.tokens) as publication,
    ):
        segment = await publication.add_segment()
        await prompt.publish(segment, range(LAYERS))
        await publication.complete()
        reader = Reader(await site.session())
        track = publication.name.track(V.format())

        layers = await reader.fetch(track, LocationFilter.absolute(1, 0, 3))
        blocks = await reader.fetch(
            track, LocationFilter.absolute(1, 0, 3), parameters=first_blocks
        )
        exact = await reader.fetch(track, LocationFilter.absolute(2, 3, 4, 1))
        descending = await reader.fetch(track, WHOLE, group_order=GroupOrder.DESCENDING)

    assert by_location(layers.fetched) == prompt.objects(V, range(1, 4))
    # aiomoqt counts the end of FETCH_OK as exclusive: our End Location is {3, BLOCKS}.
    assert (layers.answer.largest_group_id, layers.answer.largest_object_id) == (3, BLOCKS + 1)
    assert layers.answer.end_of_track == 0
    assert by_location(blocks.fetched) == prompt.objects(V, range(1, 4), range(2))
    assert by_location(exact.fetched) == {
        location: value
        for location, value in prompt.objects(V).items()
        if (2, 3) <= location <= (4, 1)
    }
    assert by_location(descending.fetched) == prompt.objects(V)
    assert [location for location, *_ in descending.fetched] == sorted(
        prompt.objects(V), key=lambda location: (-location[0], location[1])
    )
    assert not any(it.markers for it in (layers, blocks, exact, descending))


@ROUTES
async def test_track_status_tells_the_largest_object_and_the_properties(route, prompt, certificate):
    async with (
        asyncio.timeout(PATIENCE),
        route(prompt, certificate) as site,
        site.publisher.publication(prompt.tokens) as publication,
    ):
        segment = await publication.add_segment()
        await prompt.publish(segment, range(HALF))
        session = await site.session()
        track = publication.name.track(K.format())

        status = await session.track_status(track.namespace.fields, track.name, wait_response=True)

    assert status.parameters == {ParamType.LARGEST_OBJECT: (HALF - 1, BLOCKS)}
    hour_ms = 3_600_000
    assert status.track_properties == {PropertyType.MAX_CACHE_DURATION: hour_ms}


@ROUTES
async def test_refusals_carry_the_code_of_the_draft(route, prompt, certificate):
    unknown = FullTrackName(TrackNamespace((b"nobody",)), b"here")
    codes = []
    async with (
        asyncio.timeout(PATIENCE),
        route(prompt, certificate) as site,
        site.publisher.publication(prompt.tokens) as publication,
    ):
        await publication.add_segment()
        reader = Reader(await site.session())
        empty = publication.name.track(K.format())

        for request in (
            reader.subscribe(unknown),
            reader.fetch(unknown, WHOLE),
            reader.fetch(empty, WHOLE),
        ):
            with pytest.raises(MOQTRequestError) as refusal:
                await request
            codes.append(refusal.value.error_code)

    assert codes == [
        RequestErrorCode.DOES_NOT_EXIST,
        RequestErrorCode.DOES_NOT_EXIST,
        RequestErrorCode.INVALID_RANGE,
    ]


async def test_relay_serves_fetches_after_the_publisher_has_gone(prompt, certificate):
    async with asyncio.timeout(PATIENCE), relay_of(certificate) as relay:
        port = relay.address.port
        async with (
            connect(url(port), client_config(certificate)) as connection,
            client(port, certificate) as session,
        ):
            publisher = Publisher(
                connection, scope_key=prompt.scope_key, descriptor=prompt.descriptor
            )
            async with publisher.publication(prompt.tokens) as publication:
                segment = await publication.add_segment()
                track = publication.name.track(K.format())
                reader = Reader(session)
                arrivals = await reader.subscribe(track, fill=WHOLE)
                await prompt.publish(segment, range(LAYERS))
                await publication.complete()
                await reader.finished(arrivals, fills=0)
        while relay.statistics().sessions:  # noqa: ASYNC110 - nothing tells when that changes
            await asyncio.sleep(0.01)

        async with client(port, certificate) as session:
            reader = Reader(session)
            await session.subscribe_namespace(
                publication.name.namespace().fields[:4], wait_response=True
            )
            listed = await session.await_namespace()
            with pytest.raises(MOQTRequestError) as refusal:
                await reader.subscribe(track, fill=WHOLE)
            layers = await reader.fetch(track, LocationFilter.absolute(1, 0, 2))
            blocks = await reader.fetch(
                track,
                WHOLE,
                parameters={D20ParamType.OBJECTID_FILTER: RangeFilter(ranges=((1, 2),))},
            )

    assert listed.namespace_suffix == publication.name.namespace().fields[4:]
    assert refusal.value.error_code == RequestErrorCode.DOES_NOT_EXIST
    assert by_location(layers.fetched) == prompt.objects(K, range(1, 3))
    assert by_location(blocks.fetched) == prompt.objects(K, blocks=range(1, 3))
    assert not layers.markers
    assert not blocks.markers
