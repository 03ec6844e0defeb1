"""The Objects of one Track, as their one writer sees them.

Theory of operation. A `TrackStore` has one writer (the original publisher, or the relay
that receives the Track) and any number of readers, each at its own place, who see its
`TrackContents`. What contradicts what is held or known is not taken.

Changes call back at once and synchronously: `watch` for whoever wants to look again,
`follow` to hear which Subgroup changed. Callbacks must not change the store.

Source: MOQT draft 22, Sections 2, 3.2.2, 7.1, 10.3 and 12.1.
"""

from collections.abc import Callable
from typing import Final

from kvcs.errors import LocalProtocolError, MalformedTrack
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.track.absence import Absence
from kvcs.moqt.track.arriving import Arrivals, Arriving
from kvcs.moqt.track.contents import TrackContents
from kvcs.moqt.track.costs import GROUP_BYTES, NOTE_BYTES, SUBGROUP_BYTES, object_bytes
from kvcs.moqt.track.group import GroupRecord, Subgroup, insert_sorted, is_duplicate
from kvcs.moqt.track.index import GroupIndex
from kvcs.moqt.track.interval import to_position
from kvcs.moqt.track.knowledge import Knowledge
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.names import FullTrackName, Location

__all__ = ("MAX_SUBGROUPS", "TrackStore")

# Subgroups that are remembered of a Track whose publisher is somebody else. They outlive their
# Objects, so that dropping those does not make room for more of them.
# A manifest of the longest prompt has some 50,000 versions, a Group each.
MAX_SUBGROUPS: Final = 2**16


class TrackStore(TrackContents):
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
        super().__init__(properties=properties, authoritative=authoritative)
        self.track = track
        self.object_bytes = 0
        self.arrivals = Arrivals(self._arrival_changed)
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
        """Drop all Objects and all that is known of the Track; return the bytes that Objects freed.

        Only for a store that nobody writes to or reads from.
        """
        freed = self.drop_all()
        self.properties = EMPTY_PROPERTIES
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


def _evicted_runs(record: GroupRecord) -> int:
    return sum(len(subgroup.evicted) for subgroup in record.subgroups.values())
