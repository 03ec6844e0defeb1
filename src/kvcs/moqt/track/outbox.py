"""The outbox of a session: which delivery sends next, while the transport has room.

Theory of operation. Deliveries that may have something to do are in a heap, by rank; the
others cost nothing until they call back. The first one sends until another has a better
rank or its quantum is used up, which makes equals take turns while the bytes that wait in
the transport stay on few streams. A rank is looked at again after every Object, so it
follows the Groups of a fetch. The connection calls `send` whenever there is room.

Neither small Objects nor long ranges without any hold up others: a call makes `MAX_STEPS` at
most, and a delivery that walks waits for its turn among all that do (`Walks`).

Source: MOQT draft 22, Section 5.1.
"""

from collections.abc import Callable, Collection
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Final

from kvcs.moqt.session.actions import StreamId
from kvcs.moqt.session.session import Session
from kvcs.moqt.track.delivery import Delivery, Rank
from kvcs.moqt.track.late_streams import LateStreams
from kvcs.moqt.track.walks import STEPS_PER_SLOT, WalkQueue, Walks

__all__ = ("MAX_STEPS", "QUANTUM_BYTES", "Outbox")

# Octets that a delivery sends before an equal gets its turn; the piece in which the
# transport takes them.
QUANTUM_BYTES: Final = 256 * 1024
# Steps of all deliveries in one call, before other sessions get their turn.
MAX_STEPS: Final = 64
# Seconds after which a delivery that waits for the transport is stepped again.
_LOOK_INTERVAL: Final = 0.02


