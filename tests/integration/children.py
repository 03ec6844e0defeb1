"""Processes that do not outlive the test that started them, ``kvcs`` before all."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

import pytest

__all__ = (
    "ENVIRONMENT",
    "KVCS",
    "child_process",
    "completed",
    "end",
    "first_line",
    "needs_sigint",
    "process",
    "result_of",
    "status_at",
    "until",
    "wait_for",
)

#: Without the settings of the person who runs the tests.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("KVCS_")}
KVCS = (sys.executable, "-m", "kvcs")
needs_sigint = pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
    reason="whoever started the tests has all that they start ignore SIGINT",
)


@contextmanager
def child_process(command, env=ENVIRONMENT, cwd=None):
    """Run a command beside the block, with its output in pipes; kill it at the end."""
    child = subprocess.Popen(
        [*map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        cwd=cwd,
    )
    with child:
        try:
            yield child
        finally:
            child.kill()


def process(*arguments):
    """Run a ``kvcs`` command beside the block."""
    return child_process([*KVCS, *arguments])


def completed(*command, seconds=60):
    """Run a command to its end, in bounded time; return its exit code and its output."""
    return subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=seconds,
        check=False,
    )


def result_of(command, code=0):
    """Run a command to its end; return the JSON of its output, or the text if it is none."""
    done = completed(*command)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout) if done.stdout.startswith("{") else done.stdout


def status_at(admin):
    """Return what a relay process says of itself at the URL of its admin listener."""
    with urllib.request.urlopen(f"{admin}status.json", timeout=20) as answer:
        return json.load(answer)


def end(child, number=signal.SIGTERM):
    """Ask a process to end; return its exit code, and the rest of its output and log."""
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert "Traceback" not in err
    return child.returncode, out, err


def first_line(child):
    """Return the JSON of the first line that a process prints."""
    line = child.stdout.readline()
    assert line, child.stderr.read()
    return json.loads(line)


def wait_for(stream, words):
    """Return the first line with these words."""
    before = []
    for line in stream:
        if words in line:
            return line
        before.append(line)
    raise AssertionError(f"no {words!r} in {before}")


def until(seen, seconds=30.0):
    """Look until something outside this process is there, in bounded time; return it."""
    deadline = time.monotonic() + seconds
    while not (found := seen()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found
