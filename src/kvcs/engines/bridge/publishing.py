"""From an engine's prefill to a publication, layer by layer, with backpressure."""

import asyncio
import threading
from collections import deque
from collections.abc import Buffer, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kvcs.engines.bridge.thread import end_task, run_in_engine_thread
from kvcs.engines.interface import NO_SPLIT, Engine, EngineStopped, PassPlan
from kvcs.errors import DataError
from kvcs.kv.layout import Layout
from kvcs.kv.naming import Component

__all__ = ("MAX_QUEUED_BYTES", "LayerPublication", "LayerSegment", "publish_prefill")

# Two layers of a large model, or all of a small one: enough to overlap computing and sending.
MAX_QUEUED_BYTES: Final = 64 * 2**20


class LayerSegment(Protocol):
    """What the bridge needs of a segment that is being published."""

    async def publish_layer(self, layer_index: int, k: Buffer, v: Buffer) -> None:
        """Publish the blocks of one layer; wait while the publication is behind."""
        ...


class LayerPublication(Protocol):
    """What the bridge needs of a publication."""

    async def add_segment(self, blocks: int) -> LayerSegment:
        """Begin the segment of the next `blocks` blocks."""
        ...

    async def complete(self) -> None:
        """End the publication after its last layer."""
        ...


@dataclass(frozen=True, slots=True)
class _Begin:
    """A segment of `blocks` blocks begins."""

    blocks: int


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer of the current segment, in memory of its own."""

    layer_index: int
    k: bytes
    v: bytes


class _Handoff:
    """A queue from the engine's thread to the event loop, bounded in bytes."""

    def __init__(self, max_queued_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._max_queued_bytes = max_queued_bytes
        self._changed = threading.Condition()
        self._items: deque[_Begin | _Layer] = deque()
        self._queued_bytes = 0
        self._is_stopped = False
        self._is_finished = False

    def put(self, item: _Begin | _Layer, size_bytes: int) -> None:
        """Append from the engine's thread; wait for room, except for a single large item."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._is_stopped
                    or not self._queued_bytes
                    or self._queued_bytes + size_bytes <= self._max_queued_bytes
                )
            )
            if self._is_stopped:
                raise EngineStopped
            self._queued_bytes += size_bytes
            self._items.append(item)
        self._loop.call_soon_threadsafe(self._arrived.set)

    def finish(self) -> None:
        """Say on the loop that nothing more comes."""
        self._is_finished = True
        self._arrived.set()

    def stop(self) -> None:
        """Make the engine's thread give up at its next `put`, or in the one it waits in."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    async def take(self) -> _Begin | _Layer | None:
        """Wait on the loop for the next item; None after the last one."""
        while not self._items:
            if self._is_finished:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        return self._items.popleft()

    def release(self, size_bytes: int) -> None:
        """Make room for what has been published."""
        with self._changed:
            self._queued_bytes -= size_bytes
            self._changed.notify_all()


class _PublishingSink:
    """Cuts passes into whole blocks, and copies.

    A block that a pass leaves unfinished belongs to the next segment: its rows are kept, layer
    by layer, until the next pass completes them. A pass that completes no block is no segment.
    """

    def __init__(self, layout: Layout, handoff: _Handoff) -> None:
        self._layout = layout
        self._handoff = handoff
        self._rest: dict[tuple[Component, int], bytes] = {}
        self._blocks = 0
        self._tokens = 0

    def begin_pass(self, first_token: int, tokens: int) -> None:
        """Begin a segment if the pass completes a block."""
        assert first_token == self._tokens, "passes follow each other"
        block_tokens = self._layout.block_tokens
        self._tokens += tokens
        self._blocks = self._tokens // block_tokens - first_token // block_tokens
        if self._blocks:
            self._handoff.put(_Begin(self._blocks), 0)

    def take_layer(self, layer_index: int, k: Buffer, v: Buffer) -> None:
        """Copy the whole blocks of a layer and queue them."""
        keys = self._whole(Component.K, layer_index, k)
        values = self._whole(Component.V, layer_index, v)
        if self._blocks:
            self._handoff.put(_Layer(layer_index, keys, values), len(keys) + len(values))

    def _whole(self, component: Component, layer_index: int, tensor: Buffer) -> bytes:
        """Return a copy of the rows that fill blocks, and keep the others."""
        rows = memoryview(tensor).cast("B")
        rest = self._rest.pop((component, layer_index), b"")
        if not self._blocks:
            self._rest[component, layer_index] = rest + rows
            return b""
        split = self._blocks * self._layout.data_bytes(component, layer_index) - len(rest)
        self._rest[component, layer_index] = bytes(rows[split:])
        return b"".join((rest, rows[:split]))


async def publish_prefill(
    engine: Engine,
    tokens: Sequence[int],
    publication: LayerPublication,
    *,
    layout: Layout,
    plan: PassPlan = NO_SPLIT,
    max_queued_bytes: int = MAX_QUEUED_BYTES,
) -> None:
    """Prefill in a thread and publish every layer as soon as it exists.

    Args:
        engine: Engine; busy until this returns.
        tokens: Prompt; what does not fill a block is left out.
        publication: Where the layers go, one segment per pass; completed at the end.
        layout: Layout of the engine's descriptor.
        plan: Passes of the prefill.
        max_queued_bytes: Bytes that may wait between the two before the engine is held up.

    Raises:
        DataError: `tokens` do not fill one block.
        KvcsError: What the engine or the publication raised; the other one has been stopped.
    """
    whole = len(tokens) // layout.block_tokens * layout.block_tokens
    if not whole:
        raise DataError(f"{len(tokens)} tokens do not fill a block of {layout.block_tokens}")
    handoff = _Handoff(max_queued_bytes)
    sink = _PublishingSink(layout, handoff)

    async def compute() -> None:
        try:
            await run_in_engine_thread(
                lambda: engine.prefill(tokens[:whole], sink, plan=plan), stop=handoff.stop
            )
        finally:
            handoff.finish()

    computing = asyncio.create_task(compute(), name="kvcs-prefill")
    try:
        await _publish(handoff, publication)
        await computing
    finally:
        await end_task(computing)
    await publication.complete()


async def _publish(handoff: _Handoff, publication: LayerPublication) -> None:
    segment: LayerSegment | None = None
    while (item := await handoff.take()) is not None:
        match item:
            case _Begin(blocks):
                segment = await publication.add_segment(blocks)
            case _Layer(layer_index, k, v):
                assert segment is not None, "a segment begins before its layers"
                await segment.publish_layer(layer_index, k, v)
                handoff.release(len(k) + len(v))
