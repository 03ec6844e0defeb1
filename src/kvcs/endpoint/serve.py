"""Serve MOQT: accept connections and keep them until they end.

The QUIC library binds the wildcard address whatever it is told. So a server that is to listen
on a loopback address closes connections from anywhere else before its SETUP.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from kvcs.endpoint.connect import IMPLEMENTATION
from kvcs.endpoint.connection import Connection
from kvcs.endpoint.inflow import Inflow, WindowBudget
from kvcs.errors import TerminationCode
from kvcs.moqt.codepoints import ALPN
from kvcs.moqt.session.limits import SessionConfig, SessionLimits, Side
from kvcs.moqt.session.session import Session
from kvcs.moqt.wire.kvp import KeyValuePair
from kvcs.moqt.wire.setup import SetupOptions
from kvcs.transport.interface import (
    Address,
    Listener,
    ServerTls,
    Transport,
    TransportConfig,
    TransportFactory,
    is_loopback,
)
from kvcs.transport.picoquic import PicoquicFactory

__all__ = ("ServeConfig", "Server", "serve")

_logger = logging.getLogger("kvcs.endpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Settings of a server.

    Attributes:
        tls: Certificate and key.
        transport: Settings of its QUIC connections.
        limits: Bounds on what one client can make its session hold.
        max_connections: Clients at once; more are closed before SETUP.
        max_connections_per_address: The same from one address, so that one machine cannot
            shut out all others.
        max_queued_bytes: Octets that may wait for a client that does not read. Data stays far
            below, at the transport's high-water mark; only messages can pass that, and more
            of them than this end the session.
        max_receive_rate: Octets a second that a client may send, after a burst of one
            second's worth. A client that is faster is closed: what it sends would otherwise
            pile up, or push out what others cached.
        max_window_bytes: Octets that the transport keeps for the streams that one client has
            open, at most `TransportConfig.max_stream_data` for each. A client that opens all
            its streams, fills their windows and ends none is closed.
        max_total_window_bytes: The same for all clients together. When it is used up, one client
            of the address that has most of it is closed, the one that has most.
        max_filter_ranges: Ranges of range filters that a client may send per request.
        implementation: Name for the clients' logs.
        private_options: Returns Setup Options that are not of the draft, for the SETUP of a
            new session; clients that do not know them ignore them.
    """

    tls: ServerTls
    transport: TransportConfig = field(default_factory=TransportConfig)
    limits: SessionLimits = field(default_factory=SessionLimits)
    max_connections: int = 256
    max_connections_per_address: int = 256
    max_queued_bytes: int = 64 * 2**20
    max_receive_rate: int = 2**30
    max_window_bytes: int = 512 * 2**20
    max_total_window_bytes: int = 2 * 2**30
    max_filter_ranges: int = 16
    implementation: str = IMPLEMENTATION
    private_options: Callable[[], tuple[KeyValuePair, ...]] = tuple


