"""The delivery of a subscription: every Object once, on Subgroup streams.

Theory of operation. A cursor for each Subgroup says up to which Object ID everything was
dealt with. The store reports which Subgroup changed; its cursor joins the queue, ordered by
publisher priority, then Group, then Subgroup, and leaves it when there is nothing more to
send. An Object that comes late, below its cursor, is found in `Subgroup.late` and sent on a
stream of its own. So each Object goes out exactly once, however the store was filled.

Objects that were there when the subscription began belong to a fill, not to it.

A stream continues only with what is known to be the next Object of its Subgroup. Where
that is not known, or the store has dropped what is owed, the cursor waits if there is
somebody who can fill the gap (`on_gap`), and goes on with a new stream, or ends the
subscription with TOO_FAR_BEHIND, if there is not.

Objects in datagrams have cursors too; what is different about them is written in
`kvcs.moqt.track.datagrams`, and what becomes of the streams in
`kvcs.moqt.track.subgroup_streams`.

Source: MOQT draft 22, Sections 3.1, 5.1, 5.2, 7.5 and 11.3.
"""

from collections.abc import Callable
from typing import Final

from kvcs.errors import PublishDoneCode, StreamResetCode
from kvcs.moqt.codepoints import GroupOrder, RangeMarker
from kvcs.moqt.session.actions import RequestId, StreamId
from kvcs.moqt.session.session import Session
from kvcs.moqt.track.cursor import Cursor
from kvcs.moqt.track.cursor_queue import CursorQueue
from kvcs.moqt.track.datagrams import next_datagram
from kvcs.moqt.track.delivery import DeliveryTerms, OnGap, OnStopped, Rank, transport_priority
from kvcs.moqt.track.early import EarlyObject, arriving_at, begins_in
from kvcs.moqt.track.fetch_delivery import FetchDelivery
from kvcs.moqt.track.group import Subgroup
from kvcs.moqt.track.interval import IntervalSet, to_location, to_position
from kvcs.moqt.track.late_streams import LateStreams
from kvcs.moqt.track.missing import gap_before, is_inside, lost_before
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.track.subgroup_streams import SubgroupStreams, reset_code
from kvcs.moqt.track.timeouts import NO_TIMEOUTS, DeliveryTimeouts
from kvcs.moqt.wire.filters import LocationRange
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.names import Location

__all__ = ("MAX_OPEN_SUBGROUPS", "SubscriptionDelivery")

# Enough to keep a link busy while Groups overtake each other, few enough that the lowest
# Group is not starved by the others.
MAX_OPEN_SUBGROUPS: Final = 8


