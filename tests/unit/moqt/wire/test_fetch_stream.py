import pytest

from kvcs.errors import LocalProtocolError, RemoteProtocolError
from kvcs.moqt.codepoints import GroupOrder, ObjectStatus, RangeMarker
from kvcs.moqt.wire import EndOfRange, FetchDecoder, FetchEncoder, Object, Reader
from kvcs.names import Location
from kvcs.varint import NeedMore


def obj(group_id, object_id, *, subgroup_id=0, priority=128, **content):
    return Object(
        group_id=group_id,
        object_id=object_id,
        subgroup_id=subgroup_id,
        publisher_priority=priority,
        **content,
    )


def test_status_objects_are_not_on_a_fetch_stream():
    with pytest.raises(LocalProtocolError, match="END_OF_TRACK on a fetch stream"):
        FetchEncoder(GroupOrder.ASCENDING).object_header(
            obj(0, 0, status=ObjectStatus.END_OF_TRACK)
        )


@pytest.mark.parametrize(
    ("order", "place"),
    [
        (GroupOrder.ASCENDING, (4, 9)),
        (GroupOrder.ASCENDING, (5, 5)),
        (GroupOrder.ASCENDING, (5, 4)),
        (GroupOrder.DESCENDING, (6, 9)),
        (GroupOrder.DESCENDING, (5, 5)),
    ],
)
def test_records_out_of_order_are_not_encoded_and_change_nothing(order, place):
    encoder = FetchEncoder(order)
    encoder.object_header(obj(5, 5))

    with pytest.raises(LocalProtocolError, match=r"after \{5, 5\}"):
        encoder.object_header(obj(*place))
    with pytest.raises(LocalProtocolError, match=r"after \{5, 5\}"):
        encoder.marker(RangeMarker.UNKNOWN, Location(*place))
    assert repr(encoder) == "FetchEncoder(after=(5, 5))"
    assert encoder.object_header(obj(5, 6)).hex() == "0000"


def test_changed_priority_is_written_and_an_equal_one_is_not():
    encoder = FetchEncoder(GroupOrder.ASCENDING)

    records = [
        encoder.object_header(obj(0, n, priority=p)).hex(" ") for n, p in enumerate((1, 1, 2))
    ]
    assert records == ["1c 00 00 01 00", "00 00", "10 02 00"]


def test_priority_out_of_range_changes_nothing():
    encoder = FetchEncoder(GroupOrder.ASCENDING)

    with pytest.raises(LocalProtocolError, match="Publisher Priority"):
        encoder.object_header(obj(0, 0, priority=256))
    assert encoder.object_header(obj(0, 0)).hex(" ") == "1c 00 00 80 00"


def test_priority_and_subgroup_outlive_a_marker():
    encoder, decoder = FetchEncoder(GroupOrder.ASCENDING), FetchDecoder(GroupOrder.ASCENDING)
    data = encoder.object_header(obj(0, 0, subgroup_id=6, priority=9))
    data += encoder.marker(RangeMarker.NON_EXISTENT, Location(0, 8))
    last = encoder.object_header(obj(0, 9, subgroup_id=6, priority=9))

    reader = Reader(data + last)
    assert last.hex() == "0100"
    assert decoder.record(reader).subgroup_id == 6
    assert decoder.record(reader) == EndOfRange(RangeMarker.NON_EXISTENT, Location(0, 8))
    record = decoder.record(reader)
    assert (record.object_id, record.subgroup_id, record.publisher_priority) == (9, 6, 9)


def test_subgroup_after_an_object_in_datagram_mode_reads_as_0():
    decoder = FetchDecoder(GroupOrder.ASCENDING)
    reader = Reader(bytes.fromhex("5c 00 00 80 00 01 00 02 00"))

    assert decoder.record(reader).subgroup_id is None
    assert decoder.record(reader).subgroup_id == 0
    assert decoder.record(reader).subgroup_id == 1


def test_cut_record_leaves_the_decoder_as_it_was():
    decoder = FetchDecoder(GroupOrder.ASCENDING)
    first = bytes.fromhex("1c 05 05 80 00")
    decoder.record(Reader(first))
    record = bytes.fromhex("3f 03 03 02 0a 03 b8 00 09 01")

    for cut in range(len(record)):
        reader = Reader(record[:cut])
        with pytest.raises(NeedMore):
            decoder.record(reader)
        assert reader.offset == 0
    assert repr(decoder) == "FetchDecoder(after=(5, 5))"
    assert decoder.record(Reader(record)).group_id == 9


def test_descending_groups_end_at_0():
    decoder = FetchDecoder(GroupOrder.DESCENDING)
    decoder.record(Reader(bytes.fromhex("1c 01 00 80 00")))

    assert decoder.record(Reader(bytes.fromhex("0c 00 00 00"))).group_id == 0
    with pytest.raises(RemoteProtocolError, match="outside"):
        decoder.record(Reader(bytes.fromhex("0c 00 00 00")))
