import math
import tracemalloc

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcs.cose import CborLimits, decode_cbor

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.binary(max_size=40)
    | st.text(max_size=40)
)
keys = st.integers(-(2**64), 2**64 - 1) | st.text(max_size=8) | st.binary(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=20,
)
WIDE = CborLimits(max_bytes=2**20, max_depth=64, max_items=2**16)


@given(values)
def test_what_an_independent_encoder_writes_is_read(value):
    assert decode_cbor(cbor2.dumps(value), WIDE) == value


@given(st.binary(max_size=64))
def test_random_octets_give_a_value_or_a_value_error(data):
    try:
        value = decode_cbor(data)
    except ValueError:
        return
    assert repr(decode_cbor(cbor2.dumps(value))) == repr(value)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("", "ends too early"),
        ("1a0001", "ends too early"),
        ("43aabb", "ends too early"),
        ("5bffffffffffffffff", "ends too early"),
        ("9bffffffffffffffff", "ends too early"),
        ("bbffffffffffffffff", "ends too early"),
        ("5f41aaff", "indefinite"),
        ("9fff", "indefinite"),
        ("1c", "reserved"),
        ("c11a5612aeb0", "tag"),
        ("f7", "simple value"),
        ("f8ff", "simple value"),
        ("0000", "1 octets after"),
        ("a201000100", "twice"),
        ("a2616101616101", "twice"),
        ("a1f500", "integer or string"),
        ("a1f93c0000", "integer or string"),
        ("a18000", "nested deeper"),
        ("62c328", "utf-8"),
        ("81" * 9 + "00", "nested deeper than 8"),
        ("98ff" + "00" * 255 + "00", "octets after"),
    ],
)
def test_what_is_outside_the_subset_is_refused(data, text):
    with pytest.raises(ValueError, match=text):
        decode_cbor(bytes.fromhex(data))


def test_a_limit_holds_exactly():
    limits = CborLimits(max_bytes=8, max_depth=2, max_items=4)

    assert decode_cbor(b"\x83\x00\x00\x00", limits) == [0, 0, 0]
    assert decode_cbor(b"\x81\x81\x00", limits) == [[0]]
    with pytest.raises(ValueError, match="more than 4 CBOR items"):
        decode_cbor(b"\x84\x00\x00\x00\x00", limits)
    with pytest.raises(ValueError, match="nested deeper than 2"):
        decode_cbor(b"\x81\x81\x81\x00", limits)
    with pytest.raises(ValueError, match="9 octets of CBOR, at most 8"):
        decode_cbor(b"\x48" + bytes(8), limits)


def test_a_length_of_2_to_the_64_costs_nothing():
    data = b"\x9b" + b"\xff" * 8 + bytes(4000)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="ends too early"):
            decode_cbor(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 2**14


def test_not_a_number_is_read_as_such():
    assert math.isnan(decode_cbor(bytes.fromhex("f97e00")))
