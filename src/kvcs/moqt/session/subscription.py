"""SUBSCRIBE, and what the subscriptions of SUBSCRIBE and PUBLISH share.

A subscription ends with PUBLISH_DONE, which may overtake its streams. The subscriber
keeps it (`State.DRAINING`) until as many streams as announced were seen to their end, or
until nothing has come for `drain_timeout`, and only then sends its FIN, which so tells the
publisher that everything has arrived.

Source: MOQT draft 22, Sections 3.1, 9.6, 9.7, 9.9 and 9.10.
"""

from typing import Final

from kvcs.errors import LocalProtocolError, StreamResetCode
from kvcs.moqt.session.actions import RequestId, StreamId, TrackAlias
from kvcs.moqt.session.aliases import Aliases
from kvcs.moqt.session.context import Context
from kvcs.moqt.session.deadlines import Timer
from kvcs.moqt.session.events import (
    PublishDoneReceived,
    StateNotified,
    SubscribeAccepted,
    SubscribeReceived,
    SubscriptionDrained,
    Unheard,
)
from kvcs.moqt.session.incoming import IncomingStreams
from kvcs.moqt.session.registry import Registry
from kvcs.moqt.session.requests import Requests, track_refusal
from kvcs.moqt.session.state import Input, Request, RequestKind, RequestRules, State, Table
from kvcs.moqt.wire.buffer import violation
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.properties import Properties
from kvcs.moqt.wire.publish import UNKNOWN_STREAM_COUNT, PublishDone, PublishStateNotify
from kvcs.moqt.wire.scope import Scope
from kvcs.moqt.wire.subscribe import Subscribe, SubscribeOk
from kvcs.names import FullTrackName

__all__ = ("RULES", "Subscriptions")

# Section 3.1.2, the side that sent SUBSCRIBE.
_SUBSCRIBER: Final[Table] = {
    (State.PENDING, Input.SEND_UPDATE): State.PENDING,
    (State.PENDING, Input.RECEIVE_OK): State.ESTABLISHED,
    (State.PENDING, Input.RECEIVE_ERROR): State.TERMINATED,
    (State.PENDING, Input.RECEIVE_GOAWAY): State.PENDING,
    (State.PENDING, Input.RECEIVE_FIN): State.CANCELLED,
    (State.ESTABLISHED, Input.SEND_UPDATE): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_UPDATE_OK): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_UPDATE_ERROR): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_NOTIFY): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_GOAWAY): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_DONE): State.DRAINING,
    (State.ESTABLISHED, Input.RECEIVE_FIN): State.CANCELLED,
    (State.DRAINING, Input.RECEIVE_FIN): State.DRAINING,
    (State.DRAINING, Input.RECEIVE_CANCEL): State.DRAINING,
    (State.DRAINING, Input.DATA_COMPLETE): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_FIN): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_CANCEL): State.TERMINATED,
    (State.TERMINATED, Input.CANCEL): State.TERMINATED,
}

# Section 3.1.2, the side that received SUBSCRIBE. Updates may cross its last message.
_PUBLISHER: Final[Table] = {
    (State.PENDING, Input.SEND_OK): State.ESTABLISHED,
    (State.PENDING, Input.SEND_ERROR): State.TERMINATED,
    (State.PENDING, Input.RECEIVE_UPDATE): State.PENDING,
    (State.PENDING, Input.RECEIVE_GOAWAY): State.PENDING,
    (State.PENDING, Input.RECEIVE_FIN): State.PENDING,
    (State.ESTABLISHED, Input.SEND_UPDATE_OK): State.ESTABLISHED,
    (State.ESTABLISHED, Input.SEND_UPDATE_ERROR): State.ESTABLISHED,
    (State.ESTABLISHED, Input.SEND_DATA): State.ESTABLISHED,
    (State.ESTABLISHED, Input.SEND_NOTIFY): State.ESTABLISHED,
    (State.ESTABLISHED, Input.SEND_DONE): State.TERMINATED,
    (State.ESTABLISHED, Input.RECEIVE_UPDATE): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_GOAWAY): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_FIN): State.ESTABLISHED,
    (State.TERMINATED, Input.RECEIVE_UPDATE): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_GOAWAY): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_FIN): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_CANCEL): State.TERMINATED,
    (State.TERMINATED, Input.CANCEL): State.TERMINATED,
}

RULES: Final = RequestRules(
    kind=RequestKind.SUBSCRIBE,
    requester=_SUBSCRIBER,
    responder=_PUBLISHER,
    scope=Scope.SUBSCRIBE,
    ok_scope=None,
    update_scope=Scope.UPDATE_SUBSCRIPTION,
)