class Outbox:
    """All deliveries of one session.

    Attributes:
        on_ready: Called when there is something to send that was not there before.
        is_drained: Tells whether the transport has sent all that was written on a stream.
        late: Streams of which something must be sent in time.
        walking: Those that walk, and wait for a slot.
        behind_since: Since when there is more to send than room for it, in monotonic seconds;
            None when everything that there was has been handed over.
    """

    def __init__(
        self,
        *,
        on_ready: Callable[[], None] | None = None,
        is_drained: Callable[[StreamId], bool] = lambda _: True,
        unsent_bytes: Callable[[StreamId], int] = lambda _: 0,
        quantum_bytes: int = QUANTUM_BYTES,
        walks: Walks | None = None,
    ) -> None:
        """Create an empty outbox.

        Args:
            on_ready: Called when there is something to send that was not there before.
            is_drained: Tells whether the transport has sent all that was written on a stream.
            unsent_bytes: Tells how many octets of a stream the transport has not sent.
            quantum_bytes: Octets of one delivery before an equal gets its turn.
            walks: Slots of those that walk, shared with other outboxes; None for its own.
        """
        self.on_ready = on_ready
        self.is_drained = is_drained
        self.late = LateStreams(unsent_bytes)
        self._quantum_bytes = quantum_bytes
        self._deliveries: set[Delivery] = set()
        self._queued: dict[Delivery, Rank] = {}
        self._heap: list[tuple[Rank, int, Delivery]] = []
        self._turns = count()
        self._deadlines: list[tuple[float, int, Delivery]] = []
        self._sending = False
        self._steps = 0
        self._goes_on_at: float | None = None
        self._had_room = False
        self.walking = WalkQueue(walks or Walks())
        self.behind_since: float | None = None

    def __repr__(self) -> str:
        return f"<Outbox deliveries={len(self._deliveries)} queued={len(self._queued)}>"

    def __len__(self) -> int:
        return len(self._deliveries)

    @property
    def deliveries(self) -> Collection[Delivery]:
        """All of them; the set changes as they come and go."""
        return self._deliveries

    @property
    def is_idle(self) -> bool:
        """Nothing can be sent until something changes."""
        return not (self._queued or self.walking)

    def add(self, delivery: Delivery) -> None:
        """Take a delivery in; it is stepped as soon as there is room."""
        self._deliveries.add(delivery)
        delivery.on_ready = partial(self._enqueue, delivery)
        self._note_deadline(delivery)
        self._enqueue(delivery)

    def remove(self, delivery: Delivery) -> None:
        """Forget a delivery; unknown ones are ignored."""
        self._deliveries.discard(delivery)
        self._queued.pop(delivery, None)
        self.walking.discard(delivery)
        delivery.on_ready = None

    def wake(self) -> None:
        """Rank all deliveries anew, and step each that can go on."""
        self._heap.clear()
        self._queued.clear()
        for delivery in self._deliveries:
            self._enqueue(delivery)

    def next_deadline(self) -> float | None:
        """Return when `send` is due even without room or news, in monotonic seconds."""
        while self._deadlines and self._deadlines[0][2] not in self._deliveries:
            heappop(self._deadlines)
        first = self._deadlines[0][0] if self._deadlines else None
        walk_at = self.walking.due_at if self._had_room else None
        times = (first, self.late.next_deadline, self._goes_on_at, walk_at)
        return min((time for time in times if time is not None), default=None)

    def send(self, session: Session, *, room: int, now: float) -> int:
        """Hand Objects to the session.

        Args:
            session: The session of all deliveries.
            room: Octets that the transport takes; the last Object may exceed it.
            now: Monotonic seconds.

        Returns:
            Octets handed over.
        """
        while self._deadlines and self._deadlines[0][0] <= now:
            self._enqueue(heappop(self._deadlines)[2])
        sent, self._steps, self._goes_on_at = 0, 0, None
        self._had_room = room > 0
        self._sending = True
        try:
            self.late.check(session, now=now)
            if self._had_room and (walker := self.walking.take(now=now)) is not None:
                sent += self._walk(walker, session, room, now)
            while self._heap and sent < room and not session.is_closed:
                if self._steps >= MAX_STEPS:
                    self._goes_on_at = now
                    break
                delivery = heappop(self._heap)[2]
                if self._queued.pop(delivery, None) is not None:
                    sent += self._serve(delivery, session, room - sent, now)
        finally:
            self._sending = False
        if self.is_idle:
            self.behind_since = None
        elif self.behind_since is None:
            self.behind_since = now
        return sent

    def _serve(self, delivery: Delivery, session: Session, room: int, now: float) -> int:
        """Give a delivery its turn; return the octets it handed over."""
        if not session.is_active(delivery.request_id):
            self.remove(delivery)
            return 0
        sent, enough, heap = 0, min(room, self._quantum_bytes), self._heap
        while not (heap and heap[0][0] < delivery.rank()):
            size_bytes = delivery.step(session, now=now)
            self._steps += 1
            if delivery.is_walking:
                self.walking.add(delivery, now=now)
                return sent + size_bytes
            if not size_bytes:
                if delivery.finished:
                    self.remove(delivery)
                elif delivery.awaits_transport:
                    again_at = now + _LOOK_INTERVAL
                    heappush(self._deadlines, (again_at, next(self._turns), delivery))
                return sent
            sent += size_bytes
            if sent >= enough or self._steps >= MAX_STEPS:
                break
        self._enqueue(delivery)
        return sent

    def _walk(self, delivery: Delivery, session: Session, room: int, now: float) -> int:
        """Let a delivery use its slot; return the octets it handed over."""
        if not session.is_active(delivery.request_id):
            self.remove(delivery)
            return 0
        sent = 0
        for _ in range(STEPS_PER_SLOT):
            sent += delivery.step(session, now=now)
            if sent >= room or not delivery.is_walking:
                break
        if delivery.is_walking:
            self.walking.add(delivery, now=now)
        else:
            # The wait for slots has moved it.
            self._note_deadline(delivery)
            self._enqueue(delivery)
        return sent

    def _note_deadline(self, delivery: Delivery) -> None:
        """See that a delivery is stepped at its deadline."""
        if delivery.deadline is not None:
            heappush(self._deadlines, (delivery.deadline, next(self._turns), delivery))

    def _enqueue(self, delivery: Delivery) -> None:
        if delivery not in self._deliveries or delivery in self.walking:
            return
        rank = delivery.rank()
        queued_rank = self._queued.get(delivery)
        if queued_rank is not None and queued_rank <= rank:
            return
        # The entry with the old rank, if there is one, finds the delivery gone and is void.
        self._queued[delivery] = rank
        heappush(self._heap, (rank, next(self._turns), delivery))
        if queued_rank is None and self.on_ready is not None and not self._sending:
            self.on_ready()
