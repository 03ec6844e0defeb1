"""The cipher suites of Secure Objects, and the octets that each makes of a plaintext.

AES-GCM is `cryptography`'s. The suites of AES-CTR with a truncated HMAC take the input of the tag
from the vectors of the draft: AAD, nonce, ciphertext. RFC 9605, which the draft refers to, has
lengths in front of them.

Source: draft-ietf-moq-secure-objects, "Cipher Suites".
"""

import hmac
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256, SHA512, HashAlgorithm

__all__ = ("NONCE_BYTES", "Aead", "CipherSuite", "Octets")

NONCE_BYTES: Final = 12

_CTR_KEY_BYTES: Final = 16
# AES-CTR counts blocks behind the nonce.
_FIRST_BLOCK: Final = bytes(4)


type Octets = bytes | bytearray | memoryview


class _Parameters(NamedTuple):
    hash_algorithm: HashAlgorithm
    secret_bytes: int
    key_bytes: int
    tag_bytes: int
    max_failures: int


class CipherSuite(IntEnum):
    """Cipher suites by their registered number.

    0x0004 is the default. 0x0001 and 0x0002 have short tags, and their tags differ between the
    text of the draft and its vectors, so that an `ObjectKey` takes them only when told to.
    """

    AES_128_CTR_HMAC_SHA256_80 = 0x0001
    AES_128_CTR_HMAC_SHA256_64 = 0x0002
    AES_128_GCM_SHA256_128 = 0x0004
    AES_256_GCM_SHA512_128 = 0x0005

    @property
    def secret_bytes(self) -> int:
        """Least octets of a base key: the strength of the cipher."""
        return _PARAMETERS[self].secret_bytes

    @property
    def key_bytes(self) -> int:
        """Octets of the derived key (Nk)."""
        return _PARAMETERS[self].key_bytes

    @property
    def tag_bytes(self) -> int:
        """Octets by which a ciphertext is longer than its plaintext (Nt)."""
        return _PARAMETERS[self].tag_bytes

    @property
    def hash_algorithm(self) -> HashAlgorithm:
        """Hash of the key derivation."""
        return _PARAMETERS[self].hash_algorithm

    @property
    def max_failures(self) -> int:
        """Failed tags after which a derived key opens nothing more (AEAD limits, 2^-57)."""
        return _PARAMETERS[self].max_failures

    @property
    def has_full_tag(self) -> bool:
        """The tag is a whole authenticator of 16 octets."""
        return _PARAMETERS[self].tag_bytes == 16

    def aead(self, key: bytes) -> "Aead":
        """Return the cipher under a derived key of `key_bytes` octets."""
        if self.has_full_tag:
            return AESGCM(key)
        return _CtrHmac(key, self.tag_bytes)


# Of so many forged tags one is accepted with a probability of 2^-57 at most: 2^57 times fewer
# than there are tags. For GCM, the limit of DTLS 1.3 (RFC 9147, Section 4.5.3).
_PARAMETERS: Final = {
    CipherSuite.AES_128_CTR_HMAC_SHA256_80: _Parameters(SHA256(), 16, 48, 10, 2**23),
    CipherSuite.AES_128_CTR_HMAC_SHA256_64: _Parameters(SHA256(), 16, 48, 8, 2**7),
    CipherSuite.AES_128_GCM_SHA256_128: _Parameters(SHA256(), 16, 16, 16, 2**36),
    CipherSuite.AES_256_GCM_SHA512_128: _Parameters(SHA512(), 32, 32, 16, 2**36),
}


class Aead(Protocol):
    """Authenticated encryption under one key."""

    def encrypt(self, nonce: bytes, data: Octets, associated_data: bytes, /) -> bytes:
        """Return the ciphertext with its tag."""
        ...

    def decrypt_into(
        self, nonce: bytes, data: Octets, associated_data: bytes, buf: bytearray, /
    ) -> int:
        """Put the plaintext into `buf`, which it fills; raise `InvalidTag` if data was changed."""
        ...


class _CtrHmac:
    """AES-128-CTR, then HMAC-SHA-256, cut to `tag_bytes` octets."""

    def __init__(self, key: bytes, tag_bytes: int) -> None:
        self._cipher_key = algorithms.AES(key[:_CTR_KEY_BYTES])
        self._tag_key = key[_CTR_KEY_BYTES:]
        self._tag_bytes = tag_bytes

    def encrypt(self, nonce: bytes, data: Octets, associated_data: bytes, /) -> bytes:
        ciphertext = self._apply(nonce, bytes(data))
        return ciphertext + self._tag(nonce, ciphertext, associated_data)

    def decrypt_into(
        self, nonce: bytes, data: Octets, associated_data: bytes, buf: bytearray, /
    ) -> int:
        octets = bytes(data)
        ciphertext, tag = octets[: -self._tag_bytes], octets[-self._tag_bytes :]
        if not hmac.compare_digest(tag, self._tag(nonce, ciphertext, associated_data)):
            raise InvalidTag
        buf[:] = self._apply(nonce, ciphertext)
        return len(buf)

    def _apply(self, nonce: bytes, data: bytes) -> bytes:
        keystream = Cipher(self._cipher_key, modes.CTR(nonce + _FIRST_BLOCK)).encryptor()
        return keystream.update(data) + keystream.finalize()

    def _tag(self, nonce: bytes, ciphertext: bytes, associated_data: bytes) -> bytes:
        covered = b"".join((associated_data, nonce, ciphertext))
        return hmac.digest(self._tag_key, covered, "sha256")[: self._tag_bytes]
