"""COSE against an implementation that shares nothing with ours: both directions, all algorithms."""

import cwt
import pytest
from cwt import COSE, COSEHeaders, COSEKey

from kvcs.cose import (
    Algorithm,
    MacKey,
    SigningKey,
    encode_mac0,
    encode_sign1,
    open_mac0,
    open_sign1,
)

PAYLOAD = b'{"kvcs":1,"text":"\xc3\xa4"}'
SECRET = bytes(range(32))
NAMES = {
    Algorithm.ES256: "ES256",
    Algorithm.EDDSA: "EdDSA",
    Algorithm.ESP256: "ESP256",
    Algorithm.ED25519: "Ed25519",
}


def foreign(key: SigningKey, *, private: bool) -> COSEKey:
    """Build the other library's key from numbers alone."""
    public = key.public.public_bytes
    numbers = (
        {1: 2, -1: 1, -2: public[1:33], -3: public[33:]}
        if len(public) == 65
        else {
            1: 1,
            -1: 6,
            -2: public,
        }
    )
    secret = {-4: key.private_bytes} if private else {}
    return COSEKey.new({2: key.kid, 3: int(key.algorithm), **numbers, **secret})


@pytest.mark.parametrize("algorithm", NAMES)
def test_what_we_sign_the_other_verifies(algorithm):
    key = SigningKey.generate(b"producer-1", algorithm)

    protected, unprotected, payload = COSE.new().decode_with_headers(
        encode_sign1(PAYLOAD, key), foreign(key, private=False)
    )

    assert payload == PAYLOAD
    assert protected == {COSEHeaders.ALG: int(algorithm)}
    assert unprotected == {COSEHeaders.KID: b"producer-1"}


@pytest.mark.parametrize("algorithm", NAMES)
def test_what_the_other_signs_we_verify(algorithm):
    key = SigningKey.generate(b"producer-1", algorithm)
    sender = COSE.new(alg_auto_inclusion=True, kid_auto_inclusion=True)

    data = sender.encode(PAYLOAD, foreign(key, private=True))

    assert open_sign1(data, [key.public]).payload == PAYLOAD


def test_a_mac_goes_both_ways():
    ours = MacKey(b"issuer", SECRET)
    theirs = COSEKey.from_symmetric_key(SECRET, alg="HS256", kid=b"issuer")
    sender = COSE.new(alg_auto_inclusion=True, kid_auto_inclusion=True)

    assert COSE.new().decode(encode_mac0(PAYLOAD, ours), theirs) == PAYLOAD
    assert open_mac0(sender.encode(PAYLOAD, theirs), [ours]).payload == PAYLOAD


@pytest.mark.parametrize("tagged", [False, True])
def test_a_token_of_the_other_opens_tagged_or_not(tagged):
    ours = MacKey(b"issuer", SECRET)
    theirs = COSEKey.from_symmetric_key(SECRET, alg="HS256", kid=b"issuer")

    token = cwt.encode({"iss": "issuer"}, theirs, tagged=tagged)

    assert open_mac0(token, [ours]).payload.startswith(b"\xa4")
