"""The cipher of one Track under one key: derivation, nonce and what is authenticated.

    secret = HKDF-Extract("", base key)
    key    = HKDF-Expand(secret, "MOQ 1.0 Secure Objects Secret key " name suite(2) key id(8), Nk)
    salt   = HKDF-Expand(secret, "MOQ 1.0 Secret salt "               name suite(2) key id(8), 12)
    nonce  = salt XOR (Group ID (64 bits), Object ID (32 bits))
    AAD    = Group ID (64 bits), Object ID (32 bits), Publisher Priority (8 bits),
             Serialized Immutable Properties

Track and publication are in the derivation, so they need not be in the AAD.

Source: draft-ietf-moq-secure-objects, "Key Derivation" and "Encryption".
"""

import struct
from collections.abc import Callable
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from kvcs.kv.sealing.key import ObjectKey
from kvcs.kv.sealing.suite import NONCE_BYTES, Octets
from kvcs.names import FullTrackName

__all__ = ("MAX_OBJECT_ID", "TrackCipher", "derive")

MAX_OBJECT_ID: Final = 2**32 - 1

_KEY_LABEL: Final = b"MOQ 1.0 Secure Objects Secret key "
_SALT_LABEL: Final = b"MOQ 1.0 Secret salt "
_OBJECT_ID_BITS: Final = 32
# Group ID, Object ID, Publisher Priority.
_PLACE: Final = struct.Struct(">QIB")


def derive(key: ObjectKey, track: FullTrackName) -> tuple[bytes, bytes]:
    """Return the key and the salt of a Track."""
    info = track.encode() + key.suite.to_bytes(2) + key.key_id.to_bytes(8)

    def expand(label: bytes, length: int) -> bytes:
        kdf = HKDF(key.suite.hash_algorithm, length, salt=None, info=label + info)
        return kdf.derive(key.secret)

    return expand(_KEY_LABEL, key.suite.key_bytes), expand(_SALT_LABEL, NONCE_BYTES)


class TrackCipher:
    """Encrypts and decrypts the plaintexts of one Track under one key.

    Args:
        key: The base key.
        track: Full Track Name.

    Attributes:
        key: The base key.
        tag_bytes: Octets by which a ciphertext is longer than its plaintext.
        max_failures: Failed tags after which it opens nothing more.
    """

    __slots__ = ("_aead", "_salt", "key", "max_failures", "tag_bytes")

    def __init__(self, key: ObjectKey, track: FullTrackName) -> None:
        self.key = key
        # Kept here, since a look-up by the suite takes a tenth of an encryption.
        self.tag_bytes = key.suite.tag_bytes
        self.max_failures = key.suite.max_failures
        derived, salt = derive(key, track)
        self._aead = key.suite.aead(derived)
        self._salt = int.from_bytes(salt)

    def __repr__(self) -> str:
        return f"<TrackCipher {self.key.suite.name}, Key ID {self.key.key_id}>"

    def encrypt(
        self, group_id: int, object_id: int, priority: int, immutable: bytes, plaintext: Octets
    ) -> bytes:
        """Encrypt a plaintext; the caller sees to it that no place is used twice.

        Args:
            group_id: Group ID.
            object_id: Object ID, at most `MAX_OBJECT_ID`.
            priority: Publisher Priority.
            immutable: Serialized Immutable Properties.
            plaintext: What to encrypt.
        """
        nonce = (self._salt ^ (group_id << _OBJECT_ID_BITS | object_id)).to_bytes(NONCE_BYTES)
        aad = _PLACE.pack(group_id, object_id, priority) + immutable
        return self._aead.encrypt(nonce, plaintext, aad)

    def decrypt(
        self,
        group_id: int,
        object_id: int,
        priority: int,
        immutable: bytes,
        ciphertext: Octets,
        buffer_of: Callable[[int], bytearray] = bytearray,
    ) -> bytearray:
        """Decrypt what `encrypt` made of the same arguments.

        Args:
            group_id: Group ID.
            object_id: Object ID.
            priority: Publisher Priority.
            immutable: Serialized Immutable Properties.
            ciphertext: What was made.
            buffer_of: Gives the memory for a plaintext of so many octets.

        Raises:
            InvalidTag: Anything differs.
        """
        size_bytes = len(ciphertext) - self.tag_bytes
        if size_bytes < 0:
            raise InvalidTag
        plaintext = buffer_of(size_bytes)
        nonce = (self._salt ^ (group_id << _OBJECT_ID_BITS | object_id)).to_bytes(NONCE_BYTES)
        aad = _PLACE.pack(group_id, object_id, priority) + immutable
        self._aead.decrypt_into(nonce, ciphertext, aad, plaintext)
        return plaintext
