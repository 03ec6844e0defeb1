"""PUBLISH, a subscription that the publisher starts.

What follows the answer is shared with SUBSCRIBE and lives in `subscription`.

Source: MOQT draft 22, Sections 3.1 and 9.8.
"""

from typing import Final

from kvcs.moqt.codepoints import GroupOrder
from kvcs.moqt.session.actions import RequestId, StreamId, TrackAlias
from kvcs.moqt.session.aliases import Aliases
from kvcs.moqt.session.context import Context
from kvcs.moqt.session.events import PublishReceived
from kvcs.moqt.session.incoming import IncomingStreams
from kvcs.moqt.session.registry import Registry
from kvcs.moqt.session.requests import Requests, track_refusal
from kvcs.moqt.session.state import Input, Request, RequestKind, RequestRules, State, Table
from kvcs.moqt.session.subscription import Subscriptions
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.properties import Properties
from kvcs.moqt.wire.publish import Publish
from kvcs.moqt.wire.scope import Scope
from kvcs.names import FullTrackName

__all__ = ("RULES", "Publications")

# Section 3.1.2, the side that sent PUBLISH. It may send data before the answer, and be
# done before it.
_PUBLISHER: Final[Table] = {
    (State.PENDING, Input.SEND_UPDATE): State.PENDING,
    (State.PENDING, Input.SEND_UPDATE_OK): State.PENDING,
    (State.PENDING, Input.SEND_UPDATE_ERROR): State.PENDING,
    (State.PENDING, Input.SEND_DATA): State.PENDING,
    (State.PENDING, Input.SEND_NOTIFY): State.PENDING,
    (State.PENDING, Input.SEND_DONE): State.ENDING,
    (State.PENDING, Input.RECEIVE_OK): State.ESTABLISHED,
    (State.PENDING, Input.RECEIVE_ERROR): State.TERMINATED,
    (State.PENDING, Input.RECEIVE_UPDATE): State.PENDING,
    (State.PENDING, Input.RECEIVE_GOAWAY): State.PENDING,
    (State.PENDING, Input.RECEIVE_FIN): State.CANCELLED,
    (State.ESTABLISHED, Input.SEND_UPDATE): State.ESTABLISHED,
    (State.ESTABLISHED, Input.SEND_UPDATE_OK): State.ESTABLISHED,
    (State.ESTABLISHED, Input.SEND_UPDATE_ERROR): State.ESTABLISHED,
    (State.ESTABLISHED, Input.SEND_DATA): State.ESTABLISHED,
    (State.ESTABLISHED, Input.SEND_NOTIFY): State.ESTABLISHED,
    (State.ESTABLISHED, Input.SEND_DONE): State.TERMINATED,
    (State.ESTABLISHED, Input.RECEIVE_UPDATE): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_UPDATE_OK): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_UPDATE_ERROR): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_GOAWAY): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_FIN): State.ESTABLISHED,
    (State.ENDING, Input.RECEIVE_OK): State.TERMINATED,
    (State.ENDING, Input.RECEIVE_ERROR): State.TERMINATED,
    (State.ENDING, Input.RECEIVE_UPDATE): State.ENDING,
    (State.ENDING, Input.RECEIVE_GOAWAY): State.ENDING,
    (State.ENDING, Input.RECEIVE_FIN): State.CANCELLED,
    (State.TERMINATED, Input.RECEIVE_UPDATE): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_UPDATE_OK): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_UPDATE_ERROR): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_GOAWAY): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_FIN): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_CANCEL): State.TERMINATED,
    (State.TERMINATED, Input.CANCEL): State.TERMINATED,
}

