"""What a session sends beside messages: its data streams and datagrams.

A command for a stream that the peer has ended abruptly, or in a session that is over, is
ignored, since the event that says so may not have been read yet; only opening one raises.

Source: MOQT draft 22, Sections 11.2 to 11.4.
"""

from kvcs.errors import LocalProtocolError
from kvcs.moqt.codepoints import GroupOrder, RangeMarker
from kvcs.moqt.session.actions import RequestId, StreamId
from kvcs.moqt.session.context import Context
from kvcs.moqt.session.outgoing import OutgoingStreams
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.names import Location

__all__ = ("SendingSession",)


class SendingSession:
    """The part of a `Session` that writes data."""

    def __init__(self, context: Context, outgoing: OutgoingStreams) -> None:
        self._closed = False
        self._context = context
        self._outgoing = outgoing

    def is_open(self, stream_id: StreamId) -> bool:
        """Tell whether a data stream of ours can be written."""
        return not self._closed and stream_id in self._outgoing

    def open_subgroup(
        self, request_id: RequestId, header: SubgroupHeader, *, priority: int, now: float
    ) -> StreamId:
        """Open a Subgroup stream; the session fills in the Track Alias."""
        self._living(now)
        return self._outgoing.open_subgroup(request_id, header, priority=priority)

    def open_fetch_stream(
        self,
        request_id: RequestId,
        *,
        order: GroupOrder = GroupOrder.ASCENDING,
        priority: int,
        now: float,
    ) -> StreamId:
        """Open the stream of a FETCH or of a fill.

        Args:
            request_id: The FETCH; or the SUBSCRIBE, PUBLISH or REQUEST_UPDATE
                (`UpdateReceived.update_id`) that asked for the fill.
            order: Order of Groups.
            priority: QUIC priority, an even value from 4.
            now: Monotonic seconds.
        """
        self._living(now)
        return self._outgoing.open_fetch(request_id, order=order, priority=priority)

    def send_object(self, stream_id: StreamId, obj: Object, *, now: float) -> int:
        """Write an Object; its payload becomes an action of its own, uncopied.

        Returns:
            Octets on the stream; 0 when it was ignored.
        """
        return self._outgoing.send_object(stream_id, obj) if self._command(now) else 0

    def begin_object(
        self, stream_id: StreamId, obj: Object, payload_length: int, *, now: float
    ) -> None:
        """Write the header of an Object whose payload is not whole yet.

        `send_payload` gives the payload, in any number of parts; until the last of them nothing
        else can be written on the stream, and it can end with a reset alone.

        Args:
            stream_id: The data stream.
            obj: The Object, with an empty payload.
            payload_length: Octets of the payload, at least one.
            now: Monotonic seconds.
        """
        if self._command(now):
            self._outgoing.begin_object(stream_id, obj, payload_length)

    def send_payload(self, stream_id: StreamId, data: bytes, *, now: float) -> None:
        """Write the next octets of an Object that was begun with `begin_object`."""
        if self._command(now):
            self._outgoing.send_payload(stream_id, data)

    def send_marker(
        self, stream_id: StreamId, marker: RangeMarker, location: Location, *, now: float
    ) -> None:
        """Write an End of Range record on a fetch stream."""
        if self._command(now):
            self._outgoing.send_marker(stream_id, marker, location)

    def finish_stream(self, stream_id: StreamId, *, now: float) -> None:
        """End a data stream with FIN: all that belongs on it was sent."""
        if self._command(now):
            self._outgoing.finish(stream_id)

    def reset_stream(self, stream_id: StreamId, code: int, *, now: float) -> None:
        """End a data stream early, with a code of Section 12.5."""
        if self._command(now):
            self._outgoing.reset(stream_id, code)

    def abandon_stream(self, stream_id: StreamId, code: int, *, now: float) -> None:
        """End a data stream early although it may have ended with FIN.

        What the transport has not sent of it is not sent.
        """
        if self._command(now):
            self._outgoing.abandon(stream_id, code)

    def set_stream_priority(self, stream_id: StreamId, priority: int, *, now: float) -> None:
        """Rank a data stream anew."""
        if self._command(now):
            self._outgoing.prioritize(stream_id, priority)

    def send_datagram(
        self, request_id: RequestId, obj: Object, *, end_of_group: bool = False, now: float
    ) -> None:
        """Send an Object of a subscription in a datagram, which may be lost.

        Args:
            request_id: The subscription.
            obj: The Object, of no Subgroup.
            end_of_group: It is known that its Group has no larger one.
            now: Monotonic seconds.
        """
        if self._command(now):
            self._outgoing.send_datagram(request_id, obj, end_of_group=end_of_group)

    def _command(self, now: float) -> bool:
        """Note the time of a command; tell whether it can still matter."""
        if not self._closed:
            self._context.now = now
        return not self._closed

    def _living(self, now: float) -> None:
        """Note the time of a command that opens something."""
        if self._closed:
            raise LocalProtocolError("the session is closed")
        self._context.now = now
