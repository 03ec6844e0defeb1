"""One random lie about a signed publication, sealed or in clear: never wrong bytes, always an end.

The liar is a relay, or a member of the scope who has the object key; it has no producer's key.
"""

import random
from functools import lru_cache

import pytest
from tests.attacks.liar import LAYERS, TRACKS, Copy, Liar, LiveLiar, payload, retrieve
from tests.attacks.sealed_copy import KEY as OBJECT_KEY
from tests.attacks.sealed_copy import KEY_ID_PROPERTY
from tests.attacks.signed_copy import IMPOSTOR, KEY, TRUST
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
from tests.attacks.test_mutated_sealed_publications import change_a_priority, change_properties

from kvcs.client import ConsumerConfig, PublisherConfig
from kvcs.client.opening import clear_payload
from kvcs.cose import encode_sign1, open_sign1
from kvcs.errors import DataError
from kvcs.kv.sealing import ObjectKeys, TrackOpener, TrackSealer
from kvcs.testing import LinkProfile, MemoryNetwork, run

PART = 50
IN_CLEAR = PublisherConfig(signing_key=KEY)
SEALED = PublisherConfig(signing_key=KEY, object_key=OBJECT_KEY)
READERS = {
    IN_CLEAR: TRUST,
    SEALED: ConsumerConfig(
        trusted_producers=TRUST.trusted_producers, object_keys=ObjectKeys([OBJECT_KEY])
    ),
}


@lru_cache
def made(config, publication_id):
    return Copy.genuine(publication_id=publication_id, config=config)


def genuine(config, publication_id=b"p" * 16):
    copy = made(config, publication_id)
    return Copy(copy.name, {track: list(objects) for track, objects in copy.tracks.items()})


def is_sealed(copy):
    return any(obj.properties for obj in copy.tracks[copy.manifest_name])


def replace_payload(copy, track, obj, clear):
    """Put a payload in the place of another, sealed as all are."""
    if is_sealed(copy):
        sealer = TrackSealer(OBJECT_KEY, copy.name.track(track))
        clear = sealer.seal(obj.group_id, obj.object_id, obj.publisher_priority, bytes(clear))
    copy.replace(track, obj, payload=clear)


def clear_manifest(copy, obj):
    if not is_sealed(copy):
        return obj.payload
    opener = TrackOpener(ObjectKeys([OBJECT_KEY]), copy.name.track(copy.manifest_name))
    return bytes(clear_payload(obj, opener, KEY_ID_PROPERTY))


# Lies of whoever has the object key.


def poison_an_object(chance, copy):
    track, obj = one_object(chance, copy)
    forged, _ = payload(TRACKS[track], obj.group_id, obj.object_id, chance.randbytes(128))
    replace_payload(copy, track, obj, forged)


def poison_a_layer_and_its_list(chance, copy):
    """Data, digest and list fit each other; the list is signed by somebody else, or as before."""
    track, obj = one_object(chance, copy)
    forged, digest = payload(TRACKS[track], obj.group_id, obj.object_id, chance.randbytes(128))
    genuine_digest = payload(TRACKS[track], obj.group_id, obj.object_id)[1]
    replace_payload(copy, track, obj, forged)
    keep_signature = chance.random() < 0.5
    for version in list(copy.tracks[copy.manifest_name]):
        try:
            data = clear_manifest(copy, version)
            text = open_sign1(data, [KEY.public]).payload
        except DataError:  # Another lie has been here before.
            continue
        old, new = genuine_digest.hex().encode(), digest.hex().encode()
        if keep_signature:
            data = data.replace(old, new)
        else:
            data = encode_sign1(text.replace(old, new), IMPOSTOR)
        replace_payload(copy, copy.manifest_name, version, data)


def move_a_version(chance, copy):
    objects = copy.tracks[copy.manifest_name]
    target, other = chance.choice(objects), chance.choice(objects)
    try:
        replace_payload(copy, copy.manifest_name, target, clear_manifest(copy, other))
    except DataError:  # Another lie has been here before.
        return


