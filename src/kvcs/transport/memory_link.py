"""What a connection in memory is made of: link profile, send rings, flow credit, wires.

Theory of operation: a `Wire` is one direction of a connection. It takes bytes out of its
rings by priority, at the link's bandwidth and within the receiver's credit, and lets them
arrive after the link's delay. Pieces of different streams overtake each other when the link
reorders, pieces of one stream never do.
"""

import asyncio
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kvcs.transport.interface import (
    Datagram,
    StreamData,
    TransportConfig,
    TransportEvent,
    is_unidirectional,
)

__all__ = ("Conditions", "Credit", "LinkProfile", "Ring", "Rings", "Timers", "Wire")

_SEGMENT_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProfile:
    """What a link does to the bytes on it, the same in both directions.

    Attributes:
        delay: One-way delay in seconds.
        bandwidth: Bytes per second, each way; None for no limit.
        reorder: Each piece arrives up to so many seconds later, drawn anew each time, so that
            streams overtake each other.
        refusal: Chance that a ring refuses a write although it has room, 0 to 1.
        datagram_loss: Chance that a datagram is lost, 0 to 1.
    """

    delay: float = 0.001
    bandwidth: float | None = None
    reorder: float = 0.0
    refusal: float = 0.0
    datagram_loss: float = 0.0


class Conditions:
    """The state of a network that its wires look at: profile and seeded chance.

    Attributes:
        profile: What the links do now.
    """

    def __init__(self, seed: int, profile: LinkProfile) -> None:
        """Start the chance at `seed`."""
        self.profile = profile
        self._random = random.Random(seed)  # noqa: S311 - chance of a simulation

    def happens(self, chance: float) -> bool:
        """Draw, unless the chance is 0."""
        return chance > 0 and self._random.random() < chance

    def up_to(self, limit: float) -> float:
        """Draw from [0, `limit`)."""
        return self._random.random() * limit if limit else 0.0


class Timers:
    """Callbacks that are due, at most one of each name."""

    def __init__(self) -> None:
        """Use the running loop."""
        self._loop = asyncio.get_running_loop()
        self._due: dict[str, asyncio.Handle] = {}

    @property
    def now(self) -> float:
        """Time of the loop in seconds."""
        return self._loop.time()

    def soon(self, name: str, callback: Callable[[], None]) -> None:
        """Call on the next loop turn, unless one of that name is due."""
        if name not in self._due:
            self._due[name] = self._loop.call_soon(self._fire, name, callback)

    def at(self, name: str, when: float, callback: Callable[[], None]) -> None:
        """Call at `when`, in place of one of that name."""
        self.cancel(name)
        self._due[name] = self._loop.call_at(when, self._fire, name, callback)

    def cancel(self, name: str) -> None:
        """Forget the callback of that name, if there is one."""
        handle = self._due.pop(name, None)
        if handle is not None:
            handle.cancel()

    def cancel_all(self) -> None:
        """Forget all callbacks."""
        for name in list(self._due):
            self.cancel(name)

    def _fire(self, name: str, callback: Callable[[], None]) -> None:
        self._due.pop(name, None)
        callback()


@dataclass(slots=True)
class Ring:
    """Bytes of one stream between the adapter and the wire.

    Attributes:
        parts: Writes in order, each with its FIN.
        used: Bytes in `parts`.
    """

    parts: deque[tuple[memoryview, bool]] = field(default_factory=deque[tuple[memoryview, bool]])
    used: int = 0

    def take(self, size: int) -> tuple[bytes, bool]:
        """Remove up to `size` bytes; tell whether the stream ends after them."""
        taken: list[memoryview] = []
        fin = False
        while self.parts and not fin and (size or not self.parts[0][0]):
            data, fin = self.parts.popleft()
            if len(data) > size:
                self.parts.appendleft((data[size:], fin))
                data, fin = data[:size], False
            taken.append(data)
            size -= len(data)
        joined = b"".join(taken)
        self.used -= len(joined)
        return joined, fin


