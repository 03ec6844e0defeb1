"""A relay changes what it may see of sealed Objects: priority, Immutable Properties, Key ID."""

import pytest
from tests.attacks.liar import MANIFEST, K
from tests.attacks.sealed_copy import (
    KEY_ID_PROPERTY,
    PLACE,
    attack,
    genuine,
    immutable,
    is_rejected,
)
from tests.attacks.signed_copy import assert_nothing

from kvcs.errors import IntegrityError
from kvcs.kv.sealing import SealReason
from kvcs.moqt.wire.properties import Properties


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


@pytest.mark.parametrize(
    "change",
    [
        {"publisher_priority": 1},
        {"properties": immutable((KEY_ID_PROPERTY, 7), (0x7A, 0))},
    ],
    ids=["priority", "properties"],
)
def test_what_is_changed_at_a_manifest_is_an_error(change):
    copy = genuine()
    for obj in tuple(copy.tracks[MANIFEST]):
        copy.replace(MANIFEST, obj, **change)

    outcome = attack(copy)

    assert_nothing(outcome, IntegrityError, SealReason.SEAL)
