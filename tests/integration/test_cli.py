"""The command line against a real relay: one process for it, one for the publisher."""

import asyncio
import json
import signal
import subprocess

import pytest
from tests.integration.children import ENVIRONMENT, KVCS, end, first_line, process, wait_for
from tests.integration.network import free_port

from kvcs.cli._search import DISCOVERY_WAIT
from kvcs.client import Publisher
from kvcs.endpoint.certificate import create_dev_certificate
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.engines.file import SAMPLE_CACHE, load_cache
from kvcs.kv import ScopeKey
from kvcs.transport.interface import ClientTls

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def member(scope_key_file, relay):
    """What a member of the scope tells every command."""
    return ("--scope-key-file", scope_key_file, "--ca", relay["ca"], "--timeout", "30s")


@pytest.fixture
def own_member(own_scope_key_file, relay):
    """What the member of a scope tells every command that no other test publishes to."""
    return ("--scope-key-file", own_scope_key_file, "--ca", relay["ca"], "--timeout", "30s")


@pytest.fixture(scope="module")
def publication(relay, member):
    arguments = ("publish", SAMPLE_CACHE, "--url", relay["url"], *member, "--json")
    with process(*arguments) as child:
        shown = first_line(child)
        child.stderr.readline()  # published all layers
        yield shown


@pytest.fixture(scope="module")
def sample():
    return load_cache(SAMPLE_CACHE)


@pytest.mark.usefixtures("publication")
def test_whole_cache_arrives_as_the_same_file(run, relay, member, tmp_path):
    out = tmp_path / "out.safetensors"

    code, shown, err = run("fetch", relay["url"], "--like", SAMPLE_CACHE, *member, "-o", out)

    assert code == 0, err
    assert out.read_bytes() == SAMPLE_CACHE.read_bytes()
    assert "layers 0-29, 4 blocks" in shown
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.usefixtures("publication")
def test_some_layers_and_blocks_arrive_alone(run, relay, member, sample, tmp_path):
    out = tmp_path / "part.safetensors"
    wanted = ("--layers", "0-14", "--blocks", 2, "-o", out, "--json")

    code, shown, err = run("fetch", relay["url"], "--like", SAMPLE_CACHE, *member, *wanted)

    assert code == 0, err
    part, result = load_cache(out, partial=True), json.loads(shown)
    assert sorted(part.layers) == list(range(15))
    assert part.tokens == sample.tokens[:128]
    for layer_index, (k, v) in part.layers.items():
        assert k == sample.layers[layer_index].k[: k.nbytes]
        assert v == sample.layers[layer_index].v[: v.nbytes]
    assert (result["complete"], result["objects_verified"], result["objects_excess"]) == (
        True,
        60,
        0,
    )
    assert result["layers"] == "0-14"


@pytest.mark.usefixtures("publication")
def test_prompt_can_be_given_as_tokens_and_descriptor(run, relay, member, sample, tmp_path):
    (tmp_path / "tokens").write_text(json.dumps(sample.tokens))
    (tmp_path / "compat").write_bytes(sample.descriptor.canonical())
    out = tmp_path / "out.safetensors"
    prompt = ("--tokens", tmp_path / "tokens", "--compat", tmp_path / "compat")

    code, _, err = run("fetch", relay["url"], *prompt, *member, "-o", out)

    assert code == 0, err
    assert out.read_bytes() == SAMPLE_CACHE.read_bytes()


def test_publication_is_known_to_people_by_its_first_digits(run, relay, member, publication):
    short_id = publication["publication_id"][:8]
    url = f"{relay['url']}#kvcs:{short_id}"

    code, shown, err = run("fetch", url, *member, "--layers", 3)
    listed, listing, _ = run("inspect", relay["url"], *member)
    named, naming, _ = run("inspect", url, *member)

    assert (code, listed, named) == (0, 0, 0), err
    assert shown.startswith(f"{short_id}: layers 3, 4 blocks")
    assert f"publication {short_id}\n" in listing
    assert naming == listing
    assert "kvcs.2d1" not in shown + listing


def test_more_blocks_than_the_publication_has_are_refused(run, member, publication):
    code, shown, err = run("fetch", publication["url"], *member, "--blocks", 9)

    assert code == 2
    assert "at most 4, the whole blocks of the publication" in err
    assert shown == ""


@pytest.mark.usefixtures("publication")
def test_file_of_some_layers_says_what_it_is_good_for(run, relay, member, tmp_path):
    out = tmp_path / "part.safetensors"
    wanted = ("--like", SAMPLE_CACHE, "--layers", "0-14", "-o", out)

    code, _, err = run("fetch", relay["url"], *member, *wanted)

    assert code == 0, err
    assert "15 of 30 layers" in err
    assert "kvcs publish needs all of them" in err


def test_exact_publication_is_verified_without_its_tokens(run, member, publication):
    code, shown, err = run("fetch", publication["url"], *member, "--layers", 3, "--json")

    assert code == 0, err
    assert json.loads(shown)["publication"] == publication["publication"]
    assert json.loads(shown)["objects_verified"] == 8


