from dataclasses import replace

import pytest

from kvcs.client.intake import TrackIntake
from kvcs.client.selection import WantedSegment
from kvcs.errors import IntegrityError
from kvcs.kv.naming import Component, DataTrackName
from kvcs.moqt.codepoints import ObjectStatus

K, V, KV = Component.K, Component.V, Component.KV
K_TRACK = DataTrackName(K, "raw", 0)
LAYERS = 3


def wanted(tracks=(K_TRACK,), *, segment=0, first_block=0, blocks=4, wanted_blocks=4):
    return WantedSegment(
        segment=segment,
        first_block=first_block,
        blocks=blocks,
        wanted_blocks=wanted_blocks,
        tracks=tracks,
    )


@pytest.fixture
def intake(sample, desk):
    return TrackIntake(
        desk.context, wanted(), K_TRACK, layers=range(LAYERS), manifest=sample.manifest
    )


def listing(sample, layers, *, digests=None):
    groups = digests or sample.digests(K, layers)
    segment = replace(sample.manifest.segments[0], object_digests={"k.raw.s0": groups})
    return sample.manifest.with_segment(segment)


def test_intake_puts_verified_data_in_its_place(sample, desk, intake):
    intake.receive(sample.obj(K, 1, 2))

    size = sample.layout.data_bytes(K, 1)
    assert desk.buffers[K, 1][2 * size : 3 * size] == sample.data(K, 1, 2)
    assert len(desk.buffers[K, 1]) == 6 * size
    assert desk.verified == [(1, False)]
    assert desk.counters.verified == 1
    assert desk.counters.verified_bytes == size


def test_intake_reports_the_block_that_completes_a_layer(sample, desk, intake):
    for block in (3, 1, 0, 2):
        intake.receive(sample.obj(K, 0, block))

    assert [whole for _, whole in desk.verified] == [False, False, False, True]


def test_intake_places_a_later_segment_behind_the_first(sample, desk):
    name = DataTrackName(K, "raw", 1)
    segment = wanted((name,), segment=1, first_block=4, blocks=2, wanted_blocks=2)
    intake = TrackIntake(desk.context, segment, name, layers=(0,), manifest=sample.manifest)

    intake.receive(sample.obj(K, 0, 1, first_block=4))

    size = sample.layout.data_bytes(K, 0)
    assert desk.buffers[K, 0][5 * size :] == sample.data(K, 0, 5)


def test_intake_splits_jointly_encoded_data(sample, desk):
    name = DataTrackName(KV, "raw", 0)
    segment = replace(sample.manifest.segments[0], tracks=("kv.raw.s0",))
    manifest = sample.manifest.with_segment(segment)
    intake = TrackIntake(desk.context, wanted((name,)), name, layers=(0,), manifest=manifest)
    k, v = sample.data(K, 0, 0), sample.data(V, 0, 0)

    intake.receive(sample.obj(KV, 0, 0, data=k + v))

    assert desk.buffers[K, 0][: len(k)] == k
    assert desk.buffers[V, 0][: len(v)] == v


@pytest.mark.parametrize("place", [(0, 4), (3, 0), (2**40, 0), (0, 2**40)])
def test_intake_rejects_an_object_outside_the_segment(sample, desk, intake, place):
    obj = sample.obj(K, 0, 0)._replace(group_id=place[0], object_id=place[1])

    intake.receive(obj)

    assert desk.counters.rejected == {"location": 1}
    assert desk.verified == []


def test_intake_ignores_status_objects(sample, desk, intake):
    for status in (ObjectStatus.END_OF_GROUP, ObjectStatus.END_OF_TRACK):
        obj = sample.obj(K, 0, 0)._replace(object_id=4, status=status, payload=b"")
        intake.receive(obj)

    assert desk.counters.rejected == {}
    assert desk.counters.payload_bytes == 0


def test_intake_counts_what_nobody_wants_as_excess(sample, desk):
    intake = TrackIntake(
        desk.context, wanted(wanted_blocks=2), K_TRACK, layers=(1,), manifest=sample.manifest
    )

    intake.receive(sample.obj(K, 1, 2))
    intake.receive(sample.obj(K, 0, 0))

    assert desk.counters.excess == 2
    assert desk.verified == []


def test_intake_rejects_a_value_object_in_the_key_track(sample, desk, intake):
    intake.receive(sample.obj(V, 0, 0))

    assert desk.counters.rejected == {"component": 1}
    assert not any(map(any, desk.buffers.values()))


def test_intake_takes_a_block_again_after_it_was_rejected(sample, desk, intake):
    damaged = sample.obj(K, 0, 0)
    damaged = damaged._replace(payload=damaged.payload[:-1] + b"!")

    intake.receive(damaged)
    intake.receive(sample.obj(K, 0, 0))

    assert desk.counters.rejected == {"data_digest": 1}
    assert desk.counters.verified == 1
    assert bytes(desk.buffers[K, 0][:4]) == sample.data(K, 0, 0)[:4]


def test_intake_counts_an_identical_duplicate_and_writes_nothing(sample, desk, intake):
    intake.receive(sample.obj(K, 0, 0))
    before = bytes(desk.buffers[K, 0])
    desk.buffers[K, 0][0] ^= 0xFF

    intake.receive(sample.obj(K, 0, 0))

    assert desk.counters.duplicate == 1
    assert desk.buffers[K, 0][0] == before[0] ^ 0xFF
    assert desk.discarded == []


