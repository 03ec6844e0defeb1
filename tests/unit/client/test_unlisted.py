"""What a consumer that demands authenticity does with Objects that no signed list names yet."""

import tracemalloc
from dataclasses import replace

import pytest

from kvcs.client.arrival import WholePayload
from kvcs.client.intake import TrackIntake
from kvcs.client.ledger import BlockState, MissingRun
from kvcs.client.selection import WantedSegment
from kvcs.client.unlisted import UnlistedObjects
from kvcs.kv.naming import Component, DataTrackName

K = Component.K
TRACK = DataTrackName(K, "raw", 0)
LAYERS = 3


class Held:
    """An intake that demands a list, and what it reports."""

    def __init__(self, sample, desk, *, max_bytes=2**20):
        self.sample = sample
        self.reports = []
        self.unlisted = UnlistedObjects(max_bytes)
        context = replace(desk.context, unlisted=self.unlisted, on_unlisted=self.reports.append)
        wanted = WantedSegment(segment=0, first_block=0, blocks=4, wanted_blocks=4, tracks=(TRACK,))
        self.intake = TrackIntake(
            context, wanted, TRACK, layers=range(LAYERS), manifest=sample.manifest
        )

    def receive(self, *blocks, layer=0, **changes):
        for block in blocks:
            self.intake.receive(self.sample.obj(K, layer, block, **changes))

    def list_layers(self, layers):
        groups = self.sample.digests(K, layers)
        segment = replace(self.sample.manifest.segments[0], object_digests={"k.raw.s0": groups})
        self.intake.take_manifest(self.sample.manifest.with_segment(segment))


@pytest.fixture
def held(sample, desk):
    return Held(sample, desk)


def is_written(desk, layer=0):
    return any(desk.buffers.get((K, layer), b""))


def test_what_is_not_listed_is_neither_written_nor_verified(desk, held):
    held.receive(0, 1, 2, 3)

    assert not is_written(desk)
    assert desk.verified == []
    assert desk.counters.verified == 0
    assert held.reports == [False, False, False, True]
    ledger = held.intake.ledger
    assert (ledger.remaining, ledger.lacking) == (12, 8)
    assert not ledger.is_whole(0)
    assert not ledger.is_lacking(0)
    assert next(ledger.missing()) == MissingRun(0, 0, 4, BlockState.UNLISTED)
    assert list(ledger.holes()) == [(1, range(4)), (2, range(4))]


def test_the_list_brings_what_was_held_into_place(sample, desk, held):
    held.receive(2, 0, 1, 3)

    held.list_layers(1)

    assert [whole for _, whole in desk.verified] == [False, False, False, True]
    assert bytes(desk.buffers[K, 0][: 4 * sample.layout.data_bytes(K, 0)]) == b"".join(
        sample.data(K, 0, block) for block in range(4)
    )
    assert held.unlisted.held_bytes == 0
    assert held.intake.returned == set()
    assert desk.counters.payload_bytes == 4 * len(sample.obj(K, 0, 0).payload)


def test_what_is_listed_when_it_comes_is_not_held(desk, held):
    held.list_layers(1)

    held.receive(0)

    assert desk.counters.verified == 1
    assert held.reports == []


def test_a_forgery_that_was_held_is_rejected_and_missing(sample, desk, held):
    held.receive(0, 1, 3)
    held.receive(2, data=bytes(sample.layout.data_bytes(K, 0)))

    held.list_layers(1)

    assert desk.counters.rejected == {"listed_digest": 1}
    assert desk.counters.verified == 3
    assert desk.discarded == []
    assert held.intake.returned == {0}
    assert next(held.intake.ledger.missing()) == MissingRun(0, 2, 3, BlockState.REJECTED)


def test_a_forgery_beside_what_is_signed_discards_nothing(sample, desk, held):
    held.list_layers(1)
    held.receive(0)

    held.receive(0, data=bytes(sample.layout.data_bytes(K, 0)))
    held.receive(0)

    assert desk.discarded == []
    assert desk.counters.rejected == {"listed_digest": 1}
    assert (desk.counters.verified, desk.counters.duplicate) == (1, 1)


def test_the_first_of_two_that_await_a_list_is_kept(sample, desk, held):
    held.receive(0)
    held.receive(0)
    held.receive(0, data=bytes(sample.layout.data_bytes(K, 0)))

    held.list_layers(1)

    assert (desk.counters.verified, desk.counters.duplicate) == (1, 1)
    assert desk.counters.rejected == {"unlisted": 1}


def test_what_does_not_fit_is_dropped_and_missing_once_it_is_listed(sample, desk):
    held = Held(sample, desk, max_bytes=3 * 1200)
    held.receive(0, 1, 2, 3)

    assert desk.counters.rejected == {"unlisted": 1}
    assert held.intake.ledger.lacking == 8
    held.list_layers(1)

    assert desk.counters.verified == 3
    assert held.intake.returned == {0}
    assert next(held.intake.ledger.holes()) == (0, range(3, 4))
    held.receive(3)
    assert desk.counters.verified == 4


def test_marks_do_not_touch_what_awaits_a_list(held):
    held.receive(1)

    held.intake.ledger.mark(0, range(4), BlockState.NON_EXISTENT)

    assert [run.state for run in held.intake.ledger.missing()][:3] == [
        BlockState.NON_EXISTENT,
        BlockState.UNLISTED,
        BlockState.NON_EXISTENT,
    ]


def test_what_is_held_takes_little_more_than_it_says():
    # Sixteen small Objects, each a view of a large piece that nobody else keeps.
    unlisted = UnlistedObjects(2**20)
    tracemalloc.start()
    try:
        for block in range(16):
            piece = memoryview(bytes(200_000))
            payload = WholePayload(4096, bytes(68), bytes(32), (piece[100:4128],))
            assert unlisted.hold(TRACK, 0, block, payload)
        del piece, payload
        size = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert size < 2 * unlisted.held_bytes


def test_nothing_is_kept_after_clearing():
    unlisted = UnlistedObjects(2**20)
    unlisted.hold(TRACK, 0, 0, WholePayload(68, bytes(68), bytes(32), ()))

    unlisted.clear()

    assert unlisted.held_bytes == 0
    assert unlisted.take(TRACK, 0, 0) is None
