"""One Object that goes out on a Subgroup stream while it arrives; see `kvcs.moqt.track.arriving`.

Source: MOQT draft 22, Sections 7.4 and 11.3.
"""

from kvcs.moqt.session.actions import StreamId
from kvcs.moqt.session.session import Session
from kvcs.moqt.track.arriving import Arriving

__all__ = ("EarlyObject",)


class EarlyObject:
    """What one subscription has sent of an Object on its way.

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

    def step(self, session: Session, *, now: float) -> int:
        """Send what is here next; return how much."""
        data = self.arriving.read(self._offset)
        if data:
            session.send_payload(self.stream_id, data, now=now)
            self._offset += len(data)
        return len(data)
