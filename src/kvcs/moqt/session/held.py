"""Streams that arrived too early, held until they can be understood.

Streams overtake each other: requests and data may come before SETUP, and a data stream
before the message that explains it. What is held is bounded in streams and octets; the
stream that does not fit is for the caller to refuse.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvcs.moqt.session.actions import StreamId

__all__ = ("HeldStream", "HeldStreams")


@dataclass(slots=True)
class HeldStream:
    """What has come on one stream so far.

    Attributes:
        stream_id: The stream.
        data: Its bytes.
        fin: It has ended.
        reset_code: It was reset with this code.
    """

    stream_id: StreamId
    data: bytearray = field(default_factory=bytearray)
    fin: bool = False
    reset_code: int | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more can come on it."""
        return self.fin or self.reset_code is not None


class HeldStreams:
    """Held streams, by what they wait for."""

    __slots__ = ("_by_key", "_free_bytes", "_keys", "_max_streams")

    def __init__(self, max_streams: int, max_bytes: int) -> None:
        self._by_key: dict[object, list[HeldStream]] = {}
        self._keys: dict[StreamId, tuple[object, HeldStream]] = {}
        self._max_streams = max_streams
        self._free_bytes = max_bytes

    def __repr__(self) -> str:
        return f"HeldStreams({len(self._keys)} streams, {self._free_bytes} octets free)"

    def __contains__(self, stream_id: StreamId) -> bool:
        return stream_id in self._keys

    def hold(
        self, key: object, stream_id: StreamId, data: bytes | memoryview, *, fin: bool
    ) -> bool:
        """Keep the next bytes of a stream that waits for `key`.

        Returns:
            False when a bound is reached; the stream is then dropped.
        """
        if len(data) > self._free_bytes or (
            stream_id not in self._keys and len(self._keys) >= self._max_streams
        ):
            self.drop(stream_id)
            return False
        if stream_id not in self._keys:
            stream = HeldStream(stream_id)
            self._keys[stream_id] = (key, stream)
            self._by_key.setdefault(key, []).append(stream)
        stream = self._keys[stream_id][1]
        stream.data += data
        stream.fin = fin
        self._free_bytes -= len(data)
        return True

    def peek(self, stream_id: StreamId) -> HeldStream | None:
        """Return what is held of a stream."""
        entry = self._keys.get(stream_id)
        return None if entry is None else entry[1]

    def extend(self, stream_id: StreamId, data: bytes | memoryview, *, fin: bool) -> bool:
        """Keep more bytes of a stream that is held."""
        return self.hold(self._keys[stream_id][0], stream_id, data, fin=fin)

    def reset(self, stream_id: StreamId, code: int) -> None:
        """Note that a held stream was reset."""
        self._keys[stream_id][1].reset_code = code

    def drop(self, stream_id: StreamId) -> HeldStream | None:
        """Forget a stream and return what was held, if it is held."""
        entry = self._keys.pop(stream_id, None)
        if entry is None:
            return None
        key, stream = entry
        self._by_key[key].remove(stream)
        if not self._by_key[key]:
            del self._by_key[key]
        self._free_bytes += len(stream.data)
        return stream

    def release(self, key: object) -> Iterator[HeldStream]:
        """Give back the streams that wait for `key`, in order of arrival."""
        for stream in tuple(self._by_key.get(key, ())):
            self.drop(stream.stream_id)
            yield stream
