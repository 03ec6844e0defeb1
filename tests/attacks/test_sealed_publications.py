"""A relay without the key lies about a sealed publication: nothing of it is accepted."""

import pytest
from tests.attacks.liar import (
    BLOCKS,
    LAYERS,
    MANIFEST,
    TRACKS,
    Copy,
    K,
    Liar,
    LiveLiar,
    V,
    payload,
    retrieve,
)
from tests.attacks.sealed_copy import (
    CONSUMER,
    DEMANDING,
    KEY,
    KEY_ID_PROPERTY,
    SIGNED,
    genuine,
    immutable,
)

from kvcs.client import ConsumerConfig, MissingReason
from kvcs.errors import IntegrityError
from kvcs.kv import Component, DataTrackName
from kvcs.kv.sealing import SealReason, TrackCipher, TrackSealer
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.testing import run

WANTED = 2 * LAYERS * BLOCKS
PLACE = (2, 1)


def attack(copy, kind=Liar, **options):
    return run(retrieve(kind(copy), **{"config": CONSUMER, **options}))


def is_rejected(outcome, reason, places=(PLACE,), attempts=5):
    """Nothing but these places is missing, and each try is counted by its reason."""
    verdict = outcome.verdict
    assert set(verdict.rejected) == {reason}
    assert len(places) <= verdict.rejected[reason] <= attempts * len(places)
    missing = [
        ((run.layer, block), run.reason)
        for run in verdict.missing
        for block in range(run.first, run.end)
    ]
    assert missing == [(place, MissingReason.REJECTED) for place in sorted(places)]
    assert verdict.verified == WANTED - verdict.missing_objects
    assert verdict.verified_prefix_blocks == min(block for _, block in places)
    return True


def flipped(data, at):
    octets = bytearray(data)
    octets[at] ^= 0x10
    return bytes(octets)


def test_a_genuine_copy_is_taken():
    for kind in (Liar, LiveLiar):
        outcome = attack(genuine(), kind)

        assert outcome.is_whole
        assert outcome.verdict.rejected == {}


@pytest.mark.parametrize("kind", [Liar, LiveLiar])
def test_a_genuine_copy_that_is_signed_too_is_taken_and_authentic(kind):
    outcome = attack(genuine(config=SIGNED), kind, config=DEMANDING)

    assert outcome.is_whole
    assert outcome.verdict.authenticated


def test_a_member_who_is_no_trusted_producer_publishes_nothing():
    outcome = attack(genuine(), config=DEMANDING)

    assert outcome.error is not None
    assert outcome.layers == 0


@pytest.mark.parametrize("kind", [Liar, LiveLiar])
@pytest.mark.parametrize("at", [0, 1, 30, -17, -16, -1])
def test_a_flipped_bit_breaks_the_seal(kind, at):
    copy = genuine()
    obj = copy.find(K, *PLACE)
    copy.replace(K, obj, payload=flipped(obj.payload, at))

    assert is_rejected(attack(copy, kind), SealReason.SEAL)


@pytest.mark.parametrize(
    ("track", "place"), [(K, (2, 0)), (K, (1, 1)), (V, (2, 1))], ids=["block", "layer", "component"]
)
def test_swapped_objects_break_both_seals(track, place):
    copy = genuine()
    one, other = copy.find(K, *PLACE), copy.find(track, *place)
    copy.replace(K, one, payload=other.payload)
    copy.replace(track, other, payload=one.payload)

    assert is_rejected(attack(copy), SealReason.SEAL, places={PLACE, place}, attempts=10)


def test_an_object_of_another_publication_breaks_the_seal():
    copy, other = genuine(), genuine(b"q" * 16)
    copy.replace(K, copy.find(K, *PLACE), payload=other.find(K, *PLACE).payload)

    assert is_rejected(attack(copy), SealReason.SEAL)


def test_an_object_of_another_segment_breaks_the_seal():
    copy = genuine()
    track = copy.name.track(DataTrackName(Component.K, "raw", 1).format())
    obj = copy.find(K, *PLACE)
    clear, _ = payload(Component.K, *PLACE)
    sealed = TrackSealer(KEY, track).seal(*PLACE, obj.publisher_priority, clear)
    copy.replace(K, obj, payload=sealed)

    assert is_rejected(attack(copy), SealReason.SEAL)


