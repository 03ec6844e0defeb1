"""JSON Web Keys: strict reading of what people and secret managers hand over.

Only the three kinds that kvcs uses: EC on P-256, OKP on Ed25519, and symmetric octets. A key
with an unknown kind, a wrong length or a member named twice is refused, never skipped: a ring
that silently lacks a key fails later, where nobody knows why.

Source: RFC 7517 (JWK, JWK Set), RFC 7518 Section 6, RFC 8037 Section 2, RFC 7638 (thumbprint).
"""

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from kvcs.errors import ConfigError
from kvcs.kv.strict_json import JsonLimits, JsonValue, Members, canonical_json, decode_json

__all__ = (
    "KID_DIGITS",
    "Jwk",
    "JwkLimits",
    "JwkSet",
    "KeyKind",
    "decode_document",
    "named",
    "parse_jwk",
    "parse_jwk_set",
    "thumbprint",
)

#: Hex digits of the thumbprint that name a key which has no name.
KID_DIGITS: Final = 16

_NUMBER_BYTES: Final = 32  # of a coordinate and a private number on both curves
_MAX_SECRET_BYTES: Final = 64
_MIN_SECRET_BYTES: Final = 16
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]*")
_KID: Final = re.compile(r"[!-~]{1,64}")
#: What a key may do by its member use (RFC 7517, Section 4.2), in the words of key_ops (4.3).
_USES: Final = {
    "sig": frozenset({"sign", "verify"}),
    "enc": frozenset({"encrypt", "decrypt", "wrapKey", "unwrapKey", "deriveKey", "deriveBits"}),
}
_MAX_OPERATIONS: Final = 16
_EXPECTED: Final = "JSON Web Keys as of RFC 7517: strict JSON, no member named twice"


@dataclass(frozen=True, slots=True, kw_only=True)
class JwkLimits:
    """Bounds on one document with keys.

    Attributes:
        max_bytes: Octets of the document.
        max_keys: Keys of one set.
    """

    max_bytes: int = 2**18
    max_keys: int = 256


class KeyKind(StrEnum):
    """Kind of a key: the member kty, with the one curve that is taken."""

    P256 = "EC"
    ED25519 = "OKP"
    OCTETS = "oct"


