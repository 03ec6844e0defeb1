"""A relay as it is run: from its example file, for other machines, watched, and ended well."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.integration.children import child_process, first_line
from tests.integration.network import missing_rights, star

from kvcs.engines.file import SAMPLE_CACHE

pytestmark = pytest.mark.timeout(180)

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("KVCS_")}
KVCS = (sys.executable, "-m", "kvcs")


def process(*command):
    """A process that does not outlive the block."""
    return child_process(command, ENVIRONMENT)


def run(*command, code=0):
    """Run a command to its end; return the JSON of its output."""
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout) if done.stdout.startswith("{") else done.stdout


def end(child, number=signal.SIGTERM):
    """Ask a process to end; return its exit code, and the rest of its output and log."""
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert "Traceback" not in err
    return child.returncode, out, err


def until(seen, seconds=20.0):
    """Wait until something is there, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := seen()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


@pytest.fixture
def place(tmp_path):
    (tmp_path / "scope.key").write_text("5c" * 32)
    return tmp_path


@pytest.fixture
def config(place):
    """The example file, where its relative paths lead to a place of this test."""
    file = place / "relay.toml"
    file.write_text((ROOT / "examples" / "relay.toml").read_text())
    return file


@pytest.fixture
def local(place):
    """What starts a relay on free ports of this machine."""
    return (*KVCS, "relay", "run", "--json", "--port", 0, "--admin-port", 0, "--dev-cert", place)


@pytest.mark.skipif(bool(reason := missing_rights()), reason=reason or "none")
def test_example_serves_other_machines_and_its_page_shows_them(place, config):
    with star("publisher", "consumer") as (hub, publisher, consumer):
        relay = hub.command(*KVCS, "relay", "run", "--config", config, "--json")
        with process(*relay) as running:
            shown = first_line(running)
            url = f"moqt://{hub.address}:4433/"
            member = ("--ca", shown["ca"], "--scope-key-file", place / "scope.key")
            publish = publisher.command(*KVCS, "publish", SAMPLE_CACHE, "--url", url, "--json")
            with process(*publish, *member, "--timeout", "20s") as publishing:
                published = first_line(publishing)
                fetched = run(
                    *consumer.command(*KVCS, "fetch", url, "--like", SAMPLE_CACHE, *member),
                    *("-o", place / "out.safetensors", "--json"),
                )
                status = run(*hub.command(*KVCS, "relay", "status", "--json"))
                # The admin listener is for the relay's own machine.
                unreachable = consumer.command(*KVCS, "relay", "status", "--admin-url")
                run(*unreachable, f"http://{hub.address}:4434/", code=5)
                end(publishing)
            _, _, log = end(running)

    assert "WARNING: everybody who can reach UDP port 4433" in log
    assert fetched["complete"]
    assert (place / "out.safetensors").read_bytes() == SAMPLE_CACHE.read_bytes()
    assert status["is_ready"]
    assert [session["address"].partition(":")[0] for session in status["sessions"]] == [
        publisher.address
    ]
    (namespace,) = status["namespaces"]["shown"]
    assert published["publication"] == namespace["namespace"]
    assert namespace["complete_tracks"] >= 2
    assert status["statistics"]["bytes_out"] > fetched["bytes"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_relay_drains_and_ends_well(place, local, number):
    with process(*local, "--drain-timeout", "2s") as running:
        shown = first_line(running)
        member = ("--ca", shown["ca"], "--scope-key-file", place / "scope.key")
        publish = (*KVCS, "publish", SAMPLE_CACHE, "--url", shown["url"], *member, "--json")
        with process(*publish) as publishing:
            first_line(publishing)
            until(lambda: namespaces_at(shown["admin"]))
            code, out, log = end(running, number)

    assert code == 0
    assert json.loads(out)["event"] == "stopped"
    assert "relay drains" in log


def test_second_signal_does_not_wait(place, local):
    with process(*local, "--drain-timeout", "60s", "--config", silent(place)) as running:
        shown = first_line(running)
        member = ("--ca", shown["ca"], "--scope-key-file", place / "scope.key")
        publish = (*KVCS, "publish", SAMPLE_CACHE, "--url", shown["url"], *member, "--json")
        with process(*publish) as publishing:
            first_line(publishing)
            until(lambda: namespaces_at(shown["admin"]))
            # A publisher that is stopped cannot leave.
            publishing.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            running.send_signal(signal.SIGTERM)
            until(lambda: not is_ready(shown["admin"]))
            code, _, _ = end(running)
            publishing.send_signal(signal.SIGCONT)

    assert code == 130
    assert time.monotonic() - began < 20


def silent(place):
    """Return a file by which a peer that says nothing stays for longer than the test."""
    file = place / "patient.toml"
    file.write_text('[transport]\nidle_timeout = "120s"\n')
    return file


def status_at(admin, code=0):
    return run(*KVCS, "relay", "status", "--admin-url", admin, "--json", code=code)


def namespaces_at(admin):
    return status_at(admin)["namespaces"]["shown"]


def is_ready(admin):
    done = subprocess.run(
        [*KVCS, "relay", "status", "--admin-url", admin, "--json"],
        capture_output=True,
        env=ENVIRONMENT,
        timeout=60,
        check=False,
    )
    return done.returncode == 0


def test_relay_without_its_admin_port_runs_all_the_same(place):
    command = (*KVCS, "relay", "run", "--json", "--port", 0, "--dev-cert", place)
    with process(*command) as first:
        shown = first_line(first)
        with process(*command) as second:
            other = first_line(second)
            code, _, log = end(second)

    assert (code, other["admin"]) == (0, None)
    assert shown["admin"] is None or "no admin listener" in log


def test_admin_port_that_was_asked_for_and_is_taken_is_an_error(local):
    with process(*local) as first:
        port = first_line(first)["admin"].rstrip("/").rpartition(":")[2]

        done = subprocess.run(
            [*map(str, (*local, "--admin-port", port))],
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
            timeout=60,
            check=False,
        )

    assert done.returncode == 5
    assert f"cannot listen on TCP 127.0.0.1:{port}" in done.stderr


def test_top_draws_on_a_terminal_and_leaves_it_as_it_was(local):
    with process(*local) as running:
        admin = first_line(running)["admin"]
        ours, theirs = os.openpty()
        command = [*KVCS, "top", "--admin-url", admin, "--interval", "200ms"]
        child = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
        )
        os.close(theirs)
        drawn = b""
        with child:
            deadline = time.monotonic() + 20
            while b"hit ratio" not in drawn and time.monotonic() < deadline:
                drawn += os.read(ours, 65536)
            child.send_signal(signal.SIGINT)
            with contextlib.suppress(OSError):  # the other end is closed
                while rest := os.read(ours, 65536):
                    drawn += rest
            child.wait(timeout=20)
        os.close(ours)

    assert child.returncode == 0
    assert b": ready" in drawn
    # The other screen is left, and the cursor is shown again.
    assert drawn.rindex(b"\x1b[?1049l") > drawn.rindex(b"\x1b[?1049h")
    assert drawn.rindex(b"\x1b[?25h") > drawn.rindex(b"\x1b[?25l")


