"""QUIC by aiopquic (picoquic): the only module that knows that library.

Theory of operation: picoquic runs on a thread of its own and talks to the event loop through
rings. A `Pump` wakes one library context. In each wake everything that arrived is taken, since
nothing but the memory above can hold a peer back; then the send queues move what fits into the
library's rings.

A client's transport owns its context, the transports of a server share one. All calls into
the library are made on the loop's thread. Its exceptions and return values are mapped here:
a full ring is not an error but work for the next wake.
"""

# The library ships no types: what it hands out is unknown to the checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import asyncio
import logging
import socket
import ssl
from collections import deque
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

from kvcs.errors import ConfigError, ConnectFailed, TransportError
from kvcs.transport.interface import (
    Address,
    ClientTls,
    Closed,
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
    is_unidirectional,
)
from kvcs.transport.pump import Pump
from kvcs.transport.send_queue import SendQueue

__all__ = ("PicoquicFactory", "PicoquicListener", "PicoquicTransport")

#: Most bytes taken in one wake, so that the loop gets its turn.
_WAKE_BYTES: Final = 8 * 2**20
#: Seconds for our close to reach the wire.
_CLOSE_WAIT: Final = 2.0
#: Seconds without progress after which a blocked send queue is reported once.
_STALL_WARNING: Final = 5.0
#: Event of the library's ring: the peer closed with an application code.
_APPLICATION_CLOSE: Final = 5

_QUIC_ERRORS: Final = {
    0x1: "internal error",
    0x2: "connection refused",
    0x3: "flow control error",
    0x4: "stream limit error",
    0xA: "protocol violation",
    0x12A: "TLS: bad certificate",
    0x12D: "TLS: certificate expired",
    0x130: "TLS: unknown certificate authority",
    0x178: "TLS: no common application protocol",
}

_logger = logging.getLogger("kvcs.transport")


