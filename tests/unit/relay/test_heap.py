"""Free memory goes back to the system when enough of it became free."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvcs.relay.heap import TRIM_BYTES, TRIM_INTERVAL, Heap, glibc_trim

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


def test_memory_that_the_next_objects_take_is_left_alone():
    idle, budget = 50_000_000, 100_000_000
    trims, resident = [], [idle]
    heap = Heap(lambda: trims.append(1), lambda: resident[0], budget_bytes=budget)
    heap.look(0, now=0.0)

    # The cache is full; a publication leaves it and the next one comes.
    resident[0] = idle + budget + TRIM_BYTES - 1
    assert not heap.look(TRIM_BYTES, now=1.0)
    assert not heap.look(2 * TRIM_BYTES, now=2.0)
    assert heap.look(2 * TRIM_BYTES, now=TRIM_INTERVAL)
    assert len(trims) == 2


def test_process_larger_than_its_budget_gives_back_and_again_when_it_has_grown():
    idle, size, left = 50_000_000, [50_000_000], 60_000_000
    heap = Heap(lambda: size.__setitem__(0, left), lambda: size[0])
    heap.look(0, now=0.0)
    turns = iter(range(1, 9))

    def gives_back_at(resident):
        size[0], turn = resident, next(turns)
        return heap.look(turn * TRIM_BYTES, now=turn / 10)

    # What is left at most of what was given back is the measure, or what it had at first.
    assert not gives_back_at(left + TRIM_BYTES - 1)
    assert gives_back_at(left + TRIM_BYTES)
    left = idle - 10_000_000
    assert gives_back_at(60_000_000 + TRIM_BYTES)
    assert not gives_back_at(idle + TRIM_BYTES - 1)
    assert gives_back_at(idle + TRIM_BYTES)


@needs_glibc
def test_the_system_tells_how_large_the_process_is():
    # In a process of its own: here, what other tests left is given back at any time.
    program = """
from kvcs.relay.heap import resident_bytes
size = resident_bytes()
block = b"x" * 50_000_000
print(resident_bytes() - size)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert 45_000_000 < int(done.stdout) < 60_000_000


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
