"""Streams that arrived too early, held until they can be understood.

Streams overtake each other: requests and data may come before SETUP, and a data stream
before the message that explains it. What is held is bounded in streams and octets; the
stream that does not fit is for the caller to refuse. What a refused stream waited for is
remembered, so that whoever waits for its data learns of the loss.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvcs.moqt.session.actions import StreamId
from kvcs.moqt.session.partial import Holding, PartialShare

__all__ = ("HeldStream", "HeldStreams", "LostStream", "LostStreams")


@dataclass(frozen=True, slots=True)
class LostStream:
    """A stream that was refused before it was known what it belongs to.

    Attributes:
        stream_id: The stream.
        header: Its header, encoded.
        code: Why it was refused.
    """

    stream_id: StreamId
    header: bytes
    code: int


@dataclass(slots=True)
class HeldStream:
    """What has come on one stream so far.

    Attributes:
        stream_id: The stream.
        key: What it waits for.
        holding: What it counts in the budget of all sessions.
        header_bytes: Length of its header, where that is known.
        data: Its bytes.
        fin: It has ended.
        reset_code: It was reset with this code.
    """

    stream_id: StreamId
    key: object
    holding: Holding
    header_bytes: int = 0
    data: bytearray = field(default_factory=bytearray)
    fin: bool = False
    reset_code: int | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more can come on it."""
        return self.fin or self.reset_code is not None

    def lost(self, code: int) -> LostStream:
        """Return what is remembered of it when it is refused with `code`."""
        return LostStream(self.stream_id, bytes(self.data[: self.header_bytes]), code)


class HeldStreams:
    """Held streams, by what they wait for."""

    __slots__ = ("_by_key", "_free_bytes", "_max_streams", "_share", "_streams")

    def __init__(self, max_streams: int, max_bytes: int, share: PartialShare) -> None:
        self._by_key: dict[object, list[HeldStream]] = {}
        self._streams: dict[StreamId, HeldStream] = {}
        self._max_streams = max_streams
        self._free_bytes = max_bytes
        self._share = share

    def __repr__(self) -> str:
        return f"HeldStreams({len(self._streams)} streams, {self._free_bytes} octets free)"

    def __contains__(self, stream_id: StreamId) -> bool:
        return stream_id in self._streams

    def hold(
        self, key: object, stream_id: StreamId, data: bytes | memoryview, *, fin: bool, now: float
    ) -> bool:
        """Keep the next bytes of a stream that waits for `key`.

        Returns:
            False when a bound is reached; the stream is then dropped.
        """
        if (
            len(data) > self._free_bytes
            or (stream_id not in self._streams and len(self._streams) >= self._max_streams)
            or not self._share.make_room(len(data), now=now)
        ):
            self.drop(stream_id)
            return False
        if stream_id not in self._streams:
            stream = HeldStream(stream_id, key, Holding(self._share))
            self._streams[stream_id] = stream
            self._by_key.setdefault(key, []).append(stream)
        stream = self._streams[stream_id]
        stream.data += data
        stream.fin = fin
        stream.holding.add(len(data), now=now)
        self._free_bytes -= len(data)
        return True

    def note_header(self, stream_id: StreamId, header_bytes: int) -> None:
        """Note how many of the octets that are held are the header of a stream."""
        self._streams[stream_id].header_bytes = header_bytes

    def peek(self, stream_id: StreamId) -> HeldStream | None:
        """Return what is held of a stream."""
        return self._streams.get(stream_id)

    def extend(
        self, stream_id: StreamId, data: bytes | memoryview, *, fin: bool, now: float
    ) -> bool:
        """Keep more bytes of a stream that is held."""
        return self.hold(self._streams[stream_id].key, stream_id, data, fin=fin, now=now)

    def reset(self, stream_id: StreamId, code: int) -> None:
        """Note that a held stream was reset."""
        self._streams[stream_id].reset_code = code

    def drop(self, stream_id: StreamId) -> HeldStream | None:
        """Forget a stream and return what was held, if it is held."""
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return None
        self._by_key[stream.key].remove(stream)
        if not self._by_key[stream.key]:
            del self._by_key[stream.key]
        self._free_bytes += len(stream.data)
        stream.holding.release()
        return stream

    def surplus(self) -> Iterator[HeldStream]:
        """Drop the streams one after another, those that came last first."""
        for stream_id in tuple(reversed(self._streams)):
            stream = self.drop(stream_id)
            if stream is not None:
                yield stream

    def release(self, key: object) -> Iterator[HeldStream]:
        """Give back the streams that wait for `key`, in order of arrival."""
        for stream in tuple(self._by_key.get(key, ())):
            self.drop(stream.stream_id)
            yield stream


class LostStreams:
    """Lost streams, by what they waited for; beyond a bound the oldest are forgotten."""

    __slots__ = ("_by_key", "_keys", "_max_streams")

    def __init__(self, max_streams: int) -> None:
        self._by_key: dict[object, dict[StreamId, LostStream]] = {}
        self._keys: dict[StreamId, object] = {}
        self._max_streams = max_streams

    def __repr__(self) -> str:
        return f"LostStreams({len(self._keys)} streams)"

    def add(self, key: object, stream: LostStream) -> None:
        """Remember a stream that waited for `key`."""
        self._keys[stream.stream_id] = key
        self._by_key.setdefault(key, {})[stream.stream_id] = stream
        if len(self._keys) > self._max_streams:
            oldest_id = next(iter(self._keys))
            oldest_key = self._keys.pop(oldest_id)
            del self._by_key[oldest_key][oldest_id]
            if not self._by_key[oldest_key]:
                del self._by_key[oldest_key]

    def take(self, key: object) -> list[LostStream]:
        """Give back, once, the streams that waited for `key`, in order of arrival."""
        streams = self._by_key.pop(key, {})
        for stream_id in streams:
            del self._keys[stream_id]
        return list(streams.values())
