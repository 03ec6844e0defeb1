"""All requests of a session, by id and by stream."""

from typing import Final

from kvcs.errors import LocalProtocolError
from kvcs.moqt.codepoints import GroupOrder
from kvcs.moqt.session.actions import RequestId, StreamId
from kvcs.moqt.session.state import Request, RequestKind, State

__all__ = ("Registry",)

_OF_NAMESPACES: Final = frozenset(
    {
        RequestKind.PUBLISH_NAMESPACE,
        RequestKind.SUBSCRIBE_NAMESPACE,
        RequestKind.SUBSCRIBE_TRACKS,
    }
)


class Registry:
    """Requests that live, and a memory of how others ended.

    A request leaves `by_id` when it is over, and `by_stream` when nothing more can come on
    its stream.

    Attributes:
        by_id: Requests that are not over.
        by_stream: Requests whose stream is open, also when they are over.
        peer_requests: How many in `by_id` are the peer's.
        own_streams: How many in `by_stream` we opened.
    """

    __slots__ = (
        "_ended",
        "_max_ended",
        "_triggers",
        "by_id",
        "by_stream",
        "own_streams",
        "peer_requests",
    )

    def __init__(self, max_ended: int) -> None:
        self.by_id: dict[RequestId, Request] = {}
        self.by_stream: dict[StreamId, Request] = {}
        self._triggers: dict[RequestId, Request] = {}
        self._ended: dict[RequestId, State] = {}
        self._max_ended = max_ended
        self.peer_requests = self.own_streams = 0

    def __repr__(self) -> str:
        return f"Registry({len(self.by_id)} requests on {len(self.by_stream)} streams)"

    @property
    def is_quiet(self) -> bool:
        """Whether every request that is not over is about namespaces."""
        return all(request.kind in _OF_NAMESPACES for request in self.by_id.values())

    def add(self, request: Request) -> None:
        """Keep a new request."""
        self.by_id[request.request_id] = request
        self.by_stream[request.stream_id] = request
        self.peer_requests += not request.is_requester
        self.own_streams += request.is_requester

    def add_trigger(
        self, request: Request, trigger_id: RequestId, order: GroupOrder | None
    ) -> None:
        """Let a fetch stream that names `trigger_id` belong to `request`."""
        request.fills[trigger_id] = order
        self._triggers[trigger_id] = request

    def drop_trigger(self, request: Request, trigger_id: RequestId) -> None:
        """Take back `add_trigger`."""
        request.fills.pop(trigger_id, None)
        self._triggers.pop(trigger_id, None)

    def find(self, request_id: RequestId, *, or_ended: bool = False) -> Request | None:
        """Return the request of a command.

        Args:
            request_id: Its id.
            or_ended: The command makes sense for a request that ended in order, too.

        Returns:
            None when it ended abruptly: the command crossed an event, and is ignored.

        Raises:
            LocalProtocolError: There is no such request.
        """
        request = self.by_id.get(request_id)
        if request is None:
            state = self._ended.get(request_id)
            if state is None or not (or_ended or state is State.CANCELLED):
                raise LocalProtocolError(f"there is no open request {request_id}")
        return request

    def triggered_by(self, trigger_id: RequestId) -> Request | None:
        """Return the request that a fetch stream with `trigger_id` belongs to."""
        return self._triggers.get(trigger_id)

    def receiver_of(self, trigger_id: RequestId) -> Request | None:
        """Return the request of ours that a fetch stream of the peer belongs to."""
        request = self._triggers.get(trigger_id)
        return request if request is not None and request.receives_data else None

    def retire(self, request: Request) -> None:
        """Forget a request that is over, as far as its stream allows."""
        del self.by_id[request.request_id]
        self.peer_requests -= not request.is_requester
        for trigger_id in tuple(request.fills):
            self.drop_trigger(request, trigger_id)
        self._ended[request.request_id] = request.state
        if len(self._ended) > self._max_ended:
            del self._ended[next(iter(self._ended))]
        self.release_stream(request)

    def release_stream(self, request: Request) -> None:
        """Forget the stream of a request once both directions have ended."""
        if request.can_send or request.can_receive:
            return
        if self.by_stream.pop(request.stream_id, None) is not None:
            self.own_streams -= request.is_requester
