"""One MOQT session over one transport.

Theory of operation: the connection owns a `Session` (rules), an `Outbox` (what is owed to the
peer, ranked) and a `Transport` (bytes), and turns one crank, `_turn`: give the transport's
events to the session, give the session's events to whoever listens, let the outbox send while
the transport has room, apply the session's actions, set one timer. A turn runs when events
arrive, when the transport has room again, at the earliest deadline, and after `wake`. It
never waits, so it needs no task.

Commands are called on `session` with ``now=connection.now``, followed by `wake`; the methods
here that are named like requests do both. Events of a request go to its listener, all others
to the listeners of the connection. Whoever listens is called inside a turn and must not wait.
An exception from a listener or from our own code ends this session with INTERNAL_ERROR, and
no other.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, assert_never

from kvcs.endpoint.inflow import Inflow
from kvcs.endpoint.requester import Listener, Requester
from kvcs.errors import (
    ConnectionLost,
    KvcsError,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    RequestErrorCode,
    TerminationCode,
)
from kvcs.moqt.session.actions import (
    Action,
    CloseSession,
    RequestId,
    ResetStream,
    SendDatagram,
    SendStream,
    SetPriority,
    StopSending,
    StreamId,
)
from kvcs.moqt.session.events import (
    Event,
    FetchReceived,
    GoawayReceived,
    ObjectBegun,
    ObjectPayload,
    ObjectReceived,
    PublishNamespaceReceived,
    PublishReceived,
    RequestCancelled,
    RequestRejected,
    SessionClosed,
    SetupComplete,
    SubscribeNamespaceReceived,
    SubscribeReceived,
    SubscriberFinished,
    SubscribeTracksReceived,
    SubscriptionDrained,
    TrackStatusReceived,
)
from kvcs.moqt.session.session import Session
from kvcs.moqt.track.outbox import Outbox
from kvcs.transport.interface import (
    Closed,
    Datagram,
    StreamData,
    StreamReset,
    Transport,
    TransportEvent,
)
from kvcs.transport.interface import StopSending as StopSendingReceived

__all__ = ("Connection", "Listener")

#: Requests that are refused at once when nobody listens, instead of timing out at the peer.
_REQUESTS: Final = (
    SubscribeReceived,
    FetchReceived,
    TrackStatusReceived,
    PublishReceived,
    PublishNamespaceReceived,
    SubscribeNamespaceReceived,
    SubscribeTracksReceived,
)
#: What brings payload.
_PAYLOADS: Final = (ObjectReceived, ObjectBegun, ObjectPayload)
#: After these nothing more is said about a request.
_LAST_WORDS: Final = (
    RequestRejected,
    RequestCancelled,
    SubscriberFinished,
    SubscriptionDrained,
)

_CODES: Final = frozenset(TerminationCode)

_logger = logging.getLogger("kvcs.endpoint")


class Connection(Requester):
    """One MOQT session over one Transport.

    Attributes:
        session: The rules; commands are called here.
        outbox: What is owed to the peer.
        peer: Address of the peer, for people.
        request_owner: Who answers all requests of the peer, once somebody claims that.
    """

    def __init__(
        self,
        transport: Transport,
        session: Session,
        *,
        close_timeout: float = 5.0,
        max_queued_bytes: int = 64 * 2**20,
        inflow: Inflow | None = None,
    ) -> None:
        """Put a session on a transport; `start` begins it.

        Args:
            transport: A connected transport that nobody listens to yet.
            session: A session that has not started.
            close_timeout: Seconds that `close` may take to send what is owed.
            max_queued_bytes: Bytes that may wait for a peer that does not read. Data stays far
                below, at the transport's high-water mark; only messages can pass that, and
                more of them than this end the session.
            inflow: Counts what the peer sends, and says when it is too much; None for no
                limit.
        """
        super().__init__(session)
        self.outbox = Outbox(
            on_ready=self.wake,
            is_drained=transport.is_drained,
            unsent_bytes=transport.unsent_bytes,
        )
        self.peer = str(transport.peer_address)
        self._transport = transport
        self._close_timeout = close_timeout
        self._max_queued_bytes = max_queued_bytes
        self._inflow = inflow
        self._loop = asyncio.get_running_loop()
        self._listeners: list[Listener] = []
        self._on_closed: list[Callable[[], None]] = []
        self._on_goaway: list[Callable[[GoawayReceived], None]] = []
        self._pending: deque[Event] = deque()
        self._turn_due = False
        self._is_turning = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._time_floor = 0.0
        self.request_owner: object | None = None
        self._is_clean = False
        self._ready = asyncio.Event()
        self._over = asyncio.Event()
        self._outbox_empty = asyncio.Event()
        self._started_at = self.now
        self._bytes_in = self._bytes_out = 0
        self._is_debug = _logger.isEnabledFor(logging.DEBUG)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Connection {self.peer} {state}, {len(self._by_request)} requests>"

    # State.

    @property
    def now(self) -> float:
        """Monotonic seconds of the event loop, for the session's commands."""
        return max(self._loop.time(), self._time_floor)

    @property
    def queued_bytes(self) -> int:
        """Octets that wait for the peer."""
        return self._transport.queued_bytes

    @property
    def max_request_streams(self) -> int:
        """Requests that the peer lets this end have open; what goes beyond waits for it."""
        return self._transport.max_bidi_streams

    def is_drained(self, stream_id: StreamId) -> bool:
        """Tell whether all that was written on a stream was handed to the network."""
        return self._transport.is_drained(stream_id)

    def unsent_bytes(self, stream_id: StreamId) -> int:
        """Return the octets written on a stream and not handed to the network."""
        return self._transport.unsent_bytes(stream_id)

    @property
    def bytes_in(self) -> int:
        """Octets that the peer sent, on streams and in datagrams."""
        return self._bytes_in

    @property
    def bytes_out(self) -> int:
        """Octets handed to the transport for streams."""
        return self._bytes_out

    @property
    def started_at(self) -> float:
        """When it began, in monotonic seconds."""
        return self._started_at

    @property
    def closed(self) -> bool:
        """Tell whether the session is over."""
        return self.session.is_closed

    def start(self, prepare: Callable[["Connection"], None] | None = None) -> None:
        """Begin: send SETUP and take the transport's events.

        Args:
            prepare: Called before anything is sent or received, to register listeners; may
                send requests right after the SETUP. An exception in it ends the session.
        """
        self._transport.set_listener(self._receive, self.wake)
        self.session.start(now=self.now)
        if prepare is None or self._attempt(lambda: prepare(self)):
            self._turn()

    async def ready(self) -> None:
        """Wait for the peer's SETUP; the session itself bounds the time.

        Raises:
            KvcsError: The session ended before, with this error.
        """
        await self._ready.wait()
        if self.session.peer_options is None:
            raise self._error or ConnectionLost(0, "closed before SETUP")

    async def wait_closed(self) -> KvcsError | None:
        """Wait until the connection is over; return why, or None for a clean close."""
        await self._over.wait()
        await self._transport.wait_closed()
        return None if self._is_clean else self._error

    async def close(
        self, code: int = TerminationCode.NO_ERROR, reason: str = "", *, flush: bool = True
    ) -> None:
        """Send what is owed, close, and wait until that is done; bounded in time.

        Args:
            code: Code for the peer.
            reason: Text for the log; it does not always travel.
            flush: First send what the outbox can send now. Only with NO_ERROR.
        """
        if flush and code == TerminationCode.NO_ERROR and not self.closed:
            self.wake()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._close_timeout):
                    await self._outbox_empty.wait()
        self.abort(code, reason)
        await self.wait_closed()

    def abort(self, code: int, reason: str) -> None:
        """Close without waiting for what the outbox still owes."""
        if not self.closed:
            self._is_clean = code == TerminationCode.NO_ERROR
            self.session.close(code, reason, now=self.now)
            self.wake()

    # Listening.

    def wake(self) -> None:
        """Note that the session or the outbox has something to send."""
        self._outbox_empty.clear()
        if not self._turn_due and not self._is_turning:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def listen(self, listener: Listener) -> None:
        """Give all events to `listener` that no listener of a request takes.

        Requests of the peer arrive here; whoever answers one follows it with `on_request`.
        With several listeners each gets every event and leaves alone what is not its own.
        Without any, requests of the peer are refused at once.
        """
        self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        """Take back `listen`."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def on_closed(self, callback: Callable[[], None]) -> None:
        """Call once when the session is over."""
        self._on_closed.append(callback)

    def on_goaway(self, callback: Callable[[GoawayReceived], None]) -> None:
        """Call when the peer asks this session to leave."""
        self._on_goaway.append(callback)

    # The crank.

    def _receive(self, batch: Sequence[TransportEvent]) -> None:
        # The turn that follows does what a `wake` during the feed would ask for.
        self._is_turning = True
        try:
            is_fed = self._attempt(lambda: self._feed(batch))
        finally:
            self._is_turning = False
        if is_fed:
            self._turn()

    def _feed(self, batch: Sequence[TransportEvent]) -> None:
        session, inflow, now = self.session, self._inflow, self.now
        arrived = 0
        for event in batch:
            # Nearly all are of this kind.
            if isinstance(event, StreamData):
                stream_id, data, fin = event
                size_bytes = len(data)
                arrived += size_bytes
                if inflow is not None and (
                    reason := inflow.receive(stream_id, size_bytes, fin=fin)
                ):
                    self._limit(reason)
                session.receive_stream(stream_id, data, fin, now=now)
                # At once, since a batch may be larger than the processor's caches: Objects
                # are read while they are there, and their memory serves the next ones.
                if session.has_events or self._pending:
                    self._pass_on()
                    now = self.now
            else:
                arrived += self._feed_other(event, now)
        self._bytes_in += arrived
        if inflow is not None and (reason := inflow.admit(arrived, now=now)):
            self._limit(reason)

    def _feed_other(
        self, event: StreamReset | StopSendingReceived | Datagram | Closed, now: float
    ) -> int:
        """Give the session an event that is no bytes of a stream; return the octets it brings."""
        session = self.session
        match event:
            case StreamReset(stream_id, code):
                if self._inflow is not None:
                    self._inflow.end(stream_id)
                session.receive_reset(stream_id, code, now=now)
            case StopSendingReceived(stream_id, code):
                session.receive_stop_sending(stream_id, code, now=now)
            case Datagram(data):
                session.receive_datagram(data, now=now)
                return len(data)
            case Closed(code, reason, clean):
                if not session.is_closed:
                    self._is_clean = clean
                    session.connection_lost(ConnectionLost(code, reason), now=now)
            case _:
                assert_never(event)
        return 0

    def _limit(self, reason: str) -> None:
        """Close the session of a peer that sends too much."""
        if not self.session.is_closed:
            reason = f"excessive load: {reason}"
            self.session.close(TerminationCode.INTERNAL_ERROR, reason, now=self.now)

    def _pass_on(self) -> None:
        """Give the session's events to whoever listens."""
        pending = self._pending
        pending.extend(self.session.take_events())
        while pending:
            event = pending.popleft()
            if isinstance(event, _PAYLOADS) and not self._is_debug:
                # By far the most frequent: they answer nothing and end nothing.
                (self._by_request.get(event.request_id) or self._offer)(event)
                continue
            self._dispatch(event)
            # At once, since an answer can be a thousand times larger than the request.
            self._flush()

    def _turn(self) -> None:
        self._turn_due = False
        if self._is_turning:
            return
        self._is_turning = True
        try:
            self._attempt(self._crank)
        finally:
            self._is_turning = False

    def _crank(self) -> None:
        """Carry events, bytes and actions until nothing moves any more."""
        session, pending = self.session, self._pending
        while True:
            self._pass_on()
            if not session.is_closed:
                self._fill()
            self._flush()
            pending.extend(session.take_events())
            if not pending:
                break
        self._set_timer()

    def _fill(self) -> None:
        self.outbox.send(self.session, room=self._transport.room, now=self.now)
        if self.outbox.is_idle:
            self._outbox_empty.set()

    def _apply(self, actions: Sequence[Action]) -> None:
        write = self._transport.write
        for action in actions:
            # Nearly all are of this kind, and a class pattern for it takes three times as long.
            if isinstance(action, SendStream):
                stream_id, data, fin = action
                self._bytes_out += len(data)
                write(stream_id, data, fin=fin)
            else:
                self._command(action)

    def _command(
        self, action: SetPriority | ResetStream | StopSending | SendDatagram | CloseSession
    ) -> None:
        transport = self._transport
        match action:
            case SetPriority(stream_id, priority):
                transport.set_priority(stream_id, priority)
            case ResetStream(stream_id, code):
                transport.reset(stream_id, code)
            case StopSending(stream_id, code):
                transport.stop_sending(stream_id, code)
            case SendDatagram(data):
                transport.send_datagram(data)
            case CloseSession(code, reason):
                transport.close(code, reason)
            case _:
                assert_never(action)

    def _flush(self) -> None:
        """Apply what the session wants done, and see that the peer takes it."""
        actions = self.session.take_actions()
        if not actions:
            return
        self._apply(actions)
        queued = self._transport.queued_bytes
        if queued > self._max_queued_bytes and not self.session.is_closed:
            reason = f"{queued} bytes wait for a peer that does not read"
            self.session.close(TerminationCode.INTERNAL_ERROR, reason, now=self.now)
            self._apply(self.session.take_actions())

    def _set_timer(self) -> None:
        """Wake up at the earliest deadline; nearly always it only moved away, which may wait."""
        if self.session.is_closed:
            earliest = None
        else:
            deadlines = (self.session.next_deadline(), self.outbox.next_deadline())
            earliest = min((d for d in deadlines if d is not None), default=None)
        timer = self._timer
        if timer is not None and (earliest is None or earliest < self._timer_at):
            timer.cancel()
            timer = self._timer = None
        if earliest is not None and timer is None:
            self._timer = self._loop.call_at(earliest, self._advance, earliest)
            self._timer_at = earliest

    def _advance(self, deadline: float) -> None:
        """Let the session see a deadline; timers may fire a tick early."""
        self._timer = None
        self._time_floor = max(self._time_floor, deadline)
        if self._attempt(lambda: self.session.advance(now=self.now)):
            self._turn()

    def _attempt(self, step: Callable[[], None]) -> bool:
        """Take a step; an exception ends this session and no other."""
        try:
            step()
        except Exception:
            _logger.exception("session failed", extra={"peer": self.peer})
            self._fail()
            return False
        return True

    def _fail(self) -> None:
        """Close with INTERNAL_ERROR after a bug; listeners hear of the end nevertheless."""
        if not self.session.is_closed:
            self.session.close(TerminationCode.INTERNAL_ERROR, "internal error", now=self.now)
        self._apply(self.session.take_actions())
        events = (*self._pending, *self.session.take_events())
        self._pending.clear()
        for event in events:
            if isinstance(event, SessionClosed):
                self._end(event)

    # Dispatch.

    def _dispatch(self, event: Event) -> None:
        if self._is_debug:
            _logger.debug("event %s", event, extra={"peer": self.peer})
        if isinstance(event, SessionClosed):
            self._end(event)
            return
        self._note(event)
        request_id: RequestId | None = getattr(event, "request_id", None)
        listener = None if request_id is None else self._by_request.get(request_id)
        self._answers.receive(event)
        if listener is not None:
            listener(event)
        else:
            self._offer(event)
        if request_id is not None and isinstance(event, _LAST_WORDS):
            self.forget(request_id)

    def _note(self, event: Event) -> None:
        """Take what an event says about the session as a whole."""
        match event:
            case SetupComplete():
                self._ready.set()
            case GoawayReceived(request_id=None):
                for callback in self._on_goaway:
                    callback(event)
            case _:
                pass

    def _offer(self, event: Event) -> None:
        """Give an event to the listeners of the connection."""
        is_request = isinstance(event, _REQUESTS)
        self._requests += 1 if is_request else 0
        for listener in tuple(self._listeners):
            listener(event)
        if is_request and not self._listeners:
            with contextlib.suppress(LocalProtocolError):
                self.session.reject(
                    event.request_id,
                    RequestErrorCode.NOT_SUPPORTED,
                    reason="nobody here answers requests",
                    now=self.now,
                )

    def _end(self, event: SessionClosed) -> None:
        """Tell everybody that the session is over; one that fails keeps nobody from it."""
        if self._over.is_set():
            return
        self._error = event.error
        self._answers.fail(event.error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        listeners = [*self._by_request.values(), *self._listeners]
        self._by_request.clear()
        for listener in listeners:
            try:
                listener(event)
            except Exception:
                _logger.exception("listener failed at the end", extra={"peer": self.peer})
        for callback in self._on_closed:
            callback()
        self._over.set()
        self._ready.set()
        self._outbox_empty.set()
        self._log_life()

    def _log_life(self) -> None:
        """Say how the session went; what the peer broke is worth a look."""
        is_breach = isinstance(self._error, RemoteProtocolError)
        _logger.log(
            logging.WARNING if is_breach else logging.INFO,
            "session with %s over after %.3f s: %s; %d requests, %d bytes in, %d bytes out",
            self.peer,
            self.now - self._started_at,
            "clean close" if self._is_clean else self._error,
            self._requests,
            self._bytes_in,
            self._bytes_out,
            extra={"event": "session-closed", "peer": self.peer, "code": _code_name(self._error)},
        )


def _code_name(error: KvcsError | None) -> str:
    """Return the code that ended a session, for the log."""
    match error:
        case ProtocolError(code=code) | ConnectionLost(code=code):
            return TerminationCode(code).name if code in _CODES else f"{code:#x}"
        case _:
            return TerminationCode.NO_ERROR.name
