"""``kvcs relay check-config`` and ``print-config``: look at settings without running anything."""

from pathlib import Path

import click

from kvcs.cli._errors import ExitCode
from kvcs.cli._options import Command, pass_output
from kvcs.cli._output import Output
from kvcs.cli.relay.faults import faults_of_file
from kvcs.cli.relay.flags import SettingsCommand, pass_settings, settings_options
from kvcs.cli.relay.reader import WrongSettings
from kvcs.cli.relay.schema import Settings
from kvcs.cli.relay.text import format_settings
from kvcs.errors import ConfigError

__all__ = ("check_config", "print_config")


@click.command("check-config", cls=Command)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@pass_output
def check_config(output: Output, file: Path) -> int:
    """Check the settings in FILE, and name everything that is wrong.

    A line for each fault says where it is, what was expected and what was found. The exit code
    is 2 if there is one. Whatever kvcs relay run would refuse is found, but for ports that are
    taken: a relay may run with this very file. Nothing is written.

    \b
    Example:
      kvcs relay check-config relay.toml
    """  # noqa: D301 - click reads the backslash
    errors: tuple[ConfigError, ...]
    try:
        errors = faults_of_file(file)
    except WrongSettings as error:
        errors = error.errors
    faults = [{"key": e.key, "expected": e.expected, "got": e.got} for e in errors]
    output.result({"file": str(file), "valid": not errors, "errors": faults})
    for error in errors:
        output.complain(f"{file}: {error}")
    if not errors:
        output.text(f"{file}: valid")
    return ExitCode.USAGE if errors else ExitCode.DONE


@click.command("print-config", cls=SettingsCommand)
@settings_options
@pass_settings
def print_config(settings: Settings) -> None:
    """Print the settings that kvcs relay run would use, as a TOML file.

    They come from the flags, the variables, the file of --config and the defaults, in this
    order. Relative paths are printed as absolute ones. No secret is printed: settings name the
    files that hold them.

    \b
    Examples:
      kvcs relay print-config
      kvcs relay print-config --config relay.toml --port 4443
    """  # noqa: D301 - click reads the backslash
    click.echo(format_settings(settings), nl=False)
