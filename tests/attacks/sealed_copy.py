"""A sealed publication, signed or not, and what its consumer demands."""

from dataclasses import replace

from tests.attacks.liar import Copy
from tests.attacks.signed_copy import KEY as PRODUCER
from tests.attacks.signed_copy import TRUST

from kvcs.client import ConsumerConfig, PublisherConfig
from kvcs.kv.sealing import ObjectKey, ObjectKeys
from kvcs.moqt.codepoints import PropertyType
from kvcs.moqt.wire.properties import Properties

KEY = ObjectKey(key_id=7, secret=bytes(range(16)))
SEALED = PublisherConfig(object_key=KEY)
CONSUMER = ConsumerConfig(object_keys=ObjectKeys([KEY]))
SIGNED = replace(SEALED, signing_key=PRODUCER)
DEMANDING = replace(CONSUMER, trusted_producers=TRUST.trusted_producers)
KEY_ID_PROPERTY = 0x78


def genuine(publication_id=b"p" * 16, *, config=SEALED):
    """A copy that may be falsified."""
    return Copy.genuine(publication_id=publication_id, config=config)


def immutable(*pairs):
    """The properties of an Object whose Immutable Properties are these."""
    inner = Properties.of(*pairs).raw
    return Properties.of((PropertyType.IMMUTABLE_PROPERTIES, inner))
