"""A terminal that nobody reads: what is drawn there holds nobody up."""

import os
import time

import pytest

from kvcs.cli._output import Output
from kvcs.cli._terminal import Terminal

MUCH = "x" * 2**20


@pytest.fixture
def pair():
    ours, theirs = os.openpty()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def drained(ours):
    os.set_blocking(ours, False)
    size = 0
    try:
        while data := os.read(ours, 65536):
            size += len(data)
    except BlockingIOError:
        return size
    return size


def seconds_of(work):
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def test_what_is_taken_is_written(pair):
    ours, theirs = pair
    with Terminal(theirs) as terminal:
        assert terminal.write("h\u00e4\n") == 3

    assert os.read(ours, 100) == "h\u00e4\r\n".encode()
    # That of others still waits as it did.
    assert os.get_blocking(theirs)


def test_a_write_waits_once_where_nobody_reads(pair):
    ours, theirs = pair
    with Terminal(theirs, patience=0.2) as terminal:
        assert 0.2 <= seconds_of(lambda: terminal.write(MUCH)) < 2
        assert seconds_of(lambda: [terminal.write(MUCH) for _ in range(50)]) < 2
        assert drained(ours)
        terminal.write("again")
        assert drained(ours) == 5


def test_a_file_is_no_terminal(tmp_path):
    with (tmp_path / "file").open("w") as file, pytest.raises(OSError, match="ioctl"):
        Terminal(file.fileno())


def test_what_is_no_terminal_is_no_screen(capsys):
    with Output(as_json=False, color=False, quiet=False).screen(lambda: "picture"):
        pass

    assert "\x1b" not in capsys.readouterr().err
