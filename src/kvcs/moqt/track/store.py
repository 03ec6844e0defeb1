"""The Objects of one Track, and what is known about the gaps between them.

Theory of operation. A `TrackStore` has one writer (the original publisher, or the relay
that receives the Track) and any number of readers, each at its own place. Every Location
is in one of three states, and `lookup` tells which:

* found: the Object is held;
* absent: it is known that there is no data, and there never will be (`Absence`);
* unknown: everything else. What was dropped or has expired is unknown again.

End of Group and End of Track Objects are held for subscriptions, and their Locations are
absent: they carry no data and never travel in a fetch. Fetches read with `lookup`;
subscriptions follow the Subgroups, in the order in which Objects came.

Changes call back at once and synchronously: `watch` for whoever wants to look again,
`follow` to hear which Subgroup changed. Callbacks must not change the store.

Source: MOQT draft 22, Sections 2, 3.2.2, 7.1, 10.3 and 12.1.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from kvcs.errors import LocalProtocolError, MalformedTrack
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.track.absence import Absence
from kvcs.moqt.track.arriving import Arrivals, Arriving
from kvcs.moqt.track.costs import GROUP_BYTES, NOTE_BYTES, SUBGROUP_BYTES, object_bytes
from kvcs.moqt.track.group import GroupRecord, Subgroup, insert_sorted, is_duplicate
from kvcs.moqt.track.index import GroupIndex
from kvcs.moqt.track.interval import MAX_POSITION, to_location, to_position
from kvcs.moqt.track.knowledge import Knowledge
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import Properties
from kvcs.names import FullTrackName, Location

__all__ = (
    "MAX_SUBGROUPS",
    "Absent",
    "Found",
    "TrackStore",
    "Unknown",
)

# Subgroups that are remembered of a Track whose publisher is somebody else. They outlive their
# Objects, so that dropping those does not make room for more of them.
# A manifest of the longest prompt has some 50,000 versions, a Group each.
MAX_SUBGROUPS: Final = 2**16


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


class TrackStore:
    """Objects of one Track by Location.

    Attributes:
        object_bytes: Octets that the held Objects cost.
        arrivals: Objects on their way here; they are not in the store.
    """

    def __init__(
        self, track: FullTrackName, *, properties: Properties, authoritative: bool
    ) -> None:
        """Create an empty store.

        Args:
            track: Name of the Track.
            properties: Track Properties, as they go to subscribers.
            authoritative: The writer is the original publisher: Objects come in ascending
                order, the gaps that it leaves do not exist, and nothing expires.
        """
        self.track = track
        self.properties = properties
        self.authoritative = authoritative
        self.object_bytes = 0
        self.arrivals = Arrivals(self._arrival_changed)
        self._index = GroupIndex()
        self._absence = Absence(self._index, authoritative=authoritative)
        self._largest_position = -1
        self._normal_objects = 0
        self._subgroups = 0
        self._notes = 0
        self._watchers: dict[object, Callable[[], None]] = {}
        self._followers: dict[object, Callable[[Subgroup | None], None]] = {}

    def __repr__(self) -> str:
        return (
            f"<TrackStore {self.track} groups={len(self._index.held)} bytes={self.size_bytes}"
            f" largest={self.largest} end={self.end}>"
        )

    @property
    def size_bytes(self) -> int:
        """Octets that the store costs: Objects, and what is known beyond them."""
        return self.object_bytes + self.record_bytes

    @property
    def record_bytes(self) -> int:
        """Octets that stay when all Objects are dropped, until `forget`."""
        notes = self._notes + len(self._absence.runs)
        groups = len(self._index.records)
        return groups * GROUP_BYTES + self._subgroups * SUBGROUP_BYTES + notes * NOTE_BYTES

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
    def lifetime(self) -> float | None:
        """Seconds for which a received Object may be served; None is unlimited."""
        duration_ms = None if self.authoritative else self.properties.max_cache_duration_ms
        return None if duration_ms is None else duration_ms / 1000

    # Writing.

    def add(
        self, obj: Object, *, now: float, follows: int | None = None, fetched: bool = False
    ) -> bool:
        """Add an Object.

        Args:
            obj: The Object; a status Object ends its Group or the Track.
            now: When it was received, in monotonic seconds.
            follows: Object ID of the Object right before it on the same Subgroup stream.
            fetched: It came on a fetch stream, and so says nothing about Largest.

        Returns:
            Whether it is new. False also for an Object that is known not to exist, which
            is not taken (Section 2.1).

        Raises:
            MalformedTrack: It contradicts what is known; nothing was changed.
            LocalProtocolError: An authoritative store got an Object out of order.
        """
        record = self._index.records.get(obj.group_id)
        entry = record.entries.get(obj.object_id) if record is not None else None
        if record is not None and entry is not None:
            self._check_duplicate(entry[0], obj)
            since = self._expired_before(now)
            if since is not None and entry[1] <= since:
                record.entries[obj.object_id] = (entry[0], now)
                self._changed(record.subgroup(obj.subgroup_id))
            return False
        position = obj.group_id << 64 | obj.object_id
        if not self._admit(record, obj, position):
            return False
        if record is None:
            record = self._index.record(obj.group_id)
        self._index.insert(record, obj, now)
        self.object_bytes += object_bytes(obj)
        self._normal_objects += obj.status is ObjectStatus.NORMAL
        self._absence.learn(record, obj, position)
        subgroup = self._append(record, obj, follows)
        if not fetched and position > self._largest_position:
            self._largest_position = position
        self._changed(subgroup)
        return True

    def begin(self, arriving: Arriving, *, now: float) -> None:
        """Let an Object that is new go on while it arrives; `add` takes it when it is whole.

        Raises:
            MalformedTrack: It contradicts what is known.
        """
        obj = arriving.obj
        record = self._index.records.get(obj.group_id)
        is_known = self.held(obj.group_id, obj.object_id, now=now) is not None
        if not is_known and self._admit(record, obj, to_position(obj.location)):
            self.arrivals.begin(arriving)

    def open_subgroup(
        self,
        group_id: int,
        subgroup_id: int,
        *,
        first_object_id: int | None = None,
        ends_group: bool | None = None,
        has_properties: bool = False,
    ) -> None:
        """Note what the header of a Subgroup stream says, before its first `add`.

        Args:
            group_id: Group ID.
            subgroup_id: Subgroup ID.
            first_object_id: Object ID of the first Object ever published in it, if known.
            ends_group: Whether it contains the largest Object of its Group; None when the
                header does not say.
            has_properties: Whether its Objects can have Properties.
        """
        if not self._has_room(self._index.records.get(group_id), subgroup_id):
            return
        subgroup = self._subgroup(self._index.record(group_id), subgroup_id)
        if first_object_id is not None:
            subgroup.first_object_id = first_object_id
        if ends_group is not None:
            subgroup.ends_group = ends_group
        subgroup.has_properties |= has_properties

    def finish_subgroup(
        self,
        group_id: int,
        subgroup_id: int | None,
        *,
        end_of_group: bool,
        now: float,
        final_object_id: int | None = None,
    ) -> None:
        """Note that a Subgroup stream ended with FIN.

        Args:
            group_id: Group ID.
            subgroup_id: Subgroup ID; None for the Objects that travel in datagrams.
            end_of_group: Its header said that it contains the largest Object of the Group.
            now: Monotonic seconds.
            final_object_id: Last Object on that stream; the largest known one if None.

        Raises:
            MalformedTrack: Objects beyond this end are known, or another end.
        """
        record = self._index.records.get(group_id)
        subgroup = record.subgroups.get(subgroup_id) if record is not None else None
        if record is None or subgroup is None or subgroup.largest_id < 0:
            return
        final = subgroup.largest_id if final_object_id is None else final_object_id
        final = record.stated_final(subgroup, final)
        record.check_final(subgroup, final, end_of_group=end_of_group)
        if subgroup.final_object_id is None:
            subgroup.final_object_id = final
            subgroup.finished_at = now
        if end_of_group:
            subgroup.ends_group = True
            if record.absent_from is None:
                absent_from = record.absent_after(final)
                self._absence.end_group(record, absent_from=absent_from, end_id=final)
        self._changed(subgroup)

    def finish_track(self, final: Location, *, assumed: bool = False) -> None:
        """Note that `final` is the last Location of the Track (FETCH_OK, End Of Track 1).

        Args:
            final: The Location.
            assumed: Nobody said so, but no data follows; a status Object may.

        Raises:
            MalformedTrack: Objects beyond it are known, or the Track ended elsewhere.
        """
        if self._absence.finish_track(final, assumed=assumed):
            self._changed(None)

    def mark_absent(self, start: Location, through: Location) -> None:
        """Note that nothing exists from `start` to `through`, inclusive.

        Objects that are held stay: whoever says this may know less than we do.
        """
        self._absence.mark(start, through)
        self._changed(None)

    def raise_largest(self, location: Location) -> None:
        """Note a Largest Object that upstream advertised."""
        position = to_position(location)
        if position > self._largest_position:
            self._largest_position = position
            self._changed(None)

    def drop_group(self, group_id: int) -> int:
        """Forget the Objects of a Group, which are unknown then; return the bytes freed."""
        record = self._index.records.get(group_id)
        if record is None or not record.ids:
            return 0
        freed = sum(object_bytes(obj) for obj, _ in record.entries.values())
        self._normal_objects -= sum(
            obj.status is ObjectStatus.NORMAL for obj, _ in record.entries.values()
        )
        runs = _evicted_runs(record)
        self._index.clear(record)
        self._notes += _evicted_runs(record) - runs
        self.object_bytes -= freed
        for subgroup in record.subgroups.values():
            self._changed(subgroup)
        return freed

    def drop_all(self) -> int:
        """Forget all Objects; return the bytes freed."""
        return sum(self.drop_group(group_id) for group_id in tuple(self._index.held))

    def forget(self) -> int:
        """Drop all Objects and all that is known of them; return the bytes that Objects freed.

        Only for a store that nobody writes to or reads from.
        """
        freed = self.drop_all()
        self._index = GroupIndex()
        self._absence = Absence(self._index, authoritative=self.authoritative)
        self._subgroups = self._notes = 0
        return freed

    # What outlives the store.

    @property
    def knowledge_version(self) -> tuple[int, ...]:
        """What differs whenever `knowledge` does, Track Properties aside."""
        absence = self._absence
        has_end = absence.end is not None
        return self._largest_position, absence.runs.size, absence.stated_ends, has_end

    def knowledge(self) -> Knowledge:
        """Return what is known beside the Objects."""
        return Knowledge(
            properties=self.properties,
            largest=self.largest,
            end=self.end,
            absent=tuple(self._absence.runs),
            group_ends=self._absence.group_ends(),
        )

    def recall(self, knowledge: Knowledge) -> None:
        """Know again what was known once, Track Properties aside.

        Raises:
            MalformedTrack: It contradicts what is known by now; nothing was changed.
        """
        self._absence.recall(knowledge)
        if knowledge.largest is not None:
            self._largest_position = max(self._largest_position, to_position(knowledge.largest))
        self._changed(None)

    # Reading.

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
        entry = self._index.find(group_id, object_id)
        if entry is None:
            return None
        since = self._expired_before(now)
        return entry[0] if since is None or entry[1] > since else None

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

    # Callbacks.

    def watch(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every change; return what ends that."""
        key = object()
        self._watchers[key] = listener
        return lambda: self._watchers.pop(key, None) and None

    def follow(self, listener: Callable[[Subgroup | None], None]) -> Callable[[], None]:
        """Call `listener` with the Subgroup that changed, None for a change of knowledge.

        Returns:
            What ends that.
        """
        key = object()
        self._followers[key] = listener
        return lambda: self._followers.pop(key, None) and None

    def _changed(self, subgroup: Subgroup | None) -> None:
        for follower in tuple(self._followers.values()):
            follower(subgroup)
        for watcher in tuple(self._watchers.values()):
            watcher()

    def _arrival_changed(self, obj: Object) -> None:
        record = self._index.records.get(obj.group_id)
        self._changed(None if record is None else record.subgroups.get(obj.subgroup_id))

    # Checking.

    def _check_duplicate(self, held: Object, obj: Object) -> None:
        if is_duplicate(held, obj):
            return
        # A relay may turn one end into the other: both say that nothing is here.
        is_end = {held.status, obj.status} == {ObjectStatus.END_OF_GROUP, ObjectStatus.END_OF_TRACK}
        if not is_end:
            raise MalformedTrack(f"two different Objects at {obj.location}")
        if obj.status is ObjectStatus.END_OF_TRACK:
            self._absence.end_with(obj)
            self._changed(None)

    def _admit(self, record: GroupRecord | None, obj: Object, position: int) -> bool:
        """Tell whether a new Object is to be taken; raise MalformedTrack if it cannot be."""
        if self.authoritative and position <= self._absence.last_position:
            raise LocalProtocolError(f"Object {obj.location} after a larger one was published")
        if record is not None:
            record.check(obj)
        if not self._has_room(record, obj.subgroup_id):
            raise MalformedTrack(f"Object {obj.location} after {MAX_SUBGROUPS} Subgroups")
        return self._absence.admits(record, obj, position)

    def _has_room(self, record: GroupRecord | None, subgroup_id: int | None) -> bool:
        """Tell whether a Subgroup is known, or may become known."""
        is_known = record is not None and subgroup_id in record.subgroups
        return is_known or self.authoritative or self._subgroups < MAX_SUBGROUPS

    # Applying.

    def _subgroup(self, record: GroupRecord, subgroup_id: int | None) -> Subgroup:
        self._subgroups += subgroup_id not in record.subgroups
        return record.subgroup(subgroup_id)

    def _append(self, record: GroupRecord, obj: Object, follows: int | None) -> Subgroup:
        subgroup = self._subgroup(record, obj.subgroup_id)
        object_id = obj.object_id
        subgroup.publisher_priority = obj.publisher_priority
        if obj.properties.raw:
            subgroup.has_properties = True
        if object_id == 0 or (self.authoritative and subgroup.largest_id < 0):
            subgroup.first_object_id = object_id
        if follows is not None and follows != object_id - 1:
            self._notes += object_id not in subgroup.predecessors
            subgroup.predecessors[object_id] = follows
        if object_id in subgroup.evicted:
            subgroup.evicted.discard(object_id)
        elif object_id < subgroup.largest_id:
            subgroup.late.append(object_id)
            self._notes += 1
        insert_sorted(subgroup.ids, object_id)
        subgroup.largest_id = max(subgroup.largest_id, object_id)
        if subgroup.final_object_id is not None:
            # An End of Group behind it, which says the same.
            subgroup.final_object_id = max(subgroup.final_object_id, object_id)
        return subgroup

    # Searching.

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


def _evicted_runs(record: GroupRecord) -> int:
    return sum(len(subgroup.evicted) for subgroup in record.subgroups.values())
