"""What a key is for, and which keys do for it."""

from enum import StrEnum
from typing import Final

from kvcs.errors import ConfigError
from kvcs.keyring.conversion import object_key
from kvcs.keyring.jwk import Jwk, KeyKind

__all__ = ("Purpose", "check_key")

_SCOPE_KEY_BYTES: Final = 32
_MAC_KEY_BYTES: Final = 32


class Purpose(StrEnum):
    """Purpose of the keys of one set.

    Attributes:
        SCOPE: The scope key: who has it finds and names the caches of the scope.
        PRODUCER: Private keys that sign manifests.
        TRUSTED: Public keys of producers whose manifests are believed.
        OBJECT: Keys that seal Objects, and open them.
        TOKEN: Keys that sign authorization tokens.
        VERIFIER: Keys that verify authorization tokens: what a relay needs.
    """

    SCOPE = "scope"
    PRODUCER = "producer"
    TRUSTED = "trusted"
    OBJECT = "object"
    TOKEN = "token"  # noqa: S105 - the name of a purpose
    VERIFIER = "verifier"

    @property
    def has_current(self) -> bool:
        """Whether one of the keys is in use, and others wait or are kept for what was."""
        return self in (Purpose.PRODUCER, Purpose.OBJECT, Purpose.TOKEN)

    @property
    def is_public(self) -> bool:
        """Whether keys with a private part have no place here."""
        return self in (Purpose.TRUSTED, Purpose.VERIFIER)


_KINDS: Final = {
    Purpose.SCOPE: (KeyKind.OCTETS,),
    Purpose.PRODUCER: (KeyKind.P256, KeyKind.ED25519),
    Purpose.TRUSTED: (KeyKind.P256, KeyKind.ED25519),
    Purpose.OBJECT: (KeyKind.OCTETS,),
    Purpose.TOKEN: (KeyKind.P256, KeyKind.OCTETS),
    Purpose.VERIFIER: (KeyKind.P256, KeyKind.OCTETS),
}


# What RFC 7517, Section 4.3 calls what a key does for its purpose: one of these is enough, since
# some say what a key is for and some what is done with it. Nothing is called what a scope key does.
_OPERATIONS: Final = {
    Purpose.SCOPE: frozenset({"sign", "deriveKey", "deriveBits"}),
    Purpose.PRODUCER: frozenset({"sign"}),
    Purpose.TRUSTED: frozenset({"verify"}),
    Purpose.OBJECT: frozenset({"encrypt", "decrypt", "deriveKey", "deriveBits"}),
    Purpose.TOKEN: frozenset({"sign"}),
    Purpose.VERIFIER: frozenset({"verify"}),
}


def check_key(purpose: Purpose, key: Jwk) -> None:
    """Check that a key does for a purpose.

    Raises:
        ConfigError: It is of another kind, private where public keys are kept or the other way
            round, for other operations, too short, or it has no name that the purpose needs.
    """
    where = f"{purpose} key {key.kid}".rstrip()
    if key.kind not in _KINDS[purpose]:
        names = " or ".join(kind.value for kind in _KINDS[purpose])
        raise ConfigError(where, f"kty {names}", key.kind.value)
    if key.kind is not KeyKind.OCTETS and key.is_secret == purpose.is_public:
        expected = "a public key, without d" if purpose.is_public else "a private key, with d"
        raise ConfigError(where, expected)
    if key.operations is not None and not key.operations & _OPERATIONS[purpose]:
        words = ", ".join(sorted(_OPERATIONS[purpose]))
        raise ConfigError(where, f"a key whose use and key_ops, where it has any, allow {words}")
    if purpose is Purpose.OBJECT:
        object_key(key)
    elif key.suite is not None:
        raise ConfigError(where, "no suite")
    _check_length(purpose, where, key)


def _check_length(purpose: Purpose, where: str, key: Jwk) -> None:
    size = len(key.secret)
    if purpose is Purpose.SCOPE and size != _SCOPE_KEY_BYTES:
        raise ConfigError(where, f"{_SCOPE_KEY_BYTES} octets", f"{size} octets")
    is_mac = purpose in (Purpose.TOKEN, Purpose.VERIFIER) and key.kind is KeyKind.OCTETS
    if is_mac and size < _MAC_KEY_BYTES:
        raise ConfigError(where, f"at least {_MAC_KEY_BYTES} octets", f"{size} octets")
