"""The Groups of a Track in order, to find what is held around a position.

Positions are those of `kvcs.moqt.track.interval`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.track.group import GroupRecord, insert_sorted
from kvcs.moqt.track.interval import MAX_POSITION
from kvcs.moqt.wire.object import Object
from kvcs.varint import MAX_VI64

__all__ = ("GroupIndex",)


class GroupIndex:
    """Records of all Groups that are known, and which of them hold Objects.

    Attributes:
        records: Records by Group ID; they stay when the Objects go.
        held: Group IDs of which Objects are held, ascending.
    """

    __slots__ = ("held", "records")

    def __init__(self) -> None:
        self.records: dict[int, GroupRecord] = {}
        self.held: list[int] = []

    def record(self, group_id: int) -> GroupRecord:
        """Return the record of a Group, a new one for the first mention."""
        found = self.records.get(group_id)
        if found is None:
            found = self.records[group_id] = GroupRecord(group_id)
        return found

    def insert(self, record: GroupRecord, obj: Object, now: float) -> None:
        """Hold an Object, received at `now`."""
        if not record.ids:
            insert_sorted(self.held, record.group_id)
        record.entries[obj.object_id] = (obj, now)
        insert_sorted(record.ids, obj.object_id)
        record.largest_id = max(record.largest_id, obj.object_id)

    def clear(self, record: GroupRecord) -> None:
        """Hold nothing of a Group any more."""
        record.entries.clear()
        record.ids.clear()
        for subgroup in record.subgroups.values():
            for object_id in subgroup.ids:
                subgroup.evicted.add(object_id, object_id)
            subgroup.ids.clear()
        del self.held[bisect_left(self.held, record.group_id)]

    def find(self, group_id: int, object_id: int) -> tuple[Object, float] | None:
        """Return a held Object and when it was received."""
        record = self.records.get(group_id)
        return None if record is None else record.entries.get(object_id)

    def next_position(self, position: int, *, since: float | None) -> int:
        """Return the position of the next held Object, or the end of all positions.

        Args:
            position: Where to begin, exclusive.
            since: Pass over Objects that were not received after this; None takes all.
        """
        group_id, object_id = position >> 64, position & MAX_VI64
        for index in range(bisect_left(self.held, group_id), len(self.held)):
            record = self.records[self.held[index]]
            first = bisect_right(record.ids, object_id) if record.group_id == group_id else 0
            for place in range(first, len(record.ids)):
                found = record.ids[place]
                if since is None or record.entries[found][1] > since:
                    return record.group_id << 64 | found
        return MAX_POSITION + 1

    def previous_position(self, position: int, *, since: float | None) -> int:
        """Return the position of the last held Object before `position`, or -1.

        Arguments are those of `next_position`.
        """
        group_id, object_id = position >> 64, position & MAX_VI64
        for index in range(bisect_right(self.held, group_id) - 1, -1, -1):
            record = self.records[self.held[index]]
            last = len(record.ids)
            if record.group_id == group_id:
                last = bisect_left(record.ids, object_id)
            for place in range(last - 1, -1, -1):
                found = record.ids[place]
                if since is None or record.entries[found][1] > since:
                    return record.group_id << 64 | found
        return -1

    def data_positions(self, first: int, last: int) -> Iterator[int]:
        """Yield the positions of held data from `first` to `last`, ascending."""
        for index in range(bisect_left(self.held, first >> 64), len(self.held)):
            record = self.records[self.held[index]]
            base = record.group_id << 64
            for object_id in record.ids[bisect_left(record.ids, first - base) :]:
                if base | object_id > last:
                    return
                if record.entries[object_id][0].status is ObjectStatus.NORMAL:
                    yield base | object_id
