"""A process of a benchmark: ``python -m benchmarks.node ROLE SETTINGS``, driven by JSON lines."""

import asyncio
import contextlib
import json
import logging
import resource
import select
import statistics
import sys
import time
from collections.abc import Buffer, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.protection import (
    aes_gcm,
    consumer_config,
    manifest_calls,
    publisher_config,
    seal_calls,
)
from benchmarks.raw import Forwarder, RawSink, RawSource
from kvcs.client import Consumer, Publisher
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.endpoint.connection import Connection
from kvcs.endpoint.serve import ServeConfig, serve
from kvcs.errors import PublishDoneCode, RequestFailed
from kvcs.kv import Component, Descriptor, parse_scope_key
from kvcs.kv.naming import PublicationName
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import (
    Event,
    ObjectReceived,
    PublishDoneReceived,
    RequestCancelled,
    RequestRejected,
    StreamAborted,
)
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import FillParameters, Parameters
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.auth import allow_all
from kvcs.relay.config import RelayConfig, RelayLimits
from kvcs.relay.disk.config import DiskConfig
from kvcs.relay.relay import Relay
from kvcs.transport.interface import ClientTls, ServerTls, TransportConfig

SCOPE_KEY = parse_scope_key(bytes(range(32)))
BLOCK_TOKENS = 64
KV_HEADS = 4
DATA_TRACKS = (b"k.raw.s0", b"v.raw.s0")


def descriptor(layers: int, object_bytes: int) -> Descriptor:
    """Describe a model whose "k" Objects carry `object_bytes` octets of Data."""
    return Descriptor.parse(
        {
            "layers": layers,
            "kv_heads": KV_HEADS,
            "head_dim": object_bytes // (BLOCK_TOKENS * KV_HEADS * 2),
            "block_tokens": BLOCK_TOKENS,
            "dtype": "float16",
            "axes": "tokens,kv_heads,head_dim",
            "byte_order": "little",
            "position": "rope-applied",
            "weights_sha256": "0" * 64,
            "tokenizer_sha256": "1" * 64,
        }
    )


def cpu_seconds() -> float:
    """Return the CPU seconds of this process so far, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_memory_mb() -> float:
    """Return the most resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def server_tls(certificate: dict[str, str]) -> ServerTls:
    """Return the server's settings."""
    return ServerTls(
        certificate_file=certificate["certificate"], private_key_file=certificate["key"]
    )


class Node:
    """What all roles have: CPU accounting, and a place for what is open."""

    def __init__(self, settings: dict[str, Any], stack: AsyncExitStack) -> None:
        self.settings = settings
        self.certificate: dict[str, str] = settings["certificate"]
        self.stack = stack

    async def open(self) -> None:
        """Open ports and connections."""

    async def cpu(self) -> dict[str, Any]:
        """Return the CPU seconds so far."""
        return {"cpu_s": cpu_seconds()}

    async def memory(self) -> dict[str, Any]:
        """Return the most resident memory so far."""
        return {"peak_mb": peak_memory_mb()}

    def transport_config(self) -> TransportConfig:
        default = TransportConfig()
        control = self.settings.get("congestion_control", default.congestion_control)
        return replace(default, congestion_control=control)

    def client_config(self) -> ConnectConfig:
        return ConnectConfig(
            tls=ClientTls(ca_file=self.certificate["ca"]), transport=self.transport_config()
        )

    async def connection(self, port: int) -> Connection:
        return await self.stack.enter_async_context(
            connect(f"moqt://127.0.0.1:{port}/", config=self.client_config())
        )


class RawSourceNode(Node):
    async def open(self) -> None:
        self.source = RawSource(self.settings["port"], self.certificate)


class RawSinkNode(Node):
    async def open(self) -> None:
        self.sink = RawSink(self.settings["port"], self.certificate)

    async def take(self, size: int) -> dict[str, Any]:
        await self.sink.ready()
        cpu = cpu_seconds()
        seconds = await self.sink.take(size)
        return {"seconds": seconds, "bytes": size, "cpu_s": cpu_seconds() - cpu}


class ForwarderNode(Node):
    async def open(self) -> None:
        self.forwarder = Forwarder(
            self.settings["port"], self.settings["source_port"], self.certificate
        )
        await self.forwarder.ready()

    async def sinks(self, count: int) -> dict[str, Any]:
        self.forwarder.reset()
        self.forwarder.sinks = count
        return {"cpu_s": cpu_seconds()}


