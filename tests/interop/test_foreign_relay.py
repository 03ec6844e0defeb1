"""Our publisher and our consumers meet at a relay that is not ours, aiomoqt's test relay.

It knows nothing of KVCS, keeps a few Groups of each track, and forwards what it gets.
"""

import asyncio
from contextlib import AsyncExitStack

from tests.interop.sites import (
    BLOCKS,
    LAYERS,
    PATIENCE,
    client_config,
    foreign_relay,
    url,
)

from kvcs.client import Consumer, Publisher
from kvcs.endpoint.connect import connect

HALF = LAYERS // 2


class Follower:
    """A consumer that retrieves in the background."""

    def __init__(self, connection, prompt):
        self.layers = []
        self.joined = asyncio.Event()
        self.verdict = None
        self._prompt = prompt
        self._consumer = Consumer(
            connection, scope_key=prompt.scope_key, descriptor=prompt.descriptor
        )

    async def follow(self, blocks=BLOCKS, **options):
        (candidate,) = await self._consumer.discover(self._prompt.tokens)
        async with self._consumer.retrieve(
            candidate, blocks=blocks, timeout=PATIENCE, **options
        ) as retrieval:
            # The manifest has been read.
            self.joined.set()
            async for layer in retrieval:
                assert self._prompt.is_equal(layer, blocks)
                self.layers.append(layer.layer_index)
                self.joined.set()
        self.verdict = retrieval.verdict


async def test_consumers_join_from_the_start_in_the_middle_and_late(prompt, certificate):
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(PATIENCE))
        port = await stack.enter_async_context(foreign_relay(certificate))
        # The first connection waits until the relay has started.
        connections = [
            await stack.enter_async_context(connect(url(port), client_config(certificate)))
            for _ in range(4)
        ]
        publisher = Publisher(
            connections[0], scope_key=prompt.scope_key, descriptor=prompt.descriptor
        )
        early, middle, late = (Follower(connection, prompt) for connection in connections[1:])
        async with publisher.publication(prompt.tokens) as publication:
            segment = await publication.add_segment()
            async with asyncio.TaskGroup() as group:
                group.create_task(early.follow())
                await early.joined.wait()
                await prompt.publish(segment, range(HALF))
                group.create_task(middle.follow())
                await middle.joined.wait()
                await prompt.publish(segment, range(HALF, LAYERS))
                await publication.complete()
            await late.follow(layers=range(1, HALF + 1), blocks=BLOCKS - 2)

    assert early.layers == middle.layers == [*range(LAYERS)]
    assert late.layers == [*range(1, HALF + 1)]
    for follower, objects in (
        (early, 2 * LAYERS * BLOCKS),
        (middle, 2 * LAYERS * BLOCKS),
        (late, 2 * HALF * (BLOCKS - 2)),
    ):
        assert follower.verdict.complete
        assert follower.verdict.verified == objects
        # The relay may send Objects up to the Largest Object that it told on the subscription
        # too, which a Next Object filter excludes (Section 3.3.1); a copy does no harm.
        assert not follower.verdict.rejected


async def published(stack, port, prompt, certificate):
    """Our publisher and one consumer's connection at the foreign relay."""
    connections = [
        await stack.enter_async_context(connect(url(port), client_config(certificate)))
        for _ in range(2)
    ]
    publisher = Publisher(connections[0], scope_key=prompt.scope_key, descriptor=prompt.descriptor)
    return publisher, connections[1]


async def test_objects_that_the_relay_cannot_carry_end_in_a_verdict(huge_prompt, certificate):
    # Objects beyond its send ring: it ends the subscriber's subscription without a word.
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(PATIENCE))
        port = await stack.enter_async_context(foreign_relay(certificate))
        publisher, connection = await published(stack, port, huge_prompt, certificate)
        consumer = Consumer(
            connection, scope_key=huge_prompt.scope_key, descriptor=huge_prompt.descriptor
        )
        async with publisher.publication(huge_prompt.tokens) as publication:
            segment = await publication.add_segment()
            (candidate,) = await consumer.discover(huge_prompt.tokens)
            retrieval = consumer.retrieve(candidate, timeout=4, idle_timeout=0.5)
            async with asyncio.TaskGroup() as group, retrieval:
                group.create_task(huge_prompt.publish(segment, range(LAYERS)))
                taken = [layer async for layer in retrieval]

    assert all(huge_prompt.is_equal(layer) for layer in taken)
    assert not retrieval.verdict.complete
    assert retrieval.verdict.missing
    assert not retrieval.verdict.rejected
    assert retrieval.verdict.elapsed_s < 10


async def test_publisher_that_leaves_half_way_ends_in_a_verdict(prompt, certificate):
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(PATIENCE))
        port = await stack.enter_async_context(foreign_relay(certificate))
        publisher, connection = await published(stack, port, prompt, certificate)
        consumer = Consumer(connection, scope_key=prompt.scope_key, descriptor=prompt.descriptor)
        async with publisher.publication(prompt.tokens) as publication:
            segment = await publication.add_segment()
            await prompt.publish(segment, range(HALF))
            (candidate,) = await consumer.discover(prompt.tokens)
            async with consumer.retrieve(candidate, timeout=5, idle_timeout=0.5) as retrieval:
                layers = aiter(retrieval)
                taken = [await anext(layers) for _ in range(HALF)]
                publication.abort()
                taken += [layer async for layer in layers]

    assert [layer.layer_index for layer in taken] == [*range(HALF)]
    assert all(prompt.is_equal(layer) for layer in taken)
    assert not retrieval.verdict.complete
    assert {missing.layer for missing in retrieval.verdict.missing} == {*range(HALF, LAYERS)}
    assert retrieval.verdict.elapsed_s < 10
