"""``secure``: what signatures and seals cost, from the tensors of a publisher to a consumer's.

Every publication is published anew in each round, so that sealing and hashing count: CPU seconds
are those of publishing and of delivery, both sides. ``plain`` counts octets of Objects, ``digest``
is the whole consumer, ``signed`` demands a signature, ``sealed`` opens every Object.

``sealing`` is the CPU time of sealing and opening the same Objects, without a network, beside
AES-GCM of the same library over their plaintexts in the same memory. ``manifests`` is that of
writing, signing, verifying and reading all versions of the manifest with their lists of digests,
beside ``digest`` without its manifests.
"""

from contextlib import AsyncExitStack

from benchmarks import pipeline
from benchmarks.method import MIN_ROUNDS, Node, Result, Sample, compare, median
from benchmarks.protection import PROTECTIONS
from benchmarks.setup import certificate, free_port

LAYERS = 8
#: Most octets of one publication, of which each kind has one.
MAX_BYTES = 2**27
SIZES = {"32KiB": 32 * 1024, "128KiB": 128 * 1024, "1MiB": 2**20}
#: The name of each case, how it is protected, and what it is compared with.
CASES = (
    ("plain", "none", "digest"),
    ("digest", "none", "plain"),
    ("signed", "signed", "digest"),
    ("sealed", "sealed", "digest"),
    ("signed+sealed", "signed+sealed", "digest"),
)


async def run(seconds: float) -> list[Result]:
    """Measure every Object size, and how soon a first layer can be used."""
    results: list[Result] = []
    for name, object_bytes in SIZES.items():
        results += await _size(f"secure/{name}", object_bytes, seconds)
    return results + await first_layer(seconds)


class _Pair:
    """A publisher and a consumer of one kind of publication."""

    def __init__(self, publisher: Node, consumer: Node) -> None:
        self.publisher = publisher
        self.consumer = consumer

    async def take(self, blocks: int, *, counting: int = 0) -> Sample:
        """Publish and take; `counting` octets are only counted."""
        made = await self.publisher.ask("publish", blocks=blocks)
        before = (await self.publisher.ask("cpu"))["cpu_s"]
        name = made["namespace"]
        if counting:
            sample = await self.consumer.ask("plain", namespace=name, size=counting)
        else:
            sample = await self.consumer.ask("verified", namespace=name)
        sending = (await self.publisher.ask("cpu"))["cpu_s"] - before
        cpu = made["cpu_s"] + sending + sample["cpu_s"]
        return {
            **{key: sample[key] for key in ("seconds", "first_s") if key in sample},
            "mb_s": sample["bytes"] / sample["seconds"] / 1e6,
            "cpu_s_per_gb": cpu / (sample["bytes"] / 1e9),
        }


async def _pairs(
    stack: AsyncExitStack, layers: int, object_bytes: int, kinds: tuple[str, ...] = PROTECTIONS
) -> dict[str, _Pair]:
    files, pairs = certificate(), {}
    for kind in kinds:
        port = free_port()
        publisher, consumer = (
            Node("publisher", certificate=files, port=port, protection=kind, layers=layers,
                 object_bytes=object_bytes),
            Node("consumer", certificate=files, port=port, protection=kind),
        )  # fmt: skip
        pairs[kind] = _Pair(
            await stack.enter_async_context(publisher), await stack.enter_async_context(consumer)
        )
    return pairs


async def _size(name: str, object_bytes: int, seconds: float) -> list[Result]:
    per_block = 2 * LAYERS * object_bytes
    async with AsyncExitStack() as stack:
        pairs = await _pairs(stack, LAYERS, object_bytes)
        cipher = await stack.enter_async_context(Node("cipher", certificate=certificate()))
        trial = await pairs["none"].take(max(1, 2**24 // per_block))
        blocks = max(1, round(min(1e6 * trial["mb_s"] * seconds, MAX_BYTES) / per_block))
        count = 2 * LAYERS * blocks

        async def alone(command: str) -> Sample:
            answer = await cipher.ask(command, object_bytes=object_bytes, count=count)
            return {"cpu_s_per_gb": answer["cpu_s"] / (answer["bytes"] / 1e9)}

        measures = [
            lambda case=case, kind=kind: pairs[kind].take(
                blocks, counting=blocks * per_block if case == "plain" else 0
            )
            for case, kind, _ in CASES
        ]

        async def manifests() -> Sample:
            answer = await cipher.ask(
                "manifests", layers=LAYERS, object_bytes=object_bytes, blocks=blocks
            )
            gb = blocks * per_block / 1e9
            return {key: answer[key] / gb for key in ("cpu_s", "plain_cpu_s")}

        *taken, aes_gcm, sealing, lists = await compare(
            [*measures, lambda: alone("aes_gcm"), lambda: alone("sealing"), manifests],
            rounds=MIN_ROUNDS,
        )
    samples = dict(zip((case for case, _, _ in CASES), taken, strict=True))
    key = "cpu_s_per_gb"
    return [
        *(
            Result.of(f"{name}/{case}{ending}", unit, figure, samples[case], samples[other])
            for case, _, other in CASES
            for ending, unit, figure in (
                ("", "MB/s", "mb_s"),
                ("/cpu", "CPU s/GB, both sides", key),
            )
        ),
        Result(
            name=f"{name}/manifests",
            value=median(lists, "cpu_s"),
            unit="CPU s/GB, both sides",
            baseline=median(samples["digest"], key) - median(lists, "plain_cpu_s"),
        ),
        Result(name=f"{name}/aes_gcm", value=median(aes_gcm, key), unit="CPU s/GB"),
        Result.of(f"{name}/sealing", "CPU s/GB", key, sealing, aes_gcm),
    ]


async def first_layer(seconds: float) -> list[Result]:
    """Measure `pipeline/first_layer` of publications that are protected, beside one that is not."""
    kinds = ("none", "signed", "signed+sealed")
    async with AsyncExitStack() as stack:
        pairs = await _pairs(stack, pipeline.LAYERS, pipeline.OBJECT_BYTES, kinds)
        for kind in kinds[1:]:
            await pairs[kind].take(2)
        rate = 1e6 * (await pairs["none"].take(16 if seconds >= 1 else 2))["mb_s"]
        blocks = max(2, round(min(rate * seconds, pipeline.MAX_BYTES) / pipeline.PER_BLOCK))
        names: dict[str, str] = {}
        for kind in kinds:
            names[kind] = (await pairs[kind].publisher.ask("publish", blocks=blocks))["namespace"]

        async def take(kind: str) -> Sample:
            return await pairs[kind].consumer.ask("verified", namespace=names[kind])

        samples = await compare([lambda kind=kind: take(kind) for kind in kinds])
        consumer = pairs["none"].consumer
        trip = (await consumer.ask("round_trip", namespace=names["none"]))["seconds"]
    results: list[Result] = []
    for kind, taken in zip(kinds, samples, strict=True):
        name = "pipeline/first_layer" + ("" if kind == "none" else f"/{kind}")
        results += pipeline.bounded(name, taken, trip)
    return results
