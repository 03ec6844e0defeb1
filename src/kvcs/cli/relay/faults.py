"""All that prevents a relay from running with given settings, found without running it.

Every check stands for itself, so that one look finds everything. Nothing is written; whether a
port is free is seen only when it is opened, since a relay may run with these very settings.
"""

import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from kvcs.cli._output import format_bytes
from kvcs.cli.relay.assembly import disk_config, own_certificate, relay_config, upstream_tokens
from kvcs.cli.relay.authorization import policy
from kvcs.cli.relay.reader import WrongSettings, examine
from kvcs.cli.relay.schema import Authorization, Cache, Disk, Settings, changed
from kvcs.errors import ConfigError
from kvcs.transport.certificates import authorities_fault, pair_fault
from kvcs.transport.interface import is_loopback

__all__ = ("check", "faults_of_file", "is_host")

# Labels of letters, digits and hyphens: RFC 1123, Section 2.1; underscores are seen in practice.
_HOST_NAME: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.(?!-)[A-Za-z0-9_-]{1,63})*\.?")
_MAX_HOST_CHARACTERS: Final = 253
#: Where the system tells what the processes of a container may use.
_MEMORY_BOUND: Final = Path("/sys/fs/cgroup/memory.max")


def check(settings: Settings) -> None:
    """Check that a relay can run with settings; nothing is written.

    Raises:
        WrongSettings: It cannot; everything that is wrong is named.
    """
    errors = tuple(_errors(settings))
    if errors:
        raise WrongSettings(errors)


def faults_of_file(path: Path) -> tuple[ConfigError, ...]:
    """Return everything that is wrong with a file, in its form and in what it asks for.

    Raises:
        ConfigError: The file cannot be read.
        WrongSettings: It is not TOML.
    """
    settings, misread = examine(path)
    # What a table asks for is not known as long as one of its keys is not understood.
    tables = {error.key.partition(".")[0] for error in misread}
    return (
        *misread,
        *(error for error in _errors(settings) if error.key.partition(".")[0] not in tables),
    )


def is_host(text: str) -> bool:
    """Tell whether a text is an IP address, or could be a host name."""
    return _is_address(text) or (
        len(text) <= _MAX_HOST_CHARACTERS and _HOST_NAME.fullmatch(text) is not None
    )


def _errors(settings: Settings) -> Iterator[ConfigError]:
    yield from _host_errors(settings)
    yield from _authorization_errors(settings)
    yield from _certificate_errors(settings)
    yield from _authority_errors(settings)
    yield from _memory_errors(settings)
    yield from _directory_errors(settings)
    yield from _value_errors(settings)


def _host_errors(settings: Settings) -> Iterator[ConfigError]:
    host = settings.listen.host
    if not is_host(host):
        yield ConfigError("listen.host", "an IP address or a host name", repr(host))
    if settings.admin.enabled:
        yield from _admin_host_errors(settings.admin.host)


def _admin_host_errors(host: str) -> Iterator[ConfigError]:
    expected = "an address of this machine"
    if not is_host(host):
        yield ConfigError("admin.host", expected, repr(host))
        return
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                # Any free port, and nobody is listened to.
                probe.bind(address)
    except OSError as error:
        yield ConfigError("admin.host", expected, f"{host}: {error.strerror}")


def _authorization_errors(settings: Settings) -> Iterator[ConfigError]:
    policy, host = settings.authorization.policy, settings.listen.host
    if policy == "this-machine" and is_host(host) and not is_loopback(host):
        yield ConfigError(
            "authorization.policy",
            f'"c4m" (--token-keys), "deny", or "allow-anyone" (--allow-anyone), since {host} is '
            "not a loopback address",
            f'"{policy}"',
        )