class PublisherNode(Node):
    """Publishes: directly, on a port of its own, or through a relay."""

    async def open(self) -> None:
        settings = self.settings
        self.descriptor = descriptor(settings["layers"], settings["object_bytes"])
        self.publisher = Publisher(
            scope_key=SCOPE_KEY,
            descriptor=self.descriptor,
            config=publisher_config(settings.get("protection", "none")),
        )
        self._publication: AsyncExitStack | None = None
        if "relay_port" in settings:
            self.publisher.attach(await self.connection(settings["relay_port"]))
        else:
            await self.stack.enter_async_context(
                serve(
                    "127.0.0.1",
                    settings["port"],
                    lambda connection: self.publisher.attach(connection, announces=False),
                    config=ServeConfig(
                        tls=server_tls(self.certificate), transport=self.transport_config()
                    ),
                )
            )

    async def publish(self, blocks: int, *, live: bool = False) -> dict[str, Any]:
        """Publish anew; all Objects exist when the answer is sent, unless `live`."""
        if self._publication is not None:
            await self._publication.aclose()
        self._publication = AsyncExitStack()
        cpu = cpu_seconds()
        tokens = [index % 50_000 for index in range(blocks * BLOCK_TOKENS)]
        publication = await self._publication.enter_async_context(
            self.publisher.publication(tokens)
        )
        segment = await publication.add_segment(blocks)
        self._live = (publication, segment, blocks)
        if not live:
            await self.produce()
        namespace = str(publication.name.namespace())
        return {"namespace": namespace, "cpu_s": cpu_seconds() - cpu}

    async def produce(self) -> dict[str, Any]:
        """Publish all layers, as fast as they are taken."""
        publication, segment, blocks = self._live
        layer = bytes(blocks * self.settings["object_bytes"])
        for layer_index in range(self.settings["layers"]):
            await segment.publish_layer(layer_index, layer, layer)
        await publication.complete()
        return {}

    async def withdraw(self) -> dict[str, Any]:
        """Take the publication back, as a publisher that leaves does."""
        if self._publication is not None:
            await self._publication.aclose()
            self._publication = None
        return {}


class RelayNode(Node):
    async def open(self) -> None:
        config = RelayConfig(
            tls=server_tls(self.certificate),
            port=self.settings["port"],
            authorize=allow_all,
            cache_bytes=self.settings.get("cache_bytes", 2 * 2**30),
            upstream=tuple(
                f"moqt://127.0.0.1:{self.settings[name]}/"
                for name in ("upstream_port",)
                if name in self.settings
            ),
            upstream_tls=ClientTls(ca_file=self.certificate["ca"]),
            disk=self._disk(),
            limits=RelayLimits(reader_timeout=self.settings.get("reader_timeout", 300.0)),
        )
        self.relay = await self.stack.enter_async_context(Relay(config))

    async def ready(self) -> dict[str, Any]:
        """Wait until the relay has its parent, if it is to have one."""
        for _ in range(100):
            if "upstream_port" not in self.settings or self.relay.parent is not None:
                return {}
            await asyncio.sleep(0.1)
        raise RuntimeError("the parent is not reached")

    def _disk(self) -> DiskConfig | None:
        directory = self.settings.get("disk_directory")
        if directory is None:
            return None
        # Everything is to get there, however slow the disk is.
        return DiskConfig(directory=Path(directory), queue_bytes=4 * 2**30)

    async def settle(self) -> dict[str, Any]:
        """Wait until nothing waits to be written."""
        while self.relay.statistics().disk_queued_bytes:  # noqa: ASYNC110 - counters have no event
            await asyncio.sleep(0.01)
        return {}

    async def statistics(self) -> dict[str, Any]:
        statistics = self.relay.statistics()
        return {
            "sessions": statistics.sessions,
            "upstream_subscriptions": statistics.upstream_subscriptions,
            "disk_bytes_read": statistics.disk_bytes_read,
            "bytes_in": statistics.bytes_in,
            "bytes_out": statistics.bytes_out,
            "cache_mb": statistics.cache_bytes / 1e6,
            "queued_mb": statistics.queued_bytes / 1e6,
            "peak_mb": peak_memory_mb(),
            "cpu_s": cpu_seconds(),
        }


