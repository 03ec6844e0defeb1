"""A model of 80 layers on two tracks: 160 streams for a segment, with the default settings."""

import asyncio

from tests.integration.model import BLOCK_TOKENS, small_model

from kvcs.client import Consumer, Publisher
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.kv import Component, Layout, ScopeKey
from kvcs.relay import Relay, RelayConfig, allow_all
from kvcs.transport.interface import ClientTls, TransportConfig

LAYERS, BLOCKS = 80, 2
SCOPE_KEY = ScopeKey(bytes(32))
DESCRIPTOR = small_model(LAYERS, kv_heads=2)
TOKENS = list(range(BLOCK_TOKENS * BLOCKS + 1))


def test_default_grant_of_streams_is_enough_for_both_tracks_of_80_layers():
    for transport in (TransportConfig(), RelayConfig.__dataclass_fields__["transport"].default):
        assert transport.max_uni_streams >= 2 * LAYERS


async def test_consumer_gets_160_groups_that_are_published_at_once(certificate):
    config = RelayConfig(tls=certificate.tls, port=0, authorize=allow_all)
    tls = ConnectConfig(tls=ClientTls(ca_file=str(certificate.ca_file)))
    size = Layout(DESCRIPTOR).data_bytes(Component.K, 0) * BLOCKS
    async with asyncio.timeout(50), Relay(config) as relay:
        url = f"moqt://{relay.address}/"
        async with connect(url, tls) as source, connect(url, tls) as target:
            publisher = Publisher(source, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
            consumer = Consumer(target, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
            async with publisher.publication(TOKENS) as publication:
                segment = await publication.add_segment()
                (candidate,) = await consumer.discover(TOKENS)
                async with consumer.retrieve(candidate, timeout=40) as retrieval:
                    for layer_index in range(LAYERS):
                        octets = bytes([layer_index]) * size
                        await segment.publish_layer(layer_index, octets, octets)
                    await publication.complete()
                    layers = [layer.layer_index async for layer in retrieval]

    assert layers == [*range(LAYERS)]
    assert retrieval.verdict.complete
    assert retrieval.verdict.verified == 2 * LAYERS * BLOCKS
    assert not retrieval.verdict.rejected
