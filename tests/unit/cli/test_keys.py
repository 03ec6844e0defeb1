"""Keys as people handle them: made, shared, taken in, rotated and listed, and never shown."""

import json
import os
import re
import stat

import pytest

from kvcs.engines.file import SAMPLE_CACHE
from kvcs.keyring import KEYS_JSON_VARIABLE, KeyState, Purpose, encode_ring, load_ring
from kvcs.kv.identity import KVSP_PROVISIONAL


@pytest.fixture
def directory(tmp_path, monkeypatch):
    path = tmp_path / "ring"
    monkeypatch.setenv("KVCS_KEYS", str(path))
    return path


@pytest.fixture
def ring(directory, kvcs_json):
    """A ring with a key of every kind."""
    kvcs_json("scope", "new")
    for arguments in (
        ("producer", "--kid", "site-a"),
        ("producer", "--algorithm", "eddsa"),
        ("object",),
        ("object", "--suite", "aes-256-gcm"),
        ("token",),
        ("token", "--algorithm", "hs256"),
    ):
        kvcs_json("keys", "new", *arguments)
    return directory


def secrets_of(directory):
    """Every secret of a ring, as a program or a person could write it."""
    ring = load_ring(directory)
    texts = json.loads(encode_ring(ring))
    documents = [texts["scope"], *(key for each in texts.values() for key in each.get("keys", ()))]
    plain = [key.secret for purpose in ring.sets for key in ring.keys(purpose) if key.secret]
    return {
        *(key[name] for key in documents for name in ("d", "k") if name in key),
        *(secret.hex() for secret in plain),
        *(repr(secret)[2:-1] for secret in plain),
    }


def test_scope_key_is_made_in_the_ring_once(directory, kvcs_json, kvcs_run):
    shown = kvcs_json("scope", "new")

    ring = load_ring(directory)
    assert ring is not None
    assert ring.scope_key is not None
    assert shown["scope_id"] == KVSP_PROVISIONAL.scope_id(ring.scope_key).hex()
    assert kvcs_json("scope", "show") == {"scope_id": shown["scope_id"]}
    assert kvcs_json("inspect", SAMPLE_CACHE)["ids"]["scope_id"] == shown["scope_id"]
    code, _, err = kvcs_run("scope", "new")
    assert (code, "one scope" in err) == (2, True)


def test_listed_keys_show_their_states_and_no_secret(ring, kvcs_run, kvcs_json):
    listed = kvcs_json("keys", "list")

    assert [(key["purpose"], key["algorithm"], key["state"]) for key in listed["keys"]] == [
        ("scope", "-", "current"),
        ("producer", "es256", "current"),
        ("producer", "eddsa", "next"),
        ("object", "aes-128-gcm", "current"),
        ("object", "aes-256-gcm", "next"),
        ("token", "es256", "current"),
        ("token", "hs256", "next"),
    ]
    _, out, err = kvcs_run("keys", "list")
    assert "site-a" in out
    for secret in secrets_of(ring):
        assert secret not in json.dumps(listed) + out + err


def test_rotation_uses_the_key_that_waits_and_keeps_the_other(ring, kvcs_json):
    before = [key["kid"] for key in kvcs_json("keys", "list")["keys"] if key["purpose"] == "object"]

    rotated = kvcs_json("keys", "rotate", "object")
    again = kvcs_json("keys", "rotate", "object")

    assert rotated["kid"] == before[1]
    assert again["kid"] not in before
    found = load_ring(ring)
    assert found is not None
    states = [found.state(Purpose.OBJECT, key) for key in found.keys(Purpose.OBJECT)]
    assert states == [KeyState.OLDER, KeyState.OLDER, KeyState.CURRENT]
    kvcs_json("keys", "remove", "object", before[0])
    found = load_ring(ring)
    assert found is not None
    assert before[0] not in {key.kid for key in found.keys(Purpose.OBJECT)}


def test_public_keys_have_no_private_part_and_are_taken_in_as_trusted(
    ring, tmp_path, kvcs_json, kvcs_run
):
    shown = kvcs_json("keys", "public", "producer", "-o", tmp_path / "a.jwks")
    (tmp_path / "a.jwks").chmod(0o644)  # it came by mail
    other = tmp_path / "other"
    code, _, err = kvcs_run("keys", "import", tmp_path / "a.jwks", "--keys", other)
    assert (code, "--as trusted for a producer's public keys" in err) == (2, True)
    taken = kvcs_json("keys", "import", tmp_path / "a.jwks", "--as", "trusted", "--keys", other)

    assert json.loads((tmp_path / "a.jwks").read_text()) == shown
    assert all({"d", "k"}.isdisjoint(key) for key in shown["keys"])
    assert [key["kid"] for key in taken["keys"]] == [key["kid"] for key in shown["keys"]]
    found = load_ring(other)
    assert found is not None
    assert found.trusted_producers == load_ring(ring).trusted_producers  # type: ignore[union-attr]
    _, out, _ = kvcs_run("keys", "public", "token")
    assert len(json.loads(out)["keys"]) == 1  # hs256 has no public part


