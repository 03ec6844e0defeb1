"""Random lies about a publication, and what no consumer may make of them.

A lie takes a source of chance and a `Copy`, and falsifies one thing in it. A mutation is one or
more lies of a table, told in the order of the table by a random kind of liar over a random
network. `assert_no_mutation_is_accepted` judges a part of the seeds.
"""

import random

from tests.attacks.liar import BLOCKS, LAYERS, TRACKS, Copy, Liar, LiveLiar, payload, retrieve
from tests.attacks.sealed_copy import KEY, KEY_ID_PROPERTY, immutable

from kvcs.kv.sealing import ObjectKey, TrackSealer
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.names import Location
from kvcs.testing import LinkProfile, MemoryNetwork, run

KINDS = (Liar, LiveLiar)
SEEDS = 50
NUMBERS = (0, 1, LAYERS, 2**31, 2**62, 2**64 - 1)
STRANGER = ObjectKey(key_id=KEY.key_id, secret=bytes(16))


# What lies are made of.


def one_object(chance, copy):
    track = chance.choice(list(TRACKS))
    normal = [obj for obj in copy.tracks[track] if obj.payload]
    return track, chance.choice(normal)


def flip(chance, data):
    damaged = bytearray(data)
    damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def forgery(chance, track, obj):
    """Other Data in the place of an Object, and its digest."""
    return payload(TRACKS[track], obj.group_id, obj.object_id, chance.randbytes(128))


# Lies about Objects.


def flip_payload(chance, copy):
    track, obj = one_object(chance, copy)
    copy.replace(track, obj, payload=flip(chance, obj.payload))


def resize_payload(chance, copy):
    track, obj = one_object(chance, copy)
    size = chance.randrange(len(obj.payload))
    data = chance.choice([obj.payload[:size], obj.payload + chance.randbytes(1 + size)])
    copy.replace(track, obj, payload=data)


def swap_payloads(chance, copy):
    (one, first), (other, second) = one_object(chance, copy), one_object(chance, copy)
    if first is not second:
        copy.replace(one, first, payload=second.payload)
        copy.replace(other, second, payload=first.payload)


def remove_an_object(chance, copy):
    track, gone = one_object(chance, copy)
    copy.remove(track, lambda obj: obj is gone)


def remove_status_objects(chance, copy):
    track, _ = one_object(chance, copy)
    copy.remove(track, lambda obj: obj.status is not ObjectStatus.NORMAL and chance.random() < 0.5)


def move_an_object(chance, copy):
    track, obj = one_object(chance, copy)
    group_id, object_id = chance.choice(NUMBERS), chance.choice(NUMBERS)
    if obj.location == Location(group_id, object_id):
        return
    copy.remove(track, lambda other: other.location == Location(group_id, object_id))
    copy.replace(track, obj, group_id=group_id, object_id=object_id)
    copy.tracks[track].sort(key=lambda other: other.location)


def add_an_object(chance, copy):
    track, obj = one_object(chance, copy)
    place = chance.choice(
        [(LAYERS, 0), (LAYERS + 1, 1), (obj.group_id, BLOCKS), (obj.group_id, 2**64 - 1)]
    )
    copy.remove(track, lambda other: other.location == Location(*place))
    copy.add(track, *place, chance.choice([b"", obj.payload]))
    copy.tracks[track].sort(key=lambda other: other.location)


def end_somewhere(chance, copy):
    track, obj = one_object(chance, copy)
    status = chance.choice([ObjectStatus.END_OF_GROUP, ObjectStatus.END_OF_TRACK])
    copy.replace(track, obj, status=status, payload=b"", properties=EMPTY_PROPERTIES)


# Lies in the manifest.


def flip_manifest(chance, copy):
    version = chance.randrange(len(copy.tracks[copy.manifest_name]))
    data = copy.tracks[copy.manifest_name][version].payload
    for _ in range(chance.randrange(1, 4)):
        data = flip(chance, data)
    copy.manifest(data, version)


def cut_manifest(chance, copy):
    version = chance.randrange(len(copy.tracks[copy.manifest_name]))
    data = copy.tracks[copy.manifest_name][version].payload
    copy.manifest(data[: chance.randrange(len(data))], version)


def shuffle_versions(chance, copy):
    versions = [obj.payload for obj in copy.tracks[copy.manifest_name]]
    chance.shuffle(versions)
    for version, data in enumerate(versions):
        copy.manifest(data, version)


def jump_in_versions(chance, copy):
    obj = copy.tracks[copy.manifest_name][-1]
    copy.replace(copy.manifest_name, obj, group_id=chance.choice(NUMBERS[3:]))


# Lies of a relay about what is sealed or signed, without the keys.


def borrow_an_object(chance, copy):
    track, obj = one_object(chance, copy)
    other = copy.sibling().tracks[track]
    copy.replace(track, obj, payload=chance.choice(other).payload or b"x")


def forge_in_clear(chance, copy):
    track, obj = one_object(chance, copy)
    forged, _ = forgery(chance, track, obj)
    properties = chance.choice([EMPTY_PROPERTIES, obj.properties])
    copy.replace(track, obj, payload=forged, properties=properties)


def forge_under_another_key(chance, copy):
    track, obj = one_object(chance, copy)
    forged, _ = forgery(chance, track, obj)
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


# What is told, and what may come of it.


async def mutation(seed, lies, published, demanded):
    """Tell some of the lies; return what became of the retrieval."""
    chance = random.Random(seed)
    copy = Copy.genuine(config=published)
    for number in sorted(chance.sample(range(len(lies)), chance.choice([1, 1, 1, 2, 5]))):
        lies[number](chance, copy)
    kind = chance.choice(KINDS)
    return await retrieve(
        kind(copy),
        network=MemoryNetwork(seed, LinkProfile(reorder=chance.choice([0.0, 0.01]))),
        config=demanded,
        idle_timeout=chance.choice([None, 1.0]),
        discovering=True,
    )


def assert_no_mutation_is_accepted(part, lies, *, published=None, demanded=None):
    """Judge one part of the seeds: some mutations do no harm, some do, and none gets through.

    Args:
        part: Which seeds: so many times `SEEDS`, and the next `SEEDS`.
        lies: The table of lies.
        published: How the publication is made; None signs and seals nothing.
        demanded: What its consumer demands; None demands nothing.
    """
    ends = set()
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        outcome = run(mutation(seed, lies, published, demanded), seed=seed)
        ends.add(outcome.is_whole)
        assert_nothing_wrong(outcome, demanded, f"seed {seed}")
    assert ends == {True, False}


def assert_lie_ends(lie, kind, *, published=None, demanded=None):
    """Tell one lie alone, by one kind of liar, and judge what came of it."""

    async def alone():
        copy = Copy.genuine(config=published)
        lie(random.Random(lie.__name__), copy)
        return await retrieve(kind(copy), config=demanded)

    assert_nothing_wrong(run(alone()), demanded, lie.__name__)


def assert_nothing_wrong(outcome, demanded, told):
    """A verdict or an error, no wrong bytes, and nothing of somebody else.

    Whoever falsifies a publication without seals and signatures can compute its digests anew;
    that such a layer stays unconfirmed is what `retrieve` looks at.
    """
    # A manifest that cannot be ranked hides nothing: the publication is just listed.
    assert outcome.error is not None or outcome.verdict is not None, told
    assert outcome.layers <= LAYERS, told
    if demanded is None:
        return
    # Whatever a manifest lists or does not list yet: no layer is ever wrong.
    assert outcome.forged == 0, told
    if demanded.trusted_producers is not None and outcome.verdict is not None:
        assert outcome.verdict.authenticated, told
