"""A sealed publication, and what its consumer is."""

from functools import lru_cache

from tests.attacks.liar import Copy

from kvcs.client import ConsumerConfig, PublisherConfig
from kvcs.kv.sealing import ObjectKey, ObjectKeys
from kvcs.moqt.codepoints import PropertyType
from kvcs.moqt.wire.properties import Properties

KEY = ObjectKey(key_id=7, secret=bytes(range(16)))
SEALED = PublisherConfig(object_key=KEY)
CONSUMER = ConsumerConfig(object_keys=ObjectKeys([KEY]))
KEY_ID_PROPERTY = 0x78


@lru_cache
def _genuine(publication_id):
    return Copy.genuine(publication_id=publication_id, config=SEALED)


def genuine(publication_id=b"p" * 16):
    """A copy that may be falsified."""
    made = _genuine(publication_id)
    return Copy(made.name, {track: list(objects) for track, objects in made.tracks.items()})


def immutable(*pairs):
    """The properties of an Object whose Immutable Properties are these."""
    inner = Properties.of(*pairs).raw
    return Properties.of((PropertyType.IMMUTABLE_PROPERTIES, inner))
