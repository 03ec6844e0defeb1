"""aiomoqt publishes a whole publication; our consumer retrieves and verifies it."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from tests.interop.origin import Origin
from tests.interop.sites import (
    BLOCKS,
    LAYERS,
    PATIENCE,
    K,
    V,
    client,
    client_config,
    relay_of,
    server,
    url,
)

from kvcs.client import Consumer
from kvcs.endpoint.connect import connect
from kvcs.kv import MANIFEST

HALF = LAYERS // 2


@asynccontextmanager
async def directly(origin, certificate):
    """Our consumer dials an aiomoqt server; gives its port."""
    async with server(certificate, origin.handlers) as port:
        yield port


@asynccontextmanager
async def through_our_relay(origin, certificate):
    """An aiomoqt client announces the publication to our relay; gives the relay's port."""
    async with (
        relay_of(certificate) as relay,
        client(relay.address.port, certificate, origin.handlers) as session,
    ):
        await session.publish_namespace(origin.namespace, wait_response=True)
        yield relay.address.port


ROUTES = pytest.mark.parametrize("route", [directly, through_our_relay])


@asynccontextmanager
async def consumer_at(port, prompt, certificate):
    async with connect(url(port), client_config(certificate)) as connection:
        yield Consumer(connection, scope_key=prompt.scope_key, descriptor=prompt.descriptor)


async def discovered(consumer, origin, prompt):
    """Find the publication by the prompt alone."""
    (candidate,) = await consumer.discover(prompt.tokens)
    assert candidate.name == origin.name
    assert candidate.blocks == BLOCKS
    return candidate


async def take(retrieval, prompt, blocks=BLOCKS):
    """Iterate a retrieval; return the layers in order, all compared with what was computed."""
    layers = []
    async for layer in retrieval:
        assert prompt.is_equal(layer, blocks)
        layers.append(layer.layer_index)
    return layers


def assert_whole(verdict, *, layers=LAYERS, blocks=BLOCKS):
    assert verdict.complete
    assert verdict.error is None
    assert verdict.verified == 2 * layers * blocks
    assert not verdict.rejected
    assert verdict.duplicate == 0


@ROUTES
async def test_join_in_mid_production_is_exactly_once(route, prompt, certificate):
    origin = Origin(prompt)
    await origin.publish_manifest()
    await origin.publish_layers(range(HALF))
    async with (
        asyncio.timeout(PATIENCE),
        route(origin, certificate) as port,
        consumer_at(port, prompt, certificate) as consumer,
    ):
        candidate = await discovered(consumer, origin, prompt)

        async with consumer.retrieve(candidate, timeout=PATIENCE) as retrieval:
            layers = aiter(retrieval)
            first = await anext(layers)
            # The consumer has joined: what follows is live.
            await origin.publish_layers(range(HALF, LAYERS))
            await origin.end()
            rest = await take(layers, prompt)

    assert prompt.is_equal(first)
    assert [first.layer_index, *rest] == [*range(LAYERS)]
    assert_whole(retrieval.verdict)
    assert retrieval.verdict.excess == 0
    assert sorted(origin.subscribed) == sorted([MANIFEST, K.format(), V.format()])


@ROUTES
async def test_subscription_from_the_start_needs_no_fill(route, prompt, certificate):
    origin = Origin(prompt)
    await origin.publish_manifest()
    async with (
        asyncio.timeout(PATIENCE),
        route(origin, certificate) as port,
        consumer_at(port, prompt, certificate) as consumer,
    ):
        candidate = await discovered(consumer, origin, prompt)

        async with consumer.retrieve(candidate, timeout=PATIENCE) as retrieval:
            await origin.publish_layers(range(LAYERS))
            await origin.end()
            layers = await take(retrieval, prompt)

    assert layers == [*range(LAYERS)]
    assert_whole(retrieval.verdict)


@ROUTES
async def test_large_objects_arrive_whole(route, large_prompt, certificate):
    origin = Origin(large_prompt)
    await origin.publish_manifest()
    await origin.publish_layers(range(1))
    async with (
        asyncio.timeout(PATIENCE),
        route(origin, certificate) as port,
        consumer_at(port, large_prompt, certificate) as consumer,
    ):
        candidate = await discovered(consumer, origin, large_prompt)

        async with consumer.retrieve(candidate, timeout=PATIENCE) as retrieval:
            layers = aiter(retrieval)
            first = await anext(layers)
            await origin.publish_layers(range(1, LAYERS))
            await origin.end()
            rest = await take(layers, large_prompt)

    assert large_prompt.is_equal(first)
    assert [first.layer_index, *rest] == [*range(LAYERS)]
    assert_whole(retrieval.verdict)


@ROUTES
async def test_completed_publication_is_fetched(route, prompt, certificate):
    origin = Origin(prompt)
    await origin.publish_manifest()
    await origin.publish_layers(range(LAYERS))
    await origin.end()
    async with (
        asyncio.timeout(PATIENCE),
        route(origin, certificate) as port,
        consumer_at(port, prompt, certificate) as consumer,
    ):
        candidate = await discovered(consumer, origin, prompt)

        async with consumer.retrieve(
            candidate, layers=range(1, HALF + 1), blocks=BLOCKS - 2, timeout=PATIENCE
        ) as retrieval:
            layers = await take(retrieval, prompt, BLOCKS - 2)

    assert layers == [*range(1, HALF + 1)]
    assert_whole(retrieval.verdict, layers=HALF, blocks=BLOCKS - 2)
    assert {K.format(), V.format()} <= set(origin.fetched)
    assert K.format() not in origin.subscribed


async def test_relay_serves_the_publication_after_aiomoqt_has_gone(prompt, certificate):
    origin = Origin(prompt)
    await origin.publish_manifest()
    await origin.publish_layers(range(HALF))
    async with asyncio.timeout(PATIENCE), relay_of(certificate) as relay:
        port = relay.address.port
        async with client(port, certificate, origin.handlers) as session:
            await session.publish_namespace(origin.namespace, wait_response=True)
            async with consumer_at(port, prompt, certificate) as consumer:
                candidate = await discovered(consumer, origin, prompt)
                async with consumer.retrieve(candidate, timeout=PATIENCE) as retrieval:
                    await origin.publish_layers(range(HALF, LAYERS))
                    await origin.end()
                    await take(retrieval, prompt)
        assert_whole(retrieval.verdict)

        async with consumer_at(port, prompt, certificate) as consumer:
            candidate = await discovered(consumer, origin, prompt)
            async with consumer.retrieve(candidate, timeout=PATIENCE) as retrieval:
                layers = await take(retrieval, prompt)

    assert layers == [*range(LAYERS)]
    assert_whole(retrieval.verdict)
