import pytest

from kvcs.errors import LocalProtocolError, RemoteProtocolError
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.wire import (
    Object,
    Properties,
    Reader,
    SubgroupHeader,
    decode_object_header,
    encode_object_header,
    is_subgroup_type,
)

LOW = (0x0, 0x1, 0x2, 0x3, 0x4, 0x5, 0x8, 0x9, 0xA, 0xB, 0xC, 0xD)
TYPES = [high | low for high in (0x10, 0x30, 0x50, 0x70) for low in LOW]


def obj(object_id, **content):
    return Object(group_id=0, object_id=object_id, subgroup_id=0, publisher_priority=128, **content)


def test_exactly_48_types_are_subgroup_streams():
    assert [number for number in range(300) if is_subgroup_type(number)] == TYPES


@pytest.mark.parametrize("stream_type", TYPES, ids=hex)
def test_header_of_every_type_says_what_its_bits_say(stream_type):
    mode = stream_type & 0x06
    data = bytes((stream_type, 7, 4)) + (b"\x03" if mode == 4 else b"")
    data += b"" if stream_type & 0x20 else b"\x10"

    reader = Reader(data + b"rest")
    header = SubgroupHeader.decode(reader)
    assert reader.rest() == b"rest"
    assert header == SubgroupHeader(
        track_alias=7,
        group_id=4,
        subgroup_id={0: 0, 2: None, 4: 3}[mode],
        publisher_priority=None if stream_type & 0x20 else 16,
        has_properties=bool(stream_type & 0x01),
        end_of_group=bool(stream_type & 0x08),
        first_object=bool(stream_type & 0x40),
    )
    assert header.encode() == data


def test_subgroup_id_0_can_be_written_out():
    data = bytes.fromhex("54 07 04 00 10")

    header = SubgroupHeader.decode(Reader(data))
    assert header.subgroup_id == 0
    assert header.explicit_subgroup_id
    assert header.encode() == data


def test_priority_out_of_range_is_not_encoded():
    header = SubgroupHeader(track_alias=0, group_id=0, subgroup_id=0, publisher_priority=256)

    with pytest.raises(LocalProtocolError, match="Publisher Priority"):
        header.encode()


@pytest.mark.parametrize("object_id", [3, 4])
def test_object_ids_that_do_not_ascend_are_not_encoded(object_id):
    with pytest.raises(LocalProtocolError, match="after Object 4"):
        encode_object_header(obj(object_id), previous_object_id=4, has_properties=False)


def test_properties_need_the_bit_of_the_header():
    with pytest.raises(LocalProtocolError, match="without PROPERTIES"):
        encode_object_header(
            obj(0, properties=Properties.of((0x3800, 1))),
            previous_object_id=None,
            has_properties=False,
        )


def test_object_id_at_its_limit_is_accepted_and_beyond_it_is_not():
    data = b"\x00\x01"

    header = decode_object_header(Reader(data), previous_object_id=2**64 - 2, has_properties=False)
    assert header.object_id == 2**64 - 1
    with pytest.raises(RemoteProtocolError, match="above"):
        decode_object_header(Reader(data), previous_object_id=2**64 - 1, has_properties=False)


def test_end_of_group_may_have_an_empty_properties_field():
    end = obj(3, status=ObjectStatus.END_OF_GROUP)

    encoded = encode_object_header(end, previous_object_id=2, has_properties=True)
    assert encoded.hex() == "00000003"
    header = decode_object_header(Reader(encoded), previous_object_id=2, has_properties=True)
    assert header.status == ObjectStatus.END_OF_GROUP
