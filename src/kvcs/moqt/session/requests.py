"""What all kinds of requests share: opening, answers, refusals and both kinds of end.

Source: MOQT draft 22, Sections 6.4.2, 9.3 and 9.4.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from kvcs.errors import LocalProtocolError, RequestErrorCode, StreamResetCode
from kvcs.moqt.codepoints import TokenAliasType
from kvcs.moqt.session.actions import RequestId, StreamId
from kvcs.moqt.session.aliases import Aliases
from kvcs.moqt.session.context import REQUEST_PRIORITY, Context
from kvcs.moqt.session.deadlines import Timer
from kvcs.moqt.session.events import (
    NamespaceDoneReceived,
    RequestAccepted,
    RequestCancelled,
    RequestRejected,
    SubscriberFinished,
    Unheard,
)
from kvcs.moqt.session.incoming import IncomingStreams
from kvcs.moqt.session.limits import Side
from kvcs.moqt.session.outgoing import OutgoingStreams
from kvcs.moqt.session.registry import Registry
from kvcs.moqt.session.request_ids import LocalRequestIds, PeerRequestIds
from kvcs.moqt.session.setup import goaway_event
from kvcs.moqt.session.state import Input, Request, RequestKind, RequestRules, State
from kvcs.moqt.session.tokens import TokenCache, token_surplus
from kvcs.moqt.wire.buffer import violation
from kvcs.moqt.wire.filters import RangeFilter, range_count
from kvcs.moqt.wire.goaway import Goaway
from kvcs.moqt.wire.parameters import Parameters, check_scope
from kvcs.moqt.wire.properties import Properties
from kvcs.moqt.wire.request import Redirect, RequestError, RequestOk
from kvcs.moqt.wire.scope import ALLOWED, Scope
from kvcs.names import TrackNamespace

__all__ = ("Encodable", "Requests", "track_refusal")

_CANCELLED: Final = StreamResetCode.CANCELLED
_REQUEST_TIMERS: Final = (
    Timer.ANSWER,
    Timer.UPDATE_ANSWER,
    Timer.DRAIN,
    Timer.REQUEST_GOAWAY,
)
# Milliseconds that a peer with too many requests is asked to wait.
_LOAD_RETRY_MS: Final = 1000
# Namespaces that the application never sees (Section 2.4.3).
_RESERVED: Final = frozenset({b".", b".session"})
_WITH_PROPERTIES: Final = frozenset({RequestKind.TRACK_STATUS, RequestKind.SUBSCRIBE_TRACKS})
_OF_TRACKS: Final = frozenset(
    {RequestKind.SUBSCRIBE, RequestKind.PUBLISH, RequestKind.FETCH, RequestKind.TRACK_STATUS}
)


class Encodable(Protocol):
    """A message."""

    def encode(self) -> bytes:
        """Encode the whole message."""
        ...


class Requests:
    """The machinery under all requests of a session."""

    def __init__(
        self,
        context: Context,
        registry: Registry,
        tokens: TokenCache,
        aliases: Aliases,
        *,
        incoming: IncomingStreams,
        outgoing: OutgoingStreams,
    ) -> None:
        self._context = context
        self._registry = registry
        self._tokens = tokens
        self._aliases = aliases
        self._incoming = incoming
        self._outgoing = outgoing
        self._local_ids = LocalRequestIds(context.side)
        self._peer_ids = PeerRequestIds(context.side, context.limits.max_tombstones)

    # Requests of ours.

    def open(
        self,
        rules: RequestRules,
        parameters: Parameters,
        compose: Callable[[RequestId], Encodable],
        *,
        grace_ms: int = 0,
    ) -> Request:
        """Send a request on a stream of its own.

        Args:
            rules: Rules of its kind.
            parameters: Its parameters.
            compose: Makes the message.
            grace_ms: Milliseconds that the request itself grants the answer.
        """
        self.check_parameters(parameters, rules.scope)
        context = self._context
        request_id = self.take_id()
        encoded = compose(request_id).encode()
        stream_id = context.open_bidirectional()
        request = Request(rules, request_id, stream_id, is_requester=True, parameters=parameters)
        self._registry.add(request)
        context.send(stream_id, encoded)
        context.prioritize(stream_id, REQUEST_PRIORITY)
        self.await_answer(request, grace_ms=grace_ms)
        return request

    def take_id(self) -> RequestId:
        """Return a new Request ID of ours."""
        return self._local_ids.take()

    def await_answer(self, request: Request, *, grace_ms: int = 0) -> None:
        """Set the deadline for the answer to a request of ours."""
        timeout = self._context.limits.request_timeout + grace_ms / 1000
        self._context.wait(Timer.ANSWER, request.request_id, timeout)

    def check_parameters(self, parameters: Parameters, scope: Scope) -> None:
        """Check parameters that are to be sent.

        Raises:
            LocalProtocolError: One is not allowed in `scope`, is a token by alias, or has
                more Ranges than the peer takes.
        """
        surplus = parameters.types() - ALLOWED[scope]
        if surplus:
            names = ", ".join(number.name for number in sorted(surplus))
            raise LocalProtocolError(f"{names} not allowed in {scope.name}")
        if any(
            t.alias_type is not TokenAliasType.USE_VALUE for t in parameters.authorization_tokens
        ):
            raise LocalProtocolError("authorization tokens are sent by value only")
        ranges = range_count(parameters.range_filters)
        if parameters.fill is not None:
            ranges += range_count(parameters.fill.range_filters)
        peer = self._context.peer_options
        limit = peer.max_filter_ranges if peer is not None else 0
        if ranges > limit:
            raise LocalProtocolError(f"{ranges} filter ranges, the peer takes {limit}")

    def command(self, request_id: RequestId, step: Input) -> Request | None:
        """Advance a request by a command; None when it ended abruptly before."""
        request = self._registry.find(request_id)
        if request is not None:
            request.advance(step)
        return request

    # Requests of the peer.

    def admit(
        self, rules: RequestRules, stream_id: StreamId, request_id: int, parameters: Parameters
    ) -> Request:
        """Take up a request of the peer; `refuse` says whether it may be reported."""
        request = Request(
            rules,
            self._peer_ids.claim(request_id),
            stream_id,
            is_requester=False,
            parameters=self.resolve_tokens(parameters),
        )
        self._registry.add(request)
        return request

    def claim_id(self, request_id: int) -> RequestId:
        """Take up the id of an update of the peer."""
        return self._peer_ids.claim(request_id)

    def resolve_tokens(self, parameters: Parameters) -> Parameters:
        """Replace the tokens of received parameters by their values."""
        if not parameters.authorization_tokens:
            return parameters
        resolved = self._tokens.resolve(parameters.authorization_tokens)
        return replace(parameters, authorization_tokens=resolved)

    def refuse(self, request: Request, namespace: TrackNamespace) -> bool:
        """Refuse a new request where the session itself can tell; return whether it did."""
        context = self._context
        fault = self.filter_fault(request.parameters, request.filters)
        surplus = self.token_surplus(request.parameters)
        if context.goaway_sent:
            self.send_error(request, RequestErrorCode.GOING_AWAY, "this session is going away")
        elif self._registry.peer_requests > context.limits.max_requests:
            reason = f"more than {context.limits.max_requests} open requests"
            code = RequestErrorCode.EXCESSIVE_LOAD
            self.send_error(request, code, reason, retry_interval_ms=_LOAD_RETRY_MS)
        elif surplus is not None:
            self.send_error(request, RequestErrorCode.EXCESSIVE_LOAD, surplus)
        elif namespace.fields[:1] and namespace.fields[0] in _RESERVED:
            self.send_error(request, RequestErrorCode.DOES_NOT_EXIST, "reserved namespace")
        elif fault is not None:
            self.send_error(request, RequestErrorCode.INVALID_FILTER, fault)
        if request.is_over:
            context.emit(Unheard())
        return request.is_over

    def token_surplus(self, parameters: Parameters) -> str | None:
        """Return why the tokens of a message are too many or too large, or None."""
        return token_surplus(parameters.authorization_tokens, self._context.limits)

    def filter_fault(self, parameters: Parameters, filters: tuple[RangeFilter, ...]) -> str | None:
        """Return why the filters in force after a message are refused, or None."""
        count = range_count(filters)
        limit = self._context.config.options.max_filter_ranges
        if count > limit:
            return f"{count} filter ranges, at most {limit}"
        return parameters.filter_fault

    def accept(
        self, request_id: RequestId, parameters: Parameters, properties: Properties
    ) -> Request | None:
        """Answer REQUEST_OK."""
        request = self._registry.find(request_id)
        if request is None:
            return None
        scope = request.rules.ok_scope
        if scope is None:
            raise LocalProtocolError(f"{request.kind.name} is not accepted by REQUEST_OK")
        self.check_parameters(parameters, scope)
        if properties and request.kind is not RequestKind.TRACK_STATUS:
            raise LocalProtocolError("only TRACK_STATUS is answered with Track Properties")
        message = RequestOk(parameters=parameters, properties=properties).encode()
        request.advance(Input.SEND_OK)
        self._context.send(request.stream_id, message)
        if request.is_over:
            self.end(request)
        return request

    def reject(
        self,
        request_id: RequestId,
        code: int,
        reason: str,
        *,
        retry_interval_ms: int | None,
        redirect: Redirect | None,
    ) -> None:
        """Answer REQUEST_ERROR."""
        request = self._registry.find(request_id)
        if request is not None:
            self.send_error(
                request, code, reason, retry_interval_ms=retry_interval_ms, redirect=redirect
            )

    def send_error(
        self,
        request: Request,
        code: int,
        reason: str,
        *,
        retry_interval_ms: int | None = None,
        redirect: Redirect | None = None,
    ) -> None:
        """Answer REQUEST_ERROR and end the request."""
        if (redirect is not None) != (code == RequestErrorCode.REDIRECT):
            raise LocalProtocolError("a Redirect goes with the code REDIRECT, and only with it")
        # On the wire 0 means never, so every interval is one more than it says.
        interval = 0 if retry_interval_ms is None else retry_interval_ms + 1
        message = RequestError(code=code, retry_interval=interval, reason=reason, redirect=redirect)
        encoded = message.encode()
        request.advance(Input.SEND_ERROR)
        self._context.send(request.stream_id, encoded, fin=True)
        request.can_send = False
        self.end(request)

    # Answers of the peer.

    def receive_ok(self, request: Request, message: RequestOk) -> None:
        """Take the REQUEST_OK to a request of ours."""
        scope = request.rules.ok_scope
        if scope is None:
            raise violation(f"REQUEST_OK to {request.kind.name} {request.request_id}")
        check_scope(message.parameters, scope)
        if message.properties and request.kind not in _WITH_PROPERTIES:
            raise violation(f"Track Properties in the REQUEST_OK to {request.kind.name}")
        request.advance(Input.RECEIVE_OK)
        self._context.deadlines.clear(Timer.ANSWER, request.request_id)
        refusal = track_refusal(message.properties) if request.kind in _OF_TRACKS else None
        self._context.emit(
            RequestAccepted(request.request_id, message.parameters, message.properties)
            if refusal is None
            else RequestRejected(request.request_id, *refusal)
        )
        if request.is_over:
            self.end(request)

    def receive_error(self, request: Request, message: RequestError) -> None:
        """Take the REQUEST_ERROR to a request of ours."""
        self._check_redirect(request, message.redirect)
        request.advance(Input.RECEIVE_ERROR)
        request.awaits_subscriber = False
        interval = message.retry_interval
        self._context.emit(
            RequestRejected(
                request.request_id,
                message.code,
                message.reason,
                retry_after=(interval - 1) / 1000 if interval else None,
                redirect=message.redirect,
            )
        )
        self.end(request)

    def receive_goaway(self, request: Request, message: Goaway) -> None:
        """Take a GOAWAY for one request."""
        if request.went_away:
            raise violation(f"a second GOAWAY on stream {request.stream_id}")
        request.advance(Input.RECEIVE_GOAWAY)
        request.went_away = True
        event = goaway_event(message, self._context.side, request.request_id)
        if not request.is_over:
            self._context.emit(event)

    def send_goaway(self, request_id: RequestId, uri: str, timeout: float) -> None:
        """Send GOAWAY for one request."""
        context = self._context
        request = self._registry.find(request_id)
        if request is None:
            return
        message = Goaway.of(uri, timeout, is_client=context.side is Side.CLIENT)
        if request.sent_away:
            raise LocalProtocolError(f"a second GOAWAY for request {request_id}")
        if not request.can_send:
            raise LocalProtocolError(f"our direction of request {request_id} has ended")
        request.advance(Input.SEND_GOAWAY)
        request.sent_away = True
        context.send(request.stream_id, message.encode())
        context.wait(Timer.REQUEST_GOAWAY, request_id, timeout or context.limits.goaway_timeout)

    # Ends.

    def cancel(self, request_id: RequestId, code: int, *, is_requester: bool) -> None:
        """End a request abruptly; one that is over already is left alone."""
        request = self._registry.find(request_id, or_ended=True)
        if request is None:
            return
        if request.is_requester is not is_requester:
            raise LocalProtocolError("cancel is for requests of ours, revoke for the peer's")
        request.advance(Input.CANCEL)
        self.end(request, code)

    def give_up(self, request: Request, code: int, reason: str) -> None:
        """End a request of ours that cannot succeed, as if it were rejected."""
        request.advance(Input.CANCEL)
        self._context.emit(RequestRejected(request.request_id, code, reason))
        self.end(request)

    def abandon(self, request: Request, code: int = _CANCELLED) -> None:
        """End a request abruptly and tell the application, which did not ask for it."""
        request.advance(Input.CANCEL)
        self.report_cancelled(request, code)
        self.end(request, code)

    def receive_cancel(self, request: Request, code: int) -> None:
        """Take the peer's abrupt end of one direction or both."""
        was_over = request.is_over
        request.advance(Input.RECEIVE_CANCEL)
        if request.is_over and not was_over:
            self.report_cancelled(request, code)
            self.end(request, code)
        elif was_over:
            self.report_finished(request, in_order=False)
        self._registry.release_stream(request)

    def receive_fin(self, request: Request) -> None:
        """Take the end of the peer's direction."""
        request.can_receive = False
        was_over = request.is_over
        is_unanswered = request.is_requester and request.awaits_answer
        request.advance(Input.RECEIVE_FIN)
        if request.is_over and not was_over:
            if is_unanswered:
                reason = "the stream ended without an answer"
                self._context.emit(
                    RequestRejected(request.request_id, RequestErrorCode.INTERNAL_ERROR, reason)
                )
            else:
                self.report_cancelled(request, StreamResetCode.INTERNAL_ERROR)
            self.end(request)
        elif was_over:
            self.report_finished(request, in_order=True)
        self._registry.release_stream(request)

    def report_cancelled(self, request: Request, code: int) -> None:
        """Tell the application that a request has ended abruptly."""
        prefix = request.namespace
        if request.is_requester and prefix is not None:
            for namespace in sorted(request.namespaces, key=lambda known: known.fields):
                suffix = namespace.suffix_of(prefix)
                self._context.emit(NamespaceDoneReceived(request.request_id, suffix))
        self._context.emit(RequestCancelled(request.request_id, code))

    def report_finished(self, request: Request, *, in_order: bool) -> None:
        """Tell the publisher of a finished request that the subscriber has let go of it."""
        if request.awaits_subscriber:
            request.awaits_subscriber = False
            self._context.emit(SubscriberFinished(request.request_id, in_order))

    def finish_sending(self, request: Request) -> None:
        """End our direction in order."""
        request.can_send = False
        self._context.send(request.stream_id, b"", fin=True)

    def end(self, request: Request, code: int = _CANCELLED) -> None:
        """Close what is open of a request that is over, and forget it."""
        context = self._context
        is_abrupt = request.state is State.CANCELLED
        if request.can_send:
            request.can_send = False
            if is_abrupt:
                context.reset(request.stream_id, code)
            else:
                context.send(request.stream_id, b"", fin=True)
        if request.can_receive and is_abrupt:
            context.stop(request.stream_id, code)
        for timer in _REQUEST_TIMERS:
            context.deadlines.clear(timer, request.request_id)
        self._aliases.release(request)
        self._incoming.stop_all(request, code)
        self._outgoing.reset_all(request, code)
        self._registry.retire(request)

    def expire(self, request_id: RequestId) -> None:
        """Give up a request of ours that was not answered, or got no data, in time."""
        request = self._registry.by_id[request_id]
        if request.awaits_answer:
            self.give_up(request, RequestErrorCode.TIMEOUT, "no answer in time")
        else:
            self.abandon(request)

    def expire_goaway(self, request_id: RequestId) -> None:
        """End a request that did not move away in time."""
        self.abandon(self._registry.by_id[request_id], StreamResetCode.GOING_AWAY)

    def _check_redirect(self, request: Request, redirect: Redirect | None) -> None:
        if redirect is None:
            return
        if redirect.uri and self._context.side is Side.SERVER:
            raise violation("Redirect of a client with a URI")
        if redirect.track.name and request.kind not in _OF_TRACKS:
            raise violation(f"Redirect of {request.kind.name} with a Track Name")


def track_refusal(properties: Properties) -> tuple[RequestErrorCode, str] | None:
    """Return why a Track with these properties is not taken (Sections 3.7 and 12.1), or None."""
    unknown = properties.unknown_mandatory()
    if unknown:
        reason = f"Mandatory Track Property {unknown[0]:#x} is unknown here"
        return RequestErrorCode.UNSUPPORTED_EXTENSION, reason
    if properties.fault is not None:
        return RequestErrorCode.MALFORMED_TRACK, properties.fault
    return None
