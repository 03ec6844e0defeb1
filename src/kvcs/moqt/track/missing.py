"""What a subscription owes, and what is missing of it before the next Object.

Source: MOQT draft 22, Sections 3.1 and 7.5.
"""

from kvcs.moqt.track.cursor import Cursor
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.filters import LocationRange
from kvcs.names import Location

__all__ = ("gap_before", "is_inside", "lost_before")


def lost_before(
    store: TrackStore, cursor: Cursor, object_id: int | None, wanted: LocationRange, *, now: float
) -> tuple[Location, Location] | None:
    """Return what is owed before or at an Object and was dropped or has expired, inclusive.

    Args:
        store: The Track.
        cursor: How far the Subgroup was sent.
        object_id: What the cursor has next; None for nothing.
        wanted: What the subscriber wants.
        now: Monotonic seconds.
    """
    subgroup = cursor.subgroup
    group_id = subgroup.group_id
    if object_id is not None and store.held(group_id, object_id, now=now) is None:
        location = Location(group_id, object_id)
        return (location, location) if location in wanted else None
    floor = wanted.start.object_id - 1 if group_id == wanted.start.group_id else -1
    lost = subgroup.has_lost_after(max(cursor.last_id, floor))
    if lost is None or (object_id is not None and object_id < lost):
        return None
    run = subgroup.evicted.find(lost)
    location = Location(group_id, lost)
    if run is None or location not in wanted:
        return None
    through = Location(group_id, run[1])
    return location, through if wanted.end is None else min(through, wanted.end)


def gap_before(
    store: TrackStore, cursor: Cursor, object_id: int | None, *, now: float
) -> tuple[Location, Location] | None:
    """Return what may belong between the last Object and `object_id`, inclusive."""
    if object_id is None or cursor.backlog:
        return None
    return store.gap(cursor.subgroup, cursor.last_id, object_id, now=now)


def is_inside(group_id: int, object_id: int, start: Location, end: Location | None) -> bool:
    """Tell whether a place is in a range, inclusive, without making a Location of it."""
    if group_id <= start.group_id and (group_id < start.group_id or object_id < start.object_id):
        return False
    return (
        end is None
        or group_id < end.group_id
        or (group_id == end.group_id and object_id <= end.object_id)
    )
