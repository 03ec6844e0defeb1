"""When to look at a library that works on a thread of its own.

A library context says with an eventfd that something waits. Under load each wake would find a
few kilobytes; so after a look that found more than messages the eventfd is left alone for
`GATHER_INTERVAL`, and the next look takes what has gathered: fewer, larger pieces, and a third
less work. While little arrives the eventfd wakes at once. A send queue that waits for room is
looked at by timer, less often the less it moves, since a full ring says nothing when it
empties.
"""

import asyncio
from collections.abc import Callable
from typing import Final

__all__ = ("GATHER_INTERVAL", "Pump")

#: Seconds before the next look while much arrives. Each look costs processor time, so a longer
#: wait saves work; each hop adds it to the latency.
GATHER_INTERVAL: Final = 0.002
#: Bytes in one look after an eventfd that are more than messages.
_GATHER_FROM: Final = 4 * 1024
#: Bytes in one look after a timer below which the eventfd is used again.
_GATHER_WHILE: Final = 16 * 1024
#: Waits between looks at a send queue: while it moves, and at most.
_SEND_INTERVAL: Final = 0.002
_SLOW_INTERVAL: Final = 0.008


class Pump:
    """Calls `turn` when a library context has something, or something to send waits."""

    def __init__(
        self,
        eventfd: int,
        turn: Callable[[], tuple[int, int]],
        waits: Callable[[], bool],
    ) -> None:
        """Start watching.

        Args:
            eventfd: Readable when events wait in the context.
            turn: Takes all events and moves what is queued; returns the bytes received and
                the bytes that left the send queues.
            waits: Tells whether a send queue is to be looked at again.
        """
        self._loop = asyncio.get_running_loop()
        self._eventfd = eventfd
        self._turn = turn
        self._waits = waits
        self._interval = _SEND_INTERVAL
        self._timer: asyncio.TimerHandle | None = None
        self._reading = False
        self._hurries = False
        self._stopped = False
        self._read(on=True)

    def wake(self) -> None:
        """Something was queued: look again soon."""
        if self._timer is None and not self._stopped:
            self._interval = _SEND_INTERVAL
            self._set_timer(_SEND_INTERVAL)

    def hurry(self) -> None:
        """Events were taken between the looks: hand them on as if the eventfd had told of them."""
        if not (self._hurries or self._stopped):
            self._hurries = True
            if self._reading:
                self._set_timer(0)

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
        received = sent = 0
        self._hurries = False
        try:
            received, sent = self._turn()
        finally:
            if not self._stopped:
                self._schedule(received, sent)

    def _schedule(self, received: int, sent: int) -> None:
        """Choose how the next look comes about."""
        gathers = received >= (_GATHER_FROM if self._reading else _GATHER_WHILE)
        self._read(on=not gathers)
        if gathers:
            self._set_timer(GATHER_INTERVAL)
        elif self._hurries:
            self._set_timer(0)
        elif self._timer is None and self._waits():
            self._interval = _SEND_INTERVAL if sent else min(2 * self._interval, _SLOW_INTERVAL)
            self._set_timer(self._interval)

    def _set_timer(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay, self._tick)
