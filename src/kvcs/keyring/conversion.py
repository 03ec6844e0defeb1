"""From JSON Web Keys to the keys that sign, verify and authenticate, and new keys.

The key identifier of COSE is the text of ``kid`` in UTF-8.
"""

import secrets

from kvcs.cose import Algorithm, Curve, MacKey, SigningKey, VerifyingKey
from kvcs.errors import ConfigError
from kvcs.keyring.jwk import KID_DIGITS, Jwk, KeyKind, named
from kvcs.kv.sealing import CipherSuite, ObjectKey

__all__ = (
    "mac_key",
    "new_object_key",
    "new_pair",
    "new_secret",
    "object_key",
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


def object_key(key: Jwk) -> ObjectKey:
    """Return a symmetric key with a suite, ready to seal and to open.

    Raises:
        ConfigError: Its kid is no Key ID, its suite is not used, or it is too short for it.
    """
    where = f"object key {key.kid}"
    is_number = key.kid.isascii() and key.kid.isdigit() and str(int(key.kid)) == key.kid
    if key.kind is not KeyKind.OCTETS or not is_number:
        raise ConfigError(where, "a symmetric key whose kid is a Key ID, in decimal")
    try:
        suite = CipherSuite(key.suite or 0)
    except ValueError as error:
        raise ConfigError(where, "the number of a cipher suite", repr(key.suite)) from error
    try:
        return ObjectKey(key_id=int(key.kid), suite=suite, secret=key.secret)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.key}", error.expected, error.got) from error


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


def new_secret(kid: str = "") -> Jwk:
    """Return a new symmetric key of 32 octets; without a name it has a random one.

    Raises:
        ConfigError: The name cannot be one.
    """
    kid = kid or secrets.token_hex(KID_DIGITS // 2)
    return Jwk(kind=KeyKind.OCTETS, kid=kid, secret=secrets.token_bytes(32))


def new_object_key(suite: CipherSuite = CipherSuite.AES_128_GCM_SHA256_128, kid: str = "") -> Jwk:
    """Return a new object key.

    Args:
        suite: Its cipher suite.
        kid: Its Key ID, in decimal; without one it is a random number of 32 bits, so that two
            sites that make keys on their own choose different ones.

    Raises:
        ConfigError: The name cannot be one.
    """
    kid = kid or str(secrets.randbits(32))
    secret = secrets.token_bytes(suite.secret_bytes)
    return Jwk(kind=KeyKind.OCTETS, kid=kid, secret=secret, suite=suite)