def borrow_a_version(chance, copy):
    other = genuine(SEALED if is_sealed(copy) else IN_CLEAR, b"q" * 16)
    obj = chance.choice(other.tracks[other.manifest_name])
    target = chance.choice(copy.tracks[copy.manifest_name])
    replace_payload(copy, copy.manifest_name, target, clear_manifest(other, obj))


def borrow_an_object(chance, copy):
    track, obj = one_object(chance, copy)
    other = genuine(SEALED if is_sealed(copy) else IN_CLEAR, b"q" * 16)
    copy.replace(track, obj, payload=chance.choice(other.tracks[track]).payload or b"x")


def forget_versions(chance, copy):
    objects = copy.tracks[copy.manifest_name]
    del objects[chance.randrange(1, len(objects)) :]


def flip_signature(chance, copy):
    target = chance.choice(copy.tracks[copy.manifest_name])
    try:
        data = clear_manifest(copy, target)
    except DataError:  # Another lie has been here before.
        return
    cut = chance.choice([len(data) - 70, 0])
    replace_payload(copy, copy.manifest_name, target, data[:cut] + flip(chance, data[cut:]))


# Those that read what is genuine come before those that spoil it.
LIES = [
    poison_a_layer_and_its_list,
    poison_an_object,
    borrow_an_object,
    borrow_a_version,
    move_a_version,
    flip_signature,
    flip_payload,
    resize_payload,
    swap_payloads,
    change_a_priority,
    change_properties,
    remove_an_object,
    remove_status_objects,
    move_an_object,
    add_an_object,
    end_somewhere,
    flip_manifest,
    cut_manifest,
    shuffle_versions,
    jump_in_versions,
    forget_versions,
]


async def scenario(seed, config):
    chance = random.Random(seed)
    copy = genuine(config)
    for number in sorted(chance.sample(range(len(LIES)), chance.choice([1, 1, 1, 2, 5]))):
        LIES[number](chance, copy)
    kind = chance.choice([Liar, LiveLiar])
    network = MemoryNetwork(seed, LinkProfile(reorder=chance.choice([0.0, 0.01])))
    return await retrieve(
        kind(copy),
        network=network,
        config=READERS[config],
        idle_timeout=chance.choice([None, 1.0]),
        discovering=True,
    )


def no_mutation_is_accepted(part, config):
    ends = set()
    for seed in range(part * PART, (part + 1) * PART):
        outcome = run(scenario(seed, config), seed=seed)
        ends.add(outcome.is_whole)
        assert outcome.forged == 0, f"seed {seed}"
        assert outcome.error is not None or outcome.verdict is not None, f"seed {seed}"
        if outcome.verdict is not None:
            assert outcome.verdict.authenticated, f"seed {seed}"
            assert outcome.layers <= LAYERS
    assert ends == {True, False}


@pytest.mark.parametrize("part", range(20))
def test_no_mutation_of_a_sealed_and_signed_publication_is_accepted(part):
    no_mutation_is_accepted(part, SEALED)


@pytest.mark.parametrize("part", range(20, 26))
def test_no_mutation_of_a_signed_publication_is_accepted(part):
    no_mutation_is_accepted(part, IN_CLEAR)


@pytest.mark.soak
@pytest.mark.parametrize("config", [SEALED, IN_CLEAR])
@pytest.mark.parametrize("part", range(100, 120))
def test_no_mutation_is_accepted_for_long(part, config):
    no_mutation_is_accepted(part, config)


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
@pytest.mark.parametrize("kind", [Liar, LiveLiar])
@pytest.mark.parametrize("config", [SEALED, IN_CLEAR], ids=["sealed", "clear"])
def test_each_lie_about_a_signed_publication_ends(config, kind, lie):
    async def alone():
        copy = genuine(config)
        lie(random.Random(lie.__name__), copy)
        return await retrieve(kind(copy), config=READERS[config])

    outcome = run(alone())

    assert outcome.forged == 0
    assert outcome.verdict is not None or outcome.error is not None
