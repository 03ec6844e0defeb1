"""Bytes that a transport has accepted and its library has not: the bounded way between.

Theory of operation: the library below keeps a ring of bytes per stream and refuses what does
not fit. `SendQueue` holds the rest, keeps the ring of each stream below a limit, and moves
bytes when `pump` is called: after each write, and on a timer while something waits. It never
spins on a full ring: a refused piece waits for the next `pump`. Every slice is a copy, so a
write waits for room for all of it, unless it needs more than half of the ring: then it goes in
pieces of `PIECE_BYTES`.

The same queue runs above the QUIC library and above the in-memory network, so that both show
the same behaviour.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

__all__ = ("PIECE_BYTES", "SendQueue", "SendRings")

#: Size of the pieces of a write that does not fit as a whole.
PIECE_BYTES: Final = 256 * 1024
#: Writes that are smaller are joined. A hand-over costs about a microsecond and the library is
#: woken once for many of them, so a copy of more bytes costs more than it saves.
_JOIN_BELOW: Final = 16 * 1024
#: Most bytes of joined writes.
_JOINED_BYTES: Final = 64 * 1024


class SendRings(Protocol):
    """The library's side: one ring of bytes per stream."""

    def push(self, stream_id: int, data: bytes, *, fin: bool) -> bool:
        """Take all of `data`, or nothing and return False."""
        ...

    def used(self, stream_id: int, /) -> int:
        """Bytes of a stream in its ring; 0 for streams that are unknown or done."""
        ...


@dataclass(slots=True)
class _Stream:
    """What one stream still owes: writes in order, the first one from `offset`.

    Its ring has `ring_bytes`, and takes nothing more before it has room for `needs`.
    """

    writes: deque[tuple[bytes, bool]] = field(default_factory=deque[tuple[bytes, bool]])
    offset: int = 0
    ring_bytes: int = 0
    needs: int = 0


