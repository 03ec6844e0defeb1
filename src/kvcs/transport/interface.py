"""The seam between MOQT and whatever carries its streams.

A `Transport` is one connection with QUIC's streams: ids are numbered by the caller exactly
as QUIC numbers them (bit 0: opened by the server, bit 1: unidirectional), the bytes of a
stream arrive in order, streams are independent. Events come in batches to one callback, on
the event loop's thread. Writing never blocks and never fails: bytes queue inside the
transport, and the caller watches `Transport.room`.

Nothing here knows MOQT, so that the same seam fits native QUIC and streams multiplexed over
TLS and TCP.
"""

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from kvcs.errors import ConfigError

__all__ = (
    "CONGESTION_CONTROLS",
    "Address",
    "ClientTls",
    "Closed",
    "Datagram",
    "Listener",
    "ServerTls",
    "StopSending",
    "StreamData",
    "StreamReset",
    "Transport",
    "TransportConfig",
    "TransportEvent",
    "TransportFactory",
    "is_loopback",
    "is_unidirectional",
)

_MIB = 1 << 20

#: Names of congestion control that a connection may have.
CONGESTION_CONTROLS: Final = (
    *("newreno", "reno", "cubic", "dcubic", "fast", "bbr", "bbr1", "prague", "c4"),
)


