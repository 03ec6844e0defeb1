"""Who does not lie is believed: the control of every attack on a sealed copy."""

import pytest
from tests.attacks.liar import Liar, LiveLiar
from tests.attacks.sealed_copy import DEMANDING, SIGNED, attack, genuine


@pytest.mark.parametrize("kind", [Liar, LiveLiar])
def test_a_genuine_copy_is_taken(kind):
    outcome = attack(genuine(), kind)

    assert outcome.is_whole
    assert outcome.verdict.rejected == {}


@pytest.mark.parametrize("kind", [Liar, LiveLiar])
def test_a_genuine_copy_that_is_signed_too_is_taken_and_authentic(kind):
    outcome = attack(genuine(config=SIGNED), kind, config=DEMANDING)

    assert outcome.is_whole
    assert outcome.verdict.authenticated
