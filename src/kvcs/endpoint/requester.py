"""Requests of ours on a connection, and who follows which request.

The methods named like messages send the message and wake the connection; `Requester.answer`
awaits the answer. Everything else that concerns a request arrives at its listener. On a session
that is over they raise the error that ended it.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine

from kvcs.endpoint.answers import Answer, Answers, wait_for
from kvcs.errors import ConnectionLost, KvcsError
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import Event
from kvcs.moqt.session.session import Session
from kvcs.moqt.wire.parameters import NO_PARAMETERS, Parameters
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.moqt.wire.token import Token
from kvcs.names import FullTrackName, TrackNamespace

__all__ = ("Listener", "Requester")

type Listener = Callable[[Event], None]


class Requester(ABC):
    """The requesting side of a connection.

    Attributes:
        session: The rules; commands are called here.
    """

    def __init__(self, session: Session) -> None:
        """Follow nothing."""
        self.session = session
        self._by_request: dict[RequestId, Listener] = {}
        self._answers = Answers()
        self._requests: int = 0
        self._on_authorized: list[Callable[[], None]] = []
        self._error: KvcsError | None = None

    @property
    @abstractmethod
    def now(self) -> float:
        """Monotonic seconds of the event loop, for the session's commands."""

    @abstractmethod
    def wake(self) -> None:
        """Note that the session or the outbox has something to send."""

    @property
    def _open(self) -> Session:
        """The session, for a command that needs a living one.

        Raises:
            KvcsError: The session ended, with this error.
        """
        if self.session.is_closed:
            raise self._error or ConnectionLost(0, "the session is over")
        return self.session

    def on_request(self, request_id: RequestId, listener: Listener) -> None:
        """Give all events of a request to `listener`, and the end of the session too.

        Ends by itself with the last event of the request.
        """
        self._by_request[request_id] = listener

    def forget(self, request_id: RequestId) -> None:
        """Stop following a request; unknown ones are ignored."""
        self._by_request.pop(request_id, None)

    def answer(
        self, request_id: RequestId, *, timeout: float | None = None
    ) -> Coroutine[None, None, Answer]:
        """Await the answer to a request or an update, at once after sending it.

        As in ``await connection.answer(connection.publish_namespace(namespace))``.

        Args:
            request_id: What the method returned that sent it.
            timeout: Seconds; None for the session's own request timeout. A request that is
                given up, also by cancelling this call, is cancelled at the peer.

        Raises:
            RequestRejected: REQUEST_ERROR, or the request ended before its answer.
            RequestTimedOut: No answer in time, or the peer's own time ran out.
            KvcsError: The session ended, with this error.
        """
        future = self._answers.expect(request_id)
        if self._error is not None:
            self._answers.fail(self._error)
        return self._await_answer(request_id, future, timeout)

    async def _await_answer(
        self,
        request_id: RequestId,
        future: asyncio.Future[Event | KvcsError],
        timeout: float | None,  # noqa: ASYNC109 - the public method is not a coroutine function
    ) -> Answer:
        try:
            return await wait_for(future, timeout)
        except (TimeoutError, asyncio.CancelledError):
            self.cancel(request_id)
            raise
        finally:
            self._answers.forget(request_id)

    def authorize(self, tokens: tuple[Token, ...]) -> None:
        """Present other tokens from now on, with new requests and for those that run.

        Args:
            tokens: By value; at least one.

        Raises:
            LocalProtocolError: A token is by alias, or there is none.
        """
        self.session.authorize(tokens, now=self.now)
        for listener in tuple(self._on_authorized):
            listener()
        self.wake()

    def on_authorized(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever other tokens are presented."""
        self._on_authorized.append(listener)

    def subscribe(
        self,
        track: FullTrackName,
        parameters: Parameters = NO_PARAMETERS,
        listener: Listener | None = None,
    ) -> RequestId:
        """Send SUBSCRIBE."""
        return self._sent(self._open.subscribe(track, parameters, now=self.now), listener)

    def fetch(
        self,
        track: FullTrackName,
        parameters: Parameters = NO_PARAMETERS,
        listener: Listener | None = None,
    ) -> RequestId:
        """Send FETCH."""
        return self._sent(self._open.fetch(track, parameters, now=self.now), listener)

    def track_status(
        self,
        track: FullTrackName,
        parameters: Parameters = NO_PARAMETERS,
        listener: Listener | None = None,
    ) -> RequestId:
        """Send TRACK_STATUS."""
        return self._sent(self._open.track_status(track, parameters, now=self.now), listener)

    def publish(
        self,
        track: FullTrackName,
        parameters: Parameters = NO_PARAMETERS,
        listener: Listener | None = None,
        *,
        properties: Properties = EMPTY_PROPERTIES,
    ) -> RequestId:
        """Send PUBLISH."""
        request_id = self._open.publish(track, parameters, properties=properties, now=self.now)
        return self._sent(request_id, listener)

    def publish_namespace(
        self,
        namespace: TrackNamespace,
        parameters: Parameters = NO_PARAMETERS,
        listener: Listener | None = None,
    ) -> RequestId:
        """Send PUBLISH_NAMESPACE."""
        request_id = self._open.publish_namespace(namespace, parameters, now=self.now)
        return self._sent(request_id, listener)

    def subscribe_namespace(
        self,
        prefix: TrackNamespace,
        parameters: Parameters = NO_PARAMETERS,
        listener: Listener | None = None,
    ) -> RequestId:
        """Send SUBSCRIBE_NAMESPACE."""
        request_id = self._open.subscribe_namespace(prefix, parameters, now=self.now)
        return self._sent(request_id, listener)

    def subscribe_tracks(
        self,
        prefix: TrackNamespace,
        parameters: Parameters = NO_PARAMETERS,
        listener: Listener | None = None,
    ) -> RequestId:
        """Send SUBSCRIBE_TRACKS."""
        request_id = self._open.subscribe_tracks(prefix, parameters, now=self.now)
        return self._sent(request_id, listener)

    def update(self, request_id: RequestId, parameters: Parameters) -> RequestId:
        """Send REQUEST_UPDATE; return the update's own id, for `answer`."""
        update_id = self._open.update(request_id, parameters, now=self.now)
        self._answers.note_update(update_id, request_id)
        self.wake()
        return update_id

    def cancel(self, request_id: RequestId) -> None:
        """Cancel a request of ours and stop following it; one that is over is ignored."""
        self.forget(request_id)
        if not self.session.is_closed and self.session.is_active(request_id):
            self.session.cancel(request_id, now=self.now)
            self.wake()

    def _sent(self, request_id: RequestId, listener: Listener | None) -> RequestId:
        self._requests += 1
        if listener is not None:
            self.on_request(request_id, listener)
        self.wake()
        return request_id
