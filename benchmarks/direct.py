"""``direct``: publisher to consumer, without a relay, beside a raw copy of the same bytes.

All Objects exist before the measurement starts: it shows what delivery costs, not production.
``plain`` counts octets at the MOQT level, ``verified`` is the whole consumer.
"""

from benchmarks.method import MIN_ROUNDS, Node, Result, Sample, compare
from benchmarks.setup import certificate, free_port

LAYERS = 8
#: Most octets of one publication, which publisher and consumer both hold.
MAX_BYTES = 2**28
SIZES = {"32KiB": 32 * 1024, "128KiB": 128 * 1024, "1MiB": 2**20}


async def run(seconds: float) -> list[Result]:
    """Measure every Object size."""
    results: list[Result] = []
    for name, object_bytes in SIZES.items():
        results += await _size(name, object_bytes, seconds)
    return results


async def _size(name: str, object_bytes: int, seconds: float) -> list[Result]:
    files = certificate()
    raw_port, port = free_port(), free_port()
    per_block = 2 * LAYERS * object_bytes
    async with (
        Node("raw-source", certificate=files, port=raw_port) as source,
        Node("raw-sink", certificate=files, port=raw_port) as sink,
        Node(
            "publisher", certificate=files, port=port, layers=LAYERS, object_bytes=object_bytes
        ) as publisher,
        Node("consumer", certificate=files, port=port) as consumer,
    ):
        await source.ask("cpu")
        trial = await sink.ask("take", size=16 * 2**20)
        rate = trial["bytes"] / trial["seconds"]
        blocks = max(1, round(min(rate * seconds, MAX_BYTES) / per_block))
        size = blocks * per_block
        rounds = max(MIN_ROUNDS, round(MIN_ROUNDS * rate * seconds / size))
        namespace = (await publisher.ask("publish", blocks=blocks))["namespace"]

        async def raw() -> Sample:
            before = (await source.ask("cpu"))["cpu_s"]
            sample = await sink.ask("take", size=size)
            return _sample(sample, (await source.ask("cpu"))["cpu_s"] - before)

        async def kvcs(command: str, **arguments: int) -> Sample:
            before = (await publisher.ask("cpu"))["cpu_s"]
            sample = await consumer.ask(command, namespace=namespace, **arguments)
            return _sample(sample, (await publisher.ask("cpu"))["cpu_s"] - before)

        copy, plain, verified = await compare(
            [raw, lambda: kvcs("plain", size=size), lambda: kvcs("verified")], rounds=rounds
        )
    return [
        result
        for kind, samples in (("plain", plain), ("verified", verified))
        for result in (
            Result.of(f"direct/{name}/{kind}", "MB/s", "mb_s", samples, copy),
            Result.of(
                f"direct/{name}/{kind}/cpu", "CPU s/GB, both sides", "cpu_s_per_gb", samples, copy
            ),
        )
    ]


def _sample(answer: dict[str, float], sender_cpu_s: float) -> Sample:
    gigabytes = answer["bytes"] / 1e9
    return {
        "mb_s": answer["bytes"] / answer["seconds"] / 1e6,
        "cpu_s_per_gb": (answer["cpu_s"] + sender_cpu_s) / gigabytes,
    }
