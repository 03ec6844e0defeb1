"""``disk``: a publication fetched from a relay's disk beside the same from its memory.

Two relays, the publisher has left both. One holds the publication in memory; the memory of the
other takes a third of it, so that every round reads the files again. The system may keep those in
its own cache: what is compared is the relay's work, not the disk's. ``disk/read`` and
``disk/write`` are the store alone, in one thread, beside the same octets of a plain file.
"""

import asyncio
import os
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.method import Node, Result, Sample, compare
from benchmarks.setup import certificate, free_port
from kvcs.moqt.track.interval import MAX_POSITION
from kvcs.moqt.track.knowledge import Knowledge
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.disk.operation import TrackWrite
from kvcs.relay.disk.store import DiskStore

LAYERS = 16
OBJECT_BYTES = 128 * 1024
CACHE_BYTES = 32 * 2**20
MEMORY_BYTES = 2 * 2**30
#: Octets of the publication at least: three times the smaller memory.
LEAST_BYTES = 3 * CACHE_BYTES
SERVED_PER_SECOND = 80e6
TRACK = FullTrackName(TrackNamespace((b"benchmark",)), b"k")
KNOWLEDGE = Knowledge(properties=EMPTY_PROPERTIES)


async def run(seconds: float) -> list[Result]:
    """Measure serving, reading and writing."""
    with tempfile.TemporaryDirectory() as directory:
        return await run_served(seconds) + await _storing(Path(directory), seconds)


async def run_served(seconds: float) -> list[Result]:
    """Measure serving alone."""
    with tempfile.TemporaryDirectory() as directory:
        return await _serving(Path(directory), seconds)


async def _serving(directory: Path, seconds: float) -> list[Result]:
    per_block = 2 * LAYERS * OBJECT_BYTES
    blocks = -(-max(LEAST_BYTES, round(SERVED_PER_SECOND * seconds)) // per_block)
    size = blocks * per_block
    async with AsyncExitStack() as stack:
        memory, namespace = await _filled(stack, blocks)
        async with AsyncExitStack() as filling:
            _, name_on_disk = await _filled(filling, blocks, disk_directory=str(directory))
        # Started anew, so that how fast the disk was written decides nothing.
        disk = await _relay(
            stack, free_port(), cache_bytes=CACHE_BYTES, disk_directory=str(directory)
        )

        async def fetch(nodes: tuple[Node, Node], name: str) -> Sample:
            relay, consumer = nodes
            before = (await relay.ask("cpu"))["cpu_s"]
            seconds = (await consumer.ask("fetch", namespace=name, size=size))["seconds"]
            cpu = (await relay.ask("cpu"))["cpu_s"] - before
            return {"mb_s": size / seconds / 1e6, "cpu_s_per_gb": cpu / (size / 1e9)}

        from_memory, from_disk = await compare(
            [lambda: fetch(memory, namespace), lambda: fetch(disk, name_on_disk)]
        )
        read_bytes = (await disk[0].ask("statistics"))["disk_bytes_read"]
        if read_bytes < size:
            raise RuntimeError(f"only {read_bytes} octets came from the disk")
    return [
        Result.of("relay/disk_read", "MB/s", "mb_s", from_disk, from_memory),
        Result.of("relay/disk_read_cpu", "CPU s/GB", "cpu_s_per_gb", from_disk, from_memory),
    ]


async def _node(stack: AsyncExitStack, role: str, **options: object) -> Node:
    return await stack.enter_async_context(Node(role, certificate=certificate(), **options))


async def _relay(stack: AsyncExitStack, port: int, **settings: object) -> tuple[Node, Node]:
    """Start a relay and a consumer of it."""
    relay = await _node(stack, "relay", port=port, **settings)
    await relay.ask("cpu")
    return relay, await _node(stack, "consumer", port=port)


async def _filled(
    stack: AsyncExitStack, blocks: int, **settings: object
) -> tuple[tuple[Node, Node], str]:
    """Start a relay that holds a publication whose publisher has left; return its name too."""
    port = free_port()
    relay, consumer = await _relay(stack, port, cache_bytes=MEMORY_BYTES, **settings)
    publisher = await _node(
        stack, "publisher", relay_port=port, layers=LAYERS, object_bytes=OBJECT_BYTES
    )
    namespace = (await publisher.ask("publish", blocks=blocks, live=True))["namespace"]
    size = 2 * LAYERS * blocks * OBJECT_BYTES
    taking = asyncio.create_task(consumer.ask("plain", namespace=namespace, size=size))
    while (await relay.ask("statistics"))["upstream_subscriptions"] < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await publisher.ask("produce")
    await taking
    await relay.ask("settle")
    await publisher.ask("withdraw")
    return (relay, consumer), namespace


class _Bench:
    """The store alone, and a plain file with the same octets."""

    def __init__(self, directory: Path, count: int) -> None:
        self.store = DiskStore(directory / "store")
        self._plain = directory / "plain"
        self._objects = [
            Object(
                group_id=number // 32,
                object_id=number % 32,
                subgroup_id=0,
                publisher_priority=0,
                payload=os.urandom(OBJECT_BYTES),
            )
            for number in range(count)
        ]

    async def write(self) -> Sample:
        self.store.drop([TRACK])
        started_at = time.perf_counter()
        for first in range(0, len(self._objects), 32):
            some = tuple((obj, 1.0) for obj in self._objects[first : first + 32])
            self.store.write([_write(some)], 1.0)
        return self._sample(started_at)

    async def write_plain(self) -> Sample:
        self._plain.unlink(missing_ok=True)
        started_at = time.perf_counter()
        with self._plain.open("wb", buffering=0) as file:
            for obj in self._objects:
                file.write(obj.payload)
        return self._sample(started_at)

    async def read(self) -> Sample:
        started_at, first, found = time.perf_counter(), 0, 0
        while found < len(self._objects):
            loaded = self.store.read(TRACK, first, MAX_POSITION, limit_bytes=4 * 2**20)
            first, found = loaded.through + 1, found + len(loaded.objects)
        return self._sample(started_at)

    async def read_plain(self) -> Sample:
        started_at = time.perf_counter()
        with self._plain.open("rb", buffering=0) as file:
            while file.read(OBJECT_BYTES):
                pass
        return self._sample(started_at)

    def _sample(self, started_at: float) -> Sample:
        size = len(self._objects) * OBJECT_BYTES
        return {"mb_s": size / (time.perf_counter() - started_at) / 1e6}


async def _storing(directory: Path, seconds: float) -> list[Result]:
    bench = _Bench(directory, max(32, round(200e6 * seconds / 5 / OBJECT_BYTES)))
    plainly_written, written = await compare([bench.write_plain, bench.write])
    plainly_read, read_back = await compare([bench.read_plain, bench.read])
    bench.store.close()
    return [
        Result.of("disk/write", "MB/s", "mb_s", written, plainly_written),
        Result.of("disk/read", "MB/s", "mb_s", read_back, plainly_read),
    ]


def _write(objects: tuple[tuple[Object, float], ...]) -> TrackWrite:
    return TrackWrite(
        name=TRACK, objects=objects, knowledge=KNOWLEDGE, lifetime=None, complete=False, used=1.0
    )