def _certificate_errors(settings: Settings) -> Iterator[ConfigError]:
    tls = settings.tls
    if tls.development_directory is not None:
        if tls.certificate or tls.private_key:
            expected = "no certificate and private_key beside it"
            yield ConfigError("tls.development_directory", expected)
        yield from _unusable("tls.development_directory", tls.development_directory)
    elif tls.certificate is None or tls.private_key is None:
        expected = (
            "tls.certificate and tls.private_key (--cert and --key), or "
            "tls.development_directory (--dev-cert DIRECTORY)"
        )
        yield ConfigError("tls", expected)
    else:
        yield from _pair_errors(tls.certificate, tls.private_key)


def _pair_errors(certificate: Path, private_key: Path) -> Iterator[ConfigError]:
    unreadable = [
        *_unreadable("tls.certificate", certificate),
        *_unreadable("tls.private_key", private_key),
    ]
    if unreadable:
        yield from unreadable
        return
    fault = pair_fault(certificate, private_key)
    if fault is not None:
        expected = "a PEM certificate and the unencrypted key that belongs to it"
        yield ConfigError("tls.certificate", expected, f"{certificate} and {private_key}: {fault}")


def _authority_errors(settings: Settings) -> Iterator[ConfigError]:
    path = settings.upstream_ca
    if path is None:
        return
    unreadable = [*_unreadable("upstream_ca", path)]
    if unreadable:
        yield from unreadable
        return
    fault = authorities_fault(path)
    if fault is not None:
        yield ConfigError("upstream_ca", "a PEM file with certificates", f"{path}: {fault}")


def _memory_errors(settings: Settings) -> Iterator[ConfigError]:
    asked, there = settings.cache.memory_bytes, _memory_bytes()
    if asked > there:
        expected = f"at most {format_bytes(there)}, the memory of this machine"
        yield ConfigError("cache.memory_bytes", expected, format_bytes(asked))


def _directory_errors(settings: Settings) -> Iterator[ConfigError]:
    if settings.disk.directory is not None:
        yield from _unusable("disk.directory", settings.disk.directory)


def _value_errors(settings: Settings) -> Iterator[ConfigError]:
    """Yield what the library does not take, one of each part."""
    tls, limits = own_certificate(settings), settings.limits
    plain = changed(
        settings,
        upstream=(),
        upstream_token_file=None,
        authorization=Authorization(),
        disk=Disk(),
        cache=Cache(),
        limits=changed(limits, max_partial_bytes=limits.session.max_object_bytes),
    )

    def built(**values: object) -> Callable[[], object]:
        return lambda: relay_config(changed(plain, **values), tls)

    parts: tuple[Callable[[], object], ...] = (
        lambda: upstream_tokens(settings),
        lambda: policy(settings),
        built(upstream=settings.upstream),
        built(cache=settings.cache),
        built(limits=limits),
        lambda: disk_config(settings),
    )
    found = [*_raised(parts)]
    yield from found
    if not found:
        # What does not fit together.
        yield from _raised([lambda: relay_config(settings, tls)])


def _raised(
    parts: tuple[Callable[[], object], ...] | list[Callable[[], object]],
) -> Iterator[ConfigError]:
    for make in parts:
        try:
            make()
        except ConfigError as error:
            yield error


def _unreadable(key: str, path: Path) -> Iterator[ConfigError]:
    try:
        path.open("rb").close()
    except OSError as error:
        yield ConfigError(key, "a file that can be read", f"{path}: {error.strerror}")


def _unusable(key: str, directory: Path) -> Iterator[ConfigError]:
    """Yield why nothing can be written to a directory, or why it cannot be made."""
    nearest = directory
    while not os.path.lexists(nearest) and nearest != nearest.parent:
        nearest = nearest.parent
    expected = "a directory that can be written"
    if not nearest.is_dir():
        yield ConfigError(key, expected, f"{nearest}: not a directory")
    elif not os.access(nearest, os.W_OK | os.X_OK):
        yield ConfigError(key, expected, f"{nearest}: not writable")


def _memory_bytes() -> int:
    """Return the memory of this machine, or what this process may use of it."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(there, int(_MEMORY_BOUND.read_text()))
    except (OSError, ValueError):
        # No such bound: the file is not there, or says "max".
        return there


def _is_address(text: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, text)
        except (OSError, ValueError):
            continue
        return True
    return False