def test_exact_publication_is_written_with_tokens_alone(run, member, publication, sample, tmp_path):
    (tmp_path / "tokens").write_text(json.dumps(sample.tokens))
    out = tmp_path / "out.safetensors"

    code, _, err = run(
        "fetch", publication["url"], "--tokens", tmp_path / "tokens", *member, "-o", out
    )

    assert code == 0, err
    assert out.read_bytes() == SAMPLE_CACHE.read_bytes()


def test_exact_publication_of_other_tokens_is_not_written(
    run, member, publication, sample, tmp_path
):
    (tmp_path / "tokens").write_text(json.dumps([7, *sample.tokens[1:]]))
    out = tmp_path / "out.safetensors"

    code, _, err = run(
        "fetch", publication["url"], "--tokens", tmp_path / "tokens", *member, "-o", out
    )

    assert code == 7
    assert len(err.splitlines()) == 2
    assert not out.exists()


def test_relay_shows_the_publications_of_the_scope(run, relay, member, publication, scope_key_file):
    code, shown, err = run("inspect", relay["url"], *member, "--json")

    assert code == 0, err
    (found,) = json.loads(shown)["publications"]
    assert found["namespace"] == publication["publication"]
    assert (found["layers"], found["blocks"], found["complete"]) == (30, 4, True)
    assert found["segments"][0]["tracks"] == ["k.raw.s0", "v.raw.s0"]
    assert scope_key_file.read_text() not in shown + err


def test_relay_shows_the_publication_that_a_url_names(run, member, publication):
    code, shown, err = run("inspect", publication["url"], *member)

    assert code == 0, err
    assert "complete, 30 layers, 4 blocks of 64 tokens, bfloat16" in shown


@pytest.mark.parametrize("command", ["fetch", "inspect"])
@pytest.mark.usefixtures("publication")
def test_other_scope_finds_nothing(run, relay, own_member, tmp_path, command):
    out = tmp_path / "out.safetensors"
    wanted = ("--like", SAMPLE_CACHE, "-o", out) if command == "fetch" else ()

    code, shown, err = run(command, relay["url"], *own_member, *wanted)

    assert code == 3
    assert shown == ""
    assert len(err.splitlines()) == 2
    assert list(tmp_path.iterdir()) == []


def test_unknown_publication_is_not_found(run, relay, member, publication):
    unknown = publication["publication"].rpartition("-")[0] + "-" + ".00" * 16

    code, _, err = run("fetch", f"{relay['url']}#kvcs:{unknown}", *member)

    assert code == 3
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize("command", ["fetch", "publish"])
def test_unreachable_relay_is_said_so(run, member, tmp_path, command):
    url = "moqt://127.0.0.1:9/"
    arguments = (
        ("fetch", url, "--like", SAMPLE_CACHE, "-o", tmp_path / "out")
        if command == "fetch"
        else ("publish", SAMPLE_CACHE, "--url", url)
    )

    code, _, err = run(*arguments, *member[:-1], "500ms", "-q")

    assert code == 5
    assert len(err.splitlines()) == 2
    assert "127.0.0.1:9" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("publication")
def test_relay_with_another_authority_is_not_trusted(run, relay, scope_key_file, tmp_path):
    authority = create_dev_certificate(tmp_path).ca_file

    code, _, err = run(
        "inspect", relay["url"], "--scope-key-file", scope_key_file, "--ca", authority
    )

    assert code == 5
    assert len(err.splitlines()) == 2


@pytest.mark.usefixtures("publication")
def test_name_that_the_certificate_lacks_is_said_with_what_to_do(run, relay, member):
    port = relay["url"].rstrip("/").rpartition(":")[2]

    code, _, err = run("inspect", f"moqt://127.0.0.2:{port}/", *member)

    assert code == 5
    assert "for the name 127.0.0.2" in err
    assert "dial a name that its certificate has" in err


@pytest.mark.usefixtures("publication")
def test_certificate_can_be_left_unchecked_towards_this_machine(run, relay, scope_key_file):
    code, shown, err = run(
        "inspect", relay["url"], "--scope-key-file", scope_key_file, "--insecure-loopback"
    )

    assert code == 0, err
    assert "complete" in shown


