"""A signed publication, its producer, and a consumer that trusts nobody else."""

from tests.attacks.liar import Copy, retrieve

from kvcs.client import ConsumerConfig, PublisherConfig
from kvcs.cose import Algorithm, SigningKey, open_sign1
from kvcs.kv import TrustedProducers
from kvcs.testing import run

KEY = SigningKey(b"producer-1", Algorithm.ES256, bytes(31) + b"\x07")
COLLEAGUE = SigningKey(b"producer-2", Algorithm.EDDSA, bytes(range(32)))
# A member of the scope who is not trusted, and says that it is the producer.
IMPOSTOR = SigningKey(b"producer-1", Algorithm.ES256, bytes(31) + b"\x09")
SIGNED = PublisherConfig(signing_key=KEY)
TRUST = ConsumerConfig(trusted_producers=TrustedProducers((COLLEAGUE.public, KEY.public)))


def genuine(publication_id=b"p" * 16, *, key=KEY):
    """A copy that may be falsified."""
    config = PublisherConfig(signing_key=key)
    return Copy.genuine(publication_id=publication_id, config=config)


def versions(copy):
    """The JSON of every version, as it was signed."""
    objects = copy.tracks[copy.manifest_name]
    return [open_sign1(obj.payload, [KEY.public]).payload for obj in objects]


def attack(liar, *, config=TRUST, **options):
    """Retrieve everything from a liar by a consumer that demands authenticity."""
    return run(retrieve(liar, config=config, **options))


def assert_nothing(outcome, kind, reason=None, *, counted=None):
    """Nothing was given, the caller has one sentence that says why, and the consumer counts it.

    What was refused by the peer, and not by the consumer, is not counted.
    """
    assert (outcome.layers, outcome.verdict) == (0, None)
    assert isinstance(outcome.error, kind)
    assert reason is None or outcome.error.reason == reason
    assert "\n" not in str(outcome.error)
    word = counted or reason
    assert outcome.refused == ({} if word is None else {word: 1})
