"""The manifest: what a publication holds, which layers are complete, and their digests.

A manifest is a value. Signed ones say which publication and version they are (`Binding`): the
JSON of the draft names neither, so that the signed manifest of one publication would verify
under the namespace of another. A publisher derives each version from the one before
(`with_segment`, `Segment.with_layer`), so versions only add. A consumer parses a version under
limits; that it fits a publication and the version before is checked in `kvcs.kv.consistency`.

Source: KVCS draft, "Manifest Track".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

from kvcs.errors import DataError, ManifestError, UnsupportedEncoding
from kvcs.kv.descriptor import Descriptor
from kvcs.kv.identity import BlockKey, PublicationId
from kvcs.kv.naming import PublicationName
from kvcs.kv.segment import Segment
from kvcs.kv.strict_json import JsonLimits, JsonValue, Members, decode_json, encode_json

__all__ = (
    "DEFAULT_LIMITS",
    "Binding",
    "Manifest",
    "ManifestCadence",
    "ManifestLimits",
    "Segment",
    "parse_manifest",
)

_FORMAT: Final = 1
_MEMBERS: Final = frozenset(
    ("kvcs", "compat", "layers", "block_tokens", "deterministic", "segments")
)
_BINDING_MEMBERS: Final = frozenset(("publication", "anchor", "version"))
_PUBLICATION: Final = re.compile(r"[0-9a-f]{32}")
_ANCHOR: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestLimits:
    """Bounds on a manifest of untrusted origin.

    Attributes:
        max_bytes: Octets of the JSON text; as large as the largest Object of a session.
        max_depth: Nesting; six are needed.
        max_values: JSON values, nearly all of them Data Digests, of which no more fit `max_bytes`.
        max_segments: Segments, one for each prefill pass.
        max_tracks: Tracks of one segment.
        max_blocks: Blocks of all segments together.
    """

    max_bytes: int = 16 * 2**20
    max_depth: int = 16
    max_values: int = 2**18
    max_segments: int = 4096
    max_tracks: int = 32
    max_blocks: int = 2**20


DEFAULT_LIMITS: Final = ManifestLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Which publication, and which version of its manifest, a manifest is of.

    Attributes:
        publication: Publication ID; member ``publication``, hex.
        anchor: Anchor Key; member ``anchor``, hex.
        version: Group ID of the version; member ``version``.
    """

    publication: PublicationId
    anchor: BlockKey
    version: int

    @classmethod
    def to(cls, name: PublicationName, version: int) -> Self:
        """Bind to one version of the manifest of the publication `name`."""
        return cls(publication=name.publication_id, anchor=name.anchor_key, version=version)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the members."""
        return {
            "publication": self.publication.hex(),
            "anchor": self.anchor.hex(),
            "version": self.version,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One version of the manifest of a publication.

    Attributes:
        compat: The Compatibility Descriptor.
        deterministic: Whether every publication of the same content has bit-identical Objects.
        segments: Segments, contiguous from block 0.
        binding: Which publication and version it is of, or None where it does not say so.
        extra: Unknown members.

    Raises:
        ManifestError: The segments contradict each other or the descriptor.
    """

    compat: Descriptor
    deterministic: bool = False
    segments: tuple[Segment, ...] = ()
    binding: Binding | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])

    def __post_init__(self) -> None:
        next_block = 0
        for number, segment in enumerate(self.segments):
            if segment.segment != number or segment.first_block != next_block:
                raise ManifestError(
                    f"segment {segment.segment} from block {segment.first_block} stands where "
                    f"segment {number} from block {next_block} belongs"
                )
            next_block = segment.end_block
            for track, groups in segment.object_digests.items():
                if len(groups) > self.layers or (segment.complete and len(groups) < self.layers):
                    raise ManifestError(
                        f"segment {number}: digests of {len(groups)} Groups in {track}, and the "
                        f"model has {self.layers} layers"
                    )

    @property
    def layers(self) -> int:
        """Number of layers, L."""
        return self.compat.layers

    @property
    def block_tokens(self) -> int:
        """Tokens of one block."""
        return self.compat.block_tokens

    @property
    def blocks(self) -> int:
        """Blocks of all segments."""
        return self.segments[-1].end_block if self.segments else 0

    @property
    def complete(self) -> bool:
        """Whether there are segments and all are complete."""
        return bool(self.segments) and all(segment.complete for segment in self.segments)

    def with_segment(self, segment: Segment) -> Self:
        """Return this manifest with `segment` added, or in the place of its older state."""
        number = segment.segment
        segments = (*self.segments[:number], segment, *self.segments[number + 1 :])
        return replace(self, segments=segments)

    def encode(self) -> bytes:
        """Encode as JSON; equal manifests give equal octets."""
        head: dict[str, JsonValue] = {
            "kvcs": _FORMAT,
            "compat": self.compat.to_json(),
            "layers": self.layers,
            "block_tokens": self.block_tokens,
            "deterministic": self.deterministic,
            **({} if self.binding is None else self.binding.to_json()),
            **dict(sorted(self.extra.items())),
        }
        segments = ",".join(segment.encode_json() for segment in self.segments)
        return f'{encode_json(head)[:-1]},"segments":[{segments}]}}'.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestCadence:
    """When a new version is due because a layer was completed in all tracks of a segment.

    A version is also due whenever a segment is added or completed.

    Attributes:
        first: Numbers of completed layers early on, so that the first wait is short.
        every: Distance afterwards; the draft asks for at most eight.
    """

    first: tuple[int, ...] = (1, 2, 4)
    every: int = 8

    def due(self, completed_layers: int) -> bool:
        """Tell whether a version is due now that `completed_layers`, 1 or more, are complete."""
        return completed_layers in self.first or completed_layers % self.every == 0


