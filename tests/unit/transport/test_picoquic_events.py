"""In which order the QUIC library's events reach a transport, and how much of them in one look.

The library's side is a queue of events as its ring has them: type, stream, data, whether it ends
the stream, code, connection, and two records of its own.
"""

import asyncio
import os
from collections import deque

import aiopquic.quic.connection as library
import pytest
from aiopquic.quic import events as theirs

from kvcs.transport.interface import (
    Address,
    Closed,
    StopSending,
    StreamData,
    StreamReset,
    TransportConfig,
)
from kvcs.transport.picoquic import listener
from kvcs.transport.picoquic.client import ClientContext, ClientQuic
from kvcs.transport.picoquic.library import WAKE_BYTES

DATA, FIN, RESET, STOP, CLOSE, APPLICATION_CLOSE, READY, ALMOST_READY, DATAGRAM = range(9)
KINDS = {
    DATA: lambda e: theirs.StreamDataReceived(stream_id=e[1], data=e[2], end_stream=False),
    RESET: lambda e: theirs.StreamReset(stream_id=e[1], error_code=e[4]),
    STOP: lambda e: theirs.StopSendingReceived(stream_id=e[1], error_code=e[4]),
    CLOSE: lambda e: theirs.ConnectionTerminated(error_code=e[4]),
    APPLICATION_CLOSE: lambda e: theirs.ConnectionTerminated(error_code=e[4]),
    READY: lambda _: theirs.HandshakeCompleted(alpn_protocol="x", session_resumed=False),
}


def raw(kind, stream_id=0, data=None, code=0):
    return kind, stream_id, data, kind == FIN, code, 7, 0, 0


class Context:
    """What a server's connections share."""

    def __init__(self):
        self.ring = deque()
        self.eventfd = os.eventfd(0)

    @property
    def rx_event_ring_count(self):
        return len(self.ring)

    def drain_rx(self):
        return [self.ring.popleft() for _ in range(len(self.ring))]

    def release_batch(self):
        """Nothing is held."""

    def stop(self):
        os.close(self.eventfd)


class ServerQuic:
    """A connection of a server, which makes events of its own as the library does."""

    def __init__(self, **_):
        self.events = deque()

    def _adopt_stream_ctx(self, *_):
        """There are no records."""

    def _enqueue_raw(self, kind, stream_id, data, _, code, __):
        if kind in KINDS:
            self.events.append(KINDS[kind]((kind, stream_id, data, False, code)))

    def _release_dgram_ring(self):
        """There is none."""

    def next_event(self):
        return self.events.popleft() if self.events else None

    def peer_address(self):
        return "192.0.2.1", 5

    def tx_data_ring_used(self, _):
        return 0

    def close(self, _=0):
        return 0


async def received(monkeypatch, *events):
    """Return what the transports of a server get, each as a list."""
    monkeypatch.setattr(library, "QuicConnection", ServerQuic)
    context, got = Context(), []
    monkeypatch.setattr(
        listener._ServerEngine, "open", lambda self, *_: setattr(self, "_transport", context)
    )

    def accept(transport):
        got.append([])
        transport.set_listener(got[-1].extend, lambda: None)

    server = listener.PicoquicListener(Address("h", 1), None, TransportConfig(), accept)
    context.ring.extend(events)
    os.eventfd_write(context.eventfd, 1)
    await asyncio.sleep(0.05)
    server.close()
    await asyncio.sleep(0)
    return [[event for event in one if not isinstance(event, Closed)] for one in got]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (
            [raw(DATA, 2, b"AA"), raw(DATA, 2, b"BB"), raw(READY), raw(DATA, 2, b"CC")],
            [StreamData(2, b"AA"), StreamData(2, b"BB"), StreamData(2, b"CC")],
        ),
        (
            [raw(ALMOST_READY), raw(DATA, 2, b"AA"), raw(RESET, 2, code=9), raw(READY)],
            [StreamData(2, b"AA"), StreamReset(2, 9)],
        ),
        (
            [raw(READY), raw(DATA, 2, b"AA"), raw(RESET, 2, code=9)],
            [StreamData(2, b"AA"), StreamReset(2, 9)],
        ),
        (
            [raw(READY), raw(STOP, 0, code=9), raw(RESET, 0, code=9), raw(DATA, 4, b"next")],
            [StopSending(0, 9), StreamReset(0, 9), StreamData(4, b"next")],
        ),
        (
            [raw(READY), raw(DATA, 2, b"last"), raw(CLOSE), raw(DATA, 2, b"late")],
            [StreamData(2, b"last")],
        ),
    ],
    ids=[
        "before the handshake",
        "reset before it",
        "reset",
        "asked anew",
        "after the end",
    ],
)
async def test_what_came_first_is_handed_on_first(monkeypatch, events, expected):
    assert await received(monkeypatch, *events) == [expected]


async def test_next_connection_at_an_address_gets_its_own_bytes_alone(monkeypatch):
    old = [raw(READY), raw(DATA, 2, b"old"), raw(APPLICATION_CLOSE), raw(CLOSE)]
    new = [raw(ALMOST_READY), raw(READY), raw(DATA, 2, b"new")]

    assert await received(monkeypatch, *old, *new) == [
        [StreamData(2, b"old")],
        [StreamData(2, b"new")],
    ]


class BusyQuic(ClientQuic):
    """A client's connection to which a server sends a piece and a datagram without an end."""

    def __init__(self):
        self._engine, self._events = None, deque()
        self._stream_ctxs, self._sc_owned, self._stream_ctxs_dropped = {}, set(), False
        self._cnx_ptr, self.descriptor, self.sent = 1, os.eventfd(0), 0

    eventfd = property(lambda self: self.descriptor)

    def _drain_and_convert(self):
        if self.sent < 64:
            self.sent += 1
            self._handle_raw_event(*raw(DATA, 3, bytes(2**20)))
            self._handle_raw_event(*raw(DATAGRAM, data=b"d"))

    def tx_data_ring_used(self, _):
        return 0

    def stop(self):
        os.close(self.descriptor)


async def test_a_client_hears_of_streams_in_their_order():
    quic, got = BusyQuic(), []
    context = ClientContext(quic, Address("h", 1), TransportConfig())
    context.transport.set_listener(got.extend, lambda: None)
    quic._drain_and_convert = lambda: [
        quic._handle_raw_event(*event) for event in (raw(RESET, 3, code=9), raw(DATA, 7, b"next"))
    ]
    quic.take()
    context.transport.deliver()
    context.stop()

    assert got == [StreamReset(3, 9), StreamData(7, b"next")]


async def test_no_more_is_taken_in_one_look_than_so_many_bytes():
    quic = BusyQuic()
    context = ClientContext(quic, Address("h", 1), TransportConfig())

    taken = [context._turn()[0] for _ in range(3)]
    context.stop()

    assert taken == [WAKE_BYTES] * 3
