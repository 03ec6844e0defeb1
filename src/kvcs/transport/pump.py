"""When to look at a library that works on a thread of its own.

A library context says with an eventfd that something waits. Under load each wake would find a
few kilobytes; so after a wake that moved much the eventfd is left alone for a millisecond, and
one look then takes what has gathered: fewer, larger pieces, and a third less work. While little
happens the eventfd wakes at once. A send queue that waits for room is looked at by timer, less
often the less it moves, since a full ring says nothing when it empties.
"""

import asyncio
from collections.abc import Callable
from typing import Final

__all__ = ("Pump",)

#: Wait between two wakes of a busy context; received pieces grow from 10 KB to 200 KB.
_BUSY_INTERVAL: Final = 0.001
#: Longest wait between two looks at a send queue that hardly moves.
_SLOW_INTERVAL: Final = 0.016
#: A wake that moves so much makes a context busy.
_BUSY_BYTES: Final = 64 * 1024


class Pump:
    """Calls `turn` when a library context has something, or something to send waits."""

    def __init__(self, eventfd: int, turn: Callable[[], int], waits: Callable[[], bool]) -> None:
        """Start watching.

        Args:
            eventfd: Readable when events wait in the context.
            turn: Takes all events and moves what is queued; returns the bytes moved.
            waits: Tells whether a send queue is to be looked at again.
        """
        self._loop = asyncio.get_running_loop()
        self._eventfd = eventfd
        self._turn = turn
        self._waits = waits
        self._interval = _BUSY_INTERVAL
        self._timer: asyncio.TimerHandle | None = None
        self._reading = False
        self._stopped = False
        self._read(on=True)

    def wake(self) -> None:
        """Something was queued: look again soon."""
        if self._timer is None and not self._stopped:
            self._interval = _BUSY_INTERVAL
            self._timer = self._loop.call_later(self._interval, self._tick)

    def stop(self) -> None:
        """Stop watching."""
        self._stopped = True
        self._read(on=False)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _read(self, *, on: bool) -> None:
        if on and not self._reading:
            self._loop.add_reader(self._eventfd, self._run)
        elif self._reading and not on:
            self._loop.remove_reader(self._eventfd)
        self._reading = on

    def _tick(self) -> None:
        self._timer = None
        self._run()

    def _run(self) -> None:
        moved = 0
        try:
            moved = self._turn()
        finally:
            if not self._stopped:
                self._schedule(busy=moved >= _BUSY_BYTES)

    def _schedule(self, *, busy: bool) -> None:
        """Choose how the next look comes about."""
        self._read(on=not busy)
        if busy:
            self._interval = _BUSY_INTERVAL
        elif self._timer is None:
            self._interval = min(2 * self._interval, _SLOW_INTERVAL)
        if self._timer is None and (busy or self._waits()):
            self._timer = self._loop.call_later(self._interval, self._tick)
