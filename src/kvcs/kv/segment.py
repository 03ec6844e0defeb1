"""One segment of a publication, as its manifest describes it.

Track Names that are not of the grammar are kept in their list and never selected; unknown
members are kept in `extra` and mean nothing.

Source: KVCS draft, "Manifest Track".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self, cast

from kvcs.errors import DataError, ManifestError
from kvcs.kv.naming import DataTrackName
from kvcs.kv.strict_json import JsonValue, Members, encode_json
from kvcs.names import Location

__all__ = ("ObjectDigests", "Segment")

type ObjectDigests = Mapping[str, tuple[tuple[bytes, ...], ...]]

_DIGEST_BYTES: Final = 32
# "kv." and ".s" around a codec name of 32 and a number of 10 digits fit.
_MAX_TRACK_NAME_BYTES: Final = 64
_MEMBERS: Final = frozenset(
    (
        "segment",
        "first_block",
        "blocks",
        "block_keys_sha256",
        "tracks",
        "complete",
        "object_digests",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A contiguous range of complete blocks, published by one pass over the layers.

    Attributes:
        segment: Number of the segment, from 0.
        first_block: Absolute index of its first block.
        blocks: Number of its blocks, above zero.
        block_keys_sha256: SHA-256 of its concatenated Block Keys.
        tracks: Names of its tracks, in the publisher's order of preference.
        complete: Whether every layer has been published.
        object_digests: For each listed data track the Data Digests of each completed Group, in
            the order of Objects. May lack tracks, or all of them.
        extra: Unknown members.

    Raises:
        ManifestError: The parts contradict each other.
    """

    segment: int
    first_block: int
    blocks: int
    block_keys_sha256: bytes
    tracks: tuple[str, ...]
    complete: bool = False
    object_digests: ObjectDigests = field(default_factory=dict[str, tuple[tuple[bytes, ...], ...]])
    extra: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])

    def __post_init__(self) -> None:
        if self.blocks < 1 or self.first_block < 0:
            raise self._wrong(f"{self.blocks} blocks from block {self.first_block}")
        if len(self.block_keys_sha256) != _DIGEST_BYTES:
            raise self._wrong("block_keys_sha256 is not 32 octets")
        if len(set(self.tracks)) != len(self.tracks):
            raise self._wrong("a track is listed twice")
        if any(name.segment != self.segment for name in self.data_tracks()):
            raise self._wrong("lists a track of another segment")
        if not self.object_digests.keys() <= set(self.tracks):
            raise self._wrong("object_digests names a track that is not listed")
        for track, groups in self.object_digests.items():
            if any(len(group) != self.blocks for group in groups):
                raise self._wrong(f"a Group of {track} has not {self.blocks} digests")

    def _wrong(self, text: str) -> ManifestError:
        return ManifestError(f"segment {self.segment}: {text}")

    @property
    def end_block(self) -> int:
        """Absolute index of the block after the last."""
        return self.first_block + self.blocks

    def data_tracks(self) -> tuple[DataTrackName, ...]:
        """Return the listed tracks that are data tracks of the grammar, in order."""
        return tuple(name for track in self.tracks if (name := _data_track(track)) is not None)

    def listed_layers(self, tracks: Sequence[DataTrackName]) -> int:
        """Return how many first layers have their digests listed in every one of `tracks`."""
        return min((len(self.object_digests.get(str(name), ())) for name in tracks), default=0)

    def digest(self, track: DataTrackName, location: Location) -> bytes | None:
        """Return the listed Data Digest of an Object, or None when none is listed (yet)."""
        groups = self.object_digests.get(str(track), ())
        if location.group_id >= len(groups) or location.object_id >= self.blocks:
            return None
        return groups[location.group_id][location.object_id]

    def with_layer(self, digests: Mapping[str, Sequence[bytes]]) -> Self:
        """Return this segment with the digests of one more completed layer.

        Args:
            digests: For each track the Data Digests of its next Group, in the order of Objects.
        """
        added = {
            track: (*self.object_digests.get(track, ()), tuple(group))
            for track, group in digests.items()
        }
        return replace(self, object_digests={**self.object_digests, **added})

    def completed(self) -> Self:
        """Return this segment marked complete."""
        return replace(self, complete=True)

    @classmethod
    def parse(cls, members: Members, *, max_tracks: int) -> Self:
        """Make a segment of the members of a JSON object.

        Raises:
            ValueError: A member is missing or of the wrong type.
            ManifestError: The members contradict each other.
        """
        tracks = members.take_array("tracks")
        if len(tracks) > max_tracks:
            raise ValueError(f"{members.where}: {len(tracks)} tracks, at most {max_tracks}")
        digests = members.take_object("object_digests") if "object_digests" in members else {}
        return cls(
            segment=members.take("segment", int),
            first_block=members.take("first_block", int),
            blocks=members.take("blocks", int),
            block_keys_sha256=b"".join(_parse_digests([members.take("block_keys_sha256", str)])),
            tracks=tuple(map(_parse_track, tracks)),
            complete=members.take("complete", bool),
            object_digests={track: _parse_groups(groups) for track, groups in digests.items()},
            extra=members.others(_MEMBERS),
        )

    def encode_json(self) -> str:
        """Encode as a JSON object; equal segments give equal text."""
        head: dict[str, JsonValue] = {
            "segment": self.segment,
            "first_block": self.first_block,
            "blocks": self.blocks,
            "block_keys_sha256": self.block_keys_sha256.hex(),
            "tracks": list(self.tracks),
            "complete": self.complete,
            **dict(sorted(self.extra.items())),
        }
        digests = ",".join(
            f"{encode_json(track)}:[{','.join(map(_encode_group, self.object_digests[track]))}]"
            for track in self.tracks
            if track in self.object_digests
        )
        return f'{encode_json(head)[:-1]},"object_digests":{{{digests}}}}}'


def _data_track(track: str) -> DataTrackName | None:
    try:
        return DataTrackName.parse(track.encode())
    except DataError:
        return None


def _parse_track(value: JsonValue) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TRACK_NAME_BYTES:
        raise ValueError(f"tracks: not a Track Name of up to {_MAX_TRACK_NAME_BYTES} octets")
    return value


def _parse_groups(value: JsonValue) -> tuple[tuple[bytes, ...], ...]:
    if not isinstance(value, list):
        raise ValueError("object_digests: not an array")  # noqa: TRY004 - input, not a bug
    return tuple(map(_parse_digests, value))


def _parse_digests(value: JsonValue) -> tuple[bytes, ...]:
    """Parse an array of hex digests, at once since there are very many of them."""
    if not isinstance(value, list) or not set(map(type, value)) <= {str}:
        raise ValueError("not an array of hex digests")
    texts = cast("list[str]", value)
    text = "".join(texts)
    packed = bytes.fromhex(text)
    # Writing back finds what fromhex lets pass: upper case and white space.
    if packed.hex() != text or not set(map(len, texts)) <= {2 * _DIGEST_BYTES}:
        raise ValueError("a digest is not 64 lower-case hex digits")
    return tuple([packed[at : at + _DIGEST_BYTES] for at in range(0, len(packed), _DIGEST_BYTES)])


def _encode_group(digests: Sequence[bytes]) -> str:
    quoted = b"".join(digests).hex("|", _DIGEST_BYTES).replace("|", '","')
    return f'["{quoted}"]'
