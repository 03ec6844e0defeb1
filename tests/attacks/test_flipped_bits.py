"""A relay flips bits of a sealed publication."""

import pytest
from tests.attacks.liar import MANIFEST, K, Liar, LiveLiar
from tests.attacks.sealed_copy import PLACE, attack, flipped, genuine, is_rejected
from tests.attacks.signed_copy import assert_nothing

from kvcs.errors import IntegrityError
from kvcs.kv.sealing import SealReason


@pytest.mark.parametrize("kind", [Liar, LiveLiar])
@pytest.mark.parametrize("at", [0, 1, 30, -17, -16, -1])
def test_a_flipped_bit_breaks_the_seal(kind, at):
    copy = genuine()
    obj = copy.find(K, *PLACE)
    copy.replace(K, obj, payload=flipped(obj.payload, at))

    assert is_rejected(attack(copy, kind), SealReason.SEAL)


@pytest.mark.parametrize("at", [0, 40, -16, -1])
def test_a_flipped_bit_of_the_manifest_is_an_error(at):
    copy = genuine()
    for obj in tuple(copy.tracks[MANIFEST]):
        copy.replace(MANIFEST, obj, payload=flipped(obj.payload, at))

    outcome = attack(copy)

    assert_nothing(outcome, IntegrityError, SealReason.SEAL)
