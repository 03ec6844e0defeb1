"""How far one subscription is in one Subgroup."""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from kvcs.moqt.session.actions import StreamId
from kvcs.moqt.track.arriving import Arriving
from kvcs.moqt.track.early import EarlyObject
from kvcs.moqt.track.group import Subgroup
from kvcs.names import Location

__all__ = ("Cursor", "Timeouts")


class Timeouts(NamedTuple):
    """Effective delivery timeouts in seconds; 0 is none.

    Attributes:
        for_object: From the arrival of an Object.
        for_subgroup: From the moment when the end of its Subgroup was known.
    """

    for_object: float
    for_subgroup: float


@dataclass(slots=True, eq=False)
class Cursor:
    """Where a subscription is in one Subgroup.

    Attributes:
        subgroup: The Subgroup.
        key: Place in the queue.
        last_id: Every Object up to this one was sent or is not wanted.
        late_seen: How much of `Subgroup.late` was looked at.
        backlog: Object IDs below `last_id` that came late, a heap.
        stream_id: The open stream.
        sent_id: Last Object ID on the open stream; -1 before the first.
        with_properties: Whether the open stream has room for Properties.
        queued: Whether it is in the queue.
        is_stray: Whether the open stream carries late Objects.
        asked_through: End of the gap that was reported last.
        incomplete: Something was left out, so that no stream can end with FIN.
        timeouts: Delivery timeouts of the Subgroup, once they were looked up.
        early: The next Object, while it goes out before it is whole.
        left: The Object that was left half way last; it is not begun again before it is whole.
    """

    subgroup: Subgroup
    key: tuple[int, int, int]
    last_id: int
    late_seen: int
    backlog: list[int] = field(default_factory=list[int])
    stream_id: StreamId | None = None
    sent_id: int = -1
    with_properties: bool = False
    is_stray: bool = False
    queued: bool = False
    asked_through: Location | None = None
    incomplete: bool = False
    timeouts: Timeouts | None = None
    early: EarlyObject | None = None
    left: Arriving | None = None

    @property
    def is_datagram(self) -> bool:
        """Whether its Objects travel in datagrams, and belong to no Subgroup."""
        return self.subgroup.subgroup_id is None

    @property
    def has_late(self) -> bool:
        """Whether late Objects come first, or may."""
        return bool(self.backlog) or self.late_seen < len(self.subgroup.late)

    def next_id(self) -> int | None:
        """Return the Object ID to deal with next, late ones first; None if there is none."""
        late = self.subgroup.late
        while self.late_seen < len(late):
            if late[self.late_seen] <= self.last_id:
                heappush(self.backlog, late[self.late_seen])
            self.late_seen += 1
        return self.backlog[0] if self.backlog else self.subgroup.next_id(self.last_id)

    def finish_early(self, object_id: int) -> None:
        """Count the Object that went out early as sent."""
        # What came late so far is told by `last_id`, and this one did not.
        self.next_id()
        self.early = None
        self.last_id = self.sent_id = object_id

    def advance(self, object_id: int) -> bool:
        """Count `object_id`, the next one, as dealt with; tell whether it came late."""
        if self.backlog:
            heappop(self.backlog)
            return True
        self.last_id = object_id
        return False
