"""vi64, the variable-length integer of MOQT.

The number of leading one bits of the first octet says how many octets follow. All 64 bits
are usable, and any length that holds the value is legal on receipt. This is not the
varint of QUIC: the two agree only up to 63.

Source: MOQT draft 22, Section 8.1.
"""

from functools import lru_cache
from typing import Final

__all__ = ("MAX_VI64", "MAX_VI64_BYTES", "NeedMore", "decode_vi64", "encode_vi64", "vi64_length")

MAX_VI64: Final = 2**64 - 1
MAX_VI64_BYTES: Final = 9

_SINGLE: Final = tuple(bytes((value,)) for value in range(128))
# For k following octets: prefix bits and mask of the first octet's value bits.
_PREFIX: Final = (0x00, 0x80, 0xC0, 0xE0, 0xF0, 0xF8, 0xFC, 0xFE, 0xFF)
_MASK: Final = (0x7F, 0x3F, 0x1F, 0x0F, 0x07, 0x03, 0x01, 0x00, 0x00)
_FOLLOWING: Final = tuple(
    next((k for k in range(8) if not first & (0x80 >> k)), 8) for first in range(256)
)


class NeedMore(Exception):
    """The bytes end before the value does; try again with more."""


def vi64_length(value: int) -> int:
    """Return the number of octets of the shortest encoding of `value`."""
    return 9 if value >> 56 else max(1, -(-value.bit_length() // 7))


# The lengths of the Objects of a Track are few, and each is written for every subscriber.
@lru_cache(maxsize=1024)
def encode_vi64(value: int) -> bytes:
    """Encode `value` in the fewest octets.

    Raises:
        ValueError: `value` is negative or needs more than 64 bits.
    """
    if 0 <= value < 128:
        return _SINGLE[value]
    if not 0 <= value <= MAX_VI64:
        raise ValueError(f"vi64 holds 0..2^64-1, got {value}")
    length = vi64_length(value)
    if length == 9:
        return b"\xff" + value.to_bytes(8)
    return (value | (_PREFIX[length - 1] << (8 * (length - 1)))).to_bytes(length)


def decode_vi64(data: bytes | bytearray | memoryview, offset: int = 0) -> tuple[int, int]:
    """Decode the value at `offset`; return it and the offset after it.

    Raises:
        NeedMore: `data` ends inside the value.
    """
    try:
        first = data[offset]
    except IndexError:
        raise NeedMore from None
    if first < 0x80:
        return first, offset + 1
    following = _FOLLOWING[first]
    end = offset + 1 + following
    if end > len(data):
        raise NeedMore
    value = int.from_bytes(data[offset + 1 : end])
    return (first & _MASK[following]) << (8 * following) | value, end
