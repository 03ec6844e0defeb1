from dataclasses import replace

import cbor2
import cwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kvcs.c4m import Claims, Scope, TokenVerifier, encode_claims, mint
from kvcs.cose import MacKey, SigningKey

MAC = MacKey(b"issuer", bytes(range(32)))
SIGNER = SigningKey.generate(b"signer")
CLAIMS = Claims(scopes=(Scope(actions=frozenset({4})),), expires_at=2000.0, not_before=1000.0)


def test_an_independent_library_reads_our_tokens():
    numbers = SIGNER.public.public_bytes
    public = cwt.COSEKey.new(
        {1: 2, 2: b"signer", 3: -7, -1: 1, -2: numbers[1:33], -3: numbers[33:]}
    )
    secret = cwt.COSEKey.from_symmetric_key(MAC.secret, alg="HS256", kid=b"issuer")
    claims = Claims(scopes=CLAIMS.scopes, expires_at=4e9)

    for token, key in ((mint(claims, SIGNER), public), (mint(claims, MAC), secret)):
        assert cwt.decode(token, key) == {4: 4_000_000_000, 327: [[[4]]]}


def test_tokens_of_an_independent_library_are_read():
    payload = cbor2.loads(encode_claims(CLAIMS))
    secret = cwt.COSEKey.from_symmetric_key(MAC.secret, alg="HS256", kid=b"issuer")
    private = cwt.COSEKey.from_pem(private_pem(), kid=b"signer", alg="ES256")
    builder = cwt.CWT.new()

    for token in (
        builder.encode_and_mac(payload, secret, tagged=True),
        builder.encode_and_sign(payload, private, tagged=True),
    ):
        claims = TokenVerifier([MAC, SIGNER.public]).verify(token, wall=1500.0)
        assert replace(claims, issued_at=None) == CLAIMS


def private_pem():
    number = int.from_bytes(SIGNER.private_bytes)
    return ec.derive_private_key(number, ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
