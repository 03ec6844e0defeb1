"""Readers that take nothing: what they cost is bounded, and nobody else waits for them.

Each attacker subscribes and fetches everything, and then stops reading, grants no streams, or
grants no data. A relay, and a publisher without a relay, queue no more for it than their high-water
mark and one Object; an honest consumer beside it gets the whole prefix.
"""

import asyncio
from contextlib import AsyncExitStack

import pytest
from tests.attacks.liar import SCOPE_KEY, TLS, URL

from kvcs.client import Consumer, Publisher, PublisherConfig
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.endpoint.serve import ServeConfig, serve
from kvcs.kv import Component, Descriptor, Dtype, Layout
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import FillParameters, Parameters
from kvcs.relay import Relay, RelayConfig, allow_all
from kvcs.testing import LinkProfile, MemoryNetwork, run
from kvcs.transport.interface import TransportConfig

LAYERS, BLOCKS, BLOCK_TOKENS = 6, 4, 16
HIGH_WATER = 256 * 1024
TOKENS = list(range(BLOCKS * BLOCK_TOKENS))
DESCRIPTOR = Descriptor(
    layers=LAYERS,
    block_tokens=BLOCK_TOKENS,
    dtype=Dtype.FLOAT32,
    position="rope-applied",
    weights_sha256="11" * 32,
    tokenizer_sha256="22" * 32,
    kv_heads=8,
    head_dim=128,
)
OBJECT_BYTES = 68 + Layout(DESCRIPTOR).data_bytes(Component.K, 0)
SERVER = TransportConfig(high_water_bytes=HIGH_WATER, low_water_bytes=HIGH_WATER // 2)
EVERYTHING = Parameters(
    location_filter=LocationFilter.next_object(),
    fill=FillParameters(location_filter=LocationFilter.absolute_start(0, 0)),
)
READERS = {
    "stalls": TransportConfig(),
    "no streams": TransportConfig(max_uni_streams=1),
    "no data": TransportConfig(max_data=2048),
    "no stream data": TransportConfig(max_stream_data=128),
}


async def attack(network, name, track_names):
    """Ask for everything, several times over, and take nothing."""
    async with connect(
        URL, ConnectConfig(transport=READERS[name]), transport=network
    ) as connection:
        for track in track_names:
            for _ in range(4):
                connection.subscribe(track, EVERYTHING, lambda _: None)
                connection.fetch(track, Parameters(), lambda _: None)
        await asyncio.sleep(0.05)
        if name == "stalls":
            connection._transport.stall()
        try:
            await asyncio.sleep(1000)
        finally:
            connection._transport.kill()


async def watch(network, peaks):
    """Note the most that any end of a connection has queued."""
    while True:
        peaks.append(max((t.queued_bytes for t in network.transports), default=0))
        await asyncio.sleep(0.005)


async def produce(publication, begun):
    layout = Layout(DESCRIPTOR)
    segment = await publication.add_segment(BLOCKS)
    begun.set()
    for layer_index in range(LAYERS):
        await asyncio.sleep(0.1)
        k, v = (
            bytes([part, layer_index]) * (BLOCKS * layout.data_bytes(part, layer_index) // 2)
            for part in (Component.K, Component.V)
        )
        await segment.publish_layer(layer_index, k, v)
    await publication.complete()


async def consume(network, name):
    async with connect(URL, transport=network) as connection:
        consumer = Consumer(connection, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
        async with consumer.retrieve(consumer.candidate(name, TOKENS), timeout=60) as retrieval:
            layers = [layer.layer_index async for layer in retrieval]
        return layers, retrieval.verdict.complete


async def scenario(names, *, through_relay):
    network = MemoryNetwork(profile=LinkProfile(bandwidth=50_000_000))
    config = PublisherConfig(send_timeout=0.2, drain_timeout=1.0)
    peaks = []
    async with AsyncExitStack() as stack:
        if through_relay:
            relay_config = RelayConfig(tls=TLS, authorize=allow_all, transport=SERVER)
            await stack.enter_async_context(Relay(relay_config, transport=network))
            to_relay = ConnectConfig(transport=SERVER)
            connection = await stack.enter_async_context(connect(URL, to_relay, transport=network))
            publisher = Publisher(
                connection, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR, config=config
            )
        else:
            publisher = Publisher(scope_key=SCOPE_KEY, descriptor=DESCRIPTOR, config=config)
            server = ServeConfig(tls=TLS, transport=SERVER)
            attach = lambda connection: publisher.attach(connection, announces=False)  # noqa: E731
            await stack.enter_async_context(
                serve("localhost", 4433, attach, config=server, transport=network)
            )
        publication = await stack.enter_async_context(publisher.publication(TOKENS))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        begun = asyncio.Event()
        producing = group.create_task(produce(publication, begun))
        await begun.wait()
        tracks = [publication.name.track(name) for name in publication.tracks.tracks]
        lasting = [group.create_task(attack(network, name, tracks)) for name in names]
        lasting.append(group.create_task(watch(network, peaks)))
        await asyncio.sleep(0.15)
        outcome = await consume(network, publication.name)
        await producing
        for task in lasting:
            task.cancel()
        await asyncio.wait(lasting)
    return outcome, max(peaks)


@pytest.mark.parametrize("through_relay", [True, False], ids=["relay", "publisher"])
@pytest.mark.parametrize("names", [[name] for name in READERS] + [list(READERS)], ids=", ".join)
def test_reader_that_takes_nothing_costs_its_bound(names, through_relay):
    (layers, complete), peak = run(scenario(names, through_relay=through_relay))

    assert layers == list(range(LAYERS))
    assert complete
    assert peak <= HIGH_WATER + 2 * OBJECT_BYTES
