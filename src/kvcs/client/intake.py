"""From an Object to verified bytes in the caller's memory.

Theory of operation. A `TrackIntake` belongs to one data track of one segment. `receive` takes
every Object of that track, wherever it came from (subscription, fill, FETCH, another relay),
and checks it completely before one octet of it is written: place, header, digest, and the
digest that the manifest lists, if it lists one yet. `begin` does the same with an Object that is
still on its way. A sealed Object is kept until it is whole, and opened elsewhere before it is
checked; until then it `is_opening`, neither verified nor missing. A manifest that comes later is
compared with what was accepted. A block is written once; the same block with other bytes, or a
manifest that lists another digest, means that the publication contradicts itself, and
`on_discard` says so. Objects that fail a check count by reason and stay missing.

Where authenticity is demanded, the manifest is signed and its list decides alone: what it does not
list yet is held elsewhere and not used (`kvcs.client.unlisted`), and an Object that differs from it
was changed on its way, which is no fault of the publication.

Source:
    KVCS, "Object Payload" and "Manifest Track".
"""

import hashlib
from collections.abc import Buffer, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from kvcs.client.arrival import BlockArrival, SealedArrival, WholePayload
from kvcs.client.ledger import BlockState, TrackLedger
from kvcs.client.memory import Placement
from kvcs.client.opening import Opened, TrackOpening
from kvcs.client.selection import WantedSegment
from kvcs.client.unlisted import UnlistedObjects
from kvcs.client.verdict import Counters
from kvcs.errors import DataError, IntegrityError
from kvcs.kv.codecs import codec
from kvcs.kv.layout import Layout
from kvcs.kv.manifest import Manifest
from kvcs.kv.naming import DataTrackName
from kvcs.kv.payload import (
    HEADER_BYTES,
    BlockPlace,
    BlockSeries,
    IntegrityReason,
)
from kvcs.kv.segment import Segment
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.wire.object import Object
from kvcs.names import Location

__all__ = ("MAX_SEAL_OVERHEAD_BYTES", "IntakeContext", "TrackIntake")

# Length, tag, and encrypted properties that a publisher may add to what an Object must have.
MAX_SEAL_OVERHEAD_BYTES: Final = 1024

# Counted as rejected: it came before any signed list, and there was no room to keep it.
_UNLISTED: Final = "unlisted"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeContext:
    """What all tracks of one retrieval share.

    Attributes:
        layout: Geometry of the publication.
        placement: The caller's memory.
        counters: Counts of the retrieval.
        unlisted: Where Objects await the list of a signed manifest; None when digests that Objects
            carry are enough.
        on_unlisted: Called when an Object came that awaits a list, with whether this track now
            has all of its layer.
        on_verified: Called with the layer, and whether this track now has all of it, after each
            block that was verified and put in place.
        on_discard: Called when the publication contradicts itself.
    """

    layout: Layout
    placement: Placement
    counters: Counters
    unlisted: UnlistedObjects | None = None
    on_unlisted: Callable[[bool], None] = lambda _: None
    on_verified: Callable[[int, bool], None]
    on_discard: Callable[[DataError], None]