def test_member_gets_what_reads_and_keeps_its_own(ring, tmp_path, kvcs_json, kvcs_run):
    bundle, other = tmp_path / "b.json", tmp_path / "other"
    exported = kvcs_json("keys", "export", "member", bundle)
    kvcs_json("keys", "new", "producer", "--keys", other)

    kvcs_json("keys", "import", bundle, "--keys", other)
    _, told, _ = kvcs_run("keys", "import", bundle, "--keys", other)

    assert told.startswith("scope key finds and names the caches of the scope\n")
    assert exported["keys"] == {"scope": 1, "trusted": 2, "object": 2}
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600
    mine, theirs = load_ring(ring), load_ring(other)
    assert mine is not None
    assert theirs is not None
    assert theirs.scope_key == mine.scope_key
    assert theirs.object_keys.current == mine.object_keys.current
    assert len(theirs.keys(Purpose.PRODUCER)) == 1
    assert len(theirs.trusted_producers) == 3


def test_relay_gets_nothing_secret(ring, tmp_path, kvcs_run):
    code, _, err = kvcs_run("keys", "export", "relay", tmp_path / "relay.json")

    assert code == 0
    assert "left out the hs256 keys" in err
    text = (tmp_path / "relay.json").read_text()
    assert json.loads(text).keys() == {"verifier"}
    for secret in secrets_of(ring):
        assert secret not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("keys", "new", "producer", "--algorithm", "hs256"), "es256 or eddsa"),
        (("keys", "new", "token", "--algorithm", "eddsa"), "es256 or hs256"),
        (("keys", "new", "object", "--algorithm", "es256"), "--suite"),
        (("keys", "new", "producer", "--suite", "aes-128-gcm"), "--algorithm"),
        (("keys", "new", "producer", "--kid", "two words"), "a kid"),
        (("keys", "new", "object", "--kid", "name"), "a Key ID"),
        (("keys", "rotate", "object"), "kvcs keys new"),
        (("keys", "public", "producer"), "kvcs keys new producer"),
        (("keys", "export", "relay", "x"), "kvcs keys new token"),
        (("keys", "export", "member", "x"), "keys to hand over"),
        (("keys", "remove", "trusted", "x"), "a key in the ring"),
        (("scope", "show"), "kvcs scope new"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    directory, kvcs_run, monkeypatch, tmp_path, arguments, words
):
    monkeypatch.chdir(tmp_path)
    directory.mkdir(mode=0o700)

    code, out, err = kvcs_run(*arguments)

    assert code == 2
    assert out == ""
    assert words in err
    assert len(err.splitlines()) == 2


def modes(*paths):
    return [stat.S_IMODE(path.stat().st_mode) for path in paths]


def test_what_everybody_may_have_everybody_may_read(ring, tmp_path, kvcs_json):
    """As ssh-keygen has it: public keys with 0644, everything else with 0600."""
    umask = os.umask(0o022)
    try:
        kvcs_json("keys", "export", "relay", tmp_path / "relay.json")
        kvcs_json("keys", "public", "producer", "-o", tmp_path / "site-a.jwks")
        kvcs_json("keys", "export", "member", tmp_path / "member.json")
    finally:
        os.umask(umask)

    public = modes(tmp_path / "relay.json", tmp_path / "site-a.jwks")
    assert (public, modes(tmp_path / "member.json")) == ([0o644, 0o644], [0o600])
    assert not modes(ring)[0] & 0o077


def test_a_scope_key_that_no_command_takes_beside_the_ring_is_told(
    ring, tmp_path, kvcs_run, monkeypatch
):
    code, _, err = kvcs_run("scope", "new", tmp_path / "other.key")
    assert (code, "another scope" in err) == (0, True)
    other = ("--scope-key-file", tmp_path / "other.key")
    code, _, err = kvcs_run("fetch", "moqt://127.0.0.1:9/", *other)
    assert (code, f"the scope key of the key ring, {ring}" in err) == (2, True)
    assert kvcs_run("scope", "show", *other)[0] == 0

    monkeypatch.setenv("KVCS_KEYS", str(tmp_path / "nothing"))
    code, _, err = kvcs_run("scope", "new", tmp_path / "only.key")
    assert (code, err) == (0, "")


def test_a_scope_key_where_there_is_no_folder_says_so(tmp_path, kvcs_run):
    code, _, err = kvcs_run("scope", "new", tmp_path / "none" / "scope.key")

    assert (code, "Make the folder first" in err) == (2, True)


