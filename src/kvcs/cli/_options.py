"""Options that several commands share; every ``--a-b`` also reads ``KVCS_A_B``.

Precedence is flag, environment, the TOML file of ``--config``, default. It is click's own: the
file becomes the command's default map, so a flag that is absent never overwrites it.
"""

import difflib
import logging
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from kvcs.cli._form import ErrorForm
from kvcs.cli._output import JsonFormatter, Output, TextFormatter
from kvcs.cli._standard import error_stream
from kvcs.cli._units import DURATION
from kvcs.errors import ConfigError

__all__ = (
    "INPUT_FILE",
    "OUTPUT_FILE",
    "RELAY_SETTINGS",
    "Command",
    "Decorator",
    "Group",
    "RelaySettings",
    "configure_logging",
    "connection_options",
    "option",
    "pass_output",
    "trust_options",
    "url_argument",
)

INPUT_FILE: Final = click.Path(path_type=Path, dir_okay=False, exists=True)
OUTPUT_FILE: Final = click.Path(path_type=Path, dir_okay=False)

#: Values of `connection_options` and of an option ``--url``, or of the argument URL.
RELAY_SETTINGS: Final = ("url", "ca", "insecure_loopback", "timeout", "token_file")

_SHARED: Final = ("json", "verbose", "quiet", "no_color", "log_level", "log_format")
_LEVELS: Final = {-1: "ERROR", 0: "WARNING", 1: "INFO", 2: "DEBUG"}

# Seconds that a line of the log waits for a reader, and the event loop with it.
_LOG_PATIENCE: Final = 0.2
# Larger than any sensible file of settings.
_MAX_CONFIG_BYTES: Final = 2**20

pass_output = click.make_pass_decorator(Output)

type Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def option(*names: str, **attributes: Any) -> Decorator:
    """Return a click option that also reads its ``KVCS_`` variable and shows both."""
    return click.option(*names, **_documented(names, attributes))


def _documented(names: tuple[str, ...], attributes: dict[str, Any]) -> dict[str, Any]:
    flag = next(name for name in names if name.startswith("--")).partition("/")[0]
    return {
        "envvar": f"KVCS_{flag[2:].upper().replace('-', '_')}",
        "show_envvar": True,
        "show_default": True,
        **attributes,
    }


