"""Data streams of ours: what may be written on them, and their ends.

Source: MOQT draft 22, Sections 11.3 and 11.4.
"""

from collections.abc import Callable
from typing import Protocol

from kvcs.errors import LocalProtocolError
from kvcs.moqt.codepoints import GroupOrder, RangeMarker
from kvcs.moqt.session.actions import RequestId, SendDatagram, SendStream, StreamId
from kvcs.moqt.session.context import Context
from kvcs.moqt.session.events import StreamStopped
from kvcs.moqt.session.registry import Registry
from kvcs.moqt.session.state import Input, Request, RequestKind
from kvcs.moqt.wire.datagram import ObjectDatagram
from kvcs.moqt.wire.fetch_stream import FetchEncoder, FetchHeader
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.subgroup import SubgroupHeader, encode_object_header
from kvcs.names import Location

__all__ = ("OutgoingStreams",)


class _Writer(Protocol):
    """How Objects are written on a stream."""

    def object_header(self, obj: Object, payload_length: int | None = None) -> bytes: ...


class _SubgroupWriter:
    """Writes Objects of one Subgroup, all of one Group and one priority."""

    __slots__ = ("_header", "_previous_object_id")

    def __init__(self, header: SubgroupHeader) -> None:
        self._header = header
        self._previous_object_id: int | None = None

    def object_header(self, obj: Object, payload_length: int | None = None) -> bytes:
        header = self._header
        if obj.group_id != header.group_id:
            raise LocalProtocolError(
                f"Object {obj.location} on a Subgroup stream of Group {header.group_id}"
            )
        encoded = encode_object_header(
            obj,
            previous_object_id=self._previous_object_id,
            has_properties=header.has_properties,
            payload_length=payload_length,
        )
        self._previous_object_id = obj.object_id
        return encoded


class _Stream:
    """One open data stream of ours.

    Attributes:
        request: The subscription or FETCH.
        writer: How Objects stand on it.
        missing: Octets of the begun payload that were not given yet.
    """

    __slots__ = ("missing", "request", "writer")

    def __init__(self, request: Request, writer: _Writer) -> None:
        self.request = request
        self.writer = writer
        self.missing = 0


