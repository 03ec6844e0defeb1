"""``kvcs relay run``: run a caching relay until it is told to end."""

import dataclasses
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import click

from kvcs.admin import AdminServer
from kvcs.cli._options import option, pass_output
from kvcs.cli._output import Output, format_bytes
from kvcs.cli._runtime import interruption, run
from kvcs.cli.relay.addresses import public_name
from kvcs.cli.relay.assembly import admin_config, is_open_to_anyone, relay_config, server_tls
from kvcs.cli.relay.authorization import following_files
from kvcs.cli.relay.faults import check
from kvcs.cli.relay.flags import SettingsCommand, pass_settings, settings_options
from kvcs.cli.relay.schema import Admin, Settings
from kvcs.cli.relay.text import format_settings
from kvcs.errors import ConfigError, TransportError
from kvcs.relay import Relay, RelayStatistics
from kvcs.transport.interface import Address

__all__ = ("relay_run",)

_logger = logging.getLogger("kvcs.cli")


@click.command("run", cls=SettingsCommand)
@option("--print-config", is_flag=True, help="Print the settings as TOML instead.")
@settings_options
@pass_output
@pass_settings
def relay_run(output: Output, settings: Settings, *, print_config: bool) -> None:
    """Run a relay until SIGINT or SIGTERM.

    \b
    Examples:
      kvcs relay run --dev-cert ./certificate
      kvcs relay run --config relay.toml
      kvcs relay run --host 0.0.0.0 --token-keys keys.jwks --cert chain.pem --key key.pem
    """  # noqa: D301 - click reads the backslash
    if print_config:
        click.echo(format_settings(settings), nl=False)
        return
    check(settings)
    run(_serve(output, settings))


async def _serve(output: Output, settings: Settings) -> None:
    tls, ca = server_tls(settings)
    config = relay_config(settings, tls)
    if is_open_to_anyone(settings):
        output.complain(
            f"WARNING: everybody who can reach UDP port {config.port} of this machine can publish, "
            'find and take everything (authorization.policy is "allow-anyone")'
        )
    async with (
        interruption() as stopped,
        Relay(config) as running,
        _administer(running, settings) as admin,
        following_files(running, settings),
    ):
        host = public_name(config.host, Path(tls.certificate_file))
        _show_start(output, Address(host, running.address.port), ca, admin)
        if settings.authorization.policy == "deny":
            output.note('authorization.policy is "deny": every request is refused')
        await stopped.wait()
        await running.drain(settings.drain_timeout)
        statistics = running.statistics()
    _show_end(output, statistics)


@asynccontextmanager
async def _administer(relay: Relay, settings: Settings) -> AsyncGenerator[AdminServer | None]:
    """Open the admin listener, if there is to be one.

    Where nobody asked for its address, and another relay of this machine has it, this relay
    does without.
    """
    async with AsyncExitStack() as stack:
        admin = None
        if settings.admin.enabled:
            admin = AdminServer(relay, admin_config(settings))
            try:
                await stack.enter_async_context(admin)
            except TransportError as error:
                if settings.admin.port is not None or settings.admin.host != Admin().host:
                    expected = "an address and a port that this relay can have"
                    raise ConfigError("admin (--admin-port)", expected, str(error)) from error
                _logger.warning("no admin listener: %s", error)
                admin = None
        yield admin


def _show_start(
    output: Output, address: Address, ca: Path | None, admin: AdminServer | None
) -> None:
    url = f"moqt://{address}/"
    page = None if admin is None else f"http://{admin.address}/"
    shown_ca = None if ca is None else str(ca)
    output.result({"event": "listening", "url": url, "ca": shown_ca, "admin": page})
    trust = f" (clients trust it with --ca {ca})" if ca else ""
    output.text(f"listening on {url}{trust}")
    if page:
        output.text(f"status page, metrics and health at {page}")


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
