"""The bridge with a fake engine and a fake client: order, copies, backpressure, faults."""

import asyncio
import threading
import time
from dataclasses import dataclass

import pytest

from kvcs.engines.bridge import (
    Arrivals,
    PrefixMemory,
    Promise,
    generate_streaming,
    publish_prefill,
    run_in_engine_thread,
)
from kvcs.engines.interface import (
    NO_SPLIT,
    EngineStopped,
    Generation,
    PassPlan,
    PrefixLost,
)
from kvcs.errors import ConnectionLost, DataError
from kvcs.kv.identity import Descriptor
from kvcs.kv.layout import Layout
from kvcs.kv.naming import Component

BLOCK = 4
ROW = 2 * 3 * 2
LAYERS = 3
LAYOUT = Layout(
    Descriptor.parse(
        {
            "layers": LAYERS,
            "kv_heads": 2,
            "head_dim": 3,
            "block_tokens": BLOCK,
            "dtype": "float16",
            "axes": "tokens,kv_heads,head_dim",
            "byte_order": "little",
            "position": "rope-applied",
            "weights_sha256": "11" * 32,
            "tokenizer_sha256": "22" * 32,
        }
    )
)


def rows(layer, component, first, end):
    """The bytes of some tokens; every row says where it belongs."""
    return b"".join(
        bytes((layer, component, token % 256)) * (ROW // 3) for token in range(first, end)
    )


class FakeEngine:
    """Hands out `rows`, reusing its memory, and echoes the prefix it was given."""

    name = "fake"

    def __init__(self, *, fail_at=None):
        self._fail_at = fail_at
        self.sink_error = None
        self.layers_taken = 0

    def prefill(self, tokens, sink, *, plan=NO_SPLIT):
        try:
            for first, end in plan.passes(0, len(tokens)):
                sink.begin_pass(first, end - first)
                for layer in range(LAYERS):
                    if layer == self._fail_at:
                        raise DataError("the engine broke")
                    pair = [bytearray(rows(layer, component, first, end)) for component in (0, 1)]
                    sink.take_layer(layer, *pair)
                    self.layers_taken += 1
                    for buffer in pair:
                        buffer[:] = bytes(len(buffer))
        except EngineStopped as error:
            self.sink_error = error
            raise

    def generate(self, tokens, *, new_tokens, source, plan, should_stop):
        del new_tokens, plan
        failure = None
        while source is not None:
            try:
                for layer in range(LAYERS):
                    k, v = source.wait_layer(layer)
                    assert bytes(k) == rows(layer, 0, 0, source.tokens)
                    assert bytes(v) == rows(layer, 1, 0, source.tokens)
                break
            except PrefixLost as error:
                failure = failure or error
                source = source.shorter()
        assert not should_stop()
        return Generation(
            tokens=(len(tokens),),
            reused_tokens=source.tokens if source else 0,
            time_to_first_token=0.0,
            failure=failure,
        )


class FakePublication:
    """Records; may hold the first layer back, or fail at a layer."""

    def __init__(self, *, fail_at=None):
        self.segments = []
        self.is_complete = False
        self.fail_at = fail_at
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def add_segment(self, blocks):
        segment = FakeSegment(self, blocks)
        self.segments.append(segment)
        return segment

    async def complete(self):
        self.is_complete = True


class FakeSegment:
    def __init__(self, publication, blocks):
        self.publication = publication
        self.blocks = blocks
        self.layers = []

    async def publish_layer(self, layer_index, k, v):
        self.publication.begun.set()
        await self.publication.gate.wait()
        if layer_index == self.publication.fail_at:
            raise ConnectionLost(0, "gone")
        self.layers.append((layer_index, bytes(k), bytes(v)))


@dataclass
class FakeLayer:
    layer_index: int
    k: bytes
    v: bytes


@dataclass
class FakeVerdict:
    verified_prefix_blocks: int


class FakeRetrieval:
    """Delivers some layers, then ends, fails, or waits for an event."""

    def __init__(self, layers, *, blocks=2, ending=None, verified=None):
        self._layers = layers
        self._blocks = blocks
        self._ending = ending
        everything = blocks if layers == LAYERS else 0
        self.verdict = FakeVerdict(everything if verified is None else verified)

    async def __aiter__(self):
        for layer in range(self._layers):
            yield FakeLayer(layer, *(rows(layer, c, 0, self._blocks * BLOCK) for c in (0, 1)))
        if isinstance(self._ending, asyncio.Event):
            await self._ending.wait()
        elif self._ending is not None:
            raise self._ending


def expected_layers(first, end):
    return [
        (layer, rows(layer, 0, first, end), rows(layer, 1, first, end)) for layer in range(LAYERS)
    ]


def promise(blocks=2, memory=None, wait=10.0):
    deadline = asyncio.get_running_loop().time() + wait
    return Promise(layout=LAYOUT, blocks=blocks, deadline=deadline, memory=memory)


async def streamed(retrieval, **options):
    return await generate_streaming(
        FakeEngine(), range(11), retrieval, promise(**options), new_tokens=1
    )


async def test_one_pass_is_one_segment_with_every_layer_in_order():
    publication = FakePublication()

    await publish_prefill(FakeEngine(), range(11), publication, layout=LAYOUT)

    assert [segment.blocks for segment in publication.segments] == [2]
    assert publication.segments[0].layers == expected_layers(0, 8)
    assert publication.is_complete


@pytest.mark.parametrize("pass_tokens", range(1, 14))
@pytest.mark.parametrize("tokens", [4, 7, 12])
async def test_passes_of_any_size_publish_every_whole_block_once(pass_tokens, tokens):
    publication = FakePublication()

    await publish_prefill(
        FakeEngine(),
        range(tokens),
        publication,
        layout=LAYOUT,
        plan=PassPlan(pass_tokens=pass_tokens),
    )

    first = 0
    for segment in publication.segments:
        assert segment.blocks > 0
        end = first + segment.blocks * BLOCK
        assert segment.layers == expected_layers(first, end)
        first = end
    assert first == tokens // BLOCK * BLOCK


async def test_tokens_that_fill_no_block_are_refused():
    with pytest.raises(DataError, match="3 tokens do not fill a block of 4"):
        await publish_prefill(FakeEngine(), range(3), FakePublication(), layout=LAYOUT)


async def test_a_slow_publication_holds_the_engine_up():
    publication = FakePublication()
    publication.gate.clear()
    engine = FakeEngine()
    publishing = asyncio.create_task(
        publish_prefill(engine, range(8), publication, layout=LAYOUT, max_queued_bytes=1)
    )
    await publication.begun.wait()

    assert engine.layers_taken <= 1  # the first waits to be published, the second for room
    publication.gate.set()
    await publishing

    assert publication.segments[0].layers == expected_layers(0, 8)
    assert engine.layers_taken == LAYERS


async def test_an_engine_error_ends_the_publishing_uncompleted():
    publication = FakePublication()

    with pytest.raises(DataError, match="the engine broke"):
        await publish_prefill(FakeEngine(fail_at=2), range(8), publication, layout=LAYOUT)

    assert publication.segments[0].layers == expected_layers(0, 8)[:2]
    assert not publication.is_complete


async def test_a_publication_error_stops_the_engine():
    publication = FakePublication(fail_at=0)
    engine = FakeEngine()

    with pytest.raises(ConnectionLost):
        await publish_prefill(engine, range(8), publication, layout=LAYOUT, max_queued_bytes=1)

    assert isinstance(engine.sink_error, EngineStopped)
    assert not publication.is_complete


async def test_cancelling_the_publishing_stops_the_engine():
    publication = FakePublication()
    publication.gate.clear()
    engine = FakeEngine()
    publishing = asyncio.create_task(
        publish_prefill(engine, range(8), publication, layout=LAYOUT, max_queued_bytes=1)
    )
    await publication.begun.wait()

    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing

    assert isinstance(engine.sink_error, EngineStopped)


async def test_a_whole_prefix_is_reused():
    generation = await streamed(FakeRetrieval(LAYERS))

    assert generation.tokens == (11,)
    assert generation.reused_tokens == 8
    assert generation.failure is None


async def test_the_result_waits_for_the_verdict():
    verdict_is_final = asyncio.Event()
    engine_is_done = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Done(FakeEngine):
        def generate(self, tokens, **options):
            generation = super().generate(tokens, **options)
            loop.call_soon_threadsafe(engine_is_done.set)
            return generation

    retrieval = FakeRetrieval(LAYERS, ending=verdict_is_final)
    generating = asyncio.create_task(
        generate_streaming(Done(), range(11), retrieval, promise(), new_tokens=1)
    )
    await engine_is_done.wait()
    await asyncio.sleep(0)

    assert not generating.done()
    verdict_is_final.set()

    assert (await generating).reused_tokens == 8


async def test_a_publication_discarded_after_its_use_is_computed_again():
    generation = await streamed(FakeRetrieval(LAYERS, verified=0))

    assert generation.reused_tokens == 0
    assert "contradicted" in generation.failure.reason


async def test_a_retrieval_that_ends_early_is_computed():
    generation = await streamed(FakeRetrieval(1))

    assert generation.reused_tokens == 0
    assert generation.failure.layer_index == 1
    assert generation.failure.reason == "the retrieval ended without it"


async def test_a_retrieval_that_fails_is_computed():
    generation = await streamed(FakeRetrieval(1, ending=ConnectionLost(0, "gone")))

    assert generation.reused_tokens == 0
    assert "connection lost" in generation.failure.reason


async def test_a_deadline_that_passes_is_computed():
    generation = await streamed(FakeRetrieval(0, ending=asyncio.Event()), wait=0.0)

    assert generation.reused_tokens == 0
    assert generation.failure.reason == "it did not arrive in time"


async def test_what_is_verified_in_all_layers_is_reused_when_the_rest_is_missing():
    memory = PrefixMemory(LAYOUT)
    for layer in range(LAYERS):
        for component in (Component.K, Component.V):
            buffer = memory.buffer(component, layer, 2 * BLOCK * ROW)
            buffer[: BLOCK * ROW] = rows(layer, component - 1, 0, BLOCK)

    generation = await streamed(FakeRetrieval(1, verified=1), memory=memory)

    assert generation.reused_tokens == BLOCK
    assert generation.failure is not None


async def test_a_bug_in_the_feeding_is_raised():
    with pytest.raises(ZeroDivisionError):
        await streamed(FakeRetrieval(1, ending=ZeroDivisionError()))


async def test_cancelling_the_generation_stops_the_engine():
    stopped = threading.Event()

    class Waiting(FakeEngine):
        def generate(self, tokens, *, source, **options):
            try:
                return super().generate(tokens, source=source, **options)
            except EngineStopped:
                stopped.set()
                raise

    generating = asyncio.create_task(
        generate_streaming(
            Waiting(),
            range(11),
            FakeRetrieval(1, ending=asyncio.Event()),
            promise(),
            new_tokens=1,
        )
    )
    await asyncio.sleep(0)

    generating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await generating

    assert stopped.is_set()


def test_arrivals_of_a_stopped_source_stop_the_engine_even_if_they_are_there():
    arrivals = Arrivals(tokens=4, layers=1, deadline=time.monotonic() + 10)
    arrivals.deliver(FakeLayer(0, b"k", b"v"))
    arrivals.stop()

    assert arrivals.is_stopped()
    with pytest.raises(EngineStopped):
        arrivals.wait_layer(0)


async def test_engine_thread_raises_what_the_call_raises():
    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_in_engine_thread(broken, stop=lambda: None)
