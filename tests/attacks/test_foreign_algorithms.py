"""A token names an algorithm that its key is not for, none, or hides it."""

import cbor2
import pytest
from tests.attacks.guarded import MALFORMED, UNAUTHORIZED, Guarded, raw

from kvcs.c4m import Role, encode_claims
from kvcs.cose import Algorithm, MacKey, SigningKey

SIGN1, MAC0 = 18, 17


def forged(guarded, *, tag, protected, unprotected=None, proof=bytes(64)):
    payload = encode_claims(guarded.claims(Role.RELAY))
    header = cbor2.dumps(protected) if protected is not None else b""
    elements = [header, unprotected or {}, payload, proof]
    return raw(cbor2.dumps(cbor2.CBORTag(tag, elements)))


@pytest.mark.parametrize("proof", [b"", bytes(32), bytes(64)], ids=["none", "32", "64"])
@pytest.mark.parametrize("tag", [SIGN1, MAC0])
@pytest.mark.parametrize(
    "algorithm", [0, 1, 4, 6, -4, -8, -35, -257, 5, -7, 10**9, "none", "HS256", None]
)
def test_no_algorithm_makes_up_for_a_signature(tag, algorithm, proof):
    guarded = Guarded()

    for kid in (b"mac", b"signer"):
        token = forged(
            guarded, tag=tag, protected={1: algorithm}, unprotected={4: kid}, proof=proof
        )
        assert guarded.code("publish_namespace", token) == UNAUTHORIZED
    guarded.assert_untouched()


def test_a_public_key_is_no_shared_secret():
    guarded = Guarded()
    public = guarded.signer.public
    keys = [
        MacKey(public.kid, public.public_bytes),
        MacKey(public.kid, public.public_bytes[1:33]),
    ]

    tokens = [guarded.token(Role.RELAY, key=key) for key in keys]

    assert {guarded.code("publish", token) for token in tokens} == {UNAUTHORIZED}
    guarded.assert_untouched()


def test_a_curve_is_not_taken_for_another():
    guarded = Guarded()
    impostor = SigningKey(b"signer", Algorithm.EDDSA, guarded.signer.private_bytes)

    assert guarded.code("publish", guarded.token(Role.RELAY, key=impostor)) == UNAUTHORIZED


@pytest.mark.parametrize(
    ("protected", "unprotected", "code"),
    [
        (None, {1: -7, 4: b"signer"}, MALFORMED),
        ({}, {1: -7, 4: b"signer"}, UNAUTHORIZED),
        ({1: -7}, {1: -7, 4: b"signer"}, MALFORMED),
        ({1: -7, 2: [99], 99: 1}, {4: b"signer"}, UNAUTHORIZED),
        ({1: -7}, {2: [4], 4: b"signer"}, UNAUTHORIZED),
    ],
    ids=["no header", "unprotected", "twice", "critical", "critical unprotected"],
)
def test_headers_that_are_not_to_be_trusted_are_refused(protected, unprotected, code):
    guarded = Guarded()

    token = forged(guarded, tag=SIGN1, protected=protected, unprotected=unprotected)

    assert guarded.code("publish", token) == code
    guarded.assert_untouched()


def test_a_token_of_json_is_no_token():
    guarded = Guarded()
    jwt = b"eyJhbGciOiJub25lIn0.eyJhZG1pbiI6dHJ1ZX0."

    assert guarded.code("publish", raw(jwt)) == MALFORMED
    assert guarded.code("publish", raw(b"")) == MALFORMED
