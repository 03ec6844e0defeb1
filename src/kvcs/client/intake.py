"""From an Object to verified bytes in the caller's memory.

Theory of operation. A `TrackIntake` belongs to one data track of one segment. `receive` takes
every Object of that track, wherever it came from (subscription, fill, FETCH, another relay),
and checks it completely before one octet of it is written: place, header, digest, and the
digest that the manifest lists, if it lists one yet. A manifest that comes later is compared
with what was accepted. A block is written once; the same block with other bytes, or a manifest
that lists another digest, means that the publication contradicts itself, and `on_discard`
says so. Objects that fail a check count by reason and stay missing.

Source:
    KVCS, "Object Payload" and "Manifest Track".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from kvcs.client.ledger import BlockState, TrackLedger
from kvcs.client.memory import Placement
from kvcs.client.selection import WantedSegment
from kvcs.client.verdict import Counters
from kvcs.client.verifier import Verifier
from kvcs.errors import DataError, IntegrityError
from kvcs.kv.codecs import codec
from kvcs.kv.layout import Layout
from kvcs.kv.manifest import Manifest
from kvcs.kv.naming import Component, DataTrackName
from kvcs.kv.payload import (
    HEADER_BYTES,
    BlockPlace,
    BlockSeries,
    IntegrityReason,
)
from kvcs.kv.segment import Segment
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.wire.object import Object

__all__ = ("IntakeContext", "TrackIntake")

# The Data Digest is the last field of the header.
_DIGEST: Final = slice(HEADER_BYTES - 32, HEADER_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeContext:
    """What all tracks of one retrieval share.

    Attributes:
        layout: Geometry of the publication.
        placement: The caller's memory.
        counters: Counts of the retrieval.
        verifier: Where checks run.
        on_verified: Called with the layer, and whether this track now has all of it, after each
            block that was verified and put in place.
        on_settled: Called when a track that had checks pending has none any more.
        on_discard: Called when the publication contradicts itself.
    """

    layout: Layout
    placement: Placement
    counters: Counters
    verifier: Verifier
    on_verified: Callable[[int, bool], None]
    on_settled: Callable[[], None]
    on_discard: Callable[[DataError], None]


class TrackIntake:
    """Checks the Objects of one data track and puts their Data in place.

    Args:
        context: What all tracks of the retrieval share.
        wanted: What is taken of the segment.
        name: The data track, one of ``wanted.tracks``.
        layers: Wanted layer indexes, ascending.
        manifest: The newest manifest that is known.
    """

    def __init__(
        self,
        context: IntakeContext,
        wanted: WantedSegment,
        name: DataTrackName,
        *,
        layers: Sequence[int],
        manifest: Manifest,
    ) -> None:
        self.name: Final = name
        self.wanted: Final = wanted
        self.ledger: Final = TrackLedger(layers, wanted.wanted_blocks)
        self.pending = 0
        self._context = context
        self._codec = codec(name.codec)
        self._series = {layer_index: self._series_of(layer_index) for layer_index in layers}
        self._segment = manifest.segments[wanted.segment]
        self._listed: Sequence[Sequence[bytes]] = ()
        self.take_manifest(manifest)

    def __repr__(self) -> str:
        return f"<TrackIntake {self.name} {self.ledger!r}>"

    @property
    def layers(self) -> int:
        """Number of layers of the model, wanted or not."""
        return self._context.layout.layers

    @property
    def is_unlisted(self) -> bool:
        """The segment is complete, and its manifest lists no digests of this track."""
        segment = self.segment
        return segment.complete and str(self.name) not in segment.object_digests

    @property
    def segment(self) -> Segment:
        """The segment as the newest manifest has it."""
        return self._segment

    def take_manifest(self, manifest: Manifest) -> None:
        """Use a newer manifest, and compare the digests that it lists with what was accepted.

        Raises:
            IntegrityError: A block that was accepted has another digest.
        """
        self._segment = manifest.segments[self.wanted.segment]
        self._listed = self._segment.object_digests.get(str(self.name), ())
        for layer_index, digests in enumerate(self._listed):
            self.ledger.confirm(layer_index, digests)

    def receive(self, obj: Object) -> None:
        """Check one Object; a Normal one that is wanted ends up in the caller's memory."""
        if obj.status is not ObjectStatus.NORMAL or not self._context.placement.is_open:
            return
        context, layer_index, block_index = self._context, obj.group_id, obj.object_id
        size = len(obj.payload)
        context.counters.payload_bytes += size
        if layer_index >= context.layout.layers or block_index >= self.wanted.blocks:
            context.counters.reject(IntegrityReason.LOCATION)
        elif not self.ledger.is_wanted(layer_index, block_index):
            context.counters.excess += 1
        elif context.verifier.is_immediate(size):
            self._settle(obj, self._check(obj))
        else:
            self.pending += 1
            context.verifier.run(
                partial(self._check, obj), partial(self._settle_pending, obj), size
            )

    def _series_of(self, layer_index: int) -> BlockSeries:
        """Say what the Objects of a layer must be; digests are compared when they are placed."""
        layout, component = self._context.layout, self.name.component
        first = BlockPlace(
            component=component,
            codec=self._codec.number,
            layer_index=layer_index,
            block_index=0,
            token_start=self.wanted.first_block * layout.block_tokens,
            token_count=layout.block_tokens,
        )
        return BlockSeries(first, self._codec.data_bytes(layout, component, layer_index))

    def _check(self, obj: Object) -> memoryview | DataError:
        """Verify and decode; runs anywhere, and reports failure as a value."""
        layer_index = obj.group_id
        try:
            data = self._series[layer_index].verify(obj.payload, obj.object_id)
            raw = self._codec.decode(
                data, self._context.layout, component=self.name.component, layer_index=layer_index
            )
            return memoryview(raw)
        except DataError as error:
            return error

    def _settle_pending(self, obj: Object, outcome: memoryview | DataError) -> None:
        """Act on the outcome of a check that ran elsewhere, and that others may wait for."""
        self.pending -= 1
        self._settle(obj, outcome)
        if not self.pending:
            self._context.on_settled()

    def _settle(self, obj: Object, outcome: memoryview | DataError) -> None:
        """Act on the outcome of a check; runs in the event loop."""
        if not self._context.placement.is_open:
            return
        if isinstance(outcome, DataError):
            self._reject(obj, outcome.reason if isinstance(outcome, IntegrityError) else "decoding")
        else:
            self._settle_genuine(obj, outcome)

    def _settle_genuine(self, obj: Object, data: memoryview) -> None:
        layer_index, block_index = obj.group_id, obj.object_id
        digest = obj.payload[_DIGEST]
        known = self.ledger.digest(layer_index, block_index)
        if known is not None:
            self._settle_duplicate(obj, same=known == digest)
            return
        listed = self._listed[layer_index] if layer_index < len(self._listed) else None
        if listed is not None and listed[block_index] != digest:
            self._reject(obj, IntegrityReason.LISTED_DIGEST)
            return
        self._place(obj, data)
        counters = self._context.counters
        counters.verified += 1
        counters.verified_bytes += data.nbytes
        is_whole = self.ledger.accept(layer_index, block_index, digest)
        self._context.on_verified(layer_index, is_whole)

    def _reject(self, obj: Object, reason: str) -> None:
        self._context.counters.reject(reason)
        blocks = range(obj.object_id, obj.object_id + 1)
        self.ledger.mark(obj.group_id, blocks, BlockState.REJECTED)

    def _settle_duplicate(self, obj: Object, *, same: bool) -> None:
        if same:
            self._context.counters.duplicate += 1
            return
        text = f"track {self.name} has two different Objects at {obj.location}"
        self._context.on_discard(IntegrityError("contradiction", text))

    def _place(self, obj: Object, data: memoryview) -> None:
        """Copy raw Data of one block to its place; jointly encoded Data is split."""
        context, layer_index = self._context, obj.group_id
        component = self.name.component
        parts = (Component.K, Component.V) if component is Component.KV else (component,)
        block = self.wanted.first_block + obj.object_id
        offset = 0
        for part in parts:
            size = context.layout.data_bytes(part, layer_index)
            view = context.placement.view(part, layer_index)
            view[block * size : (block + 1) * size] = data[offset : offset + size]
            offset += size