def parse_manifest(
    data: bytes | bytearray | memoryview, limits: ManifestLimits = DEFAULT_LIMITS
) -> Manifest:
    """Parse one version, of untrusted origin, in bounded time and memory.

    Raises:
        ManifestError: Not strict JSON, beyond a limit, incomplete, or contradicting itself.
        UnsupportedEncoding: Of a format, or with a dtype, that this build does not read.
    """
    json_limits = JsonLimits(
        max_bytes=limits.max_bytes, max_depth=limits.max_depth, max_values=limits.max_values
    )
    try:
        return _parse(Members(decode_json(data, json_limits), "manifest"), limits)
    except ValueError as error:
        raise ManifestError(str(error)) from error


def _parse(members: Members, limits: ManifestLimits) -> Manifest:
    if members.take("kvcs", int) != _FORMAT:
        raise UnsupportedEncoding(f"manifest of another format than {_FORMAT}")
    compat = _parse_compat(members.take_object("compat"))
    for name, expected in (("layers", compat.layers), ("block_tokens", compat.block_tokens)):
        if members.take(name, int) != expected:
            raise ManifestError(f"manifest: {name} differs from compat, which has {expected}")
    extra = members.others(_MEMBERS)
    binding = _parse_binding(extra)
    if binding is not None:
        extra = {name: value for name, value in extra.items() if name not in _BINDING_MEMBERS}
    return Manifest(
        compat=compat,
        deterministic=members.take("deterministic", bool),
        segments=_parse_segments(members.take_array("segments"), limits),
        binding=binding,
        extra=extra,
    )


def _parse_binding(members: Mapping[str, JsonValue]) -> Binding | None:
    """Return the binding where all of it is there; others may give its names another meaning."""
    publication, anchor = members.get("publication"), members.get("anchor")
    version = members.get("version")
    if not isinstance(publication, str) or not isinstance(anchor, str) or type(version) is not int:
        return None
    if not _PUBLICATION.fullmatch(publication) or not _ANCHOR.fullmatch(anchor) or version < 0:
        return None
    return Binding(
        publication=PublicationId(bytes.fromhex(publication)),
        anchor=BlockKey(bytes.fromhex(anchor)),
        version=version,
    )


def _parse_compat(members: dict[str, JsonValue]) -> Descriptor:
    try:
        return Descriptor.parse(members)
    except UnsupportedEncoding:
        raise
    except DataError as error:
        raise ManifestError(f"manifest: {error}") from error


def _parse_segments(values: list[JsonValue], limits: ManifestLimits) -> tuple[Segment, ...]:
    if len(values) > limits.max_segments:
        raise ManifestError(f"{len(values)} segments, at most {limits.max_segments}")
    segments: list[Segment] = []
    for number, value in enumerate(values):
        members = Members(value, f"segments[{number}]")
        segments.append(Segment.parse(members, max_tracks=limits.max_tracks))
    blocks = sum(segment.blocks for segment in segments)
    if blocks > limits.max_blocks:
        raise ManifestError(f"{blocks} blocks, at most {limits.max_blocks}")
    return tuple(segments)
