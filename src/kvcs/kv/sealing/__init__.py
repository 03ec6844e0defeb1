"""End-to-end protected Objects: what relays carry and cannot read or change.

Each Object is sealed by itself, in the way of Secure Objects: payload and Location are bound
together, with the Publisher Priority and the Immutable Properties that relays see.

Source: draft-ietf-moq-secure-objects; KVCS draft, "Security Considerations".
"""

from kvcs.kv.sealing.cipher import MAX_OBJECT_ID, TrackCipher
from kvcs.kv.sealing.key import MAX_KEYS_OF_ONE_ID, ObjectKey, ObjectKeys
from kvcs.kv.sealing.sealed_track import (
    KEY_ID_PROPERTY,
    SealedPayload,
    SealingLimits,
    SealReason,
    TrackOpener,
    TrackSealer,
    sealed_bytes,
)
from kvcs.kv.sealing.suite import CipherSuite

__all__ = (
    "KEY_ID_PROPERTY",
    "MAX_KEYS_OF_ONE_ID",
    "MAX_OBJECT_ID",
    "CipherSuite",
    "ObjectKey",
    "ObjectKeys",
    "SealReason",
    "SealedPayload",
    "SealingLimits",
    "TrackCipher",
    "TrackOpener",
    "TrackSealer",
    "sealed_bytes",
)
