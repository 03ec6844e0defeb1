"""QUIC by aiopquic (picoquic): the only module that knows that library.

Theory of operation: picoquic runs on a thread of its own and talks to the event loop through
rings. A `Pump` wakes one library context. In each wake everything that arrived is taken, since
nothing but the memory above can hold a peer back; then the send queues move what fits into the
library's rings.

A client's transport owns its context, the transports of a server share one. All calls into
the library are made on the loop's thread. Its exceptions and return values are mapped here:
a full ring is not an error but work for the next wake.

The library names a connection by its address in memory, and a new connection gets the address of
one that is gone. What a server sends on a connection whose end it has not heard of would reach
whoever came next, so `_ServerLibrary` takes all events just before each command.
"""

# The library ships no types: what it hands out is unknown to the checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from aiopquic.quic.configuration import QuicConfiguration
from aiopquic.quic.connection import QuicConnection, QuicEngine
from aiopquic.quic.events import (
    ConnectionTerminated,
    DatagramFrameReceived,
    HandshakeCompleted,
    QuicEvent,
    StopSendingReceived,
    StreamDataReceived,
)
from aiopquic.quic.events import StreamReset as StreamResetReceived

from kvcs.errors import (
    CertificateRefused,
    ConfigError,
    ConnectFailed,
    DraftRefused,
    TransportError,
)
from kvcs.transport.interface import (
    Address,
    ClientTls,
    Datagram,
    Listener,
    ServerTls,
    StopSending,
    StreamData,
    StreamReset,
    Transport,
    TransportConfig,
    TransportEvent,
    TransportFactory,
)
from kvcs.transport.pump import Pump
from kvcs.transport.quic_transport import QuicLibrary, QuicTransport

__all__ = ("PicoquicFactory", "PicoquicListener")

#: Most bytes taken in one wake, so that the loop gets its turn.
_WAKE_BYTES: Final = 8 * 2**20
#: Connections that the library holds at once; the endpoint has a lower limit of its own.
_MAX_CONNECTIONS: Final = 4096
#: Event of the library's ring: the peer closed with an application code.
_APPLICATION_CLOSE: Final = 5
#: Place of the connection in such an event; 0 is the context itself, which is ready.
_CONNECTION: Final = 5

_NO_APPLICATION_PROTOCOL: Final = 0x178
_QUIC_ERRORS: Final = {
    0x1: "internal error",
    0x2: "connection refused",
    0x3: "flow control error",
    0x4: "stream limit error",
    0xA: "protocol violation",
    0x12A: "TLS: bad certificate",
    0x12D: "TLS: certificate expired",
    0x130: "TLS: unknown certificate authority",
    _NO_APPLICATION_PROTOCOL: "TLS: no common application protocol",
    # The library's own, for what no frame carries.
    0x41E: "stateless reset: the peer has forgotten the connection, or was started anew",
}

_logger = logging.getLogger("kvcs.transport")
# The library warns of every reset and close; those reach the user as events.
logging.getLogger("aiopquic").addHandler(logging.NullHandler())


class _Library(QuicLibrary):
    """One connection of the library, its exceptions and return values mapped."""

    def __init__(self, quic: QuicConnection) -> None:
        self._quic = quic

    def push(self, stream_id: int, data: bytes, *, fin: bool) -> bool:
        try:
            self._quic.send_stream_data(stream_id, data, fin)
        except (BufferError, MemoryError):
            return False
        except ConnectionError:
            pass
        return True

    def used(self, stream_id: int) -> int:
        return self._quic.tx_data_ring_used(stream_id)

    def reset(self, stream_id: int, code: int) -> bool:
        return self._taken(lambda: self._quic.reset_stream(stream_id, code))

    def stop_sending(self, stream_id: int, code: int) -> bool:
        return self._taken(lambda: self._quic.stop_stream(stream_id, code))

    def set_priority(self, stream_id: int, priority: int) -> bool:
        return self._taken(lambda: self._quic.set_stream_priority(stream_id, priority))

    def send_datagram(self, data: bytes) -> None:
        try:
            self._quic.send_datagram_frame(data)
        except (ConnectionError, ValueError) as error:
            _logger.debug("datagram dropped: %s", error)

    def close(self, code: int) -> bool:
        return self._taken(lambda: self._quic.close(code))

    def is_acknowledged(self, stream_id: int) -> bool:
        """The library forgets a stream that we finished with the last acknowledgement."""
        return self._quic.get_stream_buf_stats(stream_id) is None

    def max_bidi_streams(self) -> int | None:
        told = self._quic.peer_transport_parameters
        return None if told is None else int(told["initial_max_streams_bidi"])

    def bytes_in_transit(self) -> int:
        return int(self._quic.path_quality().get("bytes_in_transit", 0))

    def _taken(self, call: Callable[[], int | None]) -> bool:
        """Make a call: 1, or an exception about room, means that nothing was taken."""
        try:
            return call() != 1
        except (BufferError, MemoryError):
            return False
        except ConnectionError:
            return True


