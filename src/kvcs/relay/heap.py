"""Memory that evicted Objects leave free inside the process, given back to the system.

Evicted Objects lie between others that stay, so the allocator keeps their memory: a relay whose
cache is full holds up to half as much again as its budget. glibc can give back whole pages from
the middle of its heap when it is told to; that takes about 10 milliseconds for 100 MiB, and the
pages that are needed again are mapped again. Other allocators are left alone.
"""

import ctypes
from collections.abc import Callable
from typing import Final

__all__ = ("TRIM_BYTES", "Heap", "glibc_trim")

# Evicted octets that make it worth while.
TRIM_BYTES: Final = 16 * 2**20


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

    __slots__ = ("_trim", "_trimmed_at")

    def __init__(self, trim: Callable[[], None] | None) -> None:
        """Take the function that gives memory back; None does nothing."""
        self._trim = trim
        self._trimmed_at = 0

    def look(self, evicted_bytes: int) -> bool:
        """Give memory back if enough was evicted since the last time; tell whether it was.

        Args:
            evicted_bytes: Octets evicted since the relay started.
        """
        if self._trim is None or evicted_bytes - self._trimmed_at < TRIM_BYTES:
            return False
        self._trimmed_at = evicted_bytes
        self._trim()
        return True
