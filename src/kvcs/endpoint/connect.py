"""Connect to a MOQT server: `connect` for a scope, `dial` for the caller to close."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from kvcs.endpoint.connection import Connection
from kvcs.endpoint.url import Url, parse_url
from kvcs.errors import (
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    SessionRefused,
    TerminationCode,
    TransportError,
)
from kvcs.moqt.codepoints import ALPN
from kvcs.moqt.session.limits import SessionConfig, SessionLimits, Side
from kvcs.moqt.session.session import Session
from kvcs.moqt.wire.kvp import KeyValuePair
from kvcs.moqt.wire.setup import SetupOptions
from kvcs.moqt.wire.token import Token
from kvcs.transport.interface import (
    Address,
    ClientTls,
    TransportConfig,
    TransportFactory,
    is_loopback,
)
from kvcs.transport.picoquic import PicoquicFactory

__all__ = ("IMPLEMENTATION", "ConnectConfig", "connect", "dial")

#: Setup Option MOQT_IMPLEMENTATION, unless the caller says otherwise.
IMPLEMENTATION: Final = "kvcs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectConfig:
    """Settings of a client's connection.

    Attributes:
        tls: How the server is checked; unverified only towards loopback.
        transport: Settings of the QUIC connection.
        limits: Bounds on what the server can make the session hold.
        tokens: Authorization tokens of the SETUP.
        max_filter_ranges: Ranges of range filters that the server may send per request.
        implementation: Name for the server's log.
        goaway_hosts: Hosts, besides the one that was named, to which a server may send a
            `PersistentConnection` by GOAWAY. The tokens go along; certificates are checked
            there as here.
        private_options: Setup Options that are not of the draft; servers that do not know
            them ignore them.
    """

    tls: ClientTls = field(default_factory=ClientTls)
    transport: TransportConfig = field(default_factory=TransportConfig)
    limits: SessionLimits = field(default_factory=SessionLimits)
    tokens: tuple[Token, ...] = ()
    max_filter_ranges: int = 16
    implementation: str = IMPLEMENTATION
    goaway_hosts: tuple[str, ...] = ()
    private_options: tuple[KeyValuePair, ...] = ()


@asynccontextmanager
async def connect(
    url: str,
    config: ConnectConfig | None = None,
    *,
    transport: TransportFactory | None = None,
    on_connection: Callable[[Connection], None] | None = None,
) -> AsyncGenerator[Connection]:
    """Connect, and close cleanly at the end of the block.

    Args:
        url: ``moqt://host[:port]/path``; the default port is 443, a fragment is ignored.
        config: Settings; None for the defaults.
        transport: What carries the session; None for QUIC.
        on_connection: Called before SETUP; registers listeners and must not wait.

    Raises:
        ConfigError: The URL or a setting is wrong.
        CertificateRefused: The server's certificate is not valid for the host of the URL.
        SessionRefused: The server takes no session from here.
        ConnectFailed: No session, with the server's address and the reason.
        RemoteProtocolError: The server broke a rule before the session was set up.
    """
    connection = await dial(url, config, transport=transport, on_connection=on_connection)
    try:
        yield connection
    finally:
        await connection.close()


async def dial(
    url: str,
    config: ConnectConfig | None = None,
    *,
    transport: TransportFactory | None = None,
    on_connection: Callable[[Connection], None] | None = None,
) -> Connection:
    """Connect and return a connection that the caller closes; see `connect`."""
    target = parse_url(url)
    config = config or ConnectConfig()
    if not config.tls.verify and not is_loopback(target.host):
        raise ConfigError("tls.verify", "true, except towards this machine", target.host)
    factory = transport or PicoquicFactory()
    carrier = await factory.connect(
        target.host, target.port, alpn=ALPN, tls=config.tls, config=config.transport
    )
    session = Session(Side.CLIENT, _session_config(target, config))
    connection = Connection(carrier, session, close_timeout=config.transport.close_timeout)
    connection.start(on_connection)
    try:
        await connection.ready()
    except TransportError as error:
        raise _setup_failure(error, Address(target.host, target.port)) from error
    except BaseException:
        connection.abort(TerminationCode.NO_ERROR, "given up")
        raise
    return connection


def _setup_failure(error: TransportError, address: Address) -> ConnectFailed:
    if isinstance(error, ConnectionLost) and error.code == TerminationCode.UNAUTHORIZED:
        return SessionRefused(str(address), f"the server refused the session [{error}]")
    if isinstance(error, ConnectionLost) and error.code == TerminationCode.NO_ERROR:
        return ConnectFailed(
            str(address), "the server takes no new sessions now; it may be stopping"
        )
    return ConnectFailed(str(address), f"the session ended before it was set up: {error}")


def _session_config(url: Url, config: ConnectConfig) -> SessionConfig:
    """Build our SETUP; an empty PATH is left out, since servers may refuse it (Section 9.1)."""
    options = SetupOptions(
        path=url.path.encode() or None,
        authority=url.authority.encode(),
        authorization_tokens=config.tokens,
        max_filter_ranges=config.max_filter_ranges,
        max_request_updates=config.limits.max_request_updates,
        implementation=config.implementation,
        unknown=config.private_options,
    )
    return SessionConfig(options=options, limits=config.limits)
