import asyncio

import pytest

from kvcs.testing import run
from kvcs.transport.interface import Address, Closed, StreamData, TransportConfig
from kvcs.transport.quic_transport import QuicTransport

PEER = Address("127.0.0.1", 4433)


class Library:
    """A library whose rings empty, and whose peer answers, when the test says so."""

    def __init__(self):
        self.full = False
        self.calls = []
        self.levels = {}
        self.unacknowledged = set()
        self.in_transit = 0
        self.max_streams = [None, 7]

    def push(self, stream_id, data, *, fin):
        if not self.full:
            self.calls.append(("push", stream_id, bytes(data), fin))
            self.levels[stream_id] = self.levels.get(stream_id, 0) + len(data)
        return not self.full

    def used(self, stream_id):
        return self.levels.get(stream_id, 0)

    def drain(self):
        self.levels.clear()

    def reset(self, stream_id, code):
        return self._command("reset", stream_id, code)

    def stop_sending(self, stream_id, code):
        return self._command("stop_sending", stream_id, code)

    def set_priority(self, stream_id, priority):
        return self._command("set_priority", stream_id, priority)

    def send_datagram(self, data):
        self.calls.append(("datagram", data))

    def close(self, code):
        return self._command("close", code)

    def is_acknowledged(self, stream_id):
        return stream_id not in self.unacknowledged

    def max_bidi_streams(self):
        return self.max_streams.pop(0)

    def bytes_in_transit(self):
        return self.in_transit

    def _command(self, *call):
        if not self.full:
            self.calls.append(call)
        return not self.full


class Bench:
    """A transport above a library, looked at by hand."""

    def __init__(self, **config):
        self.library = Library()
        self.wakes = 0
        self.released = 0
        self.events = []
        self.writable = 0
        self.transport = QuicTransport(
            self.library, PEER, TransportConfig(**config), wake=self._wake, release=self._release
        )
        self.transport.set_listener(self.events.extend, self._note_writable)

    def _wake(self):
        self.wakes += 1

    def _release(self):
        self.released += 1

    def _note_writable(self):
        self.writable += 1

    def look(self, times=1):
        for _ in range(times):
            self.transport.deliver()
            self.transport.move()

    @property
    def closed(self):
        return ("close", 0) in self.library.calls


def scenario(function):
    def test():
        run(function())

    test.__name__ = function.__name__
    return test


@scenario
async def test_commands_refused_by_a_full_ring_are_made_later_and_in_order():
    bench = Bench()
    bench.transport.write(6, b"begun")
    await asyncio.sleep(0)
    bench.library.drain()
    bench.look()
    bench.library.calls.clear()

    bench.library.full = True
    bench.transport.set_priority(2, 4)
    bench.transport.reset(6, 1)
    bench.transport.stop_sending(3, 2)
    waits = bench.transport.waits
    bench.library.full = False
    bench.transport.set_priority(10, 4)
    before = list(bench.library.calls)
    bench.look()

    assert waits
    assert bench.wakes
    assert before == []
    assert bench.library.calls == [
        ("set_priority", 2, 4),
        ("reset", 6, 1),
        ("stop_sending", 3, 2),
        ("set_priority", 10, 4),
    ]


@scenario
async def test_writable_is_told_once_below_the_low_water_mark():
    bench = Bench(high_water_bytes=100, low_water_bytes=50)

    bench.transport.write(2, bytes(120))
    room = bench.transport.room
    bench.library.levels[2] = 60
    bench.look()
    between = bench.writable
    bench.library.levels[2] = 40
    bench.look(3)

    assert (room, between, bench.writable) == (0, 0, 1)
    assert bench.transport.room == 60


@scenario
async def test_writable_is_told_when_the_rings_empty_as_fast_as_they_are_filled():
    bench = Bench(high_water_bytes=100, low_water_bytes=50)

    for _ in range(5):
        bench.transport.write(2, bytes(20))
        await asyncio.sleep(0)
        bench.library.drain()
    before = bench.writable
    bench.look(3)

    assert (before, bench.writable) == (0, 1)


@scenario
async def test_writes_of_one_turn_reach_the_library_together():
    bench = Bench()

    bench.transport.write(2, b"header ")
    bench.transport.write(6, b"other")
    bench.transport.write(2, b"payload", fin=True)
    before = list(bench.library.calls)
    await asyncio.sleep(0)

    assert before == []
    assert bench.library.calls == [
        ("push", 2, b"header payload", True),
        ("push", 6, b"other", False),
    ]
    assert bench.wakes == 1


@scenario
async def test_reset_follows_what_was_written_before_it():
    bench = Bench()

    bench.transport.write(2, b"header")
    bench.transport.reset(2, 5)
    bench.library.drain()
    bench.look()

    assert bench.library.calls == [("push", 2, b"header", False), ("reset", 2, 5)]


@scenario
async def test_stream_that_the_peer_lets_not_begin_is_reset_once_it_has_begun():
    bench = Bench()
    bench.transport.write(0, b"request")
    bench.transport.write(4, b"another")
    bench.transport.reset(4, 5)
    bench.transport.stop_sending(4, 6)
    bench.library.levels[0] = 0
    bench.look()
    before = list(bench.library.calls)

    bench.library.levels[4] = 3
    bench.look()

    assert before == [("push", 0, b"request", False), ("push", 4, b"another", False)]
    assert bench.library.calls[2:] == [("reset", 4, 5), ("stop_sending", 4, 6)]
    assert bench.transport.queued_bytes == 0


