"""One FETCH of a relay to a publisher.

What arrives goes into the store of the Track, a large Object while it arrives to those who wait
for it (`kvcs.moqt.track.arriving`), and so does what the gaps between the Objects say. Where only
some Object IDs are wanted the FETCH is filtered, and its gaps teach nothing: of what was asked for
and did not come it is only known that this publisher did not send it.

Source: MOQT draft 22, Sections 3.2 and 11.4.
"""

from typing import Protocol, Self

from kvcs.errors import (
    MalformedTrack,
    StreamResetCode,
)
from kvcs.moqt.codepoints import RangeMarker
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import (
    Event,
    FetchAccepted,
    ObjectBegun,
    ObjectPayload,
    ObjectReceived,
    RangeEnded,
    RequestCancelled,
    RequestRejected,
    SessionClosed,
    StreamAborted,
    StreamFinished,
)
from kvcs.moqt.track.arriving import Arriving
from kvcs.moqt.track.interval import to_location, to_position
from kvcs.moqt.track.object_ids import ObjectIds
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.properties import Properties
from kvcs.relay.asker_shares import Stay
from kvcs.relay.object_sink import ObjectSink
from kvcs.relay.peer import Peer
from kvcs.varint import MAX_VI64

__all__ = ("FetchSink", "UpstreamFetch", "range_filter")


def range_filter(start: int, through: int) -> LocationFilter:
    """Return the filter for a range of positions, inclusive."""
    first, last = to_location(start), to_location(through)
    delta = last.group_id - first.group_id
    if last.object_id == MAX_VI64:
        return LocationFilter.absolute_start_group_end(first.group_id, first.object_id, delta)
    return LocationFilter.absolute_range(first.group_id, first.object_id, delta, last.object_id)


class FetchSink(Protocol):
    """The Track that an upstream FETCH works for."""

    @property
    def intake(self) -> ObjectSink:
        """The way of what arrives into the Track."""
        ...

    def malformed(self, peer: Peer, error: MalformedTrack, *, now: float) -> None:
        """Contain a Track that contradicts itself."""
        ...

    def mark_unknown(
        self, fetch: "UpstreamFetch", start: int, through: int, marker: RangeMarker, *, now: float
    ) -> None:
        """Note that a FETCH does not say what is at those of these positions that it asks for."""
        ...

    def fetch_answered(self, fetch: "UpstreamFetch", properties: Properties, *, now: float) -> None:
        """Note that FETCH_OK arrived."""
        ...

    def fetch_began_object(self, fetch: "UpstreamFetch", *, now: float) -> None:
        """Note that a FETCH brings an Object, which is not whole yet."""
        ...

    def fetch_refused(
        self, fetch: "UpstreamFetch", rejection: RequestRejected, *, now: float
    ) -> None:
        """Note that a FETCH was refused; nothing more comes of it."""
        ...

    def fetch_ended(self, fetch: "UpstreamFetch", *, now: float) -> None:
        """Note that nothing more comes on a FETCH."""
        ...


