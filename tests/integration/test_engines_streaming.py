"""A model's cache, published and taken layer by layer by the client, on a network in memory."""

import asyncio
from contextlib import asynccontextmanager
from itertools import count

import pytest

# ruff: noqa: E402 - what needs the group light is imported once it is known to be there
for _module in ("numpy", "tokenizers"):
    pytest.importorskip(_module, reason="the dependency group light is not installed")

from tests.integration.model import random_checkpoint

from kvcs.client import Consumer, ConsumerConfig, Publisher, PublisherConfig
from kvcs.endpoint.connect import connect
from kvcs.endpoint.serve import ServeConfig, serve
from kvcs.engines.bridge import PrefixMemory, Promise, generate_streaming, publish_prefill
from kvcs.engines.checkpoint import save_directory
from kvcs.engines.interface import NO_SPLIT, PassPlan
from kvcs.engines.registry import load_engine, missing_packages
from kvcs.errors import DataError
from kvcs.kv import Layout, ScopeKey
from kvcs.kv.identity import reusable_blocks
from kvcs.testing import MemoryNetwork
from kvcs.transport.interface import ServerTls

pytestmark = pytest.mark.light

SCOPE_KEY = ScopeKey(bytes(range(32)))
BLOCK_TOKENS = 4
NEW_TOKENS = 8
PROMPT = tuple((7 * i + 3) % 89 for i in range(22))
BLOCKS = reusable_blocks(len(PROMPT), block_tokens=BLOCK_TOKENS)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A random model, so small that it runs in no time."""
    path = tmp_path_factory.mktemp("model")
    save_directory(random_checkpoint([f"w{token}" for token in range(90)]), path)
    return path


@pytest.fixture(
    scope="module", params=["reference", pytest.param("transformers", marks=pytest.mark.engines)]
)
def engine(request, directory):
    missing = missing_packages(request.param, directory)
    if missing:
        pytest.skip(f"no {', '.join(missing)}: the dependency group engines is not installed")
    return load_engine(request.param, directory)


class Hooked:
    """An engine that calls a function before it hands out a layer."""

    def __init__(self, engine, hook):
        self._engine = engine
        self._hook = hook

    def prefill(self, tokens, sink, *, plan=NO_SPLIT):
        hook = self._hook

        class Sink:
            begin_pass = sink.begin_pass

            def take_layer(self, layer_index, k, v):
                hook(layer_index)
                sink.take_layer(layer_index, k, v)

        self._engine.prefill(tokens, Sink(), plan=plan)


class Site:
    """A publisher's side and consumers that connect to it."""

    def __init__(self, descriptor):
        self.network = MemoryNetwork(seed=1)
        self.descriptor = descriptor
        self.layout = Layout(descriptor)
        self.retrieval = None

    @asynccontextmanager
    async def publisher(self):
        publisher = Publisher(
            scope_key=SCOPE_KEY, descriptor=self.descriptor, config=PublisherConfig()
        )
        async with serve(
            "localhost",
            4433,
            lambda connection: publisher.attach(connection, announces=False),
            config=ServeConfig(tls=ServerTls(certificate_file="", private_key_file="")),
            transport=self.network,
        ):
            yield publisher

    async def until(self, condition):
        """Wait for something that no event tells."""
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - the client has no event for it
                await asyncio.sleep(0.001)

    async def consume(self, engine):
        """Find the prefix, and generate while it arrives."""
        async with connect("moqt://localhost:4433/", transport=self.network) as connection:
            consumer = Consumer(
                connection,
                scope_key=SCOPE_KEY,
                descriptor=self.descriptor,
                config=ConsumerConfig(),
            )
            (candidate,) = await consumer.discover(PROMPT[: BLOCKS * BLOCK_TOKENS])
            memory = PrefixMemory(self.layout)
            async with consumer.retrieve(
                candidate, blocks=BLOCKS, memory=memory, timeout=20.0
            ) as self.retrieval:
                promise = Promise(
                    layout=self.layout,
                    blocks=BLOCKS,
                    deadline=asyncio.get_running_loop().time() + 20.0,
                    memory=memory,
                )
                return await generate_streaming(
                    engine, PROMPT, self.retrieval, promise, new_tokens=NEW_TOKENS
                )


@pytest.mark.parametrize("plan", [NO_SPLIT, PassPlan(pass_tokens=6), PassPlan(pass_tokens=4)])
async def test_a_published_prefix_gives_the_tokens_of_a_run_without_it(engine, plan):
    site = Site(engine.descriptor(BLOCK_TOKENS))
    expected = engine.generate(PROMPT, new_tokens=NEW_TOKENS)

    async with site.publisher() as publisher, publisher.publication(PROMPT) as publication:
        await publish_prefill(engine, PROMPT, publication, layout=site.layout, plan=plan)
        generation = await site.consume(engine)

    assert generation.tokens == expected.tokens
    assert generation.reused_tokens == BLOCKS * BLOCK_TOKENS
    assert generation.failure is None
    assert len(generation.layer_waits) == site.layout.layers


async def test_a_consumer_that_joins_during_the_prefill_gets_the_tokens_too(engine):
    site = Site(engine.descriptor(BLOCK_TOKENS))
    expected = engine.generate(PROMPT, new_tokens=NEW_TOKENS)
    loop = asyncio.get_running_loop()

    def wait_for_the_consumer(layer_index):
        if layer_index == 1:
            joined = site.until(lambda: site.retrieval)
            asyncio.run_coroutine_threadsafe(joined, loop).result(20)

    async with (
        site.publisher() as publisher,
        publisher.publication(PROMPT) as publication,
        asyncio.TaskGroup() as group,
    ):
        paced = Hooked(engine, wait_for_the_consumer)
        group.create_task(publish_prefill(paced, PROMPT, publication, layout=site.layout))
        generation = await site.consume(engine)

    assert generation.tokens == expected.tokens
    assert generation.reused_tokens == BLOCKS * BLOCK_TOKENS


@pytest.mark.parametrize(
    ("plan", "layers", "reused_blocks"),
    [
        (NO_SPLIT, 2, 0),  # half the layers of the only pass
        (PassPlan(pass_tokens=12), 6, 3),  # the first pass, and half the layers of the second
    ],
)
async def test_a_publisher_that_dies_costs_time_but_no_token(engine, plan, layers, reused_blocks):
    site = Site(engine.descriptor(BLOCK_TOKENS))
    expected = engine.generate(PROMPT, new_tokens=NEW_TOKENS)
    handed_out = count()

    def break_at_last(_):
        if next(handed_out) == layers:
            raise DataError("the engine broke")

    async def publish(publisher):
        async with publisher.publication(PROMPT) as publication:
            try:
                await publish_prefill(
                    Hooked(engine, break_at_last),
                    PROMPT,
                    publication,
                    layout=site.layout,
                    plan=plan,
                )
            finally:
                await site.until(
                    lambda: (
                        site.retrieval
                        and site.retrieval.verdict.verified_prefix_blocks >= reused_blocks
                    )
                )

    async with site.publisher() as publisher:
        publishing = asyncio.create_task(publish(publisher))
        try:
            await site.until(publisher.namespaces)
            generation = await site.consume(engine)
        finally:
            (outcome,) = await asyncio.gather(publishing, return_exceptions=True)

    assert isinstance(outcome, DataError)
    assert generation.tokens == expected.tokens
    assert generation.reused_tokens == reused_blocks * BLOCK_TOKENS
    assert generation.failure is not None
