"""``foreign``: CPU time of a relay beside that of aiomoqt's test relay, carrying the same bytes.

The consumers subscribe before the publisher produces, so that both relays forward what arrives
and neither needs its cache: the other one keeps eight Groups of a Track and no more. It gets its
own defaults, and Objects that fit its send ring of 1 MiB; what else it does not carry is in
``docs/reference/interop.md``. Objects are counted by Location, so that one that comes twice is
not useful twice. CPU seconds are those of the whole process, all threads, from the first Object
that is produced to the last one that every consumer has.

Our relay's cache holds three of the largest publications and is full before anything is measured,
as in service: each Object takes the place of an older one.
"""

import asyncio
import os
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final, Self

from benchmarks.method import Node, Result, Sample, compare
from benchmarks.setup import certificate, free_port, publication_bytes

LAYERS: Final = 8
OBJECT_BYTES: Final = 128 * 1024
CONSUMERS: Final = (1, 2, 4, 8)
#: Publications that the cache has room for.
CACHED: Final = 3
LEAST_CACHE_BYTES: Final = 2**25
#: Octets a second that a relay moves, in and out, to find sizes.
MOVED_PER_SECOND: Final = 60e6
_PER_BLOCK: Final = 2 * LAYERS * OBJECT_BYTES
#: Kind of a clock of a process: what its threads have run.
_CPU_TIME: Final = 2


class ForeignRelay:
    """aiomoqt's test relay in a process of its own."""

    def __init__(self, port: int, files: dict[str, str]) -> None:
        self._arguments = (
            *("--quic", "--draft", "22", "--port", str(port)),
            *("--cert", files["certificate"], "--key", files["key"]),
        )
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        """Start it; it may not listen yet."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "aiomoqt.tools.moq_interop_relay", *self._arguments),
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            # Its settings also come from the environment.
            env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        )  # fmt: skip
        return self

    async def __aexit__(self, *_: object) -> None:
        """End it."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    @property
    def pid(self) -> int:
        """Number of the process."""
        assert self._process is not None
        return self._process.pid


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A relay with its publisher and its consumers."""

    relay: ForeignRelay | Node
    publisher: Node
    consumers: list[Node]

    async def serve(self, count: int, size: int) -> Sample:
        """Let the relay forward a publication to `count` consumers while it is produced."""
        blocks = size // _PER_BLOCK
        namespace = (await self.publisher.ask("publish", blocks=blocks, live=True))["namespace"]
        some = self.consumers[:count]
        await asyncio.gather(*(one.ask("follow", namespace=namespace, size=size) for one in some))
        before = _cpu_s(self.relay.pid)
        producing = asyncio.ensure_future(self.publisher.ask("produce"))
        answers = await asyncio.gather(*(one.ask("followed") for one in some))
        cpu_s = _cpu_s(self.relay.pid) - before
        await producing
        return {
            "cpu_s_per_gb": cpu_s / (size * (count + 1) / 1e9),
            "egress_mb_s": size * count / max(one["seconds"] for one in answers) / 1e6,
        }


async def run(seconds: float) -> list[Result]:
    """Measure for every number of consumers."""
    results: list[Result] = []
    sizes = {count: _size(seconds, count) for count in CONSUMERS}
    largest = max(sizes.values())
    async with AsyncExitStack() as stack:
        theirs, ours = await _open(stack, cache_bytes=max(LEAST_CACHE_BYTES, CACHED * largest))
        for _ in range(CACHED):
            await ours.serve(1, largest)
        for count, size in sizes.items():
            foreign, own = await compare(
                [
                    lambda count=count, size=size: theirs.serve(count, size),
                    lambda count=count, size=size: ours.serve(count, size),
                ]
            )
            results += [
                Result.of(f"relay/{name}_beside_aiomoqt/{count}", unit, name, own, foreign)
                for name, unit in (
                    ("cpu_s_per_gb", "CPU s/GB moved"),
                    ("egress_mb_s", "MB/s to all"),
                )
            ]
    return results


def _size(seconds: float, count: int) -> int:
    """Return the octets of a publication for so many consumers."""
    return publication_bytes(MOVED_PER_SECOND * seconds / (count + 1), _PER_BLOCK, seconds)


async def _open(stack: AsyncExitStack, *, cache_bytes: int) -> tuple[Place, Place]:
    files = certificate()
    foreign_port, own_port = free_port(), free_port()

    async def node(role: str, **settings: object) -> Node:
        return await stack.enter_async_context(Node(role, certificate=files, **settings))

    async def place(relay: ForeignRelay | Node, port: int) -> Place:
        # Whoever connects waits until the relay listens.
        return Place(
            relay=relay,
            publisher=await node(
                "publisher", relay_port=port, layers=LAYERS, object_bytes=OBJECT_BYTES
            ),
            consumers=[await node("consumer", port=port) for _ in range(max(CONSUMERS))],
        )

    foreign = await stack.enter_async_context(ForeignRelay(foreign_port, files))
    own = await node("relay", port=own_port, cache_bytes=cache_bytes)
    await own.ask("cpu")
    return await place(foreign, foreign_port), await place(own, own_port)


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process so far, user and system, all threads."""
    # The system has a clock for each process, to the nanosecond: clock_getcpuclockid(3).
    return time.clock_gettime((~pid << 3) | _CPU_TIME)
