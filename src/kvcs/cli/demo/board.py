"""The picture of the demo: a cell per layer while it runs, then a drawing of when they came."""

import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from rich.console import RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kvcs.cli._output import Output, format_bytes
from kvcs.cli.demo.chart import ChartRow, draw_chart
from kvcs.cli.demo.messages import LayerPassed

__all__ = ("PUBLISHER", "Board")

PUBLISHER: Final = "publisher"
# A cell stands for several layers where there would be more cells than a terminal has room for.
_MAX_CELLS: Final = 48


@dataclass(slots=True)
class _Row:
    chart: ChartRow
    layers: set[int] = field(default_factory=set[int])
    size_bytes: int = 0

    def add(self, layer: LayerPassed) -> None:
        self.layers.add(layer.layer_index)
        self.size_bytes += layer.size_bytes
        self.chart.seconds.append(layer.seconds)


class Board:
    """Shows what happens: drawn on a terminal, otherwise a line per step.

    Args:
        output: Where to show it.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._rows: dict[str, _Row] = {}
        self._layers = 0
        self._opened_at: float | None = None
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._output.interactive:
            self._live = self._output.live(self._draw)
            self._live.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def note(self, text: str) -> None:
        """Tell a step."""
        if not self._output.as_json:
            self._output.note(text)

    def complain(self, text: str) -> None:
        """Tell what went wrong, whatever the form of the result."""
        self._output.complain(text)

    def open(self, *, layers: int) -> None:
        """Fix the number of cells; the publisher's row is the first one."""
        self._layers = layers
        self._row(PUBLISHER)

    def begin(self, name: str, *, note: str = "") -> None:
        """Note that a process begins now, for a row of its own.

        Args:
            name: The process.
            note: Its row has a clock of its own, and why; empty for the clock of the first row.
        """
        now = time.monotonic()
        if self._opened_at is None:
            self._opened_at = now
        chart = self._row(name).chart
        chart.start = 0.0 if note else now - self._opened_at
        chart.note = note

    def publish_layer(self, layer: LayerPassed) -> None:
        """Note a layer that was published."""
        self.receive_layer(PUBLISHER, layer)

    def receive_layer(self, name: str, layer: LayerPassed) -> None:
        """Note a layer that a consumer can use, perhaps before it was said to have begun."""
        self._row(name).add(layer)

    def chart(self, *, is_plain: bool) -> list[str]:
        """Return the lines of the drawing of what came when."""
        return draw_chart([row.chart for row in self._rows.values()], is_plain=is_plain)

    def _row(self, name: str) -> _Row:
        return self._rows.setdefault(name, _Row(ChartRow(name)))

    def _draw(self) -> RenderableType:
        if not self._layers:
            return Text("starting a relay, a publisher and three consumers …", style="dim")
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for title in ("process", f"layers 0 to {self._layers - 1}", "", "bytes", "last layer"):
            table.add_column(title, no_wrap=True)
        for name, row in list(self._rows.items()):  # filled while a thread draws
            table.add_row(
                name,
                self._cells(row, "cyan" if name == PUBLISHER else "green"),
                f"{len(row.layers)}/{self._layers}",
                format_bytes(row.size_bytes),
                f"{row.chart.end - row.chart.start:.2f} s",
            )
        return table

    def _cells(self, row: _Row, color: str) -> Text:
        text = Text()
        step = max(1, -(-self._layers // _MAX_CELLS))
        for first in range(0, self._layers, step):
            is_there = row.layers.issuperset(range(first, min(first + step, self._layers)))
            text.append("■" if is_there else "·", style=color if is_there else "dim")
        return text
