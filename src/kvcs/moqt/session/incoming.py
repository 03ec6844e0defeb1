"""Data streams of the peer: which request they belong to, and their ends.

A stream is opening until its header is complete; held while the message that explains
it is missing; open; or discarded, when nobody wants the rest of it.

Source: MOQT draft 22, Sections 3.1.3, 6.4.1, 11.2 and 11.5.
"""

from collections.abc import Callable, Iterator
from typing import Final

from kvcs.errors import StreamError, StreamResetCode
from kvcs.moqt.codepoints import GroupOrder, StreamType
from kvcs.moqt.session.actions import RequestId, StreamId, TrackAlias
from kvcs.moqt.session.aliases import Aliases
from kvcs.moqt.session.context import Context
from kvcs.moqt.session.data_stream import DataStream, FetchRecords, Records, SubgroupRecords
from kvcs.moqt.session.deadlines import Timer
from kvcs.moqt.session.events import (
    DatagramReceived,
    FetchOpened,
    StreamAborted,
    StreamFinished,
    SubgroupOpened,
)
from kvcs.moqt.session.held import HeldStreams, LostStream, LostStreams
from kvcs.moqt.session.registry import Registry
from kvcs.moqt.session.state import Request, RequestKind, State
from kvcs.moqt.wire.buffer import Reader, violation
from kvcs.moqt.wire.datagram import ObjectDatagram, is_padding_datagram
from kvcs.moqt.wire.fetch_stream import FetchHeader
from kvcs.moqt.wire.subgroup import SubgroupHeader, is_subgroup_type
from kvcs.varint import NeedMore, decode_vi64

__all__ = ("IncomingStreams",)

_CANCELLED: Final = StreamResetCode.CANCELLED
_EXCESSIVE_LOAD: Final = StreamResetCode.EXCESSIVE_LOAD


