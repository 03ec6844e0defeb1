"""The keys of one member of a scope, or of a relay, as a value.

A ring changes by making another one. Keys that are used one at a time (producer, object and
token keys) have three states: those before the current one in their set are older and only
verify or open, those behind it are next and wait until everybody has them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from kvcs.cose import MacKey, SigningKey, VerifyingKey
from kvcs.errors import ConfigError
from kvcs.keyring.conversion import mac_key, object_key, signing_key, verifying_key
from kvcs.keyring.jwk import Jwk, JwkSet, KeyKind
from kvcs.keyring.purpose import Purpose, check_key
from kvcs.kv.identity import ScopeKey
from kvcs.kv.sealing import ObjectKeys

__all__ = ("KeyRing", "KeyState", "Role")


class KeyState(StrEnum):
    """What a key of a set is used for now.

    Attributes:
        CURRENT: It signs or seals.
        NEXT: It will, after the next rotation.
        OLDER: It did; what it made is still verified or opened.
    """

    CURRENT = "current"
    NEXT = "next"
    OLDER = "older"


class Role(StrEnum):
    """Whom a part of a ring is given to.

    Attributes:
        MEMBER: Another member of the scope: finds, verifies and opens everything, and can
            seal; makes a producer key of its own to publish.
        RELAY: A relay: verifies tokens, and can neither make one nor read anything.
    """

    MEMBER = "member"
    RELAY = "relay"


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Keys by purpose; its repr and its errors show no secret.

    Attributes:
        sets: The keys of each purpose that has any.

    Raises:
        ConfigError: A key does not do for its purpose, a kid is there twice, or the current key
            of a purpose that needs one is not named.
    """

    sets: Mapping[Purpose, JwkSet] = field(default_factory=dict[Purpose, JwkSet], repr=False)

    def __post_init__(self) -> None:
        sets = {purpose: keys for purpose, keys in self.sets.items() if keys.keys}
        object.__setattr__(self, "sets", MappingProxyType(sets))
        for purpose, keys in sets.items():
            _check_set(purpose, keys)

    def __repr__(self) -> str:
        counts = ", ".join(f"{purpose}: {len(keys.keys)}" for purpose, keys in self.sets.items())
        return f"KeyRing({counts})"

    def keys(self, purpose: Purpose) -> tuple[Jwk, ...]:
        """Return the keys of a purpose, oldest first."""
        return self._set(purpose).keys

    def current(self, purpose: Purpose) -> Jwk | None:
        """Return the key that signs or seals, or the scope key; None where there is none."""
        keys = self._set(purpose)
        if purpose is Purpose.SCOPE:
            return keys.keys[0] if keys.keys else None
        return next((key for key in keys.keys if key.kid == keys.current), None)

    def state(self, purpose: Purpose, key: Jwk) -> KeyState:
        """Return what a key of the ring is used for."""
        keys = self._set(purpose)
        if not purpose.has_current or key.kid == keys.current:
            return KeyState.CURRENT
        names = [each.kid for each in keys.keys]
        is_older = names.index(key.kid) < names.index(keys.current)
        return KeyState.OLDER if is_older else KeyState.NEXT

    # What the rest of kvcs takes.

    @property
    def scope_key(self) -> ScopeKey | None:
        """The scope key, or None."""
        key = self.current(Purpose.SCOPE)
        return None if key is None else ScopeKey(key.secret)

    @property
    def signing_key(self) -> SigningKey | None:
        """The key that signs manifests, or None."""
        key = self.current(Purpose.PRODUCER)
        return None if key is None else signing_key(key)

    @property
    def trusted_producers(self) -> tuple[VerifyingKey, ...]:
        """Keys of the producers whose manifests are believed, one's own among them."""
        return tuple(verifying_key(key) for key in self.believed(Purpose.TRUSTED))

    @property
    def object_keys(self) -> ObjectKeys:
        """All object keys; the current one, if there is any, seals."""
        current = self.current(Purpose.OBJECT)
        every = [object_key(key) for key in self.keys(Purpose.OBJECT)]
        return ObjectKeys(every, current=None if current is None else object_key(current))

    @property
    def token_key(self) -> SigningKey | MacKey | None:
        """The key that signs authorization tokens, or None."""
        key = self.current(Purpose.TOKEN)
        if key is None:
            return None
        return mac_key(key) if key.kind is KeyKind.OCTETS else signing_key(key)

    @property
    def token_verifiers(self) -> tuple[VerifyingKey | MacKey, ...]:
        """Keys that authorization tokens are verified with, one's own among them."""
        return tuple(
            mac_key(key) if key.kind is KeyKind.OCTETS else verifying_key(key)
            for key in self.believed(Purpose.VERIFIER)
        )

    # Changes.

    def added(self, purpose: Purpose, key: Jwk) -> "KeyRing":
        """Return a ring with one key more: current if it is the first, else the next one.

        Raises:
            ConfigError: Another key of the purpose has its kid, or there is a scope key.
        """
        keys = self._set(purpose)
        if key in keys.keys:
            return self
        if purpose is Purpose.SCOPE and keys.keys:
            raise ConfigError("scope key", "a ring without one: a ring is for one scope")
        if any(each.kid == key.kid for each in keys.keys):
            raise ConfigError(f"{purpose} key {key.kid}", "a kid that no other key has")
        current = keys.current or (key.kid if purpose.has_current else "")
        return self._with(purpose, JwkSet((*keys.keys, key), current))

    def rotated(self, purpose: Purpose, make: Callable[[], Jwk]) -> "KeyRing":
        """Return a ring in which the next key is current, a new one where none waits.

        Args:
            purpose: Purpose of the keys.
            make: Makes a key.

        Raises:
            ConfigError: The purpose has no current key.
        """
        keys = self._set(purpose)
        if not keys.current:
            raise ConfigError(f"{purpose} key", "a ring that has one (kvcs keys new)")
        waiting = [key for key in keys.keys if self.state(purpose, key) is KeyState.NEXT]
        ring = self if waiting else self.added(purpose, make())
        successor = waiting[0] if waiting else ring.keys(purpose)[-1]
        rotated = replace(ring.sets[purpose], current=successor.kid)
        return KeyRing({**ring.sets, purpose: rotated})

    def removed(self, purpose: Purpose, kid: str) -> "KeyRing":
        """Return a ring without one key.

        Raises:
            ConfigError: There is no such key, or it is in use while others are there.
        """
        keys = self._set(purpose)
        rest = tuple(key for key in keys.keys if key.kid != kid)
        if len(rest) == len(keys.keys):
            raise ConfigError(f"{purpose} key", "the kid of a key in the ring", kid)
        if rest and kid == keys.current:
            raise ConfigError(f"{purpose} key {kid}", "a key that is not in use; rotate first")
        return self._with(purpose, JwkSet(rest, keys.current if rest else ""))

    def merged(self, other: "KeyRing") -> "KeyRing":
        """Return a ring that has the keys of both; what is current here stays current.

        A set that is not here yet comes with its current key and the order of the other ring.

        Raises:
            ConfigError: Both have a scope key, and not the same one; or two keys share a kid.
        """
        ring = self
        for purpose, keys in other.sets.items():
            if purpose not in ring.sets:
                ring = KeyRing({**ring.sets, purpose: keys})
            for key in keys.keys:
                ring = ring.added(purpose, key)
        return ring

    def public(self, purpose: Purpose) -> JwkSet:
        """Return the public keys that belong to the private keys of a purpose.

        Symmetric keys have none and are left out.
        """
        keys = self._set(purpose).keys
        pairs = [key for key in keys if key.kind is not KeyKind.OCTETS]
        # A private key may be for signing only, as its document says; its public half verifies.
        return JwkSet(tuple(replace(key, secret=b"", operations=None) for key in pairs))

    def believed(self, purpose: Purpose) -> tuple[Jwk, ...]:
        """Return the public keys to verify with: those taken in, and those of our own keys.

        Args:
            purpose: `Purpose.TRUSTED` or `Purpose.VERIFIER`.
        """
        own = Purpose.PRODUCER if purpose is Purpose.TRUSTED else Purpose.TOKEN
        symmetric = [key for key in self.keys(own) if key.kind is KeyKind.OCTETS]
        every = (*self.keys(purpose), *self.public(own).keys, *symmetric)
        return tuple(dict.fromkeys(every))

    def shared(self, role: Role) -> "KeyRing":
        """Return what somebody else gets of this ring: no private key, ever.

        A relay gets public keys only: with a symmetric one it could make tokens.
        """
        verifiers = [
            key for key in self.believed(Purpose.VERIFIER) if key.kind is not KeyKind.OCTETS
        ]
        if role is Role.RELAY:
            return KeyRing({Purpose.VERIFIER: JwkSet(tuple(verifiers))})
        return KeyRing(
            {
                Purpose.SCOPE: self._set(Purpose.SCOPE),
                Purpose.TRUSTED: JwkSet(self.believed(Purpose.TRUSTED)),
                Purpose.OBJECT: self._set(Purpose.OBJECT),
            }
        )

    def _set(self, purpose: Purpose) -> JwkSet:
        return self.sets.get(purpose, JwkSet())

    def _with(self, purpose: Purpose, keys: JwkSet) -> "KeyRing":
        return KeyRing({**self.sets, purpose: keys})


def _check_set(purpose: Purpose, keys: JwkSet) -> None:
    for key in keys.keys:
        check_key(purpose, key)
    names = [key.kid for key in keys.keys]
    if purpose is Purpose.SCOPE:
        if len(names) > 1:
            raise ConfigError("scope key", "one key: a ring is for one scope")
        return
    if not all(names) or len(set(names)) != len(names):
        raise ConfigError(f"{purpose} keys", "a kid for each, and each another one")
    if purpose.has_current != (keys.current in names):
        expected = "one that is current" if purpose.has_current else "none that is current"
        raise ConfigError(f"{purpose} keys", expected)
