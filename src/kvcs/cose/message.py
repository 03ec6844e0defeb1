"""COSE_Sign1 and COSE_Mac0: make a message, and open one with the keys that are trusted.

The key identifier is a hint: it narrows which keys are tried and proves nothing. Keys that
share one are all tried, up to a limit, and a message without one is tried with every key that
allows its algorithm.

Source: RFC 9052, Sections 4.2, 4.4, 6.2 and 6.3.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import cbor2

from kvcs.cose.envelope import (
    CWT_TAG,
    DEFAULT_COSE_LIMITS,
    HEADER_ALGORITHM,
    HEADER_KEY_ID,
    MAC0_TAG,
    SIGN1_TAG,
    CoseLimits,
    Envelope,
    parse_envelope,
)
from kvcs.cose.keys import Algorithm, MacKey, SigningKey, VerifyingKey
from kvcs.errors import NotAuthentic

__all__ = (
    "Opened",
    "encode_mac0",
    "encode_sign1",
    "open_mac0",
    "open_sign1",
    "unverified_payload",
)

# Octets of a peer's key identifier that an error shows.
_SHOWN_KID_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Opened[Key: (VerifyingKey, MacKey)]:
    """A message whose signature or tag was verified.

    Attributes:
        payload: The payload, exactly as it was signed.
        key: The key that verified it; among keys of one identifier, this one.
    """

    payload: bytes
    key: Key

    @property
    def kid(self) -> bytes:
        """Identifier of the key that verified it."""
        return self.key.kid


def encode_sign1(payload: bytes, key: SigningKey, *, cwt: bool = False) -> bytes:
    """Sign `payload`: a COSE_Sign1 with tag 18, `alg` protected and `kid` not.

    Args:
        payload: What is signed.
        key: Who signs.
        cwt: Whether the tag of a CWT goes around it.
    """
    protected = _protected(key.algorithm)
    proof = key.sign(_to_be_verified("Signature1", protected, payload))
    return _encode(SIGN1_TAG, [protected, {HEADER_KEY_ID: key.kid}, payload, proof], cwt=cwt)


def encode_mac0(payload: bytes, key: MacKey, *, cwt: bool = False) -> bytes:
    """Authenticate `payload`: a COSE_Mac0 with tag 17, HS256, `kid` not protected.

    Args:
        payload: What is authenticated.
        key: The shared secret.
        cwt: Whether the tag of a CWT goes around it.
    """
    protected = _protected(Algorithm.HS256)
    proof = key.authenticate(_to_be_verified("MAC0", protected, payload))
    return _encode(MAC0_TAG, [protected, {HEADER_KEY_ID: key.kid}, payload, proof], cwt=cwt)


def open_sign1(
    data: bytes | bytearray | memoryview,
    keys: Iterable[VerifyingKey],
    limits: CoseLimits = DEFAULT_COSE_LIMITS,
) -> Opened[VerifyingKey]:
    """Verify a COSE_Sign1 with one of `keys` and return its payload.

    Raises:
        NotAuthentic: None of `keys` signed this; its `reason` is ``"size"``, ``"envelope"``,
            ``"critical"``, ``"algorithm"``, ``"key"`` or ``"signature"``.
    """
    return _open(parse_envelope(data, tag=SIGN1_TAG, limits=limits), "Signature1", keys, limits)


def open_mac0(
    data: bytes | bytearray | memoryview,
    keys: Iterable[MacKey],
    limits: CoseLimits = DEFAULT_COSE_LIMITS,
) -> Opened[MacKey]:
    """Verify a COSE_Mac0 with one of `keys` and return its payload.

    Raises:
        NotAuthentic: None of `keys` authenticates this; reasons as in `open_sign1`.
    """
    return _open(parse_envelope(data, tag=MAC0_TAG, limits=limits), "MAC0", keys, limits)


def unverified_payload(
    data: bytes | bytearray | memoryview, limits: CoseLimits = DEFAULT_COSE_LIMITS
) -> bytes:
    """Return the payload of a COSE_Sign1 that anybody may have made.

    Raises:
        NotAuthentic: Not such a message, or beyond a limit.
    """
    return bytes(parse_envelope(data, tag=SIGN1_TAG, limits=limits).payload)


def _open[Key: (VerifyingKey, MacKey)](
    envelope: Envelope, context: str, keys: Iterable[Key], limits: CoseLimits
) -> Opened[Key]:
    named = [key for key in keys if envelope.kid in (None, key.kid)]
    if not named:
        raise NotAuthentic("key", f"no trusted key has the key identifier {_shown(envelope.kid)}")
    candidates = [key for key in named if key.allows(envelope.algorithm)]
    if not candidates:
        raise NotAuthentic(
            "algorithm", f"algorithm {envelope.algorithm} is not one of the key that is named"
        )
    if len(candidates) > limits.max_attempts:
        raise NotAuthentic(
            "key", f"{len(candidates)} keys could have made it, at most {limits.max_attempts}"
        )
    payload = bytes(envelope.payload)
    message = _to_be_verified(context, envelope.protected, payload)
    for key in candidates:
        if key.verifies(envelope.proof, message):
            return Opened(payload, key)
    raise NotAuthentic("signature", "no trusted key made this message")


def _shown(kid: bytes | None) -> str:
    """Return a key identifier of a peer, fit for a line of text."""
    if kid is None:
        return "(none)"
    cut = kid[:_SHOWN_KID_BYTES]
    text = cut.decode("ascii") if cut.isascii() else ""
    return (text if text.isprintable() and text else cut.hex()) + ("…" if kid != cut else "")


def _protected(algorithm: Algorithm) -> bytes:
    return cbor2.dumps({HEADER_ALGORITHM: int(algorithm)})


def _to_be_verified(context: str, protected: bytes, payload: bytes) -> bytes:
    # The payload is joined on by itself: the encoder copies large ones several times, and keeps
    # the interpreter lock meanwhile. An empty string at the end is one octet.
    start = cbor2.dumps([context, protected, b"", b""])[:-1]
    return b"".join((start, _bytes_head(len(payload)), payload))


def _bytes_head(size: int) -> bytes:
    """Return what stands before a byte string of so many octets (RFC 8949, Section 3)."""
    if size < 24:
        return bytes((0x40 | size,))
    width = next(exponent for exponent in range(4) if size < 1 << (8 << exponent))
    return bytes((0x58 + width,)) + size.to_bytes(1 << width)


def _encode(tag: int, elements: list[object], *, cwt: bool) -> bytes:
    tagged = cbor2.CBORTag(tag, elements)
    return cbor2.dumps(cbor2.CBORTag(CWT_TAG, tagged) if cwt else tagged)
