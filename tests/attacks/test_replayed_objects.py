"""A relay replays sealed Objects: of another publication, segment or version."""

import pytest
from tests.attacks.liar import MANIFEST, Copy, K, Liar, LiveLiar, payload
from tests.attacks.sealed_copy import KEY, PLACE, attack, genuine, is_rejected
from tests.attacks.signed_copy import assert_nothing

from kvcs.errors import IntegrityError
from kvcs.kv import Component, DataTrackName
from kvcs.kv.sealing import SealReason, TrackSealer


@pytest.mark.parametrize("kind", [Liar, LiveLiar])
def test_an_object_of_another_publication_breaks_the_seal(kind):
    copy, other = genuine(), genuine(b"q" * 16)
    copy.replace(K, copy.find(K, *PLACE), payload=other.find(K, *PLACE).payload)

    assert is_rejected(attack(copy, kind), SealReason.SEAL)


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

    assert_nothing(outcome, IntegrityError, SealReason.SEAL)


def test_an_older_manifest_in_the_place_of_a_newer_one_is_an_error():
    copy = genuine()
    newest = copy.tracks[MANIFEST][-1]
    copy.replace(MANIFEST, newest, payload=copy.tracks[MANIFEST][0].payload)

    outcome = attack(copy)

    assert_nothing(outcome, IntegrityError, SealReason.SEAL)
