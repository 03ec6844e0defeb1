"""A drawing of when layers came: a row per process, a column per moment."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ("COLUMNS", "ChartRow", "draw_chart")

COLUMNS: Final = 56
# From nothing to everything; the plain ones for terminals that know no others.
_LEVELS: Final = "·▁▂▃▄▅▆▇█"
_PLAIN_LEVELS: Final = ".12345678"


@dataclass(slots=True)
class ChartRow:
    """What one process published, or could use.

    Attributes:
        name: The process.
        start: Second of the drawing at which it began.
        note: What a reader must know to compare the row with others.
        seconds: When each layer came, counted from `start`, in any order.
    """

    name: str
    start: float = 0.0
    note: str = ""
    seconds: list[float] = field(default_factory=list[float])

    @property
    def end(self) -> float:
        """Second of the drawing at which its last layer came."""
        return self.start + max(self.seconds, default=0.0)


def draw_chart(rows: Sequence[ChartRow], *, is_plain: bool = False) -> list[str]:
    """Return the lines of the drawing; none where nothing came.

    A column shows the share of a row's layers that were there at its end: the level rises from
    the first layer to the full block of the last one, where the row stops.
    """
    rows = [row for row in rows if row.seconds]
    if not rows:
        return []
    levels = _PLAIN_LEVELS if is_plain else _LEVELS
    column = max(0.001, *(row.end for row in rows)) / COLUMNS
    width = max(len(row.name) for row in rows)
    return [
        f"layers over time: {levels[1]} the first, {levels[-1]} all; {column:.2g} s a column",
        *(
            f"{row.name:<{width}}  {_cells(row, column, levels)}"
            f"  {row.end - row.start:.2f} s{row.note and f' {row.note}'}"
            for row in rows
        ),
    ]


def _cells(row: ChartRow, column: float, levels: str) -> str:
    """Return blanks until the row begins, then a level per column until its last layer."""
    first, last = int(row.start / column), min(COLUMNS - 1, int(row.end / column))
    cells = [" "] * first
    for index in range(first, last + 1):
        elapsed = (index + 1) * column - row.start
        there = sum(seconds <= elapsed for seconds in row.seconds)
        cells.append(_level(len(row.seconds) if index == last else there, len(row.seconds), levels))
    return "".join(cells)


def _level(there: int, wanted: int, levels: str) -> str:
    """Return the first level only for nothing, and the last one only for all."""
    return levels[max(min(there, 1), there * (len(levels) - 1) // wanted)]
