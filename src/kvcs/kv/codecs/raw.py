"""Codec raw: Data is the tensor as it lies in memory."""

from collections.abc import Buffer
from typing import Final

from kvcs.kv.codecs.codec import Codec
from kvcs.kv.layout import Layout
from kvcs.kv.naming import Component

__all__ = ("RAW",)


class _Raw:
    __slots__ = ()

    name = "raw"
    number = 1
    is_identity = True
    lossy = False

    def data_bytes(self, layout: Layout, component: Component, layer_index: int) -> int | None:
        return layout.data_bytes(component, layer_index)

    def encode(
        self, block: Buffer, layout: Layout, *, component: Component, layer_index: int
    ) -> Buffer:
        del layout, component, layer_index
        return block

    def decode(
        self, data: Buffer, layout: Layout, *, component: Component, layer_index: int
    ) -> Buffer:
        del layout, component, layer_index
        return data


RAW: Final[Codec] = _Raw()