class UpstreamFetch:
    """One FETCH to one publisher.

    Attributes:
        peer: The publisher.
        request_id: The FETCH.
        start: First position that was asked for.
        through: Last position that was asked for, inclusive.
        position: First position that is not accounted for.
        arriving: The Object there that has begun, None between Objects.
        end: Where the range really ends, inclusive; None before FETCH_OK.
        end_of_track: Nothing comes after `end`, ever.
        ids: Object IDs that were asked for; None for all.
    """

    def __init__(
        self,
        sink: FetchSink,
        peer: Peer,
        request_id: RequestId,
        span: tuple[int, int],
        *,
        ids: ObjectIds | None = None,
    ) -> None:
        self.peer = peer
        self.ids = ids
        self.request_id = request_id
        self.start, self.through = span
        self.position = self.start
        self.end: int | None = None
        self.end_of_track = False
        self.arriving: Arriving | None = None
        self._began_at: float | None = None
        self._sink = sink
        self._finished = False
        largest = sink.intake.store.largest
        self._ends_with_group = (
            self.through & MAX_VI64 == MAX_VI64
            and largest is not None
            and to_position(largest) > self.through
        )
        peer.session.take_payloads(request_id, sink.intake.cut_through_bytes)
        peer.follow(request_id, self._receive)

    @classmethod
    def request(
        cls,
        sink: FetchSink,
        peer: Peer,
        span: tuple[int, int],
        parameters: Parameters,
        *,
        asker: Peer | None,
        now: float,
    ) -> Self:
        """Send FETCH to a publisher.

        Args:
            sink: The Track.
            peer: The publisher.
            span: First and last position that are wanted, inclusive.
            parameters: What is asked for: the range, and Object IDs at most.
            asker: For whose sake; None for nobody in particular.
            now: Monotonic seconds.

        Raises:
            LocalProtocolError: That is not possible now.
        """
        peer.count_question(asker, Stay.PASSING, now=now)
        request_id = peer.session.fetch(sink.intake.name, parameters, now=now)
        peer.charge(request_id, asker, Stay.PASSING)
        peer.wake()
        return cls(sink, peer, request_id, span, ids=ObjectIds.of(parameters.range_filters))

    def __repr__(self) -> str:
        return f"<UpstreamFetch {self.peer.id}/{self.request_id} at {to_location(self.position)}>"

    def covers(self, position: int) -> bool:
        """Tell whether this FETCH will still say what is at `position`."""
        is_wanted = self.ids is None or position & MAX_VI64 in self.ids
        return is_wanted and self.position <= position <= self.through

    @property
    def progress(self) -> tuple[int, int]:
        """How far it has come: `position`, and octets of the Object there."""
        return self.position, 0 if self.arriving is None else self.arriving.size

    def cancel(self, code: StreamResetCode, *, now: float) -> None:
        """Give up; nothing more is heard of it."""
        self._lose_arriving()
        self.peer.forget(self.request_id)
        if self.peer.session.is_active(self.request_id):
            self.peer.session.cancel(self.request_id, code=code, now=now)
            self.peer.wake()

    def give_up(self, *, now: float) -> None:
        """Cancel a FETCH on which nothing moves; what is missing has timed out."""
        self.cancel(StreamResetCode.CANCELLED, now=now)
        self._fail(now, RangeMarker.TIMED_OUT)

    def dismiss(self, *, now: float) -> None:
        """Take nothing more, as if the publisher had gone; somebody else can be asked."""
        self.cancel(StreamResetCode.EXPIRED_AUTH_TOKEN, now=now)
        self._fail(now)

    def _receive(self, event: Event, now: float) -> None:
        match event:
            case ObjectReceived() | ObjectBegun() | ObjectPayload():
                self._receive_data(event, now)
            case RangeEnded():
                self._receive_marker(event.marker, to_position(event.location), now)
            case FetchAccepted():
                self.end = to_position(event.end_location)
                self.end_of_track = event.end_of_track
                self._sink.fetch_answered(self, event.properties, now=now)
                self._conclude(now)
            case StreamFinished():
                self._finished = True
                self._conclude(now)
            case RequestRejected():
                self.peer.forget(self.request_id)
                self._sink.fetch_refused(self, event, now=now)
            case StreamAborted() | RequestCancelled() | SessionClosed():
                self._fail(now)
            case _:
                pass

    def _receive_data(
        self, event: ObjectReceived | ObjectBegun | ObjectPayload, now: float
    ) -> None:
        match event:
            case ObjectReceived():
                self._receive_object(event, now)
            case ObjectBegun():
                self._begin_object(event, now)
            case ObjectPayload():
                self._receive_payload(event.data, now)

    def _receive_object(self, event: ObjectReceived, now: float) -> None:
        position = to_position(event.obj.location)
        if self.covers(position):
            self._pass_gap(position, now)
            self._store(event.obj, event.began_at, now)

    def _begin_object(self, event: ObjectBegun, now: float) -> None:
        """Take the first octets of a large Object, which is accounted for when it is whole."""
        position = to_position(event.obj.location)
        if not self.covers(position):
            return
        self._pass_gap(position, now)
        arriving = self.arriving = Arriving(event.obj, event.payload_length)
        self._began_at = now
        try:
            self._sink.intake.begin_object(arriving, self.peer, now=now)
        except MalformedTrack as error:
            self._sink.malformed(self.peer, error, now=now)
            return
        self._receive_payload(event.data, now)
        if self.arriving is arriving:
            self._sink.fetch_began_object(self, now=now)

    def _receive_payload(self, data: memoryview, now: float) -> None:
        arriving, store = self.arriving, self._sink.intake.store
        if arriving is None:
            # Not asked for.
            return
        arriving.add(data)
        if not arriving.is_whole:
            store.arrivals.grew(arriving)
            return
        self.arriving = None
        self._store(arriving.whole(), self._began_at, now)
        # It is not taken where it contradicts the Track, or is known by now not to exist.
        is_lost = store.received_at(arriving.obj.group_id, arriving.obj.object_id) is None
        store.arrivals.end(arriving, lost=is_lost)

    def _store(self, obj: Object, began_at: float | None, now: float) -> None:
        """Put a whole Object into the store."""
        self.position = to_position(obj.location) + 1
        try:
            self._sink.intake.receive_object(
                obj, self.peer, follows=None, fetched=True, began_at=began_at, now=now
            )
        except MalformedTrack as error:
            self._sink.malformed(self.peer, error, now=now)

    def _lose_arriving(self) -> None:
        arriving, self.arriving = self.arriving, None
        if arriving is not None:
            self._sink.intake.store.arrivals.end(arriving, lost=True)

    def _receive_marker(self, marker: RangeMarker, through: int, now: float) -> None:
        through = min(through, self.through)
        if through < self.position:
            return
        start, self.position = self.position, through + 1
        if marker is RangeMarker.NON_EXISTENT and self.ids is None:
            self._sink.intake.mark_absent(start, through)
        else:
            self._sink.mark_unknown(self, start, through, marker, now=now)

    def _pass_gap(self, position: int, now: float) -> None:
        """Account for an unmarked gap before an Object: it means that nothing is there.

        Unless the FETCH was filtered: then it means nothing.
        """
        start, self.position = self.position, position
        if start >= position:
            return
        if self.ids is None:
            self._sink.intake.mark_absent(start, position - 1)
        else:
            self._sink.mark_unknown(self, start, position - 1, RangeMarker.UNKNOWN, now=now)

    def _conclude(self, now: float) -> None:
        """See whether both FETCH_OK and the end of the stream have come, in any order."""
        if not self._finished or self.end is None:
            return
        # A range to the end of a Group ends with the last Object there (Section 9.12), unless
        # it is Largest; so nothing follows in that Group.
        end = min(self.end, self.through)
        if self.ids is not None and self._ends_with_group:
            self._sink.intake.mark_absent(end + 1, self.through)
        self._pass_gap(self.through + 1 if self._ends_with_group else end + 1, now)
        self._fail(now, RangeMarker.UNKNOWN)

    def _fail(self, now: float, marker: RangeMarker | None = None) -> None:
        """End; say of what is not accounted for that it is unknown, or leave that open."""
        self.peer.forget(self.request_id)
        self._lose_arriving()
        start, self.position = self.position, self.through + 1
        if marker is not None and start <= self.through:
            self._sink.mark_unknown(self, start, self.through, marker, now=now)
        self._sink.fetch_ended(self, now=now)
