"""A library context with a UDP port and the connections that come to it."""

# The library ships no types: what it hands out is unknown to the checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from aiopquic.quic.configuration import QuicConfiguration
from aiopquic.quic.connection import QuicConnection, QuicEngine
from aiopquic.quic.events import HandshakeCompleted, QuicEvent

from kvcs.transport.interface import (
    Address,
    Listener,
    StreamData,
    Transport,
    TransportConfig,
    TransportEvent,
)
from kvcs.transport.picoquic.library import (
    APPLICATION_CLOSE,
    CONNECTION,
    STREAM_CONTEXT,
    STREAM_FIN,
    WAKE_BYTES,
    ServerConnection,
    receive_end,
    translate,
)
from kvcs.transport.pump import Look, Pump
from kvcs.transport.quic_transport import QuicTransport

__all__ = ("PicoquicListener",)


class _ServerEngine(QuicEngine):
    """Hands bytes of streams on at once, keeps the type of the event that is being routed, counts.

    Attributes:
        opened: Set when the library's thread has bound the port.
        events_routed: Events so far.
        event_type: Type of the event that is being routed.
    """

    def __init__(
        self,
        configuration: QuicConfiguration,
        create_protocol: "Callable[[QuicConnection, object], _ServerPeer]",
        on_data: "Callable[[_ServerPeer, StreamData], None]",
        on_early: Callable[[], None],
    ) -> None:
        super().__init__(configuration=configuration, create_protocol=create_protocol)
        self.opened = asyncio.Event()
        self.events_routed = 0
        self.event_type = -1
        self._on_data = on_data
        self._on_early = on_early

    def open(self, port: int, default_priority: int) -> None:
        """Start the context; the library's own ``serve`` would watch the eventfd itself."""
        self._start_transport(port=port)
        assert self._transport is not None, "the context has started"
        self._transport.set_default_stream_priority(default_priority)

    def look(self) -> None:
        """Take all that the library's thread has said so far; tell of it if that is anything."""
        context = self._transport
        if context is None or not context.rx_event_ring_count:
            return
        while context.rx_event_ring_count:
            self.drain_and_route()
        self._on_early()

    def route_event(self, ev: Sequence[Any]) -> None:
        self.events_routed += 1
        self.event_type = ev[0]
        if ev[0] <= STREAM_FIN:
            peer = self._protocols.get(ev[CONNECTION])
            if isinstance(peer, _ServerPeer):
                # As the library does, but for an event of its own, which costs more than the rest.
                peer.quic._adopt_stream_ctx(ev[1], ev[STREAM_CONTEXT])  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                self._on_data(peer, StreamData(ev[1], ev[2] or b"", ev[0] == STREAM_FIN))
                return
        if not ev[CONNECTION]:
            self.opened.set()
        super().route_event(ev)


class _ServerPeer:
    """What the library calls a protocol: the receiver of one connection's events.

    Attributes:
        quic: The connection.
        transport: Its transport, once it is accepted.
        address: The client's host and port, once the handshake is done.
        early: What came before it was accepted.
    """

    def __init__(
        self, quic: QuicConnection, take: "Callable[[_ServerPeer, QuicEvent], None]"
    ) -> None:
        self.quic = quic
        self.transport: QuicTransport | None = None
        self.address: tuple[str, int] | None = None
        self.early: list[TransportEvent] = []
        self._take = take

    def _process_events(self) -> None:
        while (event := self.quic.next_event()) is not None:
            if isinstance(event, HandshakeCompleted):
                # A connection that is over has none.
                self.address = self.quic.peer_address()
            self._take(self, event)

    def close(self) -> None:
        """Close, when the engine goes away."""
        self.quic.close()


