"""``fan_out``: one publication through a relay to 1, 2, 4 and 8 consumers, beside a byte forwarder.

The relay has nothing of the publication when the consumers ask for it, all at the same time. Its
cache holds three of the largest publications and is full before anything is measured, as in
service: each Object takes the place of an older one. Octets are counted, not verified, at both
kinds of receivers, so that what is compared is the process in the middle. ``relay/backbone`` is
what the relay took from the publisher over what each consumer got, ``relay/memory`` the relay's
peak resident memory beside what its cache held.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from benchmarks.method import Node, Result, Sample, compare, median
from benchmarks.setup import certificate, free_port, publication_bytes

LAYERS = 8
OBJECT_BYTES = 128 * 1024
CONSUMERS = (1, 2, 4, 8)
#: Publications that the cache has room for, and what a relay needs at least.
CACHED = 3
LEAST_CACHE_BYTES = 2**25
#: Octets a second that the forwarder moves at least, in and out, to find sizes.
MOVED_PER_SECOND = 80e6
_PER_BLOCK = 2 * LAYERS * OBJECT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The processes of all cases."""

    forwarder: Node
    relay: Node
    publisher: Node
    sinks: list[Node]
    consumers: list[Node]

    async def forward(self, count: int, size: int) -> Sample:
        """Let the forwarder serve `count` sinks."""
        before = (await self.forwarder.ask("sinks", count=count))["cpu_s"]
        answers = await asyncio.gather(
            *(sink.ask("take", size=size) for sink in self.sinks[:count])
        )
        return _sample(answers, (await self.forwarder.ask("cpu"))["cpu_s"] - before, size)

    async def serve(self, count: int, size: int) -> Sample:
        """Let the relay serve `count` consumers with a publication that is new to it."""
        blocks = size // _PER_BLOCK
        namespace = (await self.publisher.ask("publish", blocks=blocks))["namespace"]
        before = await self.relay.ask("statistics")
        answers = await asyncio.gather(
            *(
                consumer.ask("plain", namespace=namespace, size=size)
                for consumer in self.consumers[:count]
            )
        )
        after = await self.relay.ask("statistics")
        return {
            **_sample(answers, after["cpu_s"] - before["cpu_s"], size),
            "backbone": (after["bytes_in"] - before["bytes_in"]) / size,
            "peak_mb": after["peak_mb"],
            "cache_mb": after["cache_mb"],
        }


async def run(seconds: float) -> list[Result]:
    """Measure for every number of consumers."""
    results: list[Result] = []
    sizes = {count: _size(seconds, count) for count in CONSUMERS}
    largest = max(sizes.values())
    async with AsyncExitStack() as stack:
        site = await _open(stack, cache_bytes=max(LEAST_CACHE_BYTES, CACHED * largest))
        for _ in range(CACHED):
            await site.serve(1, largest)
        for count, size in sizes.items():
            results += await _fan_out(site, count, size)
    return results


def _size(seconds: float, count: int) -> int:
    """Return the octets of a publication for so many consumers."""
    return publication_bytes(MOVED_PER_SECOND * seconds / (count + 1), _PER_BLOCK, seconds)


async def _open(stack: AsyncExitStack, *, cache_bytes: int) -> Site:
    files = certificate()
    source_port, forwarder_port, relay_port = free_port(), free_port(), free_port()
    geometry = {"layers": LAYERS, "object_bytes": OBJECT_BYTES}

    async def node(role: str, **settings: object) -> Node:
        return await stack.enter_async_context(Node(role, certificate=files, **settings))

    source = await node("raw-source", port=source_port)
    await source.ask("cpu")
    forwarder = await node("forwarder", port=forwarder_port, source_port=source_port)
    relay = await node("relay", port=relay_port, cache_bytes=cache_bytes)
    await forwarder.ask("cpu")
    await relay.ask("cpu")
    return Site(
        forwarder=forwarder,
        relay=relay,
        publisher=await node("publisher", relay_port=relay_port, **geometry),
        sinks=[await node("raw-sink", port=forwarder_port) for _ in range(max(CONSUMERS))],
        consumers=[await node("consumer", port=relay_port) for _ in range(max(CONSUMERS))],
    )


async def _fan_out(site: Site, count: int, size: int) -> list[Result]:
    forwarded, served = await compare(
        [lambda: site.forward(count, size), lambda: site.serve(count, size)]
    )
    return [
        Result.of(f"relay/egress/{count}", "MB/s to all", "egress_mb_s", served, forwarded),
        Result.of(
            f"relay/cpu_s_per_gb/{count}", "CPU s/GB moved", "cpu_s_per_gb", served, forwarded
        ),
        Result(
            name=f"relay/backbone/{count}",
            value=median(served, "backbone"),
            unit="bytes in / useful bytes",
            baseline=1.0,
        ),
        Result(
            name=f"relay/memory/{count}",
            value=max(sample["peak_mb"] for sample in served),
            unit="MB of RSS at most",
            baseline=max(sample["cache_mb"] for sample in served),
        ),
    ]


def _sample(answers: list[dict[str, float]], cpu_s: float, size: int) -> Sample:
    moved = size * (len(answers) + 1)
    slowest = max(answer["seconds"] for answer in answers)
    return {
        "egress_mb_s": size * len(answers) / slowest / 1e6,
        "cpu_s_per_gb": cpu_s / (moved / 1e9),
    }