_CURVES: Final = {KeyKind.P256: "P-256", KeyKind.ED25519: "Ed25519"}
# The algorithms that a member alg may name; another one means that the key is for something else.
_ALGORITHMS: Final = {
    KeyKind.P256: frozenset({"ES256", "ESP256"}),
    KeyKind.ED25519: frozenset({"EdDSA", "Ed25519"}),
    KeyKind.OCTETS: frozenset({"HS256"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Jwk:
    """One key, as a document has it.

    Attributes:
        kind: Its kind.
        kid: Its name, 1..64 printable characters without blanks, or empty.
        x: First coordinate, or the whole public key of Ed25519: 32 octets; empty for octets.
        y: Second coordinate on P-256, 32 octets; else empty.
        secret: The private number (32 octets), the symmetric key (16..64 octets), or empty for
            a public key. Never shown.
        suite: Cipher suite of an object key, or None.
        operations: What its document lets it do (``use``, ``key_ops``), or None for anything. Not
            kept: a key that is in a ring does for its purpose.

    Raises:
        ConfigError: A length is another one, the point is not on the curve, or the private
            number belongs to another public key.
    """

    kind: KeyKind
    kid: str = ""
    x: bytes = b""
    y: bytes = b""
    secret: bytes = field(default=b"", repr=False)
    suite: int | None = None
    operations: frozenset[str] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.kid and not _KID.fullmatch(self.kid):
            raise ConfigError("key", "a kid of 1..64 printable characters without blanks")
        match self.kind:
            case KeyKind.P256:
                fits = _is_p256(self.x, self.y, self.secret)
            case KeyKind.ED25519:
                fits = not self.y and _is_ed25519(self.x, self.secret)
            case KeyKind.OCTETS:
                is_sized = _MIN_SECRET_BYTES <= len(self.secret) <= _MAX_SECRET_BYTES
                fits = is_sized and not self.x and not self.y
        if not fits:
            expected = f"the numbers of one key of kty {self.kind.value}, in their whole length"
            raise ConfigError(f"key {self.kid}" if self.kid else "key", expected)

    @property
    def is_secret(self) -> bool:
        """Whether nobody else may see it."""
        return bool(self.secret)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the members of RFC 7517, secrets included."""
        members: dict[str, JsonValue] = {"kty": self.kind.value}
        if self.kid:
            members["kid"] = self.kid
        if curve := _CURVES.get(self.kind):
            members |= {"crv": curve, "x": _to_base64(self.x)}
        if self.y:
            members["y"] = _to_base64(self.y)
        if self.secret:
            members["k" if self.kind is KeyKind.OCTETS else "d"] = _to_base64(self.secret)
        if self.suite is not None:
            members["suite"] = self.suite
        return members


@dataclass(frozen=True, slots=True)
class JwkSet:
    """Keys in the order in which they were made.

    Attributes:
        keys: The keys.
        current: The kid of the one that signs or seals, or empty.
    """

    keys: tuple[Jwk, ...] = ()
    current: str = ""

    def to_json(self) -> dict[str, JsonValue]:
        """Return the members of RFC 7517, Section 5, and ``current``."""
        members: dict[str, JsonValue] = {"keys": [key.to_json() for key in self.keys]}
        return {"current": self.current, **members} if self.current else members


def decode_document(
    content: bytes, where: str, limits: JwkLimits | None = None
) -> dict[str, JsonValue]:
    """Decode a JSON object with keys; what is in it shows up in no error.

    Args:
        content: The text.
        where: Its place, for errors.
        limits: Bounds.

    Raises:
        ConfigError: No strict JSON object, or beyond a limit.
    """
    limits = limits or JwkLimits()
    # A key has at most 8 members, and a list in one of them; six sets of them and two levels above.
    bounds = JsonLimits(
        max_bytes=limits.max_bytes, max_depth=5, max_values=6 * 16 * limits.max_keys
    )
    try:
        value = decode_json(content, bounds)
    except ValueError:
        # The cause would quote from the text.
        raise ConfigError(where, _EXPECTED) from None
    if not isinstance(value, dict):
        raise ConfigError(where, f"{_EXPECTED}, an object")
    return value


def parse_jwk(value: JsonValue, where: str) -> Jwk:
    """Make a key of the members of RFC 7517; members that are not known are ignored.

    Raises:
        ConfigError: It has another kind or curve, a wrong length, no base64url, or a member
            that says that it is for something else.
    """
    try:
        members = Members(value, where)
        return _parse(members)
    except ConfigError as error:
        raise ConfigError(where, error.expected, error.key) from error
    except ValueError as error:
        # The texts of Members name members and types only.
        raise ConfigError(where, _EXPECTED, str(error)) from None


def parse_jwk_set(value: JsonValue, where: str, limits: JwkLimits | None = None) -> JwkSet:
    """Make a set of keys of the members of RFC 7517, Section 5; ``current`` names one of them.

    Raises:
        ConfigError: A key cannot be used, none or too many, or no such current key.
    """
    limits = limits or JwkLimits()
    try:
        members = Members(value, where)
        texts = members.take_array("keys")
        current = members.take("current", str) if "current" in members else ""
    except ValueError as error:
        raise ConfigError(where, _EXPECTED, str(error)) from None
    if not texts:
        # Who believes nobody and who was handed no key are not the same: this would read as both.
        raise ConfigError(where, "at least one key", "an empty set")
    if len(texts) > limits.max_keys:
        raise ConfigError(where, f"at most {limits.max_keys} keys", str(len(texts)))
    keys = tuple(parse_jwk(text, f"{where}: key {index}") for index, text in enumerate(texts))
    if current and current not in {key.kid for key in keys}:
        raise ConfigError(f"{where}: current", "the kid of one of the keys")
    return JwkSet(keys, current)


def thumbprint(key: Jwk) -> bytes:
    """Return the SHA-256 thumbprint of a public or private key, 32 octets (RFC 7638).

    Raises:
        ConfigError: A symmetric key: its thumbprint would be a hash of the secret.
    """
    if key.kind is KeyKind.OCTETS:
        raise ConfigError("thumbprint", "a key with a public part", key.kind)
    required: dict[str, JsonValue] = {
        name: value for name, value in key.to_json().items() if name in ("crv", "kty", "x", "y")
    }
    return hashlib.sha256(canonical_json(required)).digest()


def named(key: Jwk) -> str:
    """Return the name of a key that has none: the first digits of its thumbprint.

    Raises:
        ConfigError: A symmetric key.
    """
    return thumbprint(key).hex()[:KID_DIGITS]


def _parse(members: Members) -> Jwk:
    try:
        kind = KeyKind(members.take("kty", str))
    except ValueError as error:
        raise ConfigError("kty", "EC, OKP or oct") from error
    _check_kind(members, kind)
    return Jwk(
        kind=kind,
        kid=members.take("kid", str) if "kid" in members else "",
        x=b"" if kind is KeyKind.OCTETS else _from_base64(members, "x"),
        y=_from_base64(members, "y") if kind is KeyKind.P256 else b"",
        secret=_secret(members, kind),
        suite=members.take("suite", int) if "suite" in members else None,
        operations=_operations(members),
    )


def _secret(members: Members, kind: KeyKind) -> bytes:
    if kind is KeyKind.OCTETS:
        return _from_base64(members, "k")
    return _from_base64(members, "d") if "d" in members else b""


def _check_kind(members: Members, kind: KeyKind) -> None:
    curve = _CURVES.get(kind)
    if curve is not None and members.take("crv", str) != curve:
        raise ConfigError("crv", f"{curve} for kty {kind}")
    if "alg" in members and members.take("alg", str) not in _ALGORITHMS[kind]:
        raise ConfigError("alg", f"{' or '.join(sorted(_ALGORITHMS[kind]))} for kty {kind}")


def _operations(members: Members) -> frozenset[str] | None:
    """Return what the key may do, or None where it does not say.

    Raises:
        ConfigError: It says it in a form that RFC 7517 does not allow.
    """
    used: frozenset[str] | None = None
    if "use" in members:
        used = _USES.get(members.take("use", str), frozenset())
    if "key_ops" not in members:
        return used
    listed = members.take_array("key_ops")
    operations = frozenset(item for item in listed if isinstance(item, str))
    if len(operations) != len(listed) or len(listed) > _MAX_OPERATIONS:
        raise ConfigError("key_ops", "a list of words, each once")
    return operations if used is None else operations & used


def _is_p256(x: bytes, y: bytes, secret: bytes) -> bool:
    if not len(x) == len(y) == _NUMBER_BYTES or len(secret) not in (0, _NUMBER_BYTES):
        return False
    point = ec.EllipticCurvePublicNumbers(int.from_bytes(x), int.from_bytes(y), ec.SECP256R1())
    try:
        if secret:
            ec.EllipticCurvePrivateNumbers(int.from_bytes(secret), point).private_key()
        else:
            point.public_key()
    except ValueError:
        return False
    return True


def _is_ed25519(x: bytes, secret: bytes) -> bool:
    if len(x) != _NUMBER_BYTES or len(secret) not in (0, _NUMBER_BYTES):
        return False
    if not secret:
        return True
    private = ed25519.Ed25519PrivateKey.from_private_bytes(secret)
    return private.public_key().public_bytes_raw() == x


def _to_base64(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


def _from_base64(members: Members, name: str) -> bytes:
    """Decode base64url without padding; only the one encoding of the octets is taken."""
    text = members.take(name, str)
    try:
        octets = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        octets = b""
    if not _BASE64URL.fullmatch(text) or _to_base64(octets) != text:
        raise ConfigError(name, "base64url without padding") from None
    return octets