class IncomingStreams:
    """All data streams and datagrams of the peer.

    Attributes:
        last_received: When bytes of any data stream came last, monotonic seconds.
    """

    __slots__ = (
        "_aliases",
        "_context",
        "_discarded",
        "_held",
        "_lost",
        "_on_data_end",
        "_opening",
        "_registry",
        "_streams",
        "last_received",
    )

    def __init__(
        self,
        context: Context,
        aliases: Aliases,
        registry: Registry,
        on_data_end: Callable[[Request], None],
    ) -> None:
        limits = context.limits
        self.last_received = 0.0
        self._context = context
        self._aliases = aliases
        self._registry = registry
        self._on_data_end = on_data_end
        self._streams: dict[StreamId, DataStream] = {}
        self._opening: dict[StreamId, bytes] = {}
        self._discarded: set[StreamId] = set()
        self._held = HeldStreams(
            limits.max_pending_streams, limits.max_pending_bytes, context.partial
        )
        self._lost = LostStreams(limits.max_tombstones)

    def __repr__(self) -> str:
        return f"IncomingStreams({len(self._streams)} open, {self._held!r})"

    def receive(self, stream_id: StreamId, data: bytes | memoryview, *, fin: bool) -> None:
        """Take the next bytes of a unidirectional stream that is not a control stream."""
        self.last_received = self._context.now
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._feed(stream_id, stream, data, fin=fin)
        elif stream_id in self._discarded:
            if fin:
                self._discarded.discard(stream_id)
        elif (held := self._held.peek(stream_id)) is not None:
            if not self._held.extend(stream_id, data, fin=fin, now=self._context.now):
                self._lose(held.key, held.lost(_EXCESSIVE_LOAD), fin=fin)
        else:
            self._open(stream_id, data, fin=fin)

    def receive_reset(self, stream_id: StreamId, code: int) -> None:
        """Note that the peer ended a stream early."""
        self._discarded.discard(stream_id)
        if self._opening.pop(stream_id, None) is not None:
            self._context.deadlines.clear(Timer.DATA_STREAM, stream_id)
        if stream_id in self._held:
            self._held.reset(stream_id, code)
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._context.emit(StreamAborted(stream.request.request_id, stream_id, code))
            self._close(stream_id, stream)

    def receive_datagram(self, data: bytes | memoryview) -> None:
        """Take a datagram; one of an unknown Track is dropped."""
        if is_padding_datagram(data):
            return
        datagram = ObjectDatagram.decode(data)
        request = self._aliases.find(TrackAlias(datagram.track_alias))
        if request is not None:
            priority = request.properties.default_publisher_priority
            obj = datagram.to_object(default_priority=priority)
            self._context.emit(DatagramReceived(request.request_id, obj, datagram.end_of_group))

    def resolve(self, request: Request) -> None:
        """Give `request` the streams that waited for its Track Alias or its answer.

        Those that did not wait long enough, or were too many, begin and are aborted.
        """
        for key in (("alias", request.track_alias), ("request", request.request_id)):
            for held in self._held.release(key):
                self._context.deadlines.clear(Timer.PENDING_STREAM, held.stream_id)
                self._open(held.stream_id, bytes(held.data), fin=held.fin)
                if held.reset_code is not None:
                    self.receive_reset(held.stream_id, held.reset_code)
            for lost in self._lost.take(key):
                if not request.is_over:
                    self._report(lost)

    def stop(self, stream_id: StreamId, code: int) -> None:
        """Refuse the rest of an open stream; one that has ended already is ignored."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._refuse(stream_id, code, fin=False)
            self._close(stream_id, stream)

    def stop_all(self, request: Request, code: int) -> None:
        """Refuse the rest of all streams of a request."""
        for stream_id in sorted(request.incoming):
            self.stop(stream_id, code)

    def received_at(self, stream_id: StreamId) -> float:
        """Return when bytes of an open stream came last; 0 for any other."""
        stream = self._streams.get(stream_id)
        return 0.0 if stream is None else stream.last_progress

    def last_progress(self, request: Request) -> float:
        """Return when the open streams of a request last got bytes; 0 without any."""
        return max(
            (self._streams[stream_id].last_progress for stream_id in request.incoming), default=0.0
        )

    def expire_held(self, stream_id: StreamId) -> None:
        """Refuse a stream that nothing has explained in time."""
        held = self._held.drop(stream_id)
        if held is not None:
            self._lose(held.key, held.lost(_CANCELLED), fin=held.has_ended)

    def expire(self, stream_id: StreamId) -> bool:
        """End a stream inside whose Object too little comes; False if it has no header yet.

        Who sends it may only pass on what somebody else does not finish.
        """
        if stream_id in self._streams:
            self._give_up(stream_id)
            return True
        return False

    def _open(self, stream_id: StreamId, data: bytes | memoryview, *, fin: bool) -> None:
        begun = self._opening.pop(stream_id, b"")
        data = begun + data if begun else data
        try:
            self._identify(stream_id, data, fin=fin)
        except NeedMore:
            if fin:
                raise violation(f"FIN inside the header of stream {stream_id}") from None
            if self._is_full and len(self._opening) >= self._context.limits.max_pending_streams:
                # Whose it is cannot be known, so that nobody can be told.
                self._refuse(stream_id, _EXCESSIVE_LOAD, fin=False)
                return
            self._opening[stream_id] = bytes(data)
            if not begun:
                limit = self._context.limits.data_stream_timeout
                self._context.wait(Timer.DATA_STREAM, stream_id, limit)

    def _identify(self, stream_id: StreamId, data: bytes | memoryview, *, fin: bool) -> None:
        stream_type = decode_vi64(data)[0]
        reader = Reader(data)
        if is_subgroup_type(stream_type):
            header = SubgroupHeader.decode(reader)
            self._open_subgroup(stream_id, header, reader, fin=fin)
        elif stream_type == StreamType.FETCH_HEADER:
            trigger_id = RequestId(FetchHeader.decode(reader).request_id)
            self._open_fetch(stream_id, trigger_id, reader, fin=fin)
        elif stream_type == StreamType.PADDING:
            self._discard(stream_id, fin=fin)
        elif stream_type == StreamType.CONTROL:
            raise violation("a second control stream")
        else:
            raise violation(f"unknown stream type {stream_type:#x}")

    def _open_subgroup(
        self, stream_id: StreamId, header: SubgroupHeader, reader: Reader, *, fin: bool
    ) -> None:
        alias = TrackAlias(header.track_alias)
        request = self._aliases.find(alias)
        if request is not None:
            priority = request.properties.default_publisher_priority
            records = SubgroupRecords(header, default_priority=priority)
            opened = SubgroupOpened(request.request_id, stream_id, header)
            self._attach(request, opened, records, reader, fin=fin)
        elif self._aliases.is_retired(alias):
            self._refuse(stream_id, _CANCELLED, fin=fin)
        else:
            self._hold(("alias", alias), stream_id, reader, fin=fin)

    def _open_fetch(
        self, stream_id: StreamId, trigger_id: RequestId, reader: Reader, *, fin: bool
    ) -> None:
        request = self._registry.receiver_of(trigger_id)
        if request is None:
            # Most likely it crossed our own cancellation.
            self._refuse(stream_id, _CANCELLED, fin=fin)
            return
        if request.kind is RequestKind.FETCH and request.streams_seen:
            raise violation(f"a second stream for FETCH {trigger_id}")
        order = _group_order(request, trigger_id)
        if order is None:
            self._hold(("request", request.request_id), stream_id, reader, fin=fin)
            return
        if request.kind is RequestKind.FETCH:
            # Data is sign of life enough; FETCH_OK may come last.
            self._context.deadlines.clear(Timer.ANSWER, request.request_id)
        opened = FetchOpened(request.request_id, stream_id, trigger_id)
        self._attach(request, opened, FetchRecords(order), reader, fin=fin)

    def _attach(
        self,
        request: Request,
        opened: SubgroupOpened | FetchOpened,
        records: Records,
        reader: Reader,
        *,
        fin: bool,
    ) -> None:
        stream_id = opened.stream_id
        if self._is_full:
            self._refuse_surplus(request, opened, fin=fin)
            return
        stream = DataStream(self._context, request, stream_id, records, make_room=self._make_room)
        self._streams[stream_id] = stream
        request.incoming.add(stream_id)
        request.streams_seen += 1
        self._context.emit(opened)
        self._feed(stream_id, stream, memoryview(reader.data)[reader.offset :], fin=fin)

    def give_up(self, left: int) -> None:
        """End streams until no more than so many octets of what is not whole are held.

        First those that nothing has explained, then the least urgent ones (Section 15).
        """
        partial = self._context.partial
        if partial.size_bytes <= left:
            return
        for held in self._held.surplus():
            partial.note_given_up()
            self._lose(held.key, held.lost(_EXCESSIVE_LOAD), fin=held.has_ended)
            if partial.size_bytes <= left:
                return
        for _, stream_id in sorted(self._holding(), reverse=True):
            if partial.size_bytes > left and stream_id in self._streams:
                partial.note_given_up()
                self._give_up(stream_id)

    def _make_room(self, stream: DataStream, size_bytes: int) -> bool:
        """Give up begun Objects that are less urgent, the least urgent first (Section 15).

        Returns:
            Whether `stream` may hold so many octets more now.
        """
        while not self._has_room(size_bytes):
            urgency, victim_id = max(self._holding(), default=(stream.urgency, None))
            if victim_id is None or urgency <= stream.urgency:
                return False
            self._give_up(victim_id)
        return True

    def _has_room(self, size_bytes: int) -> bool:
        context = self._context
        return (
            context.partial_bytes + size_bytes <= context.limits.max_partial_bytes
        ) and context.partial.make_room(size_bytes, now=context.now)

    def _holding(self) -> Iterator[tuple[tuple[int, int], StreamId]]:
        """Give the streams that hold part of an Object, with their urgency."""
        for stream_id, stream in self._streams.items():
            if stream.is_holding:
                yield stream.urgency, stream_id

    def _give_up(self, stream_id: StreamId) -> None:
        """Refuse the rest of a stream that stands inside an Object."""
        stream = self._streams[stream_id]
        self._refuse(stream_id, _EXCESSIVE_LOAD, fin=False)
        self._context.emit(StreamAborted(stream.request.request_id, stream_id, _EXCESSIVE_LOAD))
        self._close(stream_id, stream)

    @property
    def _is_full(self) -> bool:
        """Whether the peer has as many streams open as it may."""
        streams = len(self._streams) + len(self._opening)
        return streams >= self._context.limits.max_data_streams

    def _refuse_surplus(
        self, request: Request, opened: SubgroupOpened | FetchOpened, *, fin: bool
    ) -> None:
        """Refuse a stream that is one too many, and let it begin and end for its request."""
        stream_id, context = opened.stream_id, self._context
        self._refuse(stream_id, _EXCESSIVE_LOAD, fin=fin)
        request.streams_seen += 1
        context.emit(opened)
        context.emit(StreamAborted(request.request_id, stream_id, _EXCESSIVE_LOAD))
        self._on_data_end(request)

    def _feed(
        self, stream_id: StreamId, stream: DataStream, data: bytes | memoryview, *, fin: bool
    ) -> None:
        try:
            stream.receive(data)
        except StreamError as error:
            self._refuse(stream_id, error.code, fin=fin)
            self._context.emit(StreamAborted(stream.request.request_id, stream_id, error.code))
            self._close(stream_id, stream)
            return
        if not fin:
            self._watch(stream_id, stream)
            return
        if stream.is_unfinished:
            raise violation(f"FIN inside an Object of stream {stream_id}")
        self._context.emit(StreamFinished(stream.request.request_id, stream_id))
        self._close(stream_id, stream)

    def _close(self, stream_id: StreamId, stream: DataStream) -> None:
        stream.close()
        del self._streams[stream_id]
        self._context.deadlines.clear(Timer.DATA_STREAM, stream_id)
        stream.request.incoming.discard(stream_id)
        self._on_data_end(stream.request)

    def _hold(self, key: object, stream_id: StreamId, reader: Reader, *, fin: bool) -> None:
        # The header is read again once the key is resolved.
        now = self._context.now
        if not self._held.hold(key, stream_id, memoryview(reader.data), fin=fin, now=now):
            header = bytes(reader.data[: reader.offset])
            self._lose(key, LostStream(stream_id, header, _EXCESSIVE_LOAD), fin=fin)
            return
        context = self._context
        self._held.note_header(stream_id, reader.offset)
        context.deadlines.clear(Timer.DATA_STREAM, stream_id)
        context.wait(Timer.PENDING_STREAM, stream_id, context.limits.pending_timeout)

    def _lose(self, key: object, lost: LostStream, *, fin: bool) -> None:
        """Refuse a stream that cannot be held, and remember what it waits for."""
        self._lost.add(key, lost)
        self._refuse(lost.stream_id, lost.code, fin=fin)

    def _report(self, lost: LostStream) -> None:
        """Let a lost stream begin and end, now that it is known whose it was."""
        self._identify(lost.stream_id, lost.header, fin=False)
        stream = self._streams.get(lost.stream_id)
        if stream is not None:
            self._context.emit(StreamAborted(stream.request.request_id, lost.stream_id, lost.code))
            self._close(lost.stream_id, stream)

    def _refuse(self, stream_id: StreamId, code: int, *, fin: bool) -> None:
        if not fin:
            self._context.stop(stream_id, code)
        self._discard(stream_id, fin=fin)

    def _discard(self, stream_id: StreamId, *, fin: bool) -> None:
        self._context.deadlines.clear(Timer.DATA_STREAM, stream_id)
        self._context.deadlines.clear(Timer.PENDING_STREAM, stream_id)
        if not fin:
            self._discarded.add(stream_id)

    def _watch(self, stream_id: StreamId, stream: DataStream) -> None:
        """Wait for the rest of a record, for what comes next of it and for its end."""
        limits, deadlines = self._context.limits, self._context.deadlines
        if stream.is_unfinished:
            next_octet = self._context.now + limits.data_stream_timeout
            last_octet = stream.unfinished_since + limits.max_object_time
            deadlines.set(Timer.DATA_STREAM, stream_id, min(next_octet, last_octet))
        else:
            deadlines.clear(Timer.DATA_STREAM, stream_id)


def _group_order(request: Request, trigger_id: RequestId) -> GroupOrder | None:
    """Return the order of Groups on a fetch stream; None when it is not known yet."""
    order = request.fills.get(trigger_id) or request.parameters.group_order
    if order is not None:
        return order
    if request.kind is RequestKind.FETCH:
        return GroupOrder.ASCENDING
    # Without a wish of the subscriber it is the publisher's, which SUBSCRIBE_OK names.
    is_known = request.state is not State.PENDING or request.kind is RequestKind.PUBLISH
    return request.properties.default_group_order if is_known else None
