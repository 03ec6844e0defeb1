"""What one peer sends: how fast, and what its open streams make the transport keep.

The QUIC library gives every stream that the peer opens a ring of its own, as large as the stream's
window, whose memory stays until the stream is over: also when everything in it was taken. And it
lets a peer open ever more streams, whatever number it was told to allow at a time. So a peer that
opens streams, sends a window's worth on each and ends none costs their product, which nothing else
bounds. A stream counts with up to twice what it has carried, its window at most, and at least with
what it costs.

All connections of a server share a `WindowBudget`. When that is used up, one connection of the
address whose connections hold the most has to go, the one that holds the most: whoever opens many
connections gains nothing by that.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvcs.endpoint.rate import LeakyBucket

__all__ = ("STREAM_BYTES", "Inflow", "WindowBudget")

# What a stream costs that has carried little: its records in the library and here.
STREAM_BYTES: Final = 16 * 1024


@dataclass(slots=True, eq=False)
class _Member:
    """A connection of a server."""

    host: str
    close: Callable[[str], None]


class WindowBudget:
    """Octets that the rings of all open streams of a server may have.

    Attributes:
        capacity_bytes: How many.
        size_bytes: What they have.
    """

    __slots__ = ("_by_host", "_members", "capacity_bytes", "size_bytes")

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.size_bytes = 0
        self._members: dict[Inflow, _Member] = {}
        self._by_host: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<WindowBudget {self.size_bytes}/{self.capacity_bytes} of {len(self._members)}>"

    def join(self, inflow: "Inflow", host: str, close: Callable[[str], None]) -> None:
        """Count a new connection until `leave`.

        Args:
            inflow: What arrives on it.
            host: Address of its peer.
            close: Called with the reason when it has to go.
        """
        self._members[inflow] = _Member(host, close)

    def leave(self, inflow: "Inflow") -> None:
        """Count a connection no longer; unknown ones are ignored."""
        if inflow in self._members:
            self.count(inflow, -inflow.held_bytes)
            del self._members[inflow]

    def count(self, inflow: "Inflow", size_bytes: int) -> None:
        """Count what the rings of a connection have more, or with a negative number less."""
        member = self._members.get(inflow)
        if member is None:
            return
        self.size_bytes += size_bytes
        self._by_host[member.host] += size_bytes
        if not self._by_host[member.host]:
            del self._by_host[member.host]

    def relieve(self) -> None:
        """Close connections until the rest fits."""
        while self.size_bytes > self.capacity_bytes:
            host = max(self._by_host, key=lambda host: self._by_host[host])
            here = (inflow for inflow, member in self._members.items() if member.host == host)
            worst = max(here, key=lambda inflow: inflow.held_bytes)
            close = self._members[worst].close
            self.leave(worst)
            close(f"more than {self.capacity_bytes} octets in the rings of all connections")


class Inflow:
    """Counts what arrives on one connection.

    Attributes:
        held_bytes: What the rings of its open streams have together.
    """

    __slots__ = (
        "_bucket",
        "_budget",
        "_max_rate",
        "_max_window_bytes",
        "_window_bytes",
        "_windows",
        "held_bytes",
    )

    def __init__(
        self,
        *,
        max_rate: float,
        max_window_bytes: int,
        window_bytes: int,
        budget: WindowBudget | None = None,
    ) -> None:
        """Begin with nothing.

        Args:
            max_rate: Octets a second, after a burst of one second's worth.
            max_window_bytes: Octets that the rings of all streams may have together.
            window_bytes: What the ring of one stream has at most.
            budget: What it shares with others; None for a bound of its own only.
        """
        self._bucket = LeakyBucket(max_rate, burst=max_rate)
        self._max_rate = max_rate
        self._max_window_bytes = max_window_bytes
        self._window_bytes = window_bytes
        self._budget = budget
        # Of each open stream what is counted of it, and what it has carried.
        self._windows: dict[int, tuple[int, int]] = {}
        self.held_bytes = 0

    def __repr__(self) -> str:
        return f"<Inflow {len(self._windows)} streams, {self.held_bytes} octets>"

    def receive(self, stream_id: int, size_bytes: int, *, fin: bool) -> str | None:
        """Count what a stream makes the transport keep; return why the peer is to be closed."""
        if fin:
            self.end(stream_id)
            return None
        counted, carried = self._windows.get(stream_id, (0, 0))
        if counted == self._window_bytes:
            return None
        carried += size_bytes
        if counted and carried <= counted:
            self._windows[stream_id] = counted, carried
            return None
        return self._grow(stream_id, counted, carried)

    def _grow(self, stream_id: int, counted: int, carried: int) -> str | None:
        """Count twice as much of a stream."""
        grown = min(self._window_bytes, max(STREAM_BYTES, 2 * counted, carried))
        self._windows[stream_id] = grown, carried
        self._count(grown - counted)
        if self._budget is not None:
            self._budget.relieve()
        if self.held_bytes > self._max_window_bytes:
            return f"more than {self._max_window_bytes} octets in the rings of open streams"
        return None

    def admit(self, size_bytes: int, *, now: float) -> str | None:
        """Count octets on streams or in datagrams; return why the peer is to be closed."""
        if self._bucket.admit(size_bytes, now=now):
            return None
        return f"more than {self._max_rate:.0f} octets a second"

    def end(self, stream_id: int) -> None:
        """Note that a stream is over; unknown ones are ignored."""
        self._count(-self._windows.pop(stream_id, (0, 0))[0])

    def _count(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        if self._budget is not None:
            self._budget.count(self, size_bytes)
