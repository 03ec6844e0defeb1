"""The picture of the demo: one row per process, a cell per layer."""

from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from rich.console import RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kvcs.cli._output import Output, format_bytes
from kvcs.cli.demo.messages import LayerPassed

__all__ = ("Board",)

_PUBLISHER: Final = "publisher"
# A cell stands for several layers where there would be more cells than a terminal has room for.
_MAX_CELLS: Final = 48


@dataclass(slots=True)
class _Row:
    layers: set[int] = field(default_factory=set[int])
    size_bytes: int = 0
    seconds: float = 0.0

    def add(self, layer: LayerPassed) -> None:
        self.layers.add(layer.layer_index)
        self.size_bytes += layer.size_bytes
        self.seconds = max(self.seconds, layer.seconds)


class Board:
    """Shows what happens: drawn on a terminal, otherwise a line per step.

    Args:
        output: Where to show it.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._rows: dict[str, _Row] = {}
        self._layers = 0
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
        """Fix the number of cells."""
        self._layers = layers

    def publish_layer(self, layer: LayerPassed) -> None:
        """Note a layer that was published."""
        self.receive_layer(_PUBLISHER, layer)

    def receive_layer(self, name: str, layer: LayerPassed) -> None:
        """Note a layer that a consumer can use."""
        self._rows.setdefault(name, _Row()).add(layer)

    def _draw(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for name, row in list(self._rows.items()):  # filled while a thread draws
            rate = row.size_bytes / row.seconds if row.seconds else 0.0
            table.add_row(
                name,
                self._cells(row, "cyan" if name == _PUBLISHER else "green"),
                f"{len(row.layers)}/{self._layers}",
                format_bytes(row.size_bytes),
                f"{format_bytes(rate)}/s",
            )
        return table

    def _cells(self, row: _Row, color: str) -> Text:
        text = Text()
        step = max(1, -(-self._layers // _MAX_CELLS))
        for first in range(0, self._layers, step):
            is_there = row.layers.issuperset(range(first, min(first + step, self._layers)))
            text.append("■" if is_there else "·", style=color if is_there else "dim")
        return text
