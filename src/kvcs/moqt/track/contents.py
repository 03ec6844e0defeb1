"""What is held of one Track and known about the gaps between: the half of a store that is read.

Every Location is in one of three states, and `lookup` tells which:

* found: the Object is held;
* absent: it is known that there is no data, and there never will be (`Absence`);
* unknown: everything else. What was dropped or has expired is unknown again.

End of Group and End of Track Objects are held for subscriptions, and their Locations are
absent: they carry no data and never travel in a fetch. Fetches read with `lookup`;
subscriptions follow the Subgroups, in the order in which Objects came.

Source: MOQT draft 22, Sections 2, 3.2.2, 7.1 and 10.3.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.track.absence import Absence
from kvcs.moqt.track.group import Subgroup
from kvcs.moqt.track.index import GroupIndex
from kvcs.moqt.track.interval import MAX_POSITION, to_location, to_position
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import Properties
from kvcs.names import Location
from kvcs.varint import MAX_VI64

__all__ = ("FORWARDING_TIME", "Absent", "Found", "TrackContents", "Unknown")

#: Seconds for which whoever waited for an Object may take it, however soon it expires.
FORWARDING_TIME: Final = 1.0
# Objects that came at the moment at which somebody began to wait came after it.
_MOMENT: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Found:
    """The Object at the Location is held."""

    obj: Object


@dataclass(frozen=True, slots=True)
class Absent:
    """No data exists here, from `start` to `through`, inclusive."""

    through: Location
    start: Location


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nothing is known here, from `start` to `through`, inclusive."""

    through: Location
    start: Location


