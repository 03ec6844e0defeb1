"""The QUIC adapter over real sockets on loopback."""

import asyncio
import hashlib
import random
import sys

import pytest
from aiopquic.quic.configuration import QuicConfiguration

from kvcs.errors import CertificateRefused, ConfigError, ConnectFailed, DraftRefused, TransportError
from kvcs.transport.interface import (
    CONGESTION_CONTROLS,
    Address,
    ClientTls,
    Closed,
    Datagram,
    ServerTls,
    StopSending,
    StreamData,
    StreamReset,
    TransportConfig,
)
from kvcs.transport.picoquic import PicoquicFactory

MIB = 1 << 20
PATIENCE = 15


class Ear:
    """What one end has heard, and a way to wait for it."""

    def __init__(self, transport):
        self.transport = transport
        self.events = []
        self.writable = asyncio.Event()
        self._news = asyncio.Event()
        transport.set_listener(self._receive, self.writable.set)

    def _receive(self, batch):
        self.events += batch
        self._news.set()

    async def until(self, condition):
        async with asyncio.timeout(PATIENCE):
            while not condition(self):
                self._news.clear()
                await self._news.wait()

    def of(self, stream_id):
        parts = [e for e in self.events if isinstance(e, StreamData) and e.stream_id == stream_id]
        return b"".join(bytes(part.data) for part in parts)

    def finished(self, *stream_ids):
        done = {e.stream_id for e in self.events if isinstance(e, StreamData) and e.fin}
        return done >= set(stream_ids)

    @property
    def closed(self):
        return next((e for e in self.events if isinstance(e, Closed)), None)


class Network:
    """A listener, and connections to it."""

    def __init__(self, certificate):
        self.factory = PicoquicFactory()
        self.certificate = certificate
        self.accepted = asyncio.Queue()
        self.listener = None
        self.clients = []

    async def open(self, **config):
        self.listener = await self.factory.listen(
            Address("127.0.0.1", 0),
            lambda transport: self.accepted.put_nowait(Ear(transport)),
            alpn="test",
            tls=self.certificate.tls,
            config=TransportConfig(**config),
        )

    async def connect(self, host="127.0.0.1", *, alpn="test", tls=None, **config):
        transport = await self.factory.connect(
            host,
            self.listener.address.port,
            alpn=alpn,
            tls=tls or ClientTls(ca_file=str(self.certificate.ca_file)),
            config=TransportConfig(**config),
        )
        self.clients.append(transport)
        return Ear(transport)

    async def pair(self, **config):
        await self.open(**config)
        client = await self.connect(**config)
        async with asyncio.timeout(PATIENCE):
            return client, await self.accepted.get()

    async def close(self):
        for client in self.clients:
            client.close(1, "the test is over")
            async with asyncio.timeout(PATIENCE):
                await client.wait_closed()
        if self.listener is not None:
            self.listener.close()


@pytest.fixture
async def network(certificate):
    network = Network(certificate)
    yield network
    await network.close()


async def test_bytes_go_both_ways_on_streams_numbered_by_the_caller(network):
    client, server = await network.pair()

    client.transport.write(0, b"question", fin=True)
    client.transport.write(2, b"news", fin=True)
    await server.until(lambda ear: ear.finished(0, 2))
    server.transport.write(0, b"answer", fin=True)
    server.transport.write(3, b"more", fin=True)
    await client.until(lambda ear: ear.finished(0, 3))

    assert (server.of(0), server.of(2)) == (b"question", b"news")
    assert (client.of(0), client.of(3)) == (b"answer", b"more")


async def test_writes_far_beyond_ring_and_window_arrive_whole(network):
    client, server = await network.pair(stream_ring_bytes=MIB, max_stream_data=MIB)
    payload = random.Random(1).randbytes(12 * MIB)

    client.transport.write(2, payload, fin=True)
    room = client.transport.room
    await server.until(lambda ear: ear.finished(2))

    assert room == 0
    assert hashlib.sha256(server.of(2)).digest() == hashlib.sha256(payload).digest()


async def test_more_streams_than_credit_arrive_whole(network):
    client, server = await network.pair(max_uni_streams=16)
    ids = range(2, 2 + 4 * 600, 4)

    for stream_id in ids:
        client.transport.set_priority(stream_id, 4)
        client.transport.write(stream_id, b"%d" % stream_id, fin=True)
    await server.until(lambda ear: ear.finished(*ids))

    assert all(server.of(stream_id) == b"%d" % stream_id for stream_id in ids)