def test_all_of_another_publication_under_this_name_is_nothing():
    copy = Copy(genuine().name, genuine(b"q" * 16).tracks)

    outcome = attack(copy)

    assert isinstance(outcome.error, IntegrityError)
    assert outcome.error.reason == SealReason.SEAL
    assert outcome.layers == 0


def test_data_and_digest_replaced_together_are_not_sealed():
    copy = genuine()
    forged, _ = payload(Component.K, *PLACE, b"\x66" * 128)
    copy.replace(K, copy.find(K, *PLACE), payload=forged, properties=EMPTY_PROPERTIES)

    assert is_rejected(attack(copy), SealReason.UNSEALED)


def test_data_in_clear_that_claims_to_be_sealed_is_refused_by_its_length():
    copy = genuine()
    forged, _ = payload(Component.K, *PLACE, b"\x66" * 128)
    copy.replace(K, copy.find(K, *PLACE), payload=forged)

    assert is_rejected(attack(copy), "payload_length")


@pytest.mark.parametrize("size", [0, 1, 15, 100, -1])
def test_a_truncated_object_is_refused(size):
    copy = genuine()
    obj = copy.find(K, *PLACE)
    copy.replace(K, obj, payload=obj.payload[:size])

    outcome = attack(copy)

    assert is_rejected(outcome, next(iter(outcome.verdict.rejected)))
    assert set(outcome.verdict.rejected) <= {SealReason.SEAL, "payload_length"}


@pytest.mark.parametrize("size", [1, 1000, 100_000])
def test_an_object_with_more_octets_is_refused(size):
    copy = genuine()
    obj = copy.find(K, *PLACE)
    copy.replace(K, obj, payload=obj.payload + bytes(size))

    outcome = attack(copy)

    assert is_rejected(outcome, "payload_length" if size > 1000 else SealReason.SEAL)


@pytest.mark.parametrize("kind", [Liar, LiveLiar])
def test_a_dropped_layer_is_missing(kind):
    copy = genuine()
    copy.remove(K, lambda obj: obj.group_id == 2)

    outcome = attack(copy, kind)

    assert {run.layer for run in outcome.verdict.missing} == {2}
    assert outcome.verdict.verified == WANTED - BLOCKS
    assert outcome.verdict.rejected == {}


def test_another_priority_breaks_the_seal():
    copy = genuine()
    obj = copy.find(K, *PLACE)
    copy.replace(K, obj, publisher_priority=obj.publisher_priority + 1)

    assert is_rejected(attack(copy), SealReason.SEAL)


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        (immutable((KEY_ID_PROPERTY, 7), (KEY_ID_PROPERTY + 2, 1)), SealReason.SEAL),
        (immutable((KEY_ID_PROPERTY, 8)), SealReason.UNKNOWN_KEY),
        (immutable((KEY_ID_PROPERTY, 7), (KEY_ID_PROPERTY, 7)), SealReason.UNSEALED),
        (immutable((KEY_ID_PROPERTY + 2, 7)), SealReason.UNSEALED),
        (Properties.of((KEY_ID_PROPERTY, 7)), SealReason.UNSEALED),
    ],
    ids=["added", "other key", "repeated", "other type", "not immutable"],
)
def test_other_properties_break_the_seal(properties, reason):
    copy = genuine()
    copy.replace(K, copy.find(K, *PLACE), properties=properties)

    assert is_rejected(attack(copy), reason)


def test_properties_that_relays_may_add_do_no_harm():
    copy = genuine()
    obj = copy.find(K, *PLACE)
    copy.replace(K, obj, properties=Properties.of((0x7A, 1), *obj.properties.pairs))

    assert attack(copy).is_whole


def test_key_ids_without_number_cost_nothing():
    copy = genuine()
    for number, obj in enumerate([o for o in copy.tracks[K] if o.payload]):
        copy.replace(K, obj, properties=immutable((KEY_ID_PROPERTY, 2**60 + number)))

    outcome = attack(copy, timeout=5.0)

    assert set(outcome.verdict.rejected) == {SealReason.UNKNOWN_KEY}
    assert outcome.layers == 0


