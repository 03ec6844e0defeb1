"""Where verified Data goes: memory that the caller provides, or plain host memory.

A retrieval asks once for a writable buffer per component and layer, just before the first
verified byte of that layer is written. The Data of absolute block b lies at
``b * block_bytes``, so that a whole buffer is the layer's tensor ``[tokens, kv_heads,
head_dim]``, C order, little-endian, for the first `blocks` blocks of the prefix.
"""

from collections.abc import Buffer
from typing import Protocol

from kvcs.errors import LayoutMismatch
from kvcs.kv.naming import Component

__all__ = ("HostMemory", "Memory", "Placement")


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
    """Allocates plain host memory, one bytearray per component and layer."""

    def buffer(self, component: Component, layer_index: int, size_bytes: int) -> Buffer:
        """Allocate zeroed memory; the operating system maps it when it is written."""
        del component, layer_index
        return bytearray(size_bytes)


class Placement:
    """The buffers of one retrieval, by component and layer.

    Args:
        memory: Gives the buffers.
    """

    __slots__ = ("_memory", "_views")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._views: dict[tuple[Component, int], memoryview] = {}

    def view(self, component: Component, layer_index: int, size_bytes: int) -> memoryview:
        """Return the writable octets of one component of one layer.

        Raises:
            LayoutMismatch: The memory that was given is read-only, strided, or of another size.
        """
        key = (component, layer_index)
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = _writable(
                self._memory.buffer(component, layer_index, size_bytes), size_bytes
            )
        return view


def _writable(buffer: Buffer, size_bytes: int) -> memoryview:
    view = memoryview(buffer)
    if view.readonly or not view.c_contiguous or view.nbytes != size_bytes:
        raise LayoutMismatch(
            f"the memory for a layer must be writable, contiguous and {size_bytes} octets long, "
            f"got {view.nbytes} octets, readonly={view.readonly}, contiguous={view.c_contiguous}"
        )
    return view.cast("B")
