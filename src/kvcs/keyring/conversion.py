"""From JSON Web Keys to the keys that sign, verify and authenticate, and new keys.

The key identifier of COSE is the text of ``kid`` in UTF-8.
"""

import secrets

from kvcs.cose import Algorithm, Curve, MacKey, SigningKey, VerifyingKey
from kvcs.errors import ConfigError
from kvcs.keyring.jwk import KID_DIGITS, Jwk, KeyKind, named

__all__ = (
    "mac_key",
    "new_pair",
    "new_secret",
    "signing_key",
    "verifying_key",
)

_UNCOMPRESSED = b"\x04"
_ALGORITHMS = {KeyKind.P256: Algorithm.ES256, KeyKind.ED25519: Algorithm.EDDSA}


def signing_key(key: Jwk) -> SigningKey:
    """Return a private key, ready to sign with ES256 or EdDSA.

    Raises:
        ConfigError: It is public or symmetric, or has no kid.
    """
    if key.kind is KeyKind.OCTETS or not key.is_secret:
        raise ConfigError(f"key {key.kid}", "a private key")
    return SigningKey(key.kid.encode(), _ALGORITHMS[key.kind], key.secret)


def verifying_key(key: Jwk) -> VerifyingKey:
    """Return the public half of a key, pinned to its curve.

    Raises:
        ConfigError: It is symmetric, or has no kid.
    """
    match key.kind:
        case KeyKind.P256:
            return VerifyingKey(key.kid.encode(), Curve.P256, _UNCOMPRESSED + key.x + key.y)
        case KeyKind.ED25519:
            return VerifyingKey(key.kid.encode(), Curve.ED25519, key.x)
        case KeyKind.OCTETS:
            raise ConfigError(f"key {key.kid}", "a key with a public part")


def mac_key(key: Jwk) -> MacKey:
    """Return a symmetric key, ready to authenticate with HS256.

    Raises:
        ConfigError: It is a key pair or a part of one, too short, or has no kid.
    """
    if key.kind is not KeyKind.OCTETS:
        raise ConfigError(f"key {key.kid}", "a symmetric key")
    return MacKey(key.kid.encode(), key.secret)


def new_pair(kind: KeyKind, kid: str = "") -> Jwk:
    """Return a new private key; without a name it has the first digits of its thumbprint.

    Raises:
        ConfigError: `kind` has no pairs, or the name cannot be one.
    """
    if kind is KeyKind.OCTETS:
        raise ConfigError("kind of key", "EC or OKP", kind.value)
    made = SigningKey.generate(b"new", _ALGORITHMS[kind])
    point = made.public.public_bytes
    x, y = (point[1:33], point[33:]) if kind is KeyKind.P256 else (point, b"")
    key = Jwk(kind=kind, x=x, y=y, secret=made.private_bytes)
    return Jwk(kind=kind, kid=kid or named(key), x=x, y=y, secret=made.private_bytes)


def new_secret(size_bytes: int = 32, *, kid: str = "", suite: int | None = None) -> Jwk:
    """Return a new symmetric key.

    Args:
        size_bytes: Its length in octets.
        kid: Its name; without one, and without `suite`, a random one.
        suite: Cipher suite of an object key; its name is then a random Key ID of 32 bits, so
            that two sites that make keys on their own choose different ones.

    Raises:
        ConfigError: The length or the name cannot be one.
    """
    if not kid:
        kid = secrets.token_hex(KID_DIGITS // 2) if suite is None else str(secrets.randbits(32))
    return Jwk(kind=KeyKind.OCTETS, kid=kid, secret=secrets.token_bytes(size_bytes), suite=suite)
