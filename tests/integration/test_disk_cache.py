"""A relay process with a disk: killed at any moment, and what it serves afterwards."""

import asyncio
import json
import sys
import time
from contextlib import asynccontextmanager, suppress

import pytest
from tests.integration.children import first_line, process, until
from tests.integration.model import BLOCK_TOKENS, small_model
from tests.integration.network import free_port

from kvcs.client import Consumer, ConsumerConfig, Publisher, PublisherConfig
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.engines.file import SAMPLE_CACHE
from kvcs.kv import Component, Layout, ScopeKey
from kvcs.kv.sealing import ObjectKey, ObjectKeys
from kvcs.transport.interface import ClientTls, TransportConfig

pytestmark = pytest.mark.timeout(120)

LAYERS = 4
BLOCKS = 3
SCOPE_KEY = ScopeKey(bytes(range(32)))
DESCRIPTOR = small_model(LAYERS)
TOKENS = list(range(BLOCK_TOKENS * BLOCKS + 1))
PATIENCE = 30
QUICK = TransportConfig(idle_timeout=2, connect_timeout=2)
DATA_OBJECTS = 2 * LAYERS * BLOCKS

# A relay that answers every line of input with its statistics.
RELAY = """
import asyncio, json, sys
from dataclasses import asdict, fields
from pathlib import Path
from kvcs.relay import DiskConfig, Relay, RelayConfig, allow_all
from kvcs.transport.interface import ServerTls

async def main(certificate, key, port, directory):
    config = RelayConfig(
        tls=ServerTls(certificate_file=certificate, private_key_file=key),
        port=int(port),
        authorize=allow_all,
        disk=DiskConfig(directory=Path(directory)),
    )
    async with Relay(config) as relay:
        print(json.dumps({}), flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            it = relay.statistics()
            counts = {f.name: getattr(it, f.name) for f in fields(it)}
            print(json.dumps(counts, default=dict), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


class RelayProcess:
    """A relay process on one port and one directory."""

    def __init__(self, certificate, directory):
        self.certificate = certificate
        self.directory = directory
        self.port = free_port()

    @asynccontextmanager
    async def running(self):
        """Run it; at the end of the block it is killed, and gets no word before."""
        tls = self.certificate.tls
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", RELAY, tls.certificate_file, tls.private_key_file,
            str(self.port), str(self.directory),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            await self.process.stdout.readline()
            yield self
        finally:
            self.kill()
            await self.process.wait()

    def kill(self):
        """Kill it, unless that was done."""
        if self.process.returncode is None:
            self.process.kill()

    async def statistics(self):
        self.process.stdin.write(b"\n")
        return json.loads(await self.process.stdout.readline())

    async def until(self, condition):
        """Wait until the statistics are as they should be."""
        # Another process: there is no event to wait for.
        while not condition(statistics := await self.statistics()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return statistics

    def connect(self):
        tls = ClientTls(ca_file=str(self.certificate.ca_file))
        return connect(f"moqt://127.0.0.1:{self.port}/", ConnectConfig(tls=tls, transport=QUICK))


@pytest.fixture
def relay(certificate, tmp_path):
    return RelayProcess(certificate, tmp_path / "cache")


def tensor(component, layer_index):
    size = Layout(DESCRIPTOR).data_bytes(component, layer_index)
    blocks = (bytes([component, layer_index, block]) * (size // 3 + 1) for block in range(BLOCKS))
    return b"".join(data[:size] for data in blocks)


async def publish(segment, layers):
    for layer_index in layers:
        k, v = (tensor(component, layer_index) for component in (Component.K, Component.V))
        await segment.publish_layer(layer_index, k, v)


async def take(connection, candidate=None, *, within=PATIENCE, config=None):
    """Take a publication; every layer that is usable is right."""
    consumer = Consumer(connection, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR, config=config)
    if candidate is None:
        (candidate, *_) = await consumer.discover(TOKENS)
    else:
        candidate = consumer.candidate(candidate)
    async with consumer.retrieve(candidate, timeout=within) as retrieval:
        async for layer in retrieval:
            assert bytes(layer.k) == tensor(Component.K, layer.layer_index)
            assert bytes(layer.v) == tensor(Component.V, layer.layer_index)
    return retrieval.verdict


async def publish_through(relay, layers=LAYERS, *, sealed=None, opening=None):
    """Publish to a consumer until the relay has all of it on disk; return the name."""
    async with relay.connect() as source, relay.connect() as sink:
        publisher = Publisher(source, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR, config=sealed)
        async with publisher.publication(TOKENS) as publication:
            segment = await publication.add_segment(BLOCKS)
            taking = asyncio.create_task(take(sink, publication.name, config=opening))
            await relay.until(lambda it: it["upstream_subscriptions"] == 3)
            await publish(segment, range(layers))
            if layers == LAYERS:
                await publication.complete()
                assert (await taking).complete
            objects = 2 * layers * BLOCKS
            await relay.until(
                lambda it: it["disk_objects_written"] > objects and not it["disk_queued_bytes"]
            )
            if layers < LAYERS:
                relay.kill()
                taking.cancel()
                await asyncio.gather(taking, return_exceptions=True)
            return publication.name


async def test_killed_relay_lists_and_serves_the_publication_again(relay):
    async with asyncio.timeout(PATIENCE):
        async with relay.running():
            await publish_through(relay)
            await relay.until(lambda it: it["disk_complete_tracks"] >= 2)

        async with relay.running(), relay.connect() as late:
            verdict = await take(late)
            statistics = await relay.statistics()

    assert verdict.complete
    assert verdict.verified == DATA_OBJECTS
    assert statistics["bytes_in"] == 0
    assert statistics["disk_objects_read"] >= DATA_OBJECTS
    assert statistics["disk_hits"] > 0


async def test_sealed_objects_are_opened_after_they_were_on_disk(relay):
    key = ObjectKey(key_id=7, secret=bytes(range(16)))
    sealed = PublisherConfig(object_key=key, pad_segment_blocks=4)
    opening = ConsumerConfig(object_keys=ObjectKeys([key]), open_threshold_bytes=50_000)
    async with asyncio.timeout(PATIENCE):
        async with relay.running():
            await publish_through(relay, sealed=sealed, opening=opening)
            await relay.until(lambda it: it["disk_complete_tracks"] >= 2)
        data = b"".join(path.read_bytes() for path in relay.directory.rglob("*") if path.is_file())

        async with relay.running(), relay.connect() as late:
            verdict = await take(late, config=opening)
            statistics = await relay.statistics()

    assert verdict.complete
    assert (verdict.verified, verdict.padding) == (DATA_OBJECTS, 2 * LAYERS)
    assert statistics["bytes_in"] == 0
    assert len(data) > DATA_OBJECTS * Layout(DESCRIPTOR).data_bytes(Component.K, 0)
    for layer_index in range(LAYERS):
        assert tensor(Component.K, layer_index)[:30] not in data
    assert b"block_keys_sha256" not in data


async def test_files_damaged_while_the_relay_was_down_are_never_served(relay):
    async with asyncio.timeout(PATIENCE):
        async with relay.running():
            await publish_through(relay)
            await relay.until(lambda it: it["disk_complete_tracks"] >= 2)
        files = sorted(
            path
            for path in (relay.directory / "objects").rglob("*")
            if path.is_file() and path.stat().st_size > 20_000
        )
        assert len(files) == 2 * LAYERS
        for path in files[::2]:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)

        async with relay.running(), relay.connect() as late:
            verdict = await take(late, within=5)
            statistics = await relay.statistics()

    assert not verdict.complete
    assert 0 < verdict.verified < DATA_OBJECTS
    assert statistics["disk_evicted_bytes"]["damaged"] > 0
    assert not verdict.rejected


async def test_relay_killed_in_mid_production_serves_what_it_had_and_no_more(relay):
    async with asyncio.timeout(PATIENCE):
        async with relay.running():
            name = await publish_through(relay, layers=2)

        async with relay.running(), relay.connect() as late:
            consumer = Consumer(late, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
            assert await consumer.discover(TOKENS) == []
            verdict = await take(late, name, within=5)

    assert not verdict.complete
    assert verdict.verified == 2 * 2 * BLOCKS
    assert not verdict.rejected


def is_quiet(directory, *, seconds=1.0):
    """Tell whether nothing below a directory changes for a while."""

    def files():
        found = set()
        for path in directory.rglob("*"):
            with suppress(FileNotFoundError):  # renamed meanwhile
                file = path.stat()
                found.add((file.st_ino, file.st_size, file.st_mtime_ns))
        return found

    seen = files()
    time.sleep(seconds)
    return seen and files() == seen


def test_command_line_finds_a_publication_again_after_its_relay_was_killed(
    run, own_scope_key_file, certificate_directory, tmp_path
):
    relay = (
        *("relay", "run", "--port", free_port(), "--dev-cert", certificate_directory),
        *("--no-admin", "--disk-directory", tmp_path / "cache", "--json"),
    )

    def fetch(name):
        code, _, err = run("fetch", *wanted, "-o", tmp_path / name)
        assert code == 0, err
        assert (tmp_path / name).read_bytes() == SAMPLE_CACHE.read_bytes()

    with process(*relay) as running:
        it = first_line(running)
        member = ("--scope-key-file", own_scope_key_file, "--ca", it["ca"], "--timeout", "30s")
        wanted = (it["url"], "--like", SAMPLE_CACHE, *member, "--wait")
        publish = ("publish", SAMPLE_CACHE, "--url", it["url"], *member, "--exit-when-delivered")
        with process(*publish) as publisher:
            fetch("live")
            assert publisher.wait(60) == 0, publisher.stderr.read()
        fetch("kept")
        until(lambda: is_quiet(tmp_path / "cache"))
        running.kill()
    with process(*relay) as running:
        first_line(running)
        fetch("from-disk")