class Rings:
    """The library's side of a send queue: a full ring refuses a write as a whole.

    Attributes:
        by_stream: Rings of the streams that have sent something and are not finished.
    """

    def __init__(self, capacity: int, conditions: Conditions) -> None:
        """Create rings of `capacity` bytes each."""
        self._capacity = capacity
        self._conditions = conditions
        self.by_stream: dict[int, Ring] = {}

    def push(self, stream_id: int, data: bytes, *, fin: bool) -> bool:
        """Take all of `data`, or nothing and return False."""
        ring = self.by_stream.setdefault(stream_id, Ring())
        if ring.used + len(data) > self._capacity:
            return False
        if self._conditions.happens(self._conditions.profile.refusal):
            return False
        ring.parts.append((memoryview(data), fin))
        ring.used += len(data)
        return True

    def used(self, stream_id: int) -> int:
        """Bytes of one stream."""
        ring = self.by_stream.get(stream_id)
        return ring.used if ring is not None else 0


class Credit:
    """What the peer allows: open streams of ours, and unread bytes on each.

    As in the real library the credit follows what the peer takes, stream by stream; there is
    no window over all streams that the receiver could hold shut.
    """

    def __init__(self, peer: TransportConfig, *, is_client: bool) -> None:
        """Start with the credit of the peer's configuration."""
        self._limits = {True: peer.max_uni_streams, False: peer.max_bidi_streams}
        self._window = peer.max_stream_data
        self._parity = 0 if is_client else 1
        self._open: dict[bool, dict[int, int]] = {True: {}, False: {}}
        self._unread: dict[int, int] = {}

    def may_open(self, stream_id: int) -> bool:
        """Tell whether a stream is open, the peer's, or may be opened now."""
        uni = is_unidirectional(stream_id)
        streams = self._open[uni]
        ours = stream_id & 1 == self._parity
        return not ours or stream_id in streams or len(streams) < self._limits[uni]

    def window(self, stream_id: int) -> int:
        """Bytes that may be sent on a stream now."""
        return self._window - self._unread.get(stream_id, 0)

    def spend(self, stream_id: int, size: int) -> None:
        """Bytes are on the way; the first ones open the stream."""
        if stream_id & 1 == self._parity:
            uni = is_unidirectional(stream_id)
            self._open[uni].setdefault(stream_id, 1 if uni else 2)
        self._unread[stream_id] = self._unread.get(stream_id, 0) + size

    def give_back(self, stream_id: int, size: int) -> None:
        """The peer took bytes."""
        if stream_id in self._unread:
            self._unread[stream_id] -= size

    def end_half(self, stream_id: int, *, sent: bool) -> None:
        """One direction of a stream is over; with the last one its credit returns."""
        if sent:
            self._unread.pop(stream_id, None)
        streams = self._open[is_unidirectional(stream_id)]
        halves = streams.get(stream_id, 0)
        if halves > 1:
            streams[stream_id] = halves - 1
        elif halves:
            del streams[stream_id]


def _unset() -> None:
    raise AssertionError("the ends of a wire are set before it is used")


