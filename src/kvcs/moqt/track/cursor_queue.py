"""The order in which a subscription serves its Subgroups.

A cursor is queued while there may be something to send in its Subgroup, by publisher priority,
then Group, then Subgroup; it is parked while it waits for what is missing, or for more of an
Object on its way; else it is in neither place.

Source: MOQT draft 22, Section 5.1.
"""

from heapq import heapify, heappop, heappush

from kvcs.moqt.track.cursor import Cursor

__all__ = ("CursorQueue",)


class CursorQueue:
    """Cursors of one subscription that have something to do, and those that wait.

    Attributes:
        queued: Those that have, a heap by their keys.
    """

    __slots__ = ("_parked", "queued")

    def __init__(self) -> None:
        self.queued: list[tuple[tuple[int, int, int], Cursor]] = []
        self._parked: set[Cursor] = set()

    def __repr__(self) -> str:
        return f"<CursorQueue {len(self.queued)} queued, {len(self._parked)} parked>"

    @property
    def has_parked(self) -> bool:
        """Whether a cursor waits."""
        return bool(self._parked)

    def first_with_stream(self) -> Cursor | None:
        """Return the most urgent cursor that has an open stream."""
        entries = [entry for entry in self.queued if entry[1].stream_id is not None]
        return min(entries)[1] if entries else None

    def add(self, cursor: Cursor) -> bool:
        """Queue a cursor, unless it is queued or parked; tell whether that changed anything."""
        if cursor.queued or cursor in self._parked:
            return False
        cursor.queued = True
        heappush(self.queued, (cursor.key, cursor))
        return True

    def remove(self, cursor: Cursor) -> None:
        """Take a cursor that is queued out of the queue."""
        cursor.queued = False
        if self.queued[0][1] is cursor:
            heappop(self.queued)
        else:
            self.queued.remove((cursor.key, cursor))
            heapify(self.queued)

    def park(self, cursor: Cursor) -> None:
        """Let a cursor that is queued wait."""
        self.remove(cursor)
        self._parked.add(cursor)

    def unpark(self, group_id: int | None = None) -> bool:
        """Queue what is parked, in one Group or in all; tell whether that was any."""
        parked = [c for c in self._parked if group_id in (None, c.subgroup.group_id)]
        self._parked.difference_update(parked)
        for cursor in parked:
            self.add(cursor)
        return bool(parked)

    def discard(self, cursor: Cursor) -> None:
        """Forget a cursor, wherever it is."""
        if cursor.queued:
            self.remove(cursor)
        self._parked.discard(cursor)

    def clear(self) -> None:
        """Forget all cursors."""
        for _, cursor in self.queued:
            cursor.queued = False
        self.queued.clear()
        self._parked.clear()
