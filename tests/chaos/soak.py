"""Many publications through one relay: ``python -m tests.chaos.soak --publications 1000``.

Each has 160 Groups on two data Tracks, is retrieved while it is produced, and is gone afterwards.
The relay is a process of its own with a small cache, which is full after a few of them; what it
holds when all are over must be what it held when the cache had just become full.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from tests.chaos.material import DESCRIPTOR as WIDE
from tests.chaos.material import SCOPE_KEY
from tests.chaos.process import MIB, Actor
from tests.integration.network import free_port

from kvcs.client import Consumer, Publisher
from kvcs.endpoint.certificate import create_dev_certificate
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.kv import Component, Layout
from kvcs.transport.interface import ClientTls

GROUPS, BLOCKS = 160, 2
DESCRIPTOR = replace(WIDE, layers=GROUPS, kv_heads=1, head_dim=64)
LAYOUT = Layout(DESCRIPTOR)
CACHE_MIB = 32
#: Publications that fill the cache, and those that are produced at a time.
WARM, AT_ONCE = 100, 3
#: What counts as flat.
GROWTH_MIB, KEPT = 16.0, 3


@dataclass
class Outcome:
    """What came of it.

    Attributes:
        usage: What the relay held after so many publications.
        told: The relay's last word.
    """

    usage: dict = field(default_factory=dict)
    told: dict = field(default_factory=dict)
    incomplete: int = 0

    @property
    def faults(self):
        warm, last = self.usage[min(self.usage)], self.usage[max(self.usage)]
        faults = []
        if self.incomplete:
            faults.append(f"{self.incomplete} publications did not arrive")
        if last.rss_mib > warm.rss_mib + GROWTH_MIB:
            faults.append(f"the relay grew from {warm.rss_mib:.1f} to {last.rss_mib:.1f} MiB")
        faults += [
            f"{what}: {getattr(warm, what)} to {getattr(last, what)}"
            for what in ("files", "threads")
            if getattr(last, what) > getattr(warm, what) + KEPT
        ]
        left = ("sessions", "subscriptions", "fetches")
        faults += [f"the relay has {self.told[what]} {what}" for what in left if self.told[what]]
        return faults


def tensor(prompt, component, layer_index):
    """Return a layer that no other publication has."""
    size = BLOCKS * LAYOUT.data_bytes(component, layer_index)
    return (bytes([component, layer_index]) + prompt.to_bytes(4)) * (size // 6) + bytes(size % 6)


async def publish(publisher, consumer, prompt):
    """Publish a cache, retrieve it at the same time, and tell whether all of it came."""
    tokens = [prompt * 100 + position for position in range(BLOCKS * DESCRIPTOR.block_tokens + 1)]
    async with publisher.publication(tokens) as publication:
        segment = await publication.add_segment()
        retrieving = asyncio.ensure_future(retrieve(consumer, publication.name, tokens, prompt))
        for layer_index in range(GROUPS):
            k, v = (tensor(prompt, part, layer_index) for part in (Component.K, Component.V))
            await segment.publish_layer(layer_index, k, v)
        await publication.complete()
        return await retrieving


async def retrieve(consumer, name, tokens, prompt):
    async with consumer.retrieve(consumer.candidate(name, tokens), timeout=60) as retrieval:
        async for layer in retrieval:
            for part, data in ((Component.K, layer.k), (Component.V, layer.v)):
                assert bytes(data) == tensor(prompt, part, layer.layer_index), "wrong bytes"
    return retrieval.verdict.complete


async def run(publications):
    """Publish so many; return what came of it."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="kvcs-soak-") as directory:
        files = create_dev_certificate(Path(directory))
        port = free_port()
        settings = {
            "ca": str(files.ca_file),
            "certificate": str(files.certificate_file),
            "key": str(files.private_key_file),
            "port": port,
            "cache_bytes": CACHE_MIB * MIB,
            "upstream": [],
            "disk": None,
        }
        log = Path(directory) / "relay.log"
        relay = Actor("relay", "relay", settings, log, lambda *_: None)
        await relay.start()
        try:
            await relay.until("open")
            await through(relay, f"moqt://127.0.0.1:{port}/", files, publications, outcome)
            await asyncio.sleep(3.0)
            outcome.told = relay.facts["relay"]
            assert "Traceback" not in log.read_text()
        finally:
            await relay.kill()
    return outcome


async def through(relay, url, files, publications, outcome):
    config = ConnectConfig(tls=ClientTls(ca_file=str(files.ca_file)))
    numbers = count()
    done = 0

    async def produce(publisher, consumer):
        nonlocal done
        while (number := next(numbers)) < publications:
            outcome.incomplete += not await publish(publisher, consumer, number)
            done += 1
            if done == min(WARM, publications // 2) or done % 100 == 0 or done == publications:
                outcome.usage[done] = relay.usage()

    async with connect(url, config) as one, connect(url, config) as other:
        publisher = Publisher(one, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
        consumer = Consumer(other, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(produce(publisher, consumer))


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--publications", type=int, default=1000)
    publications = parser.parse_args().publications
    # The publisher warns of small Objects, which are the point here.
    logging.getLogger("kvcs.client").setLevel(logging.ERROR)
    outcome = asyncio.run(run(publications))
    for done, usage in sorted(outcome.usage.items()):
        print(  # noqa: T201
            f"{done:5} publications: {usage.rss_mib:6.1f} MiB, {usage.files} files,"
            f" {usage.threads} threads"
        )
    for fault in outcome.faults:
        print("FAULT", fault)  # noqa: T201
    sys.exit(1 if outcome.faults else 0)


if __name__ == "__main__":
    main()