class _ServerLibrary(_Library):
    """One connection of a server: gives no command before all that happened is known.

    The worker looks a command's connection up by its address alone. A connection that is over takes
    no commands, and once it is known to be over none of its commands waits for the worker.
    """

    def __init__(self, quic: QuicConnection, look: Callable[[], None]) -> None:
        super().__init__(quic)
        self._look = look

    def push(self, stream_id: int, data: bytes, *, fin: bool) -> bool:
        self._look()
        return super().push(stream_id, data, fin=fin)

    def send_datagram(self, data: bytes) -> None:
        self._look()
        super().send_datagram(data)

    def _taken(self, call: Callable[[], int | None]) -> bool:
        self._look()
        return super()._taken(call)


def _translate(event: QuicEvent) -> TransportEvent | None:
    match event:
        case StreamDataReceived():
            return StreamData(event.stream_id, event.data, event.end_stream)
        case StreamResetReceived():
            return StreamReset(event.stream_id, event.error_code)
        case StopSendingReceived():
            return StopSending(event.stream_id, event.error_code)
        case DatagramFrameReceived():
            return Datagram(event.data)
        case _:
            return None


def _receive(transport: QuicTransport, event: QuicEvent, *, by_application: bool) -> int:
    """Give an event to a transport; return the stream bytes that it brings."""
    if isinstance(event, ConnectionTerminated):
        _receive_close(transport, event.error_code, by_application=by_application)
        return 0
    translated = _translate(event)
    if translated is None:
        return 0
    transport.receive(translated)
    return len(translated.data) if isinstance(translated, StreamData) else 0


def _receive_close(transport: QuicTransport, code: int, *, by_application: bool) -> None:
    """Tell why a connection is over; the library says code 0 for a peer that vanished."""
    if by_application:
        transport.receive_close(code, "closed by the peer", clean=not code)
    elif code:
        transport.receive_close(0, f"QUIC error: {_error_text(code)}")
    else:
        timeout = transport.config.idle_timeout
        transport.receive_close(0, f"no packet from the peer for {timeout:g} s (idle timeout)")


