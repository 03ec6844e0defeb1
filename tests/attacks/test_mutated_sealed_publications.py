"""One random lie about a sealed publication, signed or not: never wrong bytes, always an end."""

import random

import pytest
from tests.attacks.liar import TRACKS, Liar, LiveLiar, payload, retrieve
from tests.attacks.sealed_copy import (
    CONSUMER,
    DEMANDING,
    KEY,
    KEY_ID_PROPERTY,
    SEALED,
    SIGNED,
    genuine,
    immutable,
)
from tests.attacks.test_mutated_publications import (
    add_an_object,
    cut_manifest,
    end_somewhere,
    flip,
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

from kvcs.kv.sealing import ObjectKey, TrackSealer
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.testing import LinkProfile, MemoryNetwork, run

PART, PARTS = 50, 20
STRANGER = ObjectKey(key_id=KEY.key_id, secret=bytes(16))


def take_from_another_publication(chance, copy):
    track, obj = one_object(chance, copy)
    other = genuine(b"q" * 16)
    copy.replace(
        track, obj, payload=chance.choice([o for o in other.tracks[track] if o.payload]).payload
    )


def forge_in_clear(chance, copy):
    track, obj = one_object(chance, copy)
    forged, _ = payload(TRACKS[track], obj.group_id, obj.object_id, chance.randbytes(128))
    properties = chance.choice([EMPTY_PROPERTIES, obj.properties])
    copy.replace(track, obj, payload=forged, properties=properties)


def forge_under_another_key(chance, copy):
    track, obj = one_object(chance, copy)
    forged, _ = payload(TRACKS[track], obj.group_id, obj.object_id, chance.randbytes(128))
    sealer = TrackSealer(STRANGER, copy.name.track(track))
    sealed = sealer.seal(obj.group_id, obj.object_id, obj.publisher_priority, forged)
    copy.replace(track, obj, payload=sealed)


def change_a_priority(chance, copy):
    track, obj = one_object(chance, copy)
    copy.replace(track, obj, publisher_priority=chance.randrange(256))


def change_properties(chance, copy):
    track, obj = one_object(chance, copy)
    number = chance.choice([KEY_ID_PROPERTY, KEY_ID_PROPERTY + 2, 0x3800])
    value = chance.choice([0, 6, 7, 8, 2**64 - 1])
    properties = chance.choice(
        [
            EMPTY_PROPERTIES,
            immutable((number, value)),
            immutable((KEY_ID_PROPERTY, 7), (number, value)),
            Properties.of((number, value)),
        ]
    )
    copy.replace(track, obj, properties=properties)


def change_a_manifest(chance, copy):
    versions = copy.tracks[copy.manifest_name]
    obj = chance.choice(versions)
    lie = chance.choice(
        [
            {"publisher_priority": chance.randrange(1, 256)},
            {"properties": EMPTY_PROPERTIES},
            {"properties": immutable((KEY_ID_PROPERTY, chance.randrange(9)))},
            {"payload": flip(chance, obj.payload)},
            {"payload": chance.choice(versions).payload},
        ]
    )
    copy.replace(copy.manifest_name, obj, **lie)


LIES = [
    flip_payload,
    resize_payload,
    swap_payloads,
    take_from_another_publication,
    forge_in_clear,
    forge_under_another_key,
    change_a_priority,
    change_properties,
    remove_an_object,
    remove_status_objects,
    move_an_object,
    add_an_object,
    end_somewhere,
    change_a_manifest,
    flip_manifest,
    cut_manifest,
    shuffle_versions,
    jump_in_versions,
]


async def scenario(seed):
    chance = random.Random(seed)
    published, demanded = chance.choice([(SEALED, CONSUMER), (SIGNED, DEMANDING)])
    copy = genuine(config=published)
    for number in sorted(chance.sample(range(len(LIES)), chance.choice([1, 1, 1, 2, 5]))):
        LIES[number](chance, copy)
    kind = chance.choice([Liar, LiveLiar])
    network = MemoryNetwork(seed, LinkProfile(reorder=chance.choice([0.0, 0.01])))
    return await retrieve(
        kind(copy),
        network=network,
        config=demanded,
        idle_timeout=chance.choice([None, 1.0]),
        discovering=True,
    )


@pytest.mark.parametrize("part", range(PARTS))
def test_no_mutation_of_a_sealed_publication_is_accepted(part):
    ends = set()
    for seed in range(part * PART, (part + 1) * PART):
        outcome = run(scenario(seed), seed=seed)
        ends.add(outcome.is_whole)
        # Whatever a manifest lists or does not list yet: no layer is ever wrong.
        assert outcome.forged == 0, f"seed {seed}"
        assert outcome.error is not None or outcome.verdict is not None, f"seed {seed}"
    assert ends == {True, False}


@pytest.mark.soak
@pytest.mark.parametrize("part", range(100, 120))
def test_no_mutation_of_a_sealed_publication_is_accepted_for_long(part):
    test_no_mutation_of_a_sealed_publication_is_accepted(part)


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
@pytest.mark.parametrize("kind", [Liar, LiveLiar])
def test_each_lie_about_a_sealed_and_signed_publication_ends(kind, lie):
    async def alone():
        copy = genuine(config=SIGNED)
        lie(random.Random(lie.__name__), copy)
        return await retrieve(kind(copy), config=DEMANDING)

    outcome = run(alone())

    assert outcome.forged == 0
    assert outcome.verdict is not None or outcome.error is not None
