"""``stalled``: three consumers of a relay, alone and beside a fourth that stands still.

The fourth asks for the same publication at the same time, is stopped (SIGSTOP) when its first
Object has come, stays so until the others have everything, and goes on afterwards. A fifth asks
for the first publication, and stands still through all rounds, with or without the fourth.
``relay/beside_stalled`` is what the three get together, over what they get without it; both take
turns. ``relay/rss_over_budget_mib`` is the relay's resident memory at its highest, beyond its
budgets (the size of its cache, and what waits for subscribers) and beyond what it has besides its
cache when it idles after warm-up; its baseline is what is allowed. ``relay/rss_growth_mib`` says
whether that is flat: the median of the last third of the rounds beyond that of the first.
"""

import asyncio
import os
import signal
import statistics
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.method import Node, Result, Sample, compare
from benchmarks.setup import certificate, free_port

LAYERS: Final = 32
OBJECT_BYTES: Final = 128 * 1024
NORMAL: Final = 3
ROUNDS: Final = 9
#: Octets a second that the relay moves at least, in and out, to find sizes.
MOVED_PER_SECOND: Final = 80e6
#: Publications that the cache has room for: it is full, and evicts, after the warm-up.
CACHED: Final = 3
#: Seconds in which the one that stood still deals with what it had got.
SETTLE_TIME: Final = 0.5
#: Seconds for which the relay keeps a subscriber that takes nothing; longer than all rounds.
READER_TIMEOUT: Final = 7200.0
#: Sessions with all: the publisher, the three, the fourth, and the fifth.
SESSIONS: Final = NORMAL + 3
ALLOWED_MIB: Final = 64.0
#: What counts as flat: three per cent of what is allowed for each round would show.
ALLOWED_GROWTH_MIB: Final = 16.0
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_MIB: Final = 2**20


@dataclass(slots=True)
class Site:
    """The processes.

    Attributes:
        over_mib: The relay's memory beyond its budgets, at its highest in each round.
    """

    relay: Node
    publisher: Node
    consumers: list[Node]
    stalled: Node
    still: Node
    size: int
    cache_bytes: int
    over_mib: list[float] = field(default_factory=list[float])

    async def stand_still(self) -> None:
        """Have the fifth take the first Object of a publication, and nothing more."""
        await self.still.ask("stand_still", namespace=await self._publish())

    async def check_still(self) -> None:
        """See that nobody was let go.

        Raises:
            RuntimeError: The relay has closed a session, so that nobody stood still any more.
        """
        sessions = (await self.relay.ask("statistics"))["sessions"]
        if sessions != SESSIONS:
            raise RuntimeError(f"{sessions} sessions are left of {SESSIONS}")

    async def alone(self) -> Sample:
        """Serve the three."""
        return await self._serve(await self._publish())

    async def beside_stalled(self) -> Sample:
        """Serve the three while the fourth stands still."""
        namespace = await self._publish()
        stalling = asyncio.ensure_future(self._stall(namespace))
        try:
            return await self._serve(namespace)
        finally:
            await stalling
            os.kill(self.stalled.pid, signal.SIGCONT)
            await self.stalled.ask("end")
            await asyncio.sleep(SETTLE_TIME)

    async def _stall(self, namespace: str) -> None:
        await self.stalled.ask("begin", namespace=namespace)
        os.kill(self.stalled.pid, signal.SIGSTOP)

    async def beyond_budgets_mib(self) -> float:
        """Return the relay's memory beyond its budgets."""
        told = await self.relay.ask("statistics")
        queued_mib = told["queued_mb"] * 1e6 / _MIB
        return (_resident(self.relay.pid) - self.cache_bytes) / _MIB - queued_mib

    async def besides_cache_mib(self) -> float:
        """Return the relay's memory besides what its cache holds."""
        held_mib = (await self.relay.ask("statistics"))["cache_mb"] * 1e6 / _MIB
        return _resident(self.relay.pid) / _MIB - held_mib

    async def _publish(self) -> str:
        blocks = self.size // (2 * LAYERS * OBJECT_BYTES)
        return (await self.publisher.ask("publish", blocks=blocks))["namespace"]

    async def _serve(self, namespace: str) -> Sample:
        served = asyncio.Event()
        watching = asyncio.ensure_future(self._watch(served))
        answers = await asyncio.gather(
            *(one.ask("plain", namespace=namespace, size=self.size) for one in self.consumers)
        )
        served.set()
        await watching
        slowest = max(answer["seconds"] for answer in answers)
        return {"egress_mb_s": self.size * NORMAL / slowest / 1e6}

    async def _watch(self, served: asyncio.Event) -> None:
        self.over_mib.append(await self.beyond_budgets_mib())
        while not served.is_set():
            await asyncio.sleep(0.1)
            self.over_mib[-1] = max(self.over_mib[-1], await self.beyond_budgets_mib())


async def run(seconds: float) -> list[Result]:
    """Measure both, and the relay's memory while it goes on."""
    per_block = 2 * LAYERS * OBJECT_BYTES
    size = per_block * max(1, round(MOVED_PER_SECOND * seconds / (NORMAL + 1) / per_block))
    async with AsyncExitStack() as stack:
        site = await _open(stack, size)
        await site.stand_still()
        # What the first rounds cost once, and a cache that is full.
        for _ in range(CACHED + 1):
            await site.beside_stalled()
        await asyncio.sleep(0.5)
        idle_mib = await site.besides_cache_mib()
        site.over_mib.clear()
        alone, beside = await compare([site.alone, site.beside_stalled], rounds=ROUNDS)
        await site.check_still()
    third = len(site.over_mib) // 3
    growth = statistics.median(site.over_mib[-third:]) - statistics.median(site.over_mib[:third])
    return [
        Result.of("relay/beside_stalled", "MB/s to three", "egress_mb_s", beside, alone),
        Result(
            name="relay/rss_over_budget_mib",
            value=max(site.over_mib) - idle_mib,
            unit="MiB",
            baseline=ALLOWED_MIB,
        ),
        Result(name="relay/rss_growth_mib", value=growth, unit="MiB", baseline=ALLOWED_GROWTH_MIB),
    ]


async def _open(stack: AsyncExitStack, size: int) -> Site:
    files = certificate()
    port = free_port()

    async def node(role: str, **settings: object) -> Node:
        return await stack.enter_async_context(Node(role, certificate=files, **settings))

    cache_bytes = CACHED * size + 2 * 16 * _MIB
    relay = await node("relay", port=port, cache_bytes=cache_bytes, reader_timeout=READER_TIMEOUT)
    await relay.ask("cpu")
    return Site(
        relay=relay,
        publisher=await node(
            "publisher", relay_port=port, layers=LAYERS, object_bytes=OBJECT_BYTES
        ),
        consumers=[await node("consumer", port=port) for _ in range(NORMAL)],
        stalled=await node("consumer", port=port),
        still=await node("consumer", port=port),
        size=size,
        cache_bytes=cache_bytes,
    )


def _resident(pid: int) -> int:
    """Return the resident memory of a process in octets."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
