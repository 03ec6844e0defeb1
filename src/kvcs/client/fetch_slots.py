"""Which FETCHes of a retrieval are open, where there are more than a peer serves at a time.

A long prompt has many segments, and each has a FETCH for every track. If each brought all
layers, those that wait for their turn would hold up the first layer until nearly the end. So
with more tracks than slots a FETCH asks for a window of layers, and a slot that becomes free
goes to the lowest layer that waits: no track runs ahead while another lacks an earlier layer.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from itertools import batched, count

__all__ = ("FetchSlots",)


class FetchSlots:
    """The FETCHes that one retrieval may have open.

    Args:
        slots: How many.
        window: Layers of one FETCH when there are more tracks than slots.

    Attributes:
        tracks: Tracks that share the slots.
    """

    def __init__(self, slots: int, *, window: int) -> None:
        self.tracks = 0
        self._slots = self._free = slots
        self._window = window
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = count()

    def __repr__(self) -> str:
        return f"<FetchSlots {self._free}/{self._slots} free, {len(self._waiting)} waiting>"

    def windows(self, layers: Sequence[int]) -> list[tuple[int, ...]]:
        """Split the layers that a track asks for into those of one FETCH each."""
        size = len(layers) if self.tracks <= self._slots else self._window
        return list(batched(layers, size)) if layers else []

    @asynccontextmanager
    async def hold(self, layer_index: int) -> AsyncGenerator[None]:
        """Hold a slot for a FETCH that begins at a layer; the lowest layer gets one first."""
        await self._take(layer_index)
        try:
            yield
        finally:
            self._give_back()

    async def _take(self, layer_index: int) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (layer_index, next(self._arrivals), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._give_back()
            raise

    def _give_back(self) -> None:
        while self._waiting:
            turn = heappop(self._waiting)[2]
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
