"""Rings in directories, files, pipes and the environment."""

import json
import os
from pathlib import Path

import pytest

from kvcs.errors import ConfigError
from kvcs.keyring import (
    KEYS_JSON_VARIABLE,
    KeyRing,
    Purpose,
    change_ring,
    decode_keys,
    decode_ring,
    default_directory,
    encode_ring,
    file_of,
    find_ring,
    load_ring,
    load_ring_file,
)
from kvcs.keyring.files import write_file


@pytest.fixture
def directory(tmp_path, ring):
    change_ring(tmp_path / "keys", lambda _: ring)
    return tmp_path / "keys"


def test_ring_survives_directory_and_text(directory, ring):
    assert load_ring(directory) == ring
    assert decode_ring(encode_ring(ring), "text") == ring
    assert sorted(path.name for path in directory.iterdir()) == [
        "object.jwks", "producer.jwks", "scope.jwk", "token.jwks", "trusted.jwks", "verifier.jwks",
    ]  # fmt: skip


def test_files_are_plain_json_web_keys(directory):
    scope = json.loads((directory / "scope.jwk").read_text())
    producers = json.loads((directory / "producer.jwks").read_text())

    assert scope == {"kty": "oct", "k": "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE"}
    assert producers["current"] == "first"
    assert {key["kty"] for key in producers["keys"]} == {"EC", "OKP"}


def test_change_that_fails_changes_nothing(directory, ring):
    with pytest.raises(ConfigError):
        change_ring(directory, lambda old: old.removed(Purpose.OBJECT, "8"))

    assert load_ring(directory) == ring


def test_purpose_without_keys_has_no_file(directory):
    change_ring(directory, lambda ring: ring.removed(Purpose.VERIFIER, "other"))

    assert not file_of(directory, Purpose.VERIFIER).exists()


def test_ring_that_others_can_read_is_refused(directory):
    (directory / "object.jwks").chmod(0o644)

    with pytest.raises(ConfigError, match="chmod 600"):
        load_ring(directory)


def test_damaged_file_is_named_and_not_quoted(directory):
    text = (directory / "object.jwks").read_text()
    write_file(directory / "object.jwks", text.replace("oct", "RSA").encode())

    with pytest.raises(ConfigError, match=r"object\.jwks: key 0") as caught:
        load_ring(directory)

    assert json.loads(text)["keys"][0]["k"] not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [b"{", b"[]", b'{"scopes":{}}', b'{"scope":{"keys":[]}}', b'{"object":[]}', b'{"token":{}}'],
)
def test_text_that_is_no_ring_is_refused(text):
    with pytest.raises(ConfigError, match=r"^place"):
        decode_ring(text, "place")


def test_keys_of_others_get_names_and_the_first_is_current(p256, ed25519):
    one = decode_keys(json.dumps(p256).encode(), "", Purpose.PRODUCER)
    two = decode_keys(json.dumps({"keys": [p256, ed25519]}).encode(), "", Purpose.PRODUCER)

    assert one.sets[Purpose.PRODUCER].current == "0cebf1bc9880748a"
    assert two.sets[Purpose.PRODUCER].current == "0cebf1bc9880748a"
    assert [key.kid for key in two.keys(Purpose.PRODUCER)] == [
        "0cebf1bc9880748a",
        "90facafea9b15566",
    ]


def test_default_directory_is_the_users():
    home = {"XDG_CONFIG_HOME": "/config"}

    assert default_directory(home) == Path("/config/kvcs/keys")
    # The specification of XDG ignores relative paths.
    assert default_directory({"XDG_CONFIG_HOME": "config"}) == Path.home() / ".config/kvcs/keys"


def test_what_is_named_counts_then_the_text_then_the_users_directory(tmp_path, directory, ring):
    text = {KEYS_JSON_VARIABLE: encode_ring(ring).decode()}

    assert find_ring(directory, {}) == ring
    assert find_ring(None, text) == ring
    assert find_ring(None, {"XDG_CONFIG_HOME": str(tmp_path)}) == KeyRing()
    change_ring(tmp_path / "kvcs" / "keys", lambda _: ring)
    assert find_ring(None, {"XDG_CONFIG_HOME": str(tmp_path)}) == ring
    with pytest.raises(ConfigError, match="beside it"):
        find_ring(directory, text)
    with pytest.raises(ConfigError, match="not there"):
        find_ring(tmp_path / "nowhere", {})


def test_ring_comes_in_a_file_or_through_a_pipe(tmp_path, ring):
    path = tmp_path / "ring.json"
    write_file(path, encode_ring(ring))
    reading, writing = os.pipe()
    os.write(writing, encode_ring(ring))
    os.close(writing)

    assert find_ring(path, {}) == ring
    assert load_ring_file(Path(f"/dev/fd/{reading}")) == ring
    os.close(reading)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        find_ring(path, {})
    with pytest.raises(ConfigError, match="not there"):
        load_ring_file(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["", " \n", "{}", '{"trusted": {"keys": []}}'])
def test_ring_that_was_to_be_handed_over_and_has_no_keys_is_refused(tmp_path, text):
    # Without keys nothing is demanded of anybody, and nobody would see what went wrong.
    with pytest.raises(ConfigError, match="KVCS_KEYS_JSON"):
        find_ring(None, {KEYS_JSON_VARIABLE: text})

    path = tmp_path / "ring.json"
    write_file(path, text.encode())
    with pytest.raises(ConfigError, match=r"ring\.json"):
        find_ring(path, {})
