"""Sizes and durations as people write them."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import click

__all__ = ("DURATION", "SIZE", "parse_duration", "parse_size")

_SIZE_UNITS: Final = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_DURATION_UNITS: Final = {"": "1", "MS": "0.001", "S": "1", "M": "60", "H": "3600", "D": "86400"}
_QUANTITY: Final = re.compile(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*", re.ASCII)


def parse_size(text: str) -> int:
    """Parse a size such as ``8GiB``, ``500 MB`` or ``4096`` into bytes.

    Raises:
        ValueError: Not a number, or an unknown unit.
    """
    return int(_parse(text, _SIZE_UNITS, "8GiB, 500MB or 4096"))


def parse_duration(text: str) -> float:
    """Parse a duration such as ``30s``, ``250ms`` or ``2h`` into seconds.

    Raises:
        ValueError: Not a number, or an unknown unit.
    """
    return float(_parse(text, _DURATION_UNITS, "30s, 250ms or 2h"))


def _parse(text: str, units: Mapping[str, int | str], examples: str) -> Decimal:
    match = _QUANTITY.fullmatch(text)
    unit = units.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ValueError(f"expected {examples}, got {text!r}")
    return Decimal(match[1]) * Decimal(unit)


class _Quantity(click.ParamType[Any]):
    """A number with a unit."""

    def __init__(self, name: str, parse: Any) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


SIZE: Final = _Quantity("size", parse_size)
DURATION: Final = _Quantity("duration", parse_duration)
