"""Object keys: the secrets that members of a scope seal and open Objects with.

An `ObjectKey` is a base key with its Key ID. Nothing is encrypted under it directly: each Track
has a key and a salt of its own, derived from it, from the Full Track Name and from the Key ID
(`kvcs.kv.sealing.cipher`). Since the Publication ID is in that name, two publications share no
derived key, whatever else they share.

Source: draft-ietf-moq-secure-objects, "Keys".
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvcs.errors import ConfigError
from kvcs.kv.sealing.suite import CipherSuite
from kvcs.varint import MAX_VI64

__all__ = ("MAX_KEYS_OF_ONE_ID", "ObjectKey", "ObjectKeys")

# Publishers of one scope choose Key IDs without asking each other. An Object with an ID that
# more than one key has costs a decryption for each.
MAX_KEYS_OF_ONE_ID: Final = 4
_MAX_SECRET_BYTES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectKey:
    """A base key, from which the keys of Tracks are derived.

    Attributes:
        key_id: Key ID, 0..2^64-1, sent in clear with each Object.
        suite: Cipher suite.
        secret: The base key, at least ``suite.secret_bytes`` and at most 64 octets, random.
        allow_short_tags: The suites 0x0001 and 0x0002 may be used.

    Raises:
        ConfigError: A Key ID or a secret out of range, or a suite of short tags without leave.
    """

    key_id: int
    suite: CipherSuite = CipherSuite.AES_128_GCM_SHA256_128
    secret: bytes = field(repr=False)
    allow_short_tags: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.key_id <= MAX_VI64:
            raise ConfigError("key_id", "0..2^64-1", str(self.key_id))
        if not self.suite.has_full_tag and not self.allow_short_tags:
            raise ConfigError("suite", "0x0004 or 0x0005", f"{self.suite:#06x}")
        least = self.suite.secret_bytes
        if not least <= len(self.secret) <= _MAX_SECRET_BYTES:
            expected = f"{least}..{_MAX_SECRET_BYTES} octets"
            raise ConfigError("secret", expected, f"{len(self.secret)} octets")


class ObjectKeys:
    """The object keys that somebody holds: any number for opening, one of them for sealing.

    Args:
        keys: All keys; several may share a Key ID, and all of those are tried.
        current: The one to seal with, or None; it is held as well.

    Raises:
        ConfigError: More than `MAX_KEYS_OF_ONE_ID` keys share a Key ID.
    """

    __slots__ = ("_by_id", "current")

    def __init__(self, keys: Iterable[ObjectKey] = (), *, current: ObjectKey | None = None) -> None:
        self.current = current
        self._by_id: dict[int, tuple[ObjectKey, ...]] = {}
        for key in (*(() if current is None else (current,)), *keys):
            same = self._by_id.get(key.key_id, ())
            if key not in same:
                self._by_id[key.key_id] = (*same, key)
        for key_id, same in self._by_id.items():
            if len(same) > MAX_KEYS_OF_ONE_ID:
                expected = f"at most {MAX_KEYS_OF_ONE_ID} keys with one Key ID"
                raise ConfigError("object_keys", expected, f"{len(same)} with Key ID {key_id}")

    def __len__(self) -> int:
        return sum(map(len, self._by_id.values()))

    def __repr__(self) -> str:
        return f"<ObjectKeys {sorted(self._by_id)}>"

    @property
    def key_ids(self) -> tuple[int, ...]:
        """The Key IDs that are held, ascending."""
        return tuple(sorted(self._by_id))

    def with_id(self, key_id: int) -> Sequence[ObjectKey]:
        """Return the keys with a Key ID; none when it is unknown."""
        return self._by_id.get(key_id, ())
