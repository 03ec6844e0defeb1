"""aiomoqt on both sides of our relay: its publisher, and its subscribers that join and fetch."""

import asyncio
from contextlib import asynccontextmanager
from itertools import product

import pytest
from aiomoqt.messages import LocationFilter, RangeFilter
from aiomoqt.messages.params import D20ParamType
from aiomoqt.types import GroupOrder, MOQTRequestError, RequestErrorCode
from tests.interop.origin import Origin
from tests.interop.sites import BLOCKS, LAYERS, PATIENCE, K, V, client, relay_of
from tests.interop.subscriber import Reader, by_location

from kvcs.kv import publisher_priority
from kvcs.names import FullTrackName, TrackNamespace

HALF = LAYERS // 2
WHOLE = LocationFilter.absolute(0, 0)


def track_of(origin, name):
    return FullTrackName(TrackNamespace(origin.namespace), name.format())


@asynccontextmanager
async def around(origin, certificate, *, readers=1):
    """Our relay between an aiomoqt publisher and aiomoqt subscribers."""
    async with asyncio.timeout(PATIENCE), relay_of(certificate) as relay:
        port = relay.address.port
        async with client(port, certificate, origin.handlers) as session:
            await session.publish_namespace(origin.namespace, wait_response=True)
            async with client(port, certificate) as first, client(port, certificate) as second:
                yield relay, [Reader(it) for it in (first, second)[:readers]]


async def test_subscribers_that_join_at_different_times_share_one_subscription(prompt, certificate):
    origin = Origin(prompt)
    await origin.publish_layers(range(1))
    async with around(origin, certificate, readers=2) as (_, (early, late)):
        track = track_of(origin, K)
        first = await early.subscribe(track, fill=WHOLE)
        await origin.publish_layers(range(1, HALF))
        await first.signal.until(lambda: len(first.ended) == HALF - 1)
        second = await late.subscribe(track, fill=WHOLE)
        await origin.publish_layers(range(HALF, LAYERS))
        await origin.end()
        await early.finished(first, fills=1)
        await late.finished(second, fills=1)

    assert origin.subscribed.count(K.format()) == 1
    for arrivals, joined in ((first, 1), (second, HALF)):
        assert by_location(arrivals.fetched) == prompt.objects(K, range(joined))
        assert by_location(arrivals.live) == prompt.objects(K, range(joined, LAYERS))
        assert not arrivals.markers
        assert not arrivals.unclean


FIRST_BLOCKS = RangeFilter(ranges=((0, 1),))
LAST_BLOCK = RangeFilter(set_id=1, ranges=((BLOCKS - 1, None),))
EARLY_LAYERS = RangeFilter(ranges=((0, publisher_priority(HALF, LAYERS) - 1),))
OTHER_SUBGROUPS = RangeFilter(ranges=((1, None),))

ALL_LAYERS, ALL_BLOCKS = range(LAYERS), range(BLOCKS)
FILTERS = pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ({D20ParamType.OBJECTID_FILTER: FIRST_BLOCKS}, frozenset(product(ALL_LAYERS, range(2)))),
        ({D20ParamType.PRIORITY_FILTER: EARLY_LAYERS}, frozenset(product(range(HALF), ALL_BLOCKS))),
        ({D20ParamType.SUBGROUP_FILTER: OTHER_SUBGROUPS}, ()),
        (
            {
                D20ParamType.OBJECTID_FILTER: FIRST_BLOCKS,
                D20ParamType.PRIORITY_FILTER: EARLY_LAYERS,
            },
            frozenset(product(range(HALF), range(2))),
        ),
        (
            {D20ParamType.OBJECTID_FILTER: [FIRST_BLOCKS, LAST_BLOCK]},
            frozenset(product(ALL_LAYERS, (0, 1, BLOCKS - 1))),
        ),
    ],
    ids=["object", "priority", "subgroup", "both", "sets"],
)


def admitted(prompt, name, layers, wanted):
    return {at: value for at, value in prompt.objects(name, layers).items() if at in wanted}


@FILTERS
async def test_fetch_with_filters_brings_what_passes_and_hides_nothing(
    filters, wanted, prompt, certificate
):
    origin = Origin(prompt)
    await origin.publish_layers(range(LAYERS))
    await origin.end()
    async with around(origin, certificate) as (_, (reader,)):
        track = track_of(origin, V)

        filtered = await reader.fetch(track, WHOLE, parameters=filters)
        # What was filtered out is not taken for absent.
        whole = await reader.fetch(track, WHOLE)
        again = await reader.fetch(track, WHOLE, parameters=filters)

    assert by_location(filtered.fetched) == admitted(prompt, V, range(LAYERS), wanted)
    assert by_location(whole.fetched) == prompt.objects(V)
    assert by_location(again.fetched) == by_location(filtered.fetched)
    assert not whole.markers


@FILTERS
async def test_join_in_mid_production_with_filters_is_exactly_once(
    filters, wanted, prompt, certificate
):
    origin = Origin(prompt)
    await origin.publish_layers(range(2))
    async with around(origin, certificate, readers=2) as (_, (plain, filtering)):
        track = track_of(origin, K)
        everything = await plain.subscribe(track, fill=WHOLE)
        some = await filtering.subscribe(track, fill=WHOLE, parameters=filters)
        await origin.publish_layers(range(2, LAYERS))
        await origin.end()
        await plain.finished(everything, fills=1)
        assert await filtering.filled(some)
        await some.signal.until(lambda: some.done is not None)
        expected = admitted(prompt, K, range(2, LAYERS), wanted)
        await some.signal.until(lambda: len(some.live) >= len(expected))

    assert by_location([*everything.fetched, *everything.live]) == prompt.objects(K)
    assert by_location(some.fetched) == admitted(prompt, K, range(2), wanted)
    assert by_location(some.live) == expected
    assert origin.subscribed.count(K.format()) == 1


async def test_relay_serves_filtered_fetches_after_the_publisher_has_gone(prompt, certificate):
    origin = Origin(prompt)
    async with asyncio.timeout(PATIENCE), relay_of(certificate) as relay:
        port = relay.address.port
        async with (
            client(port, certificate) as session,
            client(port, certificate, origin.handlers) as source,
        ):
            await source.publish_namespace(origin.namespace, wait_response=True)
            reader = Reader(session)
            arrivals = await reader.subscribe(track_of(origin, K), fill=WHOLE)
            await origin.publish_layers(range(LAYERS))
            await origin.end()
            await reader.finished(arrivals, fills=0)
        while relay.statistics().sessions:  # noqa: ASYNC110 - nothing tells when that changes
            await asyncio.sleep(0.01)

        async with client(port, certificate) as session:
            reader = Reader(session)
            blocks = await reader.fetch(
                track_of(origin, K),
                LocationFilter.absolute(1, 0, 3),
                parameters={D20ParamType.OBJECTID_FILTER: FIRST_BLOCKS},
                group_order=GroupOrder.DESCENDING,
            )
            with pytest.raises(MOQTRequestError) as refusal:
                await reader.fetch(track_of(origin, V), WHOLE)

    assert by_location(blocks.fetched) == prompt.objects(K, range(1, 4), range(2))
    assert [layer for (layer, _), *_ in blocks.fetched] == [3, 3, 2, 2, 1, 1]
    # Nobody asked for v while its publisher was there.
    assert refusal.value.error_code == RequestErrorCode.DOES_NOT_EXIST
