"""One Object that goes out on a stream while it arrives; see `kvcs.moqt.track.arriving`.

Source: MOQT draft 22, Sections 7.4, 11.3 and 11.4.
"""

from kvcs.moqt.session.actions import StreamId
from kvcs.moqt.session.session import Session
from kvcs.moqt.track.arriving import Arriving
from kvcs.moqt.track.group import Subgroup
from kvcs.moqt.track.store import TrackStore

__all__ = ("EarlyObject", "arriving_at", "begins_in")


def arriving_at(store: TrackStore, group_id: int, object_id: int) -> Arriving | None:
    """Return the Object at a Location that has begun, unless it is held from elsewhere."""
    arriving = store.arrivals.at(group_id, object_id)
    is_held = arriving is not None and store.received_at(group_id, object_id) is not None
    return None if is_held else arriving


def begins_in(store: TrackStore, subgroup: Subgroup) -> bool:
    """Tell whether an Object of a Subgroup has begun."""
    return store.arrivals.has_any_in(subgroup.group_id, subgroup.subgroup_id)


class EarlyObject:
    """What one delivery has sent of an Object on its way.

    Attributes:
        arriving: The Object.
        stream_id: The stream that carries it.
    """

    __slots__ = ("_offset", "arriving", "stream_id")

    def __init__(
        self, arriving: Arriving, session: Session, stream_id: StreamId, *, now: float
    ) -> None:
        """Write the header of the Object on an open stream."""
        self.arriving = arriving
        self.stream_id = stream_id
        self._offset = 0
        session.begin_object(stream_id, arriving.obj, arriving.payload_length, now=now)

    def __repr__(self) -> str:
        return f"<EarlyObject {self.arriving.obj.location}, {self._offset} octets sent>"

    @property
    def is_sent(self) -> bool:
        """Whether all of it was sent."""
        return self._offset == self.arriving.payload_length

    def is_over(self, store: TrackStore) -> bool:
        """Tell whether the rest does not come, or another publisher was faster."""
        arriving = self.arriving
        if arriving.is_lost or arriving.is_whole or self._offset < arriving.size:
            return arriving.is_lost
        return store.received_at(arriving.obj.group_id, arriving.obj.object_id) is not None

    def let_go(self, store: TrackStore) -> None:
        """Keep no octets of a whole Object that the store has dropped: nobody counts them."""
        arriving, obj = self.arriving, self.arriving.obj
        if arriving.is_handed_over and store.received_at(obj.group_id, obj.object_id) is None:
            arriving.lose()

    def step(self, session: Session, *, now: float) -> int:
        """Send what is here next; return how much."""
        data = self.arriving.read(self._offset)
        if data:
            session.send_payload(self.stream_id, data, now=now)
            self._offset += len(data)
        return len(data)
