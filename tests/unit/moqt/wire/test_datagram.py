import pytest

from kvcs.moqt.codepoints import ObjectStatus, StreamType
from kvcs.moqt.wire import (
    Object,
    ObjectDatagram,
    Properties,
    encode_padding,
    is_padding_datagram,
)

OBJECT = Object(
    group_id=4,
    object_id=5,
    subgroup_id=None,
    publisher_priority=9,
    properties=Properties.of((0x3800, 1)),
    payload=b"hi",
)


def test_object_goes_into_a_datagram_and_out_of_it():
    datagram = ObjectDatagram.of(OBJECT, track_alias=7, end_of_group=True)

    received = ObjectDatagram.decode(datagram.encode())
    assert received == datagram
    assert received.end_of_group
    assert received.to_object(default_priority=128) == OBJECT


def test_object_inherits_the_priority_of_its_track():
    datagram = ObjectDatagram(track_alias=7, group_id=0, object_id=0, publisher_priority=None)

    assert datagram.to_object(default_priority=77).publisher_priority == 77


@pytest.mark.parametrize(
    "content",
    [{"payload": b"x"}, {"properties": OBJECT.properties}, {"end_of_group": True}],
)
def test_status_with_anything_else_is_refused(content):
    with pytest.raises(ValueError, match="END_OF_TRACK carries nothing else"):
        ObjectDatagram(
            track_alias=7,
            group_id=0,
            object_id=0,
            publisher_priority=1,
            status=ObjectStatus.END_OF_TRACK,
            **content,
        )


@pytest.mark.parametrize(
    ("data", "is_padding"),
    [
        (encode_padding(StreamType.PADDING_DATAGRAM, 3), True),
        (encode_padding(StreamType.PADDING, 3), False),
        (b"\x00\x07\x04\x05\x80", False),
        (b"\xf0\x13", False),
        (b"", False),
    ],
)
def test_padding_is_told_apart(data, is_padding):
    assert is_padding_datagram(data) is is_padding