async def test_publication_that_stays_incomplete_is_a_verdict_in_time(
    relay, own_member, own_scope_key_file, sample, tmp_path
):
    config = ConnectConfig(tls=ClientTls(ca_file=relay["ca"]))
    scope_key = ScopeKey(bytes.fromhex(own_scope_key_file.read_text()))
    out = tmp_path / "out.safetensors"
    options = (*own_member[:-1], "2s", "-o", out, "--json")

    async with connect(relay["url"], config) as connection:
        publisher = Publisher(connection, scope_key=scope_key, descriptor=sample.descriptor)
        async with publisher.publication(sample.tokens) as publication:
            segment = await publication.add_segment()
            for layer_index in range(10):
                await segment.publish_layer(layer_index, *sample.layers[layer_index])
            child = await asyncio.create_subprocess_exec(
                *(*KVCS, "fetch", relay["url"], "--like", SAMPLE_CACHE),
                *options,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=ENVIRONMENT,
            )
            shown, err = await asyncio.wait_for(child.communicate(), 30)

    result = json.loads(shown)
    error = json.loads(err)["error"]
    assert (child.returncode, error["exit_code"]) == (124, 124)
    assert error["message"] == "160 of 240 Objects are missing: the time was up"
    assert error["hint"].startswith("Nothing was written.")
    assert result["complete"] is False
    assert result["objects_verified"] == 10 * 8
    assert {missing["layer"] for missing in result["missing"]} == set(range(10, 30))
    assert {missing["reason"] for missing in result["missing"]} == {"deadline"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("publication")
def test_file_that_cannot_be_written_leaves_nothing(run, relay, member, tmp_path):
    out = tmp_path / "missing" / "out.safetensors"

    code, shown, err = run("fetch", relay["url"], "--like", SAMPLE_CACHE, *member, "-o", out)

    assert code == 2
    assert "can be written" in err
    assert shown == ""
    assert list(tmp_path.iterdir()) == []


def test_pushed_publication_outlives_its_publisher(run, relay, own_member, tmp_path):
    pushing = ("--url", relay["url"], *own_member, "--push", "--exit-when-delivered")

    published, _, err = run("publish", SAMPLE_CACHE, *pushing)
    code, _, fetch_err = run(
        "fetch", relay["url"], "--like", SAMPLE_CACHE, *own_member, "-o", tmp_path / "out"
    )

    assert published == 0, err
    assert code == 0, fetch_err
    assert (tmp_path / "out").read_bytes() == SAMPLE_CACHE.read_bytes()


def test_consumer_waits_for_a_publisher_that_comes_later(relay, own_member):
    arguments = ("fetch", relay["url"], "--like", SAMPLE_CACHE, *own_member, "--wait", "--json")

    with process(*arguments) as consumer:
        assert "waiting until the publication appears" in consumer.stderr.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            consumer.wait(2 * DISCOVERY_WAIT)  # without --wait it would be over
        with process("publish", SAMPLE_CACHE, "--url", relay["url"], *own_member):
            out, err = consumer.communicate(timeout=60)

    assert consumer.returncode == 0, err
    assert json.loads(out)["complete"] is True


def test_waiting_in_vain_ends_with_the_timeout(run, relay, own_member):
    options = (*own_member[:-1], "1500ms", "--wait", "--json")

    code, out, err = run("fetch", relay["url"], "--like", SAMPLE_CACHE, *options)

    error = json.loads(err.splitlines()[-1])["error"]
    assert (code, out) == (124, "")
    assert error["code"] == "timeout"
    assert "did not appear within 1." in error["message"]


def test_publisher_says_that_it_is_connected_again(own_member, certificate_directory):
    port = free_port()
    url = f"moqt://127.0.0.1:{port}/"
    serve = ("relay", "run", "--port", port, "--dev-cert", certificate_directory, "--json")

    with process(*serve) as first:
        first_line(first)
        with process("publish", SAMPLE_CACHE, "--url", url, *own_member) as publisher:
            wait_for(publisher.stderr, "staying until interrupted")
            end(first)
            lost = wait_for(publisher.stderr, "no session with")
            with process(*serve) as second:
                first_line(second)
                back = wait_for(publisher.stderr, "connected again")

    assert "next attempt in" in lost
    assert f"127.0.0.1:{port}" in back


def test_publisher_leaves_when_somebody_has_taken_everything(run, relay, own_member):
    arguments = ("publish", SAMPLE_CACHE, "--url", relay["url"], *own_member, "--json")

    with process(*arguments, "--exit-when-delivered") as publisher:
        first_line(publisher)
        code, _, fetch_err = run("fetch", relay["url"], "--like", SAMPLE_CACHE, *own_member)
        _, err = publisher.communicate(timeout=60)

    assert code == 0, fetch_err
    assert publisher.returncode == 0, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_publisher_withdraws_and_ends_well(run, relay, own_member, number):
    with process(
        "publish", SAMPLE_CACHE, "--url", relay["url"], *own_member, "--json"
    ) as publisher:
        first_line(publisher)
        publisher.stderr.readline()  # published all layers
        code, _, _ = end(publisher, number)
    found, _, _ = run("inspect", relay["url"], *own_member)

    assert code == 0
    assert found == 3


def test_publisher_leaves_after_its_linger(run, relay, own_member):
    options = ("--url", relay["url"], *own_member, "--linger", "10ms")

    code, _, err = run("publish", SAMPLE_CACHE, *options)

    assert code == 0, err
    assert "nobody has taken all of it" in err


def test_relay_says_that_its_port_is_taken(run, relay, certificate_directory):
    port = relay["url"].rstrip("/").rpartition(":")[2]

    code, _, err = run("relay", "run", "--port", port, "--dev-cert", certificate_directory)

    assert code == 5
    assert len(err.splitlines()) == 2
