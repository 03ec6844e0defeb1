"""From `Settings` to TOML, with what every key means as comments."""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from kvcs.cli.relay.schema import Duration, Key, Settings, Size, is_table, keys

__all__ = ("format_settings", "format_value")

_WIDTH: Final = 98
_SIZE_UNITS: Final = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def format_settings(settings: Settings) -> str:
    """Return settings as a TOML file that `kvcs.cli.relay.reader` reads as the same settings.

    Keys that are not set are comments; where a value is not the default, that is said too.
    """
    return "\n".join(_table(settings, Settings(), "")).strip("\n") + "\n"


def format_value(kind: Any, value: Any) -> str:
    """Return a value of a key as TOML.

    Args:
        kind: Its type, as `schema.keys` gives it.
        value: The value, not None.
    """
    match value:
        case bool():
            return "true" if value else "false"
        case str() | Path():
            # JSON's escapes are TOML's, but for one character.
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
        case tuple():
            return "[" + ", ".join(format_value(str, item) for item in cast("Any", value)) + "]"
        case _ if kind == Size:
            return _size(value)
        case _ if kind == Duration:
            return _duration(value)
        case _:
            return str(value)


def _table(values: object, defaults: object, path: str) -> Iterator[str]:
    own = keys(values)
    for key in own:
        if not is_table(key.type):
            yield from _comment(key.text)
            yield _line(key, getattr(values, key.name), getattr(defaults, key.name))
    for key in own:
        if is_table(key.type):
            place = f"{path}{key.name}"
            yield ""
            yield from _comment(key.text)
            yield f"[{place}]"
            value, default = getattr(values, key.name), getattr(defaults, key.name)
            yield from _table(value, default, f"{place}.")


def _comment(text: str) -> Iterator[str]:
    yield from textwrap.wrap(
        text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )


def _line(key: Key, value: Any, default: Any) -> str:
    if value is None:
        return f"# {key.name} is not set"
    line = f"{key.name} = {format_value(key.type, value)}"
    if value == default:
        return line
    instead = "not set" if default is None else format_value(key.type, default)
    return f"{line}  # default: {instead}"


def _size(value: int) -> str:
    for unit, size in _SIZE_UNITS:
        if value and value % size == 0:
            return f'"{value // size}{unit}"'
    return str(value)


def _duration(value: float) -> str:
    if value.is_integer():
        return f'"{value:.0f}s"'
    milliseconds = round(value * 1000, 6)
    return f'"{milliseconds:.0f}ms"' if milliseconds.is_integer() else f"{value:.9f}".rstrip("0")
