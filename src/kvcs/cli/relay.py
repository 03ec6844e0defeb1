"""``kvcs relay``: run a caching relay."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from kvcs.cli._options import INPUT_FILE, Command, option, pass_output
from kvcs.cli._output import Output, format_bytes
from kvcs.cli._runtime import interruption, run
from kvcs.cli._units import DURATION, SIZE
from kvcs.endpoint.certificate import create_dev_certificate
from kvcs.errors import ConfigError
from kvcs.relay import Relay, RelayConfig, RelayStatistics, allow_all
from kvcs.transport.interface import Address, ServerTls, is_loopback

__all__ = ("relay",)


@click.group()
def relay() -> None:
    """Run a caching relay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    host: str
    port: int
    cache_bytes: int
    cert: Path | None
    key: Path | None
    dev_cert: Path | None
    allow_anyone: bool
    idle_timeout: float


@relay.command("run", cls=Command)
@option(
    "--host",
    default="127.0.0.1",
    help="Address to listen on. A loopback address serves this machine only; any other one "
    "serves all interfaces and needs --allow-anyone.",
)
@option("--port", type=click.IntRange(0, 65535), default=4433, help="UDP port; 0 takes a free one.")
@option("--cache-bytes", type=SIZE, default="1GiB", help="Memory for Objects.")
@option("--cert", type=INPUT_FILE, help="PEM file with the certificate chain.")
@option("--key", type=INPUT_FILE, help="PEM file with its private key.")
@option(
    "--dev-cert",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory with a development certificate, made if it is not there; clients trust "
    "its ca.pem.",
)
@option(
    "--allow-anyone",
    is_flag=True,
    help="Let everybody who can reach a public address publish, find and take everything.",
)
@option(
    "--idle-timeout",
    type=DURATION,
    default="10s",
    help="Time without a packet after which a client counts as gone.",
)
@pass_output
def relay_run(output: Output, **settings: Any) -> None:
    """Run a relay until SIGINT or SIGTERM.

    \b
    Examples:
      kvcs relay run --dev-cert ./certificate
      kvcs relay run --host 0.0.0.0 --allow-anyone --cert chain.pem --key key.pem --cache-bytes 8GiB
    """  # noqa: D301 - click reads the backslash
    run(_serve(output, _Settings(**settings)))


async def _serve(output: Output, settings: _Settings) -> None:
    config, ca = _configure(settings)
    async with interruption() as stopped, Relay(config) as running:
        _show_start(output, running.address, ca)
        await stopped.wait()
        statistics = running.statistics()
    _show_end(output, statistics)


def _configure(settings: _Settings) -> tuple[RelayConfig, Path | None]:
    """Return the relay's configuration, and the authority that clients must trust, if known."""
    if not is_loopback(settings.host) and not settings.allow_anyone:
        raise ConfigError(
            "--host",
            "a loopback address, or --allow-anyone, since this relay refuses nobody",
            settings.host,
        )
    tls, ca = _certificate(settings)
    config = RelayConfig(
        tls=tls,
        host=settings.host,
        port=settings.port,
        cache_bytes=settings.cache_bytes,
        authorize=allow_all,
    )
    transport = dataclasses.replace(config.transport, idle_timeout=settings.idle_timeout)
    return dataclasses.replace(config, transport=transport), ca


def _certificate(settings: _Settings) -> tuple[ServerTls, Path | None]:
    if settings.dev_cert is not None:
        if settings.cert or settings.key:
            raise ConfigError("--dev-cert", "no --cert and --key beside it")
        try:
            names = () if is_loopback(settings.host) else (settings.host,)
            files = create_dev_certificate(settings.dev_cert, names)
        except OSError as error:
            got = f"{settings.dev_cert}: {error.strerror}"
            raise ConfigError("--dev-cert", "a directory that can be written", got) from error
        return files.tls, files.ca_file
    if settings.cert is None or settings.key is None:
        raise ConfigError("certificate", "--cert and --key, or --dev-cert DIRECTORY")
    return ServerTls(certificate_file=str(settings.cert), private_key_file=str(settings.key)), None


def _show_start(output: Output, address: Address, ca: Path | None) -> None:
    url = f"moqt://{address}/"
    output.result({"event": "listening", "url": url, "ca": None if ca is None else str(ca)})
    trust = f" (clients trust it with --ca {ca})" if ca else ""
    output.text(f"listening on {url}{trust}")


def _show_end(output: Output, statistics: RelayStatistics) -> None:
    counters = {
        field.name: _plain(getattr(statistics, field.name))
        for field in dataclasses.fields(statistics)
    }
    output.result({"event": "stopped", "statistics": counters})
    output.text(
        f"stopped after {statistics.sessions_opened} sessions; {format_bytes(statistics.bytes_in)} "
        f"in, {format_bytes(statistics.bytes_out)} out"
    )


def _plain(value: int | Mapping[str, int]) -> int | dict[str, int]:
    return value if isinstance(value, int) else dict(value)