@pytest.mark.parametrize("listed", [0, 1])
def test_intake_discards_the_publication_on_two_different_objects(sample, desk, intake, listed):
    intake.take_manifest(listing(sample, listed))
    intake.receive(sample.obj(K, 0, 0))
    before = bytes(desk.buffers[K, 0])
    other = b"!" * sample.layout.data_bytes(K, 0)

    intake.receive(sample.obj(K, 0, 0, data=other))

    assert [error.reason for error in desk.discarded] == ["contradiction"]
    assert bytes(desk.buffers[K, 0]) == before


def test_intake_rejects_another_digest_than_the_listed_one(sample, desk, intake):
    intake.take_manifest(listing(sample, 1))
    other = b"!" * sample.layout.data_bytes(K, 0)

    intake.receive(sample.obj(K, 0, 0, data=other))

    assert desk.counters.rejected == {"listed_digest": 1}
    assert not any(map(any, desk.buffers.values()))
    assert desk.discarded == []


def test_intake_raises_when_a_later_manifest_contradicts_an_accepted_block(sample, intake):
    intake.receive(sample.obj(K, 1, 3))
    digests = [list(group) for group in sample.digests(K, 2)]
    digests[1][3] = bytes(32)

    with pytest.raises(IntegrityError, match="layer 1, block 3"):
        intake.take_manifest(listing(sample, 2, digests=tuple(map(tuple, digests))))


def test_intake_is_confirmed_by_the_manifest_that_lists_its_layers(sample, intake):
    intake.take_manifest(listing(sample, 2))

    assert intake.ledger.unconfirmed() == LAYERS - 2
    assert not intake.is_unlisted


def test_intake_of_a_complete_segment_without_digests_needs_no_confirmation(sample, intake):
    segment = replace(sample.manifest.segments[0], complete=True)

    intake.take_manifest(sample.manifest.with_segment(segment))

    assert intake.is_unlisted


def feed(intake, obj, *sizes):
    """Give an Object to an intake in parts of these sizes and one with the rest."""
    octets = memoryview(obj.payload)
    arrival = intake.begin(obj._replace(payload=b""), len(octets), octets[: sizes[0]])
    octets = octets[sizes[0] :]
    for size in (*sizes[1:], len(octets) - sum(sizes[1:])):
        if arrival is not None:
            arrival.take(octets[:size])
        octets = octets[size:]
    return arrival


@pytest.mark.parametrize("sizes", [(0,), (1,), (67,), (68,), (69,), (10, 58, 3), (40, 30, 1, 1)])
def test_intake_takes_an_object_that_arrives_in_parts(sample, desk, intake, sizes):
    feed(intake, sample.obj(K, 1, 2), *sizes)

    size = sample.layout.data_bytes(K, 1)
    assert desk.buffers[K, 1][2 * size : 3 * size] == sample.data(K, 1, 2)
    assert desk.counters.verified == 1
    assert desk.counters.payload_bytes == 68 + size


def test_intake_splits_jointly_encoded_data_that_arrives_in_parts(sample, desk):
    name = DataTrackName(KV, "raw", 0)
    segment = replace(sample.manifest.segments[0], tracks=("kv.raw.s0",))
    manifest = sample.manifest.with_segment(segment)
    intake = TrackIntake(desk.context, wanted((name,)), name, layers=(0,), manifest=manifest)
    k, v = sample.data(K, 0, 0), sample.data(V, 0, 0)

    feed(intake, sample.obj(KV, 0, 0, data=k + v), 70, len(k) - 1)

    assert desk.buffers[K, 0][: len(k)] == k
    assert desk.buffers[V, 0][: len(v)] == v


def test_nothing_is_written_before_the_last_octet_is_verified(sample, desk, intake):
    obj = sample.obj(K, 0, 0)
    arrival = intake.begin(obj, len(obj.payload), memoryview(obj.payload)[:-1])

    assert not any(desk.buffers[K, 0])
    arrival.take(memoryview(b"!"))

    assert not any(desk.buffers[K, 0])
    assert desk.counters.rejected == {"data_digest": 1}


@pytest.mark.parametrize("change", [-1, 1, 1000])
def test_of_an_object_with_a_wrong_length_only_the_header_is_kept(sample, desk, intake, change):
    whole = sample.obj(K, 0, 0).payload
    payload = (whole + bytes(1000))[: len(whole) + change]

    arrival = feed(intake, sample.obj(K, 0, 0)._replace(payload=payload), 3)

    assert list(arrival._parts) == []
    assert desk.counters.rejected == {"payload_length": 1}


def feed_begin(intake, obj):
    """Give the first octet of an Object to an intake."""
    return intake.begin(obj, len(obj.payload), memoryview(obj.payload)[:1])


def test_closed_memory_is_not_written_any_more(sample, desk, intake):
    obj = sample.obj(K, 0, 0)
    arrival = feed_begin(intake, obj)
    desk.context.placement.close()

    arrival.take(memoryview(obj.payload)[1:])
    intake.receive(sample.obj(K, 0, 1))

    assert not any(bytes(desk.buffers[K, 0]))
    assert desk.counters.verified == 0