async def test_streams_beyond_credit_can_be_given_up(network):
    client, server = await network.pair(max_bidi_streams=8)
    ids = range(0, 4 * 20, 4)

    for stream_id in ids:
        client.transport.write(stream_id, b"%d" % stream_id)
    await server.until(lambda ear: ear.of(ids[7]) == b"28")
    for stream_id in ids:
        client.transport.reset(stream_id, 5)
        client.transport.stop_sending(stream_id, 5)
    for stream_id in ids:
        await server.until(lambda ear, seen=stream_id: StreamReset(seen, 5) in ear.events)
        server.transport.reset(stream_id, 6)

    assert not any(isinstance(event, Closed) for event in (*client.events, *server.events))


async def test_each_end_knows_how_many_streams_the_other_one_allows(network):
    await network.open(max_bidi_streams=5)
    client = await network.connect(max_bidi_streams=9)
    async with asyncio.timeout(PATIENCE):
        server = await network.accepted.get()

    assert (client.transport.max_bidi_streams, server.transport.max_bidi_streams) == (5, 9)


async def test_commands_beyond_the_event_ring_are_not_lost(network):
    client, server = await network.pair(max_uni_streams=4000)
    ids = range(2, 2 + 4 * 3000, 4)

    for stream_id in ids:
        client.transport.write(stream_id, b"head")
    await server.until(lambda ear: len({e.stream_id for e in ear.events}) == len(ids))
    for stream_id in ids:
        client.transport.reset(stream_id, 5)
    await server.until(lambda ear: sum(isinstance(e, StreamReset) for e in ear.events) == len(ids))

    assert {e.code for e in server.events if isinstance(e, StreamReset)} == {5}


async def test_writer_is_called_when_there_is_room_again(network):
    client, server = await network.pair(high_water_bytes=4 * MIB, low_water_bytes=2 * MIB)

    for stream_id in (2, 6, 10, 14):
        client.transport.write(stream_id, bytes(2 * MIB), fin=True)
    full = client.transport.room
    async with asyncio.timeout(PATIENCE):
        await client.writable.wait()

    assert full == 0
    assert client.transport.room > 2 * MIB
    await server.until(lambda ear: ear.finished(2, 6, 10, 14))


async def test_answer_on_a_stream_that_nobody_ranked_overtakes_data(network):
    client, server = await network.pair()

    client.transport.write(0, b"question")
    await server.until(lambda ear: ear.of(0))
    server.transport.set_priority(3, 4)
    server.transport.write(3, bytes(16 * MIB), fin=True)
    server.transport.write(0, b"answer", fin=True)
    await client.until(lambda ear: ear.finished(0, 3))

    assert [e.stream_id for e in client.events if isinstance(e, StreamData) and e.fin] == [0, 3]


async def test_stream_that_has_ended_and_was_not_sent_can_be_reset(network):
    client, server = await network.pair()
    client.transport.write(2, b"first")
    await server.until(lambda ear: ear.of(2) == b"first")

    # It fits the library's ring, which has the end with it.
    client.transport.write(2, bytes(3 * MIB), fin=True)
    await asyncio.sleep(0)
    unsent = client.transport.unsent_bytes(2)
    client.transport.reset(2, 5)

    await server.until(lambda ear: StreamReset(2, 5) in ear.events)
    assert 0 < unsent <= 3 * MIB
    assert client.transport.unsent_bytes(2) == 0


async def test_reset_and_stop_sending_carry_their_codes(network):
    client, server = await network.pair()

    client.transport.write(2, b"head")
    client.transport.write(0, b"question")
    await server.until(lambda ear: ear.of(2) and ear.of(0))
    client.transport.reset(2, 5)
    server.transport.stop_sending(0, 9)
    await server.until(lambda ear: StreamReset(2, 5) in ear.events)
    await client.until(lambda ear: StopSending(0, 9) in ear.events)


async def test_datagram_arrives_and_one_that_is_too_large_is_dropped(network):
    client, server = await network.pair()

    client.transport.send_datagram(bytes(20_000))
    client.transport.send_datagram(b"small")
    await server.until(lambda ear: ear.events)

    assert [bytes(e.data) for e in server.events if isinstance(e, Datagram)] == [b"small"]


async def test_clean_close_delivers_everything_first(network):
    client, server = await network.pair()
    ids = range(2, 2 + 4 * 64, 4)

    for stream_id in ids:
        client.transport.write(stream_id, bytes(256 * 1024), fin=True)
    client.transport.write(0, b"on an open stream")
    client.transport.close(0, "done")
    await client.transport.wait_closed()
    await server.until(lambda ear: ear.closed)

    assert client.closed == Closed(0, "done", clean=True)
    assert server.closed == Closed(0, "closed by the peer", clean=True)
    assert server.finished(*ids)
    assert sum(len(server.of(stream_id)) for stream_id in ids) == 64 * 256 * 1024
    assert server.of(0) == b"on an open stream"


async def test_server_closes_cleanly_too(network):
    client, server = await network.pair()

    server.transport.write(3, bytes(4 * MIB), fin=True)
    server.transport.close(0, "done")
    await client.until(lambda ear: ear.closed)
    async with asyncio.timeout(PATIENCE):
        await server.transport.wait_closed()

    assert len(client.of(3)) == 4 * MIB
    assert client.closed == Closed(0, "closed by the peer", clean=True)


