"""The Objects of one layer of one track, from its blocks to payloads that can be published.

A sealed payload is put together once, as one in clear is, and encrypted once. Objects that are
padding are as long as those of blocks, and nobody without the key can tell them apart.
"""

from collections.abc import Buffer, Sequence
from dataclasses import replace
from typing import NamedTuple

from kvcs.kv.payload import HEADER_BYTES, BlockPlace, encode_header, encode_payload
from kvcs.kv.sealing import TrackSealer
from kvcs.varint import MAX_VI64_BYTES

__all__ = ("LayerSeal", "encode_layer")


class LayerSeal(NamedTuple):
    """How the Objects of one layer are sealed.

    Attributes:
        sealer: Seals the Objects of the track.
        priority: Their Publisher Priority.
        padding: Objects that follow those of the blocks.
    """

    sealer: TrackSealer
    priority: int
    padding: int = 0


def encode_layer(
    first: BlockPlace, blocks: Sequence[Sequence[Buffer]], seal: LayerSeal | None = None
) -> list[tuple[bytes, bytes]]:
    """Encode the payloads of a layer.

    Args:
        first: Place of block 0.
        blocks: Data of each block, in one or several contiguous parts.
        seal: How to seal them; None leaves them in clear.

    Returns:
        Payload and Data Digest of each block, and then of each Object that is padding, whose
        digest is empty.

    Raises:
        LocalProtocolError: Another layer was sealed in this place before.
        ConfigError: The object key has sealed as much as it may.
    """
    places = [_place(first, block_index) for block_index in range(len(blocks))]
    if seal is None:
        return [encode_payload(place, *data) for place, data in zip(places, blocks, strict=True)]
    size = HEADER_BYTES + sum(memoryview(part).nbytes for part in blocks[0])
    scratch = bytearray(size + MAX_VI64_BYTES)
    payloads = [
        _sealed(place, data, seal, scratch) for place, data in zip(places, blocks, strict=True)
    ]
    for object_id in range(len(blocks), len(blocks) + seal.padding):
        padding = seal.sealer.seal(first.layer_index, object_id, seal.priority, bytes(size))
        payloads.append((padding, b""))
    return payloads


def _place(first: BlockPlace, block_index: int) -> BlockPlace:
    start = first.token_start + block_index * first.token_count
    return replace(first, block_index=block_index, token_start=start)


def _sealed(
    place: BlockPlace, data: Sequence[Buffer], seal: LayerSeal, scratch: bytearray
) -> tuple[bytes, bytes]:
    header, digest = encode_header(place, *data)
    sealer, priority, _ = seal
    payload = sealer.seal(
        place.layer_index, place.block_index, priority, header, *data, scratch=scratch
    )
    return payload, digest