@pytest.mark.usefixtures("ring")
def test_export_and_import_do_not_overwrite(tmp_path, kvcs_run):
    path = tmp_path / "there"
    path.write_text("mine")

    for arguments in (("export", "member", path), ("public", "producer", "-o", path)):
        code, _, err = kvcs_run("keys", *arguments)
        assert (code, "a file that is not there yet" in err) == (2, True)
    code, _, err = kvcs_run("keys", "import", path, "--as", "trusted")
    assert (code, "RFC 7517" in err) == (2, True)
    assert path.read_text() == "mine"


@pytest.mark.usefixtures("ring")
def test_bundle_that_others_can_read_is_refused(tmp_path, kvcs_run):
    kvcs_run("keys", "export", "member", tmp_path / "b.json")
    (tmp_path / "b.json").chmod(0o644)

    code, _, err = kvcs_run("keys", "import", tmp_path / "b.json")

    assert (code, "chmod 600" in err) == (2, True)


def test_ring_of_the_environment_is_used_and_not_changed(
    ring, monkeypatch, kvcs_run, kvcs_json, tmp_path
):
    expected = kvcs_json("keys", "list")
    found = load_ring(ring)
    assert found is not None
    monkeypatch.delenv("KVCS_KEYS")
    monkeypatch.setenv(KEYS_JSON_VARIABLE, encode_ring(found).decode())

    assert kvcs_json("keys", "list") == expected
    code, _, err = kvcs_run("keys", "new", "object")
    assert (code, KEYS_JSON_VARIABLE in err) == (2, True)
    path = tmp_path / "ring.json"
    kvcs_run("keys", "export", "member", path)
    monkeypatch.delenv(KEYS_JSON_VARIABLE)
    code, _, err = kvcs_run("keys", "new", "object", "--keys", path)
    assert (code, "a directory" in err) == (2, True)


def test_scope_key_file_of_another_scope_is_not_mixed_with_the_ring(
    ring, tmp_path, kvcs_run, kvcs_json
):
    (tmp_path / "key").write_text("cd" * 32)

    code, _, err = kvcs_run("inspect", SAMPLE_CACHE, "--scope-key-file", tmp_path / "key")

    assert (code, "the ring of the other scope" in err) == (2, True)
    found = load_ring(ring)
    assert found is not None
    assert found.scope_key is not None
    (tmp_path / "key").write_text(found.scope_key.octets.hex())
    kvcs_json("inspect", SAMPLE_CACHE, "--scope-key-file", tmp_path / "key")


def test_no_command_takes_a_secret_as_a_value(kvcs_run):
    for name in ("new", "rotate", "import", "export", "public", "remove", "list"):
        _, out, _ = kvcs_run("keys", name, "--help")

        assert not re.search(r"--(secret|key|private)\b", out)


@pytest.mark.usefixtures("ring")
def test_people_are_told_that_nobody_is_left_to_trust_and_nothing_is_sealed(
    tmp_path, kvcs_run, kvcs_json, monkeypatch
):
    kvcs_json("keys", "export", "member", tmp_path / "b.json")
    monkeypatch.setenv("KVCS_KEYS", str(tmp_path / "other"))
    taken = kvcs_json("keys", "import", tmp_path / "b.json")["keys"]

    notes = {
        (key["purpose"], number): kvcs_run("keys", "remove", key["purpose"], key["kid"])[2]
        for purpose in ("trusted", "object")
        for number, key in enumerate(
            # The object key in use goes last.
            sorted(
                (key for key in taken if key["purpose"] == purpose),
                key=lambda key: key["state"] == "current" and purpose == "object",
            )
        )
    }

    assert {place for place, note in notes.items() if note} == {("trusted", 1), ("object", 1)}
    assert "nobody is left to trust" in notes["trusted", 1]
    assert "in clear" in notes["object", 1]


def test_a_ring_that_is_named_and_empty_is_not_used(directory, tmp_path, kvcs_run):
    directory.mkdir(mode=0o700)
    key = tmp_path / "scope.key"
    key.write_text("5c" * 32)

    code, _, err = kvcs_run("inspect", "moqt://127.0.0.1:1/", "--scope-key-file", key)

    assert code == 2
    assert "a key ring with a key in it" in err


def test_a_scope_key_file_that_others_can_read_is_refused(tmp_path, kvcs_run):
    key = tmp_path / "scope.key"
    kvcs_run("scope", "new", key)
    assert kvcs_run("scope", "show", "--scope-key-file", key)[0] == 0
    key.chmod(0o644)

    code, _, err = kvcs_run("scope", "show", "--scope-key-file", key)

    assert code == 2
    assert f"chmod 600 {key}" in err
