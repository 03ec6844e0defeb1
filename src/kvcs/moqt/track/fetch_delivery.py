"""The delivery of a FETCH or a fill: a range of Locations on one stream, gaps included.

Theory of operation. The delivery walks through its range once, in the order of delivery,
run by run: an Object is sent, an absent run is left out, an unknown run is waited for if
somebody can fill it (`on_gap`), and becomes an End of Range record if nobody can, if they
gave up, or if the deadline has passed. Places are numbers in the order of delivery, so a
run costs the same whether it spans three Objects or 2^64 Groups. Many runs in a row are walked
in several steps (`is_walking`).

An Object on its way that is next goes out while it arrives. When it is lost, the stream is reset:
there is no way to take back what was sent of it.

What is left unmarked means "does not exist" in an unfiltered fetch and nothing at all in a
filtered one. An End of Range record speaks for everything since the record before it; so
where the unmarked part of a gap must not be swallowed by it, a record of its own goes
first: NON_EXISTENT for what is absent, UNKNOWN for what may only have been filtered out.

Source: MOQT draft 22, Sections 3.2, 3.4, 9.20.5 and 11.4.
"""

from collections.abc import Callable
from typing import Final

from kvcs.errors import StreamResetCode
from kvcs.moqt.codepoints import GroupOrder, RangeMarker
from kvcs.moqt.session.actions import RequestId, StreamId
from kvcs.moqt.session.session import Session
from kvcs.moqt.track.arriving import Arriving
from kvcs.moqt.track.contents import Absent, Found, Unknown
from kvcs.moqt.track.delivery import DeliveryTerms, OnGap, OnStopped, Rank, transport_priority
from kvcs.moqt.track.early import EarlyObject, arriving_at
from kvcs.moqt.track.interval import IntervalSet, to_location, to_position
from kvcs.moqt.track.object_ids import ObjectIds
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.object import Object
from kvcs.names import Location
from kvcs.varint import MAX_VI64

__all__ = ("WALKED_RUNS", "FetchDelivery")

_RECORD_BYTES = 16
#: Runs that a step passes without an Object: a peer chooses how many there are in a range, and
#: each takes tens of microseconds.
WALKED_RUNS: Final = 16


