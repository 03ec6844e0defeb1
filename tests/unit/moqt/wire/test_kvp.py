import pytest

from kvcs.errors import RemoteProtocolError
from kvcs.moqt.wire.kvp import MAX_VALUE_BYTES, decode_pairs, encode_pairs
from kvcs.varint import MAX_VI64


def test_pairs_are_sorted_and_equal_types_keep_their_order():
    encoded = encode_pairs([(5, b"b"), (4, 300), (5, b"a"), (0, 1)])

    assert encoded.hex(" ") == "00 01 04 81 2c 01 01 62 00 01 61"
    assert decode_pairs(encoded) == ((0, 1), (4, 300), (5, b"b"), (5, b"a"))


def test_largest_type_and_value_fit():
    pairs = ((MAX_VI64 - 1, MAX_VI64), (MAX_VI64, bytes(MAX_VALUE_BYTES)))

    assert decode_pairs(encode_pairs(pairs)) == pairs


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        ((1, 1), "odd"),
        ((2, b""), "even"),
        ((1, bytes(MAX_VALUE_BYTES + 1)), "at most 65535"),
        ((MAX_VI64 + 1, 1), "vi64"),
    ],
)
def test_illegal_pair_is_not_encoded(pair, reason):
    with pytest.raises(ValueError, match=reason):
        encode_pairs([pair])


@pytest.mark.parametrize("data", ["81", "02", "01 02 61", "01"])
def test_sequence_that_ends_inside_a_pair_is_a_violation(data):
    with pytest.raises(RemoteProtocolError, match="end inside a pair"):
        decode_pairs(bytes.fromhex(data))
