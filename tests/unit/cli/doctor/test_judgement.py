"""What the doctor says of a relay that loses, repeats or changes something."""

import pytest

from kvcs.cli.doctor.finding import Grade
from kvcs.cli.doctor.judgement import (
    judge_delivery,
    judge_group_ends,
    judge_object_properties,
    judge_octets,
    judge_priorities,
    judge_track_end,
    judge_track_properties,
    judge_unheld,
)
from kvcs.cli.doctor.source import OBJECT_PROPERTY, TRACK_PROPERTY
from kvcs.moqt import Object, ObjectStatus, Properties, PropertyType
from kvcs.moqt.codepoints import RangeMarker
from kvcs.names import Location


def make(group_id, object_id, payload=b"x", priority=7, properties=OBJECT_PROPERTY):
    return Object(
        group_id=group_id,
        object_id=object_id,
        subgroup_id=0,
        publisher_priority=priority,
        properties=Properties.of(properties) if properties else Properties(),
        payload=payload,
    )


OBJECTS = [make(group_id, object_id) for group_id in range(2) for object_id in range(3)]
EXPECTED = {obj.location: obj for obj in OBJECTS}


def test_delivery_of_each_object_once_is_good():
    assert judge_delivery(EXPECTED, OBJECTS) == (Grade.GOOD, "6 Objects came, each once")


@pytest.mark.parametrize(
    ("arrived", "grade", "text"),
    [
        (OBJECTS[1:], Grade.BAD, "1 of 6 Objects did not come, the first at {0, 0}"),
        ([], Grade.BAD, "6 of 6 Objects did not come, the first at {0, 0}"),
        ([*OBJECTS, *OBJECTS[3:]], Grade.LIMITED, "3 of 6 Objects came again, the first at {1, 0}"),
        (
            [*OBJECTS, make(9, 0)],
            Grade.LIMITED,
            "1 Objects came that were not asked for, the first at {9, 0}",
        ),
    ],
)
def test_delivery_that_loses_repeats_or_adds_is_told(arrived, grade, text):
    assert judge_delivery(EXPECTED, arrived) == (grade, text)


@pytest.mark.parametrize(
    ("judge", "changed", "grade"),
    [
        (judge_octets, make(0, 0, payload=b"y"), Grade.BAD),
        (judge_priorities, make(0, 0, priority=8), Grade.LIMITED),
        (judge_object_properties, make(0, 0, properties=None), Grade.LIMITED),
        (judge_object_properties, make(0, 0, properties=(0x3801, b"other")), Grade.LIMITED),
    ],
)
def test_changed_object_is_told(judge, changed, grade):
    assert judge(EXPECTED, OBJECTS).grade is Grade.GOOD
    found = judge(EXPECTED, [changed, *OBJECTS[1:]])
    assert found.grade is grade
    assert found.text.endswith("in 1 of 6 Objects")
    assert judge(EXPECTED, []).grade is Grade.UNKNOWN


@pytest.mark.parametrize(
    ("properties", "grade", "text"),
    [
        (((PropertyType.MAX_CACHE_DURATION, 60_000), TRACK_PROPERTY), Grade.GOOD, "kept"),
        ((TRACK_PROPERTY,), Grade.LIMITED, "MAX_CACHE_DURATION"),
        (((PropertyType.MAX_CACHE_DURATION, 1), TRACK_PROPERTY), Grade.LIMITED, "CACHE_DURATION"),
        (((PropertyType.MAX_CACHE_DURATION, 60_000),), Grade.LIMITED, "type 0x3800"),
    ],
)
def test_lost_track_properties_are_named(properties, grade, text):
    found = judge_track_properties(Properties.of(*properties), 60.0)

    assert found.grade is grade
    assert text in found.text


def test_end_of_group_counts_as_object_and_as_bit_of_the_header():
    statuses = {Location(0, 3): ObjectStatus.END_OF_GROUP}

    assert judge_group_ends(EXPECTED, statuses, {1}) == (Grade.GOOD, "kept for 2 Groups")
    assert judge_group_ends(EXPECTED, statuses, set()) == (
        Grade.LIMITED,
        "lost for 1 of 2 Groups",
    )


@pytest.mark.parametrize(
    ("statuses", "grade", "text"),
    [
        ({Location(2, 0): ObjectStatus.END_OF_TRACK}, Grade.GOOD, "kept at {2, 0}"),
        (
            {Location(2, 0): ObjectStatus.END_OF_GROUP},
            Grade.LIMITED,
            "turned into END_OF_GROUP at {2, 0}",
        ),
        ({}, Grade.LIMITED, "lost at {2, 0}"),
    ],
)
def test_end_of_track_that_is_changed_or_lost_is_told(statuses, grade, text):
    assert judge_track_end(Location(2, 0), statuses) == (grade, text)


UNHELD = [Location(0, 0), Location(0, 1)]
HELD = [(Location(1, 0), None), (Location(1, 1), None)]


@pytest.mark.parametrize(
    ("records", "grade"),
    [
        ([(Location(0, 2**64 - 1), RangeMarker.UNKNOWN), *HELD], Grade.GOOD),
        ([(Location(0, 2**64 - 1), RangeMarker.TIMED_OUT), *HELD], Grade.GOOD),
        ([(Location(0, 0), None), (Location(0, 1), None), *HELD], Grade.GOOD),
        ([(Location(0, 0), None), (Location(0, 9), RangeMarker.UNKNOWN), *HELD], Grade.GOOD),
        (HELD, Grade.BAD),
        ([], Grade.BAD),
        ([(Location(0, 2**64 - 1), RangeMarker.NON_EXISTENT), *HELD], Grade.BAD),
        ([(Location(0, 0), RangeMarker.UNKNOWN), *HELD], Grade.BAD),
        ([*HELD, (Location(9, 0), RangeMarker.UNKNOWN)], Grade.BAD),
    ],
)
def test_only_marked_gaps_are_honest(records, grade):
    assert judge_unheld(UNHELD, records).grade is grade
