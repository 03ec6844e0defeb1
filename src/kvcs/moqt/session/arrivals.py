"""What arrives, and to which part of the session it goes.

Before the peer's SETUP everything but its control stream is held, since streams
overtake each other.

Source: MOQT draft 22, Sections 6.3 and 6.4.
"""

from typing import Final

from kvcs.errors import StreamResetCode
from kvcs.moqt.codepoints import StreamType
from kvcs.moqt.session.actions import StreamId
from kvcs.moqt.session.context import Context
from kvcs.moqt.session.held import HeldStreams
from kvcs.moqt.session.incoming import IncomingStreams
from kvcs.moqt.session.outgoing import OutgoingStreams
from kvcs.moqt.session.request_streams import RequestStreams
from kvcs.moqt.session.setup import ControlStreams
from kvcs.varint import NeedMore, decode_vi64

__all__ = ("Arrivals",)

_UNIDIRECTIONAL: Final = 2
_KEY: Final = "SETUP"
# After so many octets the type of a stream is known.
_MAX_TYPE_BYTES: Final = 9


class Arrivals:
    """The way of all bytes, resets and datagrams into a session."""

    def __init__(
        self,
        context: Context,
        control: ControlStreams,
        request_streams: RequestStreams,
        incoming: IncomingStreams,
        outgoing: OutgoingStreams,
    ) -> None:
        limits = context.limits
        self._context = context
        self._control = control
        self._request_streams = request_streams
        self._incoming = incoming
        self._outgoing = outgoing
        self._early = HeldStreams(
            limits.max_pending_streams, limits.max_early_bytes, context.partial
        )
        # Streams that did not fit; the rest of them is dropped.
        self._refused: set[StreamId] = set()

    def receive(self, stream_id: StreamId, data: bytes | memoryview, *, fin: bool) -> None:
        """Take bytes of any stream."""
        if stream_id == self._control.peer_stream_id:
            self._receive_control(data, fin=fin)
        elif self._refused and stream_id in self._refused:
            if fin:
                self._refused.discard(stream_id)
        elif not self._control.is_complete:
            self._receive_early(stream_id, data, fin=fin)
        elif stream_id & _UNIDIRECTIONAL:
            self._incoming.receive(stream_id, data, fin=fin)
        else:
            self._request_streams.receive(stream_id, data, fin=fin)

    def receive_reset(self, stream_id: StreamId, code: int) -> None:
        """Take a reset of any stream."""
        self._refused.discard(stream_id)
        self._early.drop(stream_id)
        if stream_id == self._control.peer_stream_id:
            self._control.receive_end()
        elif stream_id & _UNIDIRECTIONAL:
            self._incoming.receive_reset(stream_id, code)
        else:
            self._request_streams.receive_reset(stream_id, code)

    def receive_stop(self, stream_id: StreamId, code: int) -> None:
        """Take a STOP_SENDING for any stream."""
        if self._control.owns(stream_id):
            self._control.receive_end()
        elif stream_id & _UNIDIRECTIONAL:
            self._outgoing.receive_stop(stream_id, code)
        else:
            self._request_streams.receive_stop(stream_id, code)

    def receive_datagram(self, data: bytes | memoryview) -> None:
        """Take a datagram; one that is earlier than SETUP counts as lost."""
        if self._control.is_complete:
            self._incoming.receive_datagram(data)

    def give_up(self, size_bytes: int) -> None:
        """End streams until so many octets of what is not whole are free, or all."""
        partial = self._context.partial
        left = partial.size_bytes - size_bytes
        for held in self._early.surplus():
            partial.note_given_up()
            self._refuse(held.stream_id, fin=held.fin)
            if partial.size_bytes <= left:
                return
        self._incoming.give_up(left)

    def _receive_control(self, data: bytes | memoryview, *, fin: bool) -> None:
        was_complete = self._control.is_complete
        self._control.receive(data, fin=fin)
        if self._control.is_complete and not was_complete:
            for held in self._early.release(_KEY):
                self.receive(held.stream_id, bytes(held.data), fin=held.fin)

    def _receive_early(self, stream_id: StreamId, data: bytes | memoryview, *, fin: bool) -> None:
        if stream_id & _UNIDIRECTIONAL and self._begins_control(stream_id, data):
            held = self._early.drop(stream_id)
            begun = bytes(held.data) if held is not None else b""
            self._control.peer_stream_id = stream_id
            self._receive_control(begun + data if begun else data, fin=fin)
        elif not self._early.hold(_KEY, stream_id, data, fin=fin, now=self._context.now):
            self._refuse(stream_id, fin=fin)

    def _begins_control(self, stream_id: StreamId, data: bytes | memoryview) -> bool:
        held = self._early.peek(stream_id)
        if self._control.peer_stream_id is not None or (held and len(held.data) >= _MAX_TYPE_BYTES):
            return False
        begun = bytes(held.data) if held is not None else b""
        try:
            stream_type = decode_vi64(begun + data if begun else data)[0]
        except NeedMore:
            return False
        return stream_type == StreamType.CONTROL

    def _refuse(self, stream_id: StreamId, *, fin: bool) -> None:
        code = StreamResetCode.EXCESSIVE_LOAD
        if not fin:
            self._context.stop(stream_id, code)
            self._refused.add(stream_id)
        if not stream_id & _UNIDIRECTIONAL:
            self._context.reset(stream_id, code)
