"""The delivery of a subscription: every Object once, on Subgroup streams.

Theory of operation. A cursor for each Subgroup says up to which Object ID everything was
dealt with. The store reports which Subgroup changed; its cursor joins the queue, ordered by
publisher priority, then Group, then Subgroup, and leaves it when there is nothing more to
send. An Object that comes late, below its cursor, is found in `Subgroup.late` and sent on a
stream of its own. So each Object goes out exactly once, however the store was filled.

Objects that were there when the subscription began belong to a fill, not to it.

Where it is not known what comes next in a Subgroup, or the store has dropped what is owed, the
cursor waits if there is somebody who can fill the gap (`on_gap`), and goes on with a new stream,
or ends the subscription with TOO_FAR_BEHIND, if there is not.

Here a subscription follows its store, has Subgroups take turns, waits and ends. What it owes is
kept in `kvcs.moqt.track.subgroup_cursors`; whether and how the next Object goes is decided in
`kvcs.moqt.track.subgroup_sender`, what is different about Objects in datagrams in
`kvcs.moqt.track.datagrams`, and what becomes of the streams in `kvcs.moqt.track.subgroup_streams`.

Source: MOQT draft 22, Sections 3.1, 5.1, 5.2, 7.5 and 11.3.
"""

from collections.abc import Callable
from typing import Final

from kvcs.errors import PublishDoneCode, StreamResetCode
from kvcs.moqt.codepoints import RangeMarker
from kvcs.moqt.session.actions import RequestId, StreamId
from kvcs.moqt.session.session import Session
from kvcs.moqt.track.cursor import Cursor
from kvcs.moqt.track.delivery import DeliveryTerms, OnGap, OnStopped, Rank
from kvcs.moqt.track.early import begins_in
from kvcs.moqt.track.fetch_delivery import FetchDelivery
from kvcs.moqt.track.group import Subgroup
from kvcs.moqt.track.interval import IntervalSet, to_position
from kvcs.moqt.track.late_streams import LateStreams
from kvcs.moqt.track.missing import gap_before, lost_before
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.track.subgroup_cursors import SubgroupCursors
from kvcs.moqt.track.subgroup_sender import SubgroupSender
from kvcs.moqt.track.subgroup_streams import SubgroupStreams, reset_code
from kvcs.moqt.track.timeouts import DeliveryTimeouts
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
        self.is_walking = False
        self.fills: list[FetchDelivery] = []
        self._store = store
        self._request_id = request_id
        self._on_gap = on_gap
        self._subgroups = SubgroupCursors(store, terms)
        self._queue = self._subgroups.queue
        self._streams = SubgroupStreams(
            request_id,
            max_open=MAX_OPEN_SUBGROUPS,
            is_drained=is_drained,
            late=late,
            on_late=self._give_up_late,
        )
        self._given_up = IntervalSet()
        self._ending: tuple[PublishDoneCode, str] | None = None
        self._timeouts = DeliveryTimeouts(store, terms)
        self._sender = SubgroupSender(
            request_id,
            store,
            self._subgroups,
            self._streams,
            self._timeouts,
            misses=self._misses,
        )
        if terms.forward:
            self._subgroups.skip_present()
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
        queued = self._queue.queued
        publisher_priority = queued[0][0][0] if queued else 255
        return self.terms.subscriber_priority, publisher_priority, 1

    def needs(self, group_id: int) -> bool:
        """Tell whether held Objects of this Group are still to be sent."""
        return (
            self._is_following
            and self.terms.forward
            and any(map(self._subgroups.owes, self._store.subgroups(group_id)))
        )

    def change(self, terms: DeliveryTerms) -> None:
        """Apply a REQUEST_UPDATE; the Group Order must be the same (Section 5.1).

        What the new range adds among the Objects already published is not sent: that is
        what a fill is for.
        """
        resumed = terms.forward and not self.terms.forward
        if self.terms.forward and not terms.forward:
            # Streams that this cuts are reset (Section 3.1.2).
            self._streams.cut()
            self._subgroups.clear()
        moved = terms.location_range != self.terms.location_range
        self.terms = self._timeouts.terms = self._subgroups.terms = terms
        self._streams.unwatch()
        for cursor in self._subgroups.begun.values():
            cursor.timeouts = None
        if resumed:
            self._subgroups.resume()
        if moved:
            start = terms.location_range.start
            self._subgroups.start = max(self._subgroups.start, start) if resumed else start
        if terms.forward and (moved or resumed):
            self._subgroups.skip_present()
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
            self._subgroups.close(cursor)
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
        if self._sender.began_at is None:
            self._sender.began_at = now
        queued = self._queue.queued
        self._streams.reset_cut(session, now=now)
        while queued:
            # Mostly the first one has its stream.
            cursor = queued[0][1]
            if cursor.stream_id is None:
                cursor = self._choose(session, now)
            self.awaits_transport = cursor is None
            if cursor is None:
                return 0
            serve = self._sender.serve_datagram if cursor.is_datagram else self._sender.serve
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
        cursor = self._subgroups.begun.get(subgroup)
        if cursor is None:
            cursor = self._subgroups.begin(subgroup)
            if cursor is None:
                return
        elif cursor.early is not None:
            cursor.early.let_go(self._store)
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

    # Whose turn it is.

    def _choose(self, session: Session, now: float) -> Cursor | None:
        """Return the cursor to serve where the first one has no stream, which it may need.

        None if all streams are taken, and none of them may be given up yet.
        """
        first = self._queue.queued[0][1]
        # What is on its way takes no stream from others.
        if first.is_datagram or self._streams.has_room or first.next_id() is None:
            return first
        with_stream = self._queue.first_with_stream()
        if with_stream is not None:
            return with_stream
        return first if self._streams.make_room(session, now=now) else None

    def _misses(self, cursor: Cursor, object_id: int | None, now: float) -> bool:
        """Deal with a gap before `object_id`; tell whether the cursor cannot go on."""
        lost = lost_before(self._store, cursor, object_id, self._subgroups.owed, now=now)
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

    # Ending.

    def _give_up_late(self, session: Session, stream_id: StreamId, now: float) -> None:
        """Give up a Subgroup of which something waits in the transport for too long."""
        cursor = self._streams.stopped(stream_id)
        session.abandon_stream(stream_id, StreamResetCode.DELIVERY_TIMEOUT, now=now)
        if cursor is not None:
            self._subgroups.close(cursor)
        self.wake()

    def _fall_behind(self, location: Location) -> None:
        self._forsake()
        reason = f"Object {location} is no longer held"
        self._ending = PublishDoneCode.TOO_FAR_BEHIND, reason

    def _forsake(self) -> None:
        """Owe nothing more, now or later."""
        self._is_following = False
        self._unfollow()
        self._subgroups.clear()

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
