"""The Subgroup streams of one upstream subscription: what comes on them goes into the store.

A large Object goes on to subscribers while it arrives (`kvcs.moqt.track.arriving`). It is put into
the store when it is whole; when its stream ends before, it was never there.

Source: MOQT draft 22, Sections 7.4 and 11.3.
"""

from dataclasses import dataclass
from typing import Final

from kvcs.moqt.session.actions import StreamId
from kvcs.moqt.session.events import ObjectBegun, ObjectReceived
from kvcs.moqt.track.arriving import Arriving
from kvcs.moqt.track.interval import IntervalSet
from kvcs.moqt.track.store import MAX_SUBGROUPS
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.relay.object_sink import ObjectSink
from kvcs.relay.peer import Peer

__all__ = ("UpstreamStreams",)


@dataclass(slots=True, eq=False)
class _Stream:
    """A Subgroup stream of the publisher that has not ended."""

    header: SubgroupHeader
    subgroup_id: int | None = None
    last_object_id: int | None = None
    arriving: Arriving | None = None
    began_at: float | None = None


class UpstreamStreams:
    """Subgroup streams of one subscription that have not ended."""

    def __init__(self, sink: ObjectSink, peer: Peer) -> None:
        self._sink: Final = sink
        self._peer: Final = peer
        self._streams: dict[StreamId, _Stream] = {}
        self._ended_groups = IntervalSet()

    def __len__(self) -> int:
        return len(self._streams)

    def __repr__(self) -> str:
        return f"<UpstreamStreams {len(self)} open>"

    def is_open(self, group_id: int) -> bool:
        """Tell whether a stream of this Group is open."""
        return any(stream.header.group_id == group_id for stream in self._streams.values())

    def has_ended(self, group_id: int) -> bool:
        """Tell whether a stream of this Group came and ended."""
        return group_id in self._ended_groups

    def open(self, stream_id: StreamId, header: SubgroupHeader) -> None:
        """Note a new stream."""
        self._streams[stream_id] = _Stream(header)

    def receive_object(self, event: ObjectReceived, *, now: float) -> None:
        """Take a whole Object; raises MalformedTrack."""
        stream = self._streams[event.stream_id]
        self._note_subgroup(stream, event.obj)
        self._store(stream, event.obj, event.began_at, now)

    def begin_object(self, event: ObjectBegun, *, now: float) -> None:
        """Take the first octets of a large Object; raises MalformedTrack."""
        stream = self._streams[event.stream_id]
        self._note_subgroup(stream, event.obj)
        arriving = stream.arriving = Arriving(event.obj, event.payload_length)
        stream.began_at = now
        self._sink.begin_object(arriving, self._peer, now=now)
        self.receive_payload(event.stream_id, event.data, now=now)

    def receive_payload(self, stream_id: StreamId, data: memoryview, *, now: float) -> None:
        """Take the next octets of the Object that has begun on a stream; raises MalformedTrack."""
        stream = self._streams[stream_id]
        arriving = stream.arriving
        if arriving is None:
            # It contradicted the Track when it began.
            return
        arriving.add(data)
        if not arriving.is_whole:
            self._sink.store.arrivals.grew(arriving)
            return
        stream.arriving = None
        is_lost = True
        try:
            self._store(stream, arriving.whole(), stream.began_at, now)
            obj = arriving.obj
            # It is not taken where it is known by now that it does not exist.
            is_lost = self._sink.store.received_at(obj.group_id, obj.object_id) is None
        finally:
            self._sink.store.arrivals.end(arriving, lost=is_lost)

    def finish(self, stream_id: StreamId, *, now: float) -> None:
        """Take the FIN of a stream; raises MalformedTrack."""
        stream = self._close(stream_id)
        if stream is not None and stream.subgroup_id is not None:
            self._sink.store.finish_subgroup(
                stream.header.group_id,
                stream.subgroup_id,
                end_of_group=stream.header.end_of_group,
                final_object_id=stream.last_object_id,
                now=now,
            )

    def abort(self, stream_id: StreamId) -> None:
        """Take the reset of a stream."""
        self._close(stream_id)

    def clear(self) -> None:
        """Nothing more comes on any stream."""
        for stream_id in tuple(self._streams):
            self._close(stream_id)

    def _store(self, stream: _Stream, obj: Object, began_at: float | None, now: float) -> None:
        follows, stream.last_object_id = stream.last_object_id, obj.object_id
        self._sink.receive_object(
            obj, self._peer, follows=follows, fetched=False, began_at=began_at, now=now
        )

    def _note_subgroup(self, stream: _Stream, obj: Object) -> None:
        if stream.subgroup_id is None and obj.subgroup_id is not None:
            stream.subgroup_id = obj.subgroup_id
            self._sink.store.open_subgroup(
                obj.group_id,
                obj.subgroup_id,
                first_object_id=obj.object_id if stream.header.first_object else None,
                ends_group=stream.header.end_of_group,
                has_properties=stream.header.has_properties,
            )

    def _close(self, stream_id: StreamId) -> _Stream | None:
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return None
        if stream.arriving is not None:
            self._sink.store.arrivals.end(stream.arriving, lost=True)
        if len(self._ended_groups) < MAX_SUBGROUPS:
            group_id = stream.header.group_id
            self._ended_groups.add(group_id, group_id)
        return stream
