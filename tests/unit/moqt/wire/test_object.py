import pytest

from kvcs.errors import LocalProtocolError
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.wire import Object, Properties
from kvcs.moqt.wire.object import decode_object_properties, encode_priority
from kvcs.moqt.wire.subgroup import encode_object_header
from kvcs.names import Location
from kvcs.varint import NeedMore

PLACE = {"group_id": 1, "object_id": 2, "subgroup_id": 0, "publisher_priority": 128}


def test_object_has_a_location_and_hides_its_payload():
    obj = Object(**PLACE, payload=b"secret")

    assert obj.location == Location(1, 2)
    assert "secret" not in repr(obj)


@pytest.mark.parametrize("content", [{"payload": b"x"}, {"properties": Properties.of((0x3800, 1))}])
def test_status_with_content_is_not_encoded(content):
    obj = Object(**PLACE, **content, status=ObjectStatus.END_OF_GROUP)

    with pytest.raises(LocalProtocolError, match="END_OF_GROUP carries neither"):
        encode_object_header(obj, previous_object_id=None, has_properties=True)


@pytest.mark.parametrize("priority", [-1, 256])
def test_priority_out_of_range_is_not_encoded(priority):
    with pytest.raises(LocalProtocolError, match="Publisher Priority"):
        encode_priority(priority)


def test_properties_that_are_still_on_their_way_need_more():
    with pytest.raises(NeedMore):
        decode_object_properties(b"\x03\xb8\x00", 0)
