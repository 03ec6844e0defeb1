"""aiomoqt's test relay as the parent of our relay: right bytes, or a verdict.

The publisher is at one of the two relays and the consumers at the other.
"""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from tests.interop.origin import Origin
from tests.interop.sites import (
    BLOCKS,
    HOST,
    LAYERS,
    PATIENCE,
    client,
    client_config,
    foreign_relay,
    url,
)

from kvcs.client import Consumer, Publisher
from kvcs.endpoint.connect import connect
from kvcs.relay.auth import allow_all
from kvcs.relay.config import RelayConfig
from kvcs.relay.relay import Relay
from kvcs.transport.interface import ClientTls, TransportConfig

pytestmark = pytest.mark.timeout(90)

HALF = LAYERS // 2


@asynccontextmanager
async def child_of(port, certificate):
    """Our relay below a foreign one."""
    config = RelayConfig(
        tls=certificate.tls,
        host=HOST,
        port=0,
        authorize=allow_all,
        transport=TransportConfig(idle_timeout=15, connect_timeout=15),
        upstream=(url(port),),
        upstream_tls=ClientTls(ca_file=str(certificate.ca_file)),
    )
    async with Relay(config) as relay:
        yield relay


class Pair:
    """A foreign relay and our relay below it."""

    def __init__(self, stack, certificate, parent, child):
        self._stack, self._certificate = stack, certificate
        self.parent, self.child = parent, child

    async def connection(self, port):
        return await self._stack.enter_async_context(
            connect(url(port), client_config(self._certificate))
        )

    async def consumer(self, port, prompt):
        connection = await self.connection(port)
        return Consumer(connection, scope_key=prompt.scope_key, descriptor=prompt.descriptor)

    async def publisher(self, port, prompt):
        connection = await self.connection(port)
        return Publisher(connection, scope_key=prompt.scope_key, descriptor=prompt.descriptor)


@pytest.fixture
async def pair(certificate):
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(PATIENCE))
        parent = await stack.enter_async_context(foreign_relay(certificate))
        # The first connection waits until the relay has started.
        await stack.enter_async_context(connect(url(parent), client_config(certificate)))
        relay = await stack.enter_async_context(child_of(parent, certificate))
        yield Pair(stack, certificate, parent, relay.address.port)


async def found(consumer, prompt):
    """Look until the announcement has come through both relays."""
    while not (candidates := await consumer.discover(prompt.tokens)):  # noqa: ASYNC110 - it comes in its own time
        await asyncio.sleep(0.05)
    return candidates[0]


async def taken(retrieval, prompt, blocks=BLOCKS):
    layers = []
    async for layer in retrieval:
        assert prompt.is_equal(layer, blocks)
        layers.append(layer.layer_index)
    return layers


@pytest.mark.parametrize("below", [True, False], ids=["consumers below", "publisher below"])
async def test_join_in_mid_production_through_both_relays(below, pair, prompt):
    source, target = (pair.parent, pair.child) if below else (pair.child, pair.parent)
    publisher = await pair.publisher(source, prompt)
    consumer = await pair.consumer(target, prompt)
    async with publisher.publication(prompt.tokens) as publication:
        segment = await publication.add_segment()
        await prompt.publish(segment, range(HALF))
        candidate = await found(consumer, prompt)
        async with consumer.retrieve(candidate, timeout=20) as retrieval:
            layers = aiter(retrieval)
            first = await anext(layers)
            await prompt.publish(segment, range(HALF, LAYERS))
            await publication.complete()
            rest = await taken(layers, prompt)
        late = await pair.consumer(target, prompt)
        async with late.retrieve(
            candidate, layers=range(1, HALF + 1), blocks=BLOCKS - 2, timeout=20
        ) as part:
            some = await taken(part, prompt, BLOCKS - 2)

    assert prompt.is_equal(first)
    assert [first.layer_index, *rest] == [*range(LAYERS)]
    assert retrieval.verdict.complete
    assert not retrieval.verdict.rejected
    assert some == [*range(1, HALF + 1)]
    assert part.verdict.complete


async def test_publisher_of_aiomoqt_reaches_consumers_below_our_relay(pair, prompt, certificate):
    origin = Origin(prompt)
    await origin.publish_manifest()
    await origin.publish_layers(range(HALF))
    async with client(pair.parent, certificate, origin.handlers) as session:
        await session.publish_namespace(origin.namespace, wait_response=True)
        consumer = await pair.consumer(pair.child, prompt)
        candidate = await found(consumer, prompt)
        async with consumer.retrieve(candidate, timeout=20) as retrieval:
            layers = aiter(retrieval)
            first = await anext(layers)
            await origin.publish_layers(range(HALF, LAYERS))
            await origin.end()
            rest = await taken(layers, prompt)

    assert [first.layer_index, *rest] == [*range(LAYERS)]
    assert retrieval.verdict.complete
    assert not retrieval.verdict.rejected


async def test_our_relay_keeps_what_the_foreign_parent_forgets(pair, prompt):
    publisher = await pair.publisher(pair.parent, prompt)
    consumer = await pair.consumer(pair.child, prompt)
    async with publisher.publication(prompt.tokens) as publication:
        segment = await publication.add_segment()
        candidate = await found(consumer, prompt)
        async with consumer.retrieve(candidate, timeout=20) as retrieval:
            await prompt.publish(segment, range(LAYERS))
            await publication.complete()
            assert await taken(retrieval, prompt) == [*range(LAYERS)]
    await asyncio.sleep(0.2)

    late = await pair.consumer(pair.child, prompt)
    async with late.retrieve(candidate, timeout=20) as retrieval:
        layers = await taken(retrieval, prompt)

    assert layers == [*range(LAYERS)]
    assert retrieval.verdict.complete


async def test_objects_that_the_parent_cannot_carry_end_in_a_verdict(pair, huge_prompt):
    publisher = await pair.publisher(pair.parent, huge_prompt)
    consumer = await pair.consumer(pair.child, huge_prompt)
    async with publisher.publication(huge_prompt.tokens) as publication:
        segment = await publication.add_segment()
        candidate = await found(consumer, huge_prompt)
        retrieval = consumer.retrieve(candidate, timeout=4, idle_timeout=0.5)
        async with asyncio.TaskGroup() as group, retrieval:
            group.create_task(huge_prompt.publish(segment, range(LAYERS)))
            layers = await taken(retrieval, huge_prompt)

    assert layers == [*range(len(layers))]
    assert retrieval.verdict.complete == (len(layers) == LAYERS)
    assert not retrieval.verdict.rejected
    assert retrieval.verdict.elapsed_s < 10
