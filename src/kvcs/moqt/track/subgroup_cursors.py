"""Which Subgroups a subscription owes something of, and how far it is in each of them.

Theory of operation. A Subgroup gets a cursor when the first Object of it that is owed appears,
and is closed when its end was sent, or when nothing more of it is to be sent. What was there when
the subscription began, or was published during a pause, is passed over. Whose turn it is among
the cursors, their queue says.

Source: MOQT draft 22, Sections 3.1.2, 5.1 and 5.2.
"""

from kvcs.moqt.codepoints import GroupOrder
from kvcs.moqt.track.cursor import Cursor
from kvcs.moqt.track.cursor_queue import CursorQueue
from kvcs.moqt.track.delivery import DeliveryTerms
from kvcs.moqt.track.group import Subgroup
from kvcs.moqt.track.interval import to_location, to_position
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.filters import LocationRange
from kvcs.names import Location

__all__ = ("SubgroupCursors",)


class SubgroupCursors:
    """The Subgroups of one subscription, from their first Object to their end.

    Attributes:
        terms: What is to be delivered; may be replaced.
        start: First Location that is owed: that of the terms, or one behind a pause.
        begun: The cursors of Subgroups that are not closed.
        queue: Whose turn it is.
    """

    __slots__ = ("_closed", "_cut", "_store", "begun", "queue", "start", "terms")

    def __init__(self, store: TrackStore, terms: DeliveryTerms) -> None:
        """Have no cursor yet.

        Args:
            store: The Track.
            terms: What is to be delivered.
        """
        self.terms = terms
        self.start = terms.location_range.start
        self.begun: dict[Subgroup, Cursor] = {}
        self.queue = CursorQueue()
        self._store = store
        self._closed: set[Subgroup] = set()
        self._cut: set[Subgroup] = set()

    def __repr__(self) -> str:
        return f"<SubgroupCursors begun={len(self.begun)} closed={len(self._closed)} {self.queue}>"

    @property
    def owed(self) -> LocationRange:
        """Locations of which Objects are to be sent."""
        return LocationRange(self.start, self.terms.location_range.end)

    def owes(self, subgroup: Subgroup) -> bool:
        """Tell whether a held Object of a Subgroup is still to be sent."""
        if subgroup in self._closed:
            return False
        cursor = self.begun.get(subgroup)
        if cursor is None:
            if not self._overlaps(subgroup):
                return False
            cursor = self._new_cursor(subgroup)
        object_id = cursor.next_id()
        if object_id is None:
            return False
        return Location(subgroup.group_id, object_id) in self.owed

    def begin(self, subgroup: Subgroup) -> Cursor | None:
        """Return the cursor of a Subgroup that has none yet; None if nothing of it is owed."""
        if subgroup in self._closed or not self._overlaps(subgroup):
            return None
        cursor = self.begun[subgroup] = self._new_cursor(subgroup)
        return cursor

    def close(self, cursor: Cursor) -> None:
        """Have nothing more to do with a Subgroup."""
        self.queue.discard(cursor)
        self.begun.pop(cursor.subgroup, None)
        self._closed.add(cursor.subgroup)

    def clear(self) -> None:
        """Owe nothing more of what is in the store."""
        self.queue.clear()
        self.begun.clear()

    def skip_present(self) -> None:
        """Begin behind Largest: what is there up to it is not sent, what is beyond it is.

        Fetches bring Objects from beyond Largest, and they do not come a second time.
        """
        largest = self._store.largest
        first_group = 0 if largest is None or self.start <= largest else largest.group_id
        for group_id in self._store.known_groups():
            if group_id < first_group:
                continue
            for subgroup in self._store.subgroups(group_id):
                if subgroup not in self.begun and self._overlaps(subgroup):
                    self._skip_up_to(subgroup, largest)

    def _skip_up_to(self, subgroup: Subgroup, largest: Location | None) -> None:
        last_id = -1 if largest is None else subgroup.last_up_to(largest)
        if subgroup.final_object_id is not None and last_id == subgroup.largest_id:
            self._closed.add(subgroup)
            return
        cursor = self.begun[subgroup] = self._new_cursor(subgroup)
        cursor.last_id = max(cursor.last_id, last_id)
        if subgroup.largest_id > cursor.last_id:
            self.queue.add(cursor)

    def resume(self) -> None:
        """Go on behind Largest: what was published during a pause is not sent."""
        self._closed.clear()
        largest = self._store.largest
        if largest is not None:
            self._cut |= {
                subgroup
                for group_id in self._store.known_groups()
                if group_id >= largest.group_id
                for subgroup in self._store.subgroups(group_id)
                if self.start <= Location(group_id, max(subgroup.largest_id, 0))
            }
            self.start = max(self.start, to_location(to_position(largest) + 1))

    def _overlaps(self, subgroup: Subgroup) -> bool:
        end = self.terms.location_range.end
        group_id = subgroup.group_id
        return self.start.group_id <= group_id and (end is None or group_id <= end.group_id)

    def _new_cursor(self, subgroup: Subgroup) -> Cursor:
        group_id, subgroup_id = subgroup.group_id, subgroup.subgroup_id
        place = group_id if self.terms.group_order is GroupOrder.ASCENDING else -group_id
        key = (
            subgroup.publisher_priority or 0,
            place,
            -1 if subgroup_id is None else subgroup_id,
        )
        last_id = self.start.object_id - 1 if group_id == self.start.group_id else -1
        incomplete = subgroup in self._cut
        return Cursor(subgroup, key, last_id, len(subgroup.late), incomplete=incomplete)
