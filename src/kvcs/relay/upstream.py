"""What a relay asks of the publishers of one Track.

Theory of operation. An `UpstreamSubscription` is one SUBSCRIBE to a publisher, or one
PUBLISH of it; an `UpstreamFetch` is one FETCH. Both follow the events of their request,
put what arrives into the store of the Track, and tell their `Sink` what changed. They
decide nothing about subscribers.

The upstream subscription asks for Next Object, so what a publisher had before it is
fetched when somebody wants it, and nothing crosses the link twice. Only an unfiltered
FETCH is sent, since a gap in a filtered one teaches nothing.

Source: MOQT draft 22, Sections 3.2, 7.4 and 11.4.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol, Self

from kvcs.errors import (
    LocalProtocolError,
    MalformedTrack,
    PublishDoneCode,
    RequestErrorCode,
    StreamResetCode,
)
from kvcs.moqt.codepoints import RangeMarker
from kvcs.moqt.session.actions import RequestId, StreamId
from kvcs.moqt.session.events import (
    DatagramReceived,
    Event,
    FetchAccepted,
    ObjectReceived,
    PublishDoneReceived,
    PublishReceived,
    RangeEnded,
    RequestAccepted,
    RequestCancelled,
    RequestRejected,
    SessionClosed,
    StateNotified,
    StreamAborted,
    StreamFinished,
    SubgroupOpened,
    SubscribeAccepted,
    SubscriptionDrained,
    UpdateAccepted,
)
from kvcs.moqt.track.interval import IntervalSet, to_location, to_position
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.properties import Properties
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.names import FullTrackName, Location
from kvcs.relay.peer import Peer
from kvcs.varint import MAX_VI64

__all__ = (
    "Sink",
    "UpstreamFetch",
    "UpstreamState",
    "UpstreamStatus",
    "UpstreamSubscription",
    "range_filter",
)

_NEXT_OBJECT: Final = LocationFilter.next_object()


def range_filter(start: int, through: int) -> LocationFilter:
    """Return the filter for a range of positions, inclusive."""
    first, last = to_location(start), to_location(through)
    delta = last.group_id - first.group_id
    if last.object_id == MAX_VI64:
        return LocationFilter.absolute_start_group_end(first.group_id, first.object_id, delta)
    return LocationFilter.absolute_range(first.group_id, first.object_id, delta, last.object_id)


class UpstreamState(Enum):
    """Where an upstream subscription stands (Section 3.1.1)."""

    PENDING = auto()
    ESTABLISHED = auto()
    DONE = auto()


class Sink(Protocol):
    """The Track that upstream requests work for."""

    name: FullTrackName
    store: TrackStore

    def receive_object(
        self, obj: Object, peer: Peer, *, follows: int | None, fetched: bool, now: float
    ) -> None:
        """Take an Object; raises MalformedTrack."""
        ...

    def stream_ended(self, *, now: float) -> None:
        """Note that a Subgroup stream of a publisher is over."""
        ...

    def mark_absent(self, start: int, through: int) -> None:
        """Note that nothing is at these positions, which may be none."""
        ...

    def mark_unknown(self, start: int, through: int, marker: RangeMarker, *, now: float) -> None:
        """Note that a publisher cannot say what is at these positions."""
        ...

    def largest_advertised(self, largest: Location | None) -> None:
        """Note a LARGEST_OBJECT of a publisher."""
        ...

    def malformed(self, peer: Peer, error: MalformedTrack, *, now: float) -> None:
        """Contain a Track that contradicts itself."""
        ...

    def subscription_established(
        self, subscription: "UpstreamSubscription", properties: Properties, *, now: float
    ) -> None:
        """Note that a publisher accepted a subscription."""
        ...

    def subscription_refused(
        self, subscription: "UpstreamSubscription", rejection: RequestRejected, *, now: float
    ) -> None:
        """Note that a publisher refused a subscription."""
        ...

    def subscription_resumed(self, *, now: float) -> None:
        """Note that a paused subscription forwards again."""
        ...

    def subscription_closing(self, subscription: "UpstreamSubscription", *, now: float) -> None:
        """Note that a publisher opens no more streams on a subscription."""
        ...

    def subscription_ended(
        self, subscription: "UpstreamSubscription", code: int, *, is_whole: bool, now: float
    ) -> None:
        """Note that nothing more comes on a subscription.

        Args:
            subscription: The subscription.
            code: Why it ended, a code of PUBLISH_DONE.
            is_whole: Everything that was published since it began has arrived.
            now: Monotonic seconds.
        """
        ...

    def fetch_answered(self, fetch: "UpstreamFetch", properties: Properties, *, now: float) -> None:
        """Note that FETCH_OK arrived."""
        ...

    def fetch_refused(
        self, fetch: "UpstreamFetch", rejection: RequestRejected, *, now: float
    ) -> None:
        """Note that a FETCH was refused; nothing more comes of it."""
        ...

    def fetch_ended(self, fetch: "UpstreamFetch", *, now: float) -> None:
        """Note that nothing more comes on a FETCH."""
        ...

    def status_answered(
        self,
        status: "UpstreamStatus",
        answer: RequestAccepted | SubscribeAccepted | RequestRejected | None,
        *,
        now: float,
    ) -> None:
        """Note what a publisher said of the Track; None if the session ended before."""
        ...


class UpstreamSubscription:
    """One subscription to one publisher.

    Attributes:
        peer: The publisher.
        request_id: The SUBSCRIBE of ours, or the PUBLISH of the publisher.
        pushed: The publisher began it with PUBLISH.
        forward: Forward State that we asked for last.
        state: Where it stands.
        live_from: First position that comes on this subscription; None while it is paused.
        was_established: It was Established, and may be Done now.
    """

    def __init__(self, sink: Sink, peer: Peer, request_id: RequestId, *, forward: bool) -> None:
        self.peer = peer
        self.request_id = request_id
        self.pushed = False
        self.forward = forward
        self.state = UpstreamState.PENDING
        self.live_from: int | None = None
        self.was_established = False
        self._sink = sink
        self._status: int = PublishDoneCode.INTERNAL_ERROR
        self._streams: dict[StreamId, _Stream] = {}
        self._ended_groups = IntervalSet()
        self._has_lost = False
        peer.follow(request_id, self._receive)

    @classmethod
    def subscribe(
        cls, sink: Sink, peer: Peer, *, forward: bool, rendezvous_ms: int, now: float
    ) -> Self:
        """Send SUBSCRIBE to a publisher."""
        parameters = Parameters(
            location_filter=_NEXT_OBJECT,
            forward=None if forward else False,
            rendezvous_timeout_ms=rendezvous_ms or None,
        )
        request_id = peer.session.subscribe(sink.name, parameters, now=now)
        peer.wake()
        return cls(sink, peer, request_id, forward=forward)

    @classmethod
    def published(cls, sink: Sink, peer: Peer, event: PublishReceived) -> Self:
        """Follow a PUBLISH that was accepted."""
        forward = event.parameters.forward is not False
        subscription = cls(sink, peer, event.request_id, forward=forward)
        subscription.pushed = True
        subscription._establish(event.parameters.largest_object)
        return subscription

    def __repr__(self) -> str:
        return f"<UpstreamSubscription {self.peer.id}/{self.request_id} {self.state.name}>"

    @property
    def is_forwarding(self) -> bool:
        """Whether Objects come, so that what we know of the Largest Object is current."""
        return self.state is UpstreamState.ESTABLISHED and self.live_from is not None

    def resume(self, *, now: float) -> None:
        """Ask a paused publisher to forward."""
        if not self.forward:
            self.forward = True
            self.peer.session.update(self.request_id, Parameters(forward=True), now=now)
            self.peer.wake()

    def cancel(self, code: StreamResetCode, *, now: float) -> None:
        """Unsubscribe; nothing more is heard of it."""
        self.state = UpstreamState.DONE
        self.peer.forget(self.request_id)
        if self.peer.session.is_active(self.request_id):
            self.peer.session.cancel(self.request_id, code=code, now=now)
            self.peer.wake()

    def is_open(self, group_id: int) -> bool:
        """Tell whether a stream of this Group is open."""
        return any(stream.header.group_id == group_id for stream in self._streams.values())

    def has_ended(self, group_id: int) -> bool:
        """Tell whether a stream of this Group came and ended."""
        return group_id in self._ended_groups

    def _receive(self, event: Event, now: float) -> None:
        match event:
            case SubgroupOpened():
                self._streams[event.stream_id] = _Stream(event.header)
            case ObjectReceived() | DatagramReceived() | StreamFinished() | StreamAborted():
                self._receive_data(event, now)
            case PublishDoneReceived():
                self.state = UpstreamState.DONE
                self._status = event.status_code
                self._sink.subscription_closing(self, now=now)
            case SubscriptionDrained():
                self._end(now, is_whole=event.complete and not self._has_lost)
            case RequestCancelled() | SessionClosed():
                self._end(now, is_whole=False)
            case _:
                self._receive_answer(event, now)

    def _receive_answer(self, event: Event, now: float) -> None:
        match event:
            case SubscribeAccepted():
                self._establish(event.parameters.largest_object)
                self._sink.subscription_established(self, event.properties, now=now)
            case RequestRejected():
                self.state = UpstreamState.DONE
                self.peer.forget(self.request_id)
                self._sink.subscription_refused(self, event, now=now)
            case UpdateAccepted():
                self._establish(event.parameters.largest_object)
                self._sink.subscription_resumed(now=now)
            case StateNotified():
                self._sink.largest_advertised(event.parameters.largest_object)
            case _:
                # GOAWAY for one request, fills and pieces that we did not ask for.
                pass

    def _receive_data(
        self, event: ObjectReceived | DatagramReceived | StreamFinished | StreamAborted, now: float
    ) -> None:
        try:
            match event:
                case ObjectReceived():
                    self._receive_object(event.stream_id, event.obj, now)
                case DatagramReceived():
                    self._sink.receive_object(
                        event.obj, self.peer, follows=None, fetched=False, now=now
                    )
                case StreamFinished():
                    self._finish(self._close(event.stream_id), now)
                case StreamAborted():
                    self._has_lost = True
                    self._close(event.stream_id)
                    self._sink.stream_ended(now=now)
        except MalformedTrack as error:
            self._sink.malformed(self.peer, error, now=now)

    def _close(self, stream_id: StreamId) -> "_Stream | None":
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            group_id = stream.header.group_id
            self._ended_groups.add(group_id, group_id)
        return stream

    def _receive_object(self, stream_id: StreamId, obj: Object, now: float) -> None:
        stream = self._streams[stream_id]
        if stream.subgroup_id is None and obj.subgroup_id is not None:
            stream.subgroup_id = obj.subgroup_id
            self._sink.store.open_subgroup(
                obj.group_id,
                obj.subgroup_id,
                first_object_id=obj.object_id if stream.header.first_object else None,
                ends_group=stream.header.end_of_group,
                has_properties=stream.header.has_properties,
            )
        follows, stream.last_object_id = stream.last_object_id, obj.object_id
        self._sink.receive_object(obj, self.peer, follows=follows, fetched=False, now=now)

    def _finish(self, stream: "_Stream | None", now: float) -> None:
        if stream is not None and stream.subgroup_id is not None:
            self._sink.store.finish_subgroup(
                stream.header.group_id,
                stream.subgroup_id,
                end_of_group=stream.header.end_of_group,
                final_object_id=stream.last_object_id,
                now=now,
            )
        self._sink.stream_ended(now=now)

    def _establish(self, largest: Location | None) -> None:
        self.was_established = True
        if self.state is UpstreamState.PENDING:
            self.state = UpstreamState.ESTABLISHED
        self._sink.largest_advertised(largest)
        if self.forward and self.live_from is None:
            self.live_from = 0 if largest is None else to_position(largest) + 1

    def _end(self, now: float, *, is_whole: bool) -> None:
        self.state = UpstreamState.DONE
        self._streams.clear()
        self.peer.forget(self.request_id)
        self._sink.subscription_ended(self, self._status, is_whole=is_whole, now=now)


@dataclass(slots=True, eq=False)
class _Stream:
    """A Subgroup stream of the publisher that has not ended."""

    header: SubgroupHeader
    subgroup_id: int | None = None
    last_object_id: int | None = None


class UpstreamFetch:
    """One FETCH to one publisher.

    Attributes:
        peer: The publisher.
        request_id: The FETCH.
        start: First position that was asked for.
        through: Last position that was asked for, inclusive.
        position: First position that is not accounted for.
        end: Where the range really ends, inclusive; None before FETCH_OK.
        end_of_track: Nothing comes after `end`, ever.
    """

    def __init__(
        self, sink: Sink, peer: Peer, request_id: RequestId, span: tuple[int, int]
    ) -> None:
        self.peer = peer
        self.request_id = request_id
        self.start, self.through = span
        self.position = self.start
        self.end: int | None = None
        self.end_of_track = False
        self._sink = sink
        self._finished = False
        largest = sink.store.largest
        self._ends_with_group = (
            self.through & MAX_VI64 == MAX_VI64
            and largest is not None
            and to_position(largest) > self.through
        )
        peer.follow(request_id, self._receive)

    @classmethod
    def request(
        cls,
        sink: Sink,
        peer: Peer,
        span: tuple[int, int],
        *,
        location_filter: LocationFilter | None = None,
        timeout: float,
        now: float,
    ) -> Self:
        """Send FETCH to a publisher.

        Args:
            sink: The Track.
            peer: The publisher.
            span: First and last position, inclusive.
            location_filter: How to ask for it, where that is more than the span says.
            timeout: Seconds that the publisher may take to find what it lacks.
            now: Monotonic seconds.
        """
        parameters = Parameters(
            location_filter=location_filter or range_filter(*span),
            fill_timeout_ms=max(0, round(timeout * 1000)),
        )
        request_id = peer.session.fetch(sink.name, parameters, now=now)
        peer.wake()
        return cls(sink, peer, request_id, span)

    def __repr__(self) -> str:
        return f"<UpstreamFetch {self.peer.id}/{self.request_id} at {to_location(self.position)}>"

    def covers(self, position: int) -> bool:
        """Tell whether this FETCH will still say what is at `position`."""
        return self.position <= position <= self.through

    def cancel(self, code: StreamResetCode, *, now: float) -> None:
        """Give up; nothing more is heard of it."""
        self.peer.forget(self.request_id)
        if self.peer.session.is_active(self.request_id):
            self.peer.session.cancel(self.request_id, code=code, now=now)
            self.peer.wake()

    def give_up(self, *, now: float) -> None:
        """Cancel a FETCH on which nothing moves; what is missing has timed out."""
        self.cancel(StreamResetCode.CANCELLED, now=now)
        self._fail(now, RangeMarker.TIMED_OUT)

    def _receive(self, event: Event, now: float) -> None:
        match event:
            case ObjectReceived():
                self._receive_object(event.obj, now)
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

    def _receive_object(self, obj: Object, now: float) -> None:
        position = to_position(obj.location)
        if not self.covers(position):
            return
        self._account(position)
        try:
            self._sink.receive_object(obj, self.peer, follows=None, fetched=True, now=now)
        except MalformedTrack as error:
            self._sink.malformed(self.peer, error, now=now)

    def _receive_marker(self, marker: RangeMarker, through: int, now: float) -> None:
        through = min(through, self.through)
        if through < self.position:
            return
        start, self.position = self.position, through + 1
        if marker is RangeMarker.NON_EXISTENT:
            self._sink.mark_absent(start, through)
        else:
            self._sink.mark_unknown(start, through, marker, now=now)

    def _account(self, position: int) -> None:
        """Account for an Object; an unmarked gap before it means that nothing is there."""
        start, self.position = self.position, position + 1
        if start < position:
            self._sink.mark_absent(start, position - 1)

    def _conclude(self, now: float) -> None:
        """See whether both FETCH_OK and the end of the stream have come, in any order."""
        if not self._finished or self.end is None:
            return
        # A range to the end of a Group ends with the last Object there (Section 9.12), unless
        # it is Largest; so nothing follows in that Group.
        self._account(
            self.through + 1 if self._ends_with_group else min(self.end, self.through) + 1
        )
        self._fail(now, RangeMarker.UNKNOWN)

    def _fail(self, now: float, marker: RangeMarker | None = None) -> None:
        """End; say of what is not accounted for that it is unknown, or leave that open."""
        self.peer.forget(self.request_id)
        start, self.position = self.position, self.through + 1
        if marker is not None and start <= self.through:
            self._sink.mark_unknown(start, self.through, marker, now=now)
        self._sink.fetch_ended(self, now=now)


class UpstreamStatus:
    """One question to one publisher: how far does the Track go?

    TRACK_STATUS asks that. An endpoint need not support it (Section 1.6); one that does not is
    asked with a paused SUBSCRIBE, which is cancelled as soon as it is answered.

    Attributes:
        peer: The publisher.
        request_id: The TRACK_STATUS, or the SUBSCRIBE in its place.
    """

    def __init__(self, sink: Sink, peer: Peer, *, now: float) -> None:
        """Send TRACK_STATUS to a publisher."""
        self.peer = peer
        self.request_id = peer.session.track_status(sink.name, now=now)
        self._sink = sink
        self._is_subscribe = False
        self._follow()

    def _follow(self) -> None:
        self.peer.follow(self.request_id, self._receive)
        self.peer.wake()

    def _receive(self, event: Event, now: float) -> None:
        self.peer.forget(self.request_id)
        match event:
            case RequestRejected() if self._may_subscribe(event) and self._subscribe(now):
                return
            case SubscribeAccepted():
                self.peer.session.cancel(self.request_id, now=now)
                self.peer.wake()
                self._sink.status_answered(self, event, now=now)
            case RequestAccepted() | RequestRejected():
                self._sink.status_answered(self, event, now=now)
            case _:
                self._sink.status_answered(self, None, now=now)

    def _may_subscribe(self, rejection: RequestRejected) -> bool:
        return rejection.code == RequestErrorCode.NOT_SUPPORTED and not self._is_subscribe

    def _subscribe(self, now: float) -> bool:
        parameters = Parameters(location_filter=_NEXT_OBJECT, forward=False)
        try:
            self.request_id = self.peer.session.subscribe(self._sink.name, parameters, now=now)
        except LocalProtocolError:
            return False
        self._is_subscribe = True
        self._follow()
        return True
