"""TRACK_STATUS: one question, one answer, no state.

Source: MOQT draft 22, Section 9.13.
"""

from typing import Final

from kvcs.moqt.session.actions import RequestId, StreamId
from kvcs.moqt.session.context import Context
from kvcs.moqt.session.events import TrackStatusReceived
from kvcs.moqt.session.requests import Requests
from kvcs.moqt.session.state import Input, RequestKind, RequestRules, State, Table
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.scope import Scope
from kvcs.moqt.wire.track_status import TrackStatus
from kvcs.names import FullTrackName

__all__ = ("RULES", "TrackStatuses")

# Section 9.13, the side that asked. It ends its direction with the question.
_REQUESTER: Final[Table] = {
    (State.PENDING, Input.RECEIVE_OK): State.TERMINATED,
    (State.PENDING, Input.RECEIVE_ERROR): State.TERMINATED,
    (State.PENDING, Input.RECEIVE_GOAWAY): State.PENDING,
    (State.PENDING, Input.RECEIVE_FIN): State.CANCELLED,
    (State.TERMINATED, Input.RECEIVE_FIN): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_CANCEL): State.TERMINATED,
    (State.TERMINATED, Input.CANCEL): State.TERMINATED,
}

# Section 9.13, the side that answers. An update is a violation at any time.
_RESPONDER: Final[Table] = {
    (State.PENDING, Input.SEND_OK): State.TERMINATED,
    (State.PENDING, Input.SEND_ERROR): State.TERMINATED,
    (State.PENDING, Input.RECEIVE_GOAWAY): State.PENDING,
    (State.PENDING, Input.RECEIVE_FIN): State.PENDING,
    (State.TERMINATED, Input.RECEIVE_GOAWAY): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_FIN): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_CANCEL): State.TERMINATED,
    (State.TERMINATED, Input.CANCEL): State.TERMINATED,
}

RULES: Final = RequestRules(
    kind=RequestKind.TRACK_STATUS,
    requester=_REQUESTER,
    responder=_RESPONDER,
    scope=Scope.TRACK_STATUS,
    ok_scope=Scope.TRACK_STATUS_OK,
    update_scope=Scope.TRACK_STATUS,
)


class TrackStatuses:
    """TRACK_STATUS requests of a session, in both roles."""

    def __init__(self, context: Context, requests: Requests) -> None:
        self._context = context
        self._requests = requests

    def ask(self, track: FullTrackName, parameters: Parameters) -> RequestId:
        """Send TRACK_STATUS."""
        request = self._requests.open(
            RULES,
            parameters,
            lambda request_id: TrackStatus(
                request_id=request_id, track=track, parameters=parameters
            ),
        )
        request.track = track
        self._requests.finish_sending(request)
        return request.request_id

    def receive(self, stream_id: StreamId, message: TrackStatus) -> None:
        """Take a TRACK_STATUS."""
        request = self._requests.admit(RULES, stream_id, message.request_id, message.parameters)
        request.track = message.track
        if not self._requests.refuse(request, message.track.namespace):
            self._context.emit(
                TrackStatusReceived(request.request_id, message.track, request.parameters)
            )
