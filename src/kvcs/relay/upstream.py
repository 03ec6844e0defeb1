"""One subscription of a relay to a publisher.

It is a SUBSCRIBE of ours or a PUBLISH of theirs. It follows the events of that request, puts
what arrives into the store of the Track, and tells its sink what changed; it decides nothing
about subscribers. A SUBSCRIBE asks for Next Object: what the publisher had before it is
fetched when somebody wants it, so that nothing crosses the link twice.

Source: MOQT draft 22, Sections 3.1, 7.4 and 11.3.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol, Self

from kvcs.errors import (
    LocalProtocolError,
    MalformedTrack,
    PublishDoneCode,
    StreamResetCode,
)
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import (
    DatagramReceived,
    Event,
    GoawayReceived,
    ObjectBegun,
    ObjectPayload,
    ObjectReceived,
    PublishDoneReceived,
    PublishReceived,
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
    UpdateReceived,
)
from kvcs.moqt.track.interval import to_position
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import NO_PARAMETERS, Parameters
from kvcs.moqt.wire.properties import Properties
from kvcs.names import Location
from kvcs.relay.asker_shares import Stay
from kvcs.relay.auth import Access
from kvcs.relay.object_sink import ObjectSink
from kvcs.relay.peer import Peer
from kvcs.relay.upstream_streams import UpstreamStreams

__all__ = (
    "SubscriptionSink",
    "SubscriptionWish",
    "UpstreamState",
    "UpstreamSubscription",
)

_NEXT_OBJECT: Final = LocationFilter.next_object()


class UpstreamState(Enum):
    """Where an upstream subscription stands (Section 3.1.1)."""

    PENDING = auto()
    ESTABLISHED = auto()
    DONE = auto()


class SubscriptionSink(Protocol):
    """The Track that an upstream subscription works for."""

    @property
    def intake(self) -> ObjectSink:
        """The way of what arrives into the Track."""
        ...

    def malformed(self, peer: Peer, error: MalformedTrack, *, now: float) -> None:
        """Contain a Track that contradicts itself."""
        ...

    def stream_ended(self, *, now: float) -> None:
        """Note that a Subgroup stream of a publisher is over."""
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

    def subscription_leaving(self, subscription: "UpstreamSubscription", *, now: float) -> None:
        """Note that a publisher asks for a subscription to be made anew."""
        ...

    def subscription_expires(
        self, subscription: "UpstreamSubscription", lifetime: float, *, now: float
    ) -> None:
        """Note that a subscription lasts so many seconds from now, unless it is renewed."""
        ...

    def state_notified(
        self, subscription: "UpstreamSubscription", largest: Location | None, *, now: float
    ) -> None:
        """Note a PUBLISH_STATE_NOTIFY of a publisher."""
        ...

    def subscription_closing(self, subscription: "UpstreamSubscription", *, now: float) -> None:
        """Note that a publisher opens no more streams on a subscription."""
        ...

    def publish_ended(self, peer: Peer, access: Access, *, now: float) -> None:
        """Note that a PUBLISH is over that was allowed by `access`, before its subscription is."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionWish:
    """What a SUBSCRIBE to a publisher is to say.

    Attributes:
        asker: For whose sake it is sent first; None for nobody in particular.
        is_running: It goes on with subscriptions that run here, which no share is to end.
        forward: Objects are wanted now.
        rendezvous_ms: Milliseconds that the publisher may wait for another one.
        new_group: NEW_GROUP_REQUEST; None for no wish.
    """

    asker: Peer | None
    is_running: bool = False
    forward: bool
    rendezvous_ms: int = 0
    new_group: int | None = None


