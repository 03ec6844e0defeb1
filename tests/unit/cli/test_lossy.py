"""A terminal, pipe or socket that nobody reads: what is written there holds nobody up."""

import logging
import os
import socket
import sys
import time

import pytest

from kvcs.cli._lossy import LossyStream
from kvcs.cli._options import configure_logging
from kvcs.cli._output import Output

MUCH = "x" * 2**20


def opened(kind):
    if kind == "terminal":
        return os.openpty()
    if kind == "pipe":
        return os.pipe()
    return tuple(end.detach() for end in socket.socketpair())


@pytest.fixture(params=["terminal", "pipe", "socket"])
def pair(request):
    ours, theirs = opened(request.param)
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
    with LossyStream(theirs, patience=0.2) as terminal:
        assert terminal.write("h\u00e4\n") == 3

    assert os.read(ours, 100).replace(b"\r", b"") == "h\u00e4\n".encode()
    # That of others still waits as it did.
    assert os.get_blocking(theirs)


def test_a_write_waits_once_where_nobody_reads(pair):
    ours, theirs = pair
    with LossyStream(theirs, patience=0.2) as terminal:
        assert 0.2 <= seconds_of(lambda: terminal.write(MUCH)) < 2
        assert seconds_of(lambda: [terminal.write(MUCH) for _ in range(50)]) < 2
        assert drained(ours)
        terminal.write("again")
        assert drained(ours) == 5


def test_a_file_is_none_of_them(tmp_path):
    with (
        (tmp_path / "file").open("w") as file,
        pytest.raises(OSError, match="no terminal, pipe or socket"),
    ):
        LossyStream(file.fileno(), patience=0.2)


def test_what_is_no_terminal_is_no_screen(capsys):
    with Output(as_json=False, color=False, quiet=False).screen(lambda: "picture"):
        pass

    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_reader_that_has_gone_is_no_error(kind):
    ours, theirs = opened(kind)
    with LossyStream(theirs, patience=0.2) as stream:
        os.close(ours)
        assert stream.write("lost") == 4
    os.close(theirs)


def test_a_line_begins_anew_after_one_that_was_cut():
    ours, theirs = os.pipe()
    with LossyStream(theirs, patience=0.0, after_a_cut="\n") as stream:
        stream.write(MUCH)
        taken = drained(ours)
        stream.write("a line\n")
        assert 0 < taken < len(MUCH)
        assert os.read(ours, 100) == b"\na line\n"
    os.close(ours)
    os.close(theirs)


def test_the_log_holds_nobody_up(monkeypatch):
    ours, theirs = os.pipe()
    logger = logging.getLogger("kvcs")
    before = logger.handlers, logger.level, logger.propagate
    with os.fdopen(theirs, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        configure_logging("INFO")
        try:
            taken = seconds_of(lambda: [logger.info("x" * 1000) for _ in range(500)])
        finally:
            logger.handlers, logger.level, logger.propagate = before
    os.close(ours)

    assert taken < 5
