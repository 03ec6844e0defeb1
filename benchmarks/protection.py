"""How publications of a benchmark are protected, and what the cipher alone costs.

The keys are fixed, so that the processes of a benchmark agree on them; they protect nothing.
"""

import hashlib
import time
from collections.abc import Callable

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kvcs.client import ConsumerConfig, PublisherConfig
from kvcs.client.layer_encoding import LayerSeal, encode_layer
from kvcs.client.opening import Opened, WaitingObject
from kvcs.cose import Algorithm, SigningKey
from kvcs.kv import HEADER_BYTES, BlockPlace, Component
from kvcs.kv.sealing import ObjectKey, ObjectKeys, SealedPayload, TrackOpener, TrackSealer
from kvcs.kv.signing import TrustedProducers
from kvcs.names import FullTrackName, Location, TrackNamespace

__all__ = ("PROTECTIONS", "aes_gcm", "consumer_config", "publisher_config", "seal_calls")

PROTECTIONS = ("none", "signed", "sealed", "signed+sealed")

_OBJECT_KEY = ObjectKey(key_id=1, secret=bytes(range(16)))
_TRACK = FullTrackName(
    TrackNamespace((b"kvcs-1", bytes(16), bytes(32), bytes(32), bytes(16))), b"k"
)
_PRIORITY = 12
# Plaintexts of one round trip, so that they are out of the processor's caches as in a publication.
_AT_ONCE_BYTES = 2**25


def _signing_key() -> SigningKey:
    return SigningKey(b"benchmark", Algorithm.ES256, bytes(range(1, 33)))


def publisher_config(protection: str) -> PublisherConfig:
    """Return the settings of a publisher."""
    return PublisherConfig(
        signing_key=_signing_key() if "signed" in protection else None,
        object_key=_OBJECT_KEY if "sealed" in protection else None,
    )


def consumer_config(protection: str) -> ConsumerConfig:
    """Return the settings of a consumer that takes nothing less."""
    trusted = TrustedProducers((_signing_key().public,)) if "signed" in protection else None
    keys = ObjectKeys([_OBJECT_KEY]) if "sealed" in protection else None
    return ConsumerConfig(trusted_producers=trusted, object_keys=keys)


def aes_gcm(object_bytes: int, count: int) -> None:
    """Encrypt and decrypt the plaintexts of so many Objects, as the library does it."""
    aead, aad = AESGCM(bytes(range(16))), bytes(15)
    at_once = max(1, min(count, _AT_ONCE_BYTES // object_bytes))
    plaintexts = [bytes(HEADER_BYTES + object_bytes + 3) for _ in range(at_once)]
    nonces = [number.to_bytes(12) for number in range(at_once)]
    for _ in range(-(-count // at_once)):
        sealed = [aead.encrypt(n, p, aad) for n, p in zip(nonces, plaintexts, strict=True)]
        for nonce, octets in zip(nonces, sealed, strict=True):
            aead.decrypt(nonce, octets, aad)


def seal_calls(object_bytes: int, count: int) -> float:
    """Return the CPU seconds by which sealing and opening so many Objects exceeds hashing them."""
    at_once = max(1, min(count, _AT_ONCE_BYTES // object_bytes))
    data = [(bytes(object_bytes),) for _ in range(at_once)]
    first = BlockPlace(
        component=Component.K, codec=1, layer_index=3, block_index=0, token_start=0, token_count=64
    )
    rounds = -(-count // at_once)
    extra = 0.0
    for _ in range(rounds):
        clear, payloads = _timed(lambda: encode_layer(first, data))
        hashed, _ = _timed(
            lambda payloads=payloads: [
                hashlib.sha256(memoryview(p)[HEADER_BYTES:]).digest() for p, _ in payloads
            ]
        )
        seal = LayerSeal(TrackSealer(_OBJECT_KEY, _TRACK), _PRIORITY)
        sealing, sealed = _timed(lambda seal=seal: encode_layer(first, data, seal))
        opener = TrackOpener(ObjectKeys([_OBJECT_KEY]), _TRACK)
        waiting = [
            WaitingObject(
                opener,
                SealedPayload(Location(3, block), _PRIORITY, 1, seal.sealer.immutable, b""),
                (octets,),
                len(octets),
                _ignore,
            )
            for block, (octets, _) in enumerate(sealed)
        ]
        opening, _ = _timed(lambda waiting=waiting: [one.open() for one in waiting])
        extra += sealing + opening - clear - hashed
    return extra


def _ignore(outcome: object) -> None:
    assert isinstance(outcome, Opened)


def _timed[T](call: Callable[[], T]) -> tuple[float, T]:
    before = time.process_time()
    made = call()
    return time.process_time() - before, made
