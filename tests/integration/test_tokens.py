"""Tokens on the command line: a relay and a publisher in processes of their own, and consumers."""

import json
import os
import time

import pytest
from tests.integration.children import end, first_line, process, status_at, until

from kvcs import c4m
from kvcs.c4m import Claims, Role, role_scopes
from kvcs.cli._tokens import encode_token
from kvcs.engines.file import SAMPLE_CACHE, load_cache
from kvcs.keyring import load_ring
from kvcs.kv.identity import KVSP_PROVISIONAL
from kvcs.names import TrackNamespace

pytestmark = pytest.mark.timeout(120)

#: Seconds that the publisher's first token lasts, from when the publisher reads it: within them it
#: connects, and notices a new one, which takes a second at least.
SHORT = 5.0


@pytest.fixture
def place(tmp_path, run):
    """A directory with two key rings of one scope, and what a relay needs of each."""
    for name in ("ring", "other"):
        ring = ("--keys", tmp_path / name)
        assert run("keys", "new", "token", *ring)[0] == 0
        assert run("keys", "export", "relay", tmp_path / f"{name}.json", *ring)[0] == 0
    assert run("scope", "new", "--keys", tmp_path / "ring")[0] == 0
    (tmp_path / "relay.toml").write_text(
        '[authorization]\npolicy = "c4m"\nkeys = "ring.json"\nleeway = 0\n'
        'reload_interval = "200ms"\n[listen]\nport = 0\n[admin]\nenabled = false\n'
        '[tls]\ndevelopment_directory = "certificate"\n[log]\nlevel = "INFO"\n'
    )
    return tmp_path


@pytest.fixture
def mint(place):
    """Make a token; starting a command for each would take longer than some of them last."""
    ring = load_ring(place / "ring")
    scope = TrackNamespace((b"kvcs-1", KVSP_PROVISIONAL.scope_id(ring.scope_key)))

    def make(role, ttl=600.0):
        claims = Claims(scopes=role_scopes(role, [scope]), expires_at=time.time() + ttl)
        return encode_token(c4m.mint(claims, ring.token_key)).encode()

    return make


def replaced(path, content):
    """Put a file in the place of whatever is there."""
    beside = path.with_suffix(".new")
    beside.touch(mode=0o600)
    beside.write_bytes(content)
    beside.replace(path)
    return path


def hand_over(path, make):
    """Make a token for the process that waits for one in a pipe; it is a file afterwards."""

    def opened():
        try:
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads it yet
            return None

    pipe = until(opened)
    token = make()
    replaced(path, token)
    os.write(pipe, token)
    os.close(pipe)
    return token


def test_tokens_open_a_relay_and_end(place, mint, run):
    making, taken = place / "producer.token", place / "taken.safetensors"
    os.mkfifo(making)
    taking = replaced(place / "consumer.token", mint(Role.CONSUMER))
    expired = replaced(place / "expired.token", mint(Role.CONSUMER, 0.0))
    with process("relay", "run", "--config", place / "relay.toml", "--json") as relay:
        shown = first_line(relay)
        member = ("--keys", place / "ring", "--ca", shown["ca"], "--timeout", "20s")
        publishing = ("publish", SAMPLE_CACHE, "--url", shown["url"], *member)
        with process(*publishing, "--token-file", making, "--json") as publisher:
            ending = hand_over(making, lambda: mint(Role.PRODUCER, SHORT))
            lasts_until = time.time() + SHORT
            first_line(publisher)
            renewed = replaced(making, mint(Role.PRODUCER))

            fetching = ("fetch", shown["url"], *member, "--like", SAMPLE_CACHE)
            looking = ("inspect", shown["url"], *member)
            bare = run(*fetching)
            old = run(*fetching, "--token-file", expired)
            wrong = run(*fetching, "--token-file", renewed)
            blind = run(*looking)
            seen = run(*looking, "--token-file", taking)
            # Until the relay has looked at what the first token allowed.
            time.sleep(max(0.0, lasts_until + 0.5 - time.time()))
            good = run(*fetching, "--token-file", taking, "-o", taken)
            replaced(place / "ring.json", (place / "other.json").read_bytes())
            until(lambda: run(*looking, "--token-file", taking)[0] != 0)
            withdrawn = run(*fetching, "--token-file", taking)
            end(publisher)
        _, out, log = end(relay)

    assert (seen[0], good[0]) == (0, 0), (seen, good)
    assert load_cache(taken).layers == load_cache(SAMPLE_CACHE).layers
    assert [result[0] for result in (bare, old, wrong, blind, withdrawn)] == [4, 4, 4, 4, 4]
    assert "the authorization token has expired" in old[2]
    for result in (bare, wrong, blind, withdrawn):
        assert "refus" in result[2] or "allow" in result[2], result[2]
    ended = json.loads(out.splitlines()[-1])["statistics"]["grants_ended"]
    assert ended["UNAUTHORIZED"] >= 1
    assert "EXPIRED_AUTH_TOKEN" not in ended
    results = (good, bare, old, wrong, blind, seen, withdrawn)
    texts = [out, log, *(part for result in results for part in result[1:])]
    for token in (ending, *(path.read_bytes() for path in (taking, renewed, expired))):
        for text in texts:
            assert token.decode()[60:100] not in text


