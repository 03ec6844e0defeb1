"""What one peer sends: how fast, and what its open streams make the transport keep.

The QUIC library gives every stream that the peer opens a ring of its own, as large as the stream's
window, whose memory stays until the stream is over: also when everything in it was taken. And it
lets a peer open ever more streams, whatever number it was told to allow at a time. So a peer that
opens streams, sends a window's worth on each and ends none costs their product, which nothing else
bounds. A stream counts with what it has carried, up to its window, and at least with what it costs.
"""

from typing import Final

from kvcs.endpoint.rate import LeakyBucket

__all__ = ("STREAM_BYTES", "Inflow")

# What a stream costs that has carried little: its records in the library and here.
STREAM_BYTES: Final = 16 * 1024


class Inflow:
    """Counts what arrives on one connection."""

    __slots__ = ("_bucket", "_held", "_max_rate", "_max_window_bytes", "_window_bytes", "_windows")

    def __init__(self, *, max_rate: float, max_window_bytes: int, window_bytes: int) -> None:
        """Begin with nothing.

        Args:
            max_rate: Octets a second, after a burst of one second's worth.
            max_window_bytes: Octets that the rings of all streams may have together.
            window_bytes: What the ring of one stream has at most.
        """
        self._bucket = LeakyBucket(max_rate, burst=max_rate)
        self._max_rate = max_rate
        self._max_window_bytes = max_window_bytes
        self._window_bytes = window_bytes
        self._windows: dict[int, int] = {}
        self._held = 0

    def __repr__(self) -> str:
        return f"<Inflow {len(self._windows)} streams, {self._held} octets>"

    def receive(self, stream_id: int, size_bytes: int, *, fin: bool, now: float) -> str | None:
        """Count what arrived on a stream; return why the peer is to be closed, or None."""
        reason = self.receive_datagram(size_bytes, now=now)
        if fin or reason is not None:
            self.end(stream_id)
            return reason
        window = self._windows.get(stream_id, 0)
        if window < self._window_bytes:
            grown = min(self._window_bytes, max(STREAM_BYTES, window + size_bytes))
            self._windows[stream_id] = grown
            self._held += grown - window
        if self._held > self._max_window_bytes:
            return f"more than {self._max_window_bytes} octets in the rings of open streams"
        return None

    def receive_datagram(self, size_bytes: int, *, now: float) -> str | None:
        """Count a datagram, of which nothing is kept; return why the peer is to be closed."""
        if self._bucket.admit(size_bytes, now=now):
            return None
        return f"more than {self._max_rate:.0f} octets a second"

    def end(self, stream_id: int) -> None:
        """Note that a stream is over; unknown ones are ignored."""
        self._held -= self._windows.pop(stream_id, 0)
