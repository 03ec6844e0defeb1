"""One connection of the library: its commands, its events and its errors in our terms."""

# The library ships no types: what it hands out is unknown to the checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import logging
from collections.abc import Callable
from typing import Final

from aiopquic.quic.connection import QuicConnection
from aiopquic.quic.events import (
    ConnectionTerminated,
    DatagramFrameReceived,
    QuicEvent,
    StopSendingReceived,
    StreamDataReceived,
)
from aiopquic.quic.events import StreamReset as StreamResetReceived

from kvcs.transport.interface import Datagram, StopSending, StreamData, StreamReset, TransportEvent
from kvcs.transport.quic_transport import QuicTransport

__all__ = (
    "APPLICATION_CLOSE",
    "CONNECTION",
    "NO_APPLICATION_PROTOCOL",
    "STREAM_CONTEXT",
    "STREAM_FIN",
    "WAKE_BYTES",
    "LibraryConnection",
    "ServerConnection",
    "quic_error",
    "receive_end",
    "translate",
)

#: Most bytes taken in one wake, so that the loop gets its turn.
WAKE_BYTES: Final = 8 * 2**20
#: Events of the library's ring: 0 is bytes of a stream, 1 the last ones of it; the peer closed with
#: an application code.
STREAM_FIN: Final = 1
APPLICATION_CLOSE: Final = 5
#: Places in such an event: the connection, 0 being the context itself, which is ready; and the
#: library's record of the stream.
CONNECTION: Final = 5
STREAM_CONTEXT: Final = 6

NO_APPLICATION_PROTOCOL: Final = 0x178
_QUIC_ERRORS: Final = {
    0x1: "internal error",
    0x2: "connection refused",
    0x3: "flow control error",
    0x4: "stream limit error",
    0xA: "protocol violation",
    0x12A: "TLS: bad certificate",
    0x12D: "TLS: certificate expired",
    0x130: "TLS: unknown certificate authority",
    NO_APPLICATION_PROTOCOL: "TLS: no common application protocol",
    # The library's own, for what no frame carries.
    0x41E: "stateless reset: the peer has forgotten the connection, or was started anew",
}


_logger = logging.getLogger("kvcs.transport")
# The library warns of every reset and close; those reach the user as events.
logging.getLogger("aiopquic").addHandler(logging.NullHandler())


class LibraryConnection:
    """One connection of the library, its exceptions and return values mapped (`QuicLibrary`)."""

    def __init__(self, quic: QuicConnection) -> None:
        self._quic = quic
        # Asked for every stream at every look.
        self.used: Callable[[int], int] = quic.tx_data_ring_used

    def push(self, stream_id: int, data: bytes, *, fin: bool) -> bool:
        """Put all of `data` into the ring of a stream, or nothing and return False."""
        try:
            self._quic.send_stream_data(stream_id, data, fin)
        except (BufferError, MemoryError):
            return False
        except ConnectionError:
            pass
        return True

    def reset(self, stream_id: int, code: int) -> bool:
        """Send RESET_STREAM."""
        return self._taken(lambda: self._quic.reset_stream(stream_id, code))

    def stop_sending(self, stream_id: int, code: int) -> bool:
        """Send STOP_SENDING."""
        return self._taken(lambda: self._quic.stop_stream(stream_id, code))

    def set_priority(self, stream_id: int, priority: int) -> bool:
        """Rank a stream."""
        return self._taken(lambda: self._quic.set_stream_priority(stream_id, priority))

    def send_datagram(self, data: bytes) -> None:
        """Send a datagram, or drop it."""
        try:
            self._quic.send_datagram_frame(data)
        except (ConnectionError, ValueError) as error:
            _logger.debug("datagram dropped: %s", error)

    def close(self, code: int) -> bool:
        """Send CONNECTION_CLOSE; what is queued is lost."""
        return self._taken(lambda: self._quic.close(code))

    def is_acknowledged(self, stream_id: int) -> bool:
        """The library forgets a stream that we finished with the last acknowledgement."""
        return self._quic.get_stream_buf_stats(stream_id) is None

    def max_bidi_streams(self) -> int | None:
        """Bidirectional streams that the peer lets us have open; None while that is not known."""
        told = self._quic.peer_transport_parameters
        return None if told is None else int(told["initial_max_streams_bidi"])

    def bytes_in_transit(self) -> int:
        """Bytes in packets without an acknowledgement; a recent snapshot."""
        return int(self._quic.path_quality().get("bytes_in_transit", 0))

    def _taken(self, call: Callable[[], int | None]) -> bool:
        """Make a call: 1, or an exception about room, means that nothing was taken."""
        try:
            return call() != 1
        except (BufferError, MemoryError):
            return False
        except ConnectionError:
            return True


class ServerConnection(LibraryConnection):
    """One connection of a server: gives no command before all that happened is known.

    The worker looks a command's connection up by its address alone. A connection that is over takes
    no commands, and once it is known to be over none of its commands waits for the worker.
    """

    def __init__(self, quic: QuicConnection, look: Callable[[], None]) -> None:
        super().__init__(quic)
        self._look = look

    def push(self, stream_id: int, data: bytes, *, fin: bool) -> bool:
        """Put all of `data` into the ring of a stream, or nothing and return False."""
        self._look()
        return super().push(stream_id, data, fin=fin)

    def send_datagram(self, data: bytes) -> None:
        """Send a datagram, or drop it."""
        self._look()
        super().send_datagram(data)

    def _taken(self, call: Callable[[], int | None]) -> bool:
        self._look()
        return super()._taken(call)


def translate(event: QuicEvent) -> TransportEvent | None:
    """Return an event in our terms; None for the beginning and the end of a connection."""
    match event:
        case StreamDataReceived():
            return StreamData(event.stream_id, event.data, event.end_stream)
        case StreamResetReceived():
            return StreamReset(event.stream_id, event.error_code)
        case StopSendingReceived():
            return StopSending(event.stream_id, event.error_code)
        case DatagramFrameReceived():
            return Datagram(event.data)
        case _:
            return None


def receive_end(transport: QuicTransport, event: QuicEvent, *, by_application: bool) -> None:
    """Tell a transport of the end of its connection; other events are ignored."""
    if isinstance(event, ConnectionTerminated):
        _receive_close(transport, event.error_code, by_application=by_application)


def _receive_close(transport: QuicTransport, code: int, *, by_application: bool) -> None:
    """Tell why a connection is over; the library says code 0 for a peer that vanished."""
    if by_application:
        transport.receive_close(code, "closed by the peer", clean=not code)
    elif code:
        transport.receive_close(0, f"QUIC error: {quic_error(code)}")
    else:
        timeout = transport.config.idle_timeout
        transport.receive_close(0, f"no packet from the peer for {timeout:g} s (idle timeout)")


def quic_error(code: int) -> str:
    """Return the name of a QUIC error code, for people."""
    return f"{_QUIC_ERRORS.get(code, 'TLS alert' if code & 0x100 else 'error')} ({code:#x})"
