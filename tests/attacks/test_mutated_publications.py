"""Random lies in Objects or manifest of a publication: never wrong bytes, always an end."""

import json

import pytest
from tests.attacks.liar import LAYOUT, TRACKS, payload
from tests.attacks.lies import (
    KINDS,
    add_an_object,
    assert_lie_ends,
    assert_no_mutation_is_accepted,
    cut_manifest,
    end_somewhere,
    flip_manifest,
    flip_payload,
    jump_in_versions,
    move_an_object,
    one_object,
    remove_an_object,
    remove_status_objects,
    resize_payload,
    shuffle_versions,
    swap_payloads,
)
from tests.seeds import seeded

EXTREMES = (0, 1, -1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1, 2**64, -(2**70), 10**400)
ODD_VALUES = (None, True, "", "raw", [], {}, 1.5, "k.raw.s0", "f" * 64, [[]], *EXTREMES)


def another_value_with_a_right_digest(chance, copy):
    track, obj = one_object(chance, copy)
    data = chance.randbytes(LAYOUT.data_bytes(TRACKS[track], obj.group_id))
    made, _ = payload(TRACKS[track], obj.group_id, obj.object_id, data)
    copy.replace(track, obj, payload=made)


def lie_about_the_place(chance, copy):
    track, obj = one_object(chance, copy)
    name = chance.choice(
        ["component", "codec", "layer_index", "block_index", "token_start", "token_count"]
    )
    changes = {name: chance.randrange(200)}
    made, _ = payload(TRACKS[track], obj.group_id, obj.object_id, **changes)
    copy.replace(track, obj, payload=made)


def lie_in_a_member(chance, copy):
    version = chance.randrange(len(copy.tracks[copy.manifest_name]))
    manifest = json.loads(copy.tracks[copy.manifest_name][version].payload)
    holder = manifest
    while True:
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        key = chance.choice(list(keys))
        inner = holder[key]
        if not isinstance(inner, dict | list) or not inner or chance.random() < 0.3:
            break
        holder = inner
    if chance.random() < 0.2:
        del holder[key]
    else:
        holder[key] = chance.choice(ODD_VALUES)
    copy.manifest(json.dumps(manifest).encode(), version)


def lie_about_a_digest(chance, copy):
    version = chance.randrange(1, len(copy.tracks[copy.manifest_name]))
    manifest = json.loads(copy.tracks[copy.manifest_name][version].payload)
    digests = manifest["segments"][0]["object_digests"]
    group = chance.choice(digests[chance.choice(list(digests))])
    group[chance.randrange(len(group))] = chance.randbytes(32).hex()
    copy.manifest(json.dumps(manifest).encode(), version)


# Those that read the JSON come before those that spoil it.
LIES = [
    lie_in_a_member,
    lie_about_a_digest,
    flip_payload,
    resize_payload,
    swap_payloads,
    another_value_with_a_right_digest,
    lie_about_the_place,
    remove_an_object,
    remove_status_objects,
    move_an_object,
    add_an_object,
    end_somewhere,
    flip_manifest,
    cut_manifest,
    shuffle_versions,
    jump_in_versions,
]


@seeded("part", range(4), soak=range(4, 36))
def test_no_mutation_is_accepted(part):
    assert_no_mutation_is_accepted(part, LIES)


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_each_lie_alone_ends(kind, lie):
    assert_lie_ends(lie, kind)
