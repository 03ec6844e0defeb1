"""A process of the chaos: ``python -m tests.chaos.actor ROLE SETTINGS``; tells JSON lines.

Whatever is no `KvcsError` is a bug, and ends the process with a traceback.
"""

import asyncio
import json
import logging
import random
import signal
import sys
from pathlib import Path

import uvloop
from tests.chaos import hostile
from tests.chaos.forger import forge
from tests.chaos.material import DESCRIPTOR, LAYERS, PROMPTS, SCOPE_KEY, is_genuine, tensor, tokens

from kvcs.client import Consumer, Hold, Publisher, PublisherConfig
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.endpoint.reconnect import PersistentConnection
from kvcs.errors import KvcsError
from kvcs.kv import Component
from kvcs.relay import DiskConfig, Relay, RelayConfig, RelayLimits, allow_all
from kvcs.transport.interface import ClientTls, ServerTls, TransportConfig

#: Seconds that discovery and retrieval may take, and what is granted on a busy machine.
DISCOVERY, RETRIEVAL, GRACE = 5.0, 10.0, 20.0
QUICK = {"idle_timeout": 5.0, "connect_timeout": 5.0, "close_timeout": 2.0}
MIB = 2**20


def tell(kind, **facts):
    """Say what happened."""
    sys.stdout.write(json.dumps({"kind": kind, **facts}) + "\n")
    sys.stdout.flush()


class Clock:
    """Time without that for which this process was stopped."""

    _TICK = 0.1

    def __init__(self):
        self._stopped = 0.0

    def now(self):
        return asyncio.get_running_loop().time() - self._stopped

    async def run(self):
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(self._TICK)
            gap = loop.time() - before - self._TICK
            self._stopped += gap if gap > 0.5 else 0.0


def client_config(settings):
    return ConnectConfig(tls=ClientTls(ca_file=settings["ca"]), transport=TransportConfig(**QUICK))


# Relay.