async def test_close_with_an_error_carries_its_code(network):
    client, server = await network.pair()

    client.transport.close(3, "a rule was broken")
    await server.until(lambda ear: ear.closed)

    assert server.closed == Closed(3, "closed by the peer")


async def test_idle_connection_is_kept_alive(network):
    client, server = await network.pair(idle_timeout=0.6)

    await asyncio.sleep(1.5)
    client.transport.write(2, b"still here", fin=True)
    await server.until(lambda ear: ear.finished(2))

    assert client.closed is None


_VICTIM = """
import asyncio, sys
from kvcs.transport.interface import ClientTls, TransportConfig
from kvcs.transport.picoquic import PicoquicFactory

async def main():
    transport = await PicoquicFactory().connect(
        "127.0.0.1", int(sys.argv[1]), alpn="test", tls=ClientTls(verify=False),
        config=TransportConfig(),
    )
    transport.set_listener(lambda _: None, lambda: None)
    transport.write(2, b"alive")
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_killed_peer_is_noticed_with_a_telling_reason(network):
    await network.open(idle_timeout=0.7)
    port = str(network.listener.address.port)

    victim = await asyncio.create_subprocess_exec(sys.executable, "-c", _VICTIM, port)
    try:
        async with asyncio.timeout(PATIENCE):
            server = await network.accepted.get()
        await server.until(lambda ear: ear.of(2))
    finally:
        victim.kill()
        await victim.wait()
    await server.until(lambda ear: ear.closed)

    assert server.closed == Closed(0, "no packet from the peer for 0.7 s (idle timeout)")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
async def test_this_machine_is_reached_by_all_its_names(network, host):
    await network.open()

    client = await network.connect(host)

    assert client.transport.peer_address.port == network.listener.address.port


async def test_two_clients_of_a_server_do_not_disturb_each_other(network):
    first, _ = await network.pair()
    second = await network.connect()
    other = await network.accepted.get()

    first.transport.close(3, "broken")
    second.transport.write(2, b"fine", fin=True)
    await other.until(lambda ear: ear.finished(2))

    assert second.closed is None


async def test_untrusted_certificate_is_refused(network):
    await network.open()

    with pytest.raises(CertificateRefused, match="certificate is not valid under the public"):
        await network.connect(tls=ClientTls())


async def test_certificate_of_another_name_is_refused(network):
    await network.open()
    tls = ClientTls(ca_file=str(network.certificate.ca_file), server_name="other.test")

    with pytest.raises(CertificateRefused, match="certificate is not valid under"):
        await network.connect(tls=tls)


async def test_another_alpn_is_refused(network):
    await network.open()

    with pytest.raises(DraftRefused, match="no common application protocol"):
        await network.connect(alpn="another")


async def test_port_without_a_server_fails_within_the_timeout(network):
    with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:9: no answer on UDP within"):
        await network.factory.connect(
            "127.0.0.1",
            9,
            alpn="test",
            tls=ClientTls(verify=False),
            config=TransportConfig(connect_timeout=0.2),
        )


async def test_unknown_name_is_refused(network):
    with pytest.raises(ConnectFailed, match="the name is not known"):
        await network.factory.connect(
            "name.invalid", 9, alpn="test", tls=ClientTls(), config=TransportConfig()
        )


async def test_ca_file_without_a_certificate_is_refused(network):
    await network.open()

    with pytest.raises(ConfigError, match="ca_file: expected a PEM file with certificates"):
        await network.connect(tls=ClientTls(ca_file=str(network.certificate.private_key_file)))


async def test_certificate_and_key_that_do_not_fit_are_refused(network):
    tls = ServerTls(
        certificate_file=str(network.certificate.ca_file),
        private_key_file=str(network.certificate.private_key_file),
    )

    with pytest.raises(ConfigError, match="tls: expected a PEM certificate and the unenc"):
        await network.factory.listen(
            Address("127.0.0.1", 0), print, alpn="test", tls=tls, config=TransportConfig()
        )


async def test_port_that_is_taken_is_refused(network):
    await network.open()

    with pytest.raises(TransportError, match=r"cannot listen on .*Address already in use"):
        await network.factory.listen(
            network.listener.address,
            print,
            alpn="test",
            tls=network.certificate.tls,
            config=TransportConfig(),
        )


@pytest.mark.parametrize("name", CONGESTION_CONTROLS)
def test_congestion_control_is_one_that_the_library_has(name):
    assert QuicConfiguration(congestion_control_algorithm=name)


def test_congestion_control_that_the_library_lacks_is_refused_there_too():
    with pytest.raises(ValueError, match="fastest"):
        QuicConfiguration(congestion_control_algorithm="fastest")
