"""Join a publication in mid-production: past layers by fill, later ones live, each Object once.

Run it in the repository: python examples/join_in_the_middle.py
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
    connection: kvcs.Connection, cache: CacheFile, *, halfway: asyncio.Event, joined: asyncio.Event
) -> None:
    publisher = kvcs.Publisher(connection, scope_key=SCOPE_KEY, descriptor=cache.descriptor)
    async with publisher.publication(cache.tokens) as publication:
        segment = await publication.add_segment()
        for layer_index, tensors in cache.layers.items():
            if layer_index == cache.descriptor.layers // 2:
                halfway.set()
                await joined.wait()  # only to make the join happen in the middle
            await segment.publish_layer(layer_index, tensors.k, tensors.v)
        await publication.complete()
        await publication.wait_delivered(30.0)


async def consume(
    connection: kvcs.Connection, cache: CacheFile, *, joined: asyncio.Event
) -> kvcs.Verdict:
    consumer = kvcs.Consumer(connection, scope_key=SCOPE_KEY, descriptor=cache.descriptor)
    found = await consumer.discover(cache.tokens)
    async with consumer.retrieve(found[0], timeout=30.0) as retrieval:
        async for layer in retrieval:
            print(f"layer {layer.layer_index:2} usable, {len(layer.k) + len(layer.v)} bytes")
            joined.set()
        return retrieval.verdict


async def main() -> None:
    cache = load_cache(SAMPLE_CACHE)
    halfway, joined = asyncio.Event(), asyncio.Event()
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
                group.create_task(publish(origin, cache, halfway=halfway, joined=joined))
                await halfway.wait()
                verdict = await consume(reader, cache, joined=joined)
            statistics = relay.statistics()
    print(f"complete: {verdict.complete}, duplicate Objects: {verdict.duplicate}")
    print(f"the relay took {statistics.bytes_in} bytes and sent {statistics.bytes_out}")


if __name__ == "__main__":
    asyncio.run(main())
