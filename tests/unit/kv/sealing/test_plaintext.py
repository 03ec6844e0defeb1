"""What is inside a sealed payload: every length is compared with what is there."""

import pytest

from kvcs.kv.sealing.plaintext import (
    MAX_ENCRYPTED_PROPERTIES,
    decode_plaintext,
    encode_filler,
    encode_properties,
)
from kvcs.varint import encode_vi64

PADDING_OF_THREE = bytes.fromhex("0032 0003 000000")


def with_list(properties, length=None):
    size = len(properties) if length is None else length
    return b"\x02ab" + b"\x00\x0a" + encode_vi64(size) + properties


@pytest.mark.parametrize(
    "plaintext",
    [
        b"\x02ab",
        b"\x80\x02ab",  # a longer length than needed is legal
        with_list(b""),
        with_list(encode_properties([(0x0100, b"x"), (0x4321, b"")])),
        with_list(PADDING_OF_THREE),
        with_list(encode_properties([(0x0100, b"x")]) + PADDING_OF_THREE),
        with_list(bytes.fromhex("0032 0000")),
        with_list(
            encode_properties([(n, b"") for n in range(100, 100 + MAX_ENCRYPTED_PROPERTIES)])
        ),
    ],
    ids=lambda value: value.hex()[:40],
)
def test_a_plaintext_gives_its_payload(plaintext):
    assert decode_plaintext(plaintext) == b"ab"


@pytest.mark.parametrize(
    "plaintext",
    [
        b"",
        b"\x03ab",
        b"\xff" + b"\xff" * 8 + b"ab",  # a length bomb
        b"\xff\xff",
        b"\x01ab",  # what follows is no list
        b"\x02ab\x00",
        b"\x02ab\x00\x0a",
        b"\x02ab\x00\x0b\x00",
        with_list(b"", length=1),
        with_list(b"", length=2**63),
        with_list(PADDING_OF_THREE, length=6),
        with_list(b"\x01"),
        with_list(b"\x01\x00"),
        with_list(b"\x01\x00\xff" + b"\xff" * 8),
        with_list(b"\x01\x00\x02a"),
        with_list(b"\x00\x32\x00"),
        with_list(PADDING_OF_THREE[:-1]),
        with_list(PADDING_OF_THREE + encode_properties([(0x0100, b"x")])),  # not the last one
        with_list(PADDING_OF_THREE + PADDING_OF_THREE),
        with_list(
            encode_properties([(n, b"") for n in range(100, 101 + MAX_ENCRYPTED_PROPERTIES)])
        ),
    ],
    ids=lambda value: value.hex()[:40],
)
def test_anything_else_is_no_plaintext(plaintext):
    assert decode_plaintext(plaintext) is None


@pytest.mark.parametrize(
    "size", [0, 10, 11, 70, 500, 2**14, 65_545, 65_546, 65_551, 65_552, 200_000, 3_000_000]
)
def test_a_filler_has_the_size_that_was_asked_for(size):
    filler = encode_filler(size)

    assert len(filler) == max(size, 10)
    assert decode_plaintext(b"\x02ab" + filler) == b"ab"
