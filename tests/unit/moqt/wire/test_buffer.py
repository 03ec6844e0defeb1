import pytest

from kvcs.errors import LocalProtocolError, RemoteProtocolError, TerminationCode
from kvcs.moqt.wire.buffer import (
    MAX_REASON_BYTES,
    Reader,
    encode_prefixed,
    encode_text,
    encode_u8,
    violation,
)
from kvcs.names import FullTrackName, Location, TrackNamespace
from kvcs.varint import NeedMore

TRACK = FullTrackName(TrackNamespace((b"kvcs", b"a")), b"t")


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_reader_takes_fields_in_order_from_any_buffer(kind):
    data = b"\x81\x2c\x07\x01\x02ab" + Location(3, 4).encode() + TRACK.encode() + b"\x02hi!"
    reader = Reader(kind(data))

    assert reader.vi64() == 300
    assert reader.u8() == 7
    assert reader.u16() == 0x0102
    assert reader.take(2) == b"ab"
    assert reader.location() == Location(3, 4)
    assert reader.track() == TRACK
    assert reader.text(2, "name") == "hi"
    assert reader.remaining == 1
    assert reader.rest() == b"!"
    assert reader.remaining == 0


@pytest.mark.parametrize(
    ("data", "method"),
    [
        (b"\x81", Reader.vi64),
        (b"", Reader.u8),
        (b"\x01", Reader.u16),
        (b"a", lambda reader: reader.take(2)),
        (b"\x02a", lambda reader: reader.prefixed(5, "field")),
        (b"\x02a", lambda reader: reader.text(5, "field")),
        (b"\x01\x81", Reader.location),
        (b"\x01\x02a", Reader.namespace),
        (b"\x01\x01a\x02b", Reader.track),
    ],
)
def test_reader_at_the_end_needs_more_and_stays(data, method):
    reader = Reader(data)

    with pytest.raises(NeedMore):
        method(reader)
    assert reader.offset == 0


def test_reader_never_looks_beyond_its_end():
    reader = Reader(b"\x00\x81\x2c", 1, 2)

    assert repr(reader) == "Reader(offset=1, remaining=1)"
    with pytest.raises(NeedMore):
        reader.vi64()


def test_length_above_the_limit_is_refused_before_the_bytes_arrive():
    with pytest.raises(RemoteProtocolError, match="reason with 1025 octets, at most 1024"):
        Reader(b"\x84\x01").prefixed(MAX_REASON_BYTES, "reason")


def test_text_that_is_not_utf8_is_refused():
    with pytest.raises(RemoteProtocolError, match="reason is not UTF-8"):
        Reader(b"\x01\xff").text(10, "reason")


def test_encoders_write_what_the_reader_takes():
    assert encode_prefixed(b"abc") == b"\x03abc"
    assert encode_text("h\u00e9", 3, "text") == b"\x03h\xc3\xa9"
    assert encode_u8(255, "priority") == b"\xff"


def test_text_above_its_limit_is_a_local_error():
    with pytest.raises(LocalProtocolError, match="text with 4 octets, at most 3"):
        encode_text("h\u00e9a", 3, "text")


@pytest.mark.parametrize("value", [-1, 256])
def test_octet_out_of_range_is_refused(value):
    with pytest.raises(ValueError, match="priority is 0"):
        encode_u8(value, "priority")


def test_violation_carries_its_code():
    assert violation("x").code == TerminationCode.PROTOCOL_VIOLATION
