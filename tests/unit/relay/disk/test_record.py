from hashlib import sha256

import pytest

from kvcs.moqt.codepoints import ObjectStatus, PropertyType
from kvcs.moqt.track.knowledge import Knowledge
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.names import Location
from kvcs.relay.disk.record import (
    _FIELDS,
    HEADER_BYTES,
    KEY_BYTES,
    _knowledge_digest,
    decode_knowledge,
    decode_record,
    encode_header,
    encode_knowledge,
    record_bytes,
)

KEY = bytes(range(KEY_BYTES))
NAME = b"name"
MAX = 2**64 - 1


def encode(obj, key=KEY):
    return encode_header(key, obj) + obj.properties.raw, obj.payload


def position(obj):
    return obj.group_id << 64 | obj.object_id


@pytest.mark.parametrize("subgroup_id", [0, 7, MAX, None])
@pytest.mark.parametrize("place", [(0, 0), (3, 9), (MAX, MAX)])
def test_object_comes_back_with_everything(subgroup_id, place):
    obj = Object(
        group_id=place[0],
        object_id=place[1],
        subgroup_id=subgroup_id,
        publisher_priority=255,
        properties=Properties.of((0x78, 5), (0x79, b"opaque")),
        payload=b"payload",
    )

    head, payload = encode(obj)

    assert decode_record(KEY, position(obj), head, payload) == obj
    assert len(head) + len(payload) == record_bytes(obj)


@pytest.mark.parametrize("status", [ObjectStatus.END_OF_GROUP, ObjectStatus.END_OF_TRACK])
def test_status_object_comes_back(status):
    obj = Object(group_id=1, object_id=2, subgroup_id=0, publisher_priority=1, status=status)

    assert decode_record(KEY, position(obj), *encode(obj)) == obj


def test_any_changed_octet_is_damage():
    obj = Object(
        group_id=1,
        object_id=2,
        subgroup_id=3,
        publisher_priority=4,
        properties=Properties.of((0x78, 5)),
        payload=b"payload",
    )
    head, payload = encode(obj)
    record = head + payload

    for place in range(len(record)):
        changed = bytearray(record)
        changed[place] ^= 0x40
        damaged = bytes(changed)
        found = decode_record(KEY, position(obj), damaged[: len(head)], damaged[len(head) :])
        assert found is None, f"octet {place}"


def test_record_that_ends_too_early_is_damage():
    obj = Object(group_id=0, object_id=0, subgroup_id=0, publisher_priority=0, payload=b"payload")
    head, payload = encode(obj)

    for length in range(HEADER_BYTES):
        assert decode_record(KEY, 0, head[:length], b"") is None
    for length in range(len(payload)):
        assert decode_record(KEY, 0, head, payload[:length]) is None


def test_undamaged_record_of_another_place_or_track_is_not_the_one():
    obj = Object(group_id=1, object_id=2, subgroup_id=0, publisher_priority=0, payload=b"payload")

    assert decode_record(KEY, position(obj) + 1, *encode(obj)) is None
    assert decode_record(bytes(KEY_BYTES), position(obj), *encode(obj)) is None


KNOWLEDGE = [
    Knowledge(properties=EMPTY_PROPERTIES),
    Knowledge(
        properties=Properties.of((PropertyType.MAX_CACHE_DURATION, 60_000)),
        largest=Location(MAX, MAX),
        end=Location(5, 0),
        absent=((4, 2**64 - 1), (2**64 + 7, 2**128 - 1)),
        group_ends=((0, 4, 4), (1, 2**64, MAX)),
    ),
]


@pytest.mark.parametrize("knowledge", KNOWLEDGE, ids=("nothing", "much"))
def test_knowledge_comes_back(knowledge):
    data = encode_knowledge(KEY, NAME, knowledge)

    found = decode_knowledge(KEY, NAME, data)

    assert found == knowledge
    assert found.properties.max_cache_duration_ms == knowledge.properties.max_cache_duration_ms


def test_any_changed_octet_of_knowledge_is_damage():
    data = encode_knowledge(KEY, NAME, KNOWLEDGE[1])

    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        assert decode_knowledge(KEY, NAME, bytes(changed)) is None
    assert decode_knowledge(KEY, b"other", data) is None
    assert decode_knowledge(KEY, NAME, data[:-1]) is None
    assert decode_knowledge(KEY, NAME, b"") is None


def forged(fields, raw=b"", payload=b""):
    """A record with the right digest that this program would not write."""
    digest = sha256(fields + raw + payload).digest()
    head, _ = encode(Object(0, 0, 0, 0))
    return head[: HEADER_BYTES - len(digest) - len(fields)] + digest + fields + raw, payload


def test_record_with_the_right_digest_that_is_no_object_is_damage():
    head, _ = encode(Object(0, 0, 0, 0))
    fields = head[-_FIELDS.size :]
    found = list(_FIELDS.unpack(fields))
    status = found.copy()
    status[6] = 0x7F
    properties = found.copy()
    properties[7] = 1

    assert decode_record(KEY, 0, *forged(fields)) == Object(0, 0, 0, 0)
    assert decode_record(KEY, 0, *forged(_FIELDS.pack(*status))) is None
    assert decode_record(KEY, 0, *forged(_FIELDS.pack(*properties), raw=b"\xff")) is None


@pytest.mark.parametrize("body", [b"", bytes(7), bytes(4) + b"\xff" * 30, bytes(400)])
def test_knowledge_with_the_right_digest_that_says_nothing_is_damage(body):
    digest = _knowledge_digest(KEY, NAME, body)

    assert decode_knowledge(KEY, NAME, digest + body) is None
