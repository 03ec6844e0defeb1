"""A sealed publication, signed or not, and what its consumer demands."""

from dataclasses import replace
from functools import lru_cache

from tests.attacks.liar import Copy

from kvcs.client import ConsumerConfig, PublisherConfig
from kvcs.cose import Algorithm, SigningKey
from kvcs.kv.sealing import ObjectKey, ObjectKeys
from kvcs.kv.signing import TrustedProducers
from kvcs.moqt.codepoints import PropertyType
from kvcs.moqt.wire.properties import Properties

KEY = ObjectKey(key_id=7, secret=bytes(range(16)))
SEALED = PublisherConfig(object_key=KEY)
CONSUMER = ConsumerConfig(object_keys=ObjectKeys([KEY]))
PRODUCER = SigningKey(b"producer", Algorithm.ES256, bytes(range(1, 33)))
SIGNED = replace(SEALED, signing_key=PRODUCER)
DEMANDING = replace(CONSUMER, trusted_producers=TrustedProducers((PRODUCER.public,)))
KEY_ID_PROPERTY = 0x78


@lru_cache
def _genuine(publication_id, config):
    return Copy.genuine(publication_id=publication_id, config=config)


def genuine(publication_id=b"p" * 16, *, config=SEALED):
    """A copy that may be falsified."""
    made = _genuine(publication_id, config)
    return Copy(made.name, {track: list(objects) for track, objects in made.tracks.items()})


def immutable(*pairs):
    """The properties of an Object whose Immutable Properties are these."""
    inner = Properties.of(*pairs).raw
    return Properties.of((PropertyType.IMMUTABLE_PROPERTIES, inner))
