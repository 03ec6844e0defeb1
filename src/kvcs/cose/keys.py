"""Keys that sign, verify and authenticate, each pinned to its curve and algorithms.

A message names an algorithm, and a key identifier that anybody can write. Neither decides
anything: a key verifies only what its own curve allows, so that a public key is never taken
for a secret of HMAC, and no message chooses a weaker algorithm than its key was made for.

Source: RFC 9053, Sections 2.1, 2.2 and 3.1; RFC 9864.
"""

import hashlib
import hmac
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.hazmat.primitives.hashes import SHA256

from kvcs.errors import ConfigError

__all__ = ("MAX_KID_BYTES", "Algorithm", "Curve", "MacKey", "SigningKey", "VerifyingKey")

MAX_KID_BYTES: Final = 64
MIN_SECRET_BYTES: Final = 32

_SCALAR_BYTES: Final = 32
_ECDSA: Final = ec.ECDSA(SHA256())


class Curve(Enum):
    """Curve of a key pair, by its name in a JWK (RFC 7518, Section 6.2.1.1; RFC 8037)."""

    P256 = "P-256"
    ED25519 = "Ed25519"


class Algorithm(IntEnum):
    """COSE algorithms that are spoken; the fully specified ones are from RFC 9864."""

    ES256 = -7
    EDDSA = -8
    ESP256 = -9
    ED25519 = -19
    HS256 = 5


_CURVES: Final = {
    Algorithm.ES256: Curve.P256,
    Algorithm.ESP256: Curve.P256,
    Algorithm.EDDSA: Curve.ED25519,
    Algorithm.ED25519: Curve.ED25519,
}


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """The public half of a key pair.

    Attributes:
        kid: Key identifier, 1 to 64 octets.
        curve: Curve; it decides which algorithms are accepted.
        public_bytes: The point: 65 octets, uncompressed, on P-256; 32 octets on Ed25519.

    Raises:
        ConfigError: The identifier has another size, or the octets are no point of the curve.
    """

    kid: bytes
    curve: Curve
    public_bytes: bytes
    _public: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        _check_kid(self.kid)
        try:
            public = _load_public(self.curve, self.public_bytes)
        except ValueError as error:
            expected = f"a point on {self.curve.value}"
            raise ConfigError("public key", expected, f"{len(self.public_bytes)} octets") from error
        object.__setattr__(self, "_public", public)

    def allows(self, algorithm: int) -> bool:
        """Tell whether a message of `algorithm` may be verified with this key at all."""
        return any(algorithm == known and self.curve is curve for known, curve in _CURVES.items())

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Tell whether `signature`, as COSE writes it, is of this key over `message`."""
        if len(signature) != 2 * _SCALAR_BYTES:
            return False
        try:
            if isinstance(self._public, ed25519.Ed25519PublicKey):
                self._public.verify(signature, message)
            else:
                r, s = signature[:_SCALAR_BYTES], signature[_SCALAR_BYTES:]
                der = encode_dss_signature(int.from_bytes(r), int.from_bytes(s))
                self._public.verify(der, message, _ECDSA)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key pair that signs.

    Attributes:
        kid: Key identifier, 1 to 64 octets.
        algorithm: What the messages are signed with; it decides the curve.
        private_bytes: The private scalar (P-256) or the seed (Ed25519), 32 octets; never shown.

    Raises:
        ConfigError: The identifier has another size, the algorithm does not sign, or the octets
            are no private key.
    """

    kid: bytes
    algorithm: Algorithm
    private_bytes: bytes = field(repr=False)
    _private: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        _check_kid(self.kid)
        curve = _CURVES.get(self.algorithm)
        if curve is None:
            raise ConfigError("algorithm", "one that signs", self.algorithm.name)
        if len(self.private_bytes) != _SCALAR_BYTES:
            got = f"{len(self.private_bytes)} octets"
            raise ConfigError("private key", f"{_SCALAR_BYTES} octets", got)
        object.__setattr__(self, "_private", _load_private(curve, self.private_bytes))

    @classmethod
    def generate(cls, kid: bytes, algorithm: Algorithm = Algorithm.ES256) -> Self:
        """Make a new key pair with the randomness of the operating system."""
        if _CURVES.get(algorithm) is Curve.ED25519:
            return cls(kid, algorithm, ed25519.Ed25519PrivateKey.generate().private_bytes_raw())
        scalar = ec.generate_private_key(ec.SECP256R1()).private_numbers().private_value
        return cls(kid, algorithm, scalar.to_bytes(_SCALAR_BYTES))

    @property
    def public(self) -> VerifyingKey:
        """The public half, under the same identifier."""
        if isinstance(self._private, ed25519.Ed25519PrivateKey):
            return VerifyingKey(
                self.kid, Curve.ED25519, self._private.public_key().public_bytes_raw()
            )
        point = self._private.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )
        return VerifyingKey(self.kid, Curve.P256, point)

    def sign(self, message: bytes) -> bytes:
        """Return the signature over `message` as COSE writes it, 64 octets."""
        if isinstance(self._private, ed25519.Ed25519PrivateKey):
            return self._private.sign(message)
        r, s = decode_dss_signature(self._private.sign(message, _ECDSA))
        return r.to_bytes(_SCALAR_BYTES) + s.to_bytes(_SCALAR_BYTES)


@dataclass(frozen=True, slots=True)
class MacKey:
    """A shared secret for HMAC with SHA-256.

    Attributes:
        kid: Key identifier, 1 to 64 octets.
        secret: At least 32 octets; never shown.

    Raises:
        ConfigError: The identifier or the secret has another size.
    """

    kid: bytes
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _check_kid(self.kid)
        if len(self.secret) < MIN_SECRET_BYTES:
            got = f"{len(self.secret)} octets"
            raise ConfigError("secret", f"at least {MIN_SECRET_BYTES} octets", got)

    def allows(self, algorithm: int) -> bool:
        """Tell whether a message of `algorithm` may be verified with this key at all."""
        return algorithm == Algorithm.HS256

    def authenticate(self, message: bytes) -> bytes:
        """Return the authentication tag of `message`, 32 octets."""
        return hmac.digest(self.secret, message, hashlib.sha256)

    def verifies(self, tag: bytes, message: bytes) -> bool:
        """Tell, in constant time, whether `tag` is of this key over `message`."""
        return hmac.compare_digest(tag, self.authenticate(message))


def _check_kid(kid: bytes) -> None:
    if not 1 <= len(kid) <= MAX_KID_BYTES:
        raise ConfigError("key identifier", f"1 to {MAX_KID_BYTES} octets", f"{len(kid)} octets")


def _load_public(curve: Curve, data: bytes) -> ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey:
    if curve is Curve.ED25519:
        return ed25519.Ed25519PublicKey.from_public_bytes(data)
    if len(data) != 1 + 2 * _SCALAR_BYTES:
        raise ValueError("not an uncompressed point")
    return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), data)


def _load_private(
    curve: Curve, data: bytes
) -> ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey:
    if curve is Curve.ED25519:
        return ed25519.Ed25519PrivateKey.from_private_bytes(data)
    try:
        return ec.derive_private_key(int.from_bytes(data), ec.SECP256R1())
    except ValueError:
        # Neither the cause nor the text: both could quote the scalar.
        raise ConfigError("private key", "a scalar of P-256", "one out of range") from None
