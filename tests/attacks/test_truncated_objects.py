"""A relay truncates sealed Objects, or lengthens them."""

import pytest
from tests.attacks.liar import MANIFEST, K, Liar, LiveLiar
from tests.attacks.sealed_copy import PLACE, attack, genuine, is_rejected
from tests.attacks.signed_copy import assert_nothing

from kvcs.errors import IntegrityError
from kvcs.kv.sealing import SealReason


@pytest.mark.parametrize("kind", [Liar, LiveLiar])
@pytest.mark.parametrize("size", [0, 1, 15, 100, -1])
def test_a_truncated_object_is_refused(kind, size):
    copy = genuine()
    obj = copy.find(K, *PLACE)
    copy.replace(K, obj, payload=obj.payload[:size])

    outcome = attack(copy, kind)

    assert is_rejected(outcome, next(iter(outcome.verdict.rejected)))
    assert set(outcome.verdict.rejected) <= {SealReason.SEAL, "payload_length"}


@pytest.mark.parametrize("size", [1, 1000, 100_000])
def test_an_object_with_more_octets_is_refused(size):
    copy = genuine()
    obj = copy.find(K, *PLACE)
    copy.replace(K, obj, payload=obj.payload + bytes(size))

    outcome = attack(copy)

    assert is_rejected(outcome, "payload_length" if size > 1000 else SealReason.SEAL)


@pytest.mark.parametrize("size", [0, 15, -1])
def test_a_truncated_manifest_is_an_error(size):
    copy = genuine()
    for obj in tuple(copy.tracks[MANIFEST]):
        copy.replace(MANIFEST, obj, payload=obj.payload[:size])

    outcome = attack(copy)

    assert_nothing(outcome, IntegrityError, SealReason.SEAL)
