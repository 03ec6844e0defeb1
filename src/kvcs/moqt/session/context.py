"""What all parts of one session share: what goes out, stream numbers, deadlines, `now`."""

from kvcs.errors import LocalProtocolError
from kvcs.moqt.session.actions import (
    Action,
    ResetStream,
    SendStream,
    SetPriority,
    StopSending,
    StreamId,
)
from kvcs.moqt.session.deadlines import Deadlines, Timer
from kvcs.moqt.session.events import Event
from kvcs.moqt.session.limits import SessionConfig, Side
from kvcs.moqt.session.partial import PartialShare
from kvcs.moqt.wire.setup import SetupOptions

__all__ = ("CONTROL_PRIORITY", "REQUEST_PRIORITY", "Context")

CONTROL_PRIORITY = 0
REQUEST_PRIORITY = 2

# Bits of a QUIC stream id: who opened it, and whether it goes one way only.
_SERVER_OPENED = 1
_UNIDIRECTIONAL = 2


class Context:
    """Shared state of the parts of a session.

    Attributes:
        side: Which end of the connection this is.
        config: Settings of the session.
        limits: The bounds in `config`.
        now: Monotonic seconds of the input or command that is being worked on.
        actions: Pending actions.
        events: Pending events.
        deadlines: What is waited for.
        peer_options: The peer's SETUP, once it arrived.
        partial_bytes: Octets held of unfinished Objects, on all streams.
        partial: Those, and of streams that wait, for a budget that sessions share.
        goaway_sent: We have asked the peer to leave.
    """

    __slots__ = (
        "_next_bidirectional",
        "_next_unidirectional",
        "actions",
        "config",
        "deadlines",
        "events",
        "goaway_sent",
        "limits",
        "now",
        "partial",
        "partial_bytes",
        "peer_options",
        "side",
    )

    def __init__(self, side: Side, config: SessionConfig) -> None:
        self.side = side
        self.config = config
        self.limits = config.limits
        self.now = 0.0
        self.actions: list[Action] = []
        self.events: list[Event] = []
        self.deadlines = Deadlines()
        self.peer_options: SetupOptions | None = None
        self.partial_bytes = 0
        self.partial = PartialShare()
        self.goaway_sent = False
        self._next_bidirectional = side.value
        self._next_unidirectional = side.value | _UNIDIRECTIONAL

    def is_local(self, stream_id: StreamId) -> bool:
        """Tell whether we opened a stream."""
        return stream_id & _SERVER_OPENED == self.side.value

    def open_bidirectional(self) -> StreamId:
        """Number a new request stream."""
        stream_id = StreamId(self._next_bidirectional)
        self._next_bidirectional += 4
        return stream_id

    def open_unidirectional(self) -> StreamId:
        """Number a new control or data stream."""
        stream_id = StreamId(self._next_unidirectional)
        self._next_unidirectional += 4
        return stream_id

    def emit(self, event: Event) -> None:
        """Tell the application."""
        self.events.append(event)

    def send(self, stream_id: StreamId, data: bytes, *, fin: bool = False) -> None:
        """Send on a stream."""
        self.actions.append(SendStream(stream_id, data, fin))

    def prioritize(self, stream_id: StreamId, priority: int) -> None:
        """Rank a stream that is open.

        Raises:
            LocalProtocolError: `priority` is not in 0..255.
        """
        if not 0 <= priority <= 255:
            raise LocalProtocolError(f"stream priority is 0..255, got {priority}")
        self.actions.append(SetPriority(stream_id, priority))

    def reset(self, stream_id: StreamId, code: int) -> None:
        """End our direction of a stream abruptly."""
        self.actions.append(ResetStream(stream_id, code))

    def stop(self, stream_id: StreamId, code: int) -> None:
        """Ask the peer to end its direction of a stream."""
        self.actions.append(StopSending(stream_id, code))

    def wait(self, timer: Timer, subject: int, timeout: float) -> None:
        """Wait `timeout` seconds from now."""
        self.deadlines.set(timer, subject, self.now + timeout)