@scenario
async def test_stream_that_the_peer_began_is_reset_at_once():
    bench = Bench()
    bench.transport.receive(StreamData(1, b"request", fin=False))

    bench.transport.write(1, b"answer")
    bench.transport.reset(1, 5)

    assert bench.library.calls == [("push", 1, b"answer", False), ("reset", 1, 5)]


@scenario
async def test_clean_close_waits_for_queue_acknowledgements_and_transit():
    bench = Bench()
    bench.library.unacknowledged.add(2)
    bench.library.in_transit = 1200

    bench.transport.write(2, b"payload", fin=True)
    bench.transport.close(0, "done")
    seen = []
    bench.look(5)
    seen.append(bench.closed)
    bench.library.drain()
    bench.look(5)
    seen.append(bench.closed)
    bench.library.unacknowledged.clear()
    bench.look(5)
    seen.append(bench.closed)
    bench.library.in_transit = 0
    bench.look(3)
    seen.append(bench.closed)

    assert seen == [False, False, False, True]


@scenario
async def test_clean_close_is_bounded_when_the_peer_takes_nothing():
    bench = Bench(close_timeout=3)
    loop = asyncio.get_running_loop()

    bench.transport.write(2, b"payload", fin=True)
    bench.transport.close(0, "done")
    await bench.transport.wait_closed()

    assert bench.closed
    assert loop.time() == pytest.approx(5)
    assert bench.events == [Closed(0, "done", clean=True)]
    assert bench.released == 1


@scenario
async def test_close_with_an_error_does_not_wait():
    bench = Bench()

    bench.transport.write(2, b"payload")
    bench.transport.close(3, "broken")
    bench.transport.write(2, b"ignored")
    bench.transport.receive_close(0, "whatever the library says")
    await bench.transport.wait_closed()

    assert bench.library.calls[-1] == ("close", 3)
    assert bench.events == [Closed(3, "broken")]
    assert bench.transport.queued_bytes == 0


@scenario
async def test_close_refused_by_a_full_ring_is_made_later():
    bench = Bench()

    bench.library.full = True
    bench.transport.close(3, "broken")
    bench.library.full = False
    bench.look()

    assert bench.library.calls == [("close", 3)]


@scenario
async def test_end_that_the_peer_causes_comes_last_and_once():
    bench = Bench()

    bench.transport.receive(StreamData(3, b"last words", fin=True))
    bench.transport.receive_close(7, "closed by the peer")
    bench.transport.receive_close(0, "again")
    bench.transport.write(2, b"too late")
    await bench.transport.wait_closed()

    assert bench.events == [
        StreamData(3, b"last words", fin=True),
        Closed(7, "closed by the peer"),
    ]
    assert not bench.transport.waits


@scenario
async def test_peer_that_takes_nothing_is_looked_at_less_often_until_it_does():
    bench = Bench()
    bench.transport.write(2, bytes(1000))
    await asyncio.sleep(0)
    looks = []
    bench.library.used = lambda _: looks.append(1) or 1000

    async def look_for(seconds):
        looks.clear()
        for _ in range(round(seconds * 500)):
            await asyncio.sleep(0.002)
            bench.look()
        return len(looks)

    before, stalled = await look_for(0.9), await look_for(5)
    del bench.library.used
    bench.library.drain()
    await look_for(0.2)

    assert before == 450
    assert stalled < 0.1 * 500 * 5
    assert bench.transport.queued_bytes == 0


def test_peer_that_grants_no_streams_is_reported_once_and_as_that(caplog):
    async def stall():
        bench = Bench()
        for stream_id in (2, 6):
            bench.transport.write(stream_id, bytes(1000), fin=True)
        await asyncio.sleep(0)
        bench.library.drain()
        bench.look()
        for stream_id in (10, 14):
            bench.transport.write(stream_id, bytes(1000))
        for _ in range(20):
            await asyncio.sleep(1)
            bench.look()

    run(stall())

    (message,) = caplog.messages
    assert message.endswith("2 streams wait for its credit; it lets no more streams begin")


def test_stream_that_has_begun_waits_for_credit_of_its_own(caplog):
    async def stall():
        bench = Bench()
        bench.transport.write(2, bytes(1000))
        await asyncio.sleep(0)
        bench.library.drain()
        bench.look()
        bench.transport.write(2, bytes(1000))
        for _ in range(20):
            await asyncio.sleep(1)
            bench.look()

    run(stall())

    assert caplog.messages == [
        "peer 127.0.0.1:4433 takes nothing: 1000 bytes on 1 streams wait for its credit"
    ]


def test_peer_without_credit_is_reported_once(caplog):
    async def stall():
        bench = Bench()
        bench.transport.write(2, bytes(1000))
        for _ in range(20):
            await asyncio.sleep(1)
            bench.look()

    run(stall())

    assert caplog.messages == [
        "peer 127.0.0.1:4433 takes nothing: 1000 bytes on 1 streams wait for its credit"
    ]


@scenario
async def test_datagrams_go_straight_to_the_library():
    bench = Bench()

    bench.transport.send_datagram(b"x")

    assert bench.library.calls == [("datagram", b"x")]


@scenario
async def test_streams_that_the_peer_allows_are_asked_for_until_they_are_known():
    bench = Bench()

    assert [bench.transport.max_bidi_streams for _ in range(3)] == [0, 7, 7]