class Server:
    """An open port and its connections.

    Attributes:
        connections: Sessions that are not over.
        windows: What the transport keeps for their open streams.
    """

    def __init__(
        self, host: str, config: ServeConfig, on_connection: Callable[[Connection], None]
    ) -> None:
        """Prepare a server; `serve` opens it."""
        self.connections: set[Connection] = set()
        self.windows = WindowBudget(config.max_total_window_bytes)
        self._by_host: Counter[str] = Counter()
        self._host = host
        self._config = config
        self._on_connection = on_connection
        self._listener: Listener | None = None
        self._is_leaving = False

    def __repr__(self) -> str:
        return f"<Server {self._host}, {len(self.connections)} connections>"

    @property
    def address(self) -> Address:
        """Where clients connect."""
        assert self._listener is not None, "the server is open"
        return self._listener.address

    def attach(self, listener: Listener) -> None:
        """Own an open port."""
        self._listener = listener

    def leave(self) -> None:
        """Take no new sessions from now on; those that there are go on."""
        self._is_leaving = True

    def accept(self, transport: Transport) -> None:
        """Start a session on a new connection, or close it."""
        refusal = self._refusal(transport.peer_address)
        if refusal:
            level = logging.INFO if self._is_leaving else logging.WARNING
            _logger.log(level, "connection from %s refused: %s", transport.peer_address, refusal[1])
            transport.set_listener(lambda _: None, lambda: None)
            transport.close(*refusal)
            return
        inflow = Inflow(
            max_rate=self._config.max_receive_rate,
            max_window_bytes=self._config.max_window_bytes,
            window_bytes=self._config.transport.max_stream_data,
            budget=self.windows,
        )
        connection = Connection(
            transport,
            Session(Side.SERVER, self._session_config()),
            close_timeout=self._config.transport.close_timeout,
            max_queued_bytes=self._config.max_queued_bytes,
            inflow=inflow,
        )
        host = transport.peer_address.host
        self.windows.join(inflow, host, partial(_close_excessive, connection))
        connection.on_closed(lambda: self.windows.leave(inflow))
        self._count(connection, host)
        connection.start(self._on_connection)

    async def close(self, *, flush: bool = True) -> None:
        """Close all connections, then the port; bounded in time.

        Args:
            flush: First send what is owed to each client.
        """
        async with asyncio.TaskGroup() as group:
            for connection in list(self.connections):
                group.create_task(
                    connection.close(reason="the server stops", flush=flush),
                    name=f"close {connection.peer}",
                )
        if self._listener is not None:
            self._listener.close()

    def _count(self, connection: Connection, host: str) -> None:
        """Count a connection, in all and of its address, until it is over."""
        self.connections.add(connection)
        self._by_host[host] += 1

        def forget() -> None:
            self.connections.discard(connection)
            self._by_host[host] -= 1
            if not self._by_host[host]:
                del self._by_host[host]

        connection.on_closed(forget)

    def _refusal(self, peer: Address) -> tuple[TerminationCode, str] | None:
        """Return why a client is not served; sessions have no code for too much load."""
        config = self._config
        if self._is_leaving:
            return TerminationCode.NO_ERROR, "this server stops, and takes no new sessions"
        if is_loopback(self._host) and not is_loopback(peer.host):
            return TerminationCode.UNAUTHORIZED, "this server is for this machine only"
        if len(self.connections) >= config.max_connections:
            reason = f"this server takes {config.max_connections} connections"
            return TerminationCode.INTERNAL_ERROR, reason
        if self._by_host[peer.host] >= config.max_connections_per_address:
            reason = f"this server takes {config.max_connections_per_address} from one address"
            return TerminationCode.INTERNAL_ERROR, reason
        return None

    def _session_config(self) -> SessionConfig:
        config = self._config
        options = SetupOptions(
            max_filter_ranges=config.max_filter_ranges,
            max_auth_token_cache_size=config.limits.max_token_cache_bytes,
            max_request_updates=config.limits.max_request_updates,
            implementation=config.implementation,
            unknown=config.private_options(),
        )
        return SessionConfig(options=options, limits=config.limits)


def _close_excessive(connection: Connection, reason: str) -> None:
    """Close a client for what it costs; sessions have no code for that."""
    connection.abort(TerminationCode.INTERNAL_ERROR, f"excessive load: {reason}")


@asynccontextmanager
async def serve(
    host: str,
    port: int,
    on_connection: Callable[[Connection], None],
    *,
    config: ServeConfig,
    transport: TransportFactory | None = None,
) -> AsyncGenerator[Server]:
    """Serve until the end of the block, then close everything cleanly.

    Args:
        host: A loopback name or address closes connections from elsewhere before SETUP; any
            other value accepts all, on all interfaces.
        port: UDP port; 0 picks a free one.
        on_connection: Called for each new connection before its SETUP; it registers
            listeners and must not wait.
        config: Settings.
        transport: What carries the sessions; None for QUIC.

    Raises:
        TransportError: The port cannot be opened, or the certificate cannot be used.
    """
    server = Server(host, config, on_connection)
    factory = transport or PicoquicFactory()
    listener = await factory.listen(
        Address(host, port), server.accept, alpn=ALPN, tls=config.tls, config=config.transport
    )
    server.attach(listener)
    try:
        yield server
    finally:
        await server.close()
