"""A library context with one outgoing connection."""

# The library ships no types: what it hands out is unknown to the checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
from collections.abc import Callable
from typing import Any

from aiopquic.quic.connection import QuicConnection
from aiopquic.quic.events import ConnectionTerminated, HandshakeCompleted, QuicEvent

from kvcs.transport.interface import Address, StreamData, TransportConfig
from kvcs.transport.picoquic.library import (
    APPLICATION_CLOSE,
    STREAM_CONTEXT,
    STREAM_FIN,
    WAKE_BYTES,
    LibraryConnection,
    receive_end,
    translate,
)
from kvcs.transport.pump import Look, Pump
from kvcs.transport.quic_transport import QuicTransport

__all__ = ("ClientContext", "ClientQuic")


class ClientQuic(QuicConnection):
    """Hands bytes of streams on at once, and keeps what the library's event of a close drops.

    Attributes:
        closed_by_application: Whether the peer closed with a code of its own.
        on_data: Takes bytes of a stream: an event of the library's own for each piece costs more.
        on_event: Takes everything else, in the same order.
        events_routed: Events so far.
    """

    closed_by_application = False
    events_routed = 0
    on_data: Callable[[StreamData], None]
    on_event: Callable[[QuicEvent], None]

    def _handle_raw_event(self, *ev: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - always called by position
        self.events_routed += 1
        evt_type = ev[0]
        if evt_type <= STREAM_FIN:
            self._adopt_stream_ctx(ev[1], ev[STREAM_CONTEXT])
            self.on_data(StreamData(ev[1], ev[2] or b"", evt_type == STREAM_FIN))
            return
        if evt_type == APPLICATION_CLOSE:
            self.closed_by_application = True
        super()._handle_raw_event(*ev)
        while self._events:
            self.on_event(self._events.popleft())

    def take(self) -> None:
        """Take one batch of events."""
        self._drain_and_convert()


class ClientContext:
    """A context with one outgoing connection."""

    def __init__(self, quic: ClientQuic, peer: Address, config: TransportConfig) -> None:
        self._quic = quic
        self._pump = Pump(quic.eventfd, self._turn, lambda: self.transport.waits)
        self._taken_bytes = 0
        self.transport = QuicTransport(
            LibraryConnection(quic), peer, config, wake=self._pump.wake, release=self.stop
        )
        quic.on_data, quic.on_event = self._take_data, self._take
        self.handshake: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    @property
    def closed_by_application(self) -> bool:
        """Whether the peer closed, with a code of its own."""
        return self._quic.closed_by_application

    def stop(self) -> None:
        """Stop the context and join its thread."""
        self._pump.stop()
        self._quic.stop()

    def _turn(self) -> Look:
        quic, before = self._quic, -1
        while self._taken_bytes < WAKE_BYTES and quic.events_routed != before:
            before = quic.events_routed
            quic.take()
        taken, self._taken_bytes = self._taken_bytes, 0
        self.transport.deliver()
        sent = self.transport.move()
        return Look(taken, sent, self.transport.is_starved)

    def _take_data(self, event: StreamData) -> None:
        self._taken_bytes += len(event.data)
        self.transport.receive(event)

    def _take(self, event: QuicEvent) -> None:
        if not self.handshake.done():
            if isinstance(event, HandshakeCompleted):
                self.handshake.set_result(None)
            elif isinstance(event, ConnectionTerminated):
                self.handshake.set_result(event.error_code)
                return
        translated = translate(event)
        if translated is not None:
            self.transport.receive(translated)
        else:
            by_application = self._quic.closed_by_application
            receive_end(self.transport, event, by_application=by_application)