@pytest.mark.skipif(bool(reason := missing_rights()), reason=reason or "none")
def test_publication_survives_its_publisher_and_a_killed_relay(place, config):
    with star("publisher", "consumer") as (hub, publisher, consumer):
        relay = hub.command(*KVCS, "relay", "run", "--config", config, "--json")
        url = f"moqt://{hub.address}:4433/"
        with process(*relay) as running:
            member = ("--ca", first_line(running)["ca"], "--scope-key-file", place / "scope.key")
            publish = publisher.command(*KVCS, "publish", SAMPLE_CACHE, "--url", url, *member)
            run(*publish, "--push", "--exit-when-delivered", "--json")
            status = hub.command(*KVCS, "relay", "status", "--json")
            until(lambda: is_on_disk(run(*status)))
            running.send_signal(signal.SIGKILL)
            running.wait()
        with process(*relay) as running:
            first_line(running)
            fetched = run(
                *consumer.command(*KVCS, "fetch", url, "--like", SAMPLE_CACHE, *member),
                *("-o", place / "out.safetensors", "--json"),
            )
            shown = run(*status)
            end(running)

    assert fetched["complete"]
    assert fetched["objects_rejected"] == 0
    assert (place / "out.safetensors").read_bytes() == SAMPLE_CACHE.read_bytes()
    assert shown["statistics"]["bytes_in"] == 0
    assert shown["statistics"]["disk_bytes_read"] > fetched["bytes"]
    (namespace,) = shown["namespaces"]["shown"]
    assert (namespace["is_listed"], namespace["publishers"]) == (True, 0)


def is_on_disk(status):
    """Tell whether the whole publication is on disk."""
    counts = status["statistics"]
    (namespace,) = status["namespaces"]["shown"]
    is_whole = namespace["complete_tracks"] == namespace["tracks"] == 3
    return is_whole and counts["disk_objects_written"] and not counts["disk_queued_bytes"]
