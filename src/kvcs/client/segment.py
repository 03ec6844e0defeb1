"""One segment of a publication: the layers of one prefill pass."""

import asyncio
from collections.abc import Buffer, Mapping, Sequence
from typing import TYPE_CHECKING

from kvcs.client.layer_encoding import LayerSeal, encode_layer
from kvcs.client.published import LayerPayloads
from kvcs.errors import LocalProtocolError
from kvcs.kv.codecs import RAW
from kvcs.kv.naming import Component, DataTrackName, publisher_priority
from kvcs.kv.payload import BlockPlace

if TYPE_CHECKING:
    from kvcs.client.publication import Publication

__all__ = ("PublishedSegment",)


class PublishedSegment:
    """A segment to publish layers to; made by `Publication.add_segment`.

    Attributes:
        segment: Segment number.
        first_block: Absolute index of its first block.
        blocks: Number of its blocks.
    """

    def __init__(
        self, publication: "Publication", segment: int, *, first_block: int, blocks: int
    ) -> None:
        self.segment = segment
        self.first_block = first_block
        self.blocks = blocks
        self._publication = publication
        self._next_layer = 0
        self._is_busy = False

    def __repr__(self) -> str:
        return f"<PublishedSegment {self.segment} blocks={self.blocks} layers={self._next_layer}>"

    @property
    def next_layer(self) -> int:
        """The layer that is to be published next; the number of layers when all are."""
        return self._next_layer

    async def publish_layer(self, layer_index: int, k: Buffer, v: Buffer) -> None:
        """Publish one layer; return when a slow subscriber is near enough.

        The tensors are copied, hashed and perhaps sealed; they must not change before this
        returns.

        Args:
            layer_index: The next layer. A layer that was published already is refused, and so
                is one that would leave a gap.
            k: Keys of the segment's blocks, ``[tokens, kv_heads, head_dim]``, C order,
                little-endian, contiguous host memory.
            v: Values, likewise.

        Raises:
            LayoutMismatch: A tensor is no buffer, or has another size or shape.
            LocalProtocolError: Not the next layer, or the publication has ended.
            BudgetExceeded: The publication holds as much as it may; nothing was published.
            ConfigError: The object key has sealed as much as it may.
        """
        if layer_index != self._next_layer or self._is_busy:
            raise LocalProtocolError(
                f"layer {layer_index} of segment {self.segment}: the next one to publish is "
                f"{self._next_layer}"
            )
        self._is_busy = True
        try:
            tracks = self._publication.tracks
            layout = tracks.layout
            parts = {
                Component.K: layout.blocks(Component.K, layer_index, k, count=self.blocks),
                Component.V: layout.blocks(Component.V, layer_index, v, count=self.blocks),
            }
            objects = self._publication.config.objects_of(self.blocks)
            size = objects * layout.data_bytes(Component.KV, layer_index)
            await self._publication.make_room(size)
            names = tracks.track_names(self.segment)
            payloads = await self._encode(names, layer_index, parts, size)
            await self._publication.publish_layer(self.segment, layer_index, payloads)
            self._next_layer += 1
        finally:
            self._is_busy = False

    async def _encode(
        self,
        names: Sequence[DataTrackName],
        layer_index: int,
        parts: Mapping[Component, Sequence[memoryview]],
        size: int,
    ) -> LayerPayloads:
        """Copy, hash and seal, in a thread when that takes long enough to matter."""

        def encode() -> LayerPayloads:
            return {name: self._payloads(name, layer_index, parts) for name in names}

        threshold = self._publication.config.hash_threshold_bytes
        if threshold is None or size < threshold:
            return encode()
        return await asyncio.get_running_loop().run_in_executor(None, encode)

    def _payloads(
        self,
        name: DataTrackName,
        layer_index: int,
        parts: Mapping[Component, Sequence[memoryview]],
    ) -> list[tuple[bytes, bytes]]:
        publication = self._publication
        layout = publication.tracks.layout
        components = (
            (Component.K, Component.V) if name.component is Component.KV else (name.component,)
        )
        first = BlockPlace(
            component=name.component,
            codec=RAW.number,
            layer_index=layer_index,
            block_index=0,
            token_start=self.first_block * layout.block_tokens,
            token_count=layout.block_tokens,
        )
        blocks = list(zip(*(parts[component] for component in components), strict=True))
        sealer = publication.tracks.tracks[name.format()].sealer
        if sealer is None:
            return encode_layer(first, blocks)
        priority = publisher_priority(layer_index, layout.layers)
        padding = publication.config.objects_of(self.blocks) - self.blocks
        return encode_layer(first, blocks, LayerSeal(sealer, priority, padding))