class OutgoingStreams:
    """All data streams and datagrams that we send."""

    __slots__ = ("_context", "_ended_early", "_on_data_end", "_registry", "_streams")

    def __init__(
        self, context: Context, registry: Registry, on_data_end: Callable[[Request], None]
    ) -> None:
        self._context = context
        self._registry = registry
        self._on_data_end = on_data_end
        self._streams: dict[StreamId, _Stream] = {}
        self._ended_early: dict[StreamId, None] = {}

    def __repr__(self) -> str:
        return f"OutgoingStreams({len(self._streams)} open)"

    def __contains__(self, stream_id: StreamId) -> bool:
        return stream_id in self._streams

    def open_subgroup(
        self, request_id: RequestId, header: SubgroupHeader, *, priority: int
    ) -> StreamId:
        """Open a Subgroup stream of a subscription."""
        request = self._registry.find(request_id)
        if request is None or not request.is_subscription or request.track_alias is None:
            raise LocalProtocolError(f"request {request_id} takes no Subgroup stream")
        header = header._replace(track_alias=request.track_alias)
        return self._open(request, header.encode(), _SubgroupWriter(header), priority=priority)

    def open_fetch(self, trigger_id: RequestId, *, order: GroupOrder, priority: int) -> StreamId:
        """Open the stream of a FETCH, or of a fill."""
        request = self._registry.triggered_by(trigger_id)
        if request is None:
            raise LocalProtocolError(f"request {trigger_id} takes no fetch stream")
        if request.kind is RequestKind.FETCH and request.streams_opened:
            raise LocalProtocolError(f"a second stream for FETCH {trigger_id}")
        header = FetchHeader(trigger_id).encode()
        return self._open(request, header, FetchEncoder(order), priority=priority)

    def send_object(self, stream_id: StreamId, obj: Object) -> int:
        """Write an Object: its header and its payload, as two actions; return their octets."""
        stream = self._streams.get(stream_id) or self._find(stream_id)
        if stream is None:
            return 0
        if stream.missing:
            raise _inside_object(stream_id)
        actions = self._context.actions
        header = stream.writer.object_header(obj)
        actions.append(SendStream(stream_id, header))
        payload = obj.payload
        if payload:
            actions.append(SendStream(stream_id, payload))
        return len(header) + len(payload)

    def begin_object(self, stream_id: StreamId, obj: Object, payload_length: int) -> None:
        """Write the header of an Object whose payload follows in parts."""
        stream = self._find(stream_id)
        if stream is None:
            return
        if stream.missing:
            raise _inside_object(stream_id)
        if payload_length <= 0 or obj.payload:
            raise LocalProtocolError("a payload that follows has octets, and none of them is here")
        header = stream.writer.object_header(obj, payload_length)
        stream.missing = payload_length
        self._context.send(stream_id, header)

    def send_payload(self, stream_id: StreamId, data: bytes) -> None:
        """Write the next octets of a begun payload."""
        stream = self._find(stream_id)
        if stream is None:
            return
        if len(data) > stream.missing:
            raise LocalProtocolError(
                f"{len(data)} octets of a payload on stream {stream_id}, {stream.missing} are left"
            )
        stream.missing -= len(data)
        self._context.send(stream_id, data)

    def send_marker(self, stream_id: StreamId, marker: RangeMarker, location: Location) -> None:
        """Write an End of Range record on a fetch stream."""
        stream = self._find(stream_id)
        if stream is None:
            return
        if not isinstance(stream.writer, FetchEncoder):
            raise LocalProtocolError(f"an End of Range record on Subgroup stream {stream_id}")
        if stream.missing:
            raise _inside_object(stream_id)
        self._context.send(stream_id, stream.writer.marker(marker, location))

    def prioritize(self, stream_id: StreamId, priority: int) -> None:
        """Rank a stream anew."""
        if self._find(stream_id) is not None:
            self._context.prioritize(stream_id, priority)

    def finish(self, stream_id: StreamId) -> None:
        """End a stream with FIN: all that belongs on it was sent."""
        stream = self._find(stream_id)
        if stream is not None and stream.missing:
            raise _inside_object(stream_id)
        if stream is not None:
            self._context.send(stream_id, b"", fin=True)
            self._close(stream_id, stream)

    def reset(self, stream_id: StreamId, code: int) -> None:
        """End a stream early."""
        stream = self._find(stream_id)
        if stream is not None:
            self._context.reset(stream_id, code)
            self._close(stream_id, stream)

    def abandon(self, stream_id: StreamId, code: int) -> None:
        """End a stream early that is open, or has ended with FIN and was not all sent."""
        if stream_id in self._streams:
            self.reset(stream_id, code)
        else:
            self._context.reset(stream_id, code)

    def reset_all(self, request: Request, code: int) -> None:
        """End all streams of a request early."""
        for stream_id in sorted(request.outgoing):
            self._remember(stream_id)
            self.reset(stream_id, code)

    def receive_stop(self, stream_id: StreamId, code: int) -> None:
        """Reset a stream that the peer does not want any more."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._remember(stream_id)
            self._context.emit(StreamStopped(stream.request.request_id, stream_id, code))
            self.reset(stream_id, code)

    def send_datagram(self, request_id: RequestId, obj: Object, *, end_of_group: bool) -> None:
        """Send an Object of a subscription in a datagram."""
        request = self._registry.find(request_id)
        if request is None:
            return
        request.advance(Input.SEND_DATA)
        if request.track_alias is None:
            raise LocalProtocolError(f"request {request_id} takes no datagram")
        datagram = ObjectDatagram.of(
            obj, track_alias=request.track_alias, end_of_group=end_of_group
        )
        self._context.actions.append(SendDatagram(datagram.encode()))

    def _open(self, request: Request, header: bytes, writer: _Writer, *, priority: int) -> StreamId:
        request.advance(Input.SEND_DATA)
        context = self._context
        stream_id = context.open_unidirectional()
        context.send(stream_id, header)
        context.prioritize(stream_id, priority)
        self._streams[stream_id] = _Stream(request, writer)
        request.outgoing.add(stream_id)
        request.streams_opened += 1
        return stream_id

    def _find(self, stream_id: StreamId) -> _Stream | None:
        stream = self._streams.get(stream_id)
        if stream is None and stream_id not in self._ended_early:
            raise LocalProtocolError(f"there is no open data stream {stream_id} of ours")
        return stream

    def _close(self, stream_id: StreamId, stream: _Stream) -> None:
        del self._streams[stream_id]
        stream.request.outgoing.discard(stream_id)
        self._on_data_end(stream.request)

    def _remember(self, stream_id: StreamId) -> None:
        # Commands for a stream that the peer has ended cross the event that says so.
        self._ended_early[stream_id] = None
        if len(self._ended_early) > self._context.limits.max_tombstones:
            del self._ended_early[next(iter(self._ended_early))]


def _inside_object(stream_id: StreamId) -> LocalProtocolError:
    return LocalProtocolError(f"stream {stream_id} stands inside an Object")
