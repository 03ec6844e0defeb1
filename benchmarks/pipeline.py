"""``pipeline``: how soon the first layer can be used, of a publication that is complete.

``pipeline/first_layer`` is the time to the first usable layer over the time to all layers, both
from the moment that the consumer asks for a publication whose name it knows. Its bound is
1.5 / L plus one round trip, measured in the same run: a consumer that waited for everything
would have 1.
``pipeline/live`` is a consumer that was there first, of a publisher that produces as fast as its
Objects are taken: the most resident memory of the consumer beside the octets that it keeps.
"""

import asyncio

from benchmarks.method import Node, Result, Sample, compare, median
from benchmarks.setup import certificate, free_port

LAYERS = 32
OBJECT_BYTES = 128 * 1024
PER_BLOCK = 2 * LAYERS * OBJECT_BYTES
#: Octets of the largest publication that is measured.
MAX_BYTES = 2**29


async def run(seconds: float) -> list[Result]:
    """Measure through a relay that has the publication, and directly."""
    files = certificate()
    direct_port, relay_port = free_port(), free_port()
    geometry = {"layers": LAYERS, "object_bytes": OBJECT_BYTES}
    async with (
        Node("relay", certificate=files, port=relay_port) as relay,
        Node("publisher", certificate=files, port=direct_port, **geometry) as direct,
        Node("consumer", certificate=files, port=direct_port) as direct_consumer,
    ):
        await relay.ask("cpu")
        async with (
            Node("publisher", certificate=files, relay_port=relay_port, **geometry) as relayed,
            Node("consumer", certificate=files, port=relay_port) as relayed_consumer,
        ):
            rate = await _rate(direct, direct_consumer, seconds)
            blocks = max(2, round(min(rate * seconds, MAX_BYTES) / PER_BLOCK))
            direct_name = (await direct.ask("publish", blocks=blocks))["namespace"]
            relayed_name = (await relayed.ask("publish", blocks=blocks))["namespace"]

            async def take(consumer: Node, namespace: str) -> Sample:
                return await consumer.ask("verified", namespace=namespace)

            samples = await compare(
                [
                    lambda: take(direct_consumer, direct_name),
                    lambda: take(relayed_consumer, relayed_name),
                ]
            )
            trip = (await direct_consumer.ask("round_trip", namespace=direct_name))["seconds"]
        live = await _live(direct, files, direct_port, blocks)
    return [
        *bounded("pipeline/first_layer", samples[0], trip),
        *bounded("pipeline/first_layer/relay", samples[1], trip),
        Result(name="pipeline/round_trip", value=1e3 * trip, unit="ms"),
        live,
    ]


async def _rate(publisher: Node, consumer: Node, seconds: float) -> float:
    """Try once for warmth and once for the octets that a second moves."""
    blocks = 16 if seconds >= 1 else 2
    name = (await publisher.ask("publish", blocks=blocks))["namespace"]
    trials = [await consumer.ask("verified", namespace=name) for _ in range(2)]
    return max(trial["bytes"] / trial["seconds"] for trial in trials)


async def _live(publisher: Node, files: dict[str, str], port: int, blocks: int) -> Result:
    async with Node("consumer", certificate=files, port=port) as consumer:
        name = (await publisher.ask("publish", blocks=blocks, live=True))["namespace"]
        retrieval = asyncio.create_task(consumer.ask("verified", namespace=name))
        await asyncio.sleep(1)  # until it has subscribed
        await publisher.ask("produce")
        kept = (await retrieval)["bytes"] / 1e6
        memory = (await consumer.ask("memory"))["peak_mb"]
    return Result(name="pipeline/live/memory", value=memory, unit="MB of RSS", baseline=kept)


def bounded(name: str, samples: list[Sample], round_trip: float) -> list[Result]:
    """Compare the time to the first layer with its bound."""
    shares = [{"share": sample["first_s"] / sample["seconds"]} for sample in samples]
    bound = 1.5 / LAYERS + round_trip / median(samples, "seconds")
    return [
        Result(name=name, value=median(shares, "share"), unit="of all layers", baseline=bound),
        Result(name=f"{name}/first_ms", value=1e3 * median(samples, "first_s"), unit="ms"),
        Result(name=f"{name}/all_ms", value=1e3 * median(samples, "seconds"), unit="ms"),
    ]
