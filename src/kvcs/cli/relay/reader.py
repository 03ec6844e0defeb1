"""From the text of a TOML file to `Settings`, or to all that is wrong with it."""

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args, get_origin

import msgspec

from kvcs.cli._units import parse_duration, parse_size
from kvcs.cli.relay.schema import (
    Count,
    Duration,
    Port,
    Rate,
    Settings,
    Size,
    changed,
    is_table,
    keys,
)
from kvcs.errors import ConfigError

__all__ = ("WrongSettings", "examine", "parse", "read")

# Larger than any sensible file of settings.
_MAX_BYTES: Final = 2**20
_MAX_SHOWN: Final = 60
_SECRET: Final = re.compile(r"key|token|secret|password")
_EXPECTED: Final[dict[Any, str]] = {
    Size: "a size such as 8GiB, 500MB or 4096",
    Duration: "a duration such as 30s, 250ms or 2h",
    Port: "a port, 0..65535",
    Count: "a whole number, at least 0",
    Rate: "a number, at least 0",
    Path: "the path of a file or directory",
    str: "a text",
    bool: "true or false",
    tuple[str, ...]: "a list of texts",
}


class WrongSettings(ConfigError):
    """Settings that cannot be used.

    Attributes:
        errors: All that is wrong, in the order of the file; at least one.
    """

    def __init__(self, errors: tuple[ConfigError, ...]) -> None:
        first = errors[0]
        super().__init__(first.key, first.expected, first.got)
        self.errors = errors

    def __str__(self) -> str:
        more = len(self.errors) - 1
        return super().__str__() + (
            f" (and {more} more: kvcs relay check-config names all)" if more else ""
        )


def read(path: Path) -> Settings:
    """Read a file of settings; its relative paths are relative to its directory.

    Raises:
        ConfigError: The file cannot be read, or is not TOML.
        WrongSettings: What it says cannot be used.
    """
    try:
        return _accepted(*examine(path))
    except WrongSettings as error:
        # What runs with them may name other settings by flags, so that it matters where these are.
        raise WrongSettings(
            tuple(ConfigError(f"{path}: {e.key}", e.expected, e.got) for e in error.errors)
        ) from error


def examine(path: Path) -> tuple[Settings, tuple[ConfigError, ...]]:
    """Read a file of settings as far as it can be used.

    Returns:
        The settings, with the default for what cannot be used, and all that is wrong.

    Raises:
        ConfigError: The file cannot be read, or is not TOML.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(str(path), "a readable file", error.strerror or "") from error
    if len(data) > _MAX_BYTES:
        raise ConfigError(str(path), f"at most {_MAX_BYTES} octets", "more")
    try:
        return _examined(data.decode(), path.parent)
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), "UTF-8", f"octet {error.start} that is not") from error


def parse(text: str, *, directory: Path) -> Settings:
    """Parse settings.

    Args:
        text: TOML.
        directory: What relative paths are relative to.

    Raises:
        WrongSettings: It is not TOML, or cannot be used; everything that is wrong is named.
    """
    return _accepted(*_examined(text, directory))


def _accepted(settings: Settings, errors: tuple[ConfigError, ...]) -> Settings:
    if errors:
        raise WrongSettings(errors)
    return settings


def _examined(text: str, directory: Path) -> tuple[Settings, tuple[ConfigError, ...]]:
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise WrongSettings((ConfigError("the file", "TOML", str(error)),)) from error
    reading = _Reading(directory.absolute())
    settings = reading.table(Settings(), table, "")
    return settings, tuple(reading.errors)


class _Reading:
    """One pass over a file; notes what is wrong and goes on."""

    def __init__(self, directory: Path) -> None:
        self.errors: list[ConfigError] = []
        self._directory = directory

    def table[Table](self, default: Table, found: Mapping[str, Any], path: str) -> Table:
        """Return a table: `default`, with what was found and can be used."""
        known = {key.name: key for key in keys(default)}
        values: dict[str, Any] = {}
        for name, value in found.items():
            place = f"{path}.{name}" if path else name
            if name not in known:
                self.errors.append(ConfigError(place, _instead_of(name, known)))
            elif not is_table(known[name].type):
                # No key takes None, which stands for what cannot be used.
                if (read := self._value(known[name].type, value, place)) is not None:
                    values[name] = read
            elif isinstance(value, dict):
                table = cast("dict[str, Any]", value)
                values[name] = self.table(getattr(default, name), table, place)
            else:
                self.errors.append(ConfigError(place, "a table", _shown(place, value)))
        return self._changed(default, values, path)

    def _changed[Table](self, default: Table, values: dict[str, Any], path: str) -> Table:
        """Return a table with all the values that it takes."""
        while True:
            try:
                return changed(default, **values)
            except ConfigError as error:
                # What a class says about its own values, under the name that the file has for it.
                key = error.key.rpartition(".")[2]
                place = ".".join(filter(None, (path, key)))
                self.errors.append(ConfigError(place, error.expected, error.got))
                if values.pop(key, None) is None:
                    # It follows from several of them.
                    return default

    def _value(self, kind: Any, value: Any, place: str) -> Any:
        try:
            if kind in {Size, Duration}:
                return _quantity(kind, value)
            return msgspec.convert(value, kind, dec_hook=self._decode)
        except (msgspec.ValidationError, ValueError, OverflowError):
            self.errors.append(ConfigError(place, _expected(kind), _shown(place, value)))
            return None

    def _decode(self, kind: type, value: Any) -> Any:
        """Decode what msgspec has no form for."""
        if kind is Path and isinstance(value, str) and value and "\0" not in value:
            return self._directory / value
        raise ValueError


def _quantity(kind: Any, value: Any) -> float:
    """Return a size or a duration that has a unit or none.

    Raises:
        ValueError: It is something else.
    """
    match value:
        case bool():
            raise ValueError
        case str():
            text = value
        case int():
            text = str(value)
        case float() if kind == Duration:
            # Without an exponent, which quantities do not have.
            text = f"{value:.9f}".rstrip("0").rstrip(".")
        case _:
            raise ValueError
    return parse_size(text) if kind == Size else parse_duration(text)


def _instead_of(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"a known key{f', perhaps {close[0]}' if close else ''}; this one is unknown"


def _expected(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(f'"{choice}"' for choice in get_args(kind))
    return _EXPECTED[kind]


def _shown(place: str, value: Any) -> str:
    """Return what was found; of what may be a secret only the kind."""
    if _SECRET.search(place.rpartition(".")[2]):
        return f"something else ({type(value).__name__})"
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"