def _read_config(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
    """Make the settings of a TOML file the defaults of the command."""
    if value is None:
        return
    known = {str(parameter.name): parameter for parameter in ctx.command.params}
    defaults: dict[str, Any] = {}
    for key, setting in _load_toml(value).items():
        name = key.replace("-", "_")
        if name not in known or name == "config":
            close = difflib.get_close_matches(name, known, n=1)
            expected = f"a setting of this command{f', perhaps {close[0]!r}' if close else ''}"
            raise ConfigError(f"{value}: {key}", expected)
        is_flag = getattr(known[name], "is_flag", False)
        if isinstance(setting, bool) != is_flag or isinstance(setting, dict | list):
            expected = "true or false" if is_flag else "a text or a number"
            raise ConfigError(f"{value}: {key}", expected)
        defaults[name] = setting
    ctx.default_map = defaults


def _load_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.loads(file.read(_MAX_CONFIG_BYTES).decode())
    except OSError as error:
        raise ConfigError("--config", "a readable file", f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError("--config", "a TOML file", f"{path}: {error}") from error


class Group(click.Group):
    """A group whose list of commands has the whole first sentence of each."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands; click would cut their sentences to one line."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, _first_sentence(command)) for name, command in commands.items()]
            )


def _first_sentence(command: click.Command | None) -> str:
    text = " ".join((command.help if command and command.help else "").split())
    return text.partition(". ")[0].removesuffix(".") + "."


def _note_form(ctx: click.Context, _: click.Parameter, value: bool) -> bool:  # noqa: FBT001 - click's
    """Tell how a failure is to be shown, before anything else of the command can fail."""
    if isinstance(form := ctx.find_root().obj, ErrorForm):
        form.as_json = value
    return value


class Command(click.Command):
    """A command with the options every command has; `pass_output` gives it its `Output`.

    Args:
        read_config: Callback of ``--config``; by default the file has settings of the command.
    """

    def __init__(
        self,
        *arguments: Any,
        read_config: Callable[[click.Context, click.Parameter, Path | None], None] = _read_config,
        **attributes: Any,
    ) -> None:
        super().__init__(*arguments, **attributes)
        self.params += [
            _option("--config", is_eager=True, expose_value=False, callback=read_config,
                    type=click.Path(path_type=Path, dir_okay=False),
                    help="TOML file with settings of this command; a flag or a variable wins."),
            _option("--json", is_flag=True, is_eager=True, callback=_note_form,
                    help="One JSON object on standard output, and on standard error if it fails."),
            _option("-v", "--verbose", count=True,
                    help="More on standard error; twice for all."),
            _option("-q", "--quiet", is_flag=True, help="Results and errors only."),
            _option("--no-color", is_flag=True, help="No colours; so does NO_COLOR."),
            _option("--log-level", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]),
                    help="Log from this level on; -v and -vv are short for INFO and DEBUG."),
            _option("--log-format", default="text", type=click.Choice(["text", "json"]),
                    help="Form of log lines on standard error."),
        ]  # fmt: skip

    def invoke(self, ctx: click.Context) -> Any:
        """Open the output, then run the command with its own parameters."""
        shared = {name: ctx.params.pop(name) for name in _SHARED}
        verbosity = -1 if shared["quiet"] else min(shared["verbose"], 2)
        is_from_file = ctx.get_parameter_source("log_level") is ParameterSource.DEFAULT_MAP
        level = shared["log_level"]
        if level is None or (is_from_file and verbosity):
            level = _LEVELS[verbosity]
        configure_logging(level, as_json=shared["log_format"] == "json")
        ctx.obj = Output(as_json=shared["json"], color=not shared["no_color"], quiet=verbosity < 0)
        return super().invoke(ctx)


def _option(*names: str, **attributes: Any) -> click.Option:
    return click.Option([*names], **_documented(names, attributes))


def url_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument URL."""
    return click.argument("url", envvar="KVCS_URL")(function)


def connection_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what a command needs to reach a relay; `RelaySettings` takes the values."""
    decorator = option(
        "--timeout",
        type=DURATION,
        default="30s",
        help="Whole time allowed; for kvcs publish, to connect and announce.",
    )
    return trust_options(decorator(function))


def trust_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add how a relay is trusted, and trusts us: all of `connection_options` but the time."""
    for decorator in (
        option("--token-file", type=INPUT_FILE,
               help="File with the authorization token that the relay asks for; kvcs token mint "
               "makes one. It is read again when it changes; a pipe, or the text in KVCS_TOKEN, "
               "is read once."),
        option("--insecure-loopback", is_flag=True,
               help="Skip certificate checks, towards a loopback address only."),
        option("--ca", type=INPUT_FILE,
               help="PEM file with the certificate authority to trust instead of the public ones."),
    ):  # fmt: skip
        function = decorator(function)
    return function


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """How a command reaches a relay.

    Attributes:
        url: Where it is.
        ca: Certificate authority to trust, or None for the public ones.
        insecure_loopback: Check no certificate; only towards this machine.
        timeout: Seconds for the whole command, or for its preparation.
        token_file: Where the authorization token is, or None to present none.
    """

    url: str
    ca: Path | None
    insecure_loopback: bool
    timeout: float
    token_file: Path | None = None


def configure_logging(level: str, *, as_json: bool = False) -> None:
    """Send the log of kvcs to standard error."""
    stream = logging.StreamHandler(error_stream(_LOG_PATIENCE, after_a_cut="\n"))
    stream.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logger = logging.getLogger("kvcs")
    logger.handlers = [stream]
    logger.setLevel(level)
    logger.propagate = False