class TrackContents:
    """What readers see of a store; `TrackStore` is what its one writer sees.

    Attributes:
        authoritative: The writer is the original publisher.
        lifetime: Seconds for which a received Object may be served; None is unlimited.
    """

    def __init__(self, *, properties: Properties, authoritative: bool) -> None:
        self.authoritative = authoritative
        self.properties = properties
        self._index = GroupIndex()
        self._absence = Absence(self._index, authoritative=authoritative)
        self._largest_position = -1
        self._normal_objects = 0

    @property
    def largest(self) -> Location | None:
        """Largest Object that was published, as far as is known here (Section 3.1.4)."""
        position = self._largest_position
        return None if position < 0 else to_location(position)

    @property
    def end(self) -> Location | None:
        """Last Location of the Track, when known."""
        return self._absence.end

    @property
    def properties(self) -> Properties:
        """Track Properties, as they go to subscribers."""
        return self._properties

    @properties.setter
    def properties(self, properties: Properties) -> None:
        self._properties = properties
        # Every look at an Object asks for it.
        duration_ms = None if self.authoritative else properties.max_cache_duration_ms
        self.lifetime = None if duration_ms is None else duration_ms / 1000

    def time_of_forwarding(self, began: float, *, now: float) -> float:
        """Return the time at which whoever waits has to look at what may have expired.

        MAX_CACHE_DURATION is about what is served from a cache. With one that is shorter than it
        takes to pass an Object on, a relay keeps nothing for those who come later, but those who
        waited when it came still get it.

        Args:
            began: Since when they wait, in monotonic seconds.
            now: Monotonic seconds.
        """
        lifetime = self.lifetime
        if lifetime is None or lifetime >= FORWARDING_TIME:
            return now
        return min(now, max(began - _MOMENT, now - FORWARDING_TIME) + lifetime)

    def lookup(self, location: Location, *, now: float) -> Found | Absent | Unknown:
        """Return what is known about `location` and the run of equals around it.

        Args:
            location: Where to look.
            now: Monotonic seconds; what has expired is unknown (Section 10.3).
        """
        obj = self.held(location.group_id, location.object_id, now=now)
        if obj is not None and obj.status is ObjectStatus.NORMAL:
            return Found(obj)
        position = to_position(location)
        absent = self._absence.runs
        run = absent.find(position)
        if run is not None:
            return Absent(start=to_location(run[0]), through=to_location(run[1]))
        above = absent.next_start(position)
        below = absent.previous_end(position)
        since = self._expired_before(now)
        end = self._index.next_position(position, since=since)
        start = self._index.previous_position(position, since=since)
        end = end if above is None else min(end, above)
        start = start if below is None else max(start, below)
        return Unknown(start=to_location(start + 1), through=to_location(end - 1))

    def held(self, group_id: int, object_id: int, *, now: float) -> Object | None:
        """Return the Object, status Objects included, unless it is gone or has expired."""
        record = self._index.records.get(group_id)
        entry = None if record is None else record.entries.get(object_id)
        if entry is None:
            return None
        lifetime = self.lifetime
        return entry[0] if lifetime is None or entry[1] > now - lifetime else None

    def received_at(self, group_id: int, object_id: int) -> float | None:
        """Return when a held Object was received."""
        entry = self._index.find(group_id, object_id)
        return None if entry is None else entry[1]

    def group_end(self, group_id: int) -> Location | None:
        """Return the last Location of a Group, status Objects included, when known.

        Known also without a word about the end, once all that could follow is absent.
        """
        return self._absence.group_end(group_id)

    def is_absent(self, start: Location, through: Location) -> bool:
        """Tell whether it is known that nothing is between two Locations, inclusive."""
        return self._absence.covers(start, through)

    def is_last(self, group_id: int, object_id: int) -> bool:
        """Tell whether it is known that no data follows an Object in its Group."""
        run = self._absence.runs.find(group_id << 64 | object_id + 1)
        return run is not None and run[1] >= group_id << 64 | MAX_VI64

    def groups(self) -> tuple[int, ...]:
        """Return the Group IDs of which Objects are held, ascending."""
        return tuple(self._index.held)

    def subgroups(self, group_id: int) -> tuple[Subgroup, ...]:
        """Return the Subgroups of a Group that are known, held or not."""
        record = self._index.records.get(group_id)
        return () if record is None else tuple(record.subgroups.values())

    def known_groups(self) -> tuple[int, ...]:
        """Return the Group IDs of which anything was ever held, in no order."""
        return tuple(self._index.records)

    def objects(self) -> Iterator[Object]:
        """Yield all held Objects by Location, status Objects included."""
        for group_id in tuple(self._index.held):
            record = self._index.records[group_id]
            for object_id in tuple(record.ids):
                yield record.entries[object_id][0]

    def is_complete(self, data_objects: int | None = None) -> bool:
        """Tell whether the Track has ended and no Location of it is unknown.

        Args:
            data_objects: Objects with data that are held elsewhere, each counted once; None
                is what is held here.
        """
        # Held data and absent Locations are disjoint, so counting is enough.
        held = self._normal_objects if data_objects is None else data_objects
        return self.end is not None and self._absence.runs.size + held == MAX_POSITION + 1

    def ends_group(self, subgroup: Subgroup) -> bool:
        """Tell whether a Subgroup is known to contain the largest Object of its Group."""
        record = self._index.records[subgroup.group_id]
        if subgroup.ends_group is not None:
            return subgroup.ends_group
        if record.end_id is not None:
            return subgroup.largest_id == record.end_id
        # The original publisher would have said so if it used several Subgroups.
        return self.authoritative and len(record.subgroups) == 1

    def is_next(self, subgroup: Subgroup, previous_id: int, object_id: int, *, now: float) -> bool:
        """Tell whether nothing of `subgroup` lies between two Object IDs (Section 7.5).

        Args:
            subgroup: The Subgroup.
            previous_id: Last Object ID before; -1 for the beginning of the Group.
            object_id: The Object ID in question.
            now: Monotonic seconds.
        """
        if object_id == previous_id + 1 or self.authoritative:
            return True
        if subgroup.predecessors.get(object_id, -1) == previous_id >= 0:
            return True
        if subgroup.first_object_id == object_id > previous_id:
            return True
        return self._gap(subgroup, previous_id, object_id, now=now) is None

    def gap(
        self, subgroup: Subgroup, previous_id: int, object_id: int, *, now: float
    ) -> tuple[Location, Location] | None:
        """Return the first unknown run between two Objects of a Subgroup, inclusive.

        Arguments are those of `is_next`; None where that is true.
        """
        if self.is_next(subgroup, previous_id, object_id, now=now):
            return None
        return self._gap(subgroup, previous_id, object_id, now=now)

    def _expired_before(self, now: float) -> float | None:
        """Return when Objects were received at the latest that have expired by now."""
        lifetime = self.lifetime
        return None if lifetime is None else now - lifetime

    def _gap(
        self, subgroup: Subgroup, previous_id: int, object_id: int, *, now: float
    ) -> tuple[Location, Location] | None:
        """Return the first unknown run inside the open interval, of whatever Subgroup."""
        last = Location(subgroup.group_id, object_id - 1)
        place = Location(subgroup.group_id, previous_id + 1)
        while place <= last:
            match self.lookup(place, now=now):
                case Unknown(through=through):
                    return place, min(through, last)
                case Absent(through=through):
                    if through >= last:
                        return None
                    place = Location(through.group_id, through.object_id + 1)
                case Found():
                    place = Location(place.group_id, place.object_id + 1)
        return None
