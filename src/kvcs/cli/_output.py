"""What a command shows: data on standard output, everything else on standard error.

Files and peers put their own words into it: what could act on a terminal is shown as escapes.
"""

import json
import logging
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import Progress
from rich.table import Table

from kvcs.cli._runtime import writing
from kvcs.cli._standard import error_stream, to_output
from kvcs.cli._text import printable

__all__ = ("JsonFormatter", "Output", "TextFormatter", "format_bytes", "rounded")


def format_bytes(size_bytes: float) -> str:
    """Return a size with three digits and a binary unit, for example ``1.25 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.4g} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.4g} TiB"


def rounded(seconds: float | None) -> float | None:
    """Return seconds to the microsecond, for JSON."""
    return None if seconds is None else round(seconds, 6)


class TextFormatter(logging.Formatter):
    """One line for people; only a traceback adds to it."""

    def __init__(self) -> None:
        """Show time, level, logger and message."""
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as the library has it
        """Return the line."""
        return printable(super().formatMessage(record))


class JsonFormatter(logging.Formatter):
    """One JSON object per log line, with the fields that kvcs adds to its records."""

    FIELDS = ("event", "session", "peer", "track", "request_id", "code", "reason")

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in self.FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


# How often a picture on the whole terminal is drawn, in a second.
_REFRESHES: Final = 4
# Seconds that a note or a picture waits for a reader.
_PATIENCE: Final = 1.0
# Columns that a table may have.
_WIDEST: Final = 1000


class Output:
    """Where a command's results and progress go.

    Args:
        as_json: Print results as JSON, and no tables or progress.
        color: Allow colours on a terminal, unless NO_COLOR is set.
        quiet: Print nothing but results and errors.
    """

    def __init__(self, *, as_json: bool, color: bool, quiet: bool) -> None:
        self.as_json = as_json
        self.quiet = quiet
        # None leaves it to NO_COLOR, which False would override.
        no_color = None if color else True
        self._out = Console(no_color=no_color, highlight=False)
        self._err = Console(file=error_stream(_PATIENCE), no_color=no_color, highlight=False)

    @property
    def interactive(self) -> bool:
        """Whether progress is worth drawing: a terminal, not quiet, not JSON."""
        return self._err.is_terminal and not self.quiet and not self.as_json

    @property
    def is_plain(self) -> bool:
        """Whether standard output can show ASCII only."""
        return not self._out.encoding.startswith("utf")

    def result(self, value: dict[str, Any]) -> None:
        """Print the result of the command as one line of JSON; does nothing without --json."""
        if self.as_json:
            with to_output():
                sys.stdout.write(json.dumps(value) + "\n")
                sys.stdout.flush()

    def text(self, text: str) -> None:
        """Print a result for people on standard output; does nothing with --json."""
        if not self.as_json:
            with to_output():
                self._out.print(printable(text, keep="\n"), markup=False, soft_wrap=True)

    def table(self, table: Table) -> None:
        """Print a table for people on standard output; does nothing with --json.

        It gets the width that it needs: what is too narrow for it breaks lines, and loses nothing.
        """
        if not self.as_json:
            out, width = self._out, self._out.width
            needed = out.measure(table, options=out.options.update(width=_WIDEST))
            out.width = max(needed.maximum, width)
            with to_output():
                out.print(table)
            out.width = width

    def note(self, text: str) -> None:
        """Tell what is going on, on standard error."""
        if not self.quiet:
            self.complain(text)

    def complain(self, text: str) -> None:
        """Tell what went wrong, on standard error, also when quiet."""
        with writing():
            self._err.print(printable(text, keep="\n"), markup=False, soft_wrap=True)

    def live(self, draw: Callable[[], RenderableType]) -> Live:
        """Return a picture that is drawn again and again, for a terminal, and then taken away."""
        return Live(get_renderable=draw, console=self._err, refresh_per_second=12, transient=True)

    def progress(self, *columns: Any) -> Progress:
        """Return a progress display that draws only where a person can see it."""
        return Progress(*columns, console=self._err, disable=not self.interactive, transient=True)

    @contextmanager
    def screen(self, draw: Callable[[], RenderableType]) -> Generator[None]:
        """Draw a picture again and again on the whole terminal of standard error, until the end."""
        with Live(
            get_renderable=draw, console=self._err, screen=True, refresh_per_second=_REFRESHES
        ):
            yield
