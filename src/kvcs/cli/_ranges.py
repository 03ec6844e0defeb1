"""Layer ranges as people write them: ``0-14``, ``3`` or ``0-3,8``, ends inclusive."""

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

import click

from kvcs.kv.descriptor import MAX_LAYERS

__all__ = ("LAYERS", "format_layers", "parse_layers")

_RANGE: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)


def parse_layers(text: str) -> tuple[int, ...]:
    """Parse layer indexes, ascending and each once.

    Raises:
        ValueError: Not such ranges, or beyond what a model can have.
    """
    layers: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, MAX_LAYERS)
        if not first <= last < MAX_LAYERS:
            raise ValueError(f"expected 0-14, 3 or 0-3,8 below {MAX_LAYERS}, got {text!r:.80}")
        layers.update(range(first, last + 1))
    return tuple(sorted(layers))


def format_layers(layers: Sequence[int]) -> str:
    """Return ascending layer indexes in the form that `parse_layers` reads."""
    runs = [
        [layer for _, layer in run]
        for _, run in groupby(enumerate(layers), lambda pair: pair[1] - pair[0])
    ]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


class _Layers(click.ParamType[Any]):
    """Layer ranges."""

    name = "layers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return parse_layers(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


LAYERS: Final = _Layers()
