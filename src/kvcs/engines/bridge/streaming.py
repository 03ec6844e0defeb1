"""From a retrieval to an engine that needs one layer after the other."""

import asyncio
import time
from collections.abc import AsyncIterator, Buffer, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol

from kvcs.engines.bridge.thread import end_task, run_in_engine_thread
from kvcs.engines.interface import (
    NO_SPLIT,
    Engine,
    EngineStopped,
    Generation,
    LayerSource,
    PassPlan,
    PrefixLost,
)
from kvcs.errors import KvcsError
from kvcs.kv.layout import Layout
from kvcs.kv.naming import Component

__all__ = (
    "Arrivals",
    "ArrivedLayer",
    "LayerRetrieval",
    "Outcome",
    "PrefixMemory",
    "Promise",
    "generate_streaming",
)


class ArrivedLayer(Protocol):
    """What the bridge needs of a layer that has arrived: verified, all blocks, in order."""

    @property
    def layer_index(self) -> int:
        """Layer index."""
        ...

    @property
    def k(self) -> Buffer:
        """Keys, ``[tokens, kv_heads, head_dim]``."""
        ...

    @property
    def v(self) -> Buffer:
        """Values, likewise."""
        ...


class Outcome(Protocol):
    """What the bridge needs of a verdict."""

    @property
    def verified_prefix_blocks(self) -> int:
        """Blocks from the start that are verified in every layer; 0 if nothing may be used."""
        ...


class LayerRetrieval(Protocol):
    """What the bridge needs of a retrieval."""

    def __aiter__(self) -> AsyncIterator[ArrivedLayer]:
        """Iterate over the usable layers in order; ends early when no more will come."""
        ...

    @property
    def verdict(self) -> Outcome:
        """The outcome, final once the iteration has ended."""
        ...


class PrefixMemory:
    """Host memory for a retrieval that the engine can still use when layers are missing.

    It is the `memory` of `kvcs.client.Consumer.retrieve`.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._buffers: dict[tuple[Component, int], bytearray] = {}

    def buffer(self, component: Component, layer_index: int, size_bytes: int) -> Buffer:
        """Allocate the memory of one component of one layer."""
        buffer = self._buffers[component, layer_index] = bytearray(size_bytes)
        return buffer

    def prefix(self, layer_index: int, blocks: int) -> tuple[Buffer, Buffer]:
        """Return the first `blocks` blocks of a layer, which must have been verified."""
        k, v = (
            memoryview(self._buffers[component, layer_index])[
                : blocks * self._layout.data_bytes(component, layer_index)
            ]
            for component in (Component.K, Component.V)
        )
        return k, v


class Arrivals:
    """A `LayerSource` that is filled from the event loop while the engine reads it.

    Args:
        tokens: Length of the promised prefix, whole blocks.
        layers: Number of layers.
        deadline: Monotonic seconds after which no layer is waited for.
    """

    def __init__(self, *, tokens: int, layers: int, deadline: float) -> None:
        self._tokens = tokens
        self._deadline = deadline
        self._layers: list[Future[tuple[Buffer, Buffer]]] = [Future() for _ in range(layers)]
        self._is_stopped = False
        self._shorter: LayerSource | None = None

    @property
    def tokens(self) -> int:
        """Length of the promised prefix in tokens."""
        return self._tokens

    def deliver(self, layer: ArrivedLayer) -> None:
        """Give one layer; from the loop. Ignored after `fail`."""
        arrival = self._layers[layer.layer_index]
        if not arrival.done():
            arrival.set_result((layer.k, layer.v))

    def fail(self, reason: str, *, shorter: LayerSource | None = None) -> None:
        """Say that no more layers come; `shorter` is what can be used instead."""
        self._shorter = shorter
        for layer_index, arrival in enumerate(self._layers):
            if not arrival.done():
                arrival.set_exception(PrefixLost(layer_index, reason))

    def stop(self) -> None:
        """Make the engine give up: nobody wants its result."""
        self._is_stopped = True
        self.fail("stopped")

    def is_stopped(self) -> bool:
        """Tell whether `stop` was called."""
        return self._is_stopped

    def wait_layer(self, layer_index: int) -> tuple[Buffer, Buffer]:
        """Wait in the engine's thread for one layer; see `LayerSource.wait_layer`."""
        try:
            pair = self._layers[layer_index].result(max(0.0, self._deadline - time.monotonic()))
        except TimeoutError:
            raise PrefixLost(layer_index, "it did not arrive in time") from None
        except PrefixLost:
            if self._is_stopped:
                raise EngineStopped from None
            raise
        if self._is_stopped:
            raise EngineStopped
        return pair

    def shorter(self) -> LayerSource | None:
        """Return what `fail` was given; see `LayerSource.shorter`."""
        return self._shorter


