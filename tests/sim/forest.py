"""Relays in a tree on the network in memory, and what is needed around them."""

import asyncio
import random
from contextlib import asynccontextmanager

from kvcs.client import Consumer, Publisher, PublisherConfig
from kvcs.endpoint.connect import connect
from kvcs.kv import Component, ScopeKey
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.relay import Relay, RelayConfig, RelayLimits, allow_all
from kvcs.transport.interface import ServerTls, TransportConfig

SCOPE_KEY = ScopeKey(bytes(range(32)))
LAYERS = 6
A, B, C = 4433, 4434, 4435
LINK = TransportConfig(idle_timeout=3.0, connect_timeout=1.0)


def url(port):
    return f"moqt://localhost:{port}/"


@asynccontextmanager
async def relay(network, port, *parents, limits=None, seed=0, **settings):
    config = RelayConfig(
        tls=ServerTls(certificate_file="", private_key_file=""),
        port=port,
        limits=limits or RelayLimits(),
        upstream=tuple(url(parent) for parent in parents),
        **{"transport": LINK, "authorize": allow_all, **settings},
    )
    async with Relay(config, transport=network, rng=random.Random(1000 * seed + port)) as it:
        yield it


async def settled(*relays):
    """Wait until relays with parents have one."""
    for _ in range(600):
        if all(it.parent is not None for it in relays):
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.2)
    assert all(it.parent is not None for it in relays)


@asynccontextmanager
async def publisher(world, port, **options):
    async with connect(url(port), transport=world.network) as connection:
        yield Publisher(
            connection,
            scope_key=SCOPE_KEY,
            descriptor=world.descriptor,
            config=PublisherConfig(**options),
        )


@asynccontextmanager
async def consumer(world, port, config=None):
    async with connect(url(port), transport=world.network) as connection:
        yield Consumer(connection, scope_key=SCOPE_KEY, descriptor=world.descriptor, config=config)


async def produce(world, publication, segment=None, *, pace=0.1, layers=LAYERS):
    segment = segment or await publication.add_segment()
    for layer_index in range(layers):
        await asyncio.sleep(pace)
        await world.publish_layer(segment, layer_index)
    if layers == LAYERS:
        await publication.complete()
    return segment


async def consume(world, port, *, delay=0.0, name=None, config=None, **options):
    """Find a publication, or take a named one, after `delay`; return the verdict."""
    await asyncio.sleep(delay)
    async with consumer(world, port, config) as it:
        if name is None:
            (candidate, *_) = await it.discover(world.tokens)
        else:
            candidate = it.candidate(name, world.tokens)
        async with it.retrieve(candidate, **{"timeout": 60, **options}) as retrieval:
            async for layer in retrieval:
                assert world.is_equal(layer, options.get("blocks"))
            return retrieval.verdict


def held(relay, name):
    """Every Object of a publication that a relay holds."""
    entries = relay._core.cache._publications[name.namespace()].entries.values()
    return [obj for entry in entries for obj in entry.store.objects()]


def assert_unread(world, objects, key_id):
    """Nothing of what was sealed can be seen in the Objects that a relay holds."""
    tensors = [
        world.tensor(component, layer)[:16]
        for component in (Component.K, Component.V)
        for layer in range(LAYERS)
    ]
    for obj in objects:
        if obj.status is not ObjectStatus.NORMAL:
            assert not obj.properties
            continue
        assert not any(known in obj.payload for known in (b"KVO1", b"compat", *tensors))
        assert dict(obj.properties.immutable_pairs) == {0x78: key_id}


def assert_whole(verdict, *, layers=LAYERS, blocks=5):
    assert verdict.complete
    assert verdict.verified == 2 * layers * blocks
    assert (verdict.rejected, verdict.missing) == ({}, ())