def test_child_whose_token_ended_serves_what_it_has_and_says_so(place, mint, run):
    ended = replaced(place / "relay.token", mint(Role.RELAY, 0.0))
    makers = replaced(place / "producer.token", mint(Role.PRODUCER))
    takers = replaced(place / "consumer.token", mint(Role.CONSUMER))
    settings = (place / "relay.toml").read_text()
    running = ("relay", "run", "--config", place / "relay.toml", "--json")
    child_settings = settings.replace("enabled = false", "port = 0")
    (place / "child.toml").write_text(child_settings.replace('"certificate"', '"below"'))
    with process(*running) as parent:
        above = first_line(parent)
        upstream = ("--upstream", above["url"], "--upstream-ca", above["ca"])
        joining = (*upstream, "--upstream-token-file", ended)
        with process("relay", "run", "--config", place / "child.toml", *joining, "--json") as child:
            shown = first_line(child)
            member = ("--keys", place / "ring", "--ca", shown["ca"], "--timeout", "20s")
            taking = ("fetch", shown["url"], *member, "--token-file", takers)
            taking = (*taking, "--like", SAMPLE_CACHE, "-o")
            making = ("publish", SAMPLE_CACHE, "--url", shown["url"], *member)
            with process(*making, "--token-file", makers, "--json") as publisher:
                first_line(publisher)
                online = run(*taking, place / "online.safetensors")
                end(publisher)
            kept = run(*taking, place / "kept.safetensors")
            (told,) = status_at(shown["admin"])["upstreams"]
            _, out, log = end(child)
        end(parent)

    assert (online[0], kept[0]) == (0, 0), (online, kept)
    for name in ("online", "kept"):
        assert load_cache(place / f"{name}.safetensors").layers == load_cache(SAMPLE_CACHE).layers
    assert told["is_used"]
    assert told["error"] == "it refuses requests of this relay: EXPIRED_AUTH_TOKEN"
    refused = json.loads(out.splitlines()[-1])["statistics"]["upstream_refused"]
    assert refused["EXPIRED_AUTH_TOKEN"] >= 1
    assert log.count("refuses what this relay asks for: EXPIRED_AUTH_TOKEN") == 1


def test_claims_have_other_numbers_where_relay_and_issuer_agree_on_them(place, mint, run):
    settings = (place / "relay.toml").read_text()
    numbers = "moqt_claim = 400\nrevalidation_claim = 401\n"
    (place / "relay.toml").write_text(settings.replace("[listen]", f"{numbers}[listen]"))
    other, usual = place / "numbers.token", replaced(place / "usual.token", mint(Role.CONSUMER))
    minting = ("--keys", place / "ring", "--role", "consumer", "--revalidate", "30s", "-o", other)
    numbers = ("--moqt-claim", "400", "--revalidation-claim", "401")
    minted, _, _ = run("token", "mint", *minting, *numbers)
    with process("relay", "run", "--config", place / "relay.toml", "--json") as relay:
        shown = first_line(relay)
        member = ("--keys", place / "ring", "--ca", shown["ca"], "--timeout", "10s")
        look = ("inspect", shown["url"], *member, "--token-file")
        taken, _, _ = run(*look, other)
        refused, _, _ = run(*look, usual)

    # Nothing is there; and nobody may know.
    assert (minted, taken, refused) == (0, 3, 4)


def test_a_token_for_one_session_serves_its_owner_and_nobody_after_him(place, run):
    once, taken = place / "once.token", place / "taken.safetensors"
    minting = ("token", "mint", "--keys", place / "ring", "--once")
    assert run(*minting, "--role", "producer", "-o", place / "producer.token")[0] == 0
    assert run(*minting, "--role", "consumer", "-o", once)[0] == 0
    with process("relay", "run", "--config", place / "relay.toml", "--json") as relay:
        shown = first_line(relay)
        member = ("--keys", place / "ring", "--ca", shown["ca"], "--timeout", "20s")
        publishing = ("publish", SAMPLE_CACHE, "--url", shown["url"], *member)
        with process(*publishing, "--token-file", place / "producer.token", "--json") as publisher:
            first_line(publisher)
            fetching = ("fetch", shown["url"], *member, "--like", SAMPLE_CACHE)
            owner = run(*fetching, "--token-file", once, "-o", taken)
            thief = run(*fetching, "--token-file", once)
            other_thief = run(*publishing, "--token-file", place / "producer.token")
            end(publisher)

    assert owner[0] == 0, owner
    assert load_cache(taken).layers == load_cache(SAMPLE_CACHE).layers
    assert (thief[0], other_thief[0]) == (4, 4), (thief, other_thief)
    assert "refus" in thief[2] or "allow" in thief[2], thief[2]
