"""A relay swaps sealed Objects: of blocks, layers and components."""

import pytest
from tests.attacks.liar import K, Liar, LiveLiar, V
from tests.attacks.sealed_copy import PLACE, attack, genuine, is_rejected

from kvcs.kv.sealing import SealReason


@pytest.mark.parametrize("kind", [Liar, LiveLiar])
@pytest.mark.parametrize(
    ("track", "place"), [(K, (2, 0)), (K, (1, 1)), (V, (2, 1))], ids=["block", "layer", "component"]
)
def test_swapped_objects_break_both_seals(kind, track, place):
    copy = genuine()
    one, other = copy.find(K, *PLACE), copy.find(track, *place)
    copy.replace(K, one, payload=other.payload)
    copy.replace(track, other, payload=one.payload)

    outcome = attack(copy, kind)

    assert is_rejected(outcome, SealReason.SEAL, places={PLACE, place}, attempts=10)
