"""The control streams: SETUP in both directions, then GOAWAY.

Each endpoint opens one unidirectional stream that begins with SETUP. The peer's may
arrive before or after requests and data that were sent later.

Source: MOQT draft 22, Sections 6.3, 6.6.1, 9.1 and 9.2.
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import Final

from kvcs.errors import LocalProtocolError, RemoteProtocolError, TerminationCode
from kvcs.moqt.session.actions import RequestId, StreamId
from kvcs.moqt.session.context import CONTROL_PRIORITY, Context
from kvcs.moqt.session.deadlines import Timer
from kvcs.moqt.session.events import GoawayReceived, SetupComplete
from kvcs.moqt.session.limits import Side
from kvcs.moqt.session.message_stream import MessageStream
from kvcs.moqt.session.tokens import TokenCache, token_surplus
from kvcs.moqt.wire.buffer import violation
from kvcs.moqt.wire.goaway import Goaway
from kvcs.moqt.wire.message import Message
from kvcs.moqt.wire.setup import Setup, SetupOptions

__all__ = ("CONTROL_STREAM", "ControlInput", "ControlState", "ControlStreams", "goaway_event")


class ControlState(Enum):
    """What the peer has said on its control stream."""

    SILENT = auto()
    OPEN = auto()
    GOING_AWAY = auto()


class ControlInput(Enum):
    """What can come on the peer's control stream."""

    SETUP = auto()
    GOAWAY = auto()
    END = auto()


# Section 6.3: SETUP first, at most one GOAWAY after it, and never an end.
CONTROL_STREAM: Final[Mapping[tuple[ControlState, ControlInput], ControlState]] = {
    (ControlState.SILENT, ControlInput.SETUP): ControlState.OPEN,
    (ControlState.OPEN, ControlInput.GOAWAY): ControlState.GOING_AWAY,
}


class ControlStreams:
    """Our control stream and the peer's.

    Attributes:
        peer_stream_id: The peer's control stream, once it is known.
    """

    __slots__ = ("_context", "_messages", "_state", "_stream_id", "_tokens", "peer_stream_id")

    def __init__(self, context: Context, tokens: TokenCache) -> None:
        self._context = context
        self._tokens = tokens
        self._messages = MessageStream()
        self._state = ControlState.SILENT
        self._stream_id: StreamId | None = None
        self.peer_stream_id: StreamId | None = None

    @property
    def is_started(self) -> bool:
        """Whether our SETUP was sent."""
        return self._stream_id is not None

    @property
    def is_complete(self) -> bool:
        """Whether the peer's SETUP was received."""
        return self._state is not ControlState.SILENT

    def start(self) -> None:
        """Open our control stream with SETUP."""
        if self._stream_id is not None:
            raise LocalProtocolError("the session was started already")
        context = self._context
        options = context.config.options
        if context.side is Side.SERVER and (options.path, options.authority) != (None, None):
            raise LocalProtocolError("PATH and AUTHORITY are for clients")
        self._stream_id = context.open_unidirectional()
        context.send(self._stream_id, Setup(options).encode())
        context.prioritize(self._stream_id, CONTROL_PRIORITY)
        context.wait(Timer.SETUP, 0, context.limits.setup_timeout)

    def receive(self, data: bytes | memoryview, *, fin: bool) -> None:
        """Take bytes of the peer's control stream."""
        for message in self._messages.receive(data, fin=fin):
            self._receive_message(message)
        if fin:
            self.receive_end()
        self._watch()

    def receive_end(self) -> None:
        """Refuse the end of a control stream, by FIN, reset or STOP_SENDING."""
        self._advance(ControlInput.END)

    def send_goaway(self, uri: str, timeout: float) -> None:
        """Send GOAWAY for the whole session."""
        context = self._context
        if self._stream_id is None:
            raise LocalProtocolError("GOAWAY before SETUP")
        if context.goaway_sent:
            raise LocalProtocolError("a second GOAWAY")
        message = Goaway.of(uri, timeout, is_client=context.side is Side.CLIENT)
        context.send(self._stream_id, message.encode())
        context.goaway_sent = True
        context.wait(Timer.GOAWAY, 0, timeout or context.limits.goaway_timeout)

    def owns(self, stream_id: StreamId) -> bool:
        """Tell whether a stream is one of the two control streams."""
        return stream_id in {self._stream_id, self.peer_stream_id}

    def _receive_message(self, message: Message) -> None:
        match message:
            case Setup(options):
                self._advance(ControlInput.SETUP)
                self._receive_setup(options)
            case Goaway():
                self._advance(ControlInput.GOAWAY)
                self._context.emit(goaway_event(message, self._context.side, None))
            case _:
                raise violation(f"{type(message).__name__} on the control stream")

    def _receive_setup(self, options: SetupOptions) -> None:
        context = self._context
        if context.side is Side.CLIENT:
            _check_server_options(options)
        else:
            _check_client_options(options)
        surplus = token_surplus(options.authorization_tokens, context.limits)
        if surplus is not None:
            reason = f"excessive load: {surplus}"
            raise RemoteProtocolError(TerminationCode.INTERNAL_ERROR, reason)
        tokens = self._tokens.resolve_setup(options.authorization_tokens)
        context.peer_options = replace(options, authorization_tokens=tokens)
        context.deadlines.clear(Timer.SETUP, 0)
        context.emit(SetupComplete(context.peer_options))

    def _advance(self, step: ControlInput) -> None:
        following = CONTROL_STREAM.get((self._state, step))
        if following is None:
            raise violation(f"{step.name} on the control stream, {self._state.name}")
        self._state = following

    def _watch(self) -> None:
        context = self._context
        if not self._messages.is_unfinished:
            context.deadlines.clear(Timer.CONTROL_MESSAGE, -1)
        elif not context.deadlines.is_set(Timer.CONTROL_MESSAGE, -1):
            context.wait(Timer.CONTROL_MESSAGE, -1, context.limits.control_message_timeout)


def goaway_event(message: Goaway, side: Side, request_id: RequestId | None) -> GoawayReceived:
    """Check a GOAWAY that `side` received.

    Raises:
        RemoteProtocolError: A client named a URI.
    """
    if message.uri and side is Side.SERVER:
        raise violation("the GOAWAY of a client names a URI")
    return GoawayReceived(message.uri, message.timeout_ms / 1000, request_id)


def _check_server_options(options: SetupOptions) -> None:
    if options.path is not None:
        raise RemoteProtocolError(TerminationCode.INVALID_PATH, "PATH from a server")
    if options.authority is not None:
        raise RemoteProtocolError(TerminationCode.INVALID_AUTHORITY, "AUTHORITY from a server")


def _check_client_options(options: SetupOptions) -> None:
    path, authority = options.path, options.authority
    # path-abempty is empty or begins with a slash; a query may follow either (RFC 3986).
    if path is not None and not (_is_visible(path) and path[:1] in {b"", b"/", b"?"}):
        raise RemoteProtocolError(TerminationCode.MALFORMED_PATH, "PATH is no path of a URI")
    if authority is not None and not (authority and _is_visible(authority)):
        raise RemoteProtocolError(
            TerminationCode.MALFORMED_AUTHORITY, "AUTHORITY is no authority of a URI"
        )


def _is_visible(octets: bytes) -> bool:
    return all(0x21 <= octet <= 0x7E for octet in octets)
