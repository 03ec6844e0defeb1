"""Memory of the process beyond its budgets: rings that are empty, and what is free inside.

The QUIC library has a ring for what comes on each stream, as large as its window; most hold a few
messages and no more. From glibc's heap they get memory that others have used, and all of it stays
resident while they live: a relay grows for as long as its streams come and go. In mappings of their
own they hold what has gone through them, and leave at once. The rings of what is sent are small
(`stream_ring_bytes`) and stay in the heap: there are as many as copies of each Object, and fresh
pages for all of them cost more than they save.

Evicted Objects lie between others that stay, so the allocator keeps their memory: a relay whose
cache is full holds up to half as much again as its budget. glibc can give back whole pages from
the middle of its heap when it is told to. The pages that are needed again are then mapped and
cleared again. That is worth while for what stays free, and not for what the next Objects take, as
after a whole publication was evicted: memory is given back when the process has grown beyond what
its cache may hold, and beyond what giving back left before. What sessions leave free, which may be
much after a flood, is given back now and then. Other allocators are left alone.
"""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

__all__ = (
    "MAPPED_BYTES",
    "TRIM_BYTES",
    "TRIM_INTERVAL",
    "Heap",
    "glibc_map_large",
    "glibc_trim",
    "resident_bytes",
)

# Octets from which an allocation gets a mapping of its own: what comes, of all rings.
MAPPED_BYTES: Final = 2**20
# Mappings at a time; the system has a bound of its own (65530 in Linux), and Objects count too.
_MAX_MAPPINGS: Final = 16384

# Octets that have to be evicted, and by which the process has to be too large, for it to be worth
# while.
TRIM_BYTES: Final = 32 * 2**20
# Seconds after which it is done although less was.
TRIM_INTERVAL: Final = 30.0

# Octets at the end of the heap that are given back whenever they are free.
_TOP_BYTES: Final = 16 * 2**20

# Numbers of `mallopt`, malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_MMAP_MAX: Final = -4


def glibc_map_large() -> bool:
    """Let large allocations have mappings of their own; tell whether this allocator can.

    Left alone, glibc puts them into its heap once one of that size was freed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    # A fixed threshold fixes the other one too, at 128 KiB, which is given back again and again.
    mallopt(_M_TRIM_THRESHOLD, _TOP_BYTES)
    mallopt(_M_MMAP_MAX, _MAX_MAPPINGS)
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES))


def glibc_trim() -> Callable[[], None] | None:
    """Return the function that gives free memory back, or None where there is none."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    trim.argtypes = [ctypes.c_size_t]
    return lambda: trim(0)


def resident_bytes() -> int | None:
    """Return the resident memory of this process, or None where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_bytes().split()[1]
    except (OSError, IndexError):
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class Heap:
    """Decides when free memory is given back."""

    __slots__ = (
        "_allowed_bytes",
        "_evicted_bytes",
        "_left_bytes",
        "_next_trim",
        "_resident_bytes",
        "_trim",
    )

    def __init__(
        self,
        trim: Callable[[], None] | None,
        resident_bytes: Callable[[], int | None] = lambda: None,
        *,
        budget_bytes: int = 0,
    ) -> None:
        """Take the functions of the allocator and of the system.

        Args:
            trim: Gives memory back; None does nothing.
            resident_bytes: Tells how large the process is; None where nobody knows.
            budget_bytes: Octets of Objects that it may come to hold beside what it has now.
        """
        self._trim = trim
        self._resident_bytes = resident_bytes
        self._evicted_bytes = 0
        self._next_trim = 0.0
        self._allowed_bytes = (resident_bytes() or 0) + budget_bytes
        self._left_bytes = 0

    def look(self, evicted_bytes: int, *, now: float) -> bool:
        """Give memory back if it is time; tell whether it was.

        Args:
            evicted_bytes: Octets evicted since the relay started.
            now: Monotonic seconds.
        """
        is_time = now >= self._next_trim
        if self._trim is None or not (is_time or evicted_bytes - self._evicted_bytes >= TRIM_BYTES):
            return False
        self._evicted_bytes = evicted_bytes
        if not is_time and not self._has_grown():
            return False
        self._next_trim = now + TRIM_INTERVAL
        self._trim()
        self._left_bytes = self._resident_bytes() or 0
        return True

    def _has_grown(self) -> bool:
        """Tell whether giving back is worth while; it is where nobody knows."""
        resident_bytes = self._resident_bytes()
        usual_bytes = max(self._allowed_bytes, self._left_bytes)
        return resident_bytes is None or resident_bytes >= usual_bytes + TRIM_BYTES
