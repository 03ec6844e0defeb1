"""Free memory goes back to the system when enough of it became free."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvcs.relay.heap import TRIM_BYTES, TRIM_INTERVAL, Heap, glibc_trim

# Holes between blocks that stay: the allocator keeps all of it unless it is told not to.
HOLES = """
from kvcs.relay.heap import TRIM_BYTES, Heap, glibc_trim

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

blocks = [b"x" * 100_000 for _ in range(1000)]
blocks = blocks[::2]
before = resident()
assert Heap(glibc_trim()).look(TRIM_BYTES, now=0.0)
assert before - resident() > 30_000_000, (before, resident())
assert all(block == b"x" * 100_000 for block in blocks)
"""


def test_memory_is_given_back_once_for_so_many_evicted_bytes():
    trims = []
    heap = Heap(lambda: trims.append(1))

    heap.look(0, now=0.0)
    evicted = (TRIM_BYTES - 1, TRIM_BYTES, TRIM_BYTES + 1, 2 * TRIM_BYTES)

    assert [heap.look(size, now=1.0) for size in evicted] == [False, True, False, True]
    assert len(trims) == 3


def test_memory_is_given_back_now_and_then_anyway():
    heap = Heap(lambda: None)
    heap.look(0, now=5.0)

    assert not heap.look(0, now=4.0 + TRIM_INTERVAL)
    assert heap.look(0, now=5.0 + TRIM_INTERVAL)
    assert not heap.look(0, now=6.0 + TRIM_INTERVAL)


def test_without_such_an_allocator_nothing_happens():
    assert not Heap(None).look(2**40, now=2.0**40)


@pytest.mark.skipif(
    glibc_trim() is None or not Path("/proc/self/statm").exists(), reason="no glibc"
)
def test_holes_between_blocks_that_stay_are_given_back():
    subprocess.run([sys.executable, "-c", HOLES], check=True, timeout=30)