def test_objects_beyond_the_blocks_are_padding_to_everyone():
    copy = genuine()
    copy.remove(K, lambda obj: obj.group_id == 1 and obj.status)
    for object_id in range(BLOCKS, BLOCKS + 500):
        copy.add(K, 1, object_id, b"anything")
    copy.tracks[K].sort(key=lambda obj: obj.location)

    outcome = attack(copy)

    assert outcome.is_whole
    assert outcome.verdict.padding == 500
    assert outcome.verdict.rejected == {}


# The manifest.


@pytest.mark.parametrize(
    "lie",
    [
        lambda obj: {"payload": flipped(obj.payload, 40)},
        lambda obj: {"payload": obj.payload[:-1]},
        lambda _: {"publisher_priority": 1},
        lambda _: {"properties": immutable((KEY_ID_PROPERTY, 7), (0x7A, 0))},
    ],
    ids=["flipped", "cut", "priority", "properties"],
)
def test_a_changed_manifest_is_an_error(lie):
    copy = genuine()
    for obj in tuple(copy.tracks[MANIFEST]):
        copy.replace(MANIFEST, obj, **lie(obj))

    outcome = attack(copy)

    assert isinstance(outcome.error, IntegrityError)
    assert outcome.error.reason == SealReason.SEAL


def test_an_older_manifest_in_the_place_of_a_newer_one_is_an_error():
    copy = genuine()
    newest = copy.tracks[MANIFEST][-1]
    copy.replace(MANIFEST, newest, payload=copy.tracks[MANIFEST][0].payload)

    outcome = attack(copy)

    assert outcome.error.reason == SealReason.SEAL


def test_a_manifest_in_clear_is_an_error_to_who_has_keys():
    copy = Copy.genuine()

    outcome = attack(copy)

    assert outcome.error.reason == SealReason.UNSEALED


# Who has the key lies.


def sealed_by_a_member(data=None, **changes):
    copy = genuine()
    obj = copy.find(K, *PLACE)
    clear, _ = payload(Component.K, *PLACE, data, **changes)
    sealer = TrackSealer(KEY, copy.name.track(K))
    copy.replace(
        K, obj, payload=sealer.seal(obj.group_id, obj.object_id, obj.publisher_priority, clear)
    )
    return copy


def test_other_data_under_a_right_seal_is_not_what_the_manifest_lists():
    assert is_rejected(attack(sealed_by_a_member(b"\x66" * 128)), "listed_digest")


@pytest.mark.parametrize("name", ["component", "codec", "layer_index", "token_start"])
def test_another_place_under_a_right_seal_is_refused(name):
    assert is_rejected(attack(sealed_by_a_member(**{name: 99})), name.removesuffix("_index"))


@pytest.mark.parametrize(
    "plaintext",
    [
        b"",
        b"\xff" + b"\xff" * 8,
        b"\xf0\xff\xff\xff\xff",
        b"\x05abc" + b"\x00\x0a\xff" + b"\xff" * 8,
    ],
    ids=["empty", "2^64-1", "2^32", "list"],
)
def test_a_length_bomb_inside_a_right_seal_is_refused(plaintext):
    copy = genuine()
    obj = copy.find(K, *PLACE)
    cipher = TrackCipher(KEY, copy.name.track(K))
    padded = plaintext + bytes(len(obj.payload) - 16 - len(plaintext))
    sealed = cipher.encrypt(*PLACE, obj.publisher_priority, b"\x78\x07", padded)
    copy.replace(K, obj, payload=sealed)

    assert is_rejected(attack(copy), next(iter(attack(copy).verdict.rejected)))
    assert set(attack(copy).verdict.rejected) <= {SealReason.SEAL, "truncated"}


def test_who_has_no_key_takes_nothing_of_it():
    outcome = attack(genuine(), config=ConsumerConfig())

    assert outcome.error is not None
    assert outcome.layers == 0
    assert "Key ID 7" in str(outcome.error)
    assert KEY.secret.hex() not in str(outcome.error)


def test_who_has_no_key_takes_no_sealed_data_under_a_manifest_in_clear():
    clear, sealed = Copy.genuine(), genuine()
    copy = Copy(clear.name, {**clear.tracks, **{track: sealed.tracks[track] for track in TRACKS}})

    outcome = attack(copy, config=ConsumerConfig())

    assert outcome.layers == 0
    assert outcome.verdict.verified == 0
    assert set(outcome.verdict.rejected) == {"magic"}
