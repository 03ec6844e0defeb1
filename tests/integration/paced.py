"""A publisher that takes its time: ``python -m tests.integration.paced SETTINGS``.

SETTINGS is JSON with url, ca, scope_key, token and pace (seconds a layer); it publishes the sample
cache, and tells a JSON line for each layer, with the machine's monotonic time. It stays until it
is ended.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from kvcs.cli._tokens import read_tokens
from kvcs.client import Publisher
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.engines.file import SAMPLE_CACHE, load_cache
from kvcs.kv import ScopeKey
from kvcs.transport.interface import ClientTls


async def main(url, ca, scope_key, token, pace):
    cache = load_cache(SAMPLE_CACHE)
    config = ConnectConfig(tls=ClientTls(ca_file=ca), tokens=read_tokens(Path(token), "token"))
    async with connect(url, config) as connection:
        publisher = Publisher(
            connection,
            scope_key=ScopeKey(bytes.fromhex(scope_key)),
            descriptor=cache.descriptor,
        )
        async with publisher.publication(cache.tokens) as publication:
            segment = await publication.add_segment()
            for layer_index, (k, v) in sorted(cache.layers.items()):
                await asyncio.sleep(pace)
                await segment.publish_layer(layer_index, k, v)
                print(json.dumps({"layer": layer_index, "at": time.monotonic()}), flush=True)  # noqa: T201
            await publication.complete()
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(**json.loads(sys.argv[1])))
