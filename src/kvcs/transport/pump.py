"""When to look at a library that works on a thread of its own.

A library context says with an eventfd that something waits. Under load each wake would find a
few kilobytes; so after a look that found more than messages the eventfd is left alone for
`gather_interval`, and the next look takes what has gathered: fewer, larger pieces, and a third
less work. While little arrives the eventfd wakes at once. A link that is busy is looked at half as
often: what a look costs beside its bytes grows with connections and streams, and on such a link
queues decide about the latency. A send queue that waits for room is looked at by timer, less often
the less it moves, since a full ring says nothing when it empties.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

__all__ = ("Look", "Pump", "gather_interval")

# Seconds before the next look while much arrives. Each look costs processor time, so a longer
# wait saves work; each hop adds it to the latency.
_GATHER_INTERVAL: Final = 0.002
# The same on a busy link, and the bytes in one look that make it one.
_BUSY_INTERVAL: Final = 0.004
_BUSY_BYTES: Final = 256 * 1024
#: Bytes in one look after an eventfd that are more than messages.
_GATHER_FROM: Final = 4 * 1024
#: Bytes in one look after a timer below which the eventfd is used again.
_GATHER_WHILE: Final = 16 * 1024
#: Waits between looks at a send queue: while it moves, and at most.
_SEND_INTERVAL: Final = 0.002
_SLOW_INTERVAL: Final = 0.008


class Look(NamedTuple):
    """What a look at a context came to.

    Attributes:
        received: Bytes received.
        sent: Bytes that left the send queues.
        starved: The network had taken all of a stream that had more to send.
    """

    received: int
    sent: int
    starved: bool


def gather_interval(look: Look) -> float:
    """Return the seconds until the next look, after one that found much."""
    is_busy = look.received + look.sent >= _BUSY_BYTES and not look.starved
    return _BUSY_INTERVAL if is_busy else _GATHER_INTERVAL


_NOTHING: Final = Look(0, 0, starved=False)


class Pump:
    """Calls `turn` when a library context has something, or something to send waits."""

    def __init__(
        self,
        eventfd: int,
        turn: Callable[[], Look],
        waits: Callable[[], bool],
    ) -> None:
        """Start watching.

        Args:
            eventfd: Readable when events wait in the context.
            turn: Takes all events and moves what is queued.
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
        look = _NOTHING
        self._hurries = False
        try:
            look = self._turn()
        finally:
            if not self._stopped:
                self._schedule(look)

    def _schedule(self, look: Look) -> None:
        """Choose how the next look comes about."""
        gathers = look.received >= (_GATHER_FROM if self._reading else _GATHER_WHILE)
        self._read(on=not gathers)
        if gathers:
            self._set_timer(gather_interval(look))
        elif self._hurries:
            self._set_timer(0)
        elif self._timer is None and self._waits():
            self._interval = (
                _SEND_INTERVAL if look.sent else min(2 * self._interval, _SLOW_INTERVAL)
            )
            self._set_timer(self._interval)

    def _set_timer(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay, self._tick)