class FetchDelivery:
    """The Objects of a range that one FETCH or fill is owed."""

    def __init__(
        self,
        store: TrackStore,
        request_id: RequestId,
        terms: DeliveryTerms,
        *,
        trigger_id: RequestId | None = None,
        on_gap: OnGap | None = None,
        turn: int = 1,
    ) -> None:
        """Prepare to deliver `terms.location_range`, which has an end.

        Args:
            store: The Track.
            request_id: The FETCH, or the subscription that is filled.
            terms: What is to be delivered.
            trigger_id: The request that the stream names; `request_id` if None.
            on_gap: Who fills gaps; None if nobody can. It answers by adding to the store,
                with `mark_absent` on it, or with `give_up`.
            turn: Rank among equals: 0 before a subscription, 1 with it, 2 after it.

        Raises:
            ValueError: The range is open or empty.
        """
        end = terms.location_range.end
        if end is None or end < terms.location_range.start:
            raise ValueError(f"a fetch needs a range with an end, got {terms.location_range}")
        self.on_ready: Callable[[], None] | None = None
        self.on_finished: Callable[[], None] | None = None
        self.on_stopped: OnStopped | None = None
        self.terms = terms
        self.finished = False
        self.awaits_transport = False
        self.is_walking = False
        self._broke_off_at = 0.0
        self._held_up = 0.0
        self.stream_id: StreamId | None = None
        self._store = store
        self._request_id = request_id
        self._trigger_id = request_id if trigger_id is None else trigger_id
        self._on_gap = on_gap
        self._turn = turn
        self._ascending = terms.group_order is GroupOrder.ASCENDING
        self._range_start, self._range_end = terms.location_range.start, end
        self._place, self._last_place = self._bounds()
        self._next: Object | Arriving | None = None
        self._early: EarlyObject | None = None
        self._began_at: float | None = None
        self._publisher_priority = 0
        self._blocked = False
        self._asked_through = -1
        self._given_up: dict[RangeMarker, IntervalSet] = {}
        self._ids = ObjectIds.of(terms.range_filters)
        self._unmarked_through: int | None = None
        self._pending: tuple[RangeMarker, int] | None = None
        self._records: list[tuple[RangeMarker, int]] = []
        self._unwatch = store.watch(self._store_changed)

    def __repr__(self) -> str:
        return (
            f"<FetchDelivery request={self._request_id} track={self._store.track}"
            f" next={self._location(min(self._place, self._last_place))} end={self._range_end}>"
        )

    @property
    def request_id(self) -> RequestId:
        """The FETCH, or the subscription that is filled."""
        return self._request_id

    @property
    def deadline(self) -> float | None:
        """When it stops waiting; the time that it waited for slots of its walk is added.

        What may be spent is for those who fill gaps (Section 9.20.5), and other walks are not to
        have them not even asked.
        """
        deadline = self.terms.deadline
        return None if self.finished or deadline is None else deadline + self._held_up

    def rank(self) -> Rank:
        """Return the rank of the next Object."""
        return self.terms.subscriber_priority, self._publisher_priority, self._turn

    def needs(self, group_id: int) -> bool:
        """Tell whether Objects of this Group may still have to be sent."""
        if self.finished or self._place > self._last_place or self._is_cut_off:
            return False
        here = self._location(self._place).group_id
        if self._ascending:
            return here <= group_id <= self._range_end.group_id
        return self._range_start.group_id <= group_id <= here

    def change(self, terms: DeliveryTerms) -> None:
        """Apply new terms; only the subscriber priority of a fetch can change."""
        self.terms = terms
        self._wake()

    def give_up(
        self, start: Location, through: Location, marker: RangeMarker = RangeMarker.UNKNOWN
    ) -> None:
        """Stop waiting for unknown Locations, inclusive, that nobody can give.

        Args:
            start: First Location.
            through: Last Location.
            marker: What to say about them: UNKNOWN or TIMED_OUT.
        """
        self._given_up.setdefault(marker, IntervalSet()).add(
            to_position(start), to_position(through)
        )
        if self._blocked:
            self._wake()

    def stream_stopped(self, stream_id: StreamId) -> bool:
        """Stop when the peer refused the stream."""
        if stream_id != self.stream_id:
            return False
        self.stop()
        return True

    def cancel(self, session: Session, *, now: float, code: int) -> None:
        """Reset the stream with `code`, if there is one, and stop."""
        if self.stream_id is not None and not self.finished:
            session.reset_stream(self.stream_id, code, now=now)
        self.stop()

    def stop(self) -> None:
        """Stop; the session has reset the stream, or it ended with FIN."""
        if self.finished:
            return
        self.finished, self.is_walking = True, False
        self._unwatch()
        if self.on_finished is not None:
            self.on_finished()

    def fail(self, session: Session, *, now: float, code: int) -> None:
        """Reset the stream with `code`, opened for that if need be (Section 3.4)."""
        if self.finished:
            return
        if self.stream_id is None:
            self._open(session, now)
        self.cancel(session, now=now, code=code)

    def step(self, session: Session, *, now: float) -> int:
        """Send one Object and what must be said about the gap before it."""
        if self.finished:
            return 0
        opened = self.stream_id is None
        stream_id = self._open(session, now) if self.stream_id is None else self.stream_id
        if self._early is not None:
            return self._go_on(self._early, session, stream_id, now)
        size_bytes = 0
        if self._next is None:
            self._advance(now)
            size_bytes = self._send_records(session, stream_id, now)
        upcoming = self._next
        # The first step only looks: the rank of the first Object is not known before it.
        if isinstance(upcoming, Arriving) and not opened:
            self._next = None
            early = self._early = EarlyObject(upcoming, session, stream_id, now=now)
            return size_bytes + self._go_on(early, session, stream_id, now)
        if isinstance(upcoming, Object) and not opened:
            session.send_object(stream_id, upcoming, now=now)
            size_bytes += len(upcoming.payload) + _RECORD_BYTES
            self._place += 1
            self._next = self._adjacent(upcoming, now)
            if self._next is None:
                self._advance(now)
                size_bytes += self._send_records(session, stream_id, now)
        return self._look_ahead(session, stream_id, size_bytes, now)

    def _look_ahead(self, session: Session, stream_id: StreamId, size: int, now: float) -> int:
        """Prepare for what is next, or end the stream; return the octets handed over."""
        following = self._next
        if following is not None:
            obj = following.obj if isinstance(following, Arriving) else following
            self._rank_next(session, stream_id, obj, now)
            return size or 1
        if self._place > self._last_place:
            session.finish_stream(stream_id, now=now)
            self.stop()
        return size

    def _go_on(self, early: EarlyObject, session: Session, stream_id: StreamId, now: float) -> int:
        """Send the next part of an Object that is on its way, and what follows it."""
        if self._is_cut_off:
            self.cancel(session, now=now, code=StreamResetCode.INTERNAL_ERROR)
            return 0
        size_bytes = early.step(session, now=now)
        self._blocked = not size_bytes
        if not early.is_sent:
            return size_bytes
        self._early = None
        self._place += 1
        self._advance(now)
        size_bytes += self._send_records(session, stream_id, now)
        return self._look_ahead(session, stream_id, size_bytes, now)

    @property
    def _is_cut_off(self) -> bool:
        """Whether an Object was lost that a part of was sent: a reset is all that follows."""
        return self._early is not None and self._early.arriving.is_lost

    # Walking.

    def _adjacent(self, obj: Object, now: float) -> Object | None:
        """Return the Object to send right after `obj`: mostly it is the next one of the Group."""
        group_id, object_id = obj.group_id, obj.object_id + 1
        end = self._range_end
        if object_id > end.object_id and group_id == end.group_id:
            return None
        seen_at = self._seen_at(now)
        following = self._store.held(group_id, object_id, now=seen_at)
        if following is None or following.status:
            return self._first_of_next_group(obj, seen_at)
        return following if self.terms.admits(following) else None

    def _first_of_next_group(self, obj: Object, seen_at: float) -> Object | None:
        """Go on to the next Group if it is known that nothing follows `obj` in its own."""
        group_id, store = obj.group_id + 1, self._store
        if not self._ascending or group_id > self._range_end.group_id:
            return None
        following = store.held(group_id, 0, now=seen_at)
        if following is None or following.status or not self.terms.admits(following):
            return None
        if not store.is_last(obj.group_id, obj.object_id):
            return None
        self._place = group_id << 64
        return following

    def _advance(self, now: float) -> None:
        """Go on to the next Object to send, or to a run that must be waited for.

        After `WALKED_RUNS` it breaks off, for the next step to go on.
        """
        if self.is_walking:
            self._held_up += now - self._broke_off_at
        self._blocked = False
        seen_at, runs = self._seen_at(now), 0
        while self._seeks and runs < WALKED_RUNS:
            self._pass_run(self._location(self._place), seen_at, now)
            runs += 1
        self.is_walking, self._broke_off_at = self._seeks, now
        if not self.is_walking:
            self._flush_pending()

    @property
    def _seeks(self) -> bool:
        """Whether there is more to look at before an Object, a wait or the end."""
        return self._next is None and not self._blocked and self._place <= self._last_place

    def _pass_run(self, location: Location, seen_at: float, now: float) -> None:
        """Find an Object at a Location, or what is to be said of the run that it is in."""
        if location not in self.terms.location_range:
            self._place = self._enter_range(location)
            return
        if self._ids is not None and location.object_id not in self._ids:
            # Whatever is there, a filtered fetch says nothing of it.
            self._leave_unmarked(self._unwanted_end(location, self._ids))
            return
        match self._store.lookup(location, now=seen_at):
            case Found(obj) if self.terms.admits(obj):
                self._close_gap()
                self._next = obj
            case Found():
                self._leave_unmarked(self._place)
            case Absent(through=through, start=start):
                self._leave_unmarked(self._run_end(location, start, through))
            case Unknown(through=through, start=start):
                self._mark(location, start, through, now)

    def _seen_at(self, now: float) -> float:
        """Return as of when to look at the store: this waits since its first step."""
        if self._began_at is None:
            self._began_at = now
        return self._store.time_of_forwarding(self._began_at, now=now)

    def _unwanted_end(self, location: Location, ids: ObjectIds) -> int:
        """Return the last place of a Group before one that is wanted, or where it ends."""
        following = ids.next_id(location.object_id)
        last_id = MAX_VI64 if following is None else following - 1
        last = min(Location(location.group_id, last_id), self._range_end)
        return min(self._to_place(last), self._last_place)

    def _enter_range(self, location: Location) -> int:
        """Return the place where the range goes on; only descending orders leave it."""
        if location < self._range_start:
            return self._to_place(self._range_start)
        return ((self._place >> 64) + 1) << 64

    def _run_end(self, location: Location, start: Location, through: Location) -> int:
        """Return the last place of the run that covers `location` to `through`."""
        through = min(through, self._range_end)
        group_id = location.group_id
        if self._ascending or through < Location(group_id, MAX_VI64):
            return min(self._to_place(through), self._last_place)
        if start <= Location(group_id, 0):
            # Whole Groups below belong to the run as well, also where a filter skips the first
            # Objects of each: one by one they would be as many as Group IDs.
            whole = start.object_id == 0 or start <= self._range_start
            group_id = start.group_id if whole else start.group_id + 1
        return min(self._to_place(Location(group_id, MAX_VI64)), self._last_place)

    def _mark(self, location: Location, start: Location, through: Location, now: float) -> None:
        """Put an unknown run into a record, or wait for it."""
        marker, interval = self._given_up_at(to_position(location))
        if interval is not None:
            start = max(start, to_location(interval[0]))
            through = min(through, to_location(interval[1]))
        end = self._run_end(location, start, through)
        if marker is None and self._is_over(now):
            marker = RangeMarker.TIMED_OUT
        if marker is None and self._on_gap is not None:
            self._wait(location, end, self._on_gap)
            return
        self._begin_gap(marker or RangeMarker.UNKNOWN)
        self._pending = marker or RangeMarker.UNKNOWN, end
        self._place = end + 1

    def _wait(self, location: Location, end: int, on_gap: OnGap) -> None:
        """Wait for an unknown run, unless its first Object has begun to arrive."""
        arriving = arriving_at(self._store, location.group_id, location.object_id)
        if arriving is not None and self.terms.admits(arriving.obj):
            self._close_gap()
            self._next = arriving
        self._blocked = self._next is None
        if end > self._asked_through:
            self._asked_through = end
            on_gap(self, *self._run(location, end))
        elif self._blocked and self.on_stopped is not None:
            self.on_stopped(self, location)

    def _given_up_at(self, position: int) -> tuple[RangeMarker | None, tuple[int, int] | None]:
        """Return what to say about a place that was given up, and how far that goes."""
        for marker, positions in self._given_up.items():
            interval = positions.find(position)
            if interval is not None:
                return marker, interval
        return None, None

    def _is_over(self, now: float) -> bool:
        deadline = self.deadline
        return deadline is not None and now >= deadline

    def _run(self, location: Location, end: int) -> tuple[Location, Location]:
        """Return a run as Locations in ascending order."""
        last = self._location(end)
        if self._ascending or last.group_id == location.group_id:
            return location, last
        through = min(Location(location.group_id, MAX_VI64), self._range_end)
        return max(Location(last.group_id, 0), self._range_start), through

    # Gaps and records.

    def _leave_unmarked(self, end: int) -> None:
        self._flush_pending()
        self._unmarked_through = end
        self._place = end + 1

    def _begin_gap(self, marker: RangeMarker) -> None:
        """Prepare a record for the run that starts here."""
        if self._pending is not None and self._pending[0] is marker:
            return
        self._flush_pending()
        filtered = bool(self.terms.range_filters)
        divider = RangeMarker.UNKNOWN if filtered else RangeMarker.NON_EXISTENT
        if self._unmarked_through is not None and divider is not marker:
            self._records.append((divider, self._unmarked_through))
        self._unmarked_through = None

    def _close_gap(self) -> None:
        self._flush_pending()
        self._unmarked_through = None

    def _flush_pending(self) -> None:
        if self._pending is not None:
            self._records.append(self._pending)
            self._pending = None

    def _send_records(self, session: Session, stream_id: StreamId, now: float) -> int:
        records, self._records = self._records, []
        for marker, place in records:
            session.send_marker(stream_id, marker, self._location(place), now=now)
        return len(records) * _RECORD_BYTES

    # The stream.

    def _open(self, session: Session, now: float) -> StreamId:
        priority = transport_priority(self.terms.subscriber_priority, self._publisher_priority)
        self.stream_id = session.open_fetch_stream(
            self._trigger_id, order=self.terms.group_order, priority=priority, now=now
        )
        return self.stream_id

    def _rank_next(self, session: Session, stream_id: StreamId, obj: Object, now: float) -> None:
        if obj.publisher_priority == self._publisher_priority:
            return
        before = transport_priority(self.terms.subscriber_priority, self._publisher_priority)
        self._publisher_priority = obj.publisher_priority
        priority = transport_priority(self.terms.subscriber_priority, self._publisher_priority)
        if priority != before:
            session.set_stream_priority(stream_id, priority, now=now)

    def _store_changed(self) -> None:
        upcoming = self._next
        if self._early is not None:
            self._early.let_go(self._store)
        elif isinstance(upcoming, Arriving) and (upcoming.is_lost or upcoming.is_handed_over):
            # Nothing of it was sent: the store tells what is here now.
            self._next = None
            self._wake()
        if self._blocked:
            self._wake()

    def _wake(self) -> None:
        if self.on_ready is not None:
            self.on_ready()

    # Places.

    def _bounds(self) -> tuple[int, int]:
        if self._ascending:
            return to_position(self._range_start), to_position(self._range_end)
        first = Location(self._range_end.group_id, 0)
        return self._to_place(first), self._to_place(Location(self._range_start.group_id, MAX_VI64))

    def _to_place(self, location: Location) -> int:
        if self._ascending:
            return to_position(location)
        return (MAX_VI64 - location.group_id) << 64 | location.object_id

    def _location(self, place: int) -> Location:
        if self._ascending:
            return to_location(place)
        return Location(MAX_VI64 - (place >> 64), place & MAX_VI64)
