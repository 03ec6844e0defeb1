"""Delivery timeouts of what a transport has taken and not yet sent.

Theory of operation. Whoever writes an Object that has a delivery timeout, or ends a Subgroup
that has one, says until when it must be gone (`LateStreams.watch`). At that instant the
transport is asked what of the stream has not been sent. Bytes of a stream leave in order, so an
Object waits exactly when more waits than what was written after it. If it does, whoever watches
is told once, and the stream is no longer looked at. A stream that was reset meanwhile has nothing
that waits. Streams are looked at from time to time before that, so that a timeout of years keeps
no more here than what is under way.

One of these belongs to each session, since streams outlive their requests.

Source: MOQT draft 22, Section 5.2.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Final

from kvcs.moqt.session.actions import StreamId
from kvcs.moqt.session.session import Session

__all__ = ("LateStreams", "OnLate")

type OnLate = Callable[[Session, StreamId, float], None]
"""Called with the session, a stream that is late, and the time."""


# Seconds after which what was sent in time is forgotten at the latest.
_LOOK_INTERVAL: Final = 2.0


@dataclass(slots=True, eq=False)
class _Stream:
    """What was written on a watched stream.

    Attributes:
        on_late: Who is told.
        written_bytes: Octets of all that was written since it is watched.
        waiting: Until when it must have been sent up to which of these octets.
        look_at: When it is looked at next.
    """

    on_late: OnLate
    written_bytes: int = 0
    waiting: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    look_at: float = inf

    def forget_sent(self, unsent_bytes: int) -> None:
        """Forget what has been sent."""
        sent_bytes = self.written_bytes - unsent_bytes
        self.waiting = [entry for entry in self.waiting if entry[1] > sent_bytes]

    @property
    def due_at(self) -> float | None:
        """When the first of what waits is late; None if nothing waits."""
        return min(self.waiting)[0] if self.waiting else None


class LateStreams:
    """The streams of one session of which something must be sent in time."""

    __slots__ = ("_looks", "_streams", "_turns", "_unsent_bytes")

    def __init__(self, unsent_bytes: Callable[[StreamId], int]) -> None:
        """Watch nothing yet.

        Args:
            unsent_bytes: Tells how many octets of a stream the transport has not sent.
        """
        self._unsent_bytes = unsent_bytes
        self._streams: dict[StreamId, _Stream] = {}
        self._looks: list[tuple[float, int, StreamId]] = []
        self._turns = count()

    def __repr__(self) -> str:
        return f"<LateStreams {len(self._streams)} streams>"

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def next_deadline(self) -> float | None:
        """When `check` is due, in monotonic seconds."""
        return self._looks[0][0] if self._looks else None

    def watch(
        self,
        stream_id: StreamId,
        size_bytes: int,
        *,
        due_at: float | None,
        on_late: OnLate,
        now: float,
    ) -> None:
        """Have all that was written on a stream so far sent by `due_at`.

        Args:
            stream_id: The stream.
            size_bytes: Octets that were written since the last call for this stream.
            due_at: Monotonic seconds; None for ever.
            on_late: Who is told when it is late, the same for each call.
            now: Monotonic seconds.
        """
        stream = self._streams.get(stream_id)
        if stream is None:
            if due_at is None:
                return
            stream = self._streams[stream_id] = _Stream(on_late)
        stream.written_bytes += size_bytes
        if due_at is not None:
            stream.waiting.append((due_at, stream.written_bytes))
            self._look_at(stream_id, stream, due_at, now)

    def forget(self, stream_id: StreamId) -> None:
        """Watch a stream no longer."""
        self._streams.pop(stream_id, None)

    def check(self, session: Session, *, now: float) -> None:
        """Tell of the streams that are late."""
        while self._looks and self._looks[0][0] <= now:
            stream_id = heappop(self._looks)[2]
            stream = self._streams.get(stream_id)
            if stream is None:
                continue
            stream.forget_sent(self._unsent_bytes(stream_id))
            stream.look_at = inf
            due_at = stream.due_at
            if due_at is not None and due_at > now:
                self._look_at(stream_id, stream, due_at, now)
                continue
            self.forget(stream_id)
            if due_at is not None:
                stream.on_late(session, stream_id, now)

    def _look_at(self, stream_id: StreamId, stream: _Stream, due_at: float, now: float) -> None:
        """Look at a stream when something on it is due, and before long."""
        look_at = min(due_at, now + _LOOK_INTERVAL)
        if look_at < stream.look_at:
            stream.look_at = look_at
            heappush(self._looks, (look_at, next(self._turns), stream_id))
