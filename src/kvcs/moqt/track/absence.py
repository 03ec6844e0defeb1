"""Where in a Track it is known that there is no data, and never will be.

Theory of operation. An `Absence` belongs to one `TrackStore`, which tells it what it takes
and asks it what it may take. Knowledge comes from four sources, and only grows:

* the gaps that an original publisher leaves between its Objects (authoritative stores);
* the end of a Group or of the Track: a status Object, the end of a stream, or FETCH_OK.
  The Location of a status Object itself has no data either;
* gap properties of Objects. What they declare may not be contradicted: an Object inside
  makes the Track malformed;
* what unfiltered fetches leave out (`mark`). Whoever says this may know less than we do: an
  Object inside is not an error, it is merely not taken.

Held data and absent Locations are disjoint. Positions are those of `kvcs.moqt.track.interval`.

Source: MOQT draft 22, Sections 2.1, 10.8, 10.9 and 12.1.
"""

from typing import Final

from kvcs.errors import MalformedTrack
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.track.group import GroupRecord
from kvcs.moqt.track.index import GroupIndex
from kvcs.moqt.track.interval import MAX_POSITION, IntervalSet, to_location, to_position
from kvcs.moqt.track.knowledge import GroupEnd, Knowledge
from kvcs.moqt.wire.object import Object
from kvcs.names import Location
from kvcs.varint import MAX_VI64

__all__ = ("MAX_ABSENT_RUNS", "Absence")

# Runs of Locations known to be empty that are remembered of a Track whose publisher is somebody
# else. As many as its Subgroups: a Group ends in one run at most.
MAX_ABSENT_RUNS: Final = 2**16