class Wire:
    """One direction of a connection.

    Attributes:
        rings: Bytes that wait to be sent.
        credit: What the receiver allows.
        bytes_sent: Stream bytes put on the wire so far.
        on_sent: Called after bytes left the rings.
        on_arrival: Takes each event at the receiving end.
        on_empty: Called when the last event under way has arrived.
    """

    def __init__(self, conditions: Conditions, sender: TransportConfig, *, credit: Credit) -> None:
        """Create a wire; both ends set their callbacks."""
        self.rings = Rings(sender.stream_ring_bytes, conditions)
        self.credit = credit
        self.bytes_sent = 0
        self.on_sent: Callable[[], None] = _unset
        self.on_arrival: Callable[[TransportEvent], None] = lambda _: _unset()
        self.on_empty: Callable[[], None] = _unset
        self._conditions = conditions
        self._timers = Timers()
        self._default_priority = sender.default_priority
        self._priorities: dict[int, int] = {}
        self._turns: dict[int, int] = {}
        self._order = itertools.count()
        self._free_at = 0.0
        self._under_way: list[tuple[float, int, TransportEvent]] = []
        self._last_arrival: dict[int, float] = {}
        self._cut = False

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing is under way."""
        return not self._under_way

    def set_priority(self, stream_id: int, priority: int) -> None:
        """Rank a stream: 0 first."""
        self._priorities[stream_id] = priority

    def wake(self) -> None:
        """There may be something to send."""
        self._timers.soon("transmit", self._transmit)

    def send(self, event: TransportEvent, stream_id: int | None = None) -> None:
        """Let an event arrive at the other end, in order with its stream."""
        profile = self._conditions.profile
        arrival = max(self._free_at, self._timers.now) + profile.delay
        arrival += self._conditions.up_to(profile.reorder)
        if stream_id is not None:
            arrival = max(arrival, self._last_arrival.get(stream_id, 0.0))
            self._last_arrival[stream_id] = arrival
        heapq.heappush(self._under_way, (arrival, next(self._order), event))
        self._arm()

    def send_datagram(self, event: Datagram) -> None:
        """Let a datagram arrive, or lose it."""
        if not self._conditions.happens(self._conditions.profile.datagram_loss):
            self.send(event)

    def forget_stream(self, stream_id: int) -> None:
        """Drop what a stream still has to send."""
        self.rings.by_stream.pop(stream_id, None)
        self._turns.pop(stream_id, None)
        self._priorities.pop(stream_id, None)

    def end_stream(self, stream_id: int) -> None:
        """The end of a stream has arrived."""
        self._last_arrival.pop(stream_id, None)
        self.credit.end_half(stream_id, sent=True)

    def cut(self) -> None:
        """Let nothing through until `heal`; what is under way waits."""
        self._cut = True
        self._timers.cancel_all()

    def heal(self) -> None:
        """Let everything through again."""
        self._cut = False
        self.wake()
        self._arm()

    def close(self, last: TransportEvent) -> None:
        """Drop what waits to be sent; `last` follows what is under way."""
        self.rings.by_stream.clear()
        self.send(last)

    def stop(self) -> None:
        """Drop everything, for good."""
        self.cut()
        self.rings.by_stream.clear()
        self._under_way.clear()

    def _transmit(self) -> None:
        """Send until the wire is busy, or nothing is left that may be sent."""
        while not self._cut:
            if self._free_at > self._timers.now:
                self._timers.at("transmit", self._free_at, self._transmit)
                return
            stream_id = self._next_stream()
            if stream_id is None:
                return
            data, fin = self._take(stream_id)
            bandwidth = self._conditions.profile.bandwidth
            if bandwidth is not None:
                self._free_at = self._timers.now + len(data) / bandwidth
            self.bytes_sent += len(data)
            self.send(StreamData(stream_id, data, fin), stream_id)
            self.on_sent()

    def _next_stream(self) -> int | None:
        """Most urgent stream with bytes and credit; equals take turns."""
        ready = (
            (
                self._priorities.get(stream_id, self._default_priority),
                self._turns.get(stream_id, 0),
                stream_id,
            )
            for stream_id, ring in self.rings.by_stream.items()
            if ring.parts
            and self.credit.may_open(stream_id)
            and (not ring.used or self.credit.window(stream_id) > 0)
        )
        best = min(ready, default=None)
        return None if best is None else best[2]

    def _take(self, stream_id: int) -> tuple[bytes, bool]:
        ring = self.rings.by_stream[stream_id]
        data, fin = ring.take(min(_SEGMENT_BYTES, self.credit.window(stream_id)))
        self.credit.spend(stream_id, len(data))
        self._turns[stream_id] = next(self._order)
        if fin:
            self.forget_stream(stream_id)
        return data, fin

    def _arm(self) -> None:
        if self._under_way and not self._cut:
            self._timers.at("arrive", self._under_way[0][0], self._arrive)

    def _arrive(self) -> None:
        """Hand over everything that is due."""
        due = max(self._timers.now, self._under_way[0][0])
        while self._under_way and self._under_way[0][0] <= due:
            self.on_arrival(heapq.heappop(self._under_way)[2])
        self._arm()
        if not self._under_way:
            self.on_empty()
