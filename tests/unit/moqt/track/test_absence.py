import pytest

from kvcs.errors import MalformedTrack
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.track.absence import Absence
from kvcs.moqt.track.index import GroupIndex
from kvcs.moqt.track.interval import to_position
from kvcs.moqt.wire.object import Object
from kvcs.names import Location
from kvcs.varint import MAX_VI64


def new(*, authoritative=False):
    index = GroupIndex()
    return index, Absence(index, authoritative=authoritative)


def take(index, absence, group_id, object_id, status=ObjectStatus.NORMAL):
    """Hold an Object as a store does."""
    obj = Object(
        group_id=group_id,
        object_id=object_id,
        subgroup_id=0,
        publisher_priority=0,
        status=status,
    )
    record = index.record(group_id)
    assert absence.admits(record, obj, to_position(obj.location))
    index.insert(record, obj, 0.0)
    absence.learn(record, obj, to_position(obj.location))
    return obj


def test_marked_ranges_leave_out_what_is_held():
    index, absence = new()
    for object_id in (0, 2, 3, 5):
        take(index, absence, 0, object_id)

    absence.mark(Location(0, 0), Location(0, 5))

    assert list(absence.runs) == [(1, 1), (4, 4)]


def test_only_the_gaps_of_the_original_publisher_are_absent():
    for authoritative, runs in ((True, [(0, 0), (2, 3)]), (False, [])):
        index, absence = new(authoritative=authoritative)

        take(index, absence, 0, 1)
        take(index, absence, 0, 4)

        assert list(absence.runs) == runs


def test_the_end_of_a_group_follows_from_absence_alone():
    _, absence = new()

    absence.mark(Location(3, 4), Location(3, MAX_VI64))
    absence.mark(Location(5, 0), Location(5, MAX_VI64))

    assert absence.group_end(3) == Location(3, 3)
    assert absence.group_end(4) is None
    assert absence.group_end(5) is None
    assert absence.covers(Location(5, 0), Location(5, 9))
    assert not absence.covers(Location(5, 0), Location(6, 0))


def test_an_end_of_group_turns_out_to_end_the_track():
    index, absence = new()
    end = take(index, absence, 2, 0, ObjectStatus.END_OF_GROUP)

    absence.end_with(end)

    assert absence.end == Location(2, 0)
    assert "end=" in repr(absence)


def test_a_track_does_not_end_before_its_last_object():
    index, absence = new()
    end = take(index, absence, 2, 0, ObjectStatus.END_OF_GROUP)
    take(index, absence, 3, 0)

    with pytest.raises(MalformedTrack, match="contradicts other Objects"):
        absence.end_with(end)
    with pytest.raises(MalformedTrack, match="and has"):
        absence.finish_track(Location(2, 9))

    assert absence.finish_track(Location(3, 0))
    assert not absence.finish_track(Location(3, 0))
    with pytest.raises(MalformedTrack, match="and at"):
        absence.finish_track(Location(3, 1))
