"""Standard files that are closed, full, or read by nobody: commands end, and relays go on."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.children import ENVIRONMENT, needs_sigint, status_at, until

from kvcs.engines.file import SAMPLE_CACHE

pytestmark = pytest.mark.timeout(120)

KVCS = (sys.executable, "-m", "kvcs")


def shell(script, *words, seconds=60):
    """Run a command under a redirection of the shell."""
    return subprocess.run(
        ["sh", "-c", f'"$@" {script}', "sh", *KVCS, *map(str, words)],
        capture_output=True, text=True, check=False, timeout=seconds, env=ENVIRONMENT,
    )  # fmt: skip


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_files_break_nothing(closed, relay, own_scope_key_file):
    version = shell(closed, "version")
    member = ("--ca", relay["ca"], "--scope-key-file", own_scope_key_file, "--timeout", "2s")
    nothing = shell(closed, "fetch", relay["url"], *member, "--like", SAMPLE_CACHE)

    # Nothing is there; without a standard file the event loop came to another end.
    assert (version.returncode, nothing.returncode) == (0, 3), version.stderr + nothing.stderr
    assert "bug" not in version.stderr + nothing.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("form", [(), pytest.param(("--json",), marks=pytest.mark.soak)])
def test_output_that_cannot_be_written_is_an_error_in_a_sentence(form):
    done = shell(">/dev/full", "version", *form)

    assert done.returncode == 1
    assert "standard output: No space left on device" in done.stderr
    assert "bug" not in done.stderr
    assert "Traceback" not in done.stderr


def fill(descriptor):
    """Write into a pipe until it takes nothing more."""
    os.set_blocking(descriptor, False)
    try:
        while True:
            os.write(descriptor, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(descriptor, True)


@contextmanager
def relay_run(place, *flags, **standard):
    """A relay in a process with these standard files."""
    command = [*KVCS, "relay", "run", "--port", "0", "--dev-cert", place / "certificate", "--json"]
    with started([*command, *flags], **standard) as child:
        yield child


@contextmanager
def started(command, **standard):
    """A process that does not outlive the test."""
    words = [str(word) for word in command]
    with subprocess.Popen(words, env=ENVIRONMENT, **standard) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.fixture
def pipe():
    """Both ends of a pipe."""
    ours, theirs = os.pipe()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def test_relay_serves_and_ends_when_nobody_reads_its_log(tmp_path, run, own_scope_key_file, pipe):
    fill(pipe[1])
    member = ("--scope-key-file", own_scope_key_file, "--timeout", "10s")
    shown_at = tmp_path / "out"
    with shown_at.open("w") as out:
        flags = ("-v", "--admin-port", "0")
        with relay_run(tmp_path, *flags, stdout=out, stderr=pipe[1]) as child:
            shown = until(lambda: shown_in(shown_at))
            for _ in range(6):
                looked = run("inspect", shown["url"], *member, "--ca", shown["ca"])
            status = status_at(shown["admin"])
            child.send_signal(signal.SIGTERM)
            code = child.wait(20)

    assert looked[0] == 3, looked
    assert status["is_ready"]
    assert code == 0


def shown_in(path):
    lines = path.read_text().splitlines()
    return json.loads(lines[0]) if lines else None


@pytest.mark.parametrize("form", [(), pytest.param(("--json",), marks=pytest.mark.soak)])
def test_failure_that_nobody_reads_has_its_exit_code(pipe, form, own_scope_key_file):
    fill(pipe[1])
    member = ("--scope-key-file", own_scope_key_file, "--timeout", "1s", "--insecure-loopback")
    command = (*KVCS, "publish", SAMPLE_CACHE, "--url", "moqt://127.0.0.1:9/", *member, *form)
    with started(command, stdout=subprocess.DEVNULL, stderr=pipe[1]) as child:
        code = child.wait(40)

    assert code == 5


def test_one_signal_ends_a_command_that_says_so_to_nobody(pipe, own_scope_key_file):
    fill(pipe[1])
    member = ("--scope-key-file", own_scope_key_file, "--timeout", "60s", "--insecure-loopback")
    command = (*KVCS, "publish", SAMPLE_CACHE, "--url", "moqt://127.0.0.1:9/", *member, "--json")
    with started(command, stdout=subprocess.DEVNULL, stderr=pipe[1]) as child:
        until(lambda: catches_sigterm(child.pid))
        child.send_signal(signal.SIGTERM)
        code = child.wait(20)

    assert code == 130


def catches_sigterm(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(re.search(r"^SigCgt:\t(\w+)$", status, re.MULTILINE)[1], 16)
    return bool(caught & 1 << signal.SIGTERM - 1)


@needs_sigint
def test_signal_ends_a_command_whose_output_nobody_reads(pipe):
    fill(pipe[1])
    command = (*KVCS, "relay", "run", "--print-config")
    with started(command, stdout=pipe[1], stderr=subprocess.DEVNULL) as child:
        until(lambda: waits_in_a_write(child.pid))
        child.send_signal(signal.SIGINT)
        code = child.wait(10)

    assert code in (130, -signal.SIGINT)


def waits_in_a_write(pid):
    return "pipe" in Path(f"/proc/{pid}/wchan").read_text()


def test_one_signal_ends_a_relay_whose_last_words_nobody_reads(tmp_path, pipe):
    ours, theirs = pipe
    with relay_run(tmp_path, "--no-admin", stdout=theirs, stderr=subprocess.DEVNULL) as child:
        assert b"url" in os.read(ours, 65536)
        fill(theirs)
        child.send_signal(signal.SIGTERM)
        code = child.wait(20)

    assert code == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_relay_that_cannot_say_that_it_listens(tmp_path, number, pipe):
    fill(pipe[1])
    with relay_run(tmp_path, "--no-admin", stdout=pipe[1], stderr=subprocess.DEVNULL) as child:
        until(lambda: waits_in_a_write(child.pid))
        child.send_signal(number)
        code = child.wait(15)

    assert code == 130
