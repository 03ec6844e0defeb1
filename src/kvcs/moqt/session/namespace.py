"""PUBLISH_NAMESPACE, SUBSCRIBE_NAMESPACE and SUBSCRIBE_TRACKS.

Source: MOQT draft 22, Sections 3.6, 4 and 9.14 to 9.19.
"""

from typing import Final

from kvcs.errors import LocalProtocolError, RequestErrorCode, StreamResetCode
from kvcs.moqt.session.actions import RequestId, StreamId
from kvcs.moqt.session.context import Context
from kvcs.moqt.session.events import (
    NamespaceDoneReceived,
    NamespaceReceived,
    PublishNamespaceReceived,
    PublishSkippedReceived,
    SubscribeNamespaceReceived,
    SubscribeTracksReceived,
    Unheard,
)
from kvcs.moqt.session.registry import Registry
from kvcs.moqt.session.requests import Requests
from kvcs.moqt.session.state import Input, Request, RequestKind, RequestRules, State, Table
from kvcs.moqt.wire.buffer import violation
from kvcs.moqt.wire.namespace import (
    Namespace,
    NamespaceDone,
    PublishNamespace,
    PublishSkipped,
    SubscribeNamespace,
    SubscribeTracks,
)
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.scope import Scope
from kvcs.names import TrackNamespace

__all__ = (
    "PUBLISH_NAMESPACE_RULES",
    "SUBSCRIBE_NAMESPACE_RULES",
    "SUBSCRIBE_TRACKS_RULES",
    "Namespaces",
)

# Sections 4 and 3.6, the side that asked, as far as the three kinds agree.
_REQUESTER: Final[Table] = {
    (State.PENDING, Input.SEND_UPDATE): State.PENDING,
    (State.PENDING, Input.RECEIVE_OK): State.ESTABLISHED,
    (State.PENDING, Input.RECEIVE_ERROR): State.TERMINATED,
    (State.PENDING, Input.RECEIVE_GOAWAY): State.PENDING,
    (State.PENDING, Input.RECEIVE_FIN): State.CANCELLED,
    (State.ESTABLISHED, Input.SEND_UPDATE): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_UPDATE_OK): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_UPDATE_ERROR): State.TERMINATED,
    (State.ESTABLISHED, Input.RECEIVE_GOAWAY): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_FIN): State.ESTABLISHED,
    (State.TERMINATED, Input.RECEIVE_FIN): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_CANCEL): State.TERMINATED,
    (State.TERMINATED, Input.CANCEL): State.TERMINATED,
}

# Sections 4 and 3.6, the side that answers, likewise. A FIN does not withdraw anything.
_RESPONDER: Final[Table] = {
    (State.PENDING, Input.SEND_OK): State.ESTABLISHED,
    (State.PENDING, Input.SEND_ERROR): State.TERMINATED,
    (State.PENDING, Input.RECEIVE_UPDATE): State.PENDING,
    (State.PENDING, Input.RECEIVE_GOAWAY): State.PENDING,
    (State.PENDING, Input.RECEIVE_FIN): State.PENDING,
    (State.ESTABLISHED, Input.SEND_UPDATE_OK): State.ESTABLISHED,
    (State.ESTABLISHED, Input.SEND_UPDATE_ERROR): State.TERMINATED,
    (State.ESTABLISHED, Input.RECEIVE_UPDATE): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_GOAWAY): State.ESTABLISHED,
    (State.ESTABLISHED, Input.RECEIVE_FIN): State.ESTABLISHED,
    (State.TERMINATED, Input.RECEIVE_UPDATE): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_GOAWAY): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_FIN): State.TERMINATED,
    (State.TERMINATED, Input.RECEIVE_CANCEL): State.TERMINATED,
    (State.TERMINATED, Input.CANCEL): State.TERMINATED,
}

PUBLISH_NAMESPACE_RULES: Final = RequestRules(
    kind=RequestKind.PUBLISH_NAMESPACE,
    requester=_REQUESTER,
    responder=_RESPONDER,
    scope=Scope.PUBLISH_NAMESPACE,
    ok_scope=Scope.NAMESPACE_OK,
    update_scope=Scope.UPDATE_PUBLISH_NAMESPACE,
)

