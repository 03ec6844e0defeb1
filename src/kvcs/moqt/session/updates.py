"""REQUEST_UPDATE and its answers, in both directions.

Answers carry no id: they come in the order of the updates.

Source: MOQT draft 22, Section 9.5.
"""

from collections.abc import Callable

from kvcs.errors import (
    LocalProtocolError,
    PublishDoneCode,
    RemoteProtocolError,
    RequestErrorCode,
    StreamResetCode,
    TerminationCode,
)
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.context import Context
from kvcs.moqt.session.deadlines import Timer
from kvcs.moqt.session.events import Unheard, UpdateAccepted, UpdateReceived, UpdateRejected
from kvcs.moqt.session.outgoing import OutgoingStreams
from kvcs.moqt.session.registry import Registry
from kvcs.moqt.session.requests import Requests
from kvcs.moqt.session.state import Input, Request, RequestKind
from kvcs.moqt.wire.buffer import violation
from kvcs.moqt.wire.filters import replace_filters
from kvcs.moqt.wire.parameters import Parameters, check_scope
from kvcs.moqt.wire.publish import PublishDone
from kvcs.moqt.wire.request import RequestError, RequestOk, RequestUpdate
from kvcs.moqt.wire.scope import Scope
from kvcs.moqt.wire.token import Token
from kvcs.names import TrackNamespace

__all__ = ("Updates",)


