"""Free memory goes back to the system when enough of it became free."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvcs.relay.heap import TRIM_BYTES, TRIM_INTERVAL, Heap, glibc_free_bytes, glibc_trim

needs_glibc = pytest.mark.skipif(
    glibc_trim() is None or not Path("/proc/self/statm").exists(), reason="no glibc"
)

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

FREE = """
from kvcs.relay.heap import glibc_free_bytes

free = glibc_free_bytes()
blocks = [b"x" * 100_000 for _ in range(1000)]
before = free()
blocks = blocks[::2]
assert 49_000_000 < free() - before < 51_000_000, (before, free())
others = [b"y" * 99_000 for _ in range(500)]
assert free() - before < 2_000_000, (before, free())
"""

# Rings that lived before leave memory that was used; those that come then are nearly empty.
RINGS = """
import ctypes, sys
from kvcs.relay.heap import MAPPED_BYTES, glibc_map_large

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def rings(fill):
    # Something small behind each stays, so that the heap does not end with them.
    made = []
    for _ in range(100):
        made.append(libc.malloc(MAPPED_BYTES))
        libc.malloc(200_000)
    for ring in made:
        ctypes.memset(ring, 1, fill)
    return made

if sys.argv[1] == "mapped":
    assert glibc_map_large()
libc.free(libc.malloc(MAPPED_BYTES))
before = resident()
for ring in rings(MAPPED_BYTES):
    libc.free(ring)
rings(100)
print(resident() - before)
"""


def test_memory_is_given_back_once_for_so_many_evicted_bytes():
    trims = []
    heap = Heap(lambda: trims.append(1))

    heap.look(0, now=0.0)
    evicted = (TRIM_BYTES - 1, TRIM_BYTES, TRIM_BYTES + 1, 2 * TRIM_BYTES)

    assert [heap.look(size, now=1.0) for size in evicted] == [False, True, False, True]
    assert len(trims) == 3


def test_memory_that_new_objects_have_taken_is_left_alone():
    trims, free = [], [TRIM_BYTES - 1]
    heap = Heap(lambda: trims.append(1), lambda: free[0])
    heap.look(0, now=0.0)

    assert not heap.look(TRIM_BYTES, now=1.0)
    free[0] = TRIM_BYTES
    assert not heap.look(TRIM_BYTES + 1, now=2.0)
    assert heap.look(2 * TRIM_BYTES, now=3.0)
    free[0] = 0
    assert heap.look(2 * TRIM_BYTES, now=3.0 + TRIM_INTERVAL)
    assert len(trims) == 3


@pytest.mark.skipif(glibc_free_bytes() is None, reason="no glibc, or one before 2.33")
def test_the_allocator_tells_what_is_free_inside():
    subprocess.run([sys.executable, "-c", FREE], check=True, timeout=30)


def test_memory_is_given_back_now_and_then_anyway():
    heap = Heap(lambda: None)
    heap.look(0, now=5.0)

    assert not heap.look(0, now=4.0 + TRIM_INTERVAL)
    assert heap.look(0, now=5.0 + TRIM_INTERVAL)
    assert not heap.look(0, now=6.0 + TRIM_INTERVAL)


def test_without_such_an_allocator_nothing_happens():
    assert not Heap(None).look(2**40, now=2.0**40)


@needs_glibc
def test_holes_between_blocks_that_stay_are_given_back():
    subprocess.run([sys.executable, "-c", HOLES], check=True, timeout=30)


@needs_glibc
def test_rings_that_hold_little_cost_little():
    def grown(how):
        command = [sys.executable, "-c", RINGS, how]
        return int(subprocess.run(command, check=True, timeout=30, capture_output=True).stdout)

    assert grown("mapped") < 10_000_000
    assert grown("as it is") > 50_000_000
