"""``tree``: one publication through two relays, one below the other, to 1, 2, 4 and 8 consumers.

The publisher is at the upper relay, the consumers are at the lower one, which has nothing of the
publication when they ask for it, all at the same time. In turns, the same with as many consumers
at the upper relay: the baseline of ``relay/egress2``. ``relay/backbone2`` is what the lower relay
took from the upper one over what each consumer got. All processes share one machine, so that two
relays have the cores that one had.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from benchmarks.method import Node, Result, Sample, compare, median
from benchmarks.setup import certificate, free_port

LAYERS = 32
OBJECT_BYTES = 128 * 1024
CONSUMERS = (1, 2, 4, 8)
#: Octets a second that relays and consumers move together, to find sizes.
MOVED_PER_SECOND = 60e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A relay and its consumers."""

    relay: Node
    consumers: list[Node]

    async def serve(self, publisher: Node, count: int, size: int) -> Sample:
        """Let the relay serve `count` consumers with a publication that is new to it."""
        blocks = size // (2 * LAYERS * OBJECT_BYTES)
        namespace = (await publisher.ask("publish", blocks=blocks))["namespace"]
        before = (await self.relay.ask("statistics"))["bytes_in"]
        answers = await asyncio.gather(
            *(
                consumer.ask("plain", namespace=namespace, size=size)
                for consumer in self.consumers[:count]
            )
        )
        after = (await self.relay.ask("statistics"))["bytes_in"]
        slowest = max(answer["seconds"] for answer in answers)
        return {
            "egress_mb_s": size * count / slowest / 1e6,
            "backbone": (after - before) / size,
        }


async def run(seconds: float) -> list[Result]:
    """Measure for every number of consumers."""
    results: list[Result] = []
    async with AsyncExitStack() as stack:
        publisher, upper, lower = await _open(stack)
        for count in CONSUMERS:
            per_block = 2 * LAYERS * OBJECT_BYTES
            blocks = max(1, round(MOVED_PER_SECOND * seconds / (count + 2) / per_block))
            size = blocks * per_block
            alone, behind = await compare(
                [
                    lambda count=count, size=size: upper.serve(publisher, count, size),
                    lambda count=count, size=size: lower.serve(publisher, count, size),
                ]
            )
            results += [
                Result.of(f"relay/egress2/{count}", "MB/s to all", "egress_mb_s", behind, alone),
                Result(
                    name=f"relay/backbone2/{count}",
                    value=median(behind, "backbone"),
                    unit="bytes in / useful bytes",
                    baseline=1.0,
                ),
            ]
    return results


async def _open(stack: AsyncExitStack) -> tuple[Node, Place, Place]:
    files = certificate()
    upper_port, lower_port = free_port(), free_port()

    async def node(role: str, **settings: object) -> Node:
        return await stack.enter_async_context(Node(role, certificate=files, **settings))

    async def place(port: int, **settings: object) -> Place:
        relay = await node("relay", port=port, **settings)
        await relay.ask("ready")
        consumers = [await node("consumer", port=port) for _ in range(max(CONSUMERS))]
        return Place(relay=relay, consumers=consumers)

    upper = await place(upper_port)
    lower = await place(lower_port, upstream_port=upper_port)
    publisher = await node(
        "publisher", relay_port=upper_port, layers=LAYERS, object_bytes=OBJECT_BYTES
    )
    return publisher, upper, lower
