"""The command line: one module per command, plus output, errors and configuration.

Nothing here is imported by the library. Commands are loaded when they are called, so that
``kvcs --help`` is quick.
"""

import os
import sys
import traceback
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Final, NamedTuple

import click

from kvcs.cli._errors import (
    HELP_HINT,
    Complaint,
    ExitCode,
    OutputFailed,
    complaint,
    first_cause,
)
from kvcs.cli._form import ErrorForm
from kvcs.cli._standard import drop_output, open_standard_files, to_output

__all__ = ("main", "root")


class _Place(NamedTuple):
    """Where a command is, and what the list of commands says about it."""

    module: str
    attribute: str
    summary: str


_COMMANDS: Final = {
    "demo": _Place("kvcs.cli.demo", "demo", "Show it all on this machine."),
    "relay": _Place("kvcs.cli.relay", "relay", "Run a caching relay."),
    "publish": _Place("kvcs.cli.publish", "publish", "Publish the KV cache in a file."),
    "fetch": _Place("kvcs.cli.fetch", "fetch", "Take a KV cache, or a part of one."),
    "inspect": _Place("kvcs.cli.inspect", "inspect", "Look into a file, or at a relay."),
    "doctor": _Place("kvcs.cli.doctor", "doctor", "Say what a relay lacks for KVCS."),
    "top": _Place("kvcs.cli.top", "top", "Watch a running relay."),
    "scope": _Place("kvcs.cli.scope", "scope", "Make scope keys."),
    "keys": _Place("kvcs.cli.keys", "keys", "Make, share and rotate keys."),
    "token": _Place("kvcs.cli.token", "token", "Make and show authorization tokens."),
    "version": _Place("kvcs.cli.version", "version", "Show the versions of everything."),
}
# What only kvcs itself calls.
_HIDDEN: Final = {"demo-node": _Place("kvcs.cli.demo.node", "demo_node", "")}


class _LazyGroup(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; click would write to a standard error that nobody may read."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.Abort from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *_COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = _COMMANDS.get(cmd_name) or _HIDDEN.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        return getattr(import_module(place.module), place.attribute)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; click suggests only those that are loaded."""
        name = args[0]
        near = get_close_matches(name, _COMMANDS, n=1)
        if near and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            ctx.fail(f"No such command {name!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without loading them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.summary) for name, place in _COMMANDS.items()])


def _show_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's
    if value:
        click.echo(import_module("kvcs.cli.version").lines()[0])
        ctx.exit()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version of the package; kvcs version shows all.",
)
def root() -> None:
    """Publish the KV cache of a language model once, and take it anywhere.

    \b
    Examples:
      kvcs demo                                       a real cache through a relay, on this machine
      kvcs relay run --dev-cert ./certificate         a relay on 127.0.0.1:4433
      kvcs scope new scope.key                        the secret that members of a scope share
      kvcs publish cache.safetensors --url moqt://127.0.0.1:4433/ --ca certificate/ca.pem \\
          --scope-key-file scope.key
      kvcs fetch moqt://127.0.0.1:4433/ --like cache.safetensors --ca certificate/ca.pem \\
          --scope-key-file scope.key -o out.safetensors
    """  # noqa: D301 - click reads the backslash


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with the code of `kvcs.cli._errors.ExitCode`."""
    open_standard_files()
    sys.exit(_run(arguments))


def _addressed(told: Complaint, arguments: list[str]) -> Complaint:
    """Name the command that was called where the advice is to read about it."""
    if told.hint != HELP_HINT:
        return told
    command: click.Command | None = root
    names = ["kvcs"]
    for name in arguments:
        if not isinstance(command, click.Group):
            break
        command = command.get_command(click.Context(command), name)
        if command is None:
            break
        names.append(name)
    return replace(told, hint=f"See {' '.join(names)} --help.")


def _run(arguments: list[str] | None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    form = ErrorForm.of(arguments)
    try:
        result = root.main(args=arguments, prog_name="kvcs", standalone_mode=False, obj=form)
        with to_output():
            sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return ExitCode.USAGE
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "kvcs"
        advice = f"See {command} --help."
        return form.show(
            Complaint(message=error.format_message(), hint=advice, code=ExitCode.USAGE)
        )
    except (click.Abort, KeyboardInterrupt):
        # Perhaps in the middle of a write that nobody reads.
        drop_output()
        return form.show_interruption()
    except BrokenPipeError:
        # Nobody reads the rest.
        drop_output()
        return ExitCode.FAILED
    except Exception as error:  # noqa: BLE001 - the last line before a traceback
        return _failed(error, form, arguments)
    if result == ExitCode.INTERRUPTED:
        return form.show_interruption()
    return result if isinstance(result, int) else ExitCode.DONE


def _failed(error: Exception, form: ErrorForm, arguments: list[str]) -> int:
    """Show an error of a command; return the exit code."""
    if os.environ.get("KVCS_DEBUG"):
        traceback.print_exception(error)
    cause = first_cause(error)
    if isinstance(cause, OutputFailed):
        drop_output()
    return form.show(_addressed(complaint(cause), arguments))
