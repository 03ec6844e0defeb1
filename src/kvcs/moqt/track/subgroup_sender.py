"""The next Object of a Subgroup: whether it may go, on which stream, and until when.

Theory of operation. A `SubgroupSender` belongs to one subscription delivery, which says whose turn
it is. Mostly the Object right behind the last one is held and wanted, and is sent; all else is
decided here too: what was dropped or came late, what is beyond the range or its time, where a
stream has to end, and what goes out while it arrives.

A stream continues only with what is known to be the next Object of its Subgroup. Where that is
not known the delivery is asked: it may have the gap filled, and then the cursor waits.

Source: MOQT draft 22, Sections 5.1, 5.2, 7.5 and 11.3.
"""

from collections.abc import Callable

from kvcs.errors import StreamResetCode
from kvcs.moqt.session.actions import RequestId, StreamId
from kvcs.moqt.session.session import Session
from kvcs.moqt.track.cursor import Cursor
from kvcs.moqt.track.datagrams import next_datagram
from kvcs.moqt.track.delivery import transport_priority
from kvcs.moqt.track.early import EarlyObject, arriving_at
from kvcs.moqt.track.missing import is_inside
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.track.subgroup_cursors import SubgroupCursors
from kvcs.moqt.track.subgroup_streams import SubgroupStreams
from kvcs.moqt.track.timeouts import NO_TIMEOUTS, DeliveryTimeouts
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.names import Location

__all__ = ("SubgroupSender",)