# Section 4.2: NAMESPACE and NAMESPACE_DONE after the answer; the end of the answering
# stream takes all namespaces back.
SUBSCRIBE_NAMESPACE_RULES: Final = RequestRules(
    kind=RequestKind.SUBSCRIBE_NAMESPACE,
    requester={
        **_REQUESTER,
        (State.ESTABLISHED, Input.RECEIVE_NAMESPACE): State.ESTABLISHED,
        (State.ESTABLISHED, Input.RECEIVE_FIN): State.CANCELLED,
    },
    responder={**_RESPONDER, (State.ESTABLISHED, Input.SEND_NAMESPACE): State.ESTABLISHED},
    scope=Scope.SUBSCRIBE_NAMESPACE,
    ok_scope=Scope.NAMESPACE_OK,
    update_scope=Scope.UPDATE_SUBSCRIBE_NAMESPACE,
)

# Section 3.6: PUBLISH_SKIPPED after the answer.
SUBSCRIBE_TRACKS_RULES: Final = RequestRules(
    kind=RequestKind.SUBSCRIBE_TRACKS,
    requester={
        **_REQUESTER,
        (State.ESTABLISHED, Input.RECEIVE_SKIPPED): State.ESTABLISHED,
    },
    responder={**_RESPONDER, (State.ESTABLISHED, Input.SEND_SKIPPED): State.ESTABLISHED},
    scope=Scope.SUBSCRIBE_TRACKS,
    ok_scope=Scope.NAMESPACE_OK,
    update_scope=Scope.UPDATE_SUBSCRIBE_TRACKS,
)

_DISCOVERY: Final = frozenset({RequestKind.SUBSCRIBE_NAMESPACE, RequestKind.SUBSCRIBE_TRACKS})


