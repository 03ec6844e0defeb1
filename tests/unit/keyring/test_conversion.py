"""Keys of the ring do what the rest of kvcs takes them for."""

import pytest

from kvcs.cose import Algorithm, Curve, MacKey, SigningKey, encode_sign1, open_sign1
from kvcs.errors import ConfigError
from kvcs.keyring import (
    Jwk,
    KeyKind,
    KeyRing,
    Purpose,
    mac_key,
    new_object_key,
    new_pair,
    new_secret,
    signing_key,
    verifying_key,
)


@pytest.mark.parametrize("kind", [KeyKind.P256, KeyKind.ED25519])
def test_new_pair_signs_what_its_public_part_verifies(kind):
    key = new_pair(kind)
    public = Jwk(kind=kind, kid=key.kid, x=key.x, y=key.y)

    opened = open_sign1(encode_sign1(b"payload", signing_key(key)), [verifying_key(public)])

    assert opened.payload == b"payload"
    assert opened.kid == key.kid.encode()
    assert signing_key(key).public == verifying_key(public)


def test_curve_decides_the_algorithm(ring):
    pair, other = ring.keys(Purpose.PRODUCER)

    assert signing_key(pair).algorithm is Algorithm.ES256
    assert signing_key(other).algorithm is Algorithm.EDDSA
    assert verifying_key(other).curve is Curve.ED25519


def test_key_that_lacks_what_is_needed_is_refused(ring, make_octets):
    public = ring.keys(Purpose.TRUSTED)[0]
    for convert, key in (
        (signing_key, public),
        (signing_key, make_octets("a", 1)),
        (verifying_key, make_octets("a", 1)),
        (mac_key, public),
    ):
        with pytest.raises(ConfigError):
            convert(key)
    with pytest.raises(ConfigError):
        new_pair(KeyKind.OCTETS)


def test_new_keys_have_names_of_their_own():
    assert new_secret().kid != new_secret().kid
    assert 0 <= int(new_object_key().kid) < 2**32
    assert new_secret("mine").kid == "mine"
    assert new_pair(KeyKind.P256, "mine").kid == "mine"


def test_ring_gives_what_is_current(ring):
    assert isinstance(ring.signing_key, SigningKey)
    assert ring.signing_key.kid == b"first"
    assert isinstance(ring.token_key, MacKey)
    assert ring.token_key.kid == b"mac"
    assert [key.kid for key in ring.trusted_producers] == [b"theirs", b"first", b"second"]
    assert [key.kid for key in ring.token_verifiers] == [b"other", b"first", b"mac"]
    assert ring.scope_key is not None
    assert ring.scope_key.octets == bytes([1]) * 32
    assert ring.object_keys.key_ids == (7, 8)
    assert ring.object_keys.current is not None
    assert ring.object_keys.current.key_id == 8


def test_token_key_may_be_a_pair():
    ring = KeyRing().added(Purpose.TOKEN, new_pair(KeyKind.P256, "pair"))

    assert isinstance(ring.token_key, SigningKey)


def test_empty_ring_gives_nothing():
    ring = KeyRing()

    assert ring.scope_key is ring.signing_key is ring.token_key is None
    assert ring.trusted_producers == ring.token_verifiers == ()
    assert len(ring.object_keys) == 0
    assert ring.object_keys.current is None