class UpstreamSubscription:
    """One subscription to one publisher.

    Attributes:
        peer: The publisher.
        request_id: The SUBSCRIBE of ours, or the PUBLISH of the publisher.
        pushed: The publisher began it with PUBLISH.
        is_offered: A publisher sent PUBLISH for the Track, for this subscription or beside it.
        forward: Forward State that we asked for last.
        state: Where it stands.
        is_hasty: The publisher was not asked to wait for another one, though subscribers do.
        live_from: First position that comes on this subscription; None while it is paused.
        was_established: It was Established, and may be Done now.
    """

    def __init__(
        self, sink: SubscriptionSink, peer: Peer, request_id: RequestId, *, forward: bool
    ) -> None:
        self.peer = peer
        self.request_id = request_id
        self.pushed = self.is_offered = self.is_hasty = False
        self.forward = forward
        self.state = UpstreamState.PENDING
        self.live_from: int | None = None
        self.was_established = False
        self._sink = sink
        self._status: int = PublishDoneCode.INTERNAL_ERROR
        self._streams = UpstreamStreams(sink.intake, peer)
        self._has_lost = False
        peer.session.take_payloads(request_id, sink.intake.cut_through_bytes)
        peer.follow(request_id, self._receive)

    @classmethod
    def subscribe(
        cls, sink: SubscriptionSink, peer: Peer, wish: SubscriptionWish, *, now: float
    ) -> Self:
        """Send SUBSCRIBE to a publisher; raises LocalProtocolError if that is not possible now."""
        limited = None if wish.is_running else wish.asker
        peer.count_question(limited, Stay.STANDING, now=now)
        may_wait = wish.rendezvous_ms > 0 and peer.has_room_for(limited, Stay.PENDING)
        parameters = Parameters(
            location_filter=_NEXT_OBJECT,
            forward=None if wish.forward else False,
            rendezvous_timeout_ms=wish.rendezvous_ms if may_wait else None,
            new_group_request=wish.new_group,
        )
        request_id = peer.session.subscribe(sink.intake.name, parameters, now=now)
        peer.charge(request_id, wish.asker, Stay.PENDING if may_wait else Stay.STANDING)
        peer.wake()
        subscription = cls(sink, peer, request_id, forward=wish.forward)
        subscription.is_hasty = wish.rendezvous_ms > 0 and not may_wait
        return subscription

    @classmethod
    def published(
        cls, sink: SubscriptionSink, peer: Peer, event: PublishReceived, *, now: float
    ) -> Self:
        """Follow a PUBLISH that was accepted."""
        forward = event.parameters.forward is not False
        subscription = cls(sink, peer, event.request_id, forward=forward)
        subscription.pushed = subscription.is_offered = True
        subscription._establish(event.parameters, now)
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
            self.forward = self._update(Parameters(forward=True), now)

    def request_new_group(self, group_id: int, *, now: float) -> None:
        """Ask the publisher to begin a Group."""
        if self.peer.takes_question(None, now=now):
            self._update(Parameters(new_group_request=group_id), now)

    def renew(self, *, now: float) -> None:
        """Ask the publisher to keep up a subscription that would expire."""
        self._update(NO_PARAMETERS, now)

    def _update(self, parameters: Parameters, now: float) -> bool:
        """Send REQUEST_UPDATE; tell whether that was possible."""
        if self.state is UpstreamState.DONE or not self.peer.session.is_active(self.request_id):
            return False
        try:
            self.peer.session.update(self.request_id, parameters, now=now)
        except LocalProtocolError:
            # So many are unanswered that the publisher takes no more of them.
            return False
        self.peer.note_question(None, now=now)
        self.peer.wake()
        return True

    def cancel(self, code: StreamResetCode, *, now: float) -> None:
        """Unsubscribe; nothing more is heard of it."""
        self.state = UpstreamState.DONE
        self._streams.clear()
        self._forget(now)
        session = self.peer.session
        if session.is_active(self.request_id):
            end = session.revoke if self.pushed else session.cancel
            end(self.request_id, code=code, now=now)
            self.peer.wake()

    @property
    def has_streams(self) -> bool:
        """Whether a stream is open on which Objects may come."""
        return bool(self._streams)

    def is_open(self, group_id: int) -> bool:
        """Tell whether a stream of this Group is open."""
        return self._streams.is_open(group_id)

    def has_ended(self, group_id: int) -> bool:
        """Tell whether a stream of this Group came and ended."""
        return self._streams.has_ended(group_id)

    def _receive(self, event: Event, now: float) -> None:
        # Nearly all are of this kind.
        if isinstance(event, ObjectReceived):
            self._receive_data(event, now)
            return
        match event:
            case SubgroupOpened():
                self._streams.open(event.stream_id, event.header)
            case ObjectBegun() | ObjectPayload() | DatagramReceived():
                self._receive_data(event, now)
            case StreamFinished() | StreamAborted():
                self._receive_end(event, now)
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
                self._establish(event.parameters, now)
                self._sink.subscription_established(self, event.properties, now=now)
            case RequestRejected():
                self.state = UpstreamState.DONE
                self.peer.forget(self.request_id)
                self._sink.subscription_refused(self, event, now=now)
            case UpdateAccepted():
                self._establish(event.parameters, now)
                self._sink.subscription_resumed(now=now)
            case StateNotified():
                self._receive_state(event.parameters, now)
            case UpdateReceived():
                # A publisher may update its own PUBLISH; it changes nothing that we decide.
                self.peer.session.accept_update(self.request_id, now=now)
                self.peer.wake()
            case GoawayReceived():
                self._sink.subscription_leaving(self, now=now)
            case _:
                # Fills and pieces that we did not ask for.
                pass

    def _receive_data(
        self, event: ObjectReceived | ObjectBegun | ObjectPayload | DatagramReceived, now: float
    ) -> None:
        try:
            match event:
                case ObjectReceived():
                    self._streams.receive_object(event, now=now)
                case ObjectBegun():
                    self._streams.begin_object(event, now=now)
                case ObjectPayload():
                    self._streams.receive_payload(event.stream_id, event.data, now=now)
                case DatagramReceived():
                    self._receive_datagram(event, now)
        except MalformedTrack as error:
            self._sink.malformed(self.peer, error, now=now)

    def _receive_end(self, event: StreamFinished | StreamAborted, now: float) -> None:
        try:
            if isinstance(event, StreamFinished):
                self._streams.finish(event.stream_id, now=now)
            else:
                self._has_lost = True
                self._streams.abort(event.stream_id)
            self._sink.stream_ended(now=now)
        except MalformedTrack as error:
            self._sink.malformed(self.peer, error, now=now)

    def _receive_datagram(self, event: DatagramReceived, now: float) -> None:
        obj = event.obj
        self._sink.intake.receive_object(obj, self.peer, follows=None, fetched=False, now=now)
        if event.end_of_group:
            self._sink.intake.store.finish_subgroup(
                obj.group_id, None, end_of_group=True, final_object_id=obj.object_id, now=now
            )

    def _establish(self, parameters: Parameters, now: float) -> None:
        largest = parameters.largest_object
        self.was_established = True
        if self.state is UpstreamState.PENDING:
            self.state = UpstreamState.ESTABLISHED
            self.peer.shares.establish(self.request_id)
        self._sink.intake.largest_advertised(largest)
        if self.forward and self.live_from is None:
            self.live_from = 0 if largest is None else to_position(largest) + 1
        if parameters.expires_ms:
            self._sink.subscription_expires(self, parameters.expires_ms / 1000, now=now)

    def _receive_state(self, parameters: Parameters, now: float) -> None:
        """Take what a publisher changed by itself."""
        forward, largest = parameters.forward, parameters.largest_object
        if forward is False:
            self.forward, self.live_from = False, None
        elif forward is True:
            self.forward = True
            if self.live_from is None:
                self.live_from = 0 if largest is None else to_position(largest) + 1
        self._sink.state_notified(self, largest, now=now)

    def _end(self, now: float, *, is_whole: bool) -> None:
        self.state = UpstreamState.DONE
        self._streams.clear()
        self._forget(now)
        self._sink.subscription_ended(self, self._status, is_whole=is_whole, now=now)

    def _forget(self, now: float) -> None:
        """Follow the request no longer; what else the publisher sends went by its PUBLISH."""
        access = self.peer.granted.get(self.request_id) if self.pushed else None
        self.peer.forget(self.request_id)
        if access is not None:
            self._sink.publish_ended(self.peer, access, now=now)
