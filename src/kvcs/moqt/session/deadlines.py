"""What a session waits for, and until when.

Setting and clearing a deadline is constant time, on the whole, and moving one later leaves
the heap alone, since data streams move theirs with every piece that arrives.
"""

from enum import IntEnum, auto
from heapq import heapify, heappop, heappush
from typing import Final

__all__ = ("Deadlines", "Timer")

# Cleared deadlines that may stay in the heap, beside as many as are set.
_LEAST_STALE: Final = 64


class Timer(IntEnum):
    """What is waited for; the integer beside it is a stream id or a Request ID."""

    SETUP = auto()
    CONTROL_MESSAGE = auto()
    DATA_STREAM = auto()
    PENDING_STREAM = auto()
    ANSWER = auto()
    UPDATE_ANSWER = auto()
    DRAIN = auto()
    GOAWAY = auto()
    REQUEST_GOAWAY = auto()


type _Key = tuple[Timer, int]


class Deadlines:
    """Deadlines by what is waited for."""

    __slots__ = ("_due", "_heap", "_queued")

    def __init__(self) -> None:
        self._due: dict[_Key, float] = {}
        # Earliest heap entry of each key; later entries of the same key do not exist.
        self._queued: dict[_Key, float] = {}
        self._heap: list[tuple[float, _Key]] = []

    def __repr__(self) -> str:
        return f"Deadlines({len(self._due)} set)"

    def set(self, timer: Timer, subject: int, deadline: float) -> None:
        """Wait for `subject` until `deadline`, instead of any earlier wish."""
        key = (timer, subject)
        self._due[key] = deadline
        queued = self._queued.get(key)
        if queued is None or deadline < queued:
            self._queued[key] = deadline
            heappush(self._heap, (deadline, key))

    def clear(self, timer: Timer, subject: int) -> None:
        """Stop waiting; nothing happens when nothing is waited for."""
        self._due.pop((timer, subject), None)
        if len(self._heap) > 2 * len(self._due) + _LEAST_STALE:
            self._forget_stale()

    def _forget_stale(self) -> None:
        """Drop what is not waited for any more, before its time comes."""
        self._queued = dict(self._due)
        self._heap = [(due, key) for key, due in self._due.items()]
        heapify(self._heap)

    def clear_all(self) -> None:
        """Stop waiting for anything."""
        self._due.clear()
        self._queued.clear()
        self._heap.clear()

    def is_set(self, timer: Timer, subject: int) -> bool:
        """Tell whether `subject` is waited for."""
        return (timer, subject) in self._due

    def next(self) -> float | None:
        """Return the earliest deadline."""
        heap = self._heap
        while heap:
            queued, key = heap[0]
            due = self._due.get(key)
            if due == queued:
                return due
            heappop(heap)
            if self._queued.get(key) == queued:
                del self._queued[key]
                if due is not None:
                    self._queued[key] = due
                    heappush(heap, (due, key))
        return None

    def pop_due(self, now: float) -> tuple[Timer, int] | None:
        """Take one deadline that has passed at `now`."""
        deadline = self.next()
        if deadline is None or deadline > now:
            return None
        key = heappop(self._heap)[1]
        del self._queued[key], self._due[key]
        return key
