"""One data stream of the peer: bytes in, Objects out.

This is the hot path: one turn of `DataStream.receive` per piece, one turn of its loop per
Object. A payload is copied once, whether it came in one piece or in many: its parts are kept
and joined when the Object is complete. For a request whose payloads are taken while they arrive
nothing is copied or kept: each part goes on as a view. What is not whole counts against
`SessionLimits.max_partial_bytes` in both cases, since somebody has to keep it, and against what all
sessions may have together (`kvcs.moqt.session.partial`).

Source: MOQT draft 22, Sections 11.3 and 11.4.
"""

from collections.abc import Callable
from typing import Final, Protocol

from kvcs.errors import StreamError, StreamResetCode
from kvcs.moqt.codepoints import GroupOrder, ObjectStatus
from kvcs.moqt.session.actions import StreamId
from kvcs.moqt.session.context import Context
from kvcs.moqt.session.events import (
    ObjectBegun,
    ObjectPayload,
    ObjectReceived,
    RangeEnded,
)
from kvcs.moqt.session.partial import Holding
from kvcs.moqt.session.payload_parts import PayloadParts
from kvcs.moqt.session.state import Request
from kvcs.moqt.wire.buffer import Reader
from kvcs.moqt.wire.fetch_stream import EndOfRange, FetchDecoder, FetchObjectHeader
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES
from kvcs.moqt.wire.subgroup import ObjectHeader, SubgroupHeader, decode_object_header
from kvcs.varint import NeedMore

__all__ = ("DataStream", "FetchRecords", "Records", "SubgroupRecords")


_DEFAULT_PRIORITY: Final = 128


class Records(Protocol):
    """How Objects stand on a stream."""

    @property
    def is_fetch(self) -> bool:
        """Whether it is a fetch stream."""
        ...

    @property
    def priority(self) -> int:
        """Publisher priority of the record that was decoded last."""
        ...

    def decode(self, reader: Reader) -> int | EndOfRange:
        """Decode what stands before a payload, and return the payload's length.

        Raises:
            NeedMore: The bytes end first; nothing has changed.
            RemoteProtocolError: The record breaks a rule.
        """
        ...

    def build(self, payload: bytes) -> Object:
        """Return the Object of the record that was decoded last."""
        ...


class SubgroupRecords:
    """Records of a Subgroup stream."""

    __slots__ = ("_group_id", "_has_properties", "_last", "_priority", "_subgroup_id")

    is_fetch = False

    def __init__(self, header: SubgroupHeader, *, default_priority: int) -> None:
        self._group_id = header.group_id
        self._subgroup_id = header.subgroup_id
        priority = header.publisher_priority
        self._priority = default_priority if priority is None else priority
        self._has_properties = header.has_properties
        self._last: ObjectHeader | None = None

    @property
    def priority(self) -> int:
        """Publisher priority of the Subgroup."""
        return self._priority

    def decode(self, reader: Reader) -> int:
        """Decode an Object's header; see `Records`."""
        last = self._last
        self._last = header = decode_object_header(
            reader,
            previous_object_id=None if last is None else last.object_id,
            has_properties=self._has_properties,
        )
        if self._subgroup_id is None:
            self._subgroup_id = header.object_id
        return header.payload_length

    def build(self, payload: bytes) -> Object:
        """Return the Object; see `Records`."""
        header = self._last or _NOTHING
        return Object(
            self._group_id,
            header.object_id,
            self._subgroup_id,
            self._priority,
            header.status,
            header.properties,
            payload,
        )


