"""A member seals lengths that promise more than there is."""

import pytest
from tests.attacks.liar import K, Liar, LiveLiar
from tests.attacks.sealed_copy import KEY, PLACE, attack, genuine, is_rejected

from kvcs.kv.sealing import SealReason, TrackCipher


@pytest.mark.parametrize("kind", [Liar, LiveLiar])
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
def test_a_length_bomb_inside_a_right_seal_is_refused(kind, plaintext):
    copy = genuine()
    obj = copy.find(K, *PLACE)
    cipher = TrackCipher(KEY, copy.name.track(K))
    padded = plaintext + bytes(len(obj.payload) - 16 - len(plaintext))
    sealed = cipher.encrypt(*PLACE, obj.publisher_priority, b"\x78\x07", padded)
    copy.replace(K, obj, payload=sealed)

    outcome = attack(copy, kind)

    assert is_rejected(outcome, next(iter(outcome.verdict.rejected)))
    assert set(outcome.verdict.rejected) <= {SealReason.SEAL, "truncated"}
