"""``kvcs top``: what a running relay does, again and again, for a terminal."""

import asyncio
import contextlib
import json
from dataclasses import dataclass

import click
from rich.console import Group, RenderableType
from rich.text import Text

from kvcs.admin import NamespaceStatus, Status
from kvcs.admin.status import encode
from kvcs.cli._errors import AdminUnreachable
from kvcs.cli._options import Command, option, pass_output
from kvcs.cli._output import Output, format_bytes
from kvcs.cli._runtime import interruption, run
from kvcs.cli._units import DURATION
from kvcs.cli.relay.admin import AdminClient, admin_option
from kvcs.cli.relay.display import (
    health,
    namespace_table,
    overview,
    session_table,
    short_name,
    track_table,
)
from kvcs.errors import ConfigError

__all__ = ("top",)

_LINES: int = 10
_LEAST_INTERVAL: float = 0.1


@click.command(cls=Command)
@admin_option
@option("--interval", type=DURATION, default="1s", help="Time between two looks.")
@pass_output
def top(output: Output, admin_url: str, interval: float) -> None:
    """Watch a running relay until SIGINT or SIGTERM.

    Shows its traffic, its sessions, those that are behind first, its namespaces, those used
    last first, and of the first one which Groups have arrived. With --json a line for each
    look, as kvcs relay status --json has it.

    \b
    Examples:
      kvcs top
      kvcs top --admin-url http://127.0.0.1:4434/ --interval 5s
    """  # noqa: D301 - click reads the backslash
    if interval < _LEAST_INTERVAL:
        raise ConfigError("--interval", f"at least {_LEAST_INTERVAL} s", f"{interval:g} s")
    if not output.as_json and not output.interactive:
        raise ConfigError("kvcs top", "a terminal, or --json; kvcs relay status needs neither")
    run(_watch(output, AdminClient(admin_url), interval))


@dataclass(slots=True)
class _View:
    """What was seen last.

    Attributes:
        status: The overview.
        namespace: The Tracks of the namespace that was used last.
        previous: The overview before.
        error: Why the relay does not answer now; empty when it does.
    """

    status: Status
    namespace: NamespaceStatus | None = None
    previous: Status | None = None
    error: str = ""

    def take(self, status: Status, namespace: NamespaceStatus | None) -> None:
        """Take a new look."""
        self.previous, self.status = self.status, status
        self.namespace, self.error = namespace, ""

    def draw(self) -> RenderableType:
        """Return the picture."""
        status = self.status
        parts: list[RenderableType] = [Text(health(status), style="bold"), Text("")]
        if self.error:
            parts.insert(1, Text(f"no answer: {self.error}", style="bold red"))
        parts += [Text(line) for line in overview(status)]
        parts.append(Text(f"rate        {self._rate()}"))
        if status.namespaces.shown:
            parts += [Text(""), namespace_table(status)]
        if self.namespace is not None and self.namespace.tracks:
            name = short_name(self.namespace.namespace)
            parts += [Text(f"\narrival of {name}", style="dim"), track_table(self.namespace)]
        if status.sessions:
            parts += [Text(""), session_table(status)]
        return Group(*parts)

    def _rate(self) -> str:
        previous, status = self.previous, self.status
        if previous is None or previous.started != status.started:
            return "-"
        seconds = max(0.001, status.uptime - previous.uptime)
        counts, before = status.statistics, previous.statistics
        received = (counts.bytes_in - before.bytes_in) / seconds
        sent = (counts.bytes_out - before.bytes_out) / seconds
        return f"{format_bytes(received)}/s in, {format_bytes(sent)}/s out"


async def _watch(output: Output, client: AdminClient, interval: float) -> None:
    """Look until somebody ends it; the first look must find a relay."""
    async with interruption() as stopped:
        status, namespace = await asyncio.to_thread(_look, client)
        view = _View(status, namespace)
        with _screen(output, view):
            output.result(json.loads(encode(status)))
            while not await _waited(stopped, interval):
                try:
                    view.take(*await asyncio.to_thread(_look, client))
                except AdminUnreachable as error:
                    view.error = error.reason
                else:
                    output.result(json.loads(encode(view.status)))


def _screen(output: Output, view: _View) -> contextlib.AbstractContextManager[object]:
    return contextlib.nullcontext() if output.as_json else output.screen(view.draw)


def _look(client: AdminClient) -> tuple[Status, NamespaceStatus | None]:
    status = client.status(limit=_LINES)
    shown = status.namespaces.shown
    return status, client.namespace(shown[0].namespace) if shown else None


async def _waited(stopped: asyncio.Event, seconds: float) -> bool:
    """Wait; tell whether it was ended meanwhile."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopped.wait()
    return stopped.is_set()
