"""Data and digest are replaced together: by a relay without the key, and by a member with it."""

import pytest
from tests.attacks.liar import K, Liar, LiveLiar, payload
from tests.attacks.sealed_copy import PLACE, attack, genuine, is_rejected, sealed_again

from kvcs.kv import Component
from kvcs.kv.sealing import SealReason
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES

FORGED = b"\x66" * 128


@pytest.mark.parametrize("kind", [Liar, LiveLiar])
def test_data_and_digest_replaced_together_are_not_sealed(kind):
    copy = genuine()
    forged, _ = payload(Component.K, *PLACE, FORGED)
    copy.replace(K, copy.find(K, *PLACE), payload=forged, properties=EMPTY_PROPERTIES)

    assert is_rejected(attack(copy, kind), SealReason.UNSEALED)


def test_data_in_clear_that_claims_to_be_sealed_is_refused_by_its_length():
    copy = genuine()
    forged, _ = payload(Component.K, *PLACE, FORGED)
    copy.replace(K, copy.find(K, *PLACE), payload=forged)

    assert is_rejected(attack(copy), "payload_length")


def test_other_data_under_a_right_seal_is_not_what_the_manifest_lists():
    clear, _ = payload(Component.K, *PLACE, FORGED)

    assert is_rejected(attack(sealed_again(genuine(), clear)), "listed_digest")


@pytest.mark.parametrize("name", ["component", "codec", "layer_index", "token_start"])
def test_another_place_under_a_right_seal_is_refused(name):
    clear, _ = payload(Component.K, *PLACE, **{name: 99})

    assert is_rejected(attack(sealed_again(genuine(), clear)), name.removesuffix("_index"))
