"""The Subgroup streams of one subscription, from their header to FIN or reset.

Theory of operation. A `SubgroupStreams` belongs to one subscription delivery, which decides
what goes on a stream and when it is over. A stream is in one of three states:

* open: one cursor sends on it, and knows it as `Cursor.stream_id`;
* retired: it may not end with FIN, since something was left out. A reset may destroy what
  the transport still has to send, so it stays as it is, unused, and is reset as late as
  possible: when another needs its place, or with the subscription;
* cut: a pause ended it, and it is reset with the next step.

Open and retired ones together are never more than `max_open`. A publisher that does not finish
its Subgroups leaves all of them open with nothing to send; then the lowest one is given up that
the transport has nothing left of, and its Subgroup goes on on another stream, if it goes on.

Streams that are over are not here; `cursor.stream_id` is None then.

Source: MOQT draft 22, Sections 3.1.2, 7.5 and 11.3.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from kvcs.errors import PublishDoneCode, StreamResetCode
from kvcs.moqt.session.actions import RequestId, StreamId
from kvcs.moqt.session.session import Session
from kvcs.moqt.track.cursor import Cursor
from kvcs.moqt.track.late_streams import LateStreams, OnLate
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.subgroup import SubgroupHeader

__all__ = ("SubgroupStreams", "reset_code")


_RESETS: Final[Mapping[PublishDoneCode, StreamResetCode]] = {
    PublishDoneCode.TOO_FAR_BEHIND: StreamResetCode.TOO_FAR_BEHIND,
    PublishDoneCode.GOING_AWAY: StreamResetCode.GOING_AWAY,
    PublishDoneCode.EXPIRED: StreamResetCode.EXPIRED_AUTH_TOKEN,
    PublishDoneCode.UNAUTHORIZED: StreamResetCode.EXPIRED_AUTH_TOKEN,
    PublishDoneCode.MALFORMED_TRACK: StreamResetCode.MALFORMED_TRACK,
}


def reset_code(code: PublishDoneCode) -> StreamResetCode:
    """Return how the streams end that PUBLISH_DONE with a code cuts off."""
    return _RESETS.get(code, StreamResetCode.CANCELLED)


class SubgroupStreams:
    """Streams of one subscription that are not over."""

    __slots__ = (
        "_cut",
        "_is_drained",
        "_late",
        "_max_open",
        "_on_late",
        "_open",
        "_request_id",
        "_retired",
    )

    def __init__(
        self,
        request_id: RequestId,
        *,
        max_open: int,
        is_drained: Callable[[StreamId], bool],
        late: LateStreams | None = None,
        on_late: OnLate = lambda _session, _stream_id, _now: None,
    ) -> None:
        """Have no stream yet.

        Args:
            request_id: The SUBSCRIBE or PUBLISH.
            max_open: Streams at a time.
            is_drained: Tells whether the transport has sent all that was written on a stream.
            late: Watches streams of which something must be sent in time; None if nobody does.
            on_late: Called when a watched stream is late; it may be over by then.
        """
        self._is_drained = is_drained
        self._late = late
        self._on_late = on_late
        self._request_id = request_id
        self._max_open = max_open
        self._open: dict[StreamId, Cursor] = {}
        self._retired: deque[StreamId] = deque()
        self._cut: list[StreamId] = []

    def __repr__(self) -> str:
        return (
            f"<SubgroupStreams open={len(self._open)} retired={len(self._retired)}"
            f" cut={len(self._cut)}>"
        )

    def __contains__(self, stream_id: StreamId) -> bool:
        return stream_id in self._open or stream_id in self._retired or stream_id in self._cut

    @property
    def has_room(self) -> bool:
        """Whether there may be one more stream."""
        return len(self._open) + len(self._retired) < self._max_open

    def open(
        self, cursor: Cursor, session: Session, *, header: SubgroupHeader, priority: int, now: float
    ) -> StreamId:
        """Open a stream for a cursor that has none."""
        stream_id = session.open_subgroup(self._request_id, header, priority=priority, now=now)
        cursor.stream_id = stream_id
        self._open[stream_id] = cursor
        return stream_id

    def watch(self, cursor: Cursor, size_bytes: int, due_at: float | None, *, now: float) -> None:
        """Have all that is on the stream of a cursor, if it has one, sent by `due_at`.

        Args:
            cursor: Whose stream it is.
            size_bytes: Octets that were written since the last call.
            due_at: Monotonic seconds; None for ever.
            now: Monotonic seconds.
        """
        if cursor.stream_id is not None and self._late is not None:
            self._late.watch(
                cursor.stream_id, size_bytes, due_at=due_at, on_late=self._on_late, now=now
            )

    def unwatch(self) -> None:
        """Watch the open streams no longer."""
        for stream_id in self._open:
            if self._late is not None:
                self._late.forget(stream_id)

    def finish(self, cursor: Cursor, session: Session, *, now: float) -> None:
        """End the stream of a cursor, if it has one, with FIN."""
        stream_id = self._release(cursor)
        if stream_id is not None:
            session.finish_stream(stream_id, now=now)

    def reset(self, cursor: Cursor, session: Session, *, code: int, now: float) -> None:
        """Reset the stream of a cursor, if it has one, at once."""
        stream_id = self._release(cursor)
        if stream_id is not None:
            session.reset_stream(stream_id, code, now=now)

    def retire(self, cursor: Cursor, session: Session, *, now: float) -> None:
        """Send no more on the stream of a cursor, if it has one, and reset it later."""
        del session, now
        stream_id = self._release(cursor)
        if stream_id is not None:
            self._retired.append(stream_id)

    def make_room(self, session: Session, *, now: float) -> bool:
        """Reset a stream of which the transport has nothing left; False if there is none.

        Nothing may be waiting to be sent on the streams that are open.
        """
        stream_id = next(filter(self._is_drained, self._retired), None)
        if stream_id is not None:
            self._retired.remove(stream_id)
        else:
            idle = (s for s in self._open if self._is_drained(s))
            stream_id = min(idle, key=self._standing, default=None)
            if stream_id is None:
                return False
            self._release(self._open[stream_id])
        session.reset_stream(stream_id, StreamResetCode.CANCELLED, now=now)
        return True

    def _standing(self, stream_id: StreamId) -> tuple[bool, tuple[int, int, int]]:
        """Return in which order streams are given up: those inside an Object last."""
        cursor = self._open[stream_id]
        return cursor.early is not None, cursor.key

    def cut(self) -> None:
        """Have all streams reset by `reset_cut`."""
        self._cut += (*self._retired, *self._open)
        self._retired.clear()
        self._release_all()

    def reset_cut(self, session: Session, *, now: float) -> None:
        """Reset the streams that were cut."""
        while self._cut:
            session.reset_stream(self._cut.pop(), StreamResetCode.CANCELLED, now=now)

    def reset_all(self, session: Session, *, code: int, now: float) -> None:
        """Reset all streams."""
        for stream_id in (*self._cut, *self._retired, *self._open):
            session.reset_stream(stream_id, code, now=now)
        self._cut.clear()
        self._retired.clear()
        self._release_all()

    def finish_ended(self, store: TrackStore, session: Session, *, now: float) -> None:
        """End streams with FIN whose last Object was the last of the Group (Section 11.3.2)."""
        for cursor in tuple(self._open.values()):
            end = store.group_end(cursor.subgroup.group_id)
            if end is not None and cursor.sent_id == end.object_id and not cursor.incomplete:
                self.finish(cursor, session, now=now)

    def stopped(self, stream_id: StreamId) -> Cursor | None:
        """Forget a stream that the session has reset; return the cursor that sent on it."""
        for streams in (self._retired, self._cut):
            if stream_id in streams:
                streams.remove(stream_id)
        cursor = self._open.get(stream_id)
        if cursor is not None:
            self._release(cursor)
        return cursor

    def _release(self, cursor: Cursor) -> StreamId | None:
        """Take the stream from a cursor and return it."""
        stream_id = cursor.stream_id
        if stream_id is not None:
            cursor.stream_id = None
            cursor.sent_id = -1
            del self._open[stream_id]
        return stream_id

    def _release_all(self) -> None:
        for cursor in tuple(self._open.values()):
            self._release(cursor)
