"""JSON Web Keys: what is taken, what is refused, and that nothing secret shows up."""

import base64
import json

import pytest

from kvcs.errors import ConfigError
from kvcs.keyring.jwk import (
    Jwk,
    JwkLimits,
    KeyKind,
    decode_document,
    parse_jwk,
    parse_jwk_set,
    thumbprint,
)

SECRET = base64.urlsafe_b64encode(bytes(range(32))).rstrip(b"=").decode()


def test_key_pairs_survive_the_round_trip(p256, ed25519):
    for members in (p256, ed25519, {"kty": "oct", "k": SECRET}):
        assert parse_jwk(members, "test").to_json() == members


def test_thumbprints_are_the_published_ones(p256, ed25519):
    # draft-ietf-moq-c4m, Appendix A; RFC 8037, A.3.
    assert thumbprint(parse_jwk(p256, "")).hex() == (
        "0cebf1bc9880748a95588905b79843b42ba75cb174055e3e246bf87fe00b4a6d"
    )
    expected = "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
    found = base64.urlsafe_b64encode(thumbprint(parse_jwk(ed25519, ""))).rstrip(b"=").decode()
    assert found == expected


def test_symmetric_keys_have_no_thumbprint():
    with pytest.raises(ConfigError):
        thumbprint(parse_jwk({"kty": "oct", "k": SECRET}, ""))


def test_secrets_are_in_no_repr(p256):
    for members in (p256, {"kty": "oct", "k": SECRET}):
        key = parse_jwk(members, "")

        assert repr(key.secret) not in repr(key)
        assert key.secret.hex() not in repr(key)


@pytest.mark.parametrize(
    "change",
    [
        {"kty": "RSA"},
        {"kty": "oct"},
        {"kty": 1},
        {"crv": "P-384"},
        {"crv": "secp256k1"},
        {"alg": "HS256"},
        {"alg": "none"},
        {"x": None},
        {"x": "YP7UuiVanTHJYet0xjVtaMBJuJI7Yfps5mliLmDyn7Z"},  # not the canonical last digit
        {"x": "YP7UuiVanTHJYet0xjVtaMBJuJI7Yfps5mliLmDyn7Y="},
        {"x": "YP7UuiVanTHJYet0xjVtaMBJuJI7Yfps5mliLmDyn7"},
        {"y": "YP7UuiVanTHJYet0xjVtaMBJuJI7Yfps5mliLmDyn7Y"},  # no point of the curve
        {"d": SECRET},  # of another key
        {"d": ""},
        {"d": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"},
        {"kid": ""},
        {"kid": "two words"},
        {"kid": "x" * 65},
        {"kid": "\x1b[2J"},
        {"kid": 7},
        {"suite": 4.0},
    ],
)
def test_wrong_member_is_refused_without_quoting_a_secret(p256, change):
    members = {**p256, **change}
    if change.get("x", "") is None:
        del members["x"]
    if change in ({"kid": ""}, {"d": ""}):
        # An empty text is the same as none: a key without a name, a public key.
        assert not getattr(parse_jwk(members, "place"), "kid" if "kid" in change else "secret")
        return

    with pytest.raises(ConfigError, match=r"^place") as caught:
        parse_jwk(members, "place")

    assert members["d"] == "" or members["d"] not in str(caught.value)
    assert "secret" not in repr(caught.value.__cause__ or "")


def test_private_number_of_another_ed25519_key_is_refused(ed25519):
    with pytest.raises(ConfigError):
        parse_jwk({**ed25519, "d": SECRET}, "place")


@pytest.mark.parametrize("size", [0, 15, 65])
def test_symmetric_keys_have_16_to_64_octets(size):
    text = base64.urlsafe_b64encode(bytes(size)).rstrip(b"=").decode()

    with pytest.raises(ConfigError):
        parse_jwk({"kty": "oct", "k": text}, "place")


@pytest.mark.parametrize(
    ("members", "allowed"),
    [
        ({}, None),
        ({"use": "sig"}, {"sign", "verify"}),
        ({"use": "elsewhere"}, set()),
        ({"key_ops": ["verify", "something-new"]}, {"verify", "something-new"}),
        ({"key_ops": []}, set()),
        ({"use": "sig", "key_ops": ["verify", "deriveBits"]}, {"verify"}),
    ],
)
def test_use_and_key_ops_say_what_a_key_may_do(p256, members, allowed):
    key = parse_jwk({**p256, **members}, "")

    assert key.operations == allowed
    # They are no part of the key.
    assert key == parse_jwk(p256, "")
    assert key.to_json() == p256


@pytest.mark.parametrize(
    "operations", ["sign", [1], ["sign", "sign"], [["sign"]], [f"own-{n}" for n in range(17)]]
)
def test_key_ops_of_another_form_are_refused(p256, operations):
    with pytest.raises(ConfigError, match=r"^place"):
        parse_jwk({**p256, "key_ops": operations}, "place")


def test_unknown_members_are_ignored(p256):
    assert parse_jwk({**p256, "x5c": ["MII"], "ext": True}, "") == parse_jwk(p256, "")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"kty":"oct","kty":"oct"}',
        b'{"kty":1.5}',
        b'{"a":' * 6 + b"1" + b"}" * 6,
        b'{"k":"\xff"}',
        b"{" + b" " * 2**18 + b"}",
        b'{"keys":[' + b"1," * 2**17 + b"1]}",
    ],
)
def test_document_that_is_not_strict_json_is_refused(text):
    with pytest.raises(ConfigError, match="RFC 7517") as caught:
        decode_document(text, "place")

    assert caught.value.__cause__ is None


def test_set_keeps_the_order_and_names_the_current_key():
    keys = [{"kty": "oct", "kid": name, "k": SECRET} for name in ("a", "b")]
    found = parse_jwk_set({"keys": keys, "current": "b"}, "")

    assert [key.kid for key in found.keys] == ["a", "b"]
    assert found.current == "b"
    assert parse_jwk_set(json.loads(json.dumps(found.to_json())), "") == found


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"keys": {}},
        {"keys": [1]},
        {"keys": [{"kty": "RSA", "n": "AQ", "e": "AQAB"}]},
        {"keys": []},
        {"keys": [], "current": "a"},
        {"keys": [], "current": 1},
    ],
)
def test_set_that_lacks_something_is_refused(members):
    with pytest.raises(ConfigError, match=r"^place"):
        parse_jwk_set(members, "place")


def test_set_holds_a_bounded_number_of_keys():
    keys = [{"kty": "oct", "k": SECRET}] * 3

    with pytest.raises(ConfigError, match="at most 2 keys, got 3"):
        parse_jwk_set({"keys": keys}, "", JwkLimits(max_keys=2))


def test_key_of_octets_has_no_point():
    with pytest.raises(ConfigError):
        Jwk(kind=KeyKind.OCTETS, x=bytes(32), secret=bytes(32))
