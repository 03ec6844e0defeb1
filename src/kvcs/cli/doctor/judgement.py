"""From what came to what is to be said about it; pure functions of expected and arrived Objects."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from kvcs.cli.doctor.finding import Grade
from kvcs.cli.doctor.source import OBJECT_PROPERTY, TRACK_PROPERTY
from kvcs.moqt.codepoints import ObjectStatus, PropertyType, RangeMarker
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import Properties
from kvcs.names import Location

__all__ = (
    "Judgement",
    "judge_delivery",
    "judge_group_ends",
    "judge_object_properties",
    "judge_octets",
    "judge_priorities",
    "judge_track_end",
    "judge_track_properties",
    "judge_unheld",
)

type Expected = Mapping[Location, Object]


class Judgement(NamedTuple):
    """A grade and why."""

    grade: Grade
    text: str


def judge_delivery(expected: Expected, arrived: Sequence[Object]) -> Judgement:
    """Say whether every expected Object came once, and nothing else."""
    counts = Counter(obj.location for obj in arrived)
    missing = [at for at in expected if at not in counts]
    repeated = [at for at, times in counts.items() if times > 1]
    strange = [at for at in counts if at not in expected]
    if missing:
        text = f"{len(missing)} of {len(expected)} Objects did not come, {_first(missing)}"
        return Judgement(Grade.BAD, text)
    if repeated:
        text = f"{len(repeated)} of {len(expected)} Objects came again, {_first(repeated)}"
        return Judgement(Grade.LIMITED, text)
    if strange:
        text = f"{len(strange)} Objects came that were not asked for, {_first(strange)}"
        return Judgement(Grade.LIMITED, text)
    return Judgement(Grade.GOOD, f"{len(expected)} Objects came, each once")


def judge_octets(expected: Expected, arrived: Sequence[Object]) -> Judgement:
    """Say whether payloads are what was published."""
    wrong = _different(expected, arrived, lambda obj: obj.payload)
    largest = max((len(obj.payload) for obj in arrived), default=0)
    return _compared(arrived, wrong, Grade.BAD, f"unchanged up to {largest} octets", "changed")


def judge_priorities(expected: Expected, arrived: Sequence[Object]) -> Judgement:
    """Say whether Objects have the Publisher Priority that they were given."""
    wrong = _different(expected, arrived, lambda obj: obj.publisher_priority)
    return _compared(arrived, wrong, Grade.LIMITED, "kept", "changed")


def judge_object_properties(expected: Expected, arrived: Sequence[Object]) -> Judgement:
    """Say whether a property that the relay does not know came with the Objects."""
    number, _ = OBJECT_PROPERTY
    wrong = _different(expected, arrived, lambda obj: obj.properties.find(number))
    return _compared(arrived, wrong, Grade.LIMITED, "kept, unknown ones too", "lost or changed")


def judge_track_properties(properties: Properties, kept_seconds: float) -> Judgement:
    """Say whether MAX_CACHE_DURATION and an unknown property came with an answer."""
    number, value = TRACK_PROPERTY
    expected = {PropertyType.MAX_CACHE_DURATION: round(kept_seconds * 1000), number: value}
    lost = [number for number, value in expected.items() if properties.find(number) != value]
    if lost:
        names = ", ".join(_property_name(number) for number in lost)
        return Judgement(Grade.LIMITED, f"lost or changed: {names}")
    return Judgement(Grade.GOOD, "kept, unknown ones too")


def judge_group_ends(
    expected: Expected, statuses: Mapping[Location, ObjectStatus], ending_groups: Collection[int]
) -> Judgement:
    """Say whether the end of each Group came, as an Object or in the header of its stream."""
    ends = {
        group_id: 1 + max(at.object_id for at in expected if at.group_id == group_id)
        for group_id in {at.group_id for at in expected}
    }
    lost = [
        Location(group_id, object_id)
        for group_id, object_id in sorted(ends.items())
        if statuses.get(Location(group_id, object_id)) is not ObjectStatus.END_OF_GROUP
        and group_id not in ending_groups
    ]
    if lost:
        return Judgement(Grade.LIMITED, f"lost for {len(lost)} of {len(ends)} Groups")
    return Judgement(Grade.GOOD, f"kept for {len(ends)} Groups")


def judge_track_end(end: Location, statuses: Mapping[Location, ObjectStatus]) -> Judgement:
    """Say whether End of Track came as what it is."""
    match statuses.get(end):
        case ObjectStatus.END_OF_TRACK:
            return Judgement(Grade.GOOD, f"kept at {end}")
        case None:
            return Judgement(Grade.LIMITED, f"lost at {end}")
        case status:
            return Judgement(Grade.LIMITED, f"turned into {status.name} at {end}")


def judge_unheld(
    unheld: Iterable[Location], records: Sequence[tuple[Location, RangeMarker | None]]
) -> Judgement:
    """Say whether an unfiltered FETCH is honest about Objects that the relay does not hold.

    Args:
        unheld: Objects that exist, and that the relay never saw.
        records: What came on the fetch stream, in order; None stands for an Object.
    """
    arrived = {at for at, marker in records if marker is None}
    marked: dict[Location, RangeMarker | None] = dict.fromkeys(unheld)
    previous: Location | None = None
    for through, marker in records:
        for at in marked:
            if marker is not None and (previous is None or at > previous) and at <= through:
                marked[at] = marker
        previous = through
    denied = [at for at, marker in marked.items() if marker is RangeMarker.NON_EXISTENT]
    silent = [at for at, marker in marked.items() if marker is None and at not in arrived]
    if denied:
        text = f"{len(denied)} Objects are said not to exist, {_first(denied)}"
        return Judgement(Grade.BAD, text)
    if silent:
        text = f"{len(silent)} Objects are left out without a marker, {_first(silent)}"
        return Judgement(Grade.BAD, text)
    if not any(marked.values()):
        return Judgement(Grade.GOOD, "the relay held everything")
    return Judgement(Grade.GOOD, "what the relay does not hold is marked as unknown")


def _first(locations: Sequence[Location]) -> str:
    return f"the first at {min(locations)}"


def _different(
    expected: Expected, arrived: Sequence[Object], of: Callable[[Object], object]
) -> list[Location]:
    return [
        obj.location
        for obj in arrived
        if obj.location in expected and of(obj) != of(expected[obj.location])
    ]


def _compared(
    arrived: Sequence[Object], wrong: Sequence[Location], grade: Grade, good: str, bad: str
) -> Judgement:
    if not arrived:
        return Judgement(Grade.UNKNOWN, "no Object came")
    if wrong:
        return Judgement(grade, f"{bad} in {len(wrong)} of {len(arrived)} Objects")
    return Judgement(Grade.GOOD, good)


def _property_name(number: int) -> str:
    try:
        return PropertyType(number).name
    except ValueError:
        return f"type {number:#x}"