class Namespaces:
    """The three kinds of namespace requests of a session, in both roles."""

    def __init__(self, context: Context, registry: Registry, requests: Requests) -> None:
        self._context = context
        self._registry = registry
        self._requests = requests

    def publish(self, namespace: TrackNamespace, parameters: Parameters) -> RequestId:
        """Send PUBLISH_NAMESPACE."""
        request = self._requests.open(
            PUBLISH_NAMESPACE_RULES,
            parameters,
            lambda request_id: PublishNamespace(
                request_id=request_id, track_namespace_prefix=namespace, parameters=parameters
            ),
        )
        request.namespace = namespace
        return request.request_id

    def subscribe(self, prefix: TrackNamespace, parameters: Parameters) -> RequestId:
        """Send SUBSCRIBE_NAMESPACE."""
        request = self._requests.open(
            SUBSCRIBE_NAMESPACE_RULES,
            parameters,
            lambda request_id: SubscribeNamespace(
                request_id=request_id, track_namespace_prefix=prefix, parameters=parameters
            ),
        )
        request.namespace = prefix
        return request.request_id

    def subscribe_tracks(self, prefix: TrackNamespace, parameters: Parameters) -> RequestId:
        """Send SUBSCRIBE_TRACKS."""
        request = self._requests.open(
            SUBSCRIBE_TRACKS_RULES,
            parameters,
            lambda request_id: SubscribeTracks(
                request_id=request_id, track_namespace_prefix=prefix, parameters=parameters
            ),
        )
        request.namespace = prefix
        return request.request_id

    def receive_publish(self, stream_id: StreamId, message: PublishNamespace) -> None:
        """Take a PUBLISH_NAMESPACE."""
        request = self._admit(PUBLISH_NAMESPACE_RULES, stream_id, message)
        if request is not None:
            prefix = message.track_namespace_prefix
            self._context.emit(
                PublishNamespaceReceived(request.request_id, prefix, request.parameters)
            )

    def receive_subscribe(self, stream_id: StreamId, message: SubscribeNamespace) -> None:
        """Take a SUBSCRIBE_NAMESPACE."""
        request = self._admit(SUBSCRIBE_NAMESPACE_RULES, stream_id, message)
        if request is not None:
            prefix = message.track_namespace_prefix
            self._context.emit(
                SubscribeNamespaceReceived(request.request_id, prefix, request.parameters)
            )

    def receive_subscribe_tracks(self, stream_id: StreamId, message: SubscribeTracks) -> None:
        """Take a SUBSCRIBE_TRACKS."""
        request = self._admit(SUBSCRIBE_TRACKS_RULES, stream_id, message)
        if request is not None:
            prefix = message.track_namespace_prefix
            self._context.emit(
                SubscribeTracksReceived(request.request_id, prefix, request.parameters)
            )

    def overlaps(self, request: Request, prefix: TrackNamespace) -> bool:
        """Tell whether another request of the same kind and side has a prefix in common."""
        return any(
            other.namespace is not None
            and (other.namespace.is_prefix_of(prefix) or prefix.is_prefix_of(other.namespace))
            for other in self._registry.by_id.values()
            if other is not request
            and other.kind is request.kind
            and other.is_requester is request.is_requester
        )

    def announce(self, request_id: RequestId, suffix: TrackNamespace) -> None:
        """Send NAMESPACE."""
        request = self._requests.command(request_id, Input.SEND_NAMESPACE)
        if request is None:
            return
        request.namespaces.add(_joined(request, suffix))
        message = Namespace(track_namespace_suffix=suffix)
        self._context.send(request.stream_id, message.encode())

    def withdraw(self, request_id: RequestId, suffix: TrackNamespace) -> None:
        """Send NAMESPACE_DONE."""
        request = self._requests.command(request_id, Input.SEND_NAMESPACE)
        if request is None:
            return
        namespace = _joined(request, suffix)
        if namespace not in request.namespaces:
            raise LocalProtocolError(f"NAMESPACE_DONE without NAMESPACE for {namespace}")
        request.namespaces.remove(namespace)
        message = NamespaceDone(track_namespace_suffix=suffix)
        self._context.send(request.stream_id, message.encode())

    def is_announced(self, request_id: RequestId, suffix: TrackNamespace) -> bool:
        """Tell whether NAMESPACE was sent and not taken back."""
        request = self._registry.by_id.get(request_id)
        return request is not None and _joined(request, suffix) in request.namespaces

    def skip(self, request_id: RequestId, suffix: TrackNamespace, name: bytes) -> None:
        """Send PUBLISH_SKIPPED."""
        request = self._requests.command(request_id, Input.SEND_SKIPPED)
        if request is not None:
            message = PublishSkipped(track_namespace_suffix=suffix, track_name=name)
            self._context.send(request.stream_id, message.encode())

    def receive_namespace(self, request: Request, message: Namespace) -> None:
        """Take a NAMESPACE."""
        request.advance(Input.RECEIVE_NAMESPACE)
        suffix = message.track_namespace_suffix
        request.namespaces.add(_received(request, suffix))
        if len(request.namespaces) > self._context.limits.max_namespaces:
            self._requests.abandon(request, StreamResetCode.EXCESSIVE_LOAD)
        else:
            self._context.emit(NamespaceReceived(request.request_id, suffix))

    def receive_namespace_done(self, request: Request, message: NamespaceDone) -> None:
        """Take a NAMESPACE_DONE."""
        request.advance(Input.RECEIVE_NAMESPACE)
        suffix = message.track_namespace_suffix
        namespace = _received(request, suffix)
        if namespace not in request.namespaces:
            raise violation(f"NAMESPACE_DONE without NAMESPACE for {namespace}")
        request.namespaces.remove(namespace)
        self._context.emit(NamespaceDoneReceived(request.request_id, suffix))

    def receive_skipped(self, request: Request, message: PublishSkipped) -> None:
        """Take a PUBLISH_SKIPPED."""
        request.advance(Input.RECEIVE_SKIPPED)
        self._context.emit(
            PublishSkippedReceived(
                request.request_id, message.track_namespace_suffix, message.track_name
            )
        )

    def _admit(
        self,
        rules: RequestRules,
        stream_id: StreamId,
        message: PublishNamespace | SubscribeNamespace | SubscribeTracks,
    ) -> Request | None:
        request = self._requests.admit(rules, stream_id, message.request_id, message.parameters)
        prefix = message.track_namespace_prefix
        request.namespace = prefix
        if self._requests.refuse(request, prefix):
            return None
        if request.kind in _DISCOVERY and self.overlaps(request, prefix):
            self._requests.send_error(request, RequestErrorCode.PREFIX_OVERLAP, "prefixes overlap")
            self._context.emit(Unheard())
            return None
        return request


def _joined(request: Request, suffix: TrackNamespace) -> TrackNamespace:
    prefix = request.namespace or TrackNamespace()
    try:
        return prefix.joined(suffix)
    except ValueError as error:
        raise LocalProtocolError(str(error)) from error


def _received(request: Request, suffix: TrackNamespace) -> TrackNamespace:
    try:
        return _joined(request, suffix)
    except LocalProtocolError as error:
        raise violation(error.reason) from error
