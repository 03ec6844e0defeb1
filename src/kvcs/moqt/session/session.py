"""The MOQT session: bytes and time in, actions and events out.

`Session` owns no socket and no clock. Its owner hands it what arrives (`receive_*`), gives
commands, and after each call takes the actions, which the transport must do, and the
events, which the application should know; `advance` is due at `next_deadline`.

The session decodes, orders, counts and reports. It resolves no filters and stores no
Objects: what a subscription delivers is decided by whoever owns the Objects. What a peer
does wrong never raises here: it ends the session with one `CloseSession` and one
`SessionClosed`. What the caller does wrong raises LocalProtocolError. A command for a
request or stream that the peer has ended abruptly, or in a session that is over, is
ignored, since the event that says so may not have been read yet; only opening a request
or a stream raises.

This file is the face; `parts` wires what is behind it: `setup` (control streams),
`requests` and `updates` (what all requests share), one file per kind of request,
`incoming` and `outgoing` (data streams; `sending` is the face of these), `expiry` (deadlines).
`state` explains the tables.

Source: MOQT draft 22.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kvcs.errors import (
    ConnectionLost,
    KvcsError,
    LocalProtocolError,
    RemoteProtocolError,
    StreamResetCode,
    TransportError,
)
from kvcs.moqt.codepoints import TokenAliasType
from kvcs.moqt.session.actions import Action, CloseSession, RequestId, StreamId
from kvcs.moqt.session.context import Context
from kvcs.moqt.session.events import Event, SessionClosed
from kvcs.moqt.session.expiry import Expiry
from kvcs.moqt.session.limits import SessionConfig, Side
from kvcs.moqt.session.partial import PartialBudget
from kvcs.moqt.session.parts import Parts
from kvcs.moqt.session.sending import SendingSession
from kvcs.moqt.session.state import State
from kvcs.moqt.wire.parameters import NO_PARAMETERS, Parameters
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.moqt.wire.request import Redirect
from kvcs.moqt.wire.setup import SetupOptions
from kvcs.moqt.wire.token import Token
from kvcs.names import FullTrackName, Location, TrackNamespace

__all__ = ("Session",)


class Session(SendingSession):
    """One MOQT session over one QUIC connection.

    Args:
        side: Which end of the connection this is.
        config: What SETUP says, limits and deadlines.
    """

    def __init__(self, side: Side, config: SessionConfig) -> None:
        context = Context(side, config)
        parts = Parts(context)
        super().__init__(context, parts.outgoing)
        self._tokens: tuple[Token, ...] = ()
        self._registry = parts.registry
        self._control = parts.control
        self._arrivals = parts.arrivals
        self._requests = parts.requests
        self._updates = parts.updates
        self._subscriptions = parts.subscriptions
        self._publications = parts.publications
        self._fetches = parts.fetches
        self._track_statuses = parts.track_statuses
        self._namespaces = parts.namespaces
        self._incoming = parts.incoming
        self._expiry = Expiry(context, parts)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._control.is_complete else "setting up"
        return f"Session({self._context.side.name.lower()}, {state}, {self._registry!r})"

    # Inputs.

    def start(self, *, now: float) -> None:
        """Open the control stream and send SETUP; requests may follow at once."""
        self._living(now)
        self._control.start()

    def receive_stream(
        self,
        stream_id: int,
        data: bytes | memoryview,
        fin: bool,  # noqa: FBT001 - as QUIC delivers it
        *,
        now: float,
    ) -> None:
        """Take bytes of a stream; `data` may be kept and must not change afterwards."""
        if self._closed:
            return
        self._context.now = now
        try:
            self._arrivals.receive(StreamId(stream_id), data, fin=fin)
        except RemoteProtocolError as error:
            self._fail(error)

    def receive_reset(self, stream_id: int, code: int, *, now: float) -> None:
        """Take RESET_STREAM."""
        self._receive(now, partial(self._arrivals.receive_reset, StreamId(stream_id), code))

    def receive_stop_sending(self, stream_id: int, code: int, *, now: float) -> None:
        """Take STOP_SENDING."""
        self._receive(now, partial(self._arrivals.receive_stop, StreamId(stream_id), code))

    def receive_datagram(self, data: bytes | memoryview, *, now: float) -> None:
        """Take a datagram."""
        self._receive(now, partial(self._arrivals.receive_datagram, data))

    def advance(self, *, now: float) -> None:
        """Let time pass: apply all deadlines up to `now`."""
        self._receive(now, self._expiry.apply)

    def connection_lost(self, error: TransportError, *, now: float) -> None:
        """Take the end of the connection; what arrived before stays to be read."""
        if not self._closed:
            self._context.now = now
            self._context.actions.clear()
            self._end(error)

    # Outputs.

    def take_actions(self) -> list[Action]:
        """Return the pending actions, to be done in order."""
        actions, self._context.actions = self._context.actions, []
        return actions

    @property
    def has_events(self) -> bool:
        """Whether events are pending."""
        return bool(self._context.events)

    def take_events(self) -> list[Event]:
        """Return the pending events, in the order in which they happened."""
        events, self._context.events = self._context.events, []
        return events

    def next_deadline(self) -> float | None:
        """Return when `advance` is due, in monotonic seconds."""
        return self._context.deadlines.next()

    @property
    def is_closed(self) -> bool:
        """Whether the session is over."""
        return self._closed

    @property
    def peer_options(self) -> SetupOptions | None:
        """The peer's SETUP, once it arrived."""
        return self._context.peer_options

    @property
    def side(self) -> Side:
        """Which end of the connection this is."""
        return self._context.side

    @property
    def is_idle(self) -> bool:
        """Whether no request is open, in either direction."""
        return not self._registry.by_id

    @property
    def is_quiet(self) -> bool:
        """Whether no request about a Track is open, in either direction."""
        return self._registry.is_quiet

    @property
    def open_request_streams(self) -> int:
        """How many streams of requests of ours are open, also when the request is over."""
        return self._registry.own_streams

    @property
    def is_leaving(self) -> bool:
        """Whether we have asked the peer to leave."""
        return self._context.goaway_sent

    def is_active(self, request_id: RequestId) -> bool:
        """Tell whether a request, ours or the peer's, is not over."""
        return not self._closed and request_id in self._registry.by_id

    def is_unanswered(self, request_id: RequestId) -> bool:
        """Tell whether a request, ours or the peer's, is open and has no answer yet."""
        return self.is_active(request_id) and self._registry.by_id[request_id].awaits_answer

    def is_announced(self, request_id: RequestId, suffix: TrackNamespace) -> bool:
        """Tell whether a namespace was announced on a request and not withdrawn."""
        return not self._closed and self._namespaces.is_announced(request_id, suffix)

    def open_streams(self, request_id: RequestId) -> frozenset[StreamId]:
        """Return the open data streams of a request, in either direction."""
        request = self._registry.by_id.get(request_id)
        return frozenset() if request is None else frozenset(request.incoming | request.outgoing)

    def streams_seen(self, request_id: RequestId) -> int:
        """Return how many data streams of a request have arrived; 0 when it is over."""
        request = self._registry.by_id.get(request_id)
        return 0 if request is None else request.streams_seen

    def received_at(self, stream_id: StreamId | None = None) -> float:
        """Return when bytes of an open data stream, or of any, came last; 0 for never."""
        incoming = self._incoming
        return incoming.last_received if stream_id is None else incoming.received_at(stream_id)

    # The session as a whole.

    def goaway(
        self,
        uri: str = "",
        timeout: float = 0.0,
        *,
        request_id: RequestId | None = None,
        now: float,
    ) -> None:
        """Ask the peer to leave, or to move one request.

        From a session that leaves no new requests are taken.

        Args:
            uri: Where to go; empty is the same URI, and all that a client may say.
            timeout: Seconds after which the session closes if requests are open, or the
                request is reset; 0 leaves it to `SessionLimits.goaway_timeout`.
            request_id: The one request that is to move, of either side; None for all.
            now: Monotonic seconds.
        """
        if not self._command(now):
            return
        if request_id is None:
            self._control.send_goaway(uri, timeout)
        else:
            self._requests.send_goaway(request_id, uri, timeout)

    def close(self, code: int = 0, reason: str = "", *, now: float) -> None:
        """Close the session after what is pending; nothing happens when it is closed."""
        if not self._closed:
            self._context.now = now
            self._context.actions.append(CloseSession(code, reason))
            self._end(ConnectionLost(code, reason))

    # Requests of ours.

    def authorize(self, tokens: tuple[Token, ...], *, now: float) -> None:
        """Present tokens from now on, in place of those of the SETUP.

        They go with every new request, beside those that it brings, and by REQUEST_UPDATE with
        each of ours that runs; one with more unanswered updates than the peer takes is left as
        it is.

        Args:
            tokens: By value; at least one.
            now: Monotonic seconds.

        Raises:
            LocalProtocolError: A token is by alias, or there is none.
        """
        if not tokens or any(t.alias_type is not TokenAliasType.USE_VALUE for t in tokens):
            raise LocalProtocolError("authorization tokens are sent by value only, at least one")
        if self._command(now):
            self._tokens = tokens
            self._updates.present(tokens)

    def subscribe(
        self, track: FullTrackName, parameters: Parameters = NO_PARAMETERS, *, now: float
    ) -> RequestId:
        """Send SUBSCRIBE; answered by SubscribeAccepted or RequestRejected."""
        self._request(now)
        return self._subscriptions.subscribe(track, self._presented(parameters))

    def fetch(
        self, track: FullTrackName, parameters: Parameters = NO_PARAMETERS, *, now: float
    ) -> RequestId:
        """Send FETCH; answered by FetchAccepted or RequestRejected, perhaps after the data."""
        self._request(now)
        return self._fetches.fetch(track, self._presented(parameters))

    def track_status(
        self, track: FullTrackName, parameters: Parameters = NO_PARAMETERS, *, now: float
    ) -> RequestId:
        """Send TRACK_STATUS; answered by RequestAccepted or RequestRejected."""
        self._request(now)
        return self._track_statuses.ask(track, self._presented(parameters))

    def publish(
        self,
        track: FullTrackName,
        parameters: Parameters = NO_PARAMETERS,
        *,
        properties: Properties = EMPTY_PROPERTIES,
        now: float,
    ) -> RequestId:
        """Send PUBLISH; data may follow at once unless FORWARD is 0."""
        self._request(now)
        return self._publications.publish(track, self._presented(parameters), properties)

    def publish_namespace(
        self, namespace: TrackNamespace, parameters: Parameters = NO_PARAMETERS, *, now: float
    ) -> RequestId:
        """Send PUBLISH_NAMESPACE; `cancel` withdraws it."""
        self._request(now)
        return self._namespaces.publish(namespace, self._presented(parameters))

    def subscribe_namespace(
        self, prefix: TrackNamespace, parameters: Parameters = NO_PARAMETERS, *, now: float
    ) -> RequestId:
        """Send SUBSCRIBE_NAMESPACE; NamespaceReceived follows for each namespace."""
        self._request(now)
        return self._namespaces.subscribe(prefix, self._presented(parameters))

    def subscribe_tracks(
        self, prefix: TrackNamespace, parameters: Parameters = NO_PARAMETERS, *, now: float
    ) -> RequestId:
        """Send SUBSCRIBE_TRACKS; PublishReceived follows for each Track."""
        self._request(now)
        return self._namespaces.subscribe_tracks(prefix, self._presented(parameters))

    def update(self, request_id: RequestId, parameters: Parameters, *, now: float) -> RequestId:
        """Send REQUEST_UPDATE for a request; return the id of the update."""
        self._request(now)
        return self._updates.send(request_id, parameters)

    def cancel(
        self, request_id: RequestId, *, code: int = StreamResetCode.CANCELLED, now: float
    ) -> None:
        """End a request of ours abruptly, with all its data streams."""
        if self._command(now):
            self._requests.cancel(request_id, code, is_requester=True)

    def take_payloads(self, request_id: RequestId, least_bytes: int = 1) -> None:
        """Take payloads of a subscription or FETCH while they arrive, not when they are whole.

        Holds for data streams that open from now on. An Object then comes as `ObjectBegun` and
        `ObjectPayload` events; when its stream is reset or refused first, that ends it.

        Args:
            request_id: The request; one that is over is ignored.
            least_bytes: Smaller payloads come whole (`ObjectReceived`), empty ones always.
        """
        request = self._registry.by_id.get(request_id)
        if request is not None:
            request.taken_from = max(1, least_bytes)

    def share_partials(self, budget: PartialBudget, on_given_up: Callable[[], None]) -> None:
        """Bound what is not whole together with other sessions, until this one is over.

        Args:
            budget: The bound; streams of this session may be ended for those of another one.
            on_given_up: Called when that has happened, and there is something to send.
        """

        def give_up(size_bytes: int, now: float) -> None:
            self._context.now = now
            self._arrivals.give_up(size_bytes)
            on_given_up()

        self._context.partial.join(budget, give_up)

    def stop_stream(self, stream_id: StreamId, code: int, *, now: float) -> None:
        """Refuse the rest of one data stream of the peer; no event follows for it."""
        if self._command(now):
            self._incoming.stop(stream_id, code)

    # Answers to requests of the peer.

    def accept_subscribe(
        self,
        request_id: RequestId,
        parameters: Parameters = NO_PARAMETERS,
        *,
        properties: Properties = EMPTY_PROPERTIES,
        now: float,
    ) -> None:
        """Answer SUBSCRIBE_OK; streams may be opened from now on."""
        if self._command(now):
            self._subscriptions.accept(request_id, parameters, properties)

    def accept_fetch(
        self,
        request_id: RequestId,
        *,
        end_of_track: bool,
        end_location: Location,
        properties: Properties = EMPTY_PROPERTIES,
        now: float,
    ) -> None:
        """Answer FETCH_OK, before or after the data; `end_location` is inclusive."""
        if self._command(now):
            self._fetches.accept(
                request_id,
                end_of_track=end_of_track,
                end_location=end_location,
                properties=properties,
            )

    def accept(
        self,
        request_id: RequestId,
        parameters: Parameters = NO_PARAMETERS,
        *,
        properties: Properties = EMPTY_PROPERTIES,
        now: float,
    ) -> None:
        """Answer REQUEST_OK to PUBLISH, TRACK_STATUS, *_NAMESPACE or SUBSCRIBE_TRACKS."""
        if self._command(now):
            request = self._requests.accept(request_id, parameters, properties)
            if request is not None and request.state is State.DRAINING:
                self._subscriptions.drain(request)

    def reject(
        self,
        request_id: RequestId,
        code: int,
        *,
        reason: str = "",
        retry_interval_ms: int | None = None,
        redirect: Redirect | None = None,
        now: float,
    ) -> None:
        """Answer REQUEST_ERROR.

        Args:
            request_id: The request.
            code: Code of Section 12.3.
            reason: Text for people, at most 1,024 octets.
            retry_interval_ms: Milliseconds to wait before trying again; None is never.
            redirect: Where to ask instead, with code REDIRECT.
            now: Monotonic seconds.
        """
        if self._command(now):
            self._requests.reject(
                request_id, code, reason, retry_interval_ms=retry_interval_ms, redirect=redirect
            )

    def accept_update(
        self, request_id: RequestId, parameters: Parameters = NO_PARAMETERS, *, now: float
    ) -> None:
        """Answer REQUEST_OK to the oldest unanswered update of a request."""
        if self._command(now):
            self._updates.accept(request_id, parameters)

    def reject_update(
        self, request_id: RequestId, code: int, reason: str = "", *, now: float
    ) -> None:
        """Answer REQUEST_ERROR to the oldest unanswered update.

        The request ends with it, a subscription with PUBLISH_DONE UPDATE_FAILED; only a
        subscriber that refuses the update of a PUBLISH leaves the end to the publisher.
        """
        if self._command(now):
            self._updates.reject(request_id, code, reason)

    def revoke(
        self, request_id: RequestId, *, code: int = StreamResetCode.CANCELLED, now: float
    ) -> None:
        """End a request of the peer abruptly, with all its data streams."""
        if self._command(now):
            self._requests.cancel(request_id, code, is_requester=False)

    def announce(self, request_id: RequestId, suffix: TrackNamespace, *, now: float) -> None:
        """Send NAMESPACE on a SUBSCRIBE_NAMESPACE."""
        if self._command(now):
            self._namespaces.announce(request_id, suffix)

    def withdraw(self, request_id: RequestId, suffix: TrackNamespace, *, now: float) -> None:
        """Send NAMESPACE_DONE on a SUBSCRIBE_NAMESPACE."""
        if self._command(now):
            self._namespaces.withdraw(request_id, suffix)

    def skip_publish(
        self, request_id: RequestId, suffix: TrackNamespace, name: bytes, *, now: float
    ) -> None:
        """Send PUBLISH_SKIPPED on a SUBSCRIBE_TRACKS."""
        if self._command(now):
            self._namespaces.skip(request_id, suffix, name)

    def notify_state(self, request_id: RequestId, parameters: Parameters, *, now: float) -> None:
        """Send PUBLISH_STATE_NOTIFY on a subscription that we publish."""
        if self._command(now):
            self._subscriptions.notify(request_id, parameters)

    def publish_done(
        self, request_id: RequestId, code: int, *, reason: str = "", now: float
    ) -> None:
        """End a subscription that we publish; all its streams must have ended before.

        Args:
            request_id: The subscription.
            code: Code of Section 12.4.
            reason: Text for people, at most 1,024 octets.
            now: Monotonic seconds.
        """
        if self._command(now):
            self._subscriptions.finish(request_id, code, reason)

    # The inside.

    def _presented(self, parameters: Parameters) -> Parameters:
        """Return parameters of a request with the tokens that are presented."""
        if not self._tokens:
            return parameters
        tokens = dict.fromkeys((*parameters.authorization_tokens, *self._tokens))
        return replace(parameters, authorization_tokens=tuple(tokens))

    def _request(self, now: float) -> None:
        self._living(now)
        if not self._control.is_started:
            raise LocalProtocolError("a request before `start`")

    def _receive(self, now: float, step: Callable[[], None]) -> None:
        """Take one input, and catch a fault of the peer in it."""
        if self._closed:
            return
        self._context.now = now
        try:
            step()
        except RemoteProtocolError as error:
            self._fail(error)

    def _fail(self, error: RemoteProtocolError) -> None:
        """End the session of a peer that broke a rule; nothing else that is pending is done."""
        self._context.actions = [CloseSession(error.code, error.reason)]
        self._context.events.clear()
        self._end(error)

    def _end(self, error: KvcsError) -> None:
        self._closed = True
        self._context.deadlines.clear_all()
        self._context.partial.leave()
        self._context.emit(SessionClosed(error))
