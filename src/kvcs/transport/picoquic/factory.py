"""Connecting and listening: settings, certificates, names, and what a failed handshake means."""

# The library ships no types: what it hands out is unknown to the checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

from aiopquic.quic.configuration import QuicConfiguration

from kvcs.errors import (
    CertificateRefused,
    ConfigError,
    ConnectFailed,
    DraftRefused,
    TransportError,
)
from kvcs.transport.certificates import authorities_fault, pair_fault
from kvcs.transport.interface import (
    Address,
    ClientTls,
    ServerTls,
    Transport,
    TransportConfig,
    TransportFactory,
)
from kvcs.transport.picoquic.client import ClientContext, ClientQuic
from kvcs.transport.picoquic.library import NO_APPLICATION_PROTOCOL, quic_error
from kvcs.transport.picoquic.listener import PicoquicListener
from kvcs.transport.quic_transport import QuicTransport

__all__ = ("PicoquicFactory",)

#: Connections that the library holds at once; the endpoint has a lower limit of its own.
_MAX_CONNECTIONS: Final = 4096


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
            by_application = client.closed_by_application
            raise _handshake_failure(code, address, tls, by_application=by_application)
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
        fault = authorities_fault(tls.ca_file)
        if fault is not None:
            got = f"{tls.ca_file}: {fault}"
            raise ConfigError("ca_file", "a PEM file with certificates", got)
        quic_config.load_verify_locations(tls.ca_file)
    return quic_config


def _start_client(
    peer: Address, address: Address, quic_config: QuicConfiguration, config: TransportConfig
) -> ClientContext:
    quic = ClientQuic(configuration=quic_config)
    try:
        quic.connect((peer.host, peer.port))
        quic.set_default_stream_priority(config.default_priority)
    except (OSError, RuntimeError, ValueError) as error:
        quic.stop()
        raise ConnectFailed(str(address), str(error)) from error
    return ClientContext(quic, peer, config)


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
    fault = pair_fault(tls.certificate_file, tls.private_key_file)
    if fault is not None:
        got = f"{tls.certificate_file} and {tls.private_key_file}: {fault}"
        expected = "a PEM certificate and the unencrypted key that belongs to it"
        raise ConfigError("tls", expected, got)


def _handshake_failure(
    code: int, address: Address, tls: ClientTls, *, by_application: bool
) -> ConnectFailed:
    if by_application:
        # That says nothing of certificates: a server that stops closes with code 0.
        reason = f"the server closed the connection in the handshake ({code:#x})"
        return ConnectFailed(str(address), reason)
    if code:
        kind = DraftRefused if code == NO_APPLICATION_PROTOCOL else ConnectFailed
        return kind(str(address), quic_error(code))
    # The library does not tell a wrong authority from a wrong name.
    roots, name = tls.ca_file or "the public authorities", tls.server_name or address.host
    reason = f"the server's certificate is not valid under {roots} for the name {name}"
    return CertificateRefused(str(address), reason)
