"""``kvcs relay``: run a caching relay, and look after one."""

import click

from kvcs.cli._options import Group
from kvcs.cli.relay.check import check_config, print_config
from kvcs.cli.relay.run import relay_run
from kvcs.cli.relay.status import relay_status

__all__ = ("check_config", "print_config", "relay", "relay_run", "relay_status")


@click.group(cls=Group)
def relay() -> None:
    """Run a caching relay, and look after one."""


for _command in (relay_run, relay_status, check_config, print_config):
    relay.add_command(_command)
