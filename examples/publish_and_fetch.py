"""Publish a KV cache through a relay, and take it back.

Run it in the repository: python examples/publish_and_fetch.py
"""

import asyncio
import tempfile
from pathlib import Path

import kvcs
from kvcs.endpoint import create_dev_certificate
from kvcs.engines.file import SAMPLE_CACHE, CacheFile, load_cache
from kvcs.relay import Relay, RelayConfig, allow_all
from kvcs.transport import ClientTls

SCOPE_KEY = kvcs.ScopeKey(bytes(32))  # a real one comes from `kvcs scope new`


async def publish(
    connection: kvcs.Connection, cache: CacheFile, *, announced: asyncio.Event
) -> None:
    publisher = kvcs.Publisher(connection, scope_key=SCOPE_KEY, descriptor=cache.descriptor)
    async with publisher.publication(cache.tokens) as publication:
        segment = await publication.add_segment()
        announced.set()
        for layer_index, tensors in cache.layers.items():
            await segment.publish_layer(layer_index, tensors.k, tensors.v)
        await publication.complete()
        await publication.wait_delivered(30.0)


async def fetch(connection: kvcs.Connection, cache: CacheFile) -> kvcs.Verdict:
    consumer = kvcs.Consumer(connection, scope_key=SCOPE_KEY, descriptor=cache.descriptor)
    found = await consumer.discover(cache.tokens)
    async with consumer.retrieve(found[0], timeout=30.0) as retrieval:
        async for layer in retrieval:
            if layer.k != cache.layers[layer.layer_index].k:
                raise SystemExit(f"layer {layer.layer_index} differs")
        return retrieval.verdict


async def main() -> None:
    cache, announced = load_cache(SAMPLE_CACHE), asyncio.Event()
    with tempfile.TemporaryDirectory() as directory:
        certificate = create_dev_certificate(Path(directory))
        config = RelayConfig(tls=certificate.tls, port=0, authorize=allow_all)
        client = kvcs.ConnectConfig(tls=ClientTls(ca_file=str(certificate.ca_file)))
        async with Relay(config) as relay:
            url = f"moqt://{relay.address}/"
            async with (
                kvcs.connect(url, client) as origin,
                kvcs.connect(url, client) as reader,
                asyncio.TaskGroup() as group,
            ):
                group.create_task(publish(origin, cache, announced=announced))
                await announced.wait()
                verdict = await fetch(reader, cache)
    print(f"complete: {verdict.complete}, {verdict.verified} Objects verified,")
    print(f"{verdict.verified_bytes} bytes, first layer after {verdict.first_layer_s:.3f} s")


if __name__ == "__main__":
    asyncio.run(main())
