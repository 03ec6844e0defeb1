"""Every vector is decoded and compared, and encoded and compared.

A file names its `form`, which says how its bytes are read and written. A value is JSON
with a few words of its own: an object with `is` is a call of that constructor, text that
begins with `b:` or `x:` is octets, `Enum.MEMBER` is that member, and a list is a tuple.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvcs.errors import RemoteProtocolError
from kvcs.moqt import codepoints, wire
from kvcs.moqt.codepoints import GroupOrder, ParameterType
from kvcs.moqt.wire import (
    FetchDecoder,
    FetchEncoder,
    FetchHeader,
    FetchObjectHeader,
    LocationFilter,
    Object,
    ObjectDatagram,
    RangeFilter,
    Reader,
    SubgroupHeader,
    Token,
    decode_message,
    decode_object_header,
    encode_object_header,
    encode_padding,
)
from kvcs.names import FullTrackName, Location, TrackNamespace
from kvcs.varint import encode_vi64


class Vector(NamedTuple):
    form: str
    data: bytes
    value: Any
    error: str | None
    reason: str
    is_decode_only: bool
    text: str | None


def build(value):
    match value:
        case {"is": "track"}:
            namespace = TrackNamespace(build(value["fields"]))
            return FullTrackName(namespace, build(value["name"]))
        case {"is": "namespace"}:
            return TrackNamespace(build(value["fields"]))
        case {"is": name}:
            rest = {key: build(item) for key, item in value.items() if key not in ("is", "args")}
            return lookup(name)(*build(value.get("args", [])), **rest)
        case dict():
            return {key: build(item) for key, item in value.items()}
        case list():
            return tuple(map(build, value))
        case str() if value.startswith("b:"):
            return value[2:].encode()
        case str() if value.startswith("x:"):
            return bytes.fromhex(value[2:])
        case str() if hasattr(codepoints, value.partition(".")[0]):
            return lookup(value)
        case _:
            return value


def lookup(name):
    head, _, member = name.partition(".")
    sources = (wire, codepoints, {"Location": Location})
    for source in sources:
        found = source.get(head) if isinstance(source, dict) else getattr(source, head, None)
        if found is not None:
            return getattr(found, member) if member else found
    raise LookupError(name)


def vectors():
    for path in sorted(Path(__file__).parent.glob("*.json")):
        content = json.loads(path.read_text())
        for item in content["vectors"]:
            vector = Vector(
                form=content["form"],
                data=bytes.fromhex(item["hex"].replace("|", "")),
                value=build(item.get("value")),
                error=item.get("error"),
                reason=item.get("reason", ""),
                is_decode_only=item.get("decode_only", False),
                text=item.get("text"),
            )
            yield pytest.param(vector, id=f"{path.stem}: {item['name']}")


VECTORS = list(vectors())
GOOD = [param for param in VECTORS if param.values[0].error is None]
BAD = [param for param in VECTORS if param.values[0].error is not None]
ENCODED = [param for param in GOOD if not param.values[0].is_decode_only]
NAMED = [param for param in GOOD if param.values[0].text]


def decode_complete(method, data):
    reader = Reader(data)
    value = method(reader)
    assert reader.remaining == 0
    return value


def decode_whole_message(data):
    message, end = decode_message(data)
    assert end == len(data)
    return message


def decode_range_filter(data):
    reader = Reader(data)
    value = reader.prefixed(100, "range filter")
    assert reader.remaining == 0
    # The kind stands before the value; SetID and property type tell it in these vectors.
    kind = "OBJECT_PROPERTY_FILTER" if value[1:3] == b"\xb8\x00" else "OBJECTID_FILTER"
    return RangeFilter.decode(ParameterType[kind], value)


def decode_subgroup(data):
    reader = Reader(data)
    header = SubgroupHeader.decode(reader)
    items = [header]
    previous = None
    while reader.remaining:
        found = decode_object_header(
            reader, previous_object_id=previous, has_properties=header.has_properties
        )
        previous = found.object_id
        items.append((found, reader.take(found.payload_length)))
    return items


def expected_subgroup(value):
    header, *objects = value
    return [header, *(subgroup_object(header, item) for item in objects)]


def subgroup_object(header, item):
    obj = object_of(header, item)
    found = (obj.object_id, obj.properties, len(obj.payload), obj.status)
    return found, obj.payload


def object_of(header, item):
    return Object(
        group_id=header.group_id,
        subgroup_id=header.subgroup_id,
        publisher_priority=header.publisher_priority or 0,
        **item,
    )


def encode_subgroup(value):
    header, *items = value
    encoded = header.encode()
    previous = None
    for item in items:
        obj = object_of(header, item)
        encoded += encode_object_header(
            obj, previous_object_id=previous, has_properties=header.has_properties
        )
        encoded += obj.payload
        previous = obj.object_id
    return encoded


def decode_fetch_stream(data, order=GroupOrder.ASCENDING):
    reader = Reader(data)
    header = FetchHeader.decode(reader)
    decoder = FetchDecoder(order)
    records = []
    while reader.remaining:
        record = decoder.record(reader)
        if isinstance(record, FetchObjectHeader):
            assert record.payload_length <= reader.remaining
            record = Object(
                group_id=record.group_id,
                object_id=record.object_id,
                subgroup_id=record.subgroup_id,
                publisher_priority=record.publisher_priority,
                properties=record.properties,
                payload=reader.take(record.payload_length),
            )
        records.append(record)
    return {"request_id": header.request_id, "order": order, "records": tuple(records)}


def decode_fetch_vector(vector):
    if vector.form == "fetch_stream_descending":
        return decode_fetch_stream(vector.data, GroupOrder.DESCENDING)
    return decode_fetch_stream(vector.data, (vector.value or {}).get("order", GroupOrder.ASCENDING))


def encode_fetch_stream(value):
    encoder = FetchEncoder(value["order"])
    encoded = FetchHeader(value["request_id"]).encode()
    for record in value["records"]:
        if isinstance(record, Object):
            encoded += encoder.object_header(record) + record.payload
        else:
            encoded += encoder.marker(record.marker, record.location)
    return encoded


DECODE = {
    "vi64": lambda data: decode_complete(Reader.vi64, data),
    "track": lambda data: decode_complete(Reader.track, data),
    "message": decode_whole_message,
    "token": Token.decode,
    "location_filter": lambda data: decode_complete(LocationFilter.decode, data),
    "range_filter": decode_range_filter,
    "subgroup": decode_subgroup,
    "datagram": ObjectDatagram.decode,
    "padding": lambda data: decode_complete(lambda r: (r.vi64(), len(r.rest())), data),
}
ENCODE = {
    "vi64": encode_vi64,
    "subgroup": encode_subgroup,
    "fetch_stream": encode_fetch_stream,
    "padding": lambda value: encode_padding(*value),
}


def decode(vector):
    if vector.form.startswith("fetch_stream"):
        return decode_fetch_vector(vector)
    return DECODE[vector.form](vector.data)


def encode(vector):
    return ENCODE.get(vector.form, lambda value: value.encode())(vector.value)


@pytest.mark.parametrize("vector", GOOD)
def test_bytes_decode_to_the_value(vector):
    value = decode(vector)

    expected = expected_subgroup(vector.value) if vector.form == "subgroup" else vector.value
    assert value == expected


@pytest.mark.parametrize("vector", ENCODED)
def test_value_encodes_to_the_bytes(vector):
    encoded = encode(vector)

    assert encoded.hex(" ") == vector.data.hex(" ")


@pytest.mark.parametrize("vector", [p for p in BAD if p.values[0].error != "INVALID_FILTER"])
def test_malformed_bytes_close_the_session(vector):
    with pytest.raises(RemoteProtocolError) as caught:
        decode(vector)

    assert caught.value.code.name == vector.error
    assert vector.reason
    assert vector.reason in caught.value.reason


@pytest.mark.parametrize("vector", [p for p in BAD if p.values[0].error == "INVALID_FILTER"])
def test_senseless_range_filter_is_a_fault_of_its_request(vector):
    message = decode(vector)

    assert vector.reason
    assert vector.reason in message.parameters.filter_fault


@pytest.mark.parametrize("vector", NAMED)
def test_text_form_stands_for_the_same_name(vector):
    assert vector.value.format() == vector.text
    assert FullTrackName.parse(vector.text) == vector.value
