"""Nothing but the right bytes ever reaches the caller's memory."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcs.client.intake import IntakeContext, TrackIntake
from kvcs.client.memory import HostMemory, Placement
from kvcs.client.selection import WantedSegment
from kvcs.client.verdict import Counters
from kvcs.kv import (
    RAW,
    BlockPlace,
    Component,
    DataTrackName,
    Descriptor,
    Dtype,
    Layout,
    Manifest,
    Segment,
    encode_payload,
)
from kvcs.moqt.wire.object import Object

LAYERS, BLOCKS, TOKENS = 3, 4, 2
K = Component.K
NAME = DataTrackName(K, "raw", 0)
DESCRIPTOR = Descriptor(
    layers=LAYERS,
    block_tokens=TOKENS,
    dtype=Dtype.FLOAT16,
    position="rope-applied",
    weights_sha256="11" * 32,
    tokenizer_sha256="22" * 32,
    kv_heads=1,
    head_dim=4,
)
SIZE = Layout(DESCRIPTOR).data_bytes(K, 0)


def data(layer_index, block):
    return bytes([layer_index + 1, block + 101] * (SIZE // 2))


def payload(layer_index, block, **changes):
    fields = {
        "component": K,
        "codec": RAW.number,
        "layer_index": layer_index,
        "block_index": block,
        "token_start": block * TOKENS,
        "token_count": TOKENS,
        **changes,
    }
    return encode_payload(BlockPlace(**fields), data(layer_index, block))


def obj(layer_index, block, octets=None):
    return Object(
        group_id=layer_index,
        object_id=block,
        subgroup_id=0,
        publisher_priority=0,
        payload=payload(layer_index, block)[0] if octets is None else octets,
    )


class Desk:
    """An intake, and the memory that it fills."""

    def __init__(self, *, listed_layers=0):
        self.memory = {}
        self.discarded = []
        self.counters = Counters()
        digests = tuple(
            tuple(payload(layer_index, block)[1] for block in range(BLOCKS))
            for layer_index in range(listed_layers)
        )
        segment = Segment(
            segment=0,
            first_block=0,
            blocks=BLOCKS,
            block_keys_sha256=bytes(32),
            tracks=("k.raw.s0",),
            object_digests={"k.raw.s0": digests},
        )
        wanted = WantedSegment(
            segment=0, first_block=0, blocks=BLOCKS, wanted_blocks=BLOCKS, tracks=(NAME,)
        )
        context = IntakeContext(
            layout=Layout(DESCRIPTOR),
            placement=Placement(self, Layout(DESCRIPTOR), layers=range(LAYERS), blocks=BLOCKS),
            counters=self.counters,
            on_verified=lambda _layer, _whole: None,
            on_discard=self.discarded.append,
        )
        manifest = Manifest(compat=DESCRIPTOR, segments=(segment,))
        self.intake = TrackIntake(context, wanted, NAME, layers=range(LAYERS), manifest=manifest)

    def buffer(self, component, layer_index, size_bytes):
        buffer = HostMemory().buffer(component, layer_index, size_bytes)
        return self.memory.setdefault((component, layer_index), buffer)

    def receive(self, received, cuts=()):
        """Give an Object to the intake, whole or in parts that begin at `cuts`."""
        octets = memoryview(received.payload)
        bounds = sorted({min(cut, len(octets)) for cut in cuts} | {len(octets)})
        arrival = self.intake.begin(received, len(octets), octets[: bounds[0]])
        for start, end in pairwise(bounds):
            if arrival is not None:
                arrival.take(octets[start:end])

    def check(self):
        """Verified blocks hold the right bytes, all others none."""
        for layer_index in range(LAYERS):
            buffer = self.memory.get((K, layer_index), bytes(BLOCKS * SIZE))
            for block in range(BLOCKS):
                is_verified = self.intake.ledger.digest(layer_index, block) is not None
                expected = data(layer_index, block) if is_verified else bytes(SIZE)
                assert buffer[block * SIZE : (block + 1) * SIZE] == expected


def place(rng):
    return rng.randrange(LAYERS), rng.randrange(BLOCKS)


def flip(rng, octets):
    """Change one octet of Data or of a header field that is checked."""
    position = rng.choice([i for i in range(len(octets)) if i not in (6, 7, 30, 31)])
    change = rng.randrange(1, 256)
    return octets[:position] + bytes([octets[position] ^ change]) + octets[position + 1 :]


MUTATIONS = {
    "flip": flip,
    "cut": lambda rng, octets: octets[: rng.randrange(len(octets))],
    "append": lambda rng, octets: octets + rng.randbytes(rng.randrange(1, 9)),
    "swap": lambda _rng, octets: octets[:68] + octets[68:][::-1],
    "zero": lambda _rng, octets: octets[:68] + bytes(len(octets) - 68),
    "noise": lambda rng, octets: rng.randbytes(len(octets)),
}


@pytest.mark.parametrize("listed_layers", [0, LAYERS])
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_no_mutation_of_a_thousand_is_accepted(mutation, listed_layers):
    rng = random.Random(f"{mutation} {listed_layers}")
    desk = Desk(listed_layers=listed_layers)

    for _ in range(1000):
        layer_index, block = place(rng)
        octets = MUTATIONS[mutation](rng, payload(layer_index, block)[0])
        cuts = [rng.randrange(1, 90) for _ in range(rng.randrange(3))]
        desk.receive(obj(layer_index, block, octets), cuts)

    assert desk.counters.verified == 0
    assert sum(desk.counters.rejected.values()) == 1000
    desk.check()


places = st.tuples(st.integers(0, LAYERS), st.integers(0, BLOCKS))
cuts = st.lists(st.integers(0, 90), max_size=3)
steps = st.lists(
    st.tuples(st.sampled_from(["good", "bad", "moved"]), places, places, cuts), max_size=40
)


@given(steps, st.integers(0, LAYERS))
def test_memory_holds_right_bytes_or_none_whatever_arrives(arrivals, listed_layers):
    desk = Desk(listed_layers=listed_layers)

    for kind, (layer_index, block), (other_layer, other_block), parts in arrivals:
        octets = payload(layer_index, block)[0]
        if kind == "bad":
            octets = octets[:-1] + bytes([octets[-1] ^ 1])
        received = obj(layer_index, block, octets)
        if kind == "moved":
            received = received._replace(group_id=other_layer, object_id=other_block)
        desk.receive(received, parts)
        desk.check()

    good = {
        at for kind, at, _, _ in arrivals if kind == "good" and at[0] < LAYERS and at[1] < BLOCKS
    }
    moved = {at for kind, at, to, _ in arrivals if kind == "moved" and at == to}
    arrived = good | {at for at in moved if at[0] < LAYERS and at[1] < BLOCKS}
    assert desk.counters.verified == len(arrived)
    assert desk.discarded == []
