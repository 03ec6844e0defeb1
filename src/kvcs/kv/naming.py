"""Names of KVCS: the five fields of a publication's Track Namespace, and its Track Names.

The text form of a namespace, in URLs and logs, is that of `kvcs.names`.

Source: KVCS draft, "Track Namespace", "Track Names", "Objects" and "Discovering Publications".
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from kvcs.errors import DataError
from kvcs.kv.identity import BlockKey, CompatibilityId, PublicationId, ScopeId
from kvcs.names import FullTrackName, TrackNamespace

__all__ = (
    "MANIFEST",
    "MANIFEST_PRIORITY",
    "MAX_SEGMENT",
    "PROTOCOL_FIELD",
    "SHORT_ID_DIGITS",
    "SIGNED_MANIFEST",
    "Component",
    "DataTrackName",
    "PublicationName",
    "anchor_prefix",
    "candidate_prefixes",
    "publisher_priority",
)

PROTOCOL_FIELD: Final = b"kvcs-1"
MANIFEST: Final = b"manifest"
SIGNED_MANIFEST: Final = b"manifest.cose"
MANIFEST_PRIORITY: Final = 0
MAX_SEGMENT: Final = 2**32 - 1

# Two of a million publications of one scope share them in one case of 4,000.
SHORT_ID_DIGITS: Final = 8

_FIELD_BYTES: Final = (len(PROTOCOL_FIELD), 16, 32, 32, 16)
_DATA_TRACK: Final = re.compile(rb"(k|v|kv)\.([a-z0-9-]{1,32})\.s(0|[1-9][0-9]{0,9})")


class Component(IntEnum):
    """Kind of tensor that a data track carries (registry "KVCS Components")."""

    K = 1
    V = 2
    KV = 3

    @property
    def label(self) -> str:
        """Name as in Track Names: ``k``, ``v`` or ``kv``."""
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationName:
    """The identifiers of one publication.

    Attributes:
        scope_id: Scope ID, 16 octets.
        compatibility_id: Compatibility ID, 32 octets.
        anchor_key: Block Key of the last block of segment 0, 32 octets.
        publication_id: Publication ID, 16 octets, random for each production.

    Raises:
        DataError: An identifier has the wrong length.
    """

    scope_id: ScopeId
    compatibility_id: CompatibilityId
    anchor_key: BlockKey
    publication_id: PublicationId

    def __post_init__(self) -> None:
        _check_fields(self._fields())

    def __str__(self) -> str:
        return self.namespace().format()

    @property
    def short_id(self) -> str:
        """The first hex digits of the Publication ID, for people."""
        return self.publication_id.hex()[:SHORT_ID_DIGITS]

    def _fields(self) -> tuple[bytes, ...]:
        return (
            PROTOCOL_FIELD,
            self.scope_id,
            self.compatibility_id,
            self.anchor_key,
            self.publication_id,
        )

    def namespace(self) -> TrackNamespace:
        """Return the Track Namespace of five fields."""
        return TrackNamespace(self._fields())

    def track(self, name: bytes) -> FullTrackName:
        """Return the Full Track Name of the track `name` of this publication."""
        return FullTrackName(self.namespace(), name)

    @classmethod
    def parse(cls, namespace: TrackNamespace) -> Self:
        """Take the identifiers out of a Track Namespace.

        Raises:
            DataError: Not the namespace of a KVCS publication.
        """
        _check_fields(namespace.fields)
        _, scope_id, compatibility_id, anchor_key, publication_id = namespace.fields
        return cls(
            scope_id=ScopeId(scope_id),
            compatibility_id=CompatibilityId(compatibility_id),
            anchor_key=BlockKey(anchor_key),
            publication_id=PublicationId(publication_id),
        )


@dataclass(frozen=True, slots=True)
class DataTrackName:
    """Name of a data track, for example ``k.raw.s0``.

    Attributes:
        component: Kind of tensor.
        codec: Name of the codec, 1 to 32 of ``a-z 0-9 -``.
        segment: Number of the segment, 0..2^32-1.

    Raises:
        DataError: Not a Track Name of the grammar.
    """

    component: Component
    codec: str
    segment: int

    def __post_init__(self) -> None:
        _match(self.format())

    def __str__(self) -> str:
        return f"{self.component.label}.{self.codec}.s{self.segment}"

    def format(self) -> bytes:
        """Return the Track Name."""
        return str(self).encode()

    @classmethod
    def parse(cls, name: bytes) -> Self:
        """Parse a Track Name, matched exactly.

        Raises:
            DataError: Not a data track.
        """
        component, codec, segment = _match(name).groups()
        return cls(Component[component.decode().upper()], codec.decode(), int(segment))


def anchor_prefix(
    scope_id: ScopeId, compatibility_id: CompatibilityId, anchor_key: BlockKey
) -> TrackNamespace:
    """Return the prefix that covers all publications of one token prefix."""
    return TrackNamespace((PROTOCOL_FIELD, scope_id, compatibility_id, anchor_key))


def candidate_prefixes(
    scope_id: ScopeId, compatibility_id: CompatibilityId, block_keys: Sequence[BlockKey]
) -> tuple[TrackNamespace, ...]:
    """Return the prefixes under which a cache of these blocks may be found, longest first."""
    return tuple(
        anchor_prefix(scope_id, compatibility_id, block_key) for block_key in reversed(block_keys)
    )


def publisher_priority(layer_index: int, layers: int) -> int:
    """Return the Publisher Priority of a Group: earlier layers are more urgent (lower).

    For ``layer_index == layers``, where End of Track stands, it is 128.
    """
    return 128 * layer_index // layers


def _check_fields(fields: tuple[bytes, ...]) -> None:
    if tuple(map(len, fields)) != _FIELD_BYTES or fields[0] != PROTOCOL_FIELD:
        raise DataError(
            f"not a KVCS publication: expected {PROTOCOL_FIELD.decode()!r} and fields of "
            f"16, 32, 32 and 16 octets, got {len(fields)} fields of {[*map(len, fields)]} octets"
        )


def _match(name: bytes) -> re.Match[bytes]:
    match = _DATA_TRACK.fullmatch(name)
    if match is None or int(match[3]) > MAX_SEGMENT:
        raise DataError(f"not the Track Name of a KVCS data track: {name[:64]!r}")
    return match
