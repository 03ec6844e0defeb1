import asyncio

import pytest

from kvcs.errors import ConnectFailed, DraftRefused, TransportError
from kvcs.testing import LinkProfile, MemoryNetwork, MemoryTransport, run
from kvcs.transport.interface import (
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

ADDRESS = Address("relay.test", 4433)
TLS = ServerTls(certificate_file="unused", private_key_file="unused")
KIB = 1024


class Ear:
    """What one end has heard."""

    def __init__(self, transport, *, on_writable=lambda: None):
        self.events = []
        self.batches = 0
        transport.set_listener(self.receive, on_writable)

    def receive(self, batch):
        self.batches += 1
        self.events += batch

    def of(self, stream_id):
        parts = [e for e in self.events if isinstance(e, StreamData) and e.stream_id == stream_id]
        return b"".join(bytes(e.data) for e in parts)

    @property
    def closed(self):
        return self.events[-1] if self.events and isinstance(self.events[-1], Closed) else None


async def pair(network, config=None, server_config=None) -> tuple[MemoryTransport, MemoryTransport]:
    accepted = []
    await network.listen(
        ADDRESS, accepted.append, alpn="test", tls=TLS, config=server_config or TransportConfig()
    )
    client = await network.connect(
        *ADDRESS, alpn="test", tls=ClientTls(), config=config or TransportConfig()
    )
    return client, accepted[0]


def scenario(function):
    """Run an async test on the virtual clock."""

    def test():
        run(function(), seed=7)

    test.__name__ = function.__name__
    return test


@scenario
async def test_stream_bytes_arrive_in_order_with_fin():
    client, server = await pair(MemoryNetwork(1, LinkProfile(reorder=0.5)))
    ear = Ear(server)
    payload = bytes(range(256)) * 4096

    client.write(2, payload[:100_000])
    client.write(2, payload[100_000:], fin=True)
    await asyncio.sleep(60)

    assert ear.of(2) == payload
    assert [e.fin for e in ear.events] == [False] * (len(ear.events) - 1) + [True]
    assert client.queued_bytes == 0


@scenario
async def test_reordering_link_lets_streams_overtake_each_other():
    client, server = await pair(MemoryNetwork(3, LinkProfile(reorder=0.5)))
    ear = Ear(server)

    for stream_id in range(2, 42, 4):
        client.write(stream_id, b"x", fin=True)
    await asyncio.sleep(2)

    arrived = [e.stream_id for e in ear.events]
    assert sorted(arrived) == list(range(2, 42, 4))
    assert arrived != sorted(arrived)


@scenario
async def test_bandwidth_and_delay_take_their_time():
    client, server = await pair(MemoryNetwork(1, LinkProfile(delay=0.05, bandwidth=1_000_000)))
    arrival = []
    loop = asyncio.get_running_loop()
    start = loop.time()
    server.set_listener(lambda _: arrival.append(loop.time() - start), lambda: None)

    client.write(2, bytes(1_000_000), fin=True)
    await asyncio.sleep(10)

    assert arrival[-1] == pytest.approx(1.05, abs=0.01)


@scenario
async def test_urgent_stream_overtakes_one_that_is_queued():
    client, server = await pair(MemoryNetwork(1, LinkProfile(bandwidth=1_000_000)))
    ear = Ear(server)

    client.set_priority(2, 8)
    client.set_priority(6, 4)
    client.write(2, bytes(1_000_000), fin=True)
    client.write(6, b"urgent", fin=True)
    await asyncio.sleep(10)

    order = [e.stream_id for e in ear.events if e.fin]
    assert order == [6, 2]


@scenario
async def test_answer_on_a_stream_that_nobody_ranked_overtakes_data():
    client, server = await pair(MemoryNetwork(1, LinkProfile(bandwidth=1_000_000)))
    ear = Ear(client)

    server.set_priority(3, 4)
    server.write(3, bytes(1_000_000), fin=True)
    server.write(0, b"answer", fin=True)
    await asyncio.sleep(10)

    assert [e.stream_id for e in ear.events if e.fin] == [0, 3]


@scenario
async def test_queue_beyond_ring_waits_and_reports_room_and_writable():
    config = TransportConfig(
        stream_ring_bytes=256 * KIB, high_water_bytes=1024 * KIB, low_water_bytes=512 * KIB
    )
    client, server = await pair(MemoryNetwork(1, LinkProfile(bandwidth=10_000_000)), config)
    writable = []
    Ear(client, on_writable=lambda: writable.append(client.queued_bytes))
    ear = Ear(server)

    client.write(2, bytes(2048 * KIB), fin=True)
    full = (client.queued_bytes, client.room)
    await asyncio.sleep(5)

    assert full == (2048 * KIB, 0)
    assert len(writable) == 1
    assert writable[0] < 512 * KIB
    assert len(ear.of(2)) == 2048 * KIB
    assert client.room == 1024 * KIB


@scenario
async def test_refusing_ring_loses_nothing():
    client, server = await pair(MemoryNetwork(5, LinkProfile(refusal=0.7)))
    ear = Ear(server)

    for stream_id in (2, 6, 10):
        for _ in range(20):
            client.write(stream_id, bytes([stream_id]) * 1000)
        client.write(stream_id, b"", fin=True)
    await asyncio.sleep(10)

    assert [len(ear.of(s)) for s in (2, 6, 10)] == [20_000] * 3
    assert sum(e.fin for e in ear.events) == 3


@scenario
async def test_stalled_peer_fills_the_window_and_no_more():
    config = TransportConfig(max_stream_data=256 * KIB)
    client, server = await pair(MemoryNetwork(1), server_config=config)
    ear = Ear(server)

    server.stall()
    client.write(2, bytes(1024 * KIB), fin=True)
    await asyncio.sleep(60)
    stalled = (client.bytes_sent, client.queued_bytes, len(ear.events))
    server.resume()
    await asyncio.sleep(1)

    assert stalled == (256 * KIB, 768 * KIB, 0)
    assert len(ear.of(2)) == 1024 * KIB


@scenario
async def test_stream_credit_returns_when_streams_finish():
    config = TransportConfig(max_uni_streams=2)
    client, server = await pair(MemoryNetwork(1), server_config=config)
    ear = Ear(server)

    for stream_id in (2, 6, 10):
        client.write(stream_id, b"head")
    await asyncio.sleep(1)
    before = ear.of(10)
    client.write(2, b"", fin=True)
    await asyncio.sleep(1)

    assert before == b""
    assert ear.of(10) == b"head"


@scenario
async def test_bidirectional_credit_returns_when_both_directions_end():
    config = TransportConfig(max_bidi_streams=1)
    client, server = await pair(MemoryNetwork(1), server_config=config)
    ear = Ear(server)
    assert (client.max_bidi_streams, server.max_bidi_streams) == (1, 128)

    client.write(0, b"first", fin=True)
    client.write(4, b"second", fin=True)
    await asyncio.sleep(1)
    before = ear.of(4)
    server.write(0, b"answer", fin=True)
    await asyncio.sleep(1)

    assert before == b""
    assert ear.of(4) == b"second"


@scenario
async def test_reset_drops_queued_bytes_and_reaches_the_peer():
    client, server = await pair(MemoryNetwork(1, LinkProfile(bandwidth=1000)))
    ear = Ear(server)

    client.write(2, bytes(1_000_000))
    client.reset(2, 5)
    await asyncio.sleep(100)

    assert client.queued_bytes == 0
    assert ear.events[-1] == StreamReset(2, 5)


@scenario
async def test_stop_sending_and_datagrams_reach_the_peer():
    client, server = await pair(MemoryNetwork(1))
    ear = Ear(server)

    client.stop_sending(3, 7)
    client.send_datagram(b"hello")
    client.send_datagram(bytes(2000))
    await asyncio.sleep(1)

    assert ear.events == [StopSending(3, 7), Datagram(b"hello")]


@scenario
async def test_lossy_link_loses_datagrams():
    client, server = await pair(MemoryNetwork(1, LinkProfile(datagram_loss=0.5)))
    ear = Ear(server)

    for _ in range(100):
        client.send_datagram(b"x")
    await asyncio.sleep(1)

    assert 20 < len(ear.events) < 80


@scenario
async def test_clean_close_delivers_what_is_queued_first():
    client, server = await pair(MemoryNetwork(1, LinkProfile(bandwidth=1_000_000, delay=0.1)))
    ears = Ear(client), Ear(server)

    client.write(2, bytes(1_000_000), fin=True)
    client.close(0, "done")
    await client.wait_closed()
    await asyncio.sleep(1)

    assert len(ears[1].of(2)) == 1_000_000
    assert ears[1].closed == Closed(0, "closed by the peer", clean=True)
    assert ears[0].closed == Closed(0, "done", clean=True)


@scenario
async def test_clean_close_gives_up_after_its_timeout():
    client, server = await pair(
        MemoryNetwork(1, LinkProfile(bandwidth=1000)), TransportConfig(close_timeout=2)
    )
    ear = Ear(server)
    start = asyncio.get_running_loop().time()

    client.write(2, bytes(1_000_000), fin=True)
    client.close(0, "done")
    await client.wait_closed()

    assert asyncio.get_running_loop().time() - start == pytest.approx(2)
    assert len(ear.of(2)) < 1_000_000


@scenario
async def test_close_with_an_error_loses_what_is_queued():
    client, server = await pair(MemoryNetwork(1, LinkProfile(bandwidth=1_000_000)))
    ear = Ear(server)

    client.write(2, bytes(1_000_000), fin=True)
    client.close(3, "a rule was broken")
    await asyncio.sleep(5)

    assert ear.of(2) == b""
    assert ear.closed == Closed(3, "closed by the peer")


@scenario
async def test_killed_peer_is_noticed_at_the_idle_timeout_with_code_zero():
    client, server = await pair(MemoryNetwork(1), TransportConfig(idle_timeout=7))
    ears = Ear(client), Ear(server)
    start = asyncio.get_running_loop().time()

    server.kill()
    await client.wait_closed()
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert asyncio.get_running_loop().time() - start == pytest.approx(7)
    assert ears[0].closed == Closed(0, "no packet from the peer for 7 s (idle timeout)")
    assert not ears[0].closed.clean
    assert ears[1].events == []


@scenario
async def test_cut_path_that_heals_loses_nothing():
    client, server = await pair(MemoryNetwork(1, LinkProfile(delay=0.1)))
    ears = Ear(client), Ear(server)

    client.write(2, b"before")
    await asyncio.sleep(0.05)
    client.cut()
    client.write(2, b" and after", fin=True)
    await asyncio.sleep(5)
    during = list(ears[1].events)
    client.heal()
    await asyncio.sleep(60)

    assert during == []
    assert ears[1].of(2) == b"before and after"
    assert ears[0].closed is None


@scenario
async def test_cut_path_that_does_not_heal_is_lost_at_both_ends():
    client, server = await pair(MemoryNetwork(1))
    ears = Ear(client), Ear(server)

    client.cut()
    await asyncio.sleep(11)

    assert all("idle timeout" in ear.closed.reason for ear in ears)


@scenario
async def test_events_before_the_listener_are_kept():
    client, server = await pair(MemoryNetwork(1))

    client.write(0, b"early")
    await asyncio.sleep(1)
    ear = Ear(server)
    await asyncio.sleep(0)

    assert ear.of(0) == b"early"


@scenario
async def test_connect_to_nobody_fails_after_the_connect_timeout():
    network = MemoryNetwork()
    loop = asyncio.get_running_loop()

    with pytest.raises(ConnectFailed, match=r"nowhere:1: no answer within 10 s"):
        await network.connect("nowhere", 1, alpn="t", tls=ClientTls(), config=TransportConfig())

    assert loop.time() >= 10


@scenario
async def test_connect_with_another_alpn_fails():
    network = MemoryNetwork()
    await network.listen(ADDRESS, print, alpn="other", tls=TLS, config=TransportConfig())

    with pytest.raises(DraftRefused, match="does not speak t"):
        await network.connect(*ADDRESS, alpn="t", tls=ClientTls(), config=TransportConfig())


@scenario
async def test_port_is_taken_until_the_listener_closes():
    network = MemoryNetwork()
    options = {"alpn": "t", "tls": TLS, "config": TransportConfig()}
    listener = await network.listen(ADDRESS, print, **options)

    with pytest.raises(TransportError, match="the port is taken"):
        await network.listen(ADDRESS, print, **options)
    listener.close()

    again = await network.listen(ADDRESS, print, **options)
    assert again.address == ADDRESS


def test_same_seed_gives_the_same_run():
    async def once():
        client, server = await pair(MemoryNetwork(11, LinkProfile(reorder=0.2, refusal=0.3)))
        ear = Ear(server)
        for stream_id in range(2, 82, 4):
            client.write(stream_id, bytes(10_000), fin=True)
        await asyncio.sleep(5)
        return ear.events, ear.batches

    assert run(once()) == run(once())