class PicoquicListener(Listener):
    """A UDP port and its connections."""

    def __init__(
        self,
        address: Address,
        quic_config: QuicConfiguration,
        config: TransportConfig,
        on_transport: Callable[[Transport], None],
    ) -> None:
        """Open the port.

        Raises:
            OSError, RuntimeError, ValueError: The library refuses.
        """
        self._address = address
        self._config = config
        self._on_transport = on_transport
        self._peers: dict[QuicTransport, _ServerPeer] = {}
        # What was taken and not handed on: the transports that noted something, and beginnings and
        # ends of connections.
        self._ready: dict[QuicTransport, None] = {}
        self._taken_bytes = 0
        self._events: list[tuple[_ServerPeer, QuicEvent, bool]] = []
        self._engine = _ServerEngine(
            quic_config, self._create_peer, self._take_data, self._hand_on_soon
        )
        self._engine.open(address.port, config.default_priority)
        self._pump = Pump(self._engine.eventfd, self._turn, self._waits)

    def __repr__(self) -> str:
        return f"<PicoquicListener {self._address}, {len(self._peers)} connections>"

    @property
    def address(self) -> Address:
        """Where clients connect."""
        return self._address

    async def opened(self) -> None:
        """Wait until the port is bound: the library does that on its thread."""
        await self._engine.opened.wait()

    def close(self) -> None:
        """Stop accepting, end all connections that are left, release the port."""
        self._pump.stop()
        for transport in list(self._peers):
            transport.abandon()
        self._engine.close()

    def _create_peer(self, quic: QuicConnection, stream_handler: object = None) -> _ServerPeer:
        del stream_handler
        return _ServerPeer(quic, self._take)

    def _hand_on_soon(self) -> None:
        """What was taken between the looks: the next turn hands it on."""
        self._pump.hurry()

    def _turn(self) -> Look:
        engine, before = self._engine, -1
        while self._taken_bytes < WAKE_BYTES and engine.events_routed != before:
            before = engine.events_routed
            engine.drain_and_route()
            self._note_events()
        taken, self._taken_bytes = self._taken_bytes, 0
        ready, self._ready = self._ready, {}
        for transport in ready:
            transport.deliver()
        sent, starved = 0, False
        for transport in list(self._peers):
            sent += transport.move()
            starved = starved or transport.is_starved
        return Look(taken, sent, starved)

    def _waits(self) -> bool:
        return any(transport.waits for transport in self._peers)

    def _take_data(self, peer: _ServerPeer, event: StreamData) -> None:
        self._taken_bytes += len(event.data)
        self._note(peer, event)

    def _note(self, peer: _ServerPeer, event: TransportEvent) -> None:
        """Note an event after all that came before: also streams are kept in their order."""
        transport = peer.transport
        if transport is None:
            peer.early.append(event)
        else:
            self._ready[transport] = None
            transport.receive(event)

    def _take(self, peer: _ServerPeer, event: QuicEvent) -> None:
        translated = translate(event)
        if translated is None:
            by_application = self._engine.event_type == APPLICATION_CLOSE
            self._events.append((peer, event, by_application))
        else:
            self._note(peer, translated)

    def _note_events(self) -> None:
        """Let transports begin and end."""
        events, self._events = self._events, []
        for peer, event, by_application in events:
            if (transport := peer.transport) is not None:
                receive_end(transport, event, by_application=by_application)
                self._ready[transport] = None
            elif isinstance(event, HandshakeCompleted):
                self._accept(peer)

    def _accept(self, peer: _ServerPeer) -> None:
        host, port = peer.address or ("unknown", 0)
        transport = QuicTransport(
            ServerConnection(peer.quic, self._engine.look),
            Address(host, port),
            self._config,
            wake=self._pump.wake,
            release=lambda: self._forget(transport),
        )
        peer.transport = transport
        early, peer.early = peer.early, []
        for event in early:
            transport.receive(event)
        self._ready[transport] = None
        self._peers[transport] = peer
        self._on_transport(transport)

    def _forget(self, transport: QuicTransport) -> None:
        self._peers.pop(transport, None)
