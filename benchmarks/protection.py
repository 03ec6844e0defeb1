"""How publications of a benchmark are protected, and what the cipher alone costs.

The keys are fixed, so that the processes of a benchmark agree on them; they protect nothing.
"""

import hashlib
import statistics
import time
from collections.abc import Callable

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from benchmarks.method import MIN_ROUNDS
from kvcs.client import ConsumerConfig, PublisherConfig
from kvcs.client.layer_encoding import LayerSeal, encode_layer
from kvcs.client.opening import Opened, WaitingObject
from kvcs.client.workspace import Workspace
from kvcs.cose import Algorithm, SigningKey
from kvcs.kv import HEADER_BYTES, BlockPlace, Component
from kvcs.kv.sealing import ObjectKey, ObjectKeys, TrackOpener, TrackSealer
from kvcs.kv.signing import TrustedProducers
from kvcs.moqt.wire.object import Object
from kvcs.names import FullTrackName, TrackNamespace

__all__ = ("PROTECTIONS", "aes_gcm", "consumer_config", "publisher_config", "seal_calls")

PROTECTIONS = ("none", "signed", "sealed", "signed+sealed")

_OBJECT_KEY = ObjectKey(key_id=1, secret=bytes(range(16)))
_TRACK = FullTrackName(
    TrackNamespace((b"kvcs-1", bytes(16), bytes(32), bytes(32), bytes(16))), b"k"
)
_PRIORITY = 12
# Octets of all plaintexts together: out of the processor's caches, as in a publication.
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


def aes_gcm(object_bytes: int, count: int) -> float:
    """Return the CPU seconds of AES-GCM over the plaintexts of so many Objects, there and back.

    As in a publication, what is encrypted comes from memory and is kept, in memory that is new;
    what is decrypted is forgotten, and its memory used again.
    """
    aead, aad = AESGCM(bytes(range(16))), bytes(15)
    at_once = _at_once(object_bytes, count)
    plaintexts = [bytearray(HEADER_BYTES + object_bytes + 3) for _ in range(at_once)]
    nonces = [number.to_bytes(12) for number in range(at_once)]
    plaintext = bytearray(len(plaintexts[0]))
    sealed = [aead.encrypt(n, p, aad) for n, p in zip(nonces, plaintexts, strict=True)]
    encrypting, decrypting = _medians(
        lambda: [aead.encrypt(n, p, aad) for n, p in zip(nonces, plaintexts, strict=True)],
        lambda: [
            aead.decrypt_into(n, octets, aad, plaintext)
            for n, octets in zip(nonces, sealed, strict=True)
        ],
    )
    return (encrypting + decrypting) * count / at_once


def seal_calls(object_bytes: int, count: int) -> float:
    """Return the CPU seconds by which sealing and opening so many Objects exceeds hashing them."""
    at_once = _at_once(object_bytes, count)
    data = [(bytes(bytearray(object_bytes)),) for _ in range(at_once)]
    first = BlockPlace(
        component=Component.K, codec=1, layer_index=3, block_index=0, token_start=0, token_count=64
    )

    def seal() -> list[tuple[bytes, bytes]]:
        return encode_layer(first, data, LayerSeal(TrackSealer(_OBJECT_KEY, _TRACK), _PRIORITY))

    in_clear = [memoryview(payload)[HEADER_BYTES:] for payload, _ in encode_layer(first, data)]
    opener = TrackOpener(ObjectKeys([_OBJECT_KEY]), _TRACK)
    immutable = TrackSealer(_OBJECT_KEY, _TRACK).immutable
    waiting = [
        WaitingObject(
            opener,
            Object(group_id=3, object_id=block, subgroup_id=0, publisher_priority=_PRIORITY),
            _OBJECT_KEY.key_id,
            immutable,
            (octets,),
            len(octets),
            _ignore,
        )
        for block, (octets, _) in enumerate(seal())
    ]
    encoding, sealing, hashing, opening = _medians(
        lambda: encode_layer(first, data),
        seal,
        lambda: [hashlib.sha256(octets).digest() for octets in in_clear],
        lambda: _open(waiting),
    )
    return (sealing - encoding + opening - hashing) * count / at_once


def _at_once(object_bytes: int, count: int) -> int:
    return max(1, min(count, _AT_ONCE_BYTES // object_bytes))


def _medians(*calls: Callable[[], object]) -> list[float]:
    """Let the calls take turns, and return the median CPU seconds of each."""
    rounds: list[list[float]] = []
    for _ in range(MIN_ROUNDS):
        seconds: list[float] = []
        for call in calls:
            before = time.process_time()
            call()
            seconds.append(time.process_time() - before)
        rounds.append(seconds)
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


def _open(waiting: list[WaitingObject]) -> None:
    """Open one Object after the other, and use their memory again."""
    workspace = Workspace()
    for one in waiting:
        outcome = one.open(workspace)
        assert isinstance(outcome, Opened)
        buffer = outcome.payload.obj
        outcome.payload.release()
        workspace.give_back(buffer)


def _ignore(_: object) -> None:
    pass
