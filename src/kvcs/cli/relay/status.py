"""``kvcs relay status``: what a running relay does, once."""

import json

import click

from kvcs.admin import Status
from kvcs.admin.status import encode
from kvcs.cli._errors import ExitCode
from kvcs.cli._options import Command, option, pass_output
from kvcs.cli._output import Output
from kvcs.cli.relay.admin import AdminClient, admin_option
from kvcs.cli.relay.display import health, namespace_table, overview, session_table

__all__ = ("relay_status",)


@click.command("status", cls=Command)
@admin_option
@option("--limit", type=click.IntRange(1, 200), default=20, help="Sessions and namespaces to list.")
@pass_output
def relay_status(output: Output, admin_url: str, limit: int) -> int:
    """Show what a running relay does.

    Sessions that are furthest behind come first, and namespaces that were used last. The exit
    code is 0 if the relay is ready, and 1 if it is not.

    \b
    Examples:
      kvcs relay status
      kvcs relay status --admin-url http://127.0.0.1:4434/ --json
    """  # noqa: D301 - click reads the backslash
    status = AdminClient(admin_url).status(limit=limit)
    output.result(json.loads(encode(status)))
    _show(output, status)
    return ExitCode.DONE if status.is_ready else ExitCode.FAILED


def _show(output: Output, status: Status) -> None:
    output.text(health(status))
    output.text("\n".join(overview(status)))
    if status.namespaces.shown:
        output.text("")
        output.table(namespace_table(status))
    if status.sessions:
        output.text("")
        output.table(session_table(status))
