"""Random lies about a signed publication, sealed or in clear: never wrong bytes, always an end.

The liar is a relay, or a member of the scope who has the object key; it has no producer's key.
"""

import pytest
from tests.attacks.liar import TRACKS, payload
from tests.attacks.lies import (
    KINDS,
    add_an_object,
    assert_lie_ends,
    assert_no_mutation_is_accepted,
    borrow_an_object,
    change_a_manifest,
    change_a_priority,
    change_properties,
    cut_manifest,
    end_somewhere,
    flip,
    flip_manifest,
    flip_payload,
    forge_in_clear,
    forge_under_another_key,
    forgery,
    jump_in_versions,
    move_an_object,
    one_object,
    remove_an_object,
    remove_status_objects,
    resize_payload,
    shuffle_versions,
    swap_payloads,
)
from tests.attacks.sealed_copy import DEMANDING, KEY_ID_PROPERTY
from tests.attacks.sealed_copy import KEY as OBJECT_KEY
from tests.attacks.sealed_copy import SIGNED as SEALED
from tests.attacks.signed_copy import IMPOSTOR, KEY, TRUST
from tests.attacks.signed_copy import SIGNED as IN_CLEAR
from tests.seeds import seeded

from kvcs.client.opening import clear_payload
from kvcs.cose import encode_sign1, open_sign1
from kvcs.errors import DataError
from kvcs.kv.sealing import ObjectKeys, TrackOpener, TrackSealer


def replace_payload(copy, track, obj, clear):
    """Put a payload in the place of another, sealed as all are."""
    if copy.config.object_key is not None:
        sealer = TrackSealer(OBJECT_KEY, copy.name.track(track))
        clear = sealer.seal(obj.group_id, obj.object_id, obj.publisher_priority, bytes(clear))
    copy.replace(track, obj, payload=clear)


def clear_manifest(copy, obj):
    if copy.config.object_key is None:
        return obj.payload
    opener = TrackOpener(ObjectKeys([OBJECT_KEY]), copy.name.track(copy.manifest_name))
    return bytes(clear_payload(obj, opener, KEY_ID_PROPERTY))


# Lies of whoever has the object key.


def poison_an_object(chance, copy):
    track, obj = one_object(chance, copy)
    forged, _ = forgery(chance, track, obj)
    replace_payload(copy, track, obj, forged)


def poison_a_layer_and_its_list(chance, copy):
    """Data, digest and list fit each other; the list is signed by somebody else, or as before."""
    track, obj = one_object(chance, copy)
    forged, digest = forgery(chance, track, obj)
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
    other = copy.sibling()
    obj = chance.choice(other.tracks[other.manifest_name])
    target = chance.choice(copy.tracks[copy.manifest_name])
    replace_payload(copy, copy.manifest_name, target, clear_manifest(other, obj))


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
    forget_versions,
]


@seeded("part", range(4), soak=range(4, 36))
def test_no_mutation_of_a_sealed_and_signed_publication_is_accepted(part):
    assert_no_mutation_is_accepted(part, LIES, published=SEALED, demanded=DEMANDING)


@seeded("part", range(40, 42), soak=range(42, 66))
def test_no_mutation_of_a_signed_publication_is_accepted(part):
    assert_no_mutation_is_accepted(part, LIES, published=IN_CLEAR, demanded=TRUST)


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("published", "demanded"), [(SEALED, DEMANDING), (IN_CLEAR, TRUST)], ids=["sealed", "clear"]
)
def test_each_lie_about_a_signed_publication_ends(published, demanded, kind, lie):
    assert_lie_ends(lie, kind, published=published, demanded=demanded)