class Absence:
    """What is known not to exist of one Track, and where the Track ends.

    Attributes:
        runs: Positions without data; written here only.
        last_position: Last position at which an Object was ever taken; -1 before the first.
        stated_ends: How often something new was stated about the end of a Group.
        end: Last Location of the Track (of its End of Track, if there is one), when known.
    """

    __slots__ = (
        "_authoritative",
        "_declared",
        "_end_position",
        "_index",
        "_is_end_assumed",
        "end",
        "last_position",
        "runs",
        "stated_ends",
    )

    def __init__(self, index: GroupIndex, *, authoritative: bool) -> None:
        """Know nothing yet.

        Args:
            index: What the store holds.
            authoritative: Objects come in order and the gaps between them do not exist.
        """
        self.runs = IntervalSet()
        self.last_position = -1
        self.stated_ends = 0
        self.end: Location | None = None
        self._index = index
        self._authoritative = authoritative
        self._declared = IntervalSet()
        self._end_position: int | None = None
        self._is_end_assumed = False

    def __repr__(self) -> str:
        return f"<Absence runs={len(self.runs)} end={self.end}>"

    # Checking and learning from Objects.

    def admits(self, record: GroupRecord | None, obj: Object, position: int) -> bool:
        """Tell whether a new Object may be taken: False if it is known not to exist.

        Args:
            record: Its Group, if that is known.
            obj: The Object.
            position: Its position.

        Raises:
            MalformedTrack: It contradicts the end of the Track or a declared gap.
        """
        is_status = obj.status is not ObjectStatus.NORMAL
        end = self._end_position
        is_end = is_status and (position == end or self._is_end_assumed)
        if end is not None and position >= end and not is_end:
            raise MalformedTrack(f"Object {obj.location} beyond the end {self.end} of the Track")
        if obj.status is ObjectStatus.END_OF_TRACK and self.last_position > position:
            raise MalformedTrack(f"END_OF_TRACK at {obj.location} before other Objects")
        if self._declared and position in self._declared:
            raise MalformedTrack(f"Object {obj.location} in a gap that a property declared")
        if obj.properties.raw:
            self._check_gaps(record, obj, position)
        return is_status or position not in self.runs

    def learn(self, record: GroupRecord, obj: Object, position: int) -> None:
        """Note what an Object that was taken says: gaps before it, and what it ends."""
        if self._authoritative and position > self.last_position + 1:
            self.runs.add(self.last_position + 1, position - 1)
        if obj.properties.raw:
            self._declare_gaps(record, obj, position)
        if obj.status is not ObjectStatus.NORMAL:
            self.end_group(record, absent_from=obj.object_id, end_id=obj.object_id)
            if obj.status is ObjectStatus.END_OF_TRACK:
                self._end_track(obj.location, position)
        self.last_position = max(self.last_position, position)

    def end_with(self, obj: Object) -> None:
        """Note that an END_OF_GROUP that is held is an END_OF_TRACK, as another copy says.

        Raises:
            MalformedTrack: Objects beyond it are known, or the Track ended elsewhere.
        """
        position = to_position(obj.location)
        ends = (None, position, position + 1)
        is_other = self._end_position not in ends and not self._is_end_assumed
        if self.last_position > position or is_other:
            raise MalformedTrack(f"END_OF_TRACK at {obj.location} contradicts other Objects")
        self._end_track(obj.location, position)

    # Learning from other words.

    def mark(self, start: Location, through: Location) -> None:
        """Note that nothing exists from `start` to `through`, inclusive, but what is held.

        Beyond `MAX_ABSENT_RUNS` nothing more is noted, so that the Locations stay unknown.
        """
        if not self._authoritative and len(self.runs) >= MAX_ABSENT_RUNS:
            return
        first, last = to_position(start), to_position(through)
        for position in self._index.data_positions(first, last):
            if position > first:
                self.runs.add(first, position - 1)
            first = position + 1
        if first <= last:
            self.runs.add(first, last)

    def end_group(self, record: GroupRecord, *, absent_from: int, end_id: int) -> None:
        """Note where a Group ends.

        Args:
            record: The Group.
            absent_from: First Object ID at which no data exists.
            end_id: Object ID of the last Object, a status Object included.
        """
        if (record.absent_from, record.end_id) != (absent_from, end_id):
            record.absent_from, record.end_id = absent_from, end_id
            self.stated_ends += 1
        if absent_from <= MAX_VI64:
            base = record.group_id << 64
            self.runs.add(base | absent_from, base | MAX_VI64)

    def finish_track(self, final: Location, *, assumed: bool = False) -> bool:
        """Note that `final` is the last Location of the Track; tell whether that is news.

        Args:
            final: The Location.
            assumed: Nobody said so, but no data follows; a status Object may.

        Raises:
            MalformedTrack: Objects beyond it are known, or the Track ended elsewhere.
        """
        position = to_position(final)
        if self.end == final or (assumed and self._end_position is not None):
            return False
        if self.last_position > position:
            raise MalformedTrack(
                f"the Track ends at {final} and has {to_location(self.last_position)}"
            )
        if self._end_position is not None and not self._is_end_assumed:
            raise MalformedTrack(f"the Track ends at {final} and at {self.end}")
        self._end_track(final, position + 1)
        self._is_end_assumed = assumed
        return True

    # What outlives the store.

    def group_ends(self) -> tuple[GroupEnd, ...]:
        """Return where Groups end, as far as somebody said so."""
        return tuple(
            (record.group_id, record.absent_from, record.end_id)
            for record in self._index.records.values()
            if record.absent_from is not None and record.end_id is not None
        )

    def recall(self, knowledge: Knowledge) -> None:
        """Know again what was known once.

        Raises:
            MalformedTrack: It contradicts what is known by now; nothing was changed.
        """
        ends = [(g, a, e) for g, a, e in knowledge.group_ends if self._is_news(g, a, e)]
        end = knowledge.end
        if end is not None:
            if self.end not in (None, end) or self.last_position > to_position(end):
                raise MalformedTrack(f"the Track ended at {end}")
            if self.end is None:
                # A status Object there has no data; anything else does.
                position = to_position(end)
                is_status = any(first <= position <= last for first, last in knowledge.absent)
                self._end_track(end, position if is_status else position + 1)
        for group_id, absent_from, end_id in ends:
            record = self._index.record(group_id)
            self.end_group(record, absent_from=absent_from, end_id=end_id)
        for first, last in knowledge.absent:
            self.mark(to_location(first), to_location(last))

    def _is_news(self, group_id: int, absent_from: int, end_id: int) -> bool:
        """Tell whether the end of a Group is not known yet; raise if it contradicts."""
        record = self._index.records.get(group_id)
        if record is None:
            return True
        base = group_id << 64
        is_beyond = absent_from <= MAX_VI64 and self._has_data(base | absent_from, base | MAX_VI64)
        if is_beyond or record.largest_id > end_id or record.absent_from not in (None, absent_from):
            raise MalformedTrack(f"Group {group_id} ended at {end_id}")
        return record.absent_from is None

    # Reading.

    def covers(self, start: Location, through: Location) -> bool:
        """Tell whether nothing is between two Locations, inclusive."""
        run = self.runs.find(to_position(start))
        return run is not None and to_position(through) <= run[1]

    def group_end(self, group_id: int) -> Location | None:
        """Return the last Location of a Group, status Objects included, when known.

        Known also without a word about the end, once all that could follow is absent.
        """
        record = self._index.records.get(group_id)
        if record is not None and record.end_id is not None:
            return Location(group_id, record.end_id)
        run = self.runs.find(group_id << 64 | MAX_VI64)
        if run is None or run[0] <= group_id << 64:
            return None
        return to_location(run[0] - 1)

    # Gaps and ends.

    def _check_gaps(self, record: GroupRecord | None, obj: Object, position: int) -> None:
        """Check PRIOR_GROUP_ID_GAP and PRIOR_OBJECT_ID_GAP (Sections 10.8 and 10.9)."""
        properties = obj.properties
        properties.check_object(obj.location)
        group_gap, object_gap = properties.prior_group_id_gap, properties.prior_object_id_gap
        known = record.prior_group_gap if record is not None else None
        if group_gap and known not in (None, group_gap):
            raise MalformedTrack(f"Object {obj.location}: PRIOR_GROUP_ID_GAP {group_gap}, {known}")
        first = (obj.group_id - group_gap) << 64
        if group_gap and self._has_data(first, (obj.group_id << 64) - 1):
            raise MalformedTrack(f"Object {obj.location}: PRIOR_GROUP_ID_GAP over an Object")
        if object_gap and self._has_data(position - object_gap, position - 1):
            raise MalformedTrack(f"Object {obj.location}: PRIOR_OBJECT_ID_GAP over an Object")

    def _has_data(self, first: int, last: int) -> bool:
        return next(self._index.data_positions(first, last), None) is not None

    def _declare_gaps(self, record: GroupRecord, obj: Object, position: int) -> None:
        group_gap = obj.properties.prior_group_id_gap
        object_gap = obj.properties.prior_object_id_gap
        if group_gap:
            record.prior_group_gap = group_gap
            self._declare((record.group_id - group_gap) << 64, (record.group_id << 64) - 1)
        if object_gap:
            self._declare(position - object_gap, position - 1)

    def _declare(self, first: int, last: int) -> None:
        self._declared.add(first, last)
        self.runs.add(first, last)

    def _end_track(self, end: Location, absent_from: int) -> None:
        self.end = end
        self._end_position = absent_from
        self._is_end_assumed = False
        if absent_from <= MAX_POSITION:
            self.runs.add(absent_from, MAX_POSITION)
