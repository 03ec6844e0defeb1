"""A relay as it is run: from its example file, for other machines, watched, and ended well."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.integration.children import child_process, first_line
from tests.integration.network import missing_rights, star

from kvcs.cli.relay.addresses import own_addresses
from kvcs.client import Publisher
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.engines.file import SAMPLE_CACHE, load_cache
from kvcs.errors import KvcsError
from kvcs.kv import ScopeKey
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import FullTrackName
from kvcs.transport.interface import ClientTls

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
        with served_for_ever(shown["url"], shown["ca"]):
            began = time.monotonic()
            running.send_signal(signal.SIGTERM)
            until(lambda: not is_ready(shown["admin"]))
            # Long enough for a relay that waits for nobody to be gone.
            time.sleep(2)
            assert running.poll() is None
            code, _, _ = end(running)

    assert code == 130
    assert time.monotonic() - began < 30


@contextlib.contextmanager
def served_for_ever(url, ca):
    """Have a Track served that never ends, to a subscriber that does not leave."""
    served = threading.Event()
    over = threading.Event()
    failures = []

    async def serve():
        config = ConnectConfig(tls=ClientTls(ca_file=ca))
        cache = load_cache(SAMPLE_CACHE)
        key = ScopeKey(b"\x5c" * 32)
        async with connect(url, config) as source, connect(url, config) as sink:
            publisher = Publisher(source, scope_key=key, descriptor=cache.descriptor)
            async with publisher.publication(cache.tokens) as publication:
                await publication.add_segment()
                track = FullTrackName(publication.name.namespace(), b"k.raw.s0")
                parameters = Parameters(location_filter=LocationFilter.next_object())
                await sink.answer(sink.subscribe(track, parameters, lambda _: None))
                served.set()
                await asyncio.to_thread(over.wait, 60)

    def run_it():
        try:
            asyncio.run(serve())
        except KvcsError as error:
            # The relay is gone in the end.
            failures.append(error)

    thread = threading.Thread(target=run_it)
    thread.start()
    try:
        assert served.wait(30), failures
        yield
    finally:
        over.set()
        thread.join(30)


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


@pytest.mark.parametrize(
    "flags",
    [
        ("--admin-port", "{port}"),
        ("--admin-host", "192.0.2.1"),
        ("--admin-host", "no host"),
    ],
)
def test_admin_listener_that_was_asked_for_and_cannot_be_had_is_an_error(local, flags):
    with process(*local) as first:
        port = first_line(first)["admin"].rstrip("/").rpartition(":")[2]

        done = refused(*local, *(flag.format(port=port) for flag in flags))

    assert done.returncode == 2
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert error["message"].startswith("admin")


def test_default_admin_port_that_is_named_is_asked_for(place):
    command = (*KVCS, "relay", "run", "--json", "--port", 0, "--dev-cert", place)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # then somebody else has it
            other.bind(("127.0.0.1", 4434))
            other.listen()

        done = refused(*command, "--admin-port", 4434)

    assert done.returncode == 2
    assert "cannot listen on TCP 127.0.0.1:4434" in done.stderr


def refused(*command):
    """Run a relay that does not start."""
    return subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=60,
        check=False,
    )


def test_address_of_all_interfaces_is_shown_as_one_that_clients_can_use(local):
    with process(*local, "--host", "0.0.0.0", "--allow-anyone") as running:
        url = urlsplit(first_line(running)["url"])

    assert url.hostname != "0.0.0.0"
    assert url.hostname in {*own_addresses(), "localhost"}
    assert url.port


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
