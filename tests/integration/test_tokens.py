"""Tokens on the command line: a relay, a publisher and consumers, each a process of its own."""

import json
import signal
import time

import pytest
from tests.integration.children import first_line
from tests.integration.test_cli import process

import kvcs.cli
from kvcs import c4m
from kvcs.c4m import Claims, Role, role_scopes
from kvcs.cli._tokens import encode_token
from kvcs.engines.file import SAMPLE_CACHE, load_cache
from kvcs.keyring import load_ring
from kvcs.kv.identity import KVSP_PROVISIONAL
from kvcs.names import TrackNamespace

pytestmark = pytest.mark.timeout(120)


def command(*arguments):
    """Run a command to its end; return its exit code and what it printed."""
    with process(*arguments) as child:
        out, err = child.communicate(timeout=60)
    assert "Traceback" not in err
    return child.returncode, out, err


def in_this_process(*arguments):
    """Run a command, which takes less time than to start a process; return its exit code."""
    return int(kvcs.cli._run([str(argument) for argument in arguments]))


def replaced(path, content):
    beside = path.with_suffix(".new")
    beside.touch(mode=0o600)
    beside.write_bytes(content)
    beside.replace(path)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with two key rings of one scope, and what a relay needs of each."""
    directory = tmp_path_factory.mktemp("tokens")
    for name in ("ring", "other"):
        keys = ("--keys", directory / name)
        assert in_this_process("keys", "new", "token", *keys) == 0
        assert in_this_process("keys", "export", "relay", directory / f"{name}.json", *keys) == 0
    assert in_this_process("scope", "new", "--keys", directory / "ring") == 0
    (directory / "kept.json").write_bytes((directory / "ring.json").read_bytes())
    (directory / "relay.toml").write_text(
        '[authorization]\npolicy = "c4m"\nkeys = "ring.json"\nleeway = 0\n'
        'reload_interval = "200ms"\n[listen]\nport = 0\n[admin]\nenabled = false\n'
        '[tls]\ndevelopment_directory = "certificate"\n[log]\nlevel = "INFO"\n'
    )
    return directory


@pytest.fixture
def mint(place):
    """Write a token; starting a command for each would take longer than some of them last."""
    ring = load_ring(place / "ring")
    scope = TrackNamespace((b"kvcs-1", KVSP_PROVISIONAL.scope_id(ring.scope_key)))

    def make(name, role, ttl=600.0):
        claims = Claims(scopes=role_scopes(role, [scope]), expires_at=time.time() + ttl)
        path = place / name
        path.write_text(encode_token(c4m.mint(claims, ring.token_key)))
        return path

    return make


def test_tokens_open_a_relay_and_end(place, mint, tmp_path):
    taking = mint("consumer.token", Role.CONSUMER)
    expired = mint("expired.token", Role.CONSUMER, 0.0)
    with process("relay", "run", "--config", place / "relay.toml", "--json") as relay:
        shown = first_line(relay)
        member = ("--keys", place / "ring", "--ca", shown["ca"], "--timeout", "20s")
        publishing = ("publish", SAMPLE_CACHE, "--url", shown["url"], *member)
        lasts_until = time.time() + 15.0
        making = mint("producer.token", Role.PRODUCER, 15.0)
        with process(*publishing, "--token-file", making, "--json") as publisher:
            first_line(publisher)
            renewed = mint("renewed.token", Role.PRODUCER)
            replaced(making, renewed.read_bytes())
            time.sleep(max(0.0, lasts_until + 1.0 - time.time()))

            fetching = ("fetch", shown["url"], *member, "--like", SAMPLE_CACHE)
            taken = tmp_path / "taken.safetensors"
            good = command(*fetching, "--token-file", taking, "-o", taken)
            bare = command(*fetching)
            old = command(*fetching, "--token-file", expired)
            wrong = command(*fetching, "--token-file", renewed)
            replaced(place / "ring.json", (place / "other.json").read_bytes())
            time.sleep(1)
            withdrawn = command(*fetching, "--token-file", taking)
            publisher.send_signal(signal.SIGTERM)
            publisher.communicate(timeout=30)
        relay.send_signal(signal.SIGTERM)
        out, log = relay.communicate(timeout=30)

    assert good[0] == 0, good
    assert load_cache(taken).layers == load_cache(SAMPLE_CACHE).layers
    assert [result[0] for result in (bare, old, wrong, withdrawn)] == [4, 4, 4, 4]
    assert "the authorization token has expired" in old[2]
    for result in (bare, wrong, withdrawn):
        assert "refus" in result[2] or "allow" in result[2], result[2]
    ended = json.loads(out.splitlines()[-1])["statistics"]["grants_ended"]
    assert ended["UNAUTHORIZED"] >= 1
    assert "EXPIRED_AUTH_TOKEN" not in ended
    texts = [out, log, *(part for result in (good, bare, old, wrong) for part in result[1:])]
    for path in (taking, making, expired):
        words = path.read_text().strip()
        for text in texts:
            assert words[60:100] not in text


def test_inspecting_a_relay_presents_a_token(place, mint):
    replaced(place / "ring.json", (place / "kept.json").read_bytes())
    token = mint("inspect.token", Role.CONSUMER)
    with process("relay", "run", "--config", place / "relay.toml", "--json") as relay:
        shown = first_line(relay)
        member = ("--keys", place / "ring", "--ca", shown["ca"], "--timeout", "10s")
        seen = command("inspect", shown["url"], *member, "--token-file", token)
        blind = command("inspect", shown["url"], *member)

    assert (seen[0], blind[0]) == (3, 4)  # nothing is there; and nobody may know


def test_claims_have_other_numbers_where_relay_and_issuer_agree_on_them(place, mint):
    replaced(place / "ring.json", (place / "kept.json").read_bytes())
    settings = (place / "relay.toml").read_text()
    numbers = "moqt_claim = 400\nrevalidation_claim = 401\n"
    (place / "numbers.toml").write_text(settings.replace("[listen]", f"{numbers}[listen]"))
    other, usual = place / "numbers.token", mint("usual.token", Role.CONSUMER)
    minted = in_this_process(
        *("token", "mint", "--keys", place / "ring", "--role", "consumer", "--revalidate", "30s"),
        *("--moqt-claim", "400", "--revalidation-claim", "401", "-o", other),
    )
    with process("relay", "run", "--config", place / "numbers.toml", "--json") as relay:
        shown = first_line(relay)
        member = ("--keys", place / "ring", "--ca", shown["ca"], "--timeout", "10s")
        look = ("inspect", shown["url"], *member, "--token-file")
        taken = in_this_process(*look, other)
        refused = in_this_process(*look, usual)

    # Nothing is there; and nobody may know.
    assert (minted, taken, refused) == (0, 3, 4)
