"""FETCH: one range of a Track on one stream.

Answer and data come on different streams, so either may be first; a FETCH is over when
it was answered and its data stream has ended. Who asked ends its direction of the request
stream only then, which so tells the publisher that everything has arrived.

Source: MOQT draft 22, Sections 3.2, 9.11 and 9.12.
"""

from typing import Final

from kvcs.errors import LocalProtocolError
from kvcs.moqt.codepoints import LocationFilterType
from kvcs.moqt.session.actions import RequestId, StreamId
from kvcs.moqt.session.context import Context
from kvcs.moqt.session.deadlines import Timer
from kvcs.moqt.session.events import FetchAccepted, FetchReceived
from kvcs.moqt.session.registry import Registry
from kvcs.moqt.session.requests import Requests, track_refusal
from kvcs.moqt.session.state import Input, Request, RequestKind, RequestRules, State, Table
from kvcs.moqt.wire.buffer import violation
from kvcs.moqt.wire.fetch import Fetch, FetchOk
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.properties import Properties
from kvcs.moqt.wire.scope import Scope
from kvcs.names import FullTrackName, Location

__all__ = ("RULES", "Fetches")

# Section 3.2.4, the side that sent FETCH. Answers to updates may cross the end of the data.
_SUBSCRIBER: Final[Table] = {
    (State.PENDING, Input.SEND_UPDATE): State.PENDING,
    (State.PENDING, Input.RECEIVE_OK): State.ESTABLISHED,
    (State.PENDING, Input.RECEIVE_ERROR): State.TERMINATED,
    (State.PENDING, Input.RECEIVE_GOAWAY): State.PENDING,
    (State.PENDING, Input.RECEIVE_FIN): State.CANCELLED,
    (State.PENDING, Input.DATA_COMPLETE): State.PENDING,
    (State.ESTABLISHED, Input.SEND_UPDATE): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_UPDATE_OK): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_UPDATE_ERROR): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_GOAWAY): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_FIN): State.ESTABLISHED,
    (State.ESTABLISHED, Input.DATA_COMPLETE): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_UPDATE_OK): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_UPDATE_ERROR): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_GOAWAY): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_FIN): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_CANCEL): State.TERMINATED,
    (State.TERMINATED, Input.CANCEL): State.TERMINATED,
}

# Section 3.2.4, the side that received FETCH.
_PUBLISHER: Final[Table] = {
    (State.PENDING, Input.SEND_OK): State.ESTABLISHED,
    (State.PENDING, Input.SEND_ERROR): State.TERMINATED,
    (State.PENDING, Input.SEND_DATA): State.PENDING,
    (State.PENDING, Input.RECEIVE_UPDATE): State.PENDING,
    (State.PENDING, Input.RECEIVE_GOAWAY): State.PENDING,
    (State.PENDING, Input.RECEIVE_FIN): State.PENDING,
    (State.PENDING, Input.DATA_COMPLETE): State.PENDING,
    (State.ESTABLISHED, Input.SEND_UPDATE_OK): State.ESTABLISHED,
    (State.ESTABLISHED, Input.SEND_UPDATE_ERROR): State.TERMINATED,
    (State.ESTABLISHED, Input.SEND_DATA): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_UPDATE): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_GOAWAY): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_FIN): State.ESTABLISHED,
    (State.ESTABLISHED, Input.DATA_COMPLETE): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_UPDATE): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_GOAWAY): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_FIN): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_CANCEL): State.TERMINATED,
    (State.TERMINATED, Input.CANCEL): State.TERMINATED,
}

RULES: Final = RequestRules(
    kind=RequestKind.FETCH,
    requester=_SUBSCRIBER,
    responder=_PUBLISHER,
    scope=Scope.FETCH,
    ok_scope=None,
    update_scope=Scope.UPDATE_FETCH,
)

# Location Filters whose start does not depend on the Largest Object.
_ABSOLUTE: Final = frozenset(
    {
        LocationFilterType.ABSOLUTE_START,
        LocationFilterType.ABSOLUTE_START_GROUP_END,
        LocationFilterType.ABSOLUTE_RANGE,
    }
)


class Fetches:
    """FETCH requests of a session, in both roles."""

    def __init__(self, context: Context, registry: Registry, requests: Requests) -> None:
        self._context = context
        self._registry = registry
        self._requests = requests

    def fetch(self, track: FullTrackName, parameters: Parameters) -> RequestId:
        """Send FETCH."""
        request = self._requests.open(
            RULES,
            parameters,
            lambda request_id: Fetch(request_id=request_id, track=track, parameters=parameters),
            grace_ms=parameters.fill_timeout_ms or 0,
        )
        request.track = track
        self._registry.add_trigger(request, request.request_id, None)
        return request.request_id

    def receive(self, stream_id: StreamId, message: Fetch) -> None:
        """Take a FETCH."""
        request = self._requests.admit(RULES, stream_id, message.request_id, message.parameters)
        request.track = message.track
        if not self._requests.refuse(request, message.track.namespace):
            self._registry.add_trigger(request, request.request_id, None)
            self._context.emit(FetchReceived(request.request_id, message.track, request.parameters))

    def accept(
        self,
        request_id: RequestId,
        *,
        end_of_track: bool,
        end_location: Location,
        properties: Properties,
    ) -> None:
        """Answer FETCH_OK."""
        request = self._registry.find(request_id)
        if request is None:
            return
        if request.rules is not RULES:
            raise LocalProtocolError(f"FETCH_OK to {request.kind.name} {request_id}")
        message = FetchOk(
            end_of_track=end_of_track, end_location=end_location, properties=properties
        ).encode()
        request.advance(Input.SEND_OK)
        self._context.send(request.stream_id, message)
        self._end_if_complete(request)

    def receive_ok(self, request: Request, message: FetchOk) -> None:
        """Take a FETCH_OK."""
        if request.rules is not RULES:
            raise violation(f"FETCH_OK to {request.kind.name} {request.request_id}")
        start = _start(request.parameters)
        if message.end_location < start:
            raise violation(f"FETCH_OK ends at {message.end_location}, before {start}")
        request.advance(Input.RECEIVE_OK)
        self._context.deadlines.clear(Timer.ANSWER, request.request_id)
        request.properties = message.properties
        refusal = track_refusal(message.properties)
        if refusal is not None:
            self._requests.give_up(request, *refusal)
            return
        self._context.emit(
            FetchAccepted(
                request.request_id,
                message.end_of_track,
                message.end_location,
                message.properties,
            )
        )
        if not request.streams_seen:
            # A stream that is reset before its header arrives never shows up.
            self._requests.await_answer(request, grace_ms=request.parameters.fill_timeout_ms or 0)
        self._end_if_complete(request)

    def data_ended(self, request: Request) -> None:
        """Note the end of the data stream."""
        if request.is_over:
            return
        request.data_complete = True
        if request.is_requester and request.state is State.PENDING:
            self._requests.await_answer(request)
        self._end_if_complete(request)

    def _end_if_complete(self, request: Request) -> None:
        if request.data_complete:
            request.advance(Input.DATA_COMPLETE)
            if request.is_over:
                request.awaits_subscriber = not request.is_requester
                self._requests.end(request)
                if not request.can_receive:
                    self._requests.report_finished(request, in_order=True)


def _start(parameters: Parameters) -> Location:
    asked = parameters.location_filter
    if asked is None or asked.kind not in _ABSOLUTE:
        return Location(0, 0)
    return Location(asked.start_group, asked.start_object)
