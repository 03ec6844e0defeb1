"""Flags of a relay's settings: what is given replaces what the file says."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import click

from kvcs.cli._options import INPUT_FILE, Command, Decorator, option
from kvcs.cli._units import DURATION, SIZE
from kvcs.cli.relay.reader import read
from kvcs.cli.relay.schema import Settings, changed, keys
from kvcs.cli.relay.text import format_value
from kvcs.errors import ConfigError

__all__ = ("SettingsCommand", "flag_names", "pass_settings", "settings_options")

_FILE: Final = "kvcs.relay.settings"


@dataclass(frozen=True, slots=True)
class _Flag:
    """One flag and the key that it replaces.

    Attributes:
        name: The flag.
        table: Table of the key; empty for a key of the file itself.
        key: The key.
        attributes: What click needs to know beyond the text of the key.
    """

    name: str
    table: str
    key: str
    attributes: dict[str, Any]

    @property
    def parameter(self) -> str:
        return self.name[2:].replace("-", "_")


_PORT: Final = click.IntRange(0, 65535)
_DIRECTORY: Final = click.Path(path_type=Path, file_okay=False)

_FLAGS: Final = (
    _Flag("--host", "listen", "host", {}),
    _Flag("--port", "listen", "port", {"type": _PORT}),
    _Flag("--cert", "tls", "certificate", {"type": INPUT_FILE}),
    _Flag("--key", "tls", "private_key", {"type": INPUT_FILE}),
    _Flag("--dev-cert", "tls", "development_directory", {"type": _DIRECTORY}),
    _Flag("--dev-cert-name", "tls", "development_names", {"multiple": True}),
    _Flag("--cache-bytes", "cache", "memory_bytes", {"type": SIZE}),
    _Flag("--disk-directory", "disk", "directory", {"type": _DIRECTORY}),
    _Flag("--disk-bytes", "disk", "capacity_bytes", {"type": SIZE}),
    _Flag("--upstream", "", "upstream", {"multiple": True}),
    _Flag("--upstream-ca", "", "upstream_ca", {"type": INPUT_FILE}),
    _Flag("--upstream-token-file", "", "upstream_token_file", {"type": INPUT_FILE}),
    _Flag("--token-keys", "authorization", "keys", {"type": click.Path(path_type=Path)}),
    _Flag("--token-audience", "authorization", "audience", {}),
    _Flag("--require-audience", "authorization", "require_audience", {"is_flag": True}),
    _Flag("--idle-timeout", "transport", "idle_timeout", {"type": DURATION}),
    _Flag("--drain-timeout", "", "drain_timeout", {"type": DURATION}),
    _Flag("--admin-host", "admin", "host", {}),
    _Flag("--admin-port", "admin", "port", {"type": _PORT}),
)
# What a key is about where its table does not say so.
_ABOUT: Final = {"admin": "Admin listener: ", "disk": "Disk tier: "}

# Switches, and those that every command has.
_OTHERS: Final = {
    ("authorization", "policy"): ("--allow-anyone",),
    ("admin", "enabled"): ("--admin", "--no-admin"),
    ("log", "level"): ("--log-level",),
    ("log", "format"): ("--log-format",),
}


class SettingsCommand(Command):
    """A command whose ``--config`` is a relay's file; it also says how to log."""

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, read_config=_read_config, **attributes)


def flag_names(table: str, key: str) -> tuple[str, ...]:
    """Return the flags that replace a key of a table; an empty name for the file itself."""
    named = tuple(flag.name for flag in _FLAGS if (flag.table, flag.key) == (table, key))
    return named + _OTHERS.get((table, key), ())


def settings_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add every flag of a relay's settings; `pass_settings` takes the values."""
    switches = (
        option(
            "--allow-anyone",
            is_flag=True,
            default=None,
            help='Set authorization.policy to "allow-anyone": let everybody who can reach the '
            "relay publish, find and take everything.",
        ),
        option(
            "--admin/--no-admin",
            default=None,
            help="Whether there is an inner listener for operators (admin.enabled).",
            show_default="on",
        ),
    )
    for decorator in (*switches, *map(_option, reversed(_FLAGS))):
        function = decorator(function)
    return function


def pass_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Call `function` with the settings of file and flags in place of the flags."""

    @click.pass_context
    @wraps(function)
    def with_settings(ctx: click.Context, /, *arguments: Any, **parameters: Any) -> Any:
        names = {flag.parameter for flag in _FLAGS} | {"allow_anyone", "admin"}
        given = {
            name: value
            for name in names
            if (value := parameters.pop(name)) is not None and value != ()
        }
        settings = _merge(ctx.meta[_FILE], given)
        return function(*arguments, settings=settings, **parameters)

    return with_settings


def _read_config(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
    settings = Settings() if value is None else read(value)
    ctx.meta[_FILE] = settings
    ctx.default_map = {"log_level": settings.log.level, "log_format": settings.log.format}


def _option(flag: _Flag) -> Decorator:
    table: Any = getattr(Settings(), flag.table) if flag.table else Settings()
    key = next(key for key in keys(table) if key.name == flag.key)
    default = getattr(table, flag.key)
    text = _ABOUT.get(flag.table, "") + key.text
    attributes: dict[str, Any] = {"help": text, "default": None, "show_default": False}
    if get_origin(key.type) is Literal:
        attributes["type"] = click.Choice(get_args(key.type))
    if default not in (None, ()):
        attributes["show_default"] = format_value(key.type, default).strip('"')
    return option(flag.name, **attributes, **flag.attributes)


def _merge(settings: Settings, given: dict[str, Any]) -> Settings:
    if given.get("allow_anyone") and "token_keys" in given:
        raise ConfigError("--allow-anyone", "no --token-keys beside it")
    if given.get("allow_anyone"):
        settings = _with(settings, "authorization", policy="allow-anyone", keys=None)
    if "token_keys" in given:
        settings = _with(settings, "authorization", policy="c4m")
    if "admin" in given:
        settings = _with(settings, "admin", enabled=given["admin"])
    settings = _with(settings, "tls", **_replaced_certificate(given))
    for flag in _FLAGS:
        if flag.parameter in given:
            value = given[flag.parameter]
            is_path = isinstance(value, Path)
            settings = _with(
                settings, flag.table, **{flag.key: value.absolute() if is_path else value}
            )
    return settings


def _replaced_certificate(given: dict[str, Any]) -> dict[str, None]:
    """Return what a certificate that a flag names takes the place of.

    Raises:
        ConfigError: The flags name two.
    """
    is_own = "cert" in given or "key" in given
    if "dev_cert" in given and is_own:
        raise ConfigError("--dev-cert", "no --cert and --key beside it")
    if "dev_cert" in given:
        return {"certificate": None, "private_key": None}
    return {"development_directory": None} if is_own else {}


def _with(settings: Settings, table: str, **values: Any) -> Settings:
    if table:
        values = {table: changed(getattr(settings, table), **values)}
    return changed(settings, **values)
