"""Key rings on the command line: two members and a stranger, through a relay of their own."""

import json
import re

import pytest
from tests.integration.children import first_line, process

from kvcs.engines.file import SAMPLE_CACHE
from kvcs.keyring import load_ring

pytestmark = pytest.mark.timeout(120)


def must(outcome):
    code, out, err = outcome
    assert code == 0, err
    return out


@pytest.fixture
def rings(tmp_path, run):
    """A ring that publishes, one of another member, and one of the scope key alone."""
    mine, theirs, bare = (tmp_path / name for name in ("mine", "theirs", "bare"))
    must(run("scope", "new", "--keys", mine))
    must(run("keys", "new", "producer", "--keys", mine))
    must(run("keys", "new", "object", "--keys", mine))
    must(run("keys", "export", "member", tmp_path / "member.json", "--keys", mine))
    must(run("keys", "import", tmp_path / "member.json", "--keys", theirs))
    scope = json.loads((tmp_path / "member.json").read_text())["scope"]
    (tmp_path / "scope.jwk").write_text(json.dumps(scope))
    (tmp_path / "scope.jwk").chmod(0o600)
    must(run("keys", "import", tmp_path / "scope.jwk", "--as", "scope", "--keys", bare))
    return mine, theirs, bare


@pytest.fixture
def fetch(relay, run):
    def call(ring, *more):
        where = ("--ca", relay["ca"], "--timeout", "20s", "--keys", ring)
        return run("fetch", relay["url"], "--like", SAMPLE_CACHE, *where, *more)

    return call


@pytest.fixture
def published(relay):
    """A publication by a ring."""

    def opened(ring, *more):
        where = ("--url", relay["url"], "--ca", relay["ca"], "--keys", ring)
        return process("publish", SAMPLE_CACHE, *where, "--json", *more)

    return opened


def test_member_takes_what_is_signed_and_sealed_and_nobody_else_does(
    rings, published, fetch, run, relay, tmp_path
):
    mine, theirs, bare = rings
    with published(mine) as child:
        shown = first_line(child)
        taken = json.loads(must(fetch(theirs, "--json", "-o", tmp_path / "out.safetensors")))
        look = ("--ca", relay["ca"], "--keys", theirs, "--json")
        seen = json.loads(
            must(run("inspect", f"{relay['url']}#kvcs:{shown['publication_id']}", *look))
        )
        refused, _, why = fetch(bare)
        stranger = tmp_path / "stranger"
        stranger.mkdir(mode=0o700)
        nothing, _, no_key = fetch(stranger)

    assert (taken["complete"], taken["refused"]) == (True, {})
    assert shown["signed_by"] == taken["signed_by"]
    assert shown["sealed_with_key_id"] == load_ring(mine).object_keys.current.key_id
    assert seen["publications"][0]["blocks"] == 4
    assert taken["sealed"] is seen["publications"][0]["sealed"] is True
    ring = json.loads(must(run("keys", "list", "--keys", theirs, "--json")))
    trusted = [key["kid"] for key in ring["keys"] if key["purpose"] == "trusted"]
    assert [taken["signed_by"]] == [seen["publications"][0]["signed_by"]] == trusted
    assert (tmp_path / "out.safetensors").read_bytes() == SAMPLE_CACHE.read_bytes()
    assert refused == 7, why
    assert len(why.splitlines()) == 2
    assert "kvcs keys import FILE --as trusted" in why
    assert (nothing, "kvcs scope new" in no_key) == (2, True)


def test_publisher_says_what_protects_and_that_members_will_not_take_it(rings, relay, run):
    mine, theirs, bare = rings
    told = {}
    for ring in rings:
        where = ("--url", relay["url"], "--ca", relay["ca"], "--keys", ring, "--linger", "0s")
        code, _, told[ring] = run("publish", SAMPLE_CACHE, *where)
        assert code == 0, told[ring]

    assert re.search(r"MiB, signed by [0-9a-f]{16}, sealed with key \d+\n", told[mine])
    assert "MiB, not signed, sealed with key" in told[theirs]
    assert "MiB, not signed, not sealed\n" in told[bare]
    assert [ring for ring in rings if "kvcs keys new producer" in told[ring]] == [theirs]


def test_who_trusts_a_producer_takes_nothing_in_clear_unless_told(rings, published, fetch, run):
    mine, theirs, bare = rings
    trusting = bare.with_name("trusting")
    must(run("keys", "import", bare.with_name("scope.jwk"), "--as", "scope", "--keys", trusting))
    public = bare.with_name("producer.jwks")
    must(run("keys", "public", "producer", "-o", public, "--keys", mine))
    must(run("keys", "import", public, "--as", "trusted", "--keys", trusting))
    with published(bare) as child:
        first_line(child)

        code, _, err = fetch(trusting)
        allowed = json.loads(must(fetch(trusting, "--allow-unsigned", "--json")))
        sealed_wanted, _, why = fetch(theirs, "--allow-unsigned")

    assert code != 0
    assert len(err.splitlines()) == 2
    assert (allowed["complete"], allowed["signed_by"], allowed["sealed"]) == (True, None, False)
    assert sealed_wanted != 0, why


def test_publication_that_is_passed_over_is_counted(rings, published, fetch):
    mine, theirs, bare = rings
    with published(mine) as child, published(bare) as other:
        first_line(child)
        first_line(other)

        taken = json.loads(must(fetch(theirs, "--json")))
        code, _, told = fetch(theirs)

    assert taken["complete"] is True
    assert taken["refused"] == {"unsigned": 1}
    assert code == 0
    assert "note: publications refused at their manifest: 1 unsigned\n" in told


def test_exact_publication_is_found_by_an_index(rings, published, fetch, tmp_path):
    mine, theirs, _ = rings
    index = tmp_path / "index"
    with published(mine, "--index", index, "--pad-blocks", 8) as child:
        shown = first_line(child)
        taken = json.loads(must(fetch(theirs, "--json", "--index", index)))
    gone, _, _ = fetch(theirs, "--index", index)

    assert taken["publication_id"] == shown["publication_id"]
    assert taken["complete"] is True
    assert (taken["objects_excess"], taken["blocks"]) == (0, 4)
    # What the relay still holds can be had; what it never took is not there any more.
    assert gone in (0, 3)


def test_rotated_keys_overlap(rings, published, fetch, run, tmp_path):
    mine, theirs, _ = rings
    for purpose in ("object", "producer"):
        must(run("keys", "new", purpose, "--keys", mine))
    must(run("keys", "export", "member", tmp_path / "next.json", "--keys", mine))
    must(run("keys", "import", tmp_path / "next.json", "--keys", theirs))
    with published(mine) as child:
        first_line(child)
        told = must(fetch(theirs))
    assert re.search(r" s, signed by [0-9a-f]{16}, sealed$", told.strip())
    for purpose in ("object", "producer"):
        must(run("keys", "rotate", purpose, "--keys", mine))
    with published(mine) as child:
        first_line(child)
        must(fetch(theirs))
