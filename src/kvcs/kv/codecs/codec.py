"""The interface of a codec."""

from collections.abc import Buffer
from typing import Protocol

from kvcs.kv.layout import Layout
from kvcs.kv.naming import Component

__all__ = ("Codec",)


class Codec(Protocol):
    """Turns the tensor of one block of one layer into Data, and back."""

    @property
    def name(self) -> str:
        """Name in Track Names."""
        ...

    @property
    def number(self) -> int:
        """Value in payload headers."""
        ...

    @property
    def is_identity(self) -> bool:
        """Whether Data are the octets of the tensor, so that nothing is to be decoded."""
        ...

    @property
    def lossy(self) -> bool:
        """Whether decoding gives other octets than were encoded."""
        ...

    def data_bytes(self, layout: Layout, component: Component, layer_index: int) -> int | None:
        """Return the octets of the Data of one block, or None when they vary."""
        ...

    def encode(
        self, block: Buffer, layout: Layout, *, component: Component, layer_index: int
    ) -> Buffer:
        """Encode the octets of one block of `layout`; may return a view of them."""
        ...

    def decode(
        self, data: Buffer, layout: Layout, *, component: Component, layer_index: int
    ) -> Buffer:
        """Decode verified Data into ``layout.data_bytes(component, layer_index)`` octets.

        May return a view of `data`.

        Raises:
            UnsupportedEncoding: Data is not in a form that this build reads.
        """
        ...
