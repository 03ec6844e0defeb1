"""A small publication, written by hand, for the tests of the consumer's pure parts."""

from dataclasses import dataclass

import pytest

from kvcs.client.intake import IntakeContext
from kvcs.client.memory import HostMemory, Placement
from kvcs.client.verdict import Counters
from kvcs.kv.codecs import RAW
from kvcs.kv.descriptor import Descriptor, Dtype
from kvcs.kv.identity import KVSP_PROVISIONAL, ScopeKey, block_keys_sha256
from kvcs.kv.layout import Layout
from kvcs.kv.manifest import Manifest
from kvcs.kv.payload import BlockPlace, encode_payload
from kvcs.kv.segment import Segment
from kvcs.moqt.wire.object import Object

SCOPE_KEY = ScopeKey(bytes(range(32)))
LAYERS = 3


@dataclass
class Sample:
    """A publication of two segments of 4 and 2 blocks, and the tokens that it is of."""

    descriptor: Descriptor
    layout: Layout
    keys: tuple
    manifest: Manifest

    def data(self, component, layer_index, block):
        size = self.layout.data_bytes(component, layer_index)
        return bytes((component * 64 + layer_index * 16 + block) % 256 for _ in range(size))

    def payload(self, component, layer_index, block, *, first_block=0, data=None):
        place = BlockPlace(
            component=component,
            codec=RAW.number,
            layer_index=layer_index,
            block_index=block,
            token_start=(first_block + block) * self.layout.block_tokens,
            token_count=self.layout.block_tokens,
        )
        return encode_payload(place, data or self.data(component, layer_index, first_block + block))

    def obj(self, component, layer_index, block, **changes):
        payload, _ = self.payload(component, layer_index, block, **changes)
        return Object(
            group_id=layer_index,
            object_id=block,
            subgroup_id=0,
            publisher_priority=0,
            payload=payload,
        )

    def digests(self, component, layers, *, blocks=4, first_block=0):
        return tuple(
            tuple(
                self.payload(component, layer, block, first_block=first_block)[1]
                for block in range(blocks)
            )
            for layer in range(layers)
        )


@pytest.fixture
def sample():
    descriptor = Descriptor(
        layers=LAYERS,
        block_tokens=2,
        dtype=Dtype.FLOAT16,
        position="rope-applied",
        weights_sha256="11" * 32,
        tokenizer_sha256="22" * 32,
        kv_heads=1,
        head_dim=4,
    )
    compatibility_id = KVSP_PROVISIONAL.compatibility_id(SCOPE_KEY, descriptor)
    keys = KVSP_PROVISIONAL.block_keys(SCOPE_KEY, compatibility_id, range(12), block_tokens=2)
    segments = tuple(
        Segment(
            segment=number,
            first_block=first,
            blocks=blocks,
            block_keys_sha256=block_keys_sha256(keys[first : first + blocks]),
            tracks=(f"k.raw.s{number}", f"v.raw.s{number}"),
        )
        for number, first, blocks in ((0, 0, 4), (1, 4, 2))
    )
    manifest = Manifest(compat=descriptor, segments=segments)
    return Sample(descriptor, Layout(descriptor), keys, manifest)


class Desk:
    """Collects what an intake reports."""

    def __init__(self, layout, *, blocks=6):
        self.verified = []
        self.discarded = []
        self.counters = Counters()
        self.buffers = {}
        self.context = IntakeContext(
            layout=layout,
            placement=Placement(self, layout, layers=range(LAYERS), blocks=blocks),
            counters=self.counters,
            on_verified=lambda layer, whole: self.verified.append((layer, whole)),
            on_discard=self.discarded.append,
        )

    def buffer(self, component, layer_index, size_bytes):
        memory = HostMemory().buffer(component, layer_index, size_bytes)
        return self.buffers.setdefault((component, layer_index), memory)


@pytest.fixture
def desk(sample):
    return Desk(sample.layout)