class Address(NamedTuple):
    """Host and port of one end of a connection."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class StreamData(NamedTuple):
    """Bytes of a stream, in order; by far the most frequent event.

    Attributes:
        stream_id: QUIC stream id.
        data: Belongs to the receiver, stays valid as long as it is referenced.
        fin: The stream ends after `data`.
    """

    stream_id: int
    data: bytes | memoryview
    fin: bool = False


@dataclass(frozen=True, slots=True)
class StreamReset:
    """The peer reset a stream; bytes that were under way may be missing."""

    stream_id: int
    code: int


@dataclass(frozen=True, slots=True)
class StopSending:
    """The peer does not want more of a stream of ours."""

    stream_id: int
    code: int


@dataclass(frozen=True, slots=True)
class Datagram:
    """One datagram; datagrams may be lost and overtake each other."""

    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Closed:
    """The connection is over; the last event.

    Attributes:
        code: Application code of the close; 0 also when the peer just vanished.
        reason: What happened, for people; never empty.
        clean: One of the two ends closed on purpose with code 0.
    """

    code: int
    reason: str
    clean: bool = False


type TransportEvent = StreamData | StreamReset | StopSending | Datagram | Closed


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportConfig:
    """Settings of a connection that do not depend on its side.

    Attributes:
        congestion_control: Algorithm, one of `CONGESTION_CONTROLS`. With ``newreno`` a packet
            in a thousand that is lost between two sites leaves nearly nothing of the link.
        idle_timeout: Seconds without a packet after which the peer counts as gone. A living
            peer is pinged every third of it.
        connect_timeout: Seconds for address look-up and handshake.
        close_timeout: Seconds that `Transport.close` may take to deliver what is queued.
        max_data: Bytes that the peer may have under way on all streams together before the
            first credit comes back.
        max_stream_data: The same per stream. The library returns this credit when bytes are
            taken from it, so it bounds what one long stream can pile up here while the process
            is busy; 4 MiB carry 320 Mbit/s per stream over 100 ms.
        max_uni_streams: Unidirectional streams that the peer may have open.
        max_bidi_streams: Bidirectional streams that the peer may have open.
        stream_ring_bytes: Bytes of one stream that may wait in the library for the network.
        high_water_bytes: `Transport.room` is counted from here.
        low_water_bytes: The writer is called again once the queue is below.
        default_priority: Rank of streams that nobody ranked: those that the peer opened and
            that are answered. Ahead of data, or answers would starve behind it.
    """

    congestion_control: str = "cubic"
    idle_timeout: float = 10.0
    connect_timeout: float = 10.0
    close_timeout: float = 5.0
    max_data: int = 8 * _MIB
    max_stream_data: int = 4 * _MIB
    max_uni_streams: int = 256
    max_bidi_streams: int = 128
    stream_ring_bytes: int = 4 * _MIB
    high_water_bytes: int = 4 * _MIB
    low_water_bytes: int = 2 * _MIB
    default_priority: int = 2

    def __post_init__(self) -> None:
        """Refuse what would stall every connection.

        Raises:
            ConfigError: A value is out of its range.
        """
        for key in ("idle_timeout", "connect_timeout", "close_timeout", "stream_ring_bytes"):
            value = getattr(self, key)
            if value <= 0:
                raise ConfigError(f"transport.{key}", "more than 0", str(value))
        if self.congestion_control not in CONGESTION_CONTROLS:
            expected, got = ", ".join(CONGESTION_CONTROLS), self.congestion_control
            raise ConfigError("transport.congestion_control", f"one of {expected}", got)
        if not 0 < self.low_water_bytes <= self.high_water_bytes:
            got = f"{self.low_water_bytes} and {self.high_water_bytes}"
            raise ConfigError("transport.low_water_bytes", "1..high_water_bytes", got)
        if not 0 <= self.default_priority <= 255:
            got = str(self.default_priority)
            raise ConfigError("transport.default_priority", "0..255", got)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """How a client checks the server.

    Attributes:
        ca_file: PEM file of trusted roots; None for the public ones.
        verify: False accepts any certificate; the caller allows that towards loopback only.
        server_name: Name expected in the certificate; None for the host.
    """

    ca_file: str | None = None
    verify: bool = True
    server_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """What a server shows.

    Attributes:
        certificate_file: PEM file with the server's chain.
        private_key_file: PEM file with its key.
    """

    certificate_file: str
    private_key_file: str


class Transport(Protocol):
    """One connection."""

    @property
    def peer_address(self) -> Address:
        """The other end."""
        ...

    @property
    def queued_bytes(self) -> int:
        """Bytes accepted and not yet handed to the network."""
        ...

    @property
    def room(self) -> int:
        """Bytes below the high-water mark; 0 when the caller should stop writing."""
        ...

    @property
    def max_bidi_streams(self) -> int:
        """Bidirectional streams that the peer lets this end have open at a time.

        The first ones of a connection; a peer that never lets others follow is not noticed.
        """
        ...

    def is_drained(self, stream_id: int) -> bool:
        """Tell whether all that was written on a stream was handed to the network."""
        ...

    def unsent_bytes(self, stream_id: int) -> int:
        """Bytes of a stream that were written and not yet handed to the network."""
        ...

    def set_listener(
        self,
        on_events: Callable[[Sequence[TransportEvent]], None],
        on_writable: Callable[[], None],
    ) -> None:
        """Name the receiver; what arrived before is delivered on the next loop turn.

        Args:
            on_events: Takes each batch. After a batch with `Closed` nothing follows.
            on_writable: Called soon after writes, once `queued_bytes` is below the low-water
                mark.
        """
        ...

    def write(self, stream_id: int, data: bytes, *, fin: bool = False) -> None:
        """Queue bytes on a stream; the first write on a new local id opens it.

        Ignored after `close`.
        """
        ...

    def reset(self, stream_id: int, code: int) -> None:
        """Abandon the sending side of a stream; its queued bytes are dropped."""
        ...

    def stop_sending(self, stream_id: int, code: int) -> None:
        """Ask the peer to abandon its sending side of a stream."""
        ...

    def set_priority(self, stream_id: int, priority: int) -> None:
        """Rank a stream: 0 first, 255 last; even values share equally among equals."""
        ...

    def send_datagram(self, data: bytes) -> None:
        """Send a datagram, or drop it when there is no room or it is too large."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Close the connection.

        With code 0 what is queued is delivered first, bounded by
        `TransportConfig.close_timeout`; any other code closes at once.
        """
        ...

    async def wait_closed(self) -> None:
        """Wait until the connection is over and its resources are released."""
        ...


class Listener(Protocol):
    """A server's open port."""

    @property
    def address(self) -> Address:
        """Where clients connect; the port is the real one when 0 was asked for."""
        ...

    def close(self) -> None:
        """Stop accepting, end all connections that are left, release the port."""
        ...


class TransportFactory(Protocol):
    """A way to make transports."""

    async def connect(
        self, host: str, port: int, *, alpn: str, tls: ClientTls, config: TransportConfig
    ) -> Transport:
        """Connect and finish the handshake.

        Raises:
            ConnectFailed: No connection, with the reason.
        """
        ...

    async def listen(
        self,
        address: Address,
        on_transport: Callable[[Transport], None],
        *,
        alpn: str,
        tls: ServerTls,
        config: TransportConfig,
    ) -> Listener:
        """Accept connections; each finished handshake calls `on_transport`.

        Raises:
            TransportError: The port cannot be opened or the certificate cannot be used.
        """
        ...


def is_unidirectional(stream_id: int) -> bool:
    """Tell whether a stream carries bytes one way only (RFC 9000, Section 2.1)."""
    return bool(stream_id & 2)


def is_loopback(host: str) -> bool:
    """Tell whether `host` is this machine: a loopback literal or ``localhost``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
