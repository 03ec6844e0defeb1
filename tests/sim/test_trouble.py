"""A relay in trouble, replayable from the seed in the test's id.

Publishers and consumers work through one relay while it is restarted, while links lose peers and
stand still, and while others send it garbage, take nothing, or ask for too much. Nobody gets a
wrong byte, every wait ends, nothing of our own raises, and when peace has come back a new
publication is found and taken as if nothing had been.
"""

import asyncio
import logging
import random
from contextlib import AsyncExitStack, suppress

import pytest
from tests.attacks.liar import BLOCK_TOKENS, DESCRIPTOR, LAYERS, SCOPE_KEY, TLS, URL, tensor
from tests.seeds import seeded

from kvcs.client import Consumer, Publisher, PublisherConfig
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.endpoint.reconnect import Backoff, PersistentConnection
from kvcs.errors import KvcsError
from kvcs.kv import Component
from kvcs.moqt.codepoints import ALPN
from kvcs.moqt.session.limits import SessionLimits
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import FillParameters, Parameters
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay import Relay, RelayConfig, RelayLimits, allow_all
from kvcs.relay.cache import TRACK_BYTES
from kvcs.testing import LinkProfile, MemoryNetwork, run
from kvcs.transport.interface import ClientTls, TransportConfig

BLOCKS = 3
PROMPTS = 3
LAST_PROMPT = 9
TROUBLE = 30.0
DISCOVERY, RETRIEVAL = 3.0, 10.0
# Connecting, both waits, and closing; nothing may take longer.
LONGEST = 5.0 + DISCOVERY + RETRIEVAL + 10.0
SMALL = TransportConfig(
    idle_timeout=5.0, connect_timeout=5.0, high_water_bytes=8192, low_water_bytes=4096,
    stream_ring_bytes=4096,
)  # fmt: skip
LIMITS = RelayLimits(
    session=SessionLimits(max_object_bytes=4096),
    max_request_rate=50.0,
    max_request_burst=100,
    max_queued_bytes=40_000,
    max_window_bytes=10 * SMALL.max_stream_data,
    reader_timeout=12.0,
)


def tokens(prompt):
    return [prompt * 1000 + position for position in range(BLOCKS * BLOCK_TOKENS + 1)]


def is_within_budget(cache):
    """Tell whether a cache holds no more than it may, or nothing but Tracks that are in use."""
    publications = cache._publications.values()
    entries = [entry for publication in publications for entry in publication.entries.values()]
    return cache.size_bytes <= cache.capacity_bytes or not any(
        entry.usage.is_idle or list(entry.store.objects()) for entry in entries
    )


