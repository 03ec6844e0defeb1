"""Geometry of the tensors: how many octets a block of a layer has, and where they lie.

A tensor of one Component of one layer is token-major: ``[tokens, kv_heads, head_dim]``, C order,
little-endian, so the octets of one block are contiguous and blocks are views, never copies. The
Data of codec raw is exactly these octets; for Component kv it is the block of keys followed by
the block of values.

Source: KVCS draft, "Object Payload".
"""

import hashlib
from collections.abc import Buffer
from typing import Final

from kvcs.errors import LayoutMismatch
from kvcs.kv.descriptor import Descriptor, Dtype
from kvcs.kv.naming import Component

__all__ = ("MAX_DATA_BYTES", "Layout", "layer_digest")

# Data Length is a field of 32 bits.
MAX_DATA_BYTES: Final = 2**32 - 1

# Buffer formats of the dtypes that have one, and of unsigned integers that hold their bits. Signed
# ones are numbers of their own there; what has no format comes as integers of its size.
_FORMATS: Final = {Dtype.FLOAT16: "eH", Dtype.FLOAT32: "fIL"}
_INTEGERS: Final = "BbHh"
_OCTETS: Final = "Bbc"


class Layout:
    """Sizes and shapes that follow from a descriptor.

    Raises:
        LayoutMismatch: A block of a layer does not fit the 32 bits of Data Length.
    """

    __slots__ = ("_data_bytes", "_dims", "_dtype", "_heads", "block_tokens", "layers")

    def __init__(self, descriptor: Descriptor) -> None:
        self.layers = descriptor.layers
        self.block_tokens = descriptor.block_tokens
        self._dtype = descriptor.dtype
        self._heads = _per_layer(descriptor.layer_kv_heads, descriptor.kv_heads, self.layers)
        k_dim = _per_layer(descriptor.layer_k_dim, descriptor.head_dim, self.layers)
        v_dim = _per_layer(descriptor.layer_v_dim, descriptor.head_dim, self.layers)
        self._dims = {Component.K: (k_dim,), Component.V: (v_dim,), Component.KV: (k_dim, v_dim)}
        # Asked for with every Object.
        self._data_bytes = {
            component: tuple(self._count(component, index) for index in range(self.layers))
            for component in self._dims
        }
        for layer_index, data_bytes in enumerate(self._data_bytes[Component.KV]):
            if data_bytes > MAX_DATA_BYTES:
                raise LayoutMismatch(
                    f"layer {layer_index}: {data_bytes} octets a block, at most {MAX_DATA_BYTES}"
                )

    def __repr__(self) -> str:
        return f"<Layout layers={self.layers} block_tokens={self.block_tokens}>"

    def data_bytes(self, component: Component, layer_index: int) -> int:
        """Return the octets of one block, uncompressed."""
        return self._data_bytes[component][layer_index]

    def _count(self, component: Component, layer_index: int) -> int:
        dim = sum(dims[layer_index] for dims in self._dims[component])
        return self.block_tokens * self._heads[layer_index] * dim * self._dtype.itemsize

    def shape(self, component: Component, layer_index: int, tokens: int) -> tuple[int, int, int]:
        """Return the shape of the tensor of `tokens` tokens: tokens, heads, elements of a head.

        Raises:
            LayoutMismatch: Component kv, which is two tensors.
        """
        if component is Component.KV:
            raise LayoutMismatch("Component kv has no shape of its own: it is a k and a v")
        return tokens, self._heads[layer_index], self._dims[component][0][layer_index]

    def blocks(
        self,
        component: Component,
        layer_index: int,
        tensor: Buffer,
        *,
        count: int | None = None,
    ) -> tuple[memoryview, ...]:
        """Cut the tensor of one Component of one layer into blocks.

        Args:
            component: What the tensor holds; for kv, the Data of its blocks end to end.
            layer_index: Its layer.
            tensor: C-contiguous host memory, little-endian; elements of the descriptor's size,
                or plain octets. Three dimensions are taken as tokens, heads and elements of a
                head, and checked.
            count: Blocks it must hold; None for any number above zero.

        Returns:
            Views of `tensor`, one per block, of octets, writable if it is.

        Raises:
            LayoutMismatch: Not a buffer, another size, shape or element size, or not contiguous.
        """
        where = f"layer {layer_index}, component {component.label}"
        octets = self._octets(component, layer_index, tensor, where)
        step = self.data_bytes(component, layer_index)
        held, rest = divmod(octets.nbytes, step)
        if rest or (held != count if count is not None else not held):
            expected = f"{step * count}" if count is not None else f"a multiple of {step}"
            raise LayoutMismatch(
                f"{where}: expected {expected} octets, got {octets.nbytes}"
                f"{self._in_tokens(octets.nbytes, step, count)}"
            )
        return tuple(octets[start : start + step] for start in range(0, octets.nbytes, step))

    def _in_tokens(self, size_bytes: int, step: int, count: int | None) -> str:
        """Say the same in tokens, which callers count in, when it is a number of tokens."""
        tokens, rest = divmod(size_bytes, step // self.block_tokens)
        if rest:
            return ""
        if count is None:
            return f" (whole blocks of {self.block_tokens} tokens expected, {tokens} tokens given)"
        return f" ({count * self.block_tokens} tokens expected, {tokens} given)"

    def _octets(
        self, component: Component, layer_index: int, tensor: Buffer, where: str
    ) -> memoryview:
        try:
            view = memoryview(tensor)
        except (TypeError, ValueError, BufferError) as error:
            raise LayoutMismatch(
                f"{where}: expected an object with the buffer protocol, such as bytes, memoryview "
                "or a numpy array of a type that has a buffer format (bfloat16 as uint16), got "
                f"{type(tensor).__name__}"
            ) from error
        if view.itemsize not in (1, self._dtype.itemsize) or not self._takes(view.format or "B"):
            raise LayoutMismatch(
                f"{where}: expected octets or {self._dtype} little-endian{self._as_integers()}, "
                f"got elements of {view.itemsize} octets, format {view.format!r}"
            )
        if view.ndim == 3 and component is not Component.KV:
            _, heads, dim = self.shape(component, layer_index, 0)
            inner = (heads, dim * self._dtype.itemsize // view.itemsize)
            if view.shape is not None and view.shape[1:] != inner:
                raise LayoutMismatch(
                    f"{where}: expected shape (tokens, {inner[0]}, {inner[1]}), got {view.shape}"
                )
        try:
            return view.cast("B")
        except TypeError as error:
            raise LayoutMismatch(f"{where}: empty or not contiguous: {error}") from error

    def _as_integers(self) -> str:
        """Say how a dtype without a buffer format is given."""
        bits = 8 * self._dtype.itemsize
        return "" if self._dtype in _FORMATS else f" as {bits}-bit integers"

    def _takes(self, element: str) -> bool:
        """Tell whether elements of a buffer format may be of the dtype, or are octets of it."""
        if element[0] in ">!":
            return False
        return element[-1] in _OCTETS or element[-1] in _FORMATS.get(self._dtype, _INTEGERS)


def layer_digest(k: Buffer, v: Buffer) -> bytes:
    """Return the KVSP layer digest of one block of one layer: SHA-256 of K, then V.

    It equals the Data Digest of the kv Object of codec raw at the same Location.
    """
    digest = hashlib.sha256(k)
    digest.update(v)
    return digest.digest()


def _per_layer(listed: tuple[int, ...] | None, uniform: int | None, layers: int) -> tuple[int, ...]:
    return listed if listed is not None else (uniform or 0,) * layers
