"""A relay as it is run: from its example file, for other machines, watched, and ended well."""

import asyncio
import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import termios
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.integration.children import (
    ENVIRONMENT,
    KVCS,
    child_process,
    end,
    first_line,
    process,
    result_of,
    status_at,
    until,
)
from tests.integration.network import missing_rights, star, status_in

from kvcs.admin import AdminConfig
from kvcs.cli.relay.addresses import own_addresses
from kvcs.client import Publisher
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.engines.file import SAMPLE_CACHE, load_cache
from kvcs.errors import KvcsError
from kvcs.kv import ScopeKey
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import FullTrackName
from kvcs.relay.drain import _GRACE, _LOOK_INTERVAL
from kvcs.transport.interface import ClientTls

pytestmark = pytest.mark.timeout(180)

ROOT = Path(__file__).parents[2]
ADMIN_PORT = AdminConfig().port
#: By then a relay that waits for nobody is gone.
LEAVES_WITHIN = _GRACE + 2 * _LOOK_INTERVAL


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
def local(certificate_directory):
    """What starts a relay on free ports of this machine."""
    ports = ("--port", 0, "--admin-port", 0)
    return ("relay", "run", "--json", *ports, "--dev-cert", certificate_directory)


def test_top_ends_on_a_terminal_that_nobody_reads(everywhere):
    ours, theirs = os.openpty()
    # More than a terminal keeps.
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 300, 300, 0, 0))
    command = [*KVCS, "top", "--admin-url", everywhere["admin"], "--interval", "100ms"]
    child = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**ENVIRONMENT, "TERM": "xterm"}
    )
    with child:
        try:
            # Nobody reads, so that it takes nothing more at some time.
            until(lambda: not select.select([], [theirs], [], 0)[1])
            child.send_signal(signal.SIGINT)
            assert child.wait(timeout=15) == 0
        finally:
            child.kill()
            os.close(theirs)
            os.close(ours)


@pytest.mark.skipif(bool(reason := missing_rights()), reason=reason or "none")
def test_example_serves_other_machines_and_its_page_shows_them(place, config):
    with star("publisher", "consumer") as (hub, publisher, consumer):
        relay = hub.command(*KVCS, "relay", "run", "--config", config, "--json")
        with child_process(relay) as running:
            shown = first_line(running)
            url = f"moqt://{hub.address}:4433/"
            member = ("--ca", shown["ca"], "--scope-key-file", place / "scope.key")
            publish = publisher.command(*KVCS, "publish", SAMPLE_CACHE, "--url", url, "--json")
            with child_process([*publish, *member, "--timeout", "20s"]) as publishing:
                published = first_line(publishing)
                wanted = ("--like", SAMPLE_CACHE, "-o", place / "out.safetensors", "--json")
                fetched = result_of(consumer.command(*KVCS, "fetch", url, *member, *wanted))
                status = result_of(hub.command(*KVCS, "relay", "status", "--json"))
                # The admin listener is for the relay's own machine.
                elsewhere = ("--admin-url", f"http://{hub.address}:4434/")
                result_of(consumer.command(*KVCS, "relay", "status", *elsewhere), code=5)
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
def test_relay_drains_and_ends_well_and_says_what_it_did(place, local, number):
    with process(*local, "--drain-timeout", "2s") as running:
        shown = first_line(running)
        member = ("--ca", shown["ca"], "--scope-key-file", place / "scope.key")
        publishing = ("publish", SAMPLE_CACHE, "--url", shown["url"], *member, "--json")
        with process(*publishing) as publisher:
            first_line(publisher)
            until(lambda: status_at(shown["admin"])["namespaces"]["shown"])
            code, out, log = end(running, number)

    assert code == 0
    assert shown["event"] == "listening"
    assert shown["url"].startswith("moqt://127.0.0.1:")
    last = json.loads(out)
    assert last["event"] == "stopped"
    assert last["statistics"]["sessions_opened"] == 1
    assert "relay drains" in log


