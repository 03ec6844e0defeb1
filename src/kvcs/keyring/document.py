"""A whole key ring, or a part of one, as one JSON text: for secret managers and for handing over.

    {"scope": JWK, "producer": JWK Set, "trusted": JWK Set, "object": JWK Set,
     "token": JWK Set, "verifier": JWK Set}

Every member may be absent. A set is as of RFC 7517, Section 5; its member ``current`` names
the key in use, by default the first one.
"""

from dataclasses import replace

from kvcs.errors import ConfigError
from kvcs.keyring.jwk import (
    JwkLimits,
    JwkSet,
    decode_document,
    named,
    parse_jwk,
    parse_jwk_set,
)
from kvcs.keyring.purpose import Purpose
from kvcs.keyring.ring import KeyRing
from kvcs.kv.strict_json import JsonValue, encode_json

__all__ = ("decode_keys", "decode_ring", "encode_ring", "encode_set")


def decode_ring(content: bytes, where: str, limits: JwkLimits | None = None) -> KeyRing:
    """Decode the JSON text of a ring.

    Args:
        content: The text.
        where: Its place, for errors.
        limits: Bounds.

    Raises:
        ConfigError: It is no ring, or beyond a limit; nothing of the text is in the error.
    """
    members = decode_document(content, where, limits)
    sets: dict[Purpose, JwkSet] = {}
    for name, value in members.items():
        try:
            purpose = Purpose(name)
        except ValueError as error:
            known = ", ".join(Purpose)
            raise ConfigError(where, f"members {known}", repr(name[:40])) from error
        sets[purpose] = _parse_set(purpose, value, f"{where}: {name}", limits)
    return KeyRing(sets)


def decode_keys(
    content: bytes, where: str, purpose: Purpose, limits: JwkLimits | None = None
) -> KeyRing:
    """Decode keys for one purpose: a JWK or a JWK Set, as others hand them over.

    Raises:
        ConfigError: Neither, beyond a limit, or a key that does not do for the purpose.
    """
    members = decode_document(content, where, limits)
    if "keys" in members:
        keys = _completed(purpose, parse_jwk_set(members, where, limits))
    else:
        keys = _completed(purpose, JwkSet((parse_jwk(members, where),)))
    return KeyRing({purpose: keys})


def encode_ring(ring: KeyRing) -> bytes:
    """Return the JSON text of a ring, secrets included."""
    members: dict[str, JsonValue] = {
        str(purpose): _members(purpose, keys) for purpose, keys in ring.sets.items()
    }
    return (encode_json(members) + "\n").encode()


def encode_set(purpose: Purpose, keys: JwkSet) -> bytes:
    """Return the JSON text of the keys of one purpose, secrets included."""
    return (encode_json(_members(purpose, keys)) + "\n").encode()


def _members(purpose: Purpose, keys: JwkSet) -> dict[str, JsonValue]:
    return keys.keys[0].to_json() if purpose is Purpose.SCOPE else keys.to_json()


def _parse_set(purpose: Purpose, value: JsonValue, where: str, limits: JwkLimits | None) -> JwkSet:
    if purpose is Purpose.SCOPE:
        return JwkSet((parse_jwk(value, where),))
    return _completed(purpose, parse_jwk_set(value, where, limits))


def _completed(purpose: Purpose, keys: JwkSet) -> JwkSet:
    """Name what has no name where a name can be computed, and make the first key current."""
    every = tuple(
        key if key.kid or not key.x else replace(key, kid=named(key)) for key in keys.keys
    )
    current = keys.current
    if purpose.has_current and every and not current:
        current = every[0].kid
    return JwkSet(every, current if purpose.has_current else "")
