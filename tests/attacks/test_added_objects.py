"""A relay adds Objects to a sealed publication."""

from tests.attacks.liar import BLOCKS, K
from tests.attacks.sealed_copy import attack, genuine


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
