"""Keys for people: the scope key, producer, object and token keys, kept and handed over.

A `KeyRing` is a value. It lives in one directory that only its owner can read, or in one JSON
text for secret managers; keys are JSON Web Keys. Secrets are in no repr and in no error.

Source: RFC 7517, RFC 7518, RFC 8037, RFC 7638; KVCS, "Security Considerations".
"""

from kvcs.keyring.conversion import (
    mac_key,
    new_object_key,
    new_pair,
    new_secret,
    object_key,
    signing_key,
    verifying_key,
)
from kvcs.keyring.directory import change_ring, file_of, load_ring, load_ring_file
from kvcs.keyring.document import decode_keys, decode_ring, encode_ring, encode_set
from kvcs.keyring.jwk import Jwk, JwkLimits, JwkSet, KeyKind
from kvcs.keyring.purpose import Purpose
from kvcs.keyring.ring import KeyRing, KeyState, Role
from kvcs.keyring.source import KEYS_JSON_VARIABLE, default_directory, find_ring

__all__ = (
    "KEYS_JSON_VARIABLE",
    "Jwk",
    "JwkLimits",
    "JwkSet",
    "KeyKind",
    "KeyRing",
    "KeyState",
    "Purpose",
    "Role",
    "change_ring",
    "decode_keys",
    "decode_ring",
    "default_directory",
    "encode_ring",
    "encode_set",
    "file_of",
    "find_ring",
    "load_ring",
    "load_ring_file",
    "mac_key",
    "new_object_key",
    "new_pair",
    "new_secret",
    "object_key",
    "signing_key",
    "verifying_key",
)
