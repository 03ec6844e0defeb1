"""Which segments, blocks and tracks of a publication a consumer takes.

A prefix spans segments in order, from block 0. How far the publication's tokens are the
consumer's is decided by `kvcs.kv.consistency.matching_blocks`; a consumer without tokens (it
was given the exact publication) vouches for all of them.

Source:
    KVCS, "Manifest Track" and "Retrieval of Completed Caches".
"""

from dataclasses import dataclass

from kvcs.errors import KeyMismatch, UnsupportedEncoding
from kvcs.kv.consistency import matching_blocks, select_tracks
from kvcs.kv.identity import BlockKey
from kvcs.kv.manifest import Manifest
from kvcs.kv.naming import DataTrackName
from kvcs.kv.segment import Segment

__all__ = ("Prefix", "WantedSegment")


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSegment:
    """What is taken of one segment.

    Attributes:
        segment: Segment number.
        first_block: Absolute index of its first block.
        blocks: Blocks of the segment as published.
        wanted_blocks: Blocks 0..wanted_blocks-1 of the segment are wanted.
        tracks: The k and v tracks of one codec, or one kv track.
    """

    segment: int
    first_block: int
    blocks: int
    wanted_blocks: int
    tracks: tuple[DataTrackName, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """The prefix that a caller wants of a publication.

    Attributes:
        keys: The consumer's own Block Keys from block 0; empty when it knows no tokens.
        blocks: Wanted blocks, or None for all that the first manifest lists and that match.
        is_vouched: The caller knows by other means (an index, a human) that the publication's
            tokens start with the consumer's.
        allow_lossy: Tracks of lossy codecs may be selected.
    """

    keys: tuple[BlockKey, ...] = ()
    blocks: int | None = None
    is_vouched: bool = False
    allow_lossy: bool = False

    def segments(self, manifest: Manifest) -> tuple[WantedSegment, ...]:
        """Return what to take of the segments that the manifest lists, in order.

        Raises:
            KeyMismatch: Not even segment 0 belongs to the consumer's tokens.
            UnsupportedEncoding: A needed segment offers no tracks that may be used.
        """
        matching = self._matching_blocks(manifest)
        if manifest.segments and not matching:
            raise KeyMismatch("the publication covers other tokens than those that are wanted")
        end = matching if self.blocks is None else min(matching, self.blocks)
        return tuple(
            WantedSegment(
                segment=segment.segment,
                first_block=segment.first_block,
                blocks=segment.blocks,
                wanted_blocks=min(segment.end_block, end) - segment.first_block,
                tracks=self._tracks(segment),
            )
            for segment in manifest.segments
            if segment.first_block < end
        )

    def _matching_blocks(self, manifest: Manifest) -> int:
        if self.is_vouched and not self.keys:
            return manifest.blocks
        return matching_blocks(manifest, self.keys, vouched=self.is_vouched)

    def _tracks(self, segment: Segment) -> tuple[DataTrackName, ...]:
        tracks = select_tracks(segment, allow_lossy=self.allow_lossy)
        if tracks is None:
            raise UnsupportedEncoding(
                f"segment {segment.segment} offers no k and v tracks of a codec that may be "
                "used here"
            )
        return tracks
