"""Memory that is free inside the process, given back to the system.

Evicted Objects lie between others that stay, so the allocator keeps their memory: a relay whose
cache is full holds up to half as much again as its budget. glibc can give back whole pages from
the middle of its heap when it is told to; that takes its time, and the pages that are needed again
are mapped again. What sessions leave free, which may be much after a flood, is given back now and
then. Other allocators are left alone.
"""

import ctypes
from collections.abc import Callable
from typing import Final

__all__ = ("TRIM_BYTES", "TRIM_INTERVAL", "Heap", "glibc_trim")

# Evicted octets that make it worth while.
TRIM_BYTES: Final = 16 * 2**20
# Seconds after which it is done although less was evicted.
TRIM_INTERVAL: Final = 30.0


def glibc_trim() -> Callable[[], None] | None:
    """Return the function that gives free memory back, or None where there is none."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    trim.argtypes = [ctypes.c_size_t]
    return lambda: trim(0)


class Heap:
    """Decides when free memory is given back."""

    __slots__ = ("_evicted_bytes", "_next_trim", "_trim")

    def __init__(self, trim: Callable[[], None] | None) -> None:
        """Take the function that gives memory back; None does nothing."""
        self._trim = trim
        self._evicted_bytes = 0
        self._next_trim = 0.0

    def look(self, evicted_bytes: int, *, now: float) -> bool:
        """Give memory back if it is time; tell whether it was.

        Args:
            evicted_bytes: Octets evicted since the relay started.
            now: Monotonic seconds.
        """
        is_due = evicted_bytes - self._evicted_bytes >= TRIM_BYTES or now >= self._next_trim
        if self._trim is None or not is_due:
            return False
        self._evicted_bytes = evicted_bytes
        self._next_trim = now + TRIM_INTERVAL
        self._trim()
        return True