class _Reused:
    """Memory that is mapped once and used for every retrieval."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[Component, int], bytearray] = {}

    def buffer(self, component: Component, layer_index: int, size_bytes: int) -> Buffer:
        key = (component, layer_index)
        if len(self._buffers.get(key, b"")) != size_bytes:
            self._buffers[key] = bytearray(b"\x01") * size_bytes
        return self._buffers[key]


def _is_failure(event: Event) -> bool:
    if isinstance(event, PublishDoneReceived):
        return event.status_code != PublishDoneCode.TRACK_ENDED
    return isinstance(event, RequestRejected | RequestCancelled | StreamAborted)


class _Taking:
    """Counts the payload octets that requests bring, until all are there or one fails."""

    def __init__(self, size: int) -> None:
        self.received = 0
        self._size = size
        self._end: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def note(self, event: Event) -> None:
        """Take an event of a request."""
        if isinstance(event, ObjectReceived):
            self.received += len(event.obj.payload)
            if self.received >= self._size and not self._end.done():
                self._end.set_result(time.monotonic())
        elif _is_failure(event) and not self._end.done():
            self._end.set_exception(RuntimeError(f"after {self.received} octets: {event}"))

    async def end(self) -> float:
        """Return when the last octet came.

        Raises:
            RuntimeError: A request failed, or not all came in time.
        """
        try:
            return await asyncio.wait_for(self._end, 60)
        except TimeoutError:
            raise RuntimeError(f"{self.received} of {self._size} octets in 60 s") from None


class ConsumerNode(Node):
    """Takes a publication: every byte verified, or just counted."""

    async def open(self) -> None:
        self._memory = _Reused()
        self._config = consumer_config(self.settings.get("protection", "none"))
        self._connection = await self.connection(self.settings["port"])

    async def plain(self, namespace: str, size: int) -> dict[str, Any]:
        """Subscribe to both data tracks and count payload octets."""
        taking = _Taking(size)
        cpu, started_at = cpu_seconds(), time.monotonic()
        requests = self._subscribe(namespace, taking.note)
        ended_at = await taking.end()
        cpu = cpu_seconds() - cpu
        for request_id in requests:
            self._connection.cancel(request_id)
        return {"seconds": ended_at - started_at, "bytes": taking.received, "cpu_s": cpu}

    async def within(self, namespace: str, seconds: float) -> dict[str, Any]:
        """Subscribe to both data tracks and count the payload octets that come in a time."""
        received = 0

        def count(event: Event) -> None:
            nonlocal received
            if isinstance(event, ObjectReceived):
                received += len(event.obj.payload)

        started_at = time.monotonic()
        requests = self._subscribe(namespace, count)
        await asyncio.sleep(seconds)
        taken = {"seconds": time.monotonic() - started_at, "bytes": received}
        for request_id in requests:
            self._connection.cancel(request_id)
        return taken

    async def fetch(self, namespace: str, size: int) -> dict[str, Any]:
        """Fetch both data tracks whole and count payload octets."""
        taking = _Taking(size)
        parameters = Parameters(location_filter=LocationFilter.absolute_start(0, 0))
        started_at = time.monotonic()
        for name in DATA_TRACKS:
            track = FullTrackName(TrackNamespace.parse(namespace), name)
            self._connection.fetch(track, parameters, taking.note)
        return {"seconds": await taking.end() - started_at, "bytes": taking.received}

    def _subscribe(self, namespace: str, listener: Callable[[Event], None]) -> list[RequestId]:
        parameters = Parameters(
            location_filter=LocationFilter.next_object(),
            fill=FillParameters(location_filter=LocationFilter.absolute_start(0, 0)),
        )
        return [
            self._connection.subscribe(
                FullTrackName(TrackNamespace.parse(namespace), name), parameters, listener
            )
            for name in DATA_TRACKS
        ]

    async def follow(self, namespace: str, size: int) -> dict[str, Any]:
        """Subscribe to both data tracks before they have Objects; `followed` has the rest."""
        self._done = asyncio.get_running_loop().create_future()
        arrived: set[tuple[bytes, int, int]] = set()
        received = 0
        first_at = 0.0

        def listen(name: bytes) -> Callable[[Event], None]:
            def count(event: Event) -> None:
                nonlocal received, first_at
                if not isinstance(event, ObjectReceived) or not event.obj.payload:
                    return
                key = (name, event.obj.group_id, event.obj.object_id)
                if key in arrived:
                    return
                arrived.add(key)
                first_at = first_at or time.monotonic()
                received += len(event.obj.payload)
                if received >= size and not self._done.done():
                    self._done.set_result(time.monotonic() - first_at)

            return count

        parameters = Parameters(location_filter=LocationFilter.next_object())
        self._begun = [
            self._connection.subscribe(
                FullTrackName(TrackNamespace.parse(namespace), name), parameters, listen(name)
            )
            for name in DATA_TRACKS
        ]
        await asyncio.gather(*map(self._connection.answer, self._begun))
        return {}

    async def followed(self) -> dict[str, Any]:
        """Wait until everything has come; the time is that from the first Object on."""
        seconds = await asyncio.wait_for(self._done, 60)
        for request_id in self._begun:
            self._connection.cancel(request_id)
        return {"seconds": seconds}

    async def begin(self, namespace: str) -> dict[str, Any]:
        """Subscribe to both data tracks and wait for the first Object only."""
        begun = asyncio.Event()

        def note(event: Event) -> None:
            if isinstance(event, ObjectReceived):
                begun.set()

        self._begun = self._subscribe(namespace, note)
        await asyncio.wait_for(begun.wait(), 60)
        return {}

    async def stand_still(self, namespace: str) -> dict[str, Any]:
        """Do as `begin`, and nothing more until the next question or the end of the input.

        The event loop stands still, and so takes nothing; the library, in its own thread, goes on
        to say that this peer is there.
        """
        answer = await self.begin(namespace)
        asyncio.get_running_loop().call_later(0.01, select.select, [sys.stdin], [], [])
        return answer

    async def end(self) -> dict[str, Any]:
        """Cancel what was begun; the answer to a question says that the relay knows."""
        for request_id in self._begun:
            self._connection.cancel(request_id)
        track = FullTrackName(TrackNamespace((b"nothing",)), b"")
        with contextlib.suppress(RequestFailed):
            await self._connection.answer(self._connection.track_status(track))
        return {}

    async def round_trip(self, namespace: str) -> dict[str, Any]:
        """Measure a request that is answered at once, on a connection that is idle."""
        track = FullTrackName(TrackNamespace.parse(namespace), DATA_TRACKS[0])
        trips: list[float] = []
        for _ in range(9):
            started_at = time.monotonic()
            await self._connection.answer(self._connection.track_status(track))
            trips.append(time.monotonic() - started_at)
        return {"seconds": statistics.median(trips)}

    async def verified(self, namespace: str) -> dict[str, Any]:
        """Retrieve the publication into memory of our own, every byte verified."""
        consumer = Consumer(self._connection, scope_key=SCOPE_KEY, config=self._config)
        name = PublicationName.parse(TrackNamespace.parse(namespace))
        cpu, started_at = cpu_seconds(), time.monotonic()
        retrieval = consumer.retrieve(consumer.candidate(name), memory=self._memory, timeout=60)
        async with retrieval:
            arrivals = [time.monotonic() - started_at async for _ in retrieval]
        verdict = retrieval.verdict
        if not verdict.complete:
            raise RuntimeError(f"incomplete: {verdict}")
        return {
            "seconds": arrivals[-1],
            "first_s": arrivals[0],
            "bytes": verdict.payload_bytes,
            "cpu_s": cpu_seconds() - cpu,
        }


class CipherNode(Node):
    """Encrypts and decrypts as many octets as Objects have, and nothing else."""

    async def aes_gcm(self, object_bytes: int, count: int) -> dict[str, Any]:
        """Run AES-GCM over the plaintexts of so many Objects, there and back."""
        return {"cpu_s": aes_gcm(object_bytes, count), "bytes": object_bytes * count}

    async def sealing(self, object_bytes: int, count: int) -> dict[str, Any]:
        """Seal and open so many Objects."""
        return {"cpu_s": seal_calls(object_bytes, count), "bytes": object_bytes * count}

    async def manifests(self, layers: int, object_bytes: int, blocks: int) -> dict[str, Any]:
        """Write and read all versions of a manifest, signed and not."""
        signed, plain = manifest_calls(descriptor(layers, object_bytes), blocks)
        return {"cpu_s": signed, "plain_cpu_s": plain}


ROLES = {
    "raw-source": RawSourceNode,
    "raw-sink": RawSinkNode,
    "forwarder": ForwarderNode,
    "publisher": PublisherNode,
    "relay": RelayNode,
    "consumer": ConsumerNode,
    "cipher": CipherNode,
}


async def main(role: str, settings: dict[str, Any]) -> None:
    """Answer one command after the other until standard input ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with AsyncExitStack() as stack:
        node = ROLES[role](settings, stack)
        opened = False
        while line := await reader.readline():
            arguments = json.loads(line)
            try:
                if not opened:
                    await node.open()
                    opened = True
                command = arguments.pop("command")
                answer = await getattr(node, command)(**arguments)
            except Exception as error:  # noqa: BLE001 - told to the parent, which stops
                answer = {"error": f"{type(error).__name__}: {error}"}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("aiopquic").setLevel(logging.ERROR)
    _, chosen, text = sys.argv
    uvloop.run(main(chosen, json.loads(text)))