class _ClientQuic(QuicConnection):
    """Keeps what the library's event drops: whether the peer closed with a code of its own."""

    closed_by_application = False

    def _handle_raw_event(self, evt_type: int, *rest: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - always called by position
        if evt_type == _APPLICATION_CLOSE:
            self.closed_by_application = True
        super()._handle_raw_event(evt_type, *rest)


class _Client:
    """A context with one outgoing connection."""

    def __init__(self, quic: _ClientQuic, peer: Address, config: TransportConfig) -> None:
        self._quic = quic
        self._pump = Pump(quic.eventfd, self._turn, lambda: self.transport.waits)
        self.transport = QuicTransport(
            _Library(quic), peer, config, wake=self._pump.wake, release=self.stop
        )
        self.handshake: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    def stop(self) -> None:
        """Stop the context and join its thread."""
        self._pump.stop()
        self._quic.stop()

    def _turn(self) -> tuple[int, int]:
        taken = 0
        while taken < _WAKE_BYTES and (event := self._quic.next_event()) is not None:
            taken += self._take(event)
        self.transport.deliver()
        return taken, self.transport.move()

    def _take(self, event: QuicEvent) -> int:
        if not self.handshake.done():
            if isinstance(event, HandshakeCompleted):
                self.handshake.set_result(None)
            elif isinstance(event, ConnectionTerminated):
                self.handshake.set_result(event.error_code)
                return 0
        return _receive(self.transport, event, by_application=self._quic.closed_by_application)


class _ServerEngine(QuicEngine):
    """Keeps the type of the event that is being routed, and counts.

    Attributes:
        opened: Set when the library's thread has bound the port.
        events_routed: Events so far.
        event_type: Type of the event that is being routed.
    """

    def __init__(
        self,
        configuration: QuicConfiguration,
        create_protocol: "Callable[[QuicConnection, object], _ServerPeer]",
    ) -> None:
        super().__init__(configuration=configuration, create_protocol=create_protocol)
        self.opened = asyncio.Event()
        self.events_routed = 0
        self.event_type = -1

    def open(self, port: int, default_priority: int) -> None:
        """Start the context; the library's own ``serve`` would watch the eventfd itself."""
        self._start_transport(port=port)
        assert self._transport is not None, "the context has started"
        self._transport.set_default_stream_priority(default_priority)

    @property
    def has_events(self) -> bool:
        """Tell whether the library's thread has something new."""
        return self._transport is not None and bool(self._transport.rx_event_ring_count)

    def route_event(self, ev: Sequence[int]) -> None:
        self.events_routed += 1
        self.event_type = ev[0]
        if not ev[_CONNECTION]:
            self.opened.set()
        super().route_event(ev)


class _ServerPeer:
    """What the library calls a protocol: the receiver of one connection's events."""

    def __init__(
        self, quic: QuicConnection, take: "Callable[[_ServerPeer, QuicEvent], None]"
    ) -> None:
        self.quic = quic
        self.transport: QuicTransport | None = None
        self.address: tuple[str, int] | None = None
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
        self._events: list[tuple[_ServerPeer, QuicEvent, bool]] = []
        self._engine = _ServerEngine(quic_config, self._create_peer)
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

    def _look(self) -> None:
        """Take what has happened; the next turn hands it on."""
        if self._engine.has_events:
            while self._engine.has_events:
                self._engine.drain_and_route()
            self._pump.hurry()

    def _turn(self) -> tuple[int, int]:
        taken, before = 0, -1
        ready: dict[QuicTransport, None] = {}
        while taken < _WAKE_BYTES and self._engine.events_routed != before:
            before = self._engine.events_routed
            self._engine.drain_and_route()
            taken += self._note_events(ready)
        for transport in ready:
            transport.deliver()
        return taken, sum(transport.move() for transport in list(self._peers))

    def _waits(self) -> bool:
        return any(transport.waits for transport in self._peers)

    def _take(self, peer: _ServerPeer, event: QuicEvent) -> None:
        by_application = self._engine.event_type == _APPLICATION_CLOSE
        self._events.append((peer, event, by_application))

    def _note_events(self, ready: dict[QuicTransport, None]) -> int:
        """Give their events to the transports, and name those; return the stream bytes."""
        taken = 0
        events, self._events = self._events, []
        for peer, event, by_application in events:
            if (transport := peer.transport) is not None:
                taken += _receive(transport, event, by_application=by_application)
                ready[transport] = None
            elif isinstance(event, HandshakeCompleted):
                self._accept(peer)
        return taken

    def _accept(self, peer: _ServerPeer) -> None:
        host, port = peer.address or ("unknown", 0)
        transport = QuicTransport(
            _ServerLibrary(peer.quic, self._look),
            Address(host, port),
            self._config,
            wake=self._pump.wake,
            release=lambda: self._forget(transport),
        )
        peer.transport = transport
        self._peers[transport] = peer
        self._on_transport(transport)

    def _forget(self, transport: QuicTransport) -> None:
        self._peers.pop(transport, None)


class PicoquicFactory(TransportFactory):
    """Makes QUIC transports."""

    async def connect(
        self, host: str, port: int, *, alpn: str, tls: ClientTls, config: TransportConfig
    ) -> QuicTransport:
        """Connect and finish the handshake.

        Raises:
            CertificateRefused: The server's certificate is not valid for this host.
            ConnectFailed: No connection, with the reason.
            ConfigError: A setting is not accepted.
        """
        address = Address(host, port)
        started_at = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(config.connect_timeout):
                peer = await _resolve(address)
                client = _start_client(
                    peer, address, _client_configuration(address, alpn, tls, config), config
                )
                try:
                    code = await client.handshake
                except asyncio.CancelledError:
                    client.stop()
                    raise
        except TimeoutError:
            waited = asyncio.get_running_loop().time() - started_at
            raise ConnectFailed(str(address), f"no answer on UDP within {waited:.0f} s") from None
        if code is not None:
            client.stop()
            raise _handshake_failure(code, address, tls)
        return client.transport

    async def listen(
        self,
        address: Address,
        on_transport: Callable[[Transport], None],
        *,
        alpn: str,
        tls: ServerTls,
        config: TransportConfig,
    ) -> PicoquicListener:
        """Accept connections, on all interfaces: the library ignores the host.

        Raises:
            TransportError: The port cannot be opened.
            ConfigError: A setting or the certificate is not accepted.
        """
        address = Address(address.host, _free_port(address))
        quic_config = _configuration(alpn, config, is_client=False)
        _check_certificate(tls)
        quic_config.load_cert_chain(tls.certificate_file, tls.private_key_file)
        try:
            listener = PicoquicListener(address, quic_config, config, on_transport)
        except (OSError, RuntimeError, ValueError) as error:
            raise TransportError(f"cannot listen on {address}: {error}") from error
        try:
            async with asyncio.timeout(config.connect_timeout):
                await listener.opened()
        except TimeoutError:
            listener.close()
            raise TransportError(f"cannot listen on {address}: the port does not open") from None
        return listener


def _configuration(alpn: str, config: TransportConfig, *, is_client: bool) -> QuicConfiguration:
    try:
        return QuicConfiguration(
            alpn_protocols=[alpn],
            is_client=is_client,
            idle_timeout=config.idle_timeout,
            keep_alive_interval=config.idle_timeout / 3,
            max_data=config.max_data,
            max_stream_data=config.max_stream_data,
            max_streams_uni=config.max_uni_streams,
            max_streams_bidi=config.max_bidi_streams,
            stream_ring_cap=config.stream_ring_bytes,
            congestion_control_algorithm=config.congestion_control,
            max_connections=_MAX_CONNECTIONS,
        )
    except ValueError as error:
        raise ConfigError(
            "transport", "settings that the QUIC library takes", str(error)
        ) from error


def _client_configuration(
    address: Address, alpn: str, tls: ClientTls, config: TransportConfig
) -> QuicConfiguration:
    quic_config = _configuration(alpn, config, is_client=True)
    quic_config.server_name = tls.server_name or address.host
    quic_config.verify_mode = ssl.CERT_REQUIRED if tls.verify else ssl.CERT_NONE
    if tls.ca_file is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(tls.ca_file)
        except OSError as error:
            got = f"{tls.ca_file} ({error.strerror or 'no certificate in it'})"
            raise ConfigError("ca_file", "a PEM file with certificates", got) from error
        quic_config.load_verify_locations(tls.ca_file)
    return quic_config


def _start_client(
    peer: Address, address: Address, quic_config: QuicConfiguration, config: TransportConfig
) -> _Client:
    quic = _ClientQuic(configuration=quic_config)
    try:
        quic.connect((peer.host, peer.port))
        quic.set_default_stream_priority(config.default_priority)
    except (OSError, RuntimeError, ValueError) as error:
        quic.stop()
        raise ConnectFailed(str(address), str(error)) from error
    return _Client(quic, peer, config)


async def _resolve(address: Address) -> Address:
    """Look a name up; IPv4 first, as the library does."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise ConnectFailed(str(address), f"the name is not known ({error.strerror})") from error
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return Address(str(found[0][4][0]), address.port)


def _free_port(address: Address) -> int:
    """Check that a port is free, or pick one for 0; the library reports neither."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind(("0.0.0.0", address.port))  # noqa: S104 - as the library binds
            return int(probe.getsockname()[1])
    except OSError as error:
        raise TransportError(f"cannot listen on {address}: {error.strerror}") from error


def _check_certificate(tls: ServerTls) -> None:
    """Refuse what the library would take and then fail each handshake with."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate_file, tls.private_key_file)
    except OSError as error:
        got = f"{tls.certificate_file} and {tls.private_key_file} ({error.strerror})"
        raise ConfigError("tls", "PEM files of a certificate and its key", got) from error


def _error_text(code: int) -> str:
    return f"{_QUIC_ERRORS.get(code, 'TLS alert' if code & 0x100 else 'error')} ({code:#x})"


def _handshake_failure(code: int, address: Address, tls: ClientTls) -> ConnectFailed:
    if code:
        kind = DraftRefused if code == _NO_APPLICATION_PROTOCOL else ConnectFailed
        return kind(str(address), _error_text(code))
    # The library does not tell a wrong authority from a wrong name.
    roots, name = tls.ca_file or "the public authorities", tls.server_name or address.host
    reason = f"the server's certificate is not valid under {roots} for the name {name}"
    return CertificateRefused(str(address), reason)