class SubgroupSender:
    """Sends the Subgroups of one subscription, an Object at a time.

    Attributes:
        began_at: Since when the subscription has been served, monotonic seconds; None before.
    """

    __slots__ = (
        "_misses",
        "_queue",
        "_request_id",
        "_store",
        "_streams",
        "_subgroups",
        "_timeouts",
        "began_at",
    )

    def __init__(
        self,
        request_id: RequestId,
        store: TrackStore,
        subgroups: SubgroupCursors,
        streams: SubgroupStreams,
        timeouts: DeliveryTimeouts,
        *,
        misses: Callable[[Cursor, int | None, float], bool],
    ) -> None:
        """Have sent nothing yet.

        Args:
            request_id: The SUBSCRIBE or PUBLISH.
            store: The Track.
            subgroups: What is owed.
            streams: Where it goes.
            timeouts: Until when it may be sent.
            misses: Deals with a gap of a cursor before the Object ID that it has next, at a
                time; tells whether the cursor cannot go on.
        """
        self.began_at: float | None = None
        self._request_id = request_id
        self._store = store
        self._subgroups = subgroups
        self._queue = subgroups.queue
        self._streams = streams
        self._timeouts = timeouts
        self._misses = misses

    def __repr__(self) -> str:
        return f"<SubgroupSender request={self._request_id} {self._subgroups} {self._streams}>"

    def serve(self, cursor: Cursor, session: Session, now: float) -> int:
        """Send the next Object of a cursor, or the next part of one that is on its way."""
        early = cursor.early
        if early is None and self._store.arrivals.by_location:
            early = self._begin_early(cursor, session, now)
        if early is None:
            return self._serve_held(cursor, session, now)
        if cursor.stream_id != early.stream_id or early.is_over(self._store):
            self._break_off(cursor, early, session, now)
            return 0
        size_bytes = early.step(session, now=now)
        if early.is_sent:
            cursor.finish_early(early.arriving.obj.object_id)
        elif not size_bytes:
            self._queue.park(cursor)
        return size_bytes

    def _serve_held(self, cursor: Cursor, session: Session, now: float) -> int:
        """Send the next Object that is whole."""
        store = self._store
        seen_at = now if store.lifetime is None else self._seen_at(now)
        adjacent = self._adjacent(cursor, seen_at)
        if adjacent is not None:
            cursor.last_id = adjacent.object_id
            subgroup = cursor.subgroup
            is_last = adjacent.object_id == subgroup.largest_id and subgroup.final_object_id is None
            if is_last and not store.arrivals.by_location:
                # Nothing follows, and nothing is known to: the next change queues it again.
                self._queue.remove(cursor)
            return self._send(cursor, adjacent, session, now)
        return self._decide(cursor, session, now, seen_at)

    def _decide(self, cursor: Cursor, session: Session, now: float, seen_at: float) -> int:
        """See what the next Object needs; take the cursor from the queue if there is none."""
        object_id = cursor.next_id()
        if self._misses(cursor, object_id, seen_at):
            return 0
        if object_id is None:
            self._settle(cursor, session, now)
            return 0
        location = Location(cursor.subgroup.group_id, object_id)
        end = self._subgroups.terms.location_range.end
        if end is not None and location > end:
            self._streams.retire(cursor, session, now=now)
            self._queue.remove(cursor)
            return 0
        obj = self._store.held(location.group_id, object_id, now=seen_at)
        is_next = obj is not None and self._continues(cursor, obj, seen_at)
        is_late = cursor.advance(object_id)
        if obj is None or location < self._subgroups.start or not self._subgroups.terms.admits(obj):
            return 0
        due_at = self._timeouts.due_at(cursor, obj, now=now)
        if due_at is not None and now > due_at:
            self._abandon(cursor, session, now)
            return 0
        if cursor.stream_id is not None and not is_next:
            self._streams.retire(cursor, session, now=now)
        cursor.is_stray = is_late
        cursor.incomplete |= is_late
        return self._send(cursor, obj, session, now, due_at)

    def serve_datagram(self, cursor: Cursor, session: Session, now: float) -> int:
        """Send the next Object of a cursor in a datagram, or leave the queue."""
        obj = next_datagram(
            self._store,
            cursor,
            terms=self._subgroups.terms,
            wanted=self._subgroups.owed,
            timeouts=self._timeouts,
            now=self._seen_at(now),
        )
        if obj is None:
            self._queue.remove(cursor)
            return 0
        ends_group = self._store.group_end(obj.group_id) == obj.location and not obj.status
        session.send_datagram(self._request_id, obj, end_of_group=ends_group, now=now)
        return len(obj.payload) + 1

    def _begin_early(self, cursor: Cursor, session: Session, now: float) -> EarlyObject | None:
        """Begin with the next Object while it arrives, if nothing is to be decided first."""
        subgroup = cursor.subgroup
        arriving = arriving_at(self._store, subgroup.group_id, cursor.last_id + 1)
        if arriving is None or arriving.obj.subgroup_id != subgroup.subgroup_id:
            return None
        if cursor.is_stray or cursor.has_late or arriving is cursor.left:
            return None
        obj = arriving.obj
        if self._timeouts.of(cursor, begun=obj, now=now) is not NO_TIMEOUTS:
            return None
        is_wanted = self._is_wanted(obj)
        if cursor.stream_id is None:
            has_room, with_properties = self._streams.has_room, subgroup.has_properties
        else:
            has_room, with_properties = True, cursor.with_properties
        if not (is_wanted and has_room) or (obj.properties.raw and not with_properties):
            return None
        stream_id = cursor.stream_id
        if stream_id is None:
            stream_id = self._open_stream(cursor, obj, session, now)
        cursor.early = EarlyObject(arriving, session, stream_id, now=now)
        return cursor.early

    def _break_off(self, cursor: Cursor, early: EarlyObject, session: Session, now: float) -> None:
        """Leave an Object that is not whole and will not be, or whose stream was taken away."""
        cursor.early, cursor.left = None, early.arriving
        if cursor.stream_id == early.stream_id:
            self._streams.reset(cursor, session, code=StreamResetCode.INTERNAL_ERROR, now=now)

    def _adjacent(self, cursor: Cursor, now: float) -> Object | None:
        """Return the Object right behind the last one if all it needs is to be sent.

        Mostly that is so; where anything is to be decided this returns None.
        """
        subgroup = cursor.subgroup
        if cursor.stream_id is None or cursor.is_stray or cursor.timeouts is not NO_TIMEOUTS:
            return None
        if cursor.backlog or cursor.late_seen < len(subgroup.late):
            return None
        group_id, object_id = subgroup.group_id, cursor.last_id + 1
        obj = self._store.held(group_id, object_id, now=now)
        if obj is None or obj.subgroup_id != subgroup.subgroup_id:
            return None
        if obj.properties.raw and not cursor.with_properties:
            return None
        return obj if self._is_wanted(obj) else None

    def _is_wanted(self, obj: Object) -> bool:
        """Tell whether an Object is in the range and passes the filters."""
        subgroups = self._subgroups
        terms = subgroups.terms
        end = terms.location_range.end
        if terms.range_filters and not terms.admits(obj):
            return False
        return is_inside(obj.group_id, obj.object_id, subgroups.start, end)

    def _continues(self, cursor: Cursor, obj: Object, now: float) -> bool:
        """Tell whether the open stream may carry `obj` next (Section 7.5)."""
        is_late = bool(cursor.backlog)
        if is_late != cursor.is_stray or (obj.properties.raw and not cursor.with_properties):
            return False
        previous_id = cursor.sent_id if is_late else cursor.last_id
        return previous_id < obj.object_id and self._store.is_next(
            cursor.subgroup, previous_id, obj.object_id, now=now
        )

    def _send(
        self, cursor: Cursor, obj: Object, session: Session, now: float, due_at: float | None = None
    ) -> int:
        stream_id = cursor.stream_id
        if stream_id is None:
            stream_id = self._open_stream(cursor, obj, session, now)
        size_bytes = session.send_object(stream_id, obj, now=now)
        if cursor.timeouts is not NO_TIMEOUTS:
            self._streams.watch(cursor, size_bytes, due_at, now=now)
        cursor.sent_id = obj.object_id
        return len(obj.payload) + 1

    def _open_stream(self, cursor: Cursor, obj: Object, session: Session, now: float) -> StreamId:
        subgroup = cursor.subgroup
        cursor.with_properties = subgroup.has_properties
        header = SubgroupHeader(
            track_alias=0,  # The session fills it in.
            group_id=obj.group_id,
            subgroup_id=obj.subgroup_id,
            publisher_priority=obj.publisher_priority,
            has_properties=subgroup.has_properties,
            end_of_group=self._store.ends_group(subgroup),
            first_object=subgroup.first_object_id == obj.object_id,
        )
        subscriber_priority = self._subgroups.terms.subscriber_priority
        priority = transport_priority(subscriber_priority, obj.publisher_priority)
        return self._streams.open(cursor, session, header=header, priority=priority, now=now)

    def _seen_at(self, now: float) -> float:
        """Return as of when to look at the store: this waits since its first step."""
        return self._store.time_of_forwarding(
            now if self.began_at is None else self.began_at, now=now
        )

    def _settle(self, cursor: Cursor, session: Session, now: float) -> None:
        """Leave the queue with nothing to send, and end the stream if the Subgroup ended."""
        self._queue.remove(cursor)
        final = cursor.subgroup.final_object_id
        if final is None or cursor.last_id < final:
            return
        self._streams.watch(cursor, 0, self._timeouts.subgroup_due_at(cursor, now=now), now=now)
        if cursor.incomplete:
            self._streams.retire(cursor, session, now=now)
        else:
            self._streams.finish(cursor, session, now=now)
        self._subgroups.close(cursor)

    def _abandon(self, cursor: Cursor, session: Session, now: float) -> None:
        """Give up a Subgroup whose time is over."""
        self._streams.reset(cursor, session, code=StreamResetCode.DELIVERY_TIMEOUT, now=now)
        self._subgroups.close(cursor)
