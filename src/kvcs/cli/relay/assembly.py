"""From `Settings` to what a relay is made of."""

from pathlib import Path
from typing import Final

from kvcs.admin.config import AdminConfig
from kvcs.cli._tokens import check_read_again, read_tokens
from kvcs.cli.relay.addresses import own_addresses
from kvcs.cli.relay.authorization import policy
from kvcs.cli.relay.schema import Settings
from kvcs.endpoint.certificate import create_dev_certificate
from kvcs.errors import ConfigError
from kvcs.moqt.wire.token import Token
from kvcs.relay import RelayConfig
from kvcs.relay.disk.config import DiskConfig
from kvcs.transport.interface import ClientTls, ServerTls, is_loopback

__all__ = (
    "admin_config",
    "disk_config",
    "is_open_to_anyone",
    "own_certificate",
    "relay_config",
    "server_tls",
    "upstream_tokens",
)

# Names that the library has for what has another name in the file.
_KEYS: Final = {"cache_bytes": "cache.memory_bytes"}


def relay_config(settings: Settings, tls: ServerTls) -> RelayConfig:
    """Return the configuration of the relay.

    Args:
        settings: Settings that `faults.check` found no fault with.
        tls: What `server_tls` gave.

    Raises:
        ConfigError: A value is out of its range, or a file is gone.
    """
    try:
        return RelayConfig(
            tls=tls,
            host=settings.listen.host,
            port=settings.listen.port,
            cache_bytes=settings.cache.memory_bytes,
            disk=disk_config(settings),
            authorize=policy(settings),
            limits=settings.limits,
            transport=settings.transport,
            max_filter_ranges=settings.max_filter_ranges,
            upstream=settings.upstream,
            upstream_tls=ClientTls(ca_file=_text(settings.upstream_ca)),
            upstream_tokens=upstream_tokens(settings),
            upstream_backoff=settings.upstream_backoff,
        )
    except ConfigError as error:
        key = _KEYS.get(error.key, error.key)
        raise ConfigError(key, error.expected, error.got) from error


def admin_config(settings: Settings) -> AdminConfig:
    """Return the configuration of the admin listener."""
    admin = settings.admin
    return AdminConfig(
        host=admin.host,
        port=AdminConfig().port if admin.port is None else admin.port,
        slow_after=admin.slow_after,
        ready_without_upstream=admin.ready_without_upstream,
        limits=admin.limits,
    )


def server_tls(settings: Settings) -> tuple[ServerTls, Path | None]:
    """Return the certificate, and the authority that clients must trust, if known.

    A development certificate is made when it is not there.

    Raises:
        ConfigError: It cannot be written.
    """
    tls, host = settings.tls, settings.listen.host
    if tls.development_directory is None:
        return own_certificate(settings), None
    names = set(tls.development_names)
    if not is_loopback(host):
        names |= {host, *own_addresses()}
    try:
        files = create_dev_certificate(tls.development_directory, sorted(names))
    except OSError as error:
        got = f"{tls.development_directory}: {error.strerror}"
        key = "tls.development_directory (--dev-cert)"
        raise ConfigError(key, "a directory that can be written", got) from error
    return files.tls, files.ca_file


def is_open_to_anyone(settings: Settings) -> bool:
    """Tell whether everybody who can reach a public address may do everything."""
    is_public = not is_loopback(settings.listen.host)
    return is_public and settings.authorization.policy == "allow-anyone"


def own_certificate(settings: Settings) -> ServerTls:
    """Return the certificate that the settings name; nothing is read."""
    tls = settings.tls
    return ServerTls(certificate_file=str(tls.certificate), private_key_file=str(tls.private_key))


def disk_config(settings: Settings) -> DiskConfig | None:
    """Return the settings of the disk tier; None without one.

    Raises:
        ConfigError: A value is out of its range.
    """
    disk = settings.disk
    if disk.directory is None:
        return None
    return DiskConfig(
        directory=disk.directory,
        capacity_bytes=disk.capacity_bytes,
        max_tracks=disk.max_tracks,
        queue_bytes=disk.queue_bytes,
        read_ahead_bytes=disk.read_ahead_bytes,
        retry_interval=disk.retry_interval,
    )


def upstream_tokens(settings: Settings) -> tuple[Token, ...]:
    """Return the tokens for the parents.

    Raises:
        ConfigError: The file cannot be read, is a pipe, or holds no token.
    """
    key = "upstream_token_file"
    check_read_again(settings.upstream_token_file, key)
    return read_tokens(settings.upstream_token_file, key)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
