"""COSE for signed manifests and for tokens: COSE_Sign1 and COSE_Mac0, keys pinned.

Pure: octets, keys and limits in, octets and values out. What a message says about its
algorithm only counts when the key allows it, and nothing but a bounded envelope is decoded
before the signature was checked.

Source: RFC 9052, RFC 9053, RFC 9864, RFC 8392.
"""

from kvcs.cose.cbor import CborLimits, decode_cbor
from kvcs.cose.envelope import DEFAULT_COSE_LIMITS, CoseLimits
from kvcs.cose.keys import Algorithm, Curve, MacKey, SigningKey, VerifyingKey
from kvcs.cose.message import (
    Opened,
    encode_mac0,
    encode_sign1,
    open_mac0,
    open_sign1,
    unverified_payload,
)

__all__ = (
    "DEFAULT_COSE_LIMITS",
    "Algorithm",
    "CborLimits",
    "CoseLimits",
    "Curve",
    "MacKey",
    "Opened",
    "SigningKey",
    "VerifyingKey",
    "decode_cbor",
    "encode_mac0",
    "encode_sign1",
    "open_mac0",
    "open_sign1",
    "unverified_payload",
)
