"""Options that several commands share; every ``--a-b`` also reads ``KVCS_A_B``.

Precedence is flag, environment, the TOML file of ``--config``, default.
"""

import difflib
import logging
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from kvcs.cli._output import JsonFormatter, Output
from kvcs.cli._units import DURATION
from kvcs.errors import ConfigError

__all__ = ("Command", "connection_options", "option", "pass_output")

_SHARED: Final = ("json", "verbose", "quiet", "no_color", "log_level", "log_format")

pass_output = click.make_pass_decorator(Output)

type Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_LEVELS: Final = {-1: "ERROR", 0: "WARNING", 1: "INFO", 2: "DEBUG"}


def option(*names: str, **attributes: Any) -> Decorator:
    """Return a click option that also reads its ``KVCS_`` variable and shows both."""
    flag = max(names, key=len).partition("/")[0].lstrip("-")
    attributes.setdefault("envvar", f"KVCS_{flag.upper().replace('-', '_')}")
    attributes.setdefault("show_default", True)
    return click.option(*names, **attributes)


def _read_config(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
    if value is None:
        return
    try:
        table = tomllib.loads(value.read_text())
    except OSError as error:
        raise ConfigError("--config", "a readable file", f"{value}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError("--config", "a TOML file", f"{value}: {error}") from error
    known = {str(parameter.name): parameter for parameter in ctx.command.params}
    defaults: dict[str, Any] = {}
    for key, setting in table.items():
        name = key.replace("-", "_")
        if name not in known or name == "config":
            close = difflib.get_close_matches(name, known, n=1)
            expected = f"a setting of this command{f', perhaps {close[0]!r}' if close else ''}"
            raise ConfigError(f"{value}: {key}", expected)
        defaults[name] = setting
    ctx.default_map = defaults


class Command(click.Command):
    """A command with the options every command has; `pass_output` gives it its `Output`."""

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.params += [
            click.Option(["--config"], envvar="KVCS_CONFIG", is_eager=True, expose_value=False,
                         type=click.Path(path_type=Path, dir_okay=False), callback=_read_config,
                         help="TOML file with settings of this command."),
            click.Option(["--json"], envvar="KVCS_JSON", is_flag=True,
                         help="One JSON object on standard output."),
            click.Option(["-v", "--verbose"], envvar="KVCS_VERBOSE", count=True,
                         help="More on standard error; twice for all."),
            click.Option(["-q", "--quiet"], envvar="KVCS_QUIET", is_flag=True, help="Errors only."),
            click.Option(["--no-color"], envvar="NO_COLOR", is_flag=True, help="No colours."),
            click.Option(["--log-level"], envvar="KVCS_LOG_LEVEL",
                         type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]),
                         help="Log from this level on; -v and -vv are short for INFO and DEBUG."),
            click.Option(["--log-format"], envvar="KVCS_LOG_FORMAT", default="text",
                         type=click.Choice(["text", "json"]),
                         help="Form of log lines on standard error."),
        ]  # fmt: skip

    def invoke(self, ctx: click.Context) -> Any:
        """Open the output, then run the command with its own parameters."""
        shared = {name: ctx.params.pop(name) for name in _SHARED}
        verbosity = -1 if shared["quiet"] else min(shared["verbose"], 2)
        _configure_logging(shared["log_level"] or _LEVELS[verbosity], shared["log_format"])
        ctx.obj = Output(as_json=shared["json"], color=not shared["no_color"], quiet=verbosity < 0)
        return super().invoke(ctx)


def connection_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what a command needs to reach a relay: ``--ca``, ``--timeout`` and the like."""
    for decorator in (
        option("--timeout", type=DURATION, default="30s", help="Whole time allowed."),
        option("--insecure-loopback", is_flag=True,
               help="Skip certificate checks, towards a loopback address only."),
        option("--ca", type=click.Path(path_type=Path, dir_okay=False, exists=True),
               help="PEM file with the certificate authority to trust."),
    ):  # fmt: skip
        function = decorator(function)
    return function


def _configure_logging(level: str, form: str) -> None:
    stream = logging.StreamHandler()
    if form == "json":
        stream.setFormatter(JsonFormatter())
    else:
        stream.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("kvcs")
    logger.handlers = [stream]
    logger.setLevel(level)
    logger.propagate = False
