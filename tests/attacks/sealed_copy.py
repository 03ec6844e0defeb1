"""A sealed publication, signed or not, and what its consumer demands."""

from dataclasses import replace

from tests.attacks.liar import BLOCKS, LAYERS, Copy, K, Liar, retrieve
from tests.attacks.signed_copy import KEY as PRODUCER
from tests.attacks.signed_copy import TRUST

from kvcs.client import ConsumerConfig, MissingReason, PublisherConfig
from kvcs.kv.sealing import ObjectKey, ObjectKeys, TrackSealer
from kvcs.moqt.codepoints import PropertyType
from kvcs.moqt.wire.properties import Properties
from kvcs.testing import run

KEY = ObjectKey(key_id=7, secret=bytes(range(16)))
SEALED = PublisherConfig(object_key=KEY)
CONSUMER = ConsumerConfig(object_keys=ObjectKeys([KEY]))
SIGNED = replace(SEALED, signing_key=PRODUCER)
DEMANDING = replace(CONSUMER, trusted_producers=TRUST.trusted_producers)
KEY_ID_PROPERTY = 0x78

WANTED = 2 * LAYERS * BLOCKS
# Group and Object that most lies are about.
PLACE = (2, 1)


def genuine(publication_id=b"p" * 16, *, config=SEALED):
    """A copy that may be falsified."""
    return Copy.genuine(publication_id=publication_id, config=config)


def immutable(*pairs):
    """The properties of an Object whose Immutable Properties are these."""
    inner = Properties.of(*pairs).raw
    return Properties.of((PropertyType.IMMUTABLE_PROPERTIES, inner))


def attack(copy, kind=Liar, **options):
    """Retrieve everything from a liar with a sealed copy."""
    return run(retrieve(kind(copy), **{"config": CONSUMER, **options}))


def is_rejected(outcome, reason, places=(PLACE,), attempts=5):
    """Nothing but these places is missing, and each try is counted by its reason."""
    verdict = outcome.verdict
    assert set(verdict.rejected) == {reason}
    assert len(places) <= verdict.rejected[reason] <= attempts * len(places)
    missing = [
        ((run.layer, block), run.reason)
        for run in verdict.missing
        for block in range(run.first, run.end)
    ]
    assert missing == [(place, MissingReason.REJECTED) for place in sorted(places)]
    assert verdict.verified == WANTED - verdict.missing_objects
    assert verdict.verified_prefix_blocks == min(block for _, block in places)
    return True


def flipped(data, at):
    """Octets with one bit changed."""
    octets = bytearray(data)
    octets[at] ^= 0x10
    return bytes(octets)


def sealed_again(copy, clear, key=KEY):
    """Put another Object into the place that is lied about, under a right seal."""
    obj = copy.find(K, *PLACE)
    sealer = TrackSealer(key, copy.name.track(K))
    sealed = sealer.seal(obj.group_id, obj.object_id, obj.publisher_priority, clear)
    copy.replace(K, obj, payload=sealed)
    return copy