class Subscriptions:
    """Subscriptions of a session, in both roles."""

    def __init__(
        self,
        context: Context,
        registry: Registry,
        requests: Requests,
        aliases: Aliases,
        incoming: IncomingStreams,
    ) -> None:
        self._context = context
        self._registry = registry
        self._requests = requests
        self._aliases = aliases
        self._incoming = incoming
        self._next_alias = 0

    def subscribe(self, track: FullTrackName, parameters: Parameters) -> RequestId:
        """Send SUBSCRIBE."""
        request = self._requests.open(
            RULES,
            parameters,
            lambda request_id: Subscribe(request_id=request_id, track=track, parameters=parameters),
            grace_ms=parameters.rendezvous_timeout_ms or 0,
        )
        request.track = track
        self._expect_fill(request)
        return request.request_id

    def receive(self, stream_id: StreamId, message: Subscribe) -> None:
        """Take a SUBSCRIBE."""
        request = self._requests.admit(RULES, stream_id, message.request_id, message.parameters)
        request.track = message.track
        if not self._requests.refuse(request, message.track.namespace):
            self._expect_fill(request)
            self._context.emit(
                SubscribeReceived(request.request_id, message.track, request.parameters)
            )

    def accept(self, request_id: RequestId, parameters: Parameters, properties: Properties) -> None:
        """Answer SUBSCRIBE_OK, with a Track Alias of its own."""
        request = self._registry.find(request_id)
        if request is None:
            return
        if request.rules is not RULES:
            raise LocalProtocolError(f"SUBSCRIBE_OK to {request.kind.name} {request_id}")
        self._requests.check_parameters(parameters, Scope.SUBSCRIBE_OK)
        alias = self.take_alias()
        message = SubscribeOk(track_alias=alias, parameters=parameters, properties=properties)
        encoded = message.encode()
        request.advance(Input.SEND_OK)
        request.track_alias = alias
        request.properties = properties
        self._context.send(request.stream_id, encoded)

    def receive_ok(self, request: Request, message: SubscribeOk) -> None:
        """Take a SUBSCRIBE_OK."""
        if request.rules is not RULES:
            raise violation(f"SUBSCRIBE_OK to {request.kind.name} {request.request_id}")
        request.advance(Input.RECEIVE_OK)
        self._context.deadlines.clear(Timer.ANSWER, request.request_id)
        request.properties = message.properties
        self._aliases.bind(TrackAlias(message.track_alias), request)
        refusal = track_refusal(message.properties)
        if refusal is not None:
            self._requests.give_up(request, *refusal)
        else:
            self._context.emit(
                SubscribeAccepted(request.request_id, message.parameters, message.properties)
            )
        self._incoming.resolve(request)

    def take_alias(self) -> TrackAlias:
        """Return a Track Alias that was never used in this session."""
        self._next_alias += 1
        return TrackAlias(self._next_alias)

    def notify(self, request_id: RequestId, parameters: Parameters) -> None:
        """Send PUBLISH_STATE_NOTIFY."""
        request = self._registry.find(request_id)
        if request is not None:
            self._requests.check_parameters(parameters, Scope.STATE_NOTIFY)
            request.advance(Input.SEND_NOTIFY)
            self._context.send(
                request.stream_id, PublishStateNotify(parameters=parameters).encode()
            )

    def receive_notify(self, request: Request, message: PublishStateNotify) -> None:
        """Take a PUBLISH_STATE_NOTIFY."""
        request.advance(Input.RECEIVE_NOTIFY)
        self._context.emit(
            Unheard() if request.is_over else StateNotified(request.request_id, message.parameters)
        )

    def finish(self, request_id: RequestId, code: int, reason: str) -> None:
        """Send PUBLISH_DONE and end our direction."""
        request = self._registry.find(request_id)
        if request is None:
            return
        if request.outgoing:
            raise LocalProtocolError(
                f"PUBLISH_DONE while {len(request.outgoing)} streams of {request_id} are open"
            )
        message = PublishDone(
            status_code=code, stream_count=request.streams_opened, reason=reason
        ).encode()
        request.advance(Input.SEND_DONE)
        self._context.send(request.stream_id, message, fin=True)
        request.can_send = False
        request.awaits_subscriber = True
        if request.is_over:
            self._requests.end(request)
            if not request.can_receive:
                self._requests.report_finished(request, in_order=True)

    def receive_done(self, request: Request, message: PublishDone) -> None:
        """Take a PUBLISH_DONE."""
        request.advance(Input.RECEIVE_DONE)
        if request.is_over:
            return
        count = None if message.stream_count == UNKNOWN_STREAM_COUNT else message.stream_count
        request.streams_announced = count
        self._context.emit(
            PublishDoneReceived(request.request_id, message.status_code, count, message.reason)
        )
        if request.state is State.DRAINING:
            self.drain(request)

    def drain(self, request: Request) -> None:
        """Wait for the last streams of a subscription that is done."""
        request.updates_sent.clear()
        context = self._context
        context.deadlines.clear(Timer.UPDATE_ANSWER, request.request_id)
        context.wait(Timer.DRAIN, request.request_id, context.limits.drain_timeout)
        self.data_ended(request)

    def data_ended(self, request: Request) -> None:
        """End a subscription that is done once its last stream has ended."""
        if request.state is not State.DRAINING or request.incoming:
            return
        announced = request.streams_announced
        if announced is not None and request.streams_seen >= announced:
            self._drained(request, is_complete=True)

    def expire(self, request_id: RequestId) -> None:
        """End a subscription whose missing streams have not come in time."""
        request = self._registry.by_id[request_id]
        deadline = self._incoming.last_progress(request) + self._context.limits.drain_timeout
        if deadline > self._context.now:
            self._context.deadlines.set(Timer.DRAIN, request_id, deadline)
        else:
            self._drained(request, is_complete=False)

    def _drained(self, request: Request, *, is_complete: bool) -> None:
        request.advance(Input.DATA_COMPLETE)
        self._context.emit(SubscriptionDrained(request.request_id, is_complete))
        self._requests.end(request, StreamResetCode.CANCELLED)

    def _expect_fill(self, request: Request) -> None:
        fill = request.parameters.fill
        if fill is not None:
            self._registry.add_trigger(request, request.request_id, fill.group_order)
