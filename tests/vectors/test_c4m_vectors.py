import json
from pathlib import Path

import pytest

from kvcs.c4m import (
    Action,
    ClaimNumbers,
    TokenVerifier,
    decode_claims,
    encode_claims,
    mint,
)
from kvcs.cose import Algorithm, MacKey, SigningKey
from kvcs.errors import TokenRefused
from kvcs.names import TrackNamespace

FILE = json.loads((Path(__file__).parent / "c4m" / "claims.json").read_text())
VECTORS = {vector["name"]: vector for vector in FILE["vectors"]}
KEYS = {
    "hmac": MacKey(b"issuer", bytes.fromhex(FILE["keys"]["hmac"])),
    "p256": SigningKey(b"issuer", Algorithm.ES256, bytes.fromhex(FILE["keys"]["p256"])),
}


def octets(text):
    return bytes.fromhex(text[2:]) if text.startswith("x:") else text.encode()


def claims_of(name):
    return decode_claims(bytes.fromhex(VECTORS[name]["claims"]))


@pytest.mark.parametrize("name", VECTORS)
def test_claims_of_the_draft_are_read(name):
    claims = claims_of(name)

    assert claims.expires_at == VECTORS[name]["expires_at"]
    assert claims.revalidation == VECTORS[name].get("revalidation")
    assert claims.issuer == (None if "kvcs" in name else "https://auth.example.com")


@pytest.mark.parametrize("name", VECTORS)
def test_claims_of_the_draft_are_written(name):
    encoded = encode_claims(claims_of(name))

    if VECTORS[name].get("decode_only"):  # whole seconds are written as an integer
        assert decode_claims(encoded) == claims_of(name)
    else:
        assert encoded.hex() == VECTORS[name]["claims"]


@pytest.mark.parametrize(
    ("name", "test"),
    [(name, test) for name, vector in VECTORS.items() for test in vector["tests"]],
    ids=lambda value: value if isinstance(value, str) else str(list(value.values())),
)
def test_authorization_of_the_draft(name, test):
    namespace = TrackNamespace(tuple(map(octets, test["namespace"])))
    track = None if test["track"] is None else octets(test["track"])

    allowed = any(
        scope.allows(Action(test["action"]), namespace, track) for scope in claims_of(name).scopes
    )

    assert allowed is test["allowed"]


@pytest.mark.parametrize("vector", FILE["refused"], ids=lambda vector: vector["name"])
def test_a_token_that_is_bound_to_a_key_is_refused_since_no_proof_can_be_asked_for(vector):
    with pytest.raises(TokenRefused) as refused:
        decode_claims(bytes.fromhex(vector["claims"]))

    assert refused.value.reason == vector["reason"]


def test_a_token_that_is_bound_to_a_key_is_refused_also_with_scopes():
    bound = bytes.fromhex(VECTORS["admin"]["claims"]).replace(b"\xa3", b"\xa4", 1)
    bound += bytes.fromhex("08a103" + "5820" + "a0" * 32)

    with pytest.raises(TokenRefused, match="claims that are not understood here: 8") as refused:
        decode_claims(bound)

    assert refused.value.reason == "claim"


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", VECTORS)
def test_claims_of_the_draft_travel_in_tokens(name, key):
    signer = KEYS[key]
    verifier = TokenVerifier([signer if isinstance(signer, MacKey) else signer.public])

    token = mint(claims_of(name), signer)

    assert verifier.verify(token, wall=VECTORS[name]["expires_at"] - 1) == claims_of(name)


def test_the_key_of_the_draft_has_the_point_of_the_draft():
    keys = FILE["keys"]

    public = KEYS["p256"].public

    assert public.public_bytes.hex() == "04" + keys["p256_x"] + keys["p256_y"]


def test_the_numbers_of_the_claims_can_be_others():
    numbers = ClaimNumbers(moqt=400, revalidation=401)
    claims = claims_of("multi_scope")

    encoded = encode_claims(claims, numbers)

    assert decode_claims(encoded, numbers) == claims
    with pytest.raises(TokenRefused, match="claim 327 is no list"):
        decode_claims(encoded)