class PicoquicTransport(Transport):
    """One QUIC connection."""

    def __init__(
        self,
        quic: QuicConnection,
        peer_address: Address,
        config: TransportConfig,
        *,
        wake: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        """Take over a connection whose handshake is done.

        Args:
            quic: The library's connection.
            peer_address: The other end.
            config: Settings.
            wake: Asks for a wake of the context.
            release: Frees what belongs to this connection alone.
        """
        self._quic = quic
        self._peer_address = peer_address
        self._config = config
        self._wake = wake
        self._release = release
        self._loop = asyncio.get_running_loop()
        self._queue = SendQueue(self, stream_bytes=config.stream_ring_bytes)
        self._owed: deque[Callable[[], bool]] = deque()
        self._finished: set[int] = set()
        self._batch: list[TransportEvent] = []
        self._on_events: Callable[[Sequence[TransportEvent]], None] | None = None
        self._on_writable: Callable[[], None] = lambda: None
        self._above_low_water = False
        self._progress_at = self._loop.time()
        self._warned = False
        self._closing: tuple[int, str] | None = None
        self._close_sent = False
        self._quiet_looks = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._over = False
        self._released = asyncio.Event()

    def __repr__(self) -> str:
        return f"<PicoquicTransport {self._peer_address}, {self.queued_bytes} bytes queued>"

    # The interface.

    @property
    def peer_address(self) -> Address:
        """The other end."""
        return self._peer_address

    @property
    def queued_bytes(self) -> int:
        """Bytes accepted and not yet in packets."""
        return self._queue.queued_bytes

    @property
    def room(self) -> int:
        """Bytes below the high-water mark."""
        return max(0, self._config.high_water_bytes - self._queue.queued_bytes)

    def set_listener(
        self,
        on_events: Callable[[Sequence[TransportEvent]], None],
        on_writable: Callable[[], None],
    ) -> None:
        """Name the receiver; what arrived before is delivered on the next loop turn."""
        self._on_events = on_events
        self._on_writable = on_writable
        self._loop.call_soon(self.deliver)

    def write(self, stream_id: int, data: bytes, *, fin: bool = False) -> None:
        """Queue bytes on a stream."""
        if self._is_open:
            if not self._queue.queued_bytes:
                self._progress_at = self._loop.time()
            self._queue.append(stream_id, data, fin=fin)
            if fin and is_unidirectional(stream_id):
                self._finished.add(stream_id)
            self._above_low_water |= self._queue.queued_bytes >= self._config.low_water_bytes
            self._wake()

    def reset(self, stream_id: int, code: int) -> None:
        """Abandon the sending side of a stream."""
        if self._is_open:
            self._queue.discard(stream_id)
            self._finished.discard(stream_id)
            self._command(lambda: self._quic.reset_stream(stream_id, code))

    def stop_sending(self, stream_id: int, code: int) -> None:
        """Ask the peer to abandon its sending side of a stream."""
        if self._is_open:
            self._command(lambda: self._quic.stop_stream(stream_id, code))

    def set_priority(self, stream_id: int, priority: int) -> None:
        """Rank a stream."""
        if self._is_open:
            self._command(lambda: self._quic.set_stream_priority(stream_id, priority))

    def send_datagram(self, data: bytes) -> None:
        """Send a datagram, or drop it when there is no room or it is too large."""
        if self._is_open:
            try:
                self._quic.send_datagram_frame(data)
            except (ConnectionError, ValueError) as error:
                _logger.debug("datagram dropped: %s", error)

    def close(self, code: int, reason: str) -> None:
        """Close; code 0 delivers what is queued first."""
        if not self._is_open:
            return
        self._closing = (code, reason)
        if code:
            self._send_close()
        else:
            self._deadline = self._loop.call_later(self._config.close_timeout, self._send_close)
        self._wake()

    async def wait_closed(self) -> None:
        """Wait until the connection is over and its resources are released."""
        await self._released.wait()

    # The library's rings, for the send queue.

    def push(self, stream_id: int, data: bytes, *, fin: bool) -> bool:
        """Give bytes to the library; False when its rings are full."""
        try:
            self._quic.send_stream_data(stream_id, data, fin)
        except (BufferError, MemoryError):
            return False
        return True

    def used(self, stream_id: int) -> int:
        """Bytes of a stream in its ring."""
        return self._quic.tx_data_ring_used(stream_id)

    # Wakes.

    @property
    def waits(self) -> bool:
        """Tell whether this connection wants another look soon."""
        waits = self._queue.streams or self._owed or self._closing is not None
        return bool(waits) and not self._over

    def take(self, event: QuicEvent, *, by_application: bool) -> int:
        """Note an event of the library; return the bytes that it brings."""
        match event:
            case StreamDataReceived():
                self._batch.append(StreamData(event.stream_id, event.data, event.end_stream))
                return len(event.data)
            case StreamResetReceived():
                self._batch.append(StreamReset(event.stream_id, event.error_code))
            case StopSendingReceived():
                self._batch.append(StopSending(event.stream_id, event.error_code))
            case DatagramFrameReceived():
                self._batch.append(Datagram(event.data))
            case ConnectionTerminated():
                self._end(self._closed_event(event.error_code, by_application=by_application))
            case _:
                pass
        return 0

    def deliver(self) -> None:
        """Hand the events noted so far to the listener."""
        if self._batch and self._on_events is not None:
            batch, self._batch = self._batch, []
            self._on_events(batch)

    def move(self) -> int:
        """Move what is queued into the library; return the bytes that left its rings."""
        if self._over:
            return 0
        while self._owed and self._owed[0]():
            self._owed.popleft()
        moved = self._queue.pump()
        if moved:
            self._progress_at = self._loop.time()
        elif self._queue.queued_bytes:
            self._warn_when_stalled()
        if self._above_low_water and self.queued_bytes < self._config.low_water_bytes:
            self._above_low_water = False
            self._on_writable()
        if self._finished:
            self._finished = {s for s in self._finished if self._is_unacknowledged(s)}
        if self._closing is not None and not self._close_sent and self._is_flushed():
            self._send_close()
        return moved

    def _is_unacknowledged(self, stream_id: int) -> bool:
        """Tell whether a finished stream still lives in the library, until the last ACK."""
        return self._quic.get_stream_buf_stats(stream_id) is not None

    def _warn_when_stalled(self) -> None:
        stalled = self._loop.time() - self._progress_at
        if stalled >= _STALL_WARNING and not self._warned:
            self._warned = True
            _logger.warning(
                "peer %s takes nothing: %d bytes on %d streams wait for its credit",
                self._peer_address,
                self._queue.queued_bytes,
                self._queue.streams,
            )

    # Commands that a full event ring refuses.

    @property
    def _is_open(self) -> bool:
        return self._closing is None and not self._over

    def _command(self, call: Callable[[], object]) -> None:
        """Give a command to the library, after those that it still owes."""

        def attempt() -> bool:
            try:
                return call() != 1
            except BufferError:
                return False
            except ConnectionError:
                return True

        if self._owed or not attempt():
            self._owed.append(attempt)
            self._wake()

    # Ending.

    def _is_flushed(self) -> bool:
        """Tell whether the peer has everything: nothing queued, nothing unacknowledged.

        Bytes in transit are a snapshot of the library's thread, asked for now and read at the
        next look; two quiet looks in a row count.
        """
        if self._queue.streams or self._owed or self._finished:
            self._quiet_looks = 0
            return False
        in_transit = self._quic.path_quality().get("bytes_in_transit", 0)
        self._quiet_looks = 0 if in_transit else self._quiet_looks + 1
        return self._quiet_looks > 2

    def _send_close(self) -> None:
        if self._over or self._close_sent or self._closing is None:
            return
        self._close_sent = True
        self._queue.clear()
        self._owed.clear()
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(_CLOSE_WAIT, self._end_closed)
        code = self._closing[0]
        self._command(lambda: self._quic.close(code))

    def _end_closed(self) -> None:
        """Our close reached the wire, or had its time."""
        self._end(self._closed_event(0, by_application=False))
        self.deliver()

    def _closed_event(self, code: int, *, by_application: bool) -> Closed:
        if self._close_sent and self._closing is not None:
            own_code, reason = self._closing
            return Closed(own_code, reason or "closed by us", clean=not own_code)
        if by_application:
            return Closed(code, "closed by the peer", clean=not code)
        if code:
            return Closed(0, f"QUIC error: {_error_text(code)}")
        timeout = self._config.idle_timeout
        return Closed(0, f"no packet from the peer for {timeout:g} s (idle timeout)")

    def _end(self, closed: Closed) -> None:
        if self._over:
            return
        self._over = True
        self._queue.clear()
        self._owed.clear()
        if self._deadline is not None:
            self._deadline.cancel()
        self._batch.append(closed)
        self._loop.call_soon(self._finish)

    def _finish(self) -> None:
        """Free the library's side, outside its callbacks."""
        self.deliver()
        self._release()
        self._released.set()

    def abandon(self) -> None:
        """End at once: the context goes away."""
        self._end(Closed(0, "the server stops", clean=True))


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
        self.transport = PicoquicTransport(
            quic, peer, config, wake=self._pump.wake, release=self.stop
        )
        self.handshake: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    def stop(self) -> None:
        """Stop the context and join its thread."""
        self._pump.stop()
        self._quic.stop()

    def _turn(self) -> int:
        taken = 0
        while taken < _WAKE_BYTES and (event := self._quic.next_event()) is not None:
            taken += self._take(event)
        self.transport.deliver()
        return taken + self.transport.move()

    def _take(self, event: QuicEvent) -> int:
        if not self.handshake.done():
            if isinstance(event, HandshakeCompleted):
                self.handshake.set_result(None)
            elif isinstance(event, ConnectionTerminated):
                self.handshake.set_result(event.error_code)
                return 0
        return self.transport.take(event, by_application=self._quic.closed_by_application)


class _ServerEngine(QuicEngine):
    """Keeps the type of the event that is being routed, and counts."""

    events_routed = 0
    event_type = -1

    def open(self, port: int) -> None:
        """Start the context; the library's own ``serve`` would watch the eventfd itself."""
        self._start_transport(port=port)

    def route_event(self, ev: Sequence[int]) -> None:
        self.events_routed += 1
        self.event_type = ev[0]
        super().route_event(ev)


class _ServerPeer:
    """What the library calls a protocol: the receiver of one connection's events."""

    def __init__(
        self, quic: QuicConnection, take: "Callable[[_ServerPeer, QuicEvent], None]"
    ) -> None:
        self.quic = quic
        self.transport: PicoquicTransport | None = None
        self._take = take

    def _process_events(self) -> None:
        while (event := self.quic.next_event()) is not None:
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
        self._peers: dict[PicoquicTransport, _ServerPeer] = {}
        self._ready: list[PicoquicTransport] = []
        self._taken = 0
        self._engine = _ServerEngine(configuration=quic_config, create_protocol=self._create_peer)
        self._engine.open(address.port)
        self._pump = Pump(self._engine.eventfd, self._turn, self._waits)

    def __repr__(self) -> str:
        return f"<PicoquicListener {self._address}, {len(self._peers)} connections>"

    @property
    def address(self) -> Address:
        """Where clients connect."""
        return self._address

    def close(self) -> None:
        """Stop accepting, end all connections that are left, release the port."""
        self._pump.stop()
        for transport in list(self._peers):
            transport.abandon()
        self._engine.close()

    def _create_peer(self, quic: QuicConnection, stream_handler: object = None) -> _ServerPeer:
        del stream_handler
        return _ServerPeer(quic, self._take)

    def _turn(self) -> int:
        self._taken = 0
        before = -1
        while self._taken < _WAKE_BYTES and self._engine.events_routed != before:
            before = self._engine.events_routed
            self._engine.drain_and_route()
        ready, self._ready = self._ready, []
        for transport in dict.fromkeys(ready):
            transport.deliver()
        return self._taken + sum(transport.move() for transport in list(self._peers))

    def _waits(self) -> bool:
        return any(transport.waits for transport in self._peers)

    def _take(self, peer: _ServerPeer, event: QuicEvent) -> None:
        transport = peer.transport
        if transport is not None:
            by_application = self._engine.event_type == _APPLICATION_CLOSE
            self._taken += transport.take(event, by_application=by_application)
            self._ready.append(transport)
        elif isinstance(event, HandshakeCompleted):
            self._accept(peer)

    def _accept(self, peer: _ServerPeer) -> None:
        host, port = peer.quic.peer_address() or ("unknown", 0)
        transport = PicoquicTransport(
            peer.quic,
            Address(host, port),
            self._config,
            wake=self._pump.wake,
            release=lambda: self._forget(transport),
        )
        peer.transport = transport
        self._peers[transport] = peer
        self._on_transport(transport)

    def _forget(self, transport: PicoquicTransport) -> None:
        self._peers.pop(transport, None)


class PicoquicFactory(TransportFactory):
    """Makes QUIC transports."""

    async def connect(
        self, host: str, port: int, *, alpn: str, tls: ClientTls, config: TransportConfig
    ) -> PicoquicTransport:
        """Connect and finish the handshake.

        Raises:
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
            raise ConnectFailed(str(address), _handshake_failure(code, tls))
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
            TransportError: The port cannot be opened or the certificate cannot be used.
            ConfigError: A setting is not accepted.
        """
        address = Address(address.host, _free_port(address))
        quic_config = _configuration(alpn, config, is_client=False)
        quic_config.load_cert_chain(tls.certificate_file, tls.private_key_file)
        try:
            _check_readable(tls.certificate_file, tls.private_key_file)
            return PicoquicListener(address, quic_config, config, on_transport)
        except (OSError, RuntimeError, ValueError) as error:
            raise TransportError(f"cannot listen on {address}: {error}") from error


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
            _check_readable(tls.ca_file)
        except OSError as error:
            raise ConfigError("ca_file", "a readable PEM file", str(error)) from error
        quic_config.load_verify_locations(tls.ca_file)
    return quic_config


def _start_client(
    peer: Address, address: Address, quic_config: QuicConfiguration, config: TransportConfig
) -> _Client:
    quic = _ClientQuic(configuration=quic_config)
    try:
        quic.connect((peer.host, peer.port))
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


def _check_readable(*paths: str) -> None:
    for path in paths:
        with open(path, "rb"):  # noqa: PTH123
            pass


def _error_text(code: int) -> str:
    return f"{_QUIC_ERRORS.get(code, 'TLS alert' if code & 0x100 else 'error')} ({code:#x})"


def _handshake_failure(code: int, tls: ClientTls) -> str:
    if code:
        return _error_text(code)
    roots = tls.ca_file or "the public authorities"
    return f"the handshake failed: the server's certificate is not valid under {roots}"
