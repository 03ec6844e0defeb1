"""Sealing and opening the Objects of one Track.

Theory of operation. A `TrackSealer` belongs to the publisher of a Track. It goes up: no Group
after a later one, and a place is sealed again only with the same octets, which are told by their
tag, since two plaintexts under one nonce give both away. It counts what it has sealed and stops
before the limits of the cipher. A `TrackOpener` belongs to a reader, who may hold several keys.
Whatever is wrong inside a sealed payload, from a bit of the tag to a length in the plaintext, is
one and the same error.

Both may be used by several threads, a sealer if it is given a lock. It encrypts side by side, and
looks at its state before and after under the lock: what was encrypted meanwhile for a place that
another thread has sealed, or below a Group that it has begun, is given to nobody. An exception
leaves it at most with more counted than was given out. The count of what failed to open may be a
few too low, which its limit does not notice.

Source: draft-ietf-moq-secure-objects, "Object Processing".
"""

from collections.abc import Buffer, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag

from kvcs.errors import ConfigError, IntegrityError, LocalProtocolError
from kvcs.kv.sealing.cipher import MAX_OBJECT_ID, TrackCipher
from kvcs.kv.sealing.key import ObjectKey, ObjectKeys
from kvcs.kv.sealing.plaintext import decode_plaintext, encode_filler
from kvcs.kv.sealing.suite import Octets
from kvcs.names import FullTrackName, Location
from kvcs.varint import encode_vi64

__all__ = (
    "KEY_ID_PROPERTY",
    "SealReason",
    "SealedPayload",
    "SealingLimits",
    "TrackOpener",
    "TrackSealer",
    "sealed_bytes",
)

# Of those that applications may use without registration. The draft's own 0x02 is
# OBJECT_DELIVERY_TIMEOUT to every relay: with Key ID 7 it would drop Objects after 7 ms.
KEY_ID_PROPERTY: Final = 0x78

_CIPHER_BLOCK_BYTES: Final = 16
# Octets of a payload from which new memory costs more than pieces that are put in place.
_SCRATCH_BYTES: Final = 128 * 1024


class SealReason(StrEnum):
    """Why a sealed Object was not opened; values of `IntegrityError.reason`.

    Attributes:
        UNSEALED: It names no key, and only sealed Objects are taken.
        UNKNOWN_KEY: No key of its Key ID is held.
        SEAL: The tag does not fit, or what is inside is no plaintext.
        EXHAUSTED: Too many Objects failed under its key; it opens nothing more.
    """

    UNSEALED = "unsealed"
    UNKNOWN_KEY = "unknown_key"
    SEAL = "seal"
    EXHAUSTED = "seal_exhausted"


class SealedPayload(NamedTuple):
    """A sealed Object, as it came.

    Attributes:
        group_id: Its Group ID.
        object_id: Its Object ID.
        priority: Its Publisher Priority.
        key_id: The Key ID among its Immutable Properties, or None.
        immutable: Its Serialized Immutable Properties.
        payload: Its payload: ciphertext and tag.
    """

    group_id: int
    object_id: int
    priority: int
    key_id: int | None
    immutable: bytes
    payload: Octets


@dataclass(frozen=True, slots=True, kw_only=True)
class SealingLimits:
    """How much one derived key, that is one Track of one publication, may seal.

    Attributes:
        max_objects: Objects.
        max_cipher_blocks: Blocks of 16 octets, of all Objects together: 1 TiB, under which an
            adversary's advantage stays below 2^-57 (draft-irtf-cfrg-aead-limits, AES-GCM).
    """

    max_objects: int = 2**32
    max_cipher_blocks: int = 2**36


DEFAULT_LIMITS: Final = SealingLimits()


def sealed_bytes(key: ObjectKey, payload_bytes: int) -> int:
    """Return the octets of a sealed payload without encrypted properties."""
    return len(encode_vi64(payload_bytes)) + payload_bytes + key.suite.tag_bytes


