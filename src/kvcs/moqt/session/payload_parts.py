"""The parts of a payload that is not whole yet, kept as they came.

A part is a view, which keeps the whole piece alive that it came in and costs a few hundred octets
of its own. One that is small, or small beside its piece, is copied instead, so that the memory is
about twice the payload at most, however the pieces were cut.
"""

from collections.abc import Iterator
from typing import Final

__all__ = ("PayloadParts",)

# Parts below this size are put together.
_SMALL_BYTES: Final = 2048


class PayloadParts:
    """Parts of one payload, in order."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytearray | memoryview] = []

    def __iter__(self) -> Iterator[bytearray | memoryview]:
        return iter(self._parts)

    def __repr__(self) -> str:
        size = sum(map(len, self._parts))
        return f"PayloadParts({size} octets in {len(self._parts)})"

    def add(self, part: memoryview) -> None:
        """Keep the next part; its octets must not change."""
        size = len(part)
        if size >= _SMALL_BYTES and 2 * size >= memoryview(part.obj).nbytes:
            self._parts.append(part)
            return
        last = self._parts[-1] if self._parts else None
        if isinstance(last, bytearray):
            last += part
        else:
            self._parts.append(bytearray(part))

    def clear(self) -> None:
        """Forget all parts."""
        self._parts.clear()
