"""``relay``: one publication through a relay to 1, 2 and 4 consumers, beside a byte forwarder.

The relay has nothing of the publication when the consumers ask for it, all at the same time.
Octets are counted, not verified, at both kinds of receivers, so that what is compared is the
process in the middle. ``relay/backbone`` is what the relay took from the publisher over what
each consumer got.
"""

import asyncio
import contextlib

from benchmarks.method import Node, Result, Sample, compare, median
from benchmarks.setup import certificate, free_port

LAYERS = 32
OBJECT_BYTES = 128 * 1024
CONSUMERS = (1, 2, 4)


async def run(seconds: float) -> list[Result]:
    """Measure for every number of consumers."""
    results: list[Result] = []
    for consumers in CONSUMERS:
        results += await _fan_out(consumers, seconds)
    return results


async def _fan_out(count: int, seconds: float) -> list[Result]:
    files = certificate()
    source_port, forwarder_port, relay_port = free_port(), free_port(), free_port()
    blocks = max(1, round(40e6 * seconds / count / (2 * LAYERS * OBJECT_BYTES)))
    size = blocks * 2 * LAYERS * OBJECT_BYTES
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        source = await enter(Node("raw-source", certificate=files, port=source_port))
        await source.ask("cpu")
        forwarder = await enter(
            Node("forwarder", certificate=files, port=forwarder_port, source_port=source_port)
        )
        relay = await enter(Node("relay", certificate=files, port=relay_port))
        await forwarder.ask("cpu")
        await relay.ask("cpu")
        publisher = await enter(
            Node(
                "publisher",
                certificate=files,
                relay_port=relay_port,
                layers=LAYERS,
                object_bytes=OBJECT_BYTES,
            )
        )
        sinks = [
            await enter(Node("raw-sink", certificate=files, port=forwarder_port))
            for _ in range(count)
        ]
        consumers = [
            await enter(Node("consumer", certificate=files, port=relay_port)) for _ in range(count)
        ]

        async def forward() -> Sample:
            before = (await forwarder.ask("sinks", count=count))["cpu_s"]
            answers = await asyncio.gather(*(sink.ask("take", size=size) for sink in sinks))
            cpu = (await forwarder.ask("cpu"))["cpu_s"] - before
            return _sample(answers, cpu, size)

        async def serve() -> Sample:
            namespace = (await publisher.ask("publish", blocks=blocks))["namespace"]
            before = await relay.ask("statistics")
            answers = await asyncio.gather(
                *(consumer.ask("plain", namespace=namespace, size=size) for consumer in consumers)
            )
            after = await relay.ask("statistics")
            sample = _sample(answers, after["cpu_s"] - before["cpu_s"], size)
            return {**sample, "backbone": (after["bytes_in"] - before["bytes_in"]) / size}

        forwarded, served = await compare([forward, serve])
    return [
        Result(
            name=f"relay/egress/{count}",
            value=median(served, "egress_mb_s"),
            unit="MB/s to all consumers",
            baseline=median(forwarded, "egress_mb_s"),
        ),
        Result(
            name=f"relay/cpu_s_per_gb/{count}",
            value=median(served, "cpu_s_per_gb"),
            unit="CPU s/GB moved",
            baseline=median(forwarded, "cpu_s_per_gb"),
        ),
        Result(
            name=f"relay/backbone/{count}",
            value=median(served, "backbone"),
            unit="bytes in / useful bytes",
            baseline=1.0,
        ),
    ]


def _sample(answers: list[dict[str, float]], cpu_s: float, size: int) -> Sample:
    moved = size * (len(answers) + 1)
    slowest = max(answer["seconds"] for answer in answers)
    return {
        "egress_mb_s": size * len(answers) / slowest / 1e6,
        "cpu_s_per_gb": cpu_s / (moved / 1e9),
    }
