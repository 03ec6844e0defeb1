"""Key-Value-Pairs, the form of Setup Options and of Properties.

An even Type has one vi64 as its value, an odd Type has octets with a length. Types are
written as differences to the Type before, the first to 0, also in a nested sequence.

Source: MOQT draft 22, Section 8.3.
"""

from collections.abc import Iterable
from typing import Final

from kvcs.moqt.wire.buffer import Reader, encode_prefixed, violation
from kvcs.varint import MAX_VI64, NeedMore, encode_vi64

__all__ = ("MAX_VALUE_BYTES", "KeyValuePair", "decode_pairs", "encode_pairs")

MAX_VALUE_BYTES: Final = 0xFFFF

type KeyValuePair = tuple[int, int | bytes]


def encode_pairs(pairs: Iterable[KeyValuePair]) -> bytes:
    """Encode the pairs in ascending order of their Types, equal Types as given.

    Raises:
        ValueError: A value has the wrong form for its Type, or is too large.
    """
    parts: list[bytes] = []
    previous = 0
    for number, value in sorted(pairs, key=lambda pair: pair[0]):
        parts += (encode_vi64(number - previous), _encode_value(number, value))
        previous = number
    return b"".join(parts)


def _encode_value(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        if number % 2:
            raise ValueError(f"type {number:#x} is odd, its value is octets")
        return encode_vi64(value)
    if not number % 2:
        raise ValueError(f"type {number:#x} is even, its value is one integer")
    if len(value) > MAX_VALUE_BYTES:
        raise ValueError(f"a value has at most {MAX_VALUE_BYTES} octets, got {len(value)}")
    return encode_prefixed(value)


def decode_pairs(data: bytes) -> tuple[KeyValuePair, ...]:
    """Decode a sequence that ends where `data` ends.

    Raises:
        RemoteProtocolError: A Type or a length is too large, or the last pair is cut off.
    """
    reader = Reader(data)
    pairs: list[KeyValuePair] = []
    number = 0
    try:
        while reader.remaining:
            number += reader.vi64()
            if number > MAX_VI64:
                raise violation("type of a key-value pair above 2^64-1")
            value = (
                reader.prefixed(MAX_VALUE_BYTES, "value of a key-value pair")
                if number % 2
                else reader.vi64()
            )
            pairs.append((number, value))
    except NeedMore:
        raise violation("key-value pairs end inside a pair") from None
    return tuple(pairs)