class FetchRecords:
    """Records of a fetch stream."""

    __slots__ = ("_decoder", "_last")

    is_fetch = True

    def __init__(self, order: GroupOrder) -> None:
        self._decoder = FetchDecoder(order)
        self._last: FetchObjectHeader | None = None

    @property
    def priority(self) -> int:
        """Publisher priority of the last Object."""
        return _DEFAULT_PRIORITY if self._last is None else self._last[3]

    def decode(self, reader: Reader) -> int | EndOfRange:
        """Decode a record; see `Records`."""
        record = self._decoder.record(reader)
        if isinstance(record, EndOfRange):
            return record
        self._last = record
        return record.payload_length

    def build(self, payload: bytes) -> Object:
        """Return the Object; see `Records`."""
        header = self._last
        assert header is not None
        group_id, object_id, subgroup_id, priority, properties, _ = header
        return Object(
            group_id, object_id, subgroup_id, priority, ObjectStatus.NORMAL, properties, payload
        )


_NOTHING = ObjectHeader(0, EMPTY_PROPERTIES, 0, ObjectStatus.NORMAL)


class DataStream:
    """One Subgroup or fetch stream of the peer, behind its header.

    Attributes:
        request: The subscription or FETCH that it belongs to.
        last_progress: When bytes came last, monotonic seconds.
        unfinished_since: When the record began in which the stream stands, if it does.
    """

    __slots__ = (
        "_began_at",
        "_context",
        "_head",
        "_holding",
        "_is_taken",
        "_make_room",
        "_max_whole",
        "_missing",
        "_parts",
        "_records",
        "_stream_id",
        "last_progress",
        "request",
        "unfinished_since",
    )

    def __init__(
        self,
        context: Context,
        request: Request,
        stream_id: StreamId,
        records: Records,
        *,
        make_room: "Callable[[DataStream, int], bool]",
    ) -> None:
        """Read a stream from behind its header.

        Args:
            context: What the session shares.
            request: The subscription or FETCH that it belongs to.
            stream_id: The stream.
            records: How Objects stand on it.
            make_room: Called where the next octets of a begun Object exceed a limit; tells
                whether others were given up for them.
        """
        self.request = request
        self.last_progress = self.unfinished_since = context.now
        self._context = context
        self._stream_id = stream_id
        self._records = records
        self._make_room = make_room
        largest, taken_from = context.limits.max_object_bytes, request.taken_from
        self._max_whole = largest if taken_from is None else min(largest, taken_from - 1)
        self._began_at: float | None = None  # when an unfinished Object began
        self._head = b""  # an unfinished record, without any of its payload
        self._missing = 0  # octets of the begun payload that have not come
        self._is_taken = False  # the begun payload is handed on while it comes
        self._holding = Holding(context.partial)  # of `_head`, or of the begun payload
        self._parts = PayloadParts()

    def __repr__(self) -> str:
        held = self._holding.size_bytes
        return f"DataStream({self._stream_id}, {held} held, {self._missing} missing)"

    @property
    def is_holding(self) -> bool:
        """Whether part of an Object is held."""
        return self._holding.size_bytes > 0

    @property
    def urgency(self) -> tuple[int, int]:
        """Subscriber priority and publisher priority of its Objects; lower is more urgent."""
        subscriber_priority = self.request.parameters.subscriber_priority
        return (
            _DEFAULT_PRIORITY if subscriber_priority is None else subscriber_priority,
            self._records.priority,
        )

    @property
    def is_unfinished(self) -> bool:
        """Whether the stream stands inside a record."""
        return bool(self._head) or self._missing > 0

    def receive(self, data: bytes | memoryview) -> None:
        """Take the next bytes.

        Raises:
            StreamError: A limit of ours ends the stream.
            RemoteProtocolError: A record breaks a rule.
        """
        self.last_progress = now = self._context.now
        size = len(data)
        if size < self._missing:
            # The middle of a large payload, which is most of what comes.
            self._keep(memoryview(data))
            return
        offset = 0
        if self._missing:
            offset = self._continue(data, 0)
        elif self._head:
            data = self._head + data
            self._head = b""
            self._release()
        else:
            self.unfinished_since = now
        size = len(data)
        reader = Reader(data, offset)
        decode = self._records.decode
        max_whole = self._max_whole
        while reader.offset < size:
            start = reader.offset
            try:
                record = decode(reader)
            except NeedMore:
                self._begin_record(start)
                self._keep_head(bytes(data[start:]))
                return
            if isinstance(record, EndOfRange):
                self._end_range(record)
            elif record <= max_whole and record <= size - reader.offset:
                self._emit_object(reader.take(record))
            else:
                self._begin_record(start)
                reader.offset = self._begin(record, data, reader.offset)

    def _begin_record(self, start: int) -> None:
        """Note that the record is not whole whose first octets are at `start` of what came."""
        if start:
            # What is at 0 may have begun with what came before.
            self.unfinished_since = self.last_progress

    def close(self) -> None:
        """Forget what is held of an unfinished Object."""
        self._release()
        self._parts.clear()

    def _emit_object(self, payload: bytes) -> None:
        records, began_at = self._records, self._began_at
        if began_at is not None:
            self._began_at = None
            began_at = began_at if began_at < self._context.now else None
        self._context.events.append(
            ObjectReceived(
                self.request.request_id,
                self._stream_id,
                records.build(payload),
                records.is_fetch,
                began_at,
            )
        )

    def _note_beginning(self) -> None:
        if self._began_at is None:
            self._began_at = self._context.now

    def _end_range(self, record: EndOfRange) -> None:
        self._began_at = None
        self._context.emit(
            RangeEnded(self.request.request_id, self._stream_id, record.marker, record.location)
        )

    def _begin(self, length: int, data: bytes | memoryview, offset: int) -> int:
        """Begin an Object that is not whole or not wanted so; return where its part here ends."""
        if length > self._context.limits.max_object_bytes:
            raise StreamError(StreamResetCode.EXCESSIVE_LOAD, self._stream_id)
        self._missing = length
        self._is_taken = length > self._max_whole
        if not self._is_taken:
            self._note_beginning()
            return self._continue(data, offset)
        self._began_at = None
        end = min(offset + length, len(data))
        self._missing -= end - offset
        if self._missing:
            self._count(end - offset)
        records = self._records
        self._context.events.append(
            ObjectBegun(
                self.request.request_id,
                self._stream_id,
                records.build(b""),
                length,
                memoryview(data)[offset:end],
                records.is_fetch,
            )
        )
        return end

    def _continue(self, data: bytes | memoryview, offset: int) -> int:
        """Take the next part of the begun payload; return where it ends."""
        end = min(offset + self._missing, len(data))
        part = memoryview(data)[offset:end]
        if len(part) < self._missing:
            self._keep(part)
            return end
        self._missing = 0
        self._release()
        if self._is_taken:
            request_id = self.request.request_id
            self._context.events.append(ObjectPayload(request_id, self._stream_id, part))
        else:
            payload = b"".join((*self._parts, part))
            self._parts.clear()
            self._emit_object(payload)
        return end

    def _keep(self, part: memoryview) -> None:
        """Take the next part of the begun payload, which is not the last one."""
        self._count(len(part))
        self._missing -= len(part)
        if not self._is_taken:
            self._parts.add(part)
        elif part:
            request_id = self.request.request_id
            self._context.events.append(ObjectPayload(request_id, self._stream_id, part))

    def _keep_head(self, head: bytes) -> None:
        """Keep a record that is not whole, before any of its payload."""
        self._count(len(head))
        self._head = head
        self._note_beginning()

    def _count(self, size_bytes: int) -> None:
        """Count octets that are held.

        Raises:
            StreamError: They are too many.
        """
        context = self._context
        held = context.partial_bytes + size_bytes
        has_room = held <= context.limits.max_partial_bytes and context.partial.has_room(size_bytes)
        if not (has_room or self._make_room(self, size_bytes)):
            raise StreamError(StreamResetCode.EXCESSIVE_LOAD, self._stream_id)
        context.partial_bytes += size_bytes
        self._holding.add(size_bytes, now=context.now)

    def _release(self) -> None:
        """Hold nothing any more."""
        self._context.partial_bytes -= self._holding.size_bytes
        self._holding.release()
