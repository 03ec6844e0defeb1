"""From `Settings` to what a relay is made of, and all that prevents it."""

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kvcs.admin.config import AdminConfig
from kvcs.cli.relay.addresses import own_addresses
from kvcs.cli.relay.reader import WrongSettings
from kvcs.cli.relay.schema import Settings
from kvcs.endpoint.certificate import create_dev_certificate
from kvcs.errors import ConfigError
from kvcs.moqt.wire.token import Token
from kvcs.relay import Authorize, RelayConfig, allow_all, deny_all
from kvcs.relay.disk.config import DiskConfig
from kvcs.transport.interface import ClientTls, ServerTls, is_loopback

__all__ = ("admin_config", "check", "is_open_to_anyone", "relay_config", "server_tls")

_POLICIES: Final[dict[str, Authorize]] = {
    "this-machine": allow_all,
    "allow-anyone": allow_all,
    "deny": deny_all,
}
# Names that the library has for what has another name in the file.
_KEYS: Final = {"cache_bytes": "cache.memory_bytes"}
_MAX_TOKEN_BYTES: Final = 2**14


def check(settings: Settings) -> None:
    """Check that a relay can be made of settings; nothing is written.

    Raises:
        WrongSettings: It cannot; everything that is wrong is named.
    """
    errors = tuple(_errors(settings))
    if errors:
        raise WrongSettings(errors)


def relay_config(settings: Settings, tls: ServerTls) -> RelayConfig:
    """Return the configuration of the relay.

    Args:
        settings: Settings that `check` found no fault with.
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
            disk=_disk(settings),
            authorize=_POLICIES[settings.authorization.policy],
            limits=settings.limits,
            transport=settings.transport,
            max_filter_ranges=settings.max_filter_ranges,
            upstream=settings.upstream,
            upstream_tls=ClientTls(ca_file=_text(settings.upstream_ca)),
            upstream_tokens=_tokens(settings.upstream_token_file),
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
        port=admin.port,
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
        return _own_certificate(settings), None
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


def _errors(settings: Settings) -> Iterator[ConfigError]:
    yield from _authorization_errors(settings)
    yield from _certificate_errors(settings)
    yield from _readability_errors(settings)
    try:
        relay_config(settings, _own_certificate(settings))
    except ConfigError as error:
        yield error


def _authorization_errors(settings: Settings) -> Iterator[ConfigError]:
    policy, host = settings.authorization.policy, settings.listen.host
    if policy == "this-machine" and not is_loopback(host):
        yield ConfigError(
            "authorization.policy",
            f'"deny", or "allow-anyone" (--allow-anyone), since {host} is not a loopback address',
            f'"{policy}"',
        )


def _certificate_errors(settings: Settings) -> Iterator[ConfigError]:
    tls = settings.tls
    if tls.development_directory is not None:
        if tls.certificate or tls.private_key:
            expected = "no certificate and private_key beside it"
            yield ConfigError("tls.development_directory", expected)
    elif tls.certificate is None or tls.private_key is None:
        expected = (
            "tls.certificate and tls.private_key (--cert and --key), or "
            "tls.development_directory (--dev-cert DIRECTORY)"
        )
        yield ConfigError("certificate", expected)
    else:
        yield from _pair_errors(tls.certificate, tls.private_key)


def _pair_errors(certificate: Path, private_key: Path) -> Iterator[ConfigError]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # An empty password, or the library would ask for one on the terminal.
        context.load_cert_chain(certificate, private_key, password="")
    except ssl.SSLError as error:
        expected = "a PEM certificate and the unencrypted key that belongs to it"
        got = f"{certificate} and {private_key}: {error.reason or error.strerror}"
        yield ConfigError("tls.certificate", expected, got)
    except OSError as error:
        # It does not say which of the two.
        got = f"{certificate} and {private_key}: {error.strerror}"
        yield ConfigError("tls.certificate", "files that can be read", got)


def _readability_errors(settings: Settings) -> Iterator[ConfigError]:
    for name in ("upstream_ca", "upstream_token_file"):
        path: Path | None = getattr(settings, name)
        if path is not None:
            try:
                path.open("rb").close()
            except OSError as error:
                got = f"{path}: {error.strerror}"
                yield ConfigError(name, "a file that can be read", got)


def _own_certificate(settings: Settings) -> ServerTls:
    tls = settings.tls
    return ServerTls(certificate_file=str(tls.certificate), private_key_file=str(tls.private_key))


def _disk(settings: Settings) -> DiskConfig | None:
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


def _tokens(path: Path | None) -> tuple[Token, ...]:
    if path is None:
        return ()
    try:
        with path.open("rb") as file:
            value = file.read(_MAX_TOKEN_BYTES + 1).strip()
    except OSError as error:
        got = f"{path}: {error.strerror}"
        raise ConfigError("upstream_token_file", "a file that can be read", got) from error
    if not 0 < len(value) <= _MAX_TOKEN_BYTES:
        expected = f"a token of 1..{_MAX_TOKEN_BYTES} octets"
        raise ConfigError("upstream_token_file", expected, str(path))
    return (Token(value=value),)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
