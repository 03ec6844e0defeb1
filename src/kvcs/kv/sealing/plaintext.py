"""What is inside a sealed payload: the payload, and perhaps a list of encrypted properties.

    Payload Length (vi64), Payload, [0x000A (16 bits), List Length (vi64), properties]

A property of that list is a Type of 16 bits, a Length (vi64) and a value, as in the vectors of
the draft; nobody on the way reads them. Of them all only Padding means something here, and it
means nothing: its Length has 16 bits, and it is the last one.

Nothing here looks at octets that were not authenticated, and nobody trusts them more for that:
every length is compared with what is there before anything is taken.

Source: draft-ietf-moq-secure-objects, "Encrypted Properties" and "Padding".
"""

from collections.abc import Iterable
from typing import Final

from kvcs.varint import NeedMore, decode_vi64, encode_vi64

__all__ = (
    "MAX_ENCRYPTED_PROPERTIES",
    "PADDING",
    "decode_plaintext",
    "encode_filler",
    "encode_properties",
)

PADDING: Final = 0x32
MAX_ENCRYPTED_PROPERTIES: Final = 64

_LIST: Final = 0x000A
_TYPE_BYTES: Final = 2
_PADDING_HEAD_BYTES: Final = 4
_MAX_PADDING_BYTES: Final = 0xFFFF
# Holds what does not fit into Padding; a reader ignores it, as any Type that it does not know.
_FILLER: Final = 0xF032
# A vi64 of four octets whatever its value, so that a filler has exactly the size asked for.
_WIDE_VI64: Final = 0xE000_0000
_WIDE_HEAD_BYTES: Final = _TYPE_BYTES + 4
_MIN_FILLER_BYTES: Final = _WIDE_HEAD_BYTES + _PADDING_HEAD_BYTES


def encode_properties(properties: Iterable[tuple[int, bytes]]) -> bytes:
    """Encode properties as the vectors have them: Type (16 bits), Length (vi64), value."""
    return b"".join(
        number.to_bytes(_TYPE_BYTES) + encode_vi64(len(value)) + value
        for number, value in properties
    )


def encode_filler(size_bytes: int) -> bytes:
    """Return an encrypted list that is padding alone, of `size_bytes` octets, or ten if fewer."""
    room = max(size_bytes, _MIN_FILLER_BYTES) - _MIN_FILLER_BYTES
    more = b""
    if room > _MAX_PADDING_BYTES:
        size = max(room - _WIDE_HEAD_BYTES - _MAX_PADDING_BYTES, 0)
        more = _wide_head(_FILLER, size) + bytes(size)
    padding = room - len(more)
    last = PADDING.to_bytes(_TYPE_BYTES) + padding.to_bytes(2) + bytes(padding)
    return _wide_head(_LIST, len(more) + len(last)) + more + last


def _wide_head(number: int, length: int) -> bytes:
    return number.to_bytes(_TYPE_BYTES) + (_WIDE_VI64 | length).to_bytes(4)


def decode_plaintext(plaintext: bytes | bytearray) -> memoryview | None:
    """Return the payload, a read-only view, or None when the octets are not such a plaintext."""
    try:
        length, start = decode_vi64(plaintext)
        end = start + length
        if end != len(plaintext) and (end > len(plaintext) or not _is_list(plaintext, end)):
            return None
    except NeedMore:
        return None
    return memoryview(plaintext)[start:end].toreadonly()


def _is_list(plaintext: bytes | bytearray, offset: int) -> bool:
    """Tell whether one list fills what is left from `offset` on."""
    if plaintext[offset : offset + _TYPE_BYTES] != _LIST.to_bytes(_TYPE_BYTES):
        return False
    length, offset = decode_vi64(plaintext, offset + _TYPE_BYTES)
    if offset + length != len(plaintext):
        return False
    for _ in range(MAX_ENCRYPTED_PROPERTIES):
        if offset == len(plaintext):
            return True
        number = int.from_bytes(plaintext[offset : offset + _TYPE_BYTES])
        offset += _TYPE_BYTES
        if number == PADDING:
            size = int.from_bytes(plaintext[offset : offset + 2])
            return offset + 2 + size == len(plaintext)
        size, offset = decode_vi64(plaintext, offset)
        offset += size
        if offset > len(plaintext):
            return False
    return offset == len(plaintext)