class TrackIntake:
    """Checks the Objects of one data track and puts their Data in place.

    Args:
        context: What all tracks of the retrieval share.
        wanted: What is taken of the segment.
        name: The data track, one of ``wanted.tracks``.
        layers: Wanted layer indexes, ascending.
        manifest: The newest manifest that is known.

    Attributes:
        returned: Layers of which something had come, and is missing again now that a signed
            manifest lists them; whoever asks for it takes them out.
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
        self.returned: Final[set[int]] = set()
        self._context = context
        self._codec = codec(name.codec)
        self._series = {layer_index: self._series_of(layer_index) for layer_index in layers}
        self._segment = manifest.segments[wanted.segment]
        self._listed: Sequence[Sequence[bytes]] = ()
        self._opening = 0
        self.take_manifest(manifest)

    def __repr__(self) -> str:
        return f"<TrackIntake {self.name} {self.ledger!r}>"

    @property
    def layers(self) -> int:
        """Number of layers of the model, wanted or not."""
        return self._context.layout.layers

    @property
    def is_opening(self) -> bool:
        """Objects have arrived that are not opened yet."""
        return self._opening > 0

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
            for block_index in self.ledger.take_unlisted(layer_index):
                self._settle_listed(layer_index, block_index)

    def receive(self, obj: Object, opening: TrackOpening | None = None) -> None:
        """Check one whole Object; a Normal one that is wanted ends up in the caller's memory."""
        if obj.status is ObjectStatus.NORMAL:
            self.begin(obj, len(obj.payload), memoryview(obj.payload), opening)

    def begin(
        self, obj: Object, length: int, data: memoryview, opening: TrackOpening | None = None
    ) -> BlockArrival | SealedArrival | None:
        """Take a Normal Object whose payload may not be whole yet.

        Args:
            obj: The Object; its payload is not looked at.
            length: Octets of its payload.
            data: The first of them, or all.
            opening: Opens it; None when Objects are taken in clear.

        Returns:
            What takes the rest of the payload, or None when nobody needs it.
        """
        context = self._context
        if not context.placement.is_open:
            return None
        layer_index, block_index = obj.group_id, obj.object_id
        if self._is_ignored(layer_index, block_index, is_sealed=opening is not None):
            context.counters.payload_bytes += length
        elif opening is not None:
            return self._begin_sealed(obj, length, data, opening)
        elif len(data) < length:
            return self._begin_arrival(layer_index, block_index, length, data)
        else:
            body = data[HEADER_BYTES:]
            head, digest = bytes(data[:HEADER_BYTES]), hashlib.sha256(body).digest()
            self._take_whole(layer_index, block_index, WholePayload(length, head, digest, (body,)))
        return None

    def _is_ignored(self, layer_index: int, block_index: int, *, is_sealed: bool) -> bool:
        """Count an Object that is not looked at: misplaced, padding, or not wanted."""
        counters = self._context.counters
        if layer_index >= self._context.layout.layers:
            counters.reject(IntegrityReason.LOCATION)
        elif block_index >= self.wanted.blocks:
            if is_sealed:
                counters.padding += 1
            else:
                counters.reject(IntegrityReason.LOCATION)
        elif not self.ledger.is_wanted(layer_index, block_index):
            counters.excess += 1
        else:
            return False
        return True

    def _begin_sealed(
        self, obj: Object, length: int, data: memoryview, opening: TrackOpening
    ) -> SealedArrival | None:
        """Keep a sealed Object until it is whole, unless it cannot be opened or fit anyway."""
        layer_index, block_index = obj.group_id, obj.object_id
        refusal = opening.refusal(obj)
        expected = self._series[layer_index].payload_length
        if refusal is None and expected is not None:
            is_possible = expected < length <= expected + MAX_SEAL_OVERHEAD_BYTES
            refusal = None if is_possible else IntegrityReason.PAYLOAD_LENGTH
        if refusal is not None:
            self._context.counters.payload_bytes += length
            self._reject(layer_index, block_index, refusal)
            return None
        arrival = SealedArrival(length, partial(self._open, obj, opening, length))
        return None if arrival.take(data) else arrival

    def _open(
        self,
        obj: Object,
        opening: TrackOpening,
        length: int,
        parts: Sequence[bytearray | memoryview],
    ) -> None:
        self._context.counters.payload_bytes += length
        self._opening += 1
        opening.take(obj, parts, length, partial(self._take_opened, obj.group_id, obj.object_id))

    def _take_opened(
        self, layer_index: int, block_index: int, outcome: Opened | IntegrityError
    ) -> None:
        self._opening -= 1
        if not self._context.placement.is_open:
            return
        if isinstance(outcome, IntegrityError):
            self._reject(layer_index, block_index, outcome.reason)
            return
        payload, digest = outcome
        head, body = bytes(payload[:HEADER_BYTES]), payload[HEADER_BYTES:]
        self._settle(layer_index, block_index, WholePayload(len(payload), head, digest, (body,)))

    def _begin_arrival(
        self, layer_index: int, block_index: int, length: int, data: memoryview
    ) -> BlockArrival:
        expected = self._series[layer_index].payload_length
        arrival = BlockArrival(
            length,
            keeps_data=expected in (None, length),
            on_whole=partial(self._take_whole, layer_index, block_index),
        )
        arrival.take(data)
        return arrival

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

    def _take_whole(self, layer_index: int, block_index: int, payload: WholePayload) -> None:
        """Take the payload of a wanted block that came in clear."""
        if self._context.placement.is_open:
            self._context.counters.payload_bytes += payload.length
            self._settle(layer_index, block_index, payload)

    def _settle(self, layer_index: int, block_index: int, payload: WholePayload) -> None:
        """Check the payload of a wanted block, and act on the outcome."""
        context = self._context
        digest = payload.digest
        try:
            self._series[layer_index].check(payload.head, payload.length, digest, block_index)
        except IntegrityError as error:
            self._reject(layer_index, block_index, error.reason)
            return
        known = self.ledger.digest(layer_index, block_index)
        if known is not None:
            self._settle_duplicate(layer_index, block_index, same=known == digest)
        elif layer_index < len(self._listed):
            self._settle_against(self._listed[layer_index], layer_index, block_index, payload)
        elif context.unlisted is not None:
            self._hold(context.unlisted, layer_index, block_index, payload)
        else:
            self._accept(layer_index, block_index, payload)

    def _settle_listed(self, layer_index: int, block_index: int) -> None:
        """Act on a block that was held and is listed now; what was dropped is missing again."""
        unlisted = self._context.unlisted
        payload = unlisted and unlisted.take(self.name, layer_index, block_index)
        if payload is not None and self._context.placement.is_open:
            self._settle_against(self._listed[layer_index], layer_index, block_index, payload)
        if self.ledger.digest(layer_index, block_index) is None:
            self.returned.add(layer_index)

    def _settle_against(
        self, listed: Sequence[bytes], layer_index: int, block_index: int, payload: WholePayload
    ) -> None:
        if listed[block_index] != payload.digest:
            self._reject(layer_index, block_index, IntegrityReason.LISTED_DIGEST)
        else:
            self._accept(layer_index, block_index, payload)

    def _hold(
        self, unlisted: UnlistedObjects, layer_index: int, block_index: int, payload: WholePayload
    ) -> None:
        """Keep a block that no signed manifest lists yet; the first one that came counts."""
        counters, ledger = self._context.counters, self.ledger
        if ledger.is_unlisted(layer_index, block_index):
            if unlisted.digest(self.name, layer_index, block_index) == payload.digest:
                counters.duplicate += 1
            else:
                counters.reject(_UNLISTED)
            return
        if not unlisted.hold(self.name, layer_index, block_index, payload):
            counters.reject(_UNLISTED)
        is_whole = ledger.await_list(layer_index, block_index)
        self._context.on_unlisted(is_whole)

    def _accept(self, layer_index: int, block_index: int, payload: WholePayload) -> None:
        """Put a block in place that passed every check."""
        context = self._context
        try:
            self._place(layer_index, block_index, payload.data)
        except IntegrityError as error:
            self._reject(layer_index, block_index, error.reason)
        except DataError:
            self._reject(layer_index, block_index, "decoding")
        else:
            context.counters.verified += 1
            context.counters.verified_bytes += payload.length - HEADER_BYTES
            is_whole = self.ledger.accept(layer_index, block_index, payload.digest)
            context.on_verified(layer_index, is_whole)

    def _reject(self, layer_index: int, block_index: int, reason: str) -> None:
        self._context.counters.reject(reason)
        blocks = range(block_index, block_index + 1)
        self.ledger.mark(layer_index, blocks, BlockState.REJECTED)

    def _settle_duplicate(self, layer_index: int, block_index: int, *, same: bool) -> None:
        if same:
            self._context.counters.duplicate += 1
            return
        if self._context.unlisted is not None:
            # The first one is what a trusted producer signed.
            self._context.counters.reject(IntegrityReason.LISTED_DIGEST)
            return
        location = Location(layer_index, block_index)
        text = f"track {self.name} has two different Objects at {location}"
        self._context.on_discard(IntegrityError("contradiction", text))

    def _place(self, layer_index: int, block_index: int, data: Sequence[Buffer]) -> None:
        """Decode the verified Data of one block, and copy the tensor to its place."""
        context, component = self._context, self.name.component
        if not self._codec.is_identity:
            tensor = self._codec.decode(
                b"".join(data), context.layout, component=component, layer_index=layer_index
            )
            data = (tensor,)
        block = self.wanted.first_block + block_index
        context.placement.write(component, layer_index, block, data)
