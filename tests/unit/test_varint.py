import pytest

from kvcs.varint import MAX_VI64, NeedMore, decode_vi64, encode_vi64, vi64_length

# MOQT draft 22, Section 8.1: boundaries of every length and values used on the wire.
SHORTEST = {
    0: "00",
    1: "01",
    37: "25",
    63: "3f",
    64: "40",
    127: "7f",
    128: "8080",
    300: "812c",
    0x2F00: "af00",
    0x8C: "808c",
    0x10C: "810c",
    0x20C: "820c",
    0x9D: "809d",
    0x132B3E28: "f0132b3e28",
    0x132B3E29: "f0132b3e29",
    16383: "bfff",
    16384: "c04000",
    2097151: "dfffff",
    2097152: "e0200000",
    268435455: "efffffff",
    268435456: "f010000000",
    34359738367: "f7ffffffff",
    34359738368: "f80800000000",
    4398046511103: "fbffffffffff",
    4398046511104: "fc040000000000",
    562949953421311: "fdffffffffffff",
    562949953421312: "fe02000000000000",
    72057594037927935: "feffffffffffffff",
    72057594037927936: "ff0100000000000000",
    2**62 - 1: "ff3fffffffffffffff",
    2**64 - 1: "ffffffffffffffffff",
}

# Any length that holds the value is legal on receipt.
ANY_LENGTH = {
    "25": 37,
    "8025": 37,
    "bbbd": 15293,
    "ed7f3e7d": 226442877,
    "faa1a0e403d8": 2893212287960,
    "fc8998abc66bc0": 151288809941952,
    "fefa318fa8e3ca11": 70423237261249041,
    "ffffffffffffffffff": 2**64 - 1,
    "8000": 0,
    "c00000": 0,
    "ff0000000000000000": 0,
}


@pytest.mark.parametrize(("value", "text"), SHORTEST.items())
def test_vi64_shortest_form_round_trips(value, text):
    encoded = encode_vi64(value)

    assert encoded.hex() == text
    assert decode_vi64(encoded) == (value, len(encoded))
    assert vi64_length(value) == len(encoded)


@pytest.mark.parametrize(("text", "value"), ANY_LENGTH.items())
def test_vi64_of_any_length_decodes(text, value):
    data = bytes.fromhex(text)

    assert decode_vi64(data) == (value, len(data))


@pytest.mark.parametrize("text", SHORTEST.values())
def test_vi64_cut_short_needs_more(text):
    data = bytes.fromhex(text)

    for end in range(len(data)):
        with pytest.raises(NeedMore):
            decode_vi64(data[:end])


def test_vi64_decodes_at_an_offset_of_any_buffer():
    data = bytes.fromhex("ffff812c00")

    for buffer in (data, bytearray(data), memoryview(data)):
        assert decode_vi64(buffer, 2) == (300, 4)


@pytest.mark.parametrize("value", [-1, MAX_VI64 + 1])
def test_vi64_outside_64_bits_is_refused(value):
    with pytest.raises(ValueError, match="vi64"):
        encode_vi64(value)