class TrackSealer:
    """Seals the Objects of one Track.

    Args:
        key: The base key.
        track: Full Track Name.
        key_id_property: Type of the property that carries the Key ID; even.
        limits: When the key must be changed.
        lock: Held while the state is looked at, for who seals with several threads.

    Attributes:
        immutable: Serialized Immutable Properties of every Object.

    Raises:
        ConfigError: The Type is odd: such a property is no integer.
    """

    __slots__ = (
        "_cipher",
        "_cipher_blocks",
        "_group_id",
        "_limits",
        "_lock",
        "_objects",
        "_tags",
        "immutable",
    )

    def __init__(
        self,
        key: ObjectKey,
        track: FullTrackName,
        *,
        key_id_property: int = KEY_ID_PROPERTY,
        limits: SealingLimits = DEFAULT_LIMITS,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        if key_id_property % 2:
            raise ConfigError("key_id_property", "an even Type", f"{key_id_property:#x}")
        self.immutable: Final = encode_vi64(key_id_property) + encode_vi64(key.key_id)
        self._cipher = TrackCipher(key, track)
        self._limits = limits
        self._objects = 0
        self._cipher_blocks = 0
        self._group_id = 0
        self._tags: dict[int, bytes] = {}
        self._lock: AbstractContextManager[object] = nullcontext() if lock is None else lock

    def __repr__(self) -> str:
        return f"<TrackSealer Key ID {self._cipher.key.key_id}, Group {self._group_id}>"

    def seal(
        self,
        group_id: int,
        object_id: int,
        priority: int,
        *parts: Buffer,
        padded_bytes: int = 0,
        scratch: bytearray | None = None,
    ) -> bytes:
        """Seal the payload of one Object.

        Args:
            group_id: Its Group ID, not below that of an earlier call.
            object_id: Its Object ID.
            priority: Its Publisher Priority.
            parts: Its payload, in contiguous parts.
            padded_bytes: Octets that the plaintext is to have, if it has fewer: exactly so many
                when that is at least ten more, and up to nine more otherwise.
            scratch: Memory to put the plaintext together in, if it is large enough; nobody else
                may use it meanwhile. New memory costs more than the encryption.

        Returns:
            The sealed payload, to be sent with `immutable`.

        Raises:
            LocalProtocolError: The Object ID is above 2^32-1, the Group below one that was sealed,
                or something else was sealed for the place before; nothing is given out.
            ConfigError: The key has sealed as much as it may.
        """
        if object_id > MAX_OBJECT_ID:
            location = Location(group_id, object_id)
            raise LocalProtocolError(f"Object {location} cannot be sealed: its place is too high")
        plaintext = _plaintext(parts, padded_bytes, scratch)
        with self._lock:
            self._refuse_below(group_id, object_id)
            self._count(len(plaintext))
        sealed = self._cipher.encrypt(group_id, object_id, priority, self.immutable, plaintext)
        tag = sealed[-self._cipher.tag_bytes :]
        with self._lock:
            self._record(group_id, object_id, tag)
        return sealed

    def _record(self, group_id: int, object_id: int, tag: bytes) -> None:
        """Note what is given out for a place; another thread may have been faster.

        Raises:
            LocalProtocolError: It may not be given out.
        """
        self._refuse_below(group_id, object_id)
        if group_id > self._group_id:
            self._group_id, self._tags = group_id, {}
        if self._tags.setdefault(object_id, tag) != tag:
            location = Location(group_id, object_id)
            raise LocalProtocolError(f"another Object was sealed for {location} before")

    def _refuse_below(self, group_id: int, object_id: int) -> None:
        if group_id < self._group_id:
            location = Location(group_id, object_id)
            raise LocalProtocolError(
                f"Object {location} cannot be sealed: its place is below a Group that was sealed"
            )

    def _count(self, plaintext_bytes: int) -> None:
        """Count one encryption, unless it would exceed a limit."""
        blocks = self._cipher_blocks + -(-plaintext_bytes // _CIPHER_BLOCK_BYTES)
        limits = self._limits
        if self._objects >= limits.max_objects or blocks > limits.max_cipher_blocks:
            expected = "a key with another Key ID: this one has sealed as much as it may"
            raise ConfigError("object_key", expected, f"Key ID {self._cipher.key.key_id}")
        self._objects += 1
        self._cipher_blocks = blocks


class TrackOpener:
    """Opens the Objects of one Track.

    Args:
        keys: The keys that are held.
        track: Full Track Name.
    """

    __slots__ = ("_ciphers", "_failures", "_keys", "_track")

    def __init__(self, keys: ObjectKeys, track: FullTrackName) -> None:
        self._keys = keys
        self._track = track
        self._ciphers: dict[int, tuple[TrackCipher, ...]] = {}
        self._failures: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<TrackOpener {self._keys!r}>"

    def open(
        self, sealed: SealedPayload, buffer_of: Callable[[int], bytearray] = bytearray
    ) -> memoryview:
        """Open one Object.

        Args:
            sealed: The Object.
            buffer_of: Gives the memory for a plaintext of so many octets.

        Returns:
            Its payload, a view into the plaintext.

        Raises:
            IntegrityError: It is to be treated as missing. The reason is a `SealReason`.
        """
        key_id = sealed.key_id
        if key_id is None:
            raise _refused(SealReason.UNSEALED, "the Object is not sealed")
        ciphers = self._of(key_id)
        if not ciphers:
            raise _refused(SealReason.UNKNOWN_KEY, f"no object key has Key ID {key_id}")
        failures = self._failures.get(key_id)
        # Each failure was one of every key with that ID: the weakest one decides.
        if failures and failures >= min(cipher.max_failures for cipher in ciphers):
            raise _refused(SealReason.EXHAUSTED, f"too many failures with Key ID {key_id}")
        group_id, object_id, priority, _, immutable, octets = sealed
        for cipher in ciphers if object_id <= MAX_OBJECT_ID else ():
            try:
                plaintext = cipher.decrypt(
                    group_id, object_id, priority, immutable, octets, buffer_of
                )
            except InvalidTag:
                continue
            payload = decode_plaintext(plaintext)
            if payload is not None:
                return payload
        self._failures[key_id] = (failures or 0) + 1
        location = Location(sealed.group_id, sealed.object_id)
        raise _refused(SealReason.SEAL, f"the seal of Object {location} is broken")

    def _of(self, key_id: int) -> tuple[TrackCipher, ...]:
        """Return the ciphers of a Key ID; only of those that are held is anything kept."""
        ciphers = self._ciphers.get(key_id)
        if ciphers is None:
            keys = self._keys.with_id(key_id)
            ciphers = tuple(TrackCipher(key, self._track) for key in keys)
            if ciphers:
                self._ciphers[key_id] = ciphers
        return ciphers


def _plaintext(parts: Sequence[Buffer], padded_bytes: int, scratch: bytearray | None) -> Octets:
    length = 0
    for part in parts:
        length += memoryview(part).nbytes
    head = encode_vi64(length)
    missing = padded_bytes - len(head) - length
    filler = (encode_filler(missing),) if missing > 0 else ()
    pieces = (head, *parts, *filler)
    if length < _SCRATCH_BYTES or scratch is None or filler or len(scratch) < len(head) + length:
        return b"".join(pieces)
    whole = memoryview(scratch)[: len(head) + length]
    offset = 0
    for piece in pieces:
        octets = memoryview(piece).cast("B")
        end = offset + octets.nbytes
        whole[offset:end] = octets
        offset = end
    return whole


def _refused(reason: SealReason, text: str) -> IntegrityError:
    return IntegrityError(reason, text)
