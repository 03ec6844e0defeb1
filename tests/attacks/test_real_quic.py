"""Strangers at a real port: garbage in packets, in streams, and sessions that break off."""

import asyncio
import random
import socket

import pytest
from tests.attacks.garbage import speak_garbage
from tests.attacks.liar import DESCRIPTOR, LAYERS, SCOPE_KEY, TOKENS, is_genuine, tensor

from kvcs.client import Consumer, Publisher
from kvcs.endpoint.certificate import create_dev_certificate
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.kv import Component
from kvcs.moqt.codepoints import ALPN
from kvcs.relay import Relay, RelayConfig, allow_all
from kvcs.transport.interface import ClientTls, TransportConfig
from kvcs.transport.picoquic import PicoquicFactory

QUICK = TransportConfig(idle_timeout=2, connect_timeout=3, close_timeout=1)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return create_dev_certificate(tmp_path_factory.mktemp("certificate"))


async def intrude(address, tls, seed):
    """Connect, say something that is no MOQT, and leave in one of many ways."""
    chance = random.Random(seed)
    transport = await PicoquicFactory().connect(
        address.host, address.port, alpn=ALPN, tls=tls, config=QUICK
    )
    transport.set_listener(lambda _: None, lambda: None)
    await speak_garbage(transport, chance, most=12)
    transport.close(chance.choice([0, 0, 3, 2**30]), "")
    await transport.wait_closed()


def throw_packets(address, seed):
    """Send UDP packets that are no QUIC, or the beginning of it."""
    chance = random.Random(seed)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as thrower:
        for _ in range(200):
            head = chance.choice([b"", b"\xc0\x00\x00\x00\x01", b"\x40", b"\xc0\xfa\xce\xb0\x0c"])
            packet = head + chance.randbytes(chance.randrange(1, 1300))
            thrower.sendto(packet, (address.host, address.port))


async def exchange(relay, config):
    """Publish everything and take it, and return the verdict."""
    url = f"moqt://{relay.address}/"
    async with connect(url, config) as one, connect(url, config) as other:
        publisher = Publisher(one, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
        async with publisher.publication(TOKENS) as publication:
            segment = await publication.add_segment()
            for layer_index in range(LAYERS):
                k, v = (tensor(part, layer_index) for part in (Component.K, Component.V))
                await segment.publish_layer(layer_index, k, v)
            await publication.complete()
            consumer = Consumer(other, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
            candidate = consumer.candidate(publication.name, TOKENS)
            async with consumer.retrieve(candidate, timeout=20) as retrieval:
                async for layer in retrieval:
                    assert is_genuine(layer)
            return retrieval.verdict


@pytest.mark.parametrize("seed", range(2))
async def test_strangers_disturb_nobody(certificate, seed):
    tls = ClientTls(ca_file=str(certificate.ca_file))
    config = RelayConfig(tls=certificate.tls, port=0, authorize=allow_all, transport=QUICK)
    async with Relay(config) as relay:
        throw_packets(relay.address, seed)
        intruders = asyncio.gather(
            *(intrude(relay.address, tls, seed * 100 + number) for number in range(12))
        )
        verdict = await exchange(relay, ConnectConfig(tls=tls, transport=QUICK))
        await intruders
        async with asyncio.timeout(10):
            await asyncio.gather(*(c.wait_closed() for c in relay._server.connections))
        sessions = relay.statistics().sessions

    assert verdict.complete
    assert sessions == 0
