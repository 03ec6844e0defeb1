"""Where verified Data goes: memory that the caller provides, or plain host memory.

A retrieval asks for a writable buffer per component and layer when it begins. The Data of
absolute block b lies at ``b * block_bytes``, so that a whole buffer is the layer's tensor
``[tokens, kv_heads, head_dim]``, C order, little-endian, for the first `blocks` blocks of the
prefix.
"""

from collections.abc import Buffer, Sequence
from mmap import mmap
from typing import Final, Protocol

from kvcs.errors import LayoutMismatch
from kvcs.kv.layout import Layout
from kvcs.kv.naming import Component

__all__ = ("HostMemory", "Memory", "Placement")

# Below this a mapping of its own costs more than clearing the memory at once.
_LARGE_BYTES: Final = 256 * 1024


class Memory(Protocol):
    """Gives the memory that a retrieval fills."""

    def buffer(self, component: Component, layer_index: int, size_bytes: int) -> Buffer:
        """Return a writable, C-contiguous buffer of exactly `size_bytes` octets.

        Args:
            component: `Component.K` or `Component.V`; jointly encoded Data is split.
            layer_index: Layer index.
            size_bytes: Octets of that component in that layer, for all wanted blocks.
        """
        ...


class HostMemory:
    """Allocates plain host memory, one piece per component and layer.

    Large pieces come straight from the operating system, which maps and clears each page when
    it is first written: allocating a whole prefix then costs nothing before its bytes arrive.
    """

    def buffer(self, component: Component, layer_index: int, size_bytes: int) -> Buffer:
        """Allocate zeroed memory."""
        del component, layer_index
        return bytearray(size_bytes) if size_bytes < _LARGE_BYTES else mmap(-1, size_bytes)


class Placement:
    """The buffers of one retrieval, by component and layer.

    Args:
        memory: Gives the buffers.
        layout: Geometry of the publication.
        layers: Wanted layer indexes.
        blocks: Blocks that each buffer holds.

    Attributes:
        is_open: The buffers may be written.

    Raises:
        LayoutMismatch: A buffer is read-only, strided, or of another size.
    """

    __slots__ = ("_layout", "_views", "is_open")

    def __init__(
        self, memory: Memory, layout: Layout, *, layers: Sequence[int], blocks: int
    ) -> None:
        self.is_open = True
        self._layout = layout
        self._views = {
            (component, layer_index): _writable(
                memory, component, layer_index, blocks * layout.data_bytes(component, layer_index)
            )
            for layer_index in layers
            for component in (Component.K, Component.V)
        }

    def close(self) -> None:
        """Leave the memory to its owner: whatever arrives or is verified later is not written."""
        self.is_open = False

    def view(self, component: Component, layer_index: int) -> memoryview:
        """Return the writable octets of one component of one wanted layer."""
        return self._views[component, layer_index]

    def write(
        self, component: Component, layer_index: int, block: int, parts: Sequence[Buffer]
    ) -> None:
        """Copy the tensor of an absolute block to its place.

        Args:
            component: Its component; that of kv is k and then v.
            layer_index: A wanted layer.
            block: Absolute index of the block.
            parts: All of its octets, in order.
        """
        if component is not Component.KV and len(parts) == 1:
            size = self._layout.data_bytes(component, layer_index)
            self._views[component, layer_index][block * size : (block + 1) * size] = parts[0]
            return
        targets = (Component.K, Component.V) if component is Component.KV else (component,)
        places = [self._place(target, layer_index, block) for target in targets]
        for part in parts:
            octets = memoryview(part)
            while octets:
                place = places[0]
                size = min(len(octets), len(place))
                place[:size] = octets[:size]
                octets, places[0] = octets[size:], place[size:]
                if not places[0]:
                    del places[0]

    def _place(self, component: Component, layer_index: int, block: int) -> memoryview:
        size = self._layout.data_bytes(component, layer_index)
        return self._views[component, layer_index][block * size : (block + 1) * size]


def _writable(
    memory: Memory, component: Component, layer_index: int, size_bytes: int
) -> memoryview:
    view = memoryview(memory.buffer(component, layer_index, size_bytes))
    if view.readonly or not view.c_contiguous or view.nbytes != size_bytes:
        raise LayoutMismatch(
            f"the memory for a layer must be writable, contiguous and {size_bytes} octets long, "
            f"got {view.nbytes} octets, readonly={view.readonly}, contiguous={view.c_contiguous}"
        )
    return view.cast("B")
