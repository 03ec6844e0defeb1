"""Request streams: which message goes to which part of the session.

Source: MOQT draft 22, Sections 6.3, 6.4.2 and 9.
"""

from collections.abc import Callable, Mapping
from typing import Any

from kvcs.errors import StreamResetCode
from kvcs.moqt.session.actions import StreamId
from kvcs.moqt.session.context import Context
from kvcs.moqt.session.deadlines import Timer
from kvcs.moqt.session.message_stream import MessageStream
from kvcs.moqt.session.registry import Registry
from kvcs.moqt.session.requests import Requests
from kvcs.moqt.session.state import Request, State
from kvcs.moqt.wire.buffer import violation
from kvcs.moqt.wire.message import Message

__all__ = ("Openers", "RequestStreams", "Routes")

# The key of each entry is the type of the message that its function takes.
type Openers = Mapping[type[Message], Callable[[StreamId, Any], None]]
type Routes = Mapping[type[Message], Callable[[Request, Any], None]]


class RequestStreams:
    """All bidirectional streams of a session."""

    def __init__(
        self,
        context: Context,
        registry: Registry,
        requests: Requests,
        openers: Openers,
        routes: Routes,
    ) -> None:
        self._context = context
        self._registry = registry
        self._requests = requests
        self._openers = openers
        self._routes = routes
        self._messages: dict[StreamId, MessageStream] = {}
        # STOP_SENDING that came before the request itself.
        self._stopped: dict[StreamId, int] = {}

    def receive(self, stream_id: StreamId, data: bytes | memoryview, *, fin: bool) -> None:
        """Take the next bytes of a request stream."""
        if self._is_known(stream_id):
            messages = self._messages.setdefault(stream_id, MessageStream())
            for message in messages.receive(data, fin=fin):
                if not self._dispatch(stream_id, message):
                    break
            self._watch(stream_id, messages)
        if fin:
            self._receive_fin(stream_id)

    def receive_reset(self, stream_id: StreamId, code: int) -> None:
        """Take the abrupt end of the peer's direction."""
        self._forget(stream_id)
        request = self._registry.by_stream.get(stream_id)
        if request is not None:
            request.can_receive = False
            self._requests.receive_cancel(request, code)
        elif not self._context.is_local(stream_id):
            self._context.reset(stream_id, StreamResetCode.CANCELLED)

    def receive_stop(self, stream_id: StreamId, code: int) -> None:
        """Take the peer's wish that we end our direction abruptly."""
        request = self._registry.by_stream.get(stream_id)
        if request is None:
            if not self._context.is_local(stream_id):
                self._remember_stop(stream_id, code)
            return
        if request.can_send:
            request.can_send = False
            self._context.reset(stream_id, code)
        self._requests.receive_cancel(request, code)

    def _is_known(self, stream_id: StreamId) -> bool:
        """Tell whether anybody still listens to a stream."""
        request = self._registry.by_stream.get(stream_id)
        if request is None:
            return not self._context.is_local(stream_id)
        return request.can_receive and request.state is not State.CANCELLED

    def _dispatch(self, stream_id: StreamId, message: Message) -> bool:
        """Give a message to its part; return whether the stream goes on."""
        request = self._registry.by_stream.get(stream_id)
        if request is None:
            opener = self._openers.get(type(message))
            if opener is None:
                raise violation(f"a request stream begins with {type(message).__name__}")
            opener(stream_id, message)
            stopped = self._stopped.pop(stream_id, None)
            if stopped is not None:
                self.receive_stop(stream_id, stopped)
            return True
        if request.state is State.CANCELLED:
            return False
        route = self._routes.get(type(message))
        if route is None:
            raise violation(f"{type(message).__name__} inside a request stream")
        route(request, message)
        return True

    def _receive_fin(self, stream_id: StreamId) -> None:
        self._forget(stream_id)
        request = self._registry.by_stream.get(stream_id)
        if request is not None:
            self._requests.receive_fin(request)
        elif not self._context.is_local(stream_id):
            raise violation(f"request stream {stream_id} without a request")

    def _remember_stop(self, stream_id: StreamId, code: int) -> None:
        self._stopped[stream_id] = code
        if len(self._stopped) > self._context.limits.max_tombstones:
            del self._stopped[next(iter(self._stopped))]

    def _watch(self, stream_id: StreamId, messages: MessageStream) -> None:
        context = self._context
        if not messages.is_unfinished:
            context.deadlines.clear(Timer.CONTROL_MESSAGE, stream_id)
        elif not context.deadlines.is_set(Timer.CONTROL_MESSAGE, stream_id):
            timeout = context.limits.control_message_timeout
            context.wait(Timer.CONTROL_MESSAGE, stream_id, timeout)

    def _forget(self, stream_id: StreamId) -> None:
        self._messages.pop(stream_id, None)
        self._context.deadlines.clear(Timer.CONTROL_MESSAGE, stream_id)
