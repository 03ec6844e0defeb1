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
from kvcs.client.workspace import Workspace
from kvcs.cose import Algorithm, SigningKey
from kvcs.kv import HEADER_BYTES, BlockPlace, Component, Descriptor
from kvcs.kv.identity import BlockKey, CompatibilityId, PublicationId, ScopeId
from kvcs.kv.manifest import Manifest, ManifestCadence, parse_manifest
from kvcs.kv.naming import PublicationName
from kvcs.kv.payload import encode_header
from kvcs.kv.sealing import ObjectKey, ObjectKeys, SealedPayload, TrackOpener, TrackSealer
from kvcs.kv.segment import Segment
from kvcs.kv.signing import TrustedProducers, sign_manifest, verify_manifest
from kvcs.varint import MAX_VI64_BYTES

__all__ = (
    "PROTECTIONS",
    "aes_gcm",
    "consumer_config",
    "manifest_calls",
    "publisher_config",
    "seal_calls",
)

PROTECTIONS = ("none", "signed", "sealed", "signed+sealed")

_OBJECT_KEY = ObjectKey(key_id=1, secret=bytes(range(16)))
_NAME = PublicationName(
    scope_id=ScopeId(bytes(16)),
    compatibility_id=CompatibilityId(bytes(32)),
    anchor_key=BlockKey(bytes(32)),
    publication_id=PublicationId(bytes(16)),
)
_TRACK = _NAME.track(b"k.raw.s0")
_PRIORITY = 12
_LAYER = 3
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
    """Return the CPU seconds of sealing so many Objects as a publisher, and of opening them.

    In the same memory as `aes_gcm`, less the copy that puts a payload in clear together too.
    """
    at_once = _at_once(object_bytes, count)
    data = [bytes(bytearray(object_bytes)) for _ in range(at_once)]
    headers = [encode_header(_place(block), octets)[0] for block, octets in enumerate(data)]
    sealer = TrackSealer(_OBJECT_KEY, _TRACK)
    opener, workspace = TrackOpener(ObjectKeys([_OBJECT_KEY]), _TRACK), Workspace()
    scratch = bytearray(HEADER_BYTES + object_bytes + MAX_VI64_BYTES)

    def seal() -> list[bytes]:
        return [
            sealer.seal(_LAYER, block, _PRIORITY, header, octets, scratch=scratch)
            for block, (header, octets) in enumerate(zip(headers, data, strict=True))
        ]

    def put_together() -> None:
        end = HEADER_BYTES + object_bytes
        for header, octets in zip(headers, data, strict=True):
            scratch[:HEADER_BYTES] = header
            scratch[HEADER_BYTES:end] = octets

    key_id = _OBJECT_KEY.key_id
    waiting = [
        SealedPayload(_LAYER, block, _PRIORITY, key_id, sealer.immutable, octets)
        for block, octets in enumerate(seal())
    ]

    def open_all() -> None:
        for one in waiting:
            payload = opener.open(one, workspace.buffer)
            buffer = payload.obj
            payload.release()
            workspace.give_back(buffer)

    sealing, copying, opening = _medians(seal, put_together, open_all)
    return (sealing - copying + opening) * count / at_once


def manifest_calls(descriptor: Descriptor, blocks: int) -> tuple[float, float]:
    """Return the CPU seconds that all versions of a manifest take on both sides.

    Each is written by the publisher and read by the consumer, as after every layer that the
    cadence says.

    Returns:
        Signed, and not signed.
    """
    key, name = _signing_key(), _NAME
    trusted, versions = TrustedProducers((key.public,)), _versions(descriptor, blocks)

    def signed() -> None:
        for version, manifest in enumerate(versions):
            verify_manifest(sign_manifest(manifest, name, version, key), trusted)

    def plain() -> None:
        for manifest in versions:
            parse_manifest(manifest.encode())

    one, other = _medians(signed, plain)
    return one, other


def _versions(descriptor: Descriptor, blocks: int) -> list[Manifest]:
    """Return what a publication of one segment says as it grows."""
    cadence, tracks = ManifestCadence(), ("k.raw.s0", "v.raw.s0")
    digests = {track: [hashlib.sha256(b"").digest()] * blocks for track in tracks}
    segment = Segment(
        segment=0, first_block=0, blocks=blocks, block_keys_sha256=bytes(32), tracks=tracks
    )
    manifest = Manifest(compat=descriptor).with_segment(segment)
    versions = [manifest]
    for layers in range(1, descriptor.layers + 1):
        segment = segment.with_layer(digests)
        is_last = layers == descriptor.layers
        manifest = manifest.with_segment(segment.completed() if is_last else segment)
        if is_last or cadence.due(layers):
            versions.append(manifest)
    return versions


def _place(block_index: int) -> BlockPlace:
    return BlockPlace(
        component=Component.K,
        codec=1,
        layer_index=_LAYER,
        block_index=block_index,
        token_start=64 * block_index,
        token_count=64,
    )


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