class SubscriptionDelivery:
    """What a subscription is owed, now and later."""

    def __init__(
        self,
        store: TrackStore,
        request_id: RequestId,
        terms: DeliveryTerms,
        *,
        on_gap: OnGap | None = None,
        is_drained: Callable[[StreamId], bool] = lambda _: True,
        late: LateStreams | None = None,
    ) -> None:
        """Begin to follow `store`.

        Args:
            store: The Track.
            request_id: The SUBSCRIBE or PUBLISH.
            terms: What is to be delivered.
            on_gap: Who fills gaps; None if nobody can. It answers by adding to the store
                or with `give_up`.
            is_drained: Tells whether the transport has sent all of a stream.
            late: Watches streams of which something must be sent in time.
        """
        self.on_ready: Callable[[], None] | None = None
        self.on_stopped: OnStopped | None = None
        self.terms = terms
        self.finished = False
        self.awaits_transport = False
        self.fills: list[FetchDelivery] = []
        self._store = store
        self._request_id = request_id
        self._on_gap = on_gap
        self._start = terms.location_range.start
        self._cursors: dict[Subgroup, Cursor] = {}
        self._done: set[Subgroup] = set()
        self._cut: set[Subgroup] = set()
        self._queue = CursorQueue()
        self._streams = SubgroupStreams(
            request_id,
            max_open=MAX_OPEN_SUBGROUPS,
            is_drained=is_drained,
            late=late,
            on_late=self._give_up_late,
        )
        self._given_up = IntervalSet()
        self._began_at: float | None = None
        self._ending: tuple[PublishDoneCode, str] | None = None
        self._timeouts = DeliveryTimeouts(store, terms)
        if terms.forward:
            self._skip_present()
        self._is_following = True
        self._unfollow = store.follow(self._store_changed)

    def __repr__(self) -> str:
        return (
            f"<SubscriptionDelivery request={self._request_id} track={self._store.track}"
            f" {self._queue} {self._streams}>"
        )

    @property
    def request_id(self) -> RequestId:
        """The SUBSCRIBE or PUBLISH."""
        return self._request_id

    @property
    def deadline(self) -> float | None:
        """None: a subscription waits for nothing but its store."""
        return None

    def rank(self) -> Rank:
        """Return the rank of the next Object."""
        publisher_priority = self._queue.first.key[0] if self._queue else 255
        return self.terms.subscriber_priority, publisher_priority, 1

    def needs(self, group_id: int) -> bool:
        """Tell whether held Objects of this Group are still to be sent."""
        return (
            self._is_following
            and self.terms.forward
            and any(
                subgroup not in self._done and self._owes(subgroup)
                for subgroup in self._store.subgroups(group_id)
            )
        )

    def change(self, terms: DeliveryTerms) -> None:
        """Apply a REQUEST_UPDATE; the Group Order must be the same (Section 5.1).

        What the new range adds among the Objects already published is not sent: that is
        what a fill is for.
        """
        resumed = terms.forward and not self.terms.forward
        if self.terms.forward and not terms.forward:
            self._pause()
        moved = terms.location_range != self.terms.location_range
        self.terms = self._timeouts.terms = terms
        self._streams.unwatch()
        for cursor in self._cursors.values():
            cursor.timeouts = None
        if resumed:
            self._resume()
        if moved:
            start = terms.location_range.start
            self._start = max(self._start, start) if resumed else start
        if terms.forward and (moved or resumed):
            self._skip_present()
        self.wake()

    def end(self, code: PublishDoneCode, reason: str = "", *, drain: bool = True) -> None:
        """Send PUBLISH_DONE once everything that is owed was sent.

        Args:
            code: Why the subscription ends.
            reason: Text for the subscriber.
            drain: False gives up what is owed.
        """
        if self._ending is None or not drain:
            self._ending = code, reason
        if not drain:
            self._forsake()
        self.wake()

    def give_up(
        self, start: Location, through: Location, marker: RangeMarker = RangeMarker.UNKNOWN
    ) -> None:
        """Stop waiting for these Locations, inclusive; `marker` is for fetches."""
        del marker
        self._given_up.add(to_position(start), to_position(through))
        self._retry()

    def stream_stopped(self, stream_id: StreamId) -> bool:
        """Never open the Subgroup again of which the peer refused the stream."""
        if stream_id not in self._streams:
            return False
        cursor = self._streams.stopped(stream_id)
        if cursor is not None:
            self._dismiss(cursor)
        return True

    def cancel(self, session: Session, *, now: float, code: int) -> None:
        """Reset all streams with `code` and stop following the store."""
        self._streams.reset_all(session, code=code, now=now)
        self.stop()

    def stop(self) -> None:
        """Stop following the store; the session has reset the streams."""
        self.finished = True
        self._forsake()

    def step(self, session: Session, *, now: float) -> int:
        """Send one Object; with none to send, end what can be ended."""
        if self.finished:
            return 0
        if self._began_at is None:
            self._began_at = now
        self._streams.reset_cut(session, now=now)
        while self._queue:
            cursor = self._choose(session, now)
            self.awaits_transport = cursor is None
            if cursor is None:
                return 0
            serve = self._serve_datagram if cursor.is_datagram else self._serve
            size_bytes = serve(cursor, session, now)
            if size_bytes:
                return size_bytes
        if self._ending is not None and not self._queue.has_parked:
            self._conclude(session, *self._ending, now=now)
        return 0

    # Following the store.

    def _store_changed(self, subgroup: Subgroup | None) -> None:
        if self._queue.has_parked:
            self._retry(None if subgroup is None else subgroup.group_id)
        if subgroup is None or not self.terms.forward:
            return
        if subgroup.largest_id < 0 and not begins_in(self._store, subgroup):
            return
        cursor = self._cursors.get(subgroup)
        if cursor is None:
            if subgroup in self._done or not self._overlaps(subgroup):
                return
            cursor = self._cursors[subgroup] = self._new_cursor(subgroup)
        elif cursor.early is not None:
            cursor.early.let_go(self._store)
        self._enqueue(cursor)

    def _overlaps(self, subgroup: Subgroup) -> bool:
        end = self.terms.location_range.end
        group_id = subgroup.group_id
        return self._start.group_id <= group_id and (end is None or group_id <= end.group_id)

    def _new_cursor(self, subgroup: Subgroup) -> Cursor:
        group_id, subgroup_id = subgroup.group_id, subgroup.subgroup_id
        place = group_id if self.terms.group_order is GroupOrder.ASCENDING else -group_id
        key = (
            subgroup.publisher_priority or 0,
            place,
            -1 if subgroup_id is None else subgroup_id,
        )
        last_id = self._start.object_id - 1 if group_id == self._start.group_id else -1
        incomplete = subgroup in self._cut
        return Cursor(subgroup, key, last_id, len(subgroup.late), incomplete=incomplete)

    def _skip_present(self) -> None:
        """Begin behind Largest: what is there up to it is not sent, what is beyond it is.

        Fetches bring Objects from beyond Largest, and they do not come a second time.
        """
        largest = self._store.largest
        first_group = 0 if largest is None or self._start <= largest else largest.group_id
        for group_id in self._store.known_groups():
            if group_id < first_group:
                continue
            for subgroup in self._store.subgroups(group_id):
                if subgroup not in self._cursors and self._overlaps(subgroup):
                    self._skip_up_to(subgroup, largest)

    def _skip_up_to(self, subgroup: Subgroup, largest: Location | None) -> None:
        last_id = -1 if largest is None else subgroup.last_up_to(largest)
        if subgroup.final_object_id is not None and last_id == subgroup.largest_id:
            self._done.add(subgroup)
            return
        cursor = self._cursors[subgroup] = self._new_cursor(subgroup)
        cursor.last_id = max(cursor.last_id, last_id)
        if subgroup.largest_id > cursor.last_id:
            self._enqueue(cursor)

    def _pause(self) -> None:
        """Owe nothing of what is there; streams that it cuts are reset (Section 3.1.2)."""
        self._streams.cut()
        self._forget()

    def _resume(self) -> None:
        """Go on behind Largest: what was published during the pause is not sent."""
        self._done.clear()
        largest = self._store.largest
        if largest is not None:
            self._cut |= {
                subgroup
                for group_id in self._store.known_groups()
                if group_id >= largest.group_id
                for subgroup in self._store.subgroups(group_id)
                if self._start <= Location(group_id, max(subgroup.largest_id, 0))
            }
            self._start = max(self._start, to_location(to_position(largest) + 1))

    def _owes(self, subgroup: Subgroup) -> bool:
        cursor = self._cursors.get(subgroup)
        if cursor is None:
            if not self._overlaps(subgroup):
                return False
            cursor = self._new_cursor(subgroup)
        object_id = cursor.next_id()
        if object_id is None:
            return False
        return Location(subgroup.group_id, object_id) in self._range()

    def _range(self) -> LocationRange:
        return LocationRange(self._start, self.terms.location_range.end)

    def _enqueue(self, cursor: Cursor) -> None:
        if self._queue.add(cursor):
            self.wake()

    def _retry(self, group_id: int | None = None) -> None:
        """Look again at what waits, in one Group if nothing changed elsewhere."""
        if self._queue.unpark(group_id):
            self.wake()

    def wake(self) -> None:
        """Have the outbox look at this delivery again."""
        if self.on_ready is not None:
            self.on_ready()

    # Sending.

    def _choose(self, session: Session, now: float) -> Cursor | None:
        """Return the cursor to serve: the first one that may have an open stream.

        None if all streams are taken, and none of them may be given up yet.
        """
        first = self._queue.first
        has_stream = first.stream_id is not None or first.is_datagram
        # What is on its way takes no stream from others.
        if has_stream or self._streams.has_room or first.next_id() is None:
            return first
        with_stream = self._queue.first_with_stream()
        if with_stream is not None:
            return with_stream
        return first if self._streams.make_room(session, now=now) else None

    def _serve(self, cursor: Cursor, session: Session, now: float) -> int:
        """Send the next Object of a cursor, or the next part of one that is on its way."""
        early = cursor.early or self._begin_early(cursor, session, now)
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
        """Send the next Object that is whole; take the cursor from the queue if there is none."""
        seen_at = self._seen_at(now)
        adjacent = self._adjacent(cursor, seen_at)
        if adjacent is not None:
            cursor.last_id = adjacent.object_id
            return self._send(cursor, adjacent, session, now)
        object_id = cursor.next_id()
        if self._misses(cursor, object_id, seen_at):
            return 0
        if object_id is None:
            self._settle(cursor, session, now)
            return 0
        location = Location(cursor.subgroup.group_id, object_id)
        end = self.terms.location_range.end
        if end is not None and location > end:
            self._streams.retire(cursor, session, now=now)
            self._queue.remove(cursor)
            return 0
        obj = self._store.held(location.group_id, object_id, now=seen_at)
        is_next = obj is not None and self._continues(cursor, obj, seen_at)
        is_late = cursor.advance(object_id)
        if obj is None or location < self._start or not self.terms.admits(obj):
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

    def _seen_at(self, now: float) -> float:
        """Return as of when to look at the store: this waits since its first step."""
        return self._store.time_of_forwarding(
            now if self._began_at is None else self._began_at, now=now
        )

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
        is_wanted = self._is_inside(obj.group_id, obj.object_id) and self.terms.admits(obj)
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

    def _serve_datagram(self, cursor: Cursor, session: Session, now: float) -> int:
        """Send the next Object of a cursor in a datagram, or leave the queue."""
        obj = next_datagram(
            self._store,
            cursor,
            terms=self.terms,
            wanted=self._range(),
            timeouts=self._timeouts,
            now=self._seen_at(now),
        )
        if obj is None:
            self._queue.remove(cursor)
            return 0
        ends_group = self._store.group_end(obj.group_id) == obj.location and not obj.status
        session.send_datagram(self._request_id, obj, end_of_group=ends_group, now=now)
        return len(obj.payload) + 1

    def _adjacent(self, cursor: Cursor, now: float) -> Object | None:
        """Return the Object right behind the last one if all it needs is to be sent.

        Mostly that is so; where anything is to be decided this returns None.
        """
        subgroup = cursor.subgroup
        if cursor.stream_id is None or cursor.is_stray or cursor.has_late:
            return None
        if cursor.timeouts is not NO_TIMEOUTS:
            return None
        group_id, object_id = subgroup.group_id, cursor.last_id + 1
        obj = self._store.held(group_id, object_id, now=now)
        if obj is None or obj.subgroup_id != subgroup.subgroup_id:
            return None
        if obj.properties.raw and not cursor.with_properties:
            return None
        if not self._is_inside(group_id, object_id) or not self.terms.admits(obj):
            return None
        return obj

    def _is_inside(self, group_id: int, object_id: int) -> bool:
        return is_inside(group_id, object_id, self._start, self.terms.location_range.end)

    def _misses(self, cursor: Cursor, object_id: int | None, now: float) -> bool:
        """Deal with a gap before `object_id`; tell whether the cursor cannot go on."""
        lost = lost_before(self._store, cursor, object_id, self._range(), now=now)
        gap = lost or gap_before(self._store, cursor, object_id, now=now)
        if gap is None:
            return False
        start, through = gap
        if self._on_gap is not None and to_position(start) not in self._given_up:
            self._queue.park(cursor)
            if cursor.asked_through is None or through > cursor.asked_through:
                cursor.asked_through = through
                self._on_gap(self, start, through)
            elif self.on_stopped is not None:
                self.on_stopped(self, start)
            return True
        if lost:
            self._fall_behind(start)
            return True
        cursor.incomplete |= self._on_gap is not None or cursor.sent_id >= 0
        return False

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
        priority = transport_priority(self.terms.subscriber_priority, obj.publisher_priority)
        return self._streams.open(cursor, session, header=header, priority=priority, now=now)

    # Ending.

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
        self._dismiss(cursor)

    def _dismiss(self, cursor: Cursor) -> None:
        """Have nothing more to do with a Subgroup."""
        self._queue.discard(cursor)
        self._cursors.pop(cursor.subgroup, None)
        self._done.add(cursor.subgroup)

    def _abandon(self, cursor: Cursor, session: Session, now: float) -> None:
        """Give up a Subgroup whose time is over."""
        self._streams.reset(cursor, session, code=StreamResetCode.DELIVERY_TIMEOUT, now=now)
        self._dismiss(cursor)

    def _give_up_late(self, session: Session, stream_id: StreamId, now: float) -> None:
        """Give up a Subgroup of which something waits in the transport for too long."""
        cursor = self._streams.stopped(stream_id)
        session.abandon_stream(stream_id, StreamResetCode.DELIVERY_TIMEOUT, now=now)
        if cursor is not None:
            self._dismiss(cursor)
        self.wake()

    def _fall_behind(self, location: Location) -> None:
        self._forsake()
        reason = f"Object {location} is no longer held"
        self._ending = PublishDoneCode.TOO_FAR_BEHIND, reason

    def _forsake(self) -> None:
        """Owe nothing more, now or later."""
        self._is_following = False
        self._unfollow()
        self._forget()

    def _forget(self) -> None:
        """Owe nothing more of what is in the store."""
        self._queue.clear()
        self._cursors.clear()

    def _conclude(
        self, session: Session, code: PublishDoneCode, reason: str, *, now: float
    ) -> None:
        """Send PUBLISH_DONE, unless a fill is still under way."""
        self.fills = [fill for fill in self.fills if not fill.finished]
        if self.fills:
            return
        self._streams.finish_ended(self._store, session, now=now)
        self._streams.reset_all(session, code=reset_code(code), now=now)
        session.publish_done(self._request_id, code, reason=reason, now=now)
        self.stop()