class Updates:
    """Updates of all requests of a session."""

    def __init__(
        self,
        context: Context,
        registry: Registry,
        requests: Requests,
        outgoing: OutgoingStreams,
        overlaps: Callable[[Request, TrackNamespace], bool],
    ) -> None:
        self._context = context
        self._registry = registry
        self._requests = requests
        self._outgoing = outgoing
        self._overlaps = overlaps

    def send(self, request_id: RequestId, parameters: Parameters) -> RequestId:
        """Send a REQUEST_UPDATE; return its own id."""
        request = self._registry.find(request_id)
        update_id = self._requests.take_id()
        if request is None:
            return update_id
        self._requests.check_parameters(parameters, request.rules.update_scope)
        if not self._has_room(request):
            unanswered = len(request.updates_sent)
            raise LocalProtocolError(f"{unanswered} updates of {request_id} are unanswered already")
        message = RequestUpdate(request_id=update_id, parameters=parameters).encode()
        request.advance(Input.SEND_UPDATE)
        request.updates_sent.append((update_id, parameters))
        self._context.send(request.stream_id, message)
        self._expect_fill(request, update_id, parameters)
        self._await_answer(request)
        return update_id

    def present(self, tokens: tuple[Token, ...]) -> None:
        """Send tokens for every request of ours that can be updated now."""
        parameters = Parameters(authorization_tokens=tokens)
        for request in tuple(self._registry.by_id.values()):
            is_ours = request.is_requester and request.can_send and not request.is_over
            if is_ours and request.may(Input.SEND_UPDATE) and self._has_room(request):
                self.send(request.request_id, parameters)

    def receive(self, request: Request, message: RequestUpdate) -> None:
        """Take a REQUEST_UPDATE of the peer."""
        update_id = self._requests.claim_id(message.request_id)
        request.advance(Input.RECEIVE_UPDATE)
        # What it stores is stored, also where it crossed the end of the request.
        parameters = self._requests.resolve_tokens(message.parameters)
        if request.is_over:
            self._context.emit(Unheard())
            return
        check_scope(message.parameters, request.rules.update_scope)
        self._check_count(request)
        request.updates_received.append((update_id, parameters))
        request.filters = replace_filters(request.filters, parameters.range_filters)
        fault = self._requests.filter_fault(parameters, request.filters)
        surplus = self._requests.token_surplus(parameters)
        prefix = parameters.track_namespace_prefix
        if surplus is not None:
            self._refuse(request, RequestErrorCode.EXCESSIVE_LOAD, surplus)
        elif fault is not None:
            self._refuse(request, RequestErrorCode.INVALID_FILTER, fault)
        elif prefix is not None and self._overlaps(request, prefix):
            self._refuse(request, RequestErrorCode.PREFIX_OVERLAP, "prefixes overlap")
        else:
            self._expect_fill(request, update_id, parameters)
            self._context.emit(UpdateReceived(request.request_id, update_id, parameters))

    def accept(self, request_id: RequestId, parameters: Parameters) -> None:
        """Answer REQUEST_OK to the oldest unanswered update of the peer."""
        request = self._registry.find(request_id)
        if request is None:
            return
        self._requests.check_parameters(parameters, Scope.UPDATE_OK)
        message = RequestOk(parameters=parameters).encode()
        self._check_unanswered(request)
        request.advance(Input.SEND_UPDATE_OK)
        self._apply(request, request.updates_received.popleft()[1])
        self._context.send(request.stream_id, message)

    def reject(self, request_id: RequestId, code: int, reason: str) -> None:
        """Answer REQUEST_ERROR to the oldest unanswered update; most requests end with it."""
        request = self._registry.find(request_id)
        if request is None:
            return
        self._check_unanswered(request)
        message = RequestError(code=code, reason=reason).encode()
        request.advance(Input.SEND_UPDATE_ERROR)
        request.updates_received.popleft()
        self._context.send(request.stream_id, message)
        if request.is_subscription and not request.receives_data:
            self._end_subscription(request)
        elif request.is_over:
            self._requests.end(request)

    def receive_ok(self, request: Request, message: RequestOk) -> None:
        """Take the REQUEST_OK to our oldest unanswered update."""
        check_scope(message.parameters, Scope.UPDATE_OK)
        if message.properties:
            raise violation("Track Properties in the REQUEST_OK to a REQUEST_UPDATE")
        answered = self._receive_answer(request, Input.RECEIVE_UPDATE_OK)
        if answered is not None:
            update_id, parameters = answered
            self._apply(request, parameters)
            self._context.emit(UpdateAccepted(request.request_id, update_id, message.parameters))

    def receive_error(self, request: Request, message: RequestError) -> None:
        """Take the REQUEST_ERROR to our oldest unanswered update."""
        answered = self._receive_answer(request, Input.RECEIVE_UPDATE_ERROR)
        if answered is None:
            return
        update_id = answered[0]
        self._context.emit(
            UpdateRejected(request.request_id, update_id, message.code, message.reason)
        )
        if request.is_over:
            self._requests.report_cancelled(request, StreamResetCode.CANCELLED)
            self._requests.end(request)

    def expire(self, request_id: RequestId) -> None:
        """Give up a request whose update was not answered in time."""
        request = self._registry.by_id[request_id]
        update_id = request.updates_sent[0][0]
        code = RequestErrorCode.TIMEOUT
        self._context.emit(UpdateRejected(request_id, update_id, code, "no answer in time"))
        self._requests.abandon(request)

    def _has_room(self, request: Request) -> bool:
        """Tell whether the peer takes one more update before it answers."""
        peer = self._context.peer_options
        limit = peer.max_request_updates if peer is not None else 0
        return not limit or len(request.updates_sent) < limit

    def _receive_answer(self, request: Request, step: Input) -> tuple[RequestId, Parameters] | None:
        was_over = request.is_over
        request.advance(step)
        if not request.updates_sent:
            raise violation(f"{step.name} in {request.kind.name} without an update")
        answered = request.updates_sent.popleft()
        if was_over:
            return None
        self._await_answer(request)
        return answered

    def _await_answer(self, request: Request) -> None:
        context = self._context
        if request.updates_sent:
            timeout = context.limits.request_timeout
            context.wait(Timer.UPDATE_ANSWER, request.request_id, timeout)
        else:
            context.deadlines.clear(Timer.UPDATE_ANSWER, request.request_id)

    def _check_count(self, request: Request) -> None:
        context = self._context
        limit = context.config.options.max_request_updates or context.limits.max_request_updates
        if len(request.updates_received) >= limit:
            raise RemoteProtocolError(
                TerminationCode.TOO_MANY_REQUEST_UPDATES,
                f"more than {limit} unanswered updates of request {request.request_id}",
            )

    def _check_unanswered(self, request: Request) -> None:
        if not request.updates_received:
            raise LocalProtocolError(f"no update of request {request.request_id} is unanswered")

    def _refuse(self, request: Request, code: int, reason: str) -> None:
        """Refuse an update, and with it the request, which the application must learn."""
        if request.awaits_answer and not request.is_requester:
            self._requests.send_error(request, code, reason)
        else:
            # Answers are ordered, so the updates before this one fail with it.
            while len(request.updates_received) > 1:
                request.updates_received.popleft()
            self.reject(request.request_id, code, reason)
        self._context.emit(Unheard())
        if request.is_over:
            self._requests.report_cancelled(request, StreamResetCode.CANCELLED)

    def _end_subscription(self, request: Request) -> None:
        self._outgoing.reset_all(request, StreamResetCode.CANCELLED)
        request.advance(Input.SEND_DONE)
        done = PublishDone(
            status_code=PublishDoneCode.UPDATE_FAILED, stream_count=request.streams_opened
        )
        self._context.send(request.stream_id, done.encode())
        self._requests.finish_sending(request)
        if request.is_over:
            self._requests.end(request)

    def _expect_fill(self, request: Request, update_id: RequestId, parameters: Parameters) -> None:
        if parameters.fill is None:
            return
        if len(request.fills) > self._context.limits.max_request_updates:
            self._registry.drop_trigger(request, next(iter(request.fills)))
        self._registry.add_trigger(request, update_id, parameters.fill.group_order)

    def _apply(self, request: Request, parameters: Parameters) -> None:
        prefix = parameters.track_namespace_prefix
        if prefix is not None and request.kind is not RequestKind.PUBLISH_NAMESPACE:
            request.namespace = prefix
            request.namespaces = {n for n in request.namespaces if prefix.is_prefix_of(n)}
