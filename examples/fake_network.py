"""Stop a publisher in the middle of a transfer, on a network in memory and without waiting.

Run it in the repository: python examples/fake_network.py
"""

import asyncio

import kvcs
from kvcs.engines.file import SAMPLE_CACHE, load_cache
from kvcs.relay import Relay, RelayConfig, allow_all
from kvcs.testing import LinkProfile, MemoryNetwork, run
from kvcs.transport import ServerTls

SCOPE_KEY = kvcs.ScopeKey(bytes(32))
LAYER_SECONDS = 0.5  # virtual: they cost no time
URL = "moqt://localhost:4433/"


async def publish(connection: kvcs.Connection) -> None:
    cache = load_cache(SAMPLE_CACHE)
    publisher = kvcs.Publisher(connection, scope_key=SCOPE_KEY, descriptor=cache.descriptor)
    async with publisher.publication(cache.tokens) as publication:
        segment = await publication.add_segment()
        for layer_index, tensors in cache.layers.items():
            await asyncio.sleep(LAYER_SECONDS)
            await segment.publish_layer(layer_index, tensors.k, tensors.v)


async def scenario() -> kvcs.Verdict:
    cache = load_cache(SAMPLE_CACHE)
    network = MemoryNetwork(seed=1, profile=LinkProfile(delay=0.02, reorder=0.01))
    tls = ServerTls(certificate_file="", private_key_file="")
    async with (
        Relay(RelayConfig(tls=tls, authorize=allow_all), transport=network),
        kvcs.connect(URL, transport=network) as origin,
        kvcs.connect(URL, transport=network) as reader,
        asyncio.TaskGroup() as group,
    ):
        publishing = group.create_task(publish(origin))
        consumer = kvcs.Consumer(reader, scope_key=SCOPE_KEY, descriptor=cache.descriptor)
        (candidate,) = await consumer.discover(cache.tokens)
        async with consumer.retrieve(candidate, timeout=600.0) as retrieval:
            async for layer in retrieval:
                if layer.layer_index == cache.descriptor.layers // 2:
                    publishing.cancel()  # the publication is aborted
            return retrieval.verdict


def main() -> None:
    verdict = run(scenario(), seed=1)
    print(f"complete: {verdict.complete}, after {verdict.elapsed_s:.1f} virtual seconds")
    for gap in verdict.missing[:1]:
        print(f"first gap: layer {gap.layer}, blocks {gap.first}..{gap.end - 1}, {gap.reason}")


if __name__ == "__main__":
    main()
