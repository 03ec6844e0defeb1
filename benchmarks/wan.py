"""``wan``: what congestion control makes of a link between two sites.

A consumer takes a publication over a link with a rate, a round-trip time and a loss, emulated in a
process of its own (`benchmarks.link`). Octets of Objects that came in a given time are counted,
on connections that stay; the baseline is the rate of the link. Each congestion control has both
ends to itself, and they take turns.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks.method import Node, Result, Sample, compare, median
from benchmarks.setup import certificate, free_port


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """A link: Mbit/s in each direction, milliseconds for a round trip, part that is lost."""

    rate_mbit_s: float
    rtt_ms: float
    loss: float


DISTANCES: Final = {
    "clean": Distance(rate_mbit_s=200, rtt_ms=40, loss=0.0),
    "loss_0.1%": Distance(rate_mbit_s=200, rtt_ms=40, loss=0.001),
    "loss_1%": Distance(rate_mbit_s=200, rtt_ms=40, loss=0.01),
}
CONTROLS: Final = ("newreno", "cubic", "bbr1")
LAYERS: Final = 16
OBJECT_BYTES: Final = 32 * 1024


async def run(seconds: float) -> list[Result]:
    """Measure every congestion control over every distance."""
    results: list[Result] = []
    for name, distance in DISTANCES.items():
        results += await _over(name, distance, seconds)
    return results


async def _over(name: str, distance: Distance, seconds: float) -> list[Result]:
    octets = 2 * distance.rate_mbit_s * 1e6 / 8 * seconds
    blocks = max(2, round(octets / (2 * LAYERS * OBJECT_BYTES)))
    async with AsyncExitStack() as stack:
        pairs = [await stack.enter_async_context(_pair(distance, control)) for control in CONTROLS]

        async def take(publisher: Node, consumer: Node) -> Sample:
            published = await publisher.ask("publish", blocks=blocks)
            taken = await consumer.ask(
                "within", namespace=published["namespace"], seconds=max(seconds, 0.5)
            )
            return {"mbit_s": 8 * taken["bytes"] / taken["seconds"] / 1e6}

        samples = await compare([lambda pair=pair: take(*pair) for pair in pairs])
    return [
        Result(
            name=f"wan/{name}/{control}",
            value=median(taken, "mbit_s"),
            unit="Mbit/s",
            baseline=distance.rate_mbit_s,
        )
        for control, taken in zip(CONTROLS, samples, strict=True)
    ]


@asynccontextmanager
async def _pair(distance: Distance, control: str) -> AsyncGenerator[tuple[Node, Node]]:
    """Start a publisher and a consumer with a link between them."""
    files, port, behind = certificate(), free_port(), free_port()
    figures = (distance.rate_mbit_s, distance.rtt_ms, distance.loss)
    link = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.link"),
        *(str(port), "127.0.0.1", str(behind), *map(str, figures)),
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        async with (
            Node("publisher", certificate=files, port=behind, congestion_control=control,
                 layers=LAYERS, object_bytes=OBJECT_BYTES) as publisher,
            Node("consumer", certificate=files, port=port, congestion_control=control) as consumer,
        ):  # fmt: skip
            await publisher.ask("cpu")
            yield publisher, consumer
    finally:
        link.kill()
        await link.wait()
