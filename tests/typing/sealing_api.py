"""The types that users of `kvcs.kv.sealing` see; pyright checks this file, nobody runs it."""

from typing import assert_type

from kvcs.kv.sealing import (
    CipherSuite,
    ObjectKey,
    ObjectKeys,
    SealedPayload,
    TrackOpener,
    TrackSealer,
    sealed_bytes,
)
from kvcs.names import FullTrackName


def hold(secret: bytes) -> ObjectKeys:
    key = ObjectKey(key_id=2, suite=CipherSuite.AES_256_GCM_SHA512_128, secret=secret)
    assert_type(key.suite.secret_bytes, int)
    keys = ObjectKeys([ObjectKey(key_id=1, secret=secret)], current=key)
    assert_type(keys.current, ObjectKey | None)
    assert_type(keys.key_ids, tuple[int, ...])
    return keys


def carry(key: ObjectKey, keys: ObjectKeys, track: FullTrackName, payload: bytes) -> None:
    sealer = TrackSealer(key, track)
    sealed = sealer.seal(0, 0, 0, payload, memoryview(payload), padded_bytes=100)
    assert_type(sealed, bytes)
    assert_type(sealed_bytes(key, len(payload)), int)
    obj = SealedPayload(0, 0, 0, key.key_id, sealer.immutable, sealed)
    assert_type(TrackOpener(keys, track).open(obj), memoryview)
