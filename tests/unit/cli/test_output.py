"""Colours appear on a terminal only, and only where nobody forbids them."""

import io
import json
import logging
import re

import pytest

from kvcs.cli._output import JsonFormatter, Output, TextFormatter
from kvcs.cli.demo.board import Board
from kvcs.cli.demo.messages import LayerPassed

COLOR = re.compile(r"\x1b\[(?:\d+;)*(?:3|4|9|10)\d")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def draw_progress(output):
    with output.progress() as progress:
        progress.advance(progress.add_task("fetching", total=2))
        progress.refresh()


def draw_board(output):
    with Board(output) as board:
        board.open(layers=2)
        board.publish_layer(LayerPassed(layer_index=0, digests=[], size_bytes=1, seconds=1.0))


@pytest.mark.parametrize("draw", [draw_progress, draw_board])
@pytest.mark.parametrize(
    ("variable", "color", "expected"),
    [("", True, True), ("1", True, False), ("", False, False), ("1", False, False)],
)
def test_live_displays_are_colored_unless_forbidden(monkeypatch, draw, variable, color, expected):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("COLORTERM", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_COLOR", variable)

    draw(Output(as_json=False, color=color, quiet=False))

    assert terminal.getvalue()
    assert bool(COLOR.search(terminal.getvalue())) is expected


@pytest.mark.parametrize(("encoding", "is_plain"), [("utf-8", False), ("latin-1", True)])
def test_output_knows_whether_more_than_ascii_can_be_shown(monkeypatch, encoding, is_plain):
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))

    assert Output(as_json=False, color=False, quiet=False).is_plain is is_plain


def record_of(**fields):
    record = logging.LogRecord("kvcs.relay", logging.INFO, "", 0, "a %s", ("line\x1b[2J",), None)
    record.created = 1.5
    vars(record).update(fields)
    return record


def test_json_line_has_the_fields_of_its_event():
    line = JsonFormatter().format(record_of(event="session-opened", session=7, peer="a:1"))

    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:01.500+00:00",
        "level": "INFO",
        "logger": "kvcs.relay",
        "message": "a line\x1b[2J",
        "event": "session-opened",
        "session": 7,
        "peer": "a:1",
    }


def test_text_line_cannot_act_on_a_terminal():
    assert "\x1b" not in TextFormatter().format(record_of())
