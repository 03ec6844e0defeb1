"""The types that users of `kvcs.cose` see; pyright checks this file, nobody runs it."""

from typing import assert_type

from kvcs.cose import (
    Algorithm,
    CoseLimits,
    Curve,
    MacKey,
    Opened,
    SigningKey,
    VerifyingKey,
    encode_mac0,
    encode_sign1,
    open_mac0,
    open_sign1,
)


def sign(payload: bytes) -> None:
    key = SigningKey.generate(b"producer-1", Algorithm.EDDSA)
    assert_type(key, SigningKey)
    assert_type(key.private_bytes, bytes)
    assert_type(key.public, VerifyingKey)
    assert_type(key.public.curve, Curve)
    data = encode_sign1(payload, key)
    assert_type(data, bytes)
    opened = open_sign1(memoryview(data), [key.public], CoseLimits(max_attempts=1))
    assert_type(opened, Opened[VerifyingKey])
    assert_type(opened.kid, bytes)


def authenticate(payload: bytes, secret: bytes) -> None:
    key = MacKey(b"issuer-1", secret)
    opened = open_mac0(encode_mac0(payload, key, cwt=True), (key,))
    assert_type(opened, Opened[MacKey])
    assert_type(opened.payload, bytes)
