import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcs.moqt.track.arriving import PART_BYTES, Arrivals, Arriving
from kvcs.moqt.wire.object import Object


def arriving(object_id=0, length=10, group_id=0):
    obj = Object(group_id=group_id, object_id=object_id, subgroup_id=0, publisher_priority=0)
    return Arriving(obj, length)


def read_all(obj):
    offset, octets = 0, b""
    while part := obj.read(offset):
        offset += len(part)
        octets += part
    return octets


@pytest.mark.parametrize("is_whole", [False, True])
def test_parts_are_read_in_the_order_in_which_they_came(is_whole):
    payload = bytes(range(256)) * 4096
    obj = arriving(length=len(payload))
    for start, end in ((0, 0), (0, 3), (3, 3), (3, 700_000), (700_000, len(payload))):
        obj.add(memoryview(payload)[start:end])
    if is_whole:
        assert obj.whole().payload == payload

    assert read_all(obj) == payload
    assert obj.is_whole


def test_nothing_is_read_where_nothing_has_come():
    obj = arriving()

    assert obj.read(0) == b""
    obj.add(memoryview(b"abc"))

    assert (obj.read(0), obj.read(3), obj.is_whole) == (b"abc", b"", False)


def test_a_large_part_is_read_in_pieces():
    obj = arriving(length=3 * PART_BYTES)
    obj.add(memoryview(bytes(2 * PART_BYTES + 1)))

    assert [len(obj.read(offset)) for offset in (0, PART_BYTES, 2 * PART_BYTES)] == [
        PART_BYTES,
        PART_BYTES,
        1,
    ]


@given(st.lists(st.sampled_from([0, 1, 3, 5000, 16 * 1024, 300_000]), max_size=12), st.data())
@settings(max_examples=60, deadline=None)
def test_any_cut_reads_as_the_same_octets(sizes, data):
    payload = random.Random(1).randbytes(sum(sizes))
    obj = arriving(length=len(payload))
    offset, octets, end = 0, b"", 0
    for size in sizes:
        obj.add(memoryview(payload)[end : end + size])
        end += size
        for _ in range(data.draw(st.integers(0, 3))):
            part = obj.read(offset)
            offset, octets = offset + len(part), octets + part
    while part := obj.read(offset):
        offset, octets = offset + len(part), octets + part

    assert octets == payload
    assert obj.whole().payload == payload


def test_one_copy_of_an_object_is_on_its_way_at_a_time():
    told = []
    arrivals = Arrivals(told.append)
    first, copy, other = arriving(0), arriving(0), arriving(1)

    for obj in (first, copy, other):
        arrivals.begin(obj)
        arrivals.grew(obj)
    arrivals.end(copy, lost=True)

    assert arrivals.at(0, 0) is first
    assert told == [first.obj, other.obj]
    assert (first.is_lost, copy.is_lost) == (False, True)

    arrivals.end(first, lost=False)
    assert arrivals.at(0, 0) is None
    assert (len(arrivals), arrivals.has_any_in(0, 0)) == (1, True)
    arrivals.end(other, lost=False)
    assert not arrivals.has_any_in(0, 0)
