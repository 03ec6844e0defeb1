"""Publisher, relay and consumers over real QUIC on loopback."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from tests.integration.model import BLOCK_TOKENS, small_model

from kvcs.client import Consumer, Publisher
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.errors import RequestErrorCode, RequestRejected
from kvcs.kv import Component, Layout, ScopeKey
from kvcs.relay import AccessAction, Relay, RelayConfig, allow_all
from kvcs.transport.interface import ClientTls, TransportConfig

LAYERS = 4
BLOCKS = 3
SCOPE_KEY = ScopeKey(bytes(range(32)))
DESCRIPTOR = small_model(LAYERS)
TOKENS = list(range(BLOCK_TOKENS * BLOCKS + 1))
PATIENCE = 20
# Slower than a consumer needs to subscribe, so that one joins in the middle.
PACE = 0.2
QUICK = TransportConfig(idle_timeout=2, connect_timeout=2)


def tensor(component, layer_index):
    size = Layout(DESCRIPTOR).data_bytes(component, layer_index)
    return b"".join(bytes([component, layer_index, block]) * (size // 3 + 1) for block in range(3))[
        : size * BLOCKS
    ]


@pytest.fixture
def open_relay(certificate):
    @asynccontextmanager
    async def make(port=0, authorize=allow_all):
        config = RelayConfig(tls=certificate.tls, port=port, authorize=authorize, transport=QUICK)
        async with Relay(config) as relay:
            yield relay

    return make


@pytest.fixture
def open_connection(certificate):
    def make(relay):
        config = ConnectConfig(tls=ClientTls(ca_file=str(certificate.ca_file)), transport=QUICK)
        return connect(f"moqt://{relay.address}/", config)

    return make


@asynccontextmanager
async def publication(connection):
    publisher = Publisher(connection, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
    async with publisher.publication(TOKENS) as it:
        yield it


async def publish(segment, layers=range(LAYERS)):
    for layer_index in layers:
        k, v = (tensor(component, layer_index) for component in (Component.K, Component.V))
        await segment.publish_layer(layer_index, k, v)
        await asyncio.sleep(PACE)


async def take(connection, **options):
    consumer = Consumer(connection, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
    (candidate, *_) = await consumer.discover(TOKENS)
    async with consumer.retrieve(candidate, timeout=PATIENCE, **options) as retrieval:
        async for layer in retrieval:
            assert bytes(layer.k) == tensor(Component.K, layer.layer_index)
            assert bytes(layer.v) == tensor(Component.V, layer.layer_index)
    return retrieval.verdict


async def test_live_publication_reaches_two_consumers_and_outlives_its_publisher(
    open_relay, open_connection
):
    async with asyncio.timeout(PATIENCE), open_relay() as relay:
        async with open_connection(relay) as source, publication(source) as it:
            segment = await it.add_segment()
            async with (
                asyncio.TaskGroup() as group,
                open_connection(relay) as one,
                open_connection(relay) as other,
            ):
                live = group.create_task(take(one))
                await publish(segment, range(2))
                joined = group.create_task(take(other))
                await publish(segment, range(2, LAYERS))
                await it.complete()
                assert (await live).complete
                assert (await joined).complete
            subscriptions = relay.statistics().upstream_subscriptions
        async with open_connection(relay) as late:
            verdict = await take(late, layers=range(2))

    statistics = relay.statistics()
    assert verdict.complete
    assert verdict.verified == 2 * 2 * BLOCKS
    assert subscriptions == 3
    assert statistics.objects_rejected == {}
    assert statistics.bytes_out > 2 * statistics.bytes_in


async def test_restarted_relay_knows_nothing_and_says_so(open_relay, open_connection):
    async with asyncio.timeout(PATIENCE):
        async with open_relay() as relay:
            port = relay.address.port
            async with open_connection(relay) as source, publication(source) as it:
                await publish(await it.add_segment())
                await it.complete()
                async with open_connection(relay) as one:
                    assert (await take(one)).complete
        async with open_relay(port) as relay, open_connection(relay) as late:
            consumer = Consumer(late, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
            assert await consumer.discover(TOKENS) == []


async def test_stranger_to_a_scope_can_neither_publish_nor_discover(
    open_relay, open_connection, caplog
):
    def nothing_of_kvcs(access):
        forbidden = access.namespace.fields[:1] == (b"kvcs-1",)
        assert access.action in AccessAction
        return RequestErrorCode.UNAUTHORIZED if forbidden else None

    async with asyncio.timeout(PATIENCE), open_relay(authorize=nothing_of_kvcs) as relay:
        async with open_connection(relay) as source, publication(source) as it:
            with pytest.raises(RequestRejected, match="UNAUTHORIZED"):
                await it.add_segment()
        assert "announced" not in caplog.text  # it was never, and the error has said so
        async with open_connection(relay) as stranger:
            consumer = Consumer(stranger, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
            with pytest.raises(RequestRejected, match="UNAUTHORIZED"):
                await consumer.discover(TOKENS)

    assert relay.statistics().requests_refused["UNAUTHORIZED"] >= 2
