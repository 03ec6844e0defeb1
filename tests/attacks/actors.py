"""Honest publishers and consumers, for scenarios in which somebody else is not."""

import asyncio
from contextlib import asynccontextmanager

from tests.attacks.liar import (
    BLOCK_TOKENS,
    DESCRIPTOR,
    LAYERS,
    SCOPE_KEY,
    TLS,
    TOKENS,
    URL,
    is_genuine,
    tensor,
)

from kvcs.client import Consumer, Publisher, PublisherConfig
from kvcs.endpoint.connect import connect
from kvcs.endpoint.serve import ServeConfig, serve
from kvcs.kv import Component


async def publish_all(publisher, pace, tokens=TOKENS, *, linger=0.0):
    """Publish all layers, one every `pace` seconds, and stay for a while."""
    async with publisher.publication(tokens) as publication:
        segment = await publication.add_segment(len(tokens) // BLOCK_TOKENS)
        for layer_index in range(LAYERS):
            await asyncio.sleep(pace)
            k, v = (tensor(part, layer_index) for part in (Component.K, Component.V))
            await segment.publish_layer(layer_index, k, v)
        await publication.complete()
        await asyncio.sleep(linger)


@asynccontextmanager
async def serving(network, pace, *, linger=60.0):
    """Publish to whoever connects, without a relay."""
    publisher = Publisher(scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
    server = serve(
        "localhost",
        4433,
        lambda connection: publisher.attach(connection, announces=False),
        config=ServeConfig(tls=TLS),
        transport=network,
    )
    async with server as it:
        publishing = asyncio.ensure_future(publish_all(publisher, pace, linger=linger))
        yield it
        publishing.cancel()
        await asyncio.wait([publishing])


async def publish(network, pace, *, tokens=TOKENS, name=0, linger=30.0):
    """Publish through a relay."""
    config = PublisherConfig(announce_timeout=5.0, send_timeout=5.0, push=bool(name % 2))
    async with connect(URL, transport=network) as connection:
        publisher = Publisher(
            connection,
            scope_key=SCOPE_KEY,
            descriptor=DESCRIPTOR,
            config=config,
            random_bytes=name.to_bytes,
        )
        await publish_all(publisher, pace, tokens, linger=linger)


async def consume(network, *, after=0.0, config=None):
    """Retrieve the publication; return whether every layer came."""
    await asyncio.sleep(after)
    layers = 0
    async with connect(URL, transport=network) as connection:
        consumer = Consumer(connection, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR, config=config)
        found = await consumer.discover(TOKENS)
        if not found:
            return False
        async with consumer.retrieve(found[0], timeout=20.0) as retrieval:
            async for layer in retrieval:
                assert is_genuine(layer), f"wrong bytes in layer {layer.layer_index}"
                layers += 1
    return layers == LAYERS and retrieval.verdict.complete