async def relay(settings):
    """Serve until SIGTERM, and tell the counters."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    config = RelayConfig(
        tls=ServerTls(certificate_file=settings["certificate"], private_key_file=settings["key"]),
        port=settings["port"],
        authorize=allow_all,
        cache_bytes=settings["cache_bytes"],
        disk=disk(settings),
        limits=RelayLimits(reader_timeout=20.0, max_queued_bytes=32 * MIB),
        transport=TransportConfig(**QUICK, stream_ring_bytes=MIB // 4),
        upstream=tuple(settings["upstream"]),
        upstream_tls=ClientTls(ca_file=settings["ca"]),
    )
    async with Relay(config) as it:
        tell("open")
        while not stopped.is_set():
            told = it.statistics()
            tell(
                "relay",
                parent=it.parent,
                sessions=told.sessions,
                subscriptions=told.subscriptions,
                fetches=told.fetches,
                tracks=told.tracks,
                cache_bytes=told.cache_bytes,
                queued_bytes=told.queued_bytes,
                malformed_tracks=told.malformed_tracks,
                disk_objects_read=told.disk_objects_read,
                bytes_in=told.bytes_in,
                bytes_out=told.bytes_out,
            )
            try:
                await asyncio.wait_for(stopped.wait(), 0.5)
            except TimeoutError:
                continue
    tell("closed")


def disk(settings):
    """Return where Objects are kept over a kill, if anywhere."""
    if settings["disk"] is None:
        return None
    return DiskConfig(directory=Path(settings["disk"]), capacity_bytes=256 * MIB)


# Publisher.


async def publisher(settings):
    """Publish one cache after the other, some of them never to the end."""
    chance = random.Random(settings["seed"])
    config = PublisherConfig(
        announce_timeout=5.0, send_timeout=3.0, drain_timeout=2.0, hold=Hold.ALL,
        push=chance.random() < 0.5,
    )  # fmt: skip
    it = Publisher(scope_key=SCOPE_KEY, descriptor=DESCRIPTOR, config=config)
    async with (
        PersistentConnection(
            settings["url"], client_config(settings), on_connected=it.attach
        ) as connection,
        asyncio.TaskGroup() as group,
    ):
        await connected(connection)
        running = set()
        while True:
            if len(running) < 3:
                prompt = settings.get("prompt")
                prompt = chance.randrange(PROMPTS) if prompt is None else prompt
                task = group.create_task(publish(it, prompt, random.Random(chance.random())))
                running.add(task)
                task.add_done_callback(running.discard)
            await asyncio.sleep(chance.uniform(0.2, 1.0))


async def publish(it, prompt, chance):
    try:
        async with it.publication(tokens(prompt)) as publication:
            segment = await publication.add_segment()
            pace = chance.choice([0.0, 0.02, 0.2])
            for layer_index in range(LAYERS):
                await asyncio.sleep(pace)
                if chance.random() < 0.01:
                    publication.abort()
                    tell("published", outcome="aborted")
                    return
                k, v = (tensor(prompt, part, layer_index) for part in (Component.K, Component.V))
                await segment.publish_layer(layer_index, k, v)
            await publication.complete()
            await asyncio.sleep(chance.uniform(0.5, 4.0))
        tell("published", outcome="complete")
    except KvcsError as error:
        tell("published", outcome=type(error).__name__)


async def connected(connection):
    while True:
        try:
            return await connection.connection(5.0)
        except KvcsError as error:
            tell("unreachable", reason=str(error))


# Consumer.


async def consumer(settings):
    """Retrieve one cache after the other, sometimes many on one connection."""
    chance = random.Random(settings["seed"])
    clock = Clock()
    async with asyncio.TaskGroup() as group:
        ticking = group.create_task(clock.run())
        while True:
            await asyncio.sleep(chance.uniform(0.0, 0.4))
            count = chance.choice([1, 1, 1, 5])
            retrieving = asyncio.ensure_future(session(settings, chance, clock, count))
            await in_time(retrieving, clock, count)
            if settings.get("once"):
                ticking.cancel()
                return


async def in_time(retrieving, clock, count):
    """See that every wait ends."""
    deadline = clock.now() + count * (DISCOVERY + RETRIEVAL) + QUICK["connect_timeout"] + GRACE
    while not retrieving.done() and clock.now() < deadline:
        await asyncio.wait([retrieving], timeout=0.5)
    if not retrieving.done():
        tell("late", stack=[str(frame) for frame in retrieving.get_stack()])
        retrieving.cancel()
        await asyncio.wait([retrieving])
    elif retrieving.exception() is not None:
        raise retrieving.exception()


async def session(settings, chance, clock, count):
    try:
        async with connect(settings["url"], client_config(settings)) as connection:
            it = Consumer(connection, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
            for _ in range(count):
                prompt = settings.get("prompt")
                prompt = chance.randrange(PROMPTS) if prompt is None else prompt
                await retrieve(it, prompt, chance, clock)
    except KvcsError as error:
        tell("retrieved", outcome=type(error).__name__, reason=str(error))


async def retrieve(it, prompt, chance, clock):
    started_at = clock.now()
    found = await it.discover(tokens(prompt), timeout=DISCOVERY)
    if not found:
        tell("retrieved", outcome="nothing", seconds=clock.now() - started_at)
        return
    leaves_at = chance.randrange(LAYERS) if chance.random() < 0.1 else None
    got, false = set(), []
    async with it.retrieve(chance.choice(found), timeout=RETRIEVAL) as retrieval:
        async for layer in retrieval:
            if not is_genuine(prompt, layer):
                false.append(layer.layer_index)
            got.add(layer.layer_index)
            if len(got) - 1 == leaves_at:
                break
    verdict = retrieval.verdict
    if leaves_at is not None and not verdict.complete:
        outcome = "left"
    else:
        outcome = "complete" if verdict.complete else "verdict"
    for reason in wrongs(verdict, false, None if leaves_at is not None else len(got)):
        tell("wrong", prompt=prompt, reason=reason)
    tell(
        "retrieved",
        outcome=outcome,
        seconds=clock.now() - started_at,
        reasons=sorted({gap.reason.name for gap in verdict.missing}),
        rejected=verdict.rejected,
        error=verdict.error and type(verdict.error).__name__,
    )


def wrongs(verdict, false, layers):
    """Yield what a verdict hides; `layers` is how many were taken by who did not leave.

    A layer is given when its Objects fit their own digests. What the manifest lists of it may
    come later; until then it counts among `unconfirmed_layers`, and one that differs ends the
    retrieval with an error that discards everything. Nothing false may pass as more than that.
    """
    if false and (verdict.complete or not (verdict.error or verdict.unconfirmed_layers)):
        yield f"layers {false} are false, and the verdict does not say so"
    if layers is None:
        return
    if verdict.complete and layers != LAYERS:
        yield "complete without all layers"
    is_explained = verdict.missing or verdict.error or verdict.unconfirmed_layers
    if not verdict.complete and not is_explained:
        yield "incomplete, and nothing is missing"


# Hostile.


async def intruder(settings):
    """Do one thing after the other that nobody should do."""
    chance = random.Random(settings["seed"])
    config = client_config(settings)
    while True:
        name = chance.choice(sorted(hostile.ATTACKS))
        try:
            await hostile.ATTACKS[name](settings, config, random.Random(chance.random()))
            tell("attacked", name=name)
        except KvcsError as error:
            tell("attacked", name=name, error=type(error).__name__)
        await asyncio.sleep(chance.uniform(0.05, 0.5))


async def forger(settings):
    """Serve one forgery after the other."""
    chance = random.Random(settings["seed"])
    config = client_config(settings)
    while True:
        try:
            await forge(
                settings,
                config,
                random.Random(chance.random()),
                lambda lies, told: tell("forged", lies=lies, told=told),
            )
        except KvcsError as error:
            tell("forged", lies=[], told=0, error=type(error).__name__)
        await asyncio.sleep(chance.uniform(0.05, 0.5))


ROLES = {role.__name__: role for role in (relay, publisher, consumer, intruder, forger)}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("aiopquic").setLevel(logging.ERROR)
    _, role, text = sys.argv
    uvloop.run(ROLES[role](json.loads(text)))