class _HeldPrefix:
    """A `LayerSource` of blocks that are there already."""

    def __init__(self, memory: PrefixMemory, *, blocks: int, tokens: int) -> None:
        self._memory = memory
        self._blocks = blocks
        self._tokens = tokens

    @property
    def tokens(self) -> int:
        return self._tokens

    def wait_layer(self, layer_index: int) -> tuple[Buffer, Buffer]:
        return self._memory.prefix(layer_index, self._blocks)

    def shorter(self) -> None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a retrieval is expected to bring.

    Attributes:
        layout: Layout of the engine's descriptor.
        blocks: Blocks of the prefix, in all layers.
        deadline: Time of the event loop after which the engine waits no longer.
        memory: The memory that the retrieval fills, if what has arrived of an incomplete
            prefix shall be used.
    """

    layout: Layout
    blocks: int
    deadline: float
    memory: PrefixMemory | None = None


async def generate_streaming(
    engine: Engine,
    tokens: Sequence[int],
    retrieval: LayerRetrieval,
    promise: Promise,
    *,
    new_tokens: int,
    plan: PassPlan = NO_SPLIT,
) -> Generation:
    """Generate in a thread while the prefix is still arriving, layer by layer.

    If the prefix does not arrive, the engine computes what is missing; the tokens are the
    same, and `Generation.failure` says why. The same happens when the publication contradicts
    itself after the last layer was used: nothing of it may be relied upon, so the verdict is
    awaited before a result is returned.

    Args:
        engine: Engine; busy until this returns.
        tokens: Whole prompt, at least one token longer than the promised prefix.
        retrieval: Retrieval of all layers of the prefix.
        promise: What it brings.
        new_tokens: Most tokens to generate.
        plan: Passes over what is computed.
    """
    layout = promise.layout
    loop = asyncio.get_running_loop()
    arrivals = Arrivals(
        tokens=promise.blocks * layout.block_tokens,
        layers=layout.layers,
        # The engine's thread has no event loop: its clock is the monotonic one.
        deadline=time.monotonic() + promise.deadline - loop.time(),
    )

    async def run(source: LayerSource | None) -> Generation:
        return await run_in_engine_thread(
            lambda: engine.generate(
                tokens,
                new_tokens=new_tokens,
                source=source,
                plan=plan,
                should_stop=arrivals.is_stopped,
            ),
            stop=arrivals.stop,
        )

    feeding = asyncio.create_task(_feed(arrivals, retrieval, promise), name="kvcs-layers")
    try:
        generation = await run(arrivals)
        if generation.reused_tokens:
            # A layer is usable before the manifest that lists its digests has come.
            await asyncio.wait([feeding], timeout=promise.deadline - loop.time())
    finally:
        await end_task(feeding)
    if not feeding.cancelled():
        feeding.result()  # a bug in the feeding is raised, not hidden behind a recomputation
    verified = retrieval.verdict.verified_prefix_blocks * layout.block_tokens
    if generation.reused_tokens <= verified:
        return generation
    lost = PrefixLost(0, "it was contradicted after it had been used")
    return replace(await run(None), failure=lost)


async def _feed(arrivals: Arrivals, retrieval: LayerRetrieval, promise: Promise) -> None:
    """Hand over the layers; whatever ends this, the engine does not wait for more."""
    reason = "the retrieval was abandoned"
    shorter: LayerSource | None = None
    try:
        async for layer in retrieval:
            arrivals.deliver(layer)
        reason = "the retrieval ended without it"
        blocks = min(retrieval.verdict.verified_prefix_blocks, promise.blocks)
        if promise.memory is not None and blocks:
            block_tokens = promise.layout.block_tokens
            shorter = _HeldPrefix(promise.memory, blocks=blocks, tokens=blocks * block_tokens)
    except KvcsError as error:
        reason = str(error)
    finally:
        arrivals.fail(reason, shorter=shorter)