# Section 3.1.2, the side that received PUBLISH. What the publisher sent before it read a
# refusal is dropped; PUBLISH_DONE does not spare the answer.
_SUBSCRIBER: Final[Table] = {
    (State.PENDING, Input.SEND_OK): State.ESTABLISHED,
    (State.PENDING, Input.SEND_ERROR): State.TERMINATED,
    (State.PENDING, Input.RECEIVE_UPDATE): State.PENDING,
    (State.PENDING, Input.RECEIVE_NOTIFY): State.PENDING,
    (State.PENDING, Input.RECEIVE_DONE): State.ENDING,
    (State.PENDING, Input.RECEIVE_GOAWAY): State.PENDING,
    (State.PENDING, Input.RECEIVE_FIN): State.CANCELLED,
    (State.ESTABLISHED, Input.SEND_UPDATE): State.ESTABLISHED,
    (State.ESTABLISHED, Input.SEND_UPDATE_OK): State.ESTABLISHED,
    (State.ESTABLISHED, Input.SEND_UPDATE_ERROR): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_UPDATE): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_UPDATE_OK): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_UPDATE_ERROR): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_NOTIFY): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_GOAWAY): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_DONE): State.DRAINING,
    (State.ESTABLISHED, Input.RECEIVE_FIN): State.CANCELLED,
    (State.ENDING, Input.SEND_OK): State.DRAINING,
    (State.ENDING, Input.SEND_ERROR): State.TERMINATED,
    (State.ENDING, Input.RECEIVE_FIN): State.ENDING,
    (State.DRAINING, Input.RECEIVE_FIN): State.DRAINING,
    (State.DRAINING, Input.RECEIVE_CANCEL): State.DRAINING,
    (State.DRAINING, Input.DATA_COMPLETE): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_UPDATE): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_NOTIFY): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_DONE): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_GOAWAY): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_FIN): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_CANCEL): State.TERMINATED,
    (State.TERMINATED, Input.CANCEL): State.TERMINATED,
}

RULES: Final = RequestRules(
    kind=RequestKind.PUBLISH,
    requester=_PUBLISHER,
    responder=_SUBSCRIBER,
    scope=Scope.PUBLISH,
    ok_scope=Scope.PUBLISH_OK,
    update_scope=Scope.UPDATE_SUBSCRIPTION,
)


class Publications:
    """PUBLISH requests of a session, in both roles."""

    def __init__(
        self,
        context: Context,
        registry: Registry,
        requests: Requests,
        aliases: Aliases,
        *,
        incoming: IncomingStreams,
        subscriptions: Subscriptions,
    ) -> None:
        self._context = context
        self._registry = registry
        self._requests = requests
        self._aliases = aliases
        self._incoming = incoming
        self._subscriptions = subscriptions

    def publish(
        self, track: FullTrackName, parameters: Parameters, properties: Properties
    ) -> RequestId:
        """Send PUBLISH, with a Track Alias of its own."""
        alias = self._subscriptions.take_alias()
        request = self._requests.open(
            RULES,
            parameters,
            lambda request_id: Publish(
                request_id=request_id,
                track=track,
                track_alias=alias,
                parameters=parameters,
                properties=properties,
            ),
        )
        request.track = track
        request.track_alias = alias
        request.properties = properties
        self._registry.add_trigger(request, request.request_id, None)
        return request.request_id

    def receive(self, stream_id: StreamId, message: Publish) -> None:
        """Take a PUBLISH, and the streams that came before it."""
        request = self._requests.admit(RULES, stream_id, message.request_id, message.parameters)
        request.track = message.track
        request.properties = message.properties
        self._aliases.bind(TrackAlias(message.track_alias), request)
        if not self._requests.refuse(request, message.track.namespace):
            self._report(request, message)
        self._incoming.resolve(request)

    def _report(self, request: Request, message: Publish) -> None:
        refusal = track_refusal(message.properties)
        if refusal is not None:
            self._requests.send_error(request, *refusal)
        else:
            order = self._fill_order(message.track)
            self._registry.add_trigger(request, request.request_id, order)
            self._context.emit(
                PublishReceived(
                    request.request_id, message.track, request.parameters, message.properties
                )
            )

    def _fill_order(self, track: FullTrackName) -> GroupOrder | None:
        """Return the order of Groups in the fill that a SUBSCRIBE_TRACKS of ours asked for."""
        for request in self._registry.by_id.values():
            is_ours = request.is_requester and request.kind is RequestKind.SUBSCRIBE_TRACKS
            if not is_ours or request.namespace is None or request.parameters.fill is None:
                continue
            if request.namespace.is_prefix_of(track.namespace):
                return request.parameters.fill.group_order
        return None