def test_second_signal_does_not_wait(place, local):
    with process(*local, "--drain-timeout", "60s", "--config", silent(place)) as running:
        shown = first_line(running)
        with served_for_ever(shown["url"], shown["ca"]):
            began = time.monotonic()
            running.send_signal(signal.SIGTERM)
            until(lambda: not is_ready(shown["admin"]))
            with pytest.raises(subprocess.TimeoutExpired):
                running.wait(LEAVES_WITHIN)
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


def is_ready(admin):
    try:
        with urllib.request.urlopen(f"{admin}readyz", timeout=20):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return False


@contextlib.contextmanager
def taken_port(port=0):
    """A TCP port of this machine that somebody has while the block runs."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # then somebody else has it
            holder.bind(("127.0.0.1", port))
            holder.listen()
        yield port or holder.getsockname()[1]


@pytest.fixture
def without_admin_port(certificate_directory):
    return ("relay", "run", "--json", "--port", 0, "--dev-cert", certificate_directory)


def test_relay_without_its_admin_port_runs_all_the_same(without_admin_port):
    with taken_port(ADMIN_PORT), process(*without_admin_port) as running:
        shown = first_line(running)
        code, _, log = end(running)

    assert (code, shown["admin"]) == (0, None)
    assert "no admin listener" in log


@pytest.mark.parametrize(
    "flags",
    [
        ("--admin-port", "{port}"),
        ("--admin-host", "192.0.2.1"),
        ("--admin-host", "no host"),
    ],
)
def test_admin_listener_that_was_asked_for_and_cannot_be_had_is_an_error(
    run, without_admin_port, flags
):
    with taken_port() as port:
        code, _, err = run(*without_admin_port, *(flag.format(port=port) for flag in flags))

    assert code == 2
    error = json.loads(err.splitlines()[-1])["error"]
    assert error["message"].startswith("admin")


def test_default_admin_port_that_is_named_is_asked_for(run, without_admin_port):
    with taken_port(ADMIN_PORT):
        code, _, err = run(*without_admin_port, "--admin-port", ADMIN_PORT)

    assert code == 2
    assert f"cannot listen on TCP 127.0.0.1:{ADMIN_PORT}" in err


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory):
    """A relay on all interfaces: what it says of itself."""
    directory = tmp_path_factory.mktemp("everywhere")  # its certificate has more names
    arguments = ("relay", "run", "--json", "--port", 0, "--admin-port", 0)
    anywhere = ("--host", "0.0.0.0", "--allow-anyone")
    with process(*arguments, *anywhere, "--dev-cert", directory) as running:
        yield first_line(running)


def test_address_of_all_interfaces_is_shown_as_one_that_clients_can_use(everywhere):
    url = urlsplit(everywhere["url"])

    assert url.hostname != "0.0.0.0"
    assert url.hostname in {*own_addresses(), "localhost"}
    assert url.port


def test_top_draws_on_a_terminal_and_leaves_it_as_it_was(everywhere):
    ours, theirs = os.openpty()
    command = [*KVCS, "top", "--admin-url", everywhere["admin"], "--interval", "200ms"]
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
        with child_process(relay) as running:
            member = ("--ca", first_line(running)["ca"], "--scope-key-file", place / "scope.key")
            publish = publisher.command(*KVCS, "publish", SAMPLE_CACHE, "--url", url, *member)
            result_of([*publish, "--push", "--exit-when-delivered", "--json"])
            status = hub.command(*KVCS, "relay", "status", "--json")
            until(lambda: is_on_disk(status_in(hub)))
            running.send_signal(signal.SIGKILL)
            running.wait()
        with child_process(relay) as running:
            first_line(running)
            wanted = ("--like", SAMPLE_CACHE, "-o", place / "out.safetensors", "--json")
            fetched = result_of(consumer.command(*KVCS, "fetch", url, *member, *wanted))
            shown = result_of(status)
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
