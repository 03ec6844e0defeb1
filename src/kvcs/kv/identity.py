"""Who may share a KV cache: Scope ID, Compatibility ID and Block Keys.

Every identifier is keyed with the scope key and computed over a canonical encoding, so it is
the same in every process and language, and says nothing to those who lack the key. How they
are computed is a profile; the rest of kvcs treats them as opaque octets.

Source: KVCS draft, "Track Namespace"; KVSP (the Scope ID as published; the Compatibility ID
and the Block Keys are provisional).
"""

import hashlib
import hmac
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NewType, Protocol

from kvcs.errors import ConfigError, DataError
from kvcs.kv.descriptor import Descriptor, Dtype

__all__ = (
    "KVSP_PROVISIONAL",
    "MAX_TOKEN",
    "BlockKey",
    "CompatibilityId",
    "Descriptor",
    "Dtype",
    "IdentityProfile",
    "PublicationId",
    "ScopeId",
    "ScopeKey",
    "block_keys_sha256",
    "parse_scope_key",
    "reusable_blocks",
)

ScopeId = NewType("ScopeId", bytes)
CompatibilityId = NewType("CompatibilityId", bytes)
BlockKey = NewType("BlockKey", bytes)
PublicationId = NewType("PublicationId", bytes)

SCOPE_KEY_BYTES: Final = 32
MAX_TOKEN: Final = 2**32 - 1

_HEX_KEY: Final = re.compile(rb"([0-9A-Fa-f]{64})(?:\r?\n)?")


@dataclass(frozen=True, slots=True)
class ScopeKey:
    """The secret that the members of a scope share; never shown.

    Attributes:
        octets: The key, exactly 32 octets.

    Raises:
        ConfigError: The key has another length.
    """

    octets: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.octets) != SCOPE_KEY_BYTES:
            raise ConfigError("scope key", "32 octets", f"{len(self.octets)} octets")


def parse_scope_key(content: bytes) -> ScopeKey:
    """Make a scope key of a key file: 32 octets, or 64 hex digits and perhaps a line end.

    Raises:
        ConfigError: Neither form.
    """
    if match := _HEX_KEY.fullmatch(content):
        return ScopeKey(bytes.fromhex(match[1].decode()))
    if len(content) != SCOPE_KEY_BYTES:
        raise ConfigError("scope key", "32 octets or 64 hex digits", f"{len(content)} octets")
    return ScopeKey(content)


class IdentityProfile(Protocol):
    """How identifiers are computed."""

    @property
    def name(self) -> str:
        """Name in configuration; never on the wire."""
        ...

    def scope_id(self, scope_key: ScopeKey) -> ScopeId:
        """Return the Scope ID, 16 octets."""
        ...

    def compatibility_id(self, scope_key: ScopeKey, descriptor: Descriptor) -> CompatibilityId:
        """Return the Compatibility ID of `descriptor`, 32 octets."""
        ...

    def block_keys(
        self,
        scope_key: ScopeKey,
        compatibility_id: CompatibilityId,
        tokens: Sequence[int],
        *,
        block_tokens: int,
    ) -> tuple[BlockKey, ...]:
        """Return the Block Keys, 32 octets each, of the complete blocks of `tokens`.

        Raises:
            DataError: A token is not an integer 0..2^32-1.
        """
        ...


class _KvspProvisional:
    """Scope ID as KVSP has it; the other identifiers in its manner, until its text is known."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return "kvsp-provisional"

    def scope_id(self, scope_key: ScopeKey) -> ScopeId:
        return ScopeId(hashlib.sha256(b"KVSP-SCOPE-1\0" + scope_key.octets).digest()[:16])

    def compatibility_id(self, scope_key: ScopeKey, descriptor: Descriptor) -> CompatibilityId:
        # Keyed, or a relay could find any public model in a dictionary of descriptors.
        message = b"KVSP-COMPAT-1\0" + descriptor.canonical()
        return CompatibilityId(hmac.digest(scope_key.octets, message, "sha256"))

    def block_keys(
        self,
        scope_key: ScopeKey,
        compatibility_id: CompatibilityId,
        tokens: Sequence[int],
        *,
        block_tokens: int,
    ) -> tuple[BlockKey, ...]:
        head = b"KVSP-BLOCK-1\0" + compatibility_id
        pack = struct.Struct(f">{block_tokens + 1}I").pack
        block_key = bytes(32)
        keys: list[BlockKey] = []
        for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
            try:
                block = pack(block_tokens, *tokens[start : start + block_tokens])
            except struct.error:
                raise _bad_token(tokens) from None
            block_key = hmac.digest(scope_key.octets, head + block_key + block, "sha256")
            keys.append(BlockKey(block_key))
        return tuple(keys)


KVSP_PROVISIONAL: Final[IdentityProfile] = _KvspProvisional()


def block_keys_sha256(block_keys: Sequence[BlockKey]) -> bytes:
    """Return the digest by which a manifest names the Block Keys of a segment."""
    return hashlib.sha256(b"".join(block_keys)).digest()


def reusable_blocks(tokens: int, *, block_tokens: int) -> int:
    """Return how many blocks an engine looks for, so that one token is left to compute.

    Args:
        tokens: Number of tokens of the prompt.
        block_tokens: Tokens of one block.
    """
    return max(0, tokens - 1) // block_tokens


def _bad_token(tokens: Sequence[int]) -> DataError:
    position = next(position for position, token in enumerate(tokens) if not _is_u32(token))
    token = tokens[position]
    return DataError(f"token {position} is {token!r}, not an integer 0..{MAX_TOKEN}")


def _is_u32(token: int) -> bool:
    try:
        struct.pack(">I", token)
    except struct.error:
        return False
    return True
