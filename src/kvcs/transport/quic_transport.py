"""A transport above a QUIC library that works on a thread of its own.

Theory of operation: writes go through a `SendQueue` into the library's rings, those of one
turn of the event loop together; what the library refuses is kept and tried again at the next
look. Whoever drives the library notes its events with `QuicTransport.receive`, hands them on
with `deliver` and moves the queue with `move`, in that order, at each look; `waits` says
whether another look is wanted soon.

A clean close is a small protocol, since the library's close loses what is queued: wait until
the queue is empty, every finished stream is acknowledged and nothing is in transit, then
close, then wait for the close to reach the wire; each step is bounded.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from kvcs.transport.interface import (
    Address,
    Closed,
    StreamData,
    Transport,
    TransportConfig,
    TransportEvent,
    is_unidirectional,
)
from kvcs.transport.send_queue import SendQueue, SendRings

__all__ = ("QuicLibrary", "QuicTransport")

#: Seconds for our close to reach the wire.
_CLOSE_WAIT: Final = 2.0
#: Looks in a row without bytes in transit that mean that everything has arrived; a snapshot
#: that is asked for at one look is there at the next.
_QUIET_LOOKS: Final = 3
#: Finished streams after which those are forgotten that the peer has acknowledged.
_MANY_STREAMS: Final = 1024
#: Seconds without progress after which a blocked send queue is reported once.
_STALL_WARNING: Final = 5.0
#: Seconds without progress after which a blocked send queue is looked at less often, and how
#: often then: a look costs microseconds for each stream, every few milliseconds, for every peer
#: that takes nothing.
_STALL_TIME: Final = 1.0
_STALLED_INTERVAL: Final = 0.1

_logger = logging.getLogger("kvcs.transport")


class QuicLibrary(SendRings, Protocol):
    """What a transport needs of the library, for one connection; nothing here raises.

    A command returns False when the library has no room for it now: try again later.
    """

    def reset(self, stream_id: int, code: int) -> bool:
        """Send RESET_STREAM."""
        ...

    def stop_sending(self, stream_id: int, code: int) -> bool:
        """Send STOP_SENDING."""
        ...

    def set_priority(self, stream_id: int, priority: int) -> bool:
        """Rank a stream."""
        ...

    def send_datagram(self, data: bytes) -> None:
        """Send a datagram, or drop it."""
        ...

    def close(self, code: int) -> bool:
        """Send CONNECTION_CLOSE; what is queued is lost."""
        ...

    def is_acknowledged(self, stream_id: int) -> bool:
        """Tell whether the peer has all of a finished stream."""
        ...

    def max_bidi_streams(self) -> int | None:
        """Bidirectional streams that the peer lets us have open; None while that is not known."""
        ...

    def bytes_in_transit(self) -> int:
        """Bytes in packets without an acknowledgement; a recent snapshot."""
        ...


class QuicTransport(Transport):
    """One QUIC connection.

    Attributes:
        config: Its settings.
    """

    def __init__(
        self,
        library: QuicLibrary,
        peer_address: Address,
        config: TransportConfig,
        *,
        wake: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        """Take over a connection whose handshake is done.

        Args:
            library: The library's connection.
            peer_address: The other end.
            config: Settings.
            wake: Asks for a wake of the context.
            release: Frees what belongs to this connection alone.
        """
        self._library = library
        self._peer_address = peer_address
        self.config = config
        self._wake = wake
        self._release = release
        self._loop = asyncio.get_running_loop()
        self._queue = SendQueue(library, stream_bytes=config.stream_ring_bytes)
        self._max_bidi_streams: int | None = None
        self._owed: deque[Callable[[], bool]] = deque()
        self._finished: set[int] = set()
        self._not_begun: dict[int, list[Callable[[], None]]] = {}
        self._batch: list[TransportEvent] = []
        self._on_events: Callable[[Sequence[TransportEvent]], None] | None = None
        self._on_writable: Callable[[], None] = lambda: None
        self._owes_writable = False
        self._flush_due = False
        self._progress_at = self._loop.time()
        self._next_look = 0.0
        self._warned = False
        self._closing: tuple[int, str] | None = None
        self._close_sent = False
        self._quiet_looks = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._over = False
        self._released = asyncio.Event()

    def __repr__(self) -> str:
        return f"<QuicTransport {self._peer_address}, {self.queued_bytes} bytes queued>"

    # The interface.

    @property
    def peer_address(self) -> Address:
        """The other end."""
        return self._peer_address

    @property
    def queued_bytes(self) -> int:
        """Bytes accepted and not yet in packets."""
        return self._queue.queued_bytes

    @property
    def room(self) -> int:
        """Bytes below the high-water mark."""
        return max(0, self.config.high_water_bytes - self._queue.queued_bytes)

    @property
    def max_bidi_streams(self) -> int:
        """Bidirectional streams that the peer lets this end have open at a time."""
        if self._max_bidi_streams is None:
            self._max_bidi_streams = self._library.max_bidi_streams()
        return self._max_bidi_streams or 0

    def is_drained(self, stream_id: int) -> bool:
        """Tell whether nothing of a stream waits."""
        return not self._queue.owes(stream_id)

    def unsent_bytes(self, stream_id: int) -> int:
        """Return the bytes of a stream that wait."""
        return self._queue.unsent_bytes(stream_id)

    def set_listener(
        self,
        on_events: Callable[[Sequence[TransportEvent]], None],
        on_writable: Callable[[], None],
    ) -> None:
        """Name the receiver; what arrived before is delivered on the next loop turn."""
        self._on_events = on_events
        self._on_writable = on_writable
        self._loop.call_soon(self.deliver)

    def write(self, stream_id: int, data: bytes, *, fin: bool = False) -> None:
        """Queue bytes on a stream."""
        if self._closing is None and not self._over:
            queue = self._queue
            if not queue.queued_bytes:
                self._progress_at = self._loop.time()
            queue.append(stream_id, data, fin=fin)
            if fin and is_unidirectional(stream_id):
                self._finished.add(stream_id)
            # Not only above the low-water mark: the rings empty while the writer fills them, so
            # one that used all its room may never be seen there, and still waits to go on.
            self._owes_writable = True
            if not self._flush_due:
                self._flush_due = True
                self._loop.call_soon(self._flush)

    def reset(self, stream_id: int, code: int) -> None:
        """Abandon the sending side of a stream."""
        if self._is_open:
            # The library resets no stream that it has not seen.
            self._flush()
            self._finished.discard(stream_id)
            if self._queue.has_begun(stream_id):
                self._abandon(stream_id, code)
            else:
                self._queue.discard_writes(stream_id)
                self._once_begun(stream_id, lambda: self._abandon(stream_id, code))

    def stop_sending(self, stream_id: int, code: int) -> None:
        """Ask the peer to abandon its sending side of a stream."""
        if not self._is_open:
            return
        if self._queue.has_begun(stream_id) or is_unidirectional(stream_id):
            self._command(lambda: self._library.stop_sending(stream_id, code))
        else:
            self._once_begun(stream_id, lambda: self.stop_sending(stream_id, code))

    def set_priority(self, stream_id: int, priority: int) -> None:
        """Rank a stream."""
        if self._is_open:
            self._command(lambda: self._library.set_priority(stream_id, priority))

    def send_datagram(self, data: bytes) -> None:
        """Send a datagram, or drop it when there is no room or it is too large."""
        if self._is_open:
            self._library.send_datagram(data)

    def close(self, code: int, reason: str) -> None:
        """Close; code 0 delivers what is queued first."""
        if not self._is_open:
            return
        self._flush()
        self._closing = (code, reason)
        if code:
            self._send_close()
        else:
            self._deadline = self._loop.call_later(self.config.close_timeout, self._send_close)
        self._wake()

    async def wait_closed(self) -> None:
        """Wait until the connection is over and its resources are released."""
        await self._released.wait()

    def _abandon(self, stream_id: int, code: int) -> None:
        self._queue.discard(stream_id)
        self._command(lambda: self._library.reset(stream_id, code))

    def _once_begun(self, stream_id: int, command: Callable[[], None]) -> None:
        """Give a command when the peer has let a stream begin.

        Before, the library takes it for a stream beyond the peer's limit, and closes.
        """
        self._not_begun.setdefault(stream_id, []).append(command)

    def _command_begun(self) -> None:
        """Give the commands for streams that have begun meanwhile."""
        for stream_id in [s for s in self._not_begun if self._queue.has_begun(s)]:
            for command in self._not_begun.pop(stream_id):
                command()

    # Wakes.

    def _flush(self) -> None:
        """Give the library what was written in this turn of the loop."""
        self._flush_due = False
        if not self._over:
            self._queue.flush()
            self._wake()

    @property
    def waits(self) -> bool:
        """Tell whether this connection wants another look soon."""
        waits = self._queue.streams or self._owed or self._closing is not None
        return bool(waits) and not self._over

    def receive(self, event: TransportEvent) -> None:
        """Note an event; `deliver` hands it on."""
        self._batch.append(event)
        if isinstance(event, StreamData) and not is_unidirectional(event.stream_id):
            self._queue.note_begun(event.stream_id)

    def receive_close(self, code: int, reason: str, *, clean: bool = False) -> None:
        """Note that the library's connection is over."""
        if self._close_sent and self._closing is not None:
            code, own_reason = self._closing
            reason, clean = own_reason or "closed by us", not code
        self._end(Closed(code, reason, clean))

    def deliver(self) -> None:
        """Hand the events noted so far to the listener."""
        if self._batch and self._on_events is not None:
            batch, self._batch = self._batch, []
            self._on_events(batch)

    @property
    def is_starved(self) -> bool:
        """Tell whether the last `move` found that the network could have taken more."""
        return self._queue.is_starved

    def move(self) -> int:
        """Move what is queued into the library; return the bytes that left its rings."""
        if not (self.waits or self._owes_writable) or self._over or self._rests():
            return 0
        while self._owed and self._owed[0]():
            self._owed.popleft()
        moved = self._queue.pump()
        self._command_begun()
        if moved:
            self._progress_at = self._loop.time()
        elif self._queue.queued_bytes:
            self._warn_when_stalled()
        if self._owes_writable and self.queued_bytes < self.config.low_water_bytes:
            self._owes_writable = False
            self._on_writable()
        if self._closing is not None or len(self._finished) > _MANY_STREAMS:
            self._finished = {s for s in self._finished if not self._library.is_acknowledged(s)}
        if self._closing is not None and not self._close_sent and self._is_flushed():
            self._send_close()
        return moved

    def _rests(self) -> bool:
        """Tell whether a peer takes nothing, and it is not yet time to look at it again."""
        now = self._loop.time()
        if now < self._progress_at + _STALL_TIME or self._owed or self._closing is not None:
            return False
        if now < self._next_look:
            return True
        self._next_look = now + _STALLED_INTERVAL
        return False

    def _warn_when_stalled(self) -> None:
        stalled = self._loop.time() - self._progress_at
        if stalled >= _STALL_WARNING and not self._warned:
            self._warned = True
            queue = self._queue
            _logger.warning(
                "peer %s takes nothing: %d bytes on %d streams wait for its credit%s",
                self._peer_address,
                queue.queued_bytes,
                queue.streams,
                "; it lets no more streams begin" if self._wants_streams() else "",
            )

    def _wants_streams(self) -> bool:
        """Tell whether nothing waits but streams that cannot begin."""
        return self._queue.streams_not_begun == self._queue.streams

    # Commands that a full event ring refuses.

    @property
    def _is_open(self) -> bool:
        return self._closing is None and not self._over

    def _command(self, attempt: Callable[[], bool]) -> None:
        """Give a command to the library, after those that it still owes."""
        if self._owed or not attempt():
            self._owed.append(attempt)
            self._wake()

    # Ending.

    def _is_flushed(self) -> bool:
        """Tell whether the peer has everything: nothing queued, nothing unacknowledged.

        Bytes in transit are a snapshot of the library's thread, asked for now and read at the
        next look; two quiet looks in a row count.
        """
        # A stream that was given up before it could begin is never flushed.
        waiting = self._queue.streams > len(self._not_begun)
        if waiting or self._owed or self._finished:
            self._quiet_looks = 0
            return False
        self._quiet_looks = 0 if self._library.bytes_in_transit() else self._quiet_looks + 1
        return self._quiet_looks >= _QUIET_LOOKS

    def _send_close(self) -> None:
        if self._over or self._close_sent or self._closing is None:
            return
        self._close_sent = True
        self._queue.clear()
        self._owed.clear()
        self._not_begun.clear()
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(_CLOSE_WAIT, self._end_closed)
        code = self._closing[0]
        self._command(lambda: self._library.close(code))

    def _end_closed(self) -> None:
        """Our close reached the wire, or had its time."""
        self.receive_close(0, "closed by us")
        self.deliver()

    def _end(self, closed: Closed) -> None:
        if self._over:
            return
        self._over = True
        self._queue.clear()
        self._owed.clear()
        if self._deadline is not None:
            self._deadline.cancel()
        self._batch.append(closed)
        self._loop.call_soon(self._finish)

    def _finish(self) -> None:
        """Free the library's side, outside its callbacks."""
        self.deliver()
        self._release()
        self._released.set()

    def abandon(self) -> None:
        """End at once: the context goes away."""
        self._end(Closed(0, "the server stops", clean=True))