class SendQueue:
    """Queues of all streams of one connection.

    Attributes:
        queued_bytes: Bytes accepted and not yet seen leaving the rings.
        is_starved: The last `pump` found the ring of a stream empty that had more to give.
    """

    __slots__ = (
        "_begun",
        "_fresh",
        "_limit",
        "_piece_bytes",
        "_rings",
        "_streams",
        "_whole_bytes",
        "is_starved",
        "queued_bytes",
    )

    def __init__(self, rings: SendRings, *, stream_bytes: int) -> None:
        """Create an empty queue.

        Args:
            rings: The library's side.
            stream_bytes: Bytes of one stream that may lie in its ring.
        """
        self._rings = rings
        self._limit = stream_bytes
        self._piece_bytes = min(PIECE_BYTES, stream_bytes)
        # While such a write waits, the other half of the ring keeps the link busy.
        self._whole_bytes = stream_bytes // 2
        self._streams: dict[int, _Stream] = {}
        self._fresh: dict[int, _Stream] = {}
        self._begun: dict[int, int] = {}
        self.queued_bytes = 0
        self.is_starved = False

    def __repr__(self) -> str:
        return f"<SendQueue {len(self._streams)} streams, {self.queued_bytes} bytes>"

    @property
    def streams(self) -> int:
        """Streams that still owe something."""
        return len(self._streams)

    @property
    def streams_not_begun(self) -> int:
        """Streams beyond those of their kind of which something has left.

        A peer lets streams begin in the order of their ids.
        """
        begun = self._begun
        return sum(s > begun.get(s & 3, s) for s in self._streams)

    def has_begun(self, stream_id: int) -> bool:
        """Tell whether something of this stream, or of a later one of its kind, has left."""
        return stream_id <= self._begun.get(stream_id & 3, -1)

    def note_begun(self, stream_id: int) -> None:
        """Note that the peer knows a stream."""
        kind = stream_id & 3
        if stream_id > self._begun.get(kind, -1):
            self._begun[kind] = stream_id

    @property
    def is_waiting(self) -> bool:
        """Tell whether the rings have not taken all that was written."""
        return any(stream.writes for stream in self._streams.values())

    def owes(self, stream_id: int) -> bool:
        """Tell whether bytes of a stream have not left its ring, as far as is known."""
        stream = self._streams.get(stream_id)
        return stream is not None and bool(stream.writes or self._rings.used(stream_id))

    def unsent_bytes(self, stream_id: int) -> int:
        """Return the bytes of a stream that have not left its ring, as far as is known."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return 0
        waiting = sum(len(data) for data, _ in stream.writes) - stream.offset
        return waiting + self._rings.used(stream_id)

    def append(self, stream_id: int, data: bytes, *, fin: bool) -> None:
        """Accept a write; `flush` moves it."""
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._streams[stream_id] = _Stream()
        stream.writes.append((data, fin))
        self.queued_bytes += len(data)
        self._fresh[stream_id] = stream

    def flush(self) -> None:
        """Move what fits of the streams that were written on."""
        fresh, self._fresh = self._fresh, {}
        for stream_id, stream in fresh.items():
            # An empty ring has room, and nothing has left it.
            if stream.ring_bytes:
                self._note_left(stream_id, stream, self._rings.used(stream_id))
            if self._limit - stream.ring_bytes >= stream.needs:
                self._push(stream_id, stream)

    def discard(self, stream_id: int) -> None:
        """Forget everything that a stream still owes."""
        stream = self._streams.pop(stream_id, None)
        self._fresh.pop(stream_id, None)
        if stream is not None:
            waiting = sum(len(data) for data, _ in stream.writes) - stream.offset
            self.queued_bytes -= waiting + stream.ring_bytes

    def discard_writes(self, stream_id: int) -> None:
        """Forget what a stream owes beyond what its ring has."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self.queued_bytes -= sum(len(data) for data, _ in stream.writes) - stream.offset
            stream.writes.clear()
            stream.offset = stream.needs = 0

    def clear(self) -> None:
        """Forget everything."""
        self._streams.clear()
        self._fresh.clear()
        self.queued_bytes = 0

    def pump(self) -> int:
        """Move what fits of all streams; return the bytes that have left the rings."""
        before, used_of = self.queued_bytes, self._rings.used
        self._fresh.clear()
        self.is_starved = False
        done: list[int] = []
        for stream_id, stream in self._streams.items():
            used = used_of(stream_id)
            if used != stream.ring_bytes:
                self._note_left(stream_id, stream, used)
            # Most have given all they have to the library, and wait for the network.
            if stream.writes:
                self.is_starved = self.is_starved or not used
                if self._limit - used >= stream.needs:
                    self._push(stream_id, stream)
            if not (stream.ring_bytes or stream.writes):
                done.append(stream_id)
        for stream_id in done:
            del self._streams[stream_id]
        return before - self.queued_bytes

    def _note_left(self, stream_id: int, stream: _Stream, used: int) -> None:
        """Count what has left the ring of a stream."""
        if used < stream.ring_bytes:
            self.note_begun(stream_id)
        self.queued_bytes -= stream.ring_bytes - used
        stream.ring_bytes = used

    def _push(self, stream_id: int, stream: _Stream) -> None:
        """Give the ring of a stream what it has room for."""
        writes, push = stream.writes, self._rings.push
        stream.needs = 0
        while writes:
            data, fin = writes[0]
            if _JOIN_BELOW <= len(data) <= self._limit - stream.ring_bytes and not stream.offset:
                piece, completed = data, 1
            else:
                piece, completed = self._next_piece(stream)
                fin = completed > 0 and writes[completed - 1][1]
            if piece is None or not push(stream_id, piece, fin=fin):
                return
            stream.ring_bytes += len(piece)
            stream.offset = 0 if completed else stream.offset + len(piece)
            for _ in range(completed):
                writes.popleft()

    def _next_piece(self, stream: _Stream) -> tuple[bytes | None, int]:
        """Return what the ring has room for next, and how many writes that completes."""
        room = self._limit - stream.ring_bytes
        writes, offset = stream.writes, stream.offset
        data = writes[0][0]
        left = len(data) - offset
        if left > room:
            is_whole = not offset and left <= self._whole_bytes
            stream.needs = left if is_whole else min(left, self._piece_bytes)
            if stream.needs > room:
                return None, 0
            return data[offset : offset + self._piece_bytes], 0
        if offset:
            return data[offset:], 1
        if len(writes) == 1 or len(writes[1][0]) >= _JOIN_BELOW:
            return data, 1
        parts = [data]
        for more, _ in islice(writes, 1, None):
            left += len(more)
            if len(more) >= _JOIN_BELOW or left > min(room, _JOINED_BYTES):
                break
            parts.append(more)
        return b"".join(parts), len(parts)