class Trouble:
    """One run: who takes part, and what befalls them.

    Attributes:
        complete: Retrievals that got everything.
        faults: What must not be.
    """

    def __init__(self, seed):
        self.chance = random.Random(seed)
        profile = LinkProfile(
            delay=self.chance.uniform(0.001, 0.02),
            reorder=self.chance.uniform(0, 0.1),
            bandwidth=2_000_000,
        )
        self.network = MemoryNetwork(seed, profile)
        self.config = RelayConfig(
            tls=TLS, authorize=allow_all, transport=SMALL, limits=LIMITS,
            cache_bytes=12 * TRACK_BYTES + self.chance.choice([60_000, 2**20]),
        )  # fmt: skip
        self.complete = 0
        self.faults = []
        self.is_over = asyncio.Event()

    def now(self):
        return asyncio.get_running_loop().time()

    async def pause(self, shortest, longest):
        await asyncio.sleep(self.chance.uniform(shortest, longest))

    # The relay.

    async def relay(self):
        """Run the relay, and a new one when it has died."""
        while not self.is_over.is_set():
            async with Relay(self.config, transport=self.network) as it:
                lifetime = self.chance.uniform(3, 15)
                try:
                    async with asyncio.timeout(lifetime if self.in_trouble else None):
                        await self.is_over.wait()
                except TimeoutError:
                    # Killed: nobody is told.
                    for connection in it._server.connections:
                        connection._transport.kill()
                else:
                    await asyncio.sleep(15)
                    left = it.statistics()
                    if left.sessions or left.subscriptions or left.fetches:
                        self.faults.append(f"left behind: {left}")
                assert is_within_budget(it._core.cache)
            await self.pause(0, 2)

    @property
    def in_trouble(self):
        return self.now() < TROUBLE

    # Honest peers.

    async def publisher(self, prompt=None):
        config = PublisherConfig(
            announce_timeout=3.0, send_timeout=2.0, drain_timeout=1.0,
            push=self.chance.random() < 0.5,
        )  # fmt: skip
        source = Publisher(
            scope_key=SCOPE_KEY, descriptor=DESCRIPTOR, config=config,
            random_bytes=self.chance.randbytes,
        )  # fmt: skip
        keeper = PersistentConnection(
            URL, ConnectConfig(transport=SMALL), on_connected=source.attach,
            backoff=Backoff(maximum=2.0), transport=self.network, rng=self.chance,
        )  # fmt: skip
        async with keeper:
            while not self.is_over.is_set():
                try:
                    await keeper.connection(10.0)
                    await self.publish(source, prompt)
                except KvcsError:
                    await asyncio.sleep(0.1)

    async def publish(self, source, prompt):
        prompt = self.chance.randrange(PROMPTS) if prompt is None else prompt
        async with source.publication(tokens(prompt)) as publication:
            segment = await publication.add_segment()
            for layer_index in range(LAYERS):
                await self.pause(0, 0.3)
                if self.in_trouble and self.chance.random() < 0.02:
                    publication.abort()
                    return
                k, v = (tensor(part, layer_index) for part in (Component.K, Component.V))
                await segment.publish_layer(layer_index, k, v)
            await publication.complete()
            await self.pause(1, 4)

    async def consumer(self, prompt=None):
        while not self.is_over.is_set():
            await self.pause(0, 1)
            started_at = self.now()
            with suppress(KvcsError):
                await self.retrieve(self.chance.randrange(PROMPTS) if prompt is None else prompt)
            if self.now() > started_at + LONGEST:
                self.faults.append(f"a retrieval took {self.now() - started_at:.1f} s")

    async def retrieve(self, prompt):
        config = ConnectConfig(transport=SMALL)
        async with connect(URL, config, transport=self.network) as connection:
            it = Consumer(connection, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
            found = await it.discover(tokens(prompt), timeout=DISCOVERY)
            if not found:
                return
            got = 0
            async with it.retrieve(self.chance.choice(found), timeout=RETRIEVAL) as retrieval:
                async for layer in retrieval:
                    k, v = (tensor(part, layer.layer_index) for part in (Component.K, Component.V))
                    if (bytes(layer.k), bytes(layer.v)) != (k, v):
                        self.faults.append(f"wrong bytes in layer {layer.layer_index}")
                    got += 1
            verdict = retrieval.verdict
            if verdict.complete != (got == LAYERS and not verdict.missing):
                self.faults.append(f"{got} layers, and {verdict}")
            self.complete += verdict.complete

    # The others.

    async def weather(self):
        """Cut connections, and have ends of them stand still."""
        while self.in_trouble:
            await self.pause(0.1, 1.5)
            if not self.network.transports:
                continue
            transport = self.chance.choice(self.network.transports)
            if self.chance.random() < 0.3:
                transport.cut()
            else:
                transport.stall()
                # Also when it is over by then: so it hears of it.
                loop = asyncio.get_running_loop()
                loop.call_later(self.chance.uniform(0.1, 7), transport.resume)

    async def intruder(self):
        attacks = [self.garbage, self.silence, self.glutton, self.flood, self.open_streams]
        while self.in_trouble:
            await self.pause(0, 1)
            with suppress(KvcsError):
                await self.chance.choice(attacks)()

    async def raw(self):
        transport = await self.network.connect(
            "localhost", 4433, alpn=ALPN, tls=ClientTls(), config=SMALL
        )
        transport.set_listener(lambda _: None, lambda: None)
        return transport

    async def garbage(self):
        """Bytes that are no MOQT, in pieces of any size."""
        transport = await self.raw()
        if self.chance.random() < 0.7:
            transport.write(2, b"\xaf\x00\x00\x00")
        for _ in range(self.chance.randrange(20)):
            stream_id = self.chance.choice([0, 4, 6, 8, 10])
            data = self.chance.randbytes(self.chance.choice([1, 1, 10, 1000]))
            transport.write(stream_id, data, fin=self.chance.random() < 0.1)
            await self.pause(0, 0.05)
        transport.close(0, "")

    async def silence(self):
        """No SETUP, and no goodbye."""
        transport = await self.raw()
        await self.pause(0, 12)
        transport.kill()

    async def glutton(self):
        """Ask for everything, and take nothing."""
        async with connect(
            URL, ConnectConfig(transport=SMALL), transport=self.network
        ) as connection:
            for name in await self.namespaces(connection):
                for track in (b"manifest", b"k.raw.s0", b"v.raw.s0"):
                    everything = Parameters(
                        location_filter=LocationFilter.next_object(),
                        fill=FillParameters(location_filter=LocationFilter.absolute_start(0, 0)),
                    )
                    connection.subscribe(FullTrackName(name, track), everything, lambda _: None)
                    connection.fetch(FullTrackName(name, track), Parameters(), lambda _: None)
            connection._transport.stall()
            await self.pause(1, 20)
            connection._transport.kill()

    async def namespaces(self, connection):
        it = Consumer(connection, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
        found = await it.discover(tokens(self.chance.randrange(PROMPTS)), timeout=1.0)
        return [candidate.name.namespace() for candidate in found]

    async def flood(self):
        """Far more requests than anybody needs."""
        async with connect(
            URL, ConnectConfig(transport=SMALL), transport=self.network
        ) as connection:
            for number in range(self.chance.choice([50, 150, 400])):
                name = TrackNamespace((b"flood", b"%d" % (number % 20)))
                ask = self.chance.choice(
                    [
                        lambda n: connection.fetch(FullTrackName(n, b"x")),
                        lambda n: connection.subscribe(FullTrackName(n, b"x")),
                        connection.subscribe_namespace,
                        connection.publish_namespace,
                    ]
                )
                request_id = ask(name)
                if self.chance.random() < 0.5:
                    connection.cancel(request_id)
            await self.pause(0, 2)

    async def open_streams(self):
        """Streams with lengths that are lies, and streams on which nothing follows."""
        transport = await self.raw()
        transport.write(2, b"\xaf\x00\x00\x00")
        for number in range(self.chance.randrange(1, 40)):
            header = SubgroupHeader(
                track_alias=number % 3, group_id=number, subgroup_id=0, publisher_priority=0
            ).encode()
            size = b"\xff" + self.chance.choice([2**20, 2**62]).to_bytes(8)
            rest = self.chance.choice([b"", b"\x00", b"\x00" + size, b"\x00" + size + bytes(500)])
            transport.write(6 + 4 * number, header + rest)
        await self.pause(0, 5)
        transport.close(0, "")

    async def run(self):
        """Let all of it go on, then see that peace comes back."""
        async with AsyncExitStack() as stack:
            group = await stack.enter_async_context(asyncio.TaskGroup())
            group.create_task(self.relay())
            peers = [self.publisher(), self.publisher(), *(self.consumer() for _ in range(3))]
            for peer in (*peers, self.weather(), self.intruder(), self.intruder()):
                group.create_task(peer)
            await asyncio.sleep(TROUBLE + 30)
            before = self.complete
            last = [group.create_task(self.publisher(LAST_PROMPT))]
            last += [group.create_task(self.consumer(LAST_PROMPT)) for _ in range(2)]
            await asyncio.sleep(15)
            if self.complete <= before:
                self.faults.append("no recovery")
            self.is_over.set()
        return self.faults, self.complete


async def scenario(seed):
    return await Trouble(seed).run()


@pytest.fixture(autouse=True)
def no_crash(caplog):
    with caplog.at_level(logging.INFO, logger="kvcs"):
        yield
    crashes = [record for record in caplog.get_records("call") if record.exc_info]
    assert not crashes, [record.exc_text or record.getMessage() for record in crashes]


@pytest.mark.timeout(180)
@seeded("seed", range(1), soak=range(1, 46))
def test_relay_in_trouble_serves_again_and_nobody_is_told_anything_wrong(seed):
    faults, complete = run(scenario(seed), seed=seed)

    assert faults == []
    assert complete > 0
