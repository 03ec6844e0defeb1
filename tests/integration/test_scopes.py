"""A relay that decides by ("kvcs-1", Scope ID): two scopes on one relay, over real QUIC."""

import asyncio
from contextlib import asynccontextmanager
from functools import partial

import pytest
from tests.integration.model import BLOCK_TOKENS, small_model

from kvcs.client import Consumer, Publisher
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.errors import RequestErrorCode, RequestRejected
from kvcs.kv import KVSP_PROVISIONAL, MANIFEST, Component, Layout, ScopeKey
from kvcs.moqt import LocationFilter, Parameters, Token
from kvcs.names import TrackNamespace
from kvcs.relay import Relay, RelayConfig
from kvcs.transport.interface import ClientTls, TransportConfig

PATIENCE = 20
LAYERS, BLOCKS = 3, 2
DESCRIPTOR = small_model(LAYERS, kv_heads=2, head_dim=32)
TOKENS = list(range(BLOCK_TOKENS * BLOCKS + 1))
KEYS = {name: ScopeKey(bytes([number]) * 32) for number, name in enumerate(("ours", "theirs"))}
SCOPES = {name: KVSP_PROVISIONAL.scope_id(key) for name, key in KEYS.items()}
QUICK = TransportConfig(idle_timeout=2, connect_timeout=5)
WHOLE = Parameters(location_filter=LocationFilter.absolute_start_group_end(0, 0, LAYERS - 1))


def by_scope(access):
    """A token is the name of its scope; it opens what is below (kvcs-1, Scope ID), nothing else."""
    opened = {SCOPES.get(token.value.decode()) for token in access.tokens}
    fields = access.namespace.fields
    if len(fields) >= 2 and fields[0] == b"kvcs-1" and fields[1] in opened:
        return None
    return RequestErrorCode.UNAUTHORIZED


@pytest.fixture
def open_relay(certificate):
    config = RelayConfig(tls=certificate.tls, port=0, authorize=by_scope, transport=QUICK)

    @asynccontextmanager
    async def make():
        async with asyncio.timeout(PATIENCE), Relay(config) as relay:

            def member(scope):
                tls = ClientTls(ca_file=str(certificate.ca_file))
                tokens = (Token(value=scope.encode()),)
                options = ConnectConfig(tls=tls, transport=QUICK, tokens=tokens)
                return connect(f"moqt://{relay.address}/", options)

            yield relay, member

    return make


def tensor(component, layer_index):
    return bytes([component, layer_index]) * (
        Layout(DESCRIPTOR).data_bytes(component, layer_index) * BLOCKS // 2
    )


@asynccontextmanager
async def published(connection, scope):
    """A complete publication of a scope."""
    publisher = Publisher(connection, scope_key=KEYS[scope], descriptor=DESCRIPTOR)
    async with publisher.publication(TOKENS) as publication:
        segment = await publication.add_segment()
        for layer_index in range(LAYERS):
            k, v = (tensor(component, layer_index) for component in (Component.K, Component.V))
            await segment.publish_layer(layer_index, k, v)
        await publication.complete()
        yield publication


async def take(connection, scope):
    consumer = Consumer(connection, scope_key=KEYS[scope], descriptor=DESCRIPTOR)
    (candidate,) = await consumer.discover(TOKENS)
    async with consumer.retrieve(candidate, timeout=PATIENCE) as retrieval:
        assert [layer.layer_index async for layer in retrieval] == [*range(LAYERS)]
    return retrieval.verdict


async def refusals(connection, name):
    """Ask for everything that could be asked of a publication; return the codes of the answers."""
    namespace, track = name.namespace(), name.track(MANIFEST)
    prefixes = [TrackNamespace(namespace.fields[:length]) for length in range(6)]
    requests = [
        partial(connection.publish_namespace, namespace),
        partial(connection.publish, track),
        partial(connection.subscribe, track),
        partial(connection.fetch, track, WHOLE),
        partial(connection.track_status, track),
        *(partial(connection.subscribe_namespace, prefix) for prefix in prefixes),
        *(partial(connection.subscribe_tracks, prefix) for prefix in prefixes),
    ]
    codes = []
    for request in requests:
        with pytest.raises(RequestRejected) as refusal:
            await connection.answer(request())
        codes.append(refusal.value.code)
    return codes


async def test_member_of_one_scope_gets_nothing_of_another_and_all_of_its_own(open_relay):
    async with open_relay() as (_, member):
        async with member("ours") as source, published(source, "ours") as publication:
            name = publication.name
            async with member("ours") as consumer, member("theirs") as stranger:
                verdict = await take(consumer, "ours")
                present = await refusals(stranger, name)
        async with member("ours") as consumer, member("theirs") as stranger:
            kept = await take(consumer, "ours")
            absent = await refusals(stranger, name)

    assert verdict.complete
    assert kept.complete
    # The same whether the publisher is there or only the cache: nothing can be told apart.
    assert set(present) == set(absent) == {RequestErrorCode.UNAUTHORIZED}
    assert len(present) == len(absent) == 17


async def test_two_scopes_use_one_relay_side_by_side(open_relay):
    async with (
        open_relay() as (relay, member),
        member("ours") as one,
        member("theirs") as other,
        published(one, "ours"),
        published(other, "theirs"),
        member("ours") as ours,
        member("theirs") as theirs,
    ):
        verdicts = [await take(ours, "ours"), await take(theirs, "theirs")]
        consumer = Consumer(theirs, scope_key=KEYS["ours"], descriptor=DESCRIPTOR)
        with pytest.raises(RequestRejected, match="UNAUTHORIZED"):
            await consumer.discover(TOKENS)

    assert all(verdict.complete for verdict in verdicts)
    assert relay.statistics().requests_refused["UNAUTHORIZED"] > 0
