"""Memory that sealed Objects are opened in, used for one after the other.

Memory that is new costs more than the decryption that fills it: the system clears and maps each
page when it is first written. A buffer is taken again only when nobody sees its octets any more,
which Python knows: a bytearray that a view exists of cannot change its size.
"""

from collections.abc import Sequence
from typing import Final

from kvcs.kv.sealing.suite import Octets

__all__ = ("MAX_FREE_BYTES", "Workspace")

MAX_FREE_BYTES: Final = 8 * 2**20


class Workspace:
    """Buffers for one thread at a time; they may be given back from another one."""

    __slots__ = ("_free", "_free_bytes", "_scratch")

    def __init__(self) -> None:
        self._scratch = bytearray()
        self._free: dict[int, list[bytearray]] = {}
        self._free_bytes = 0

    def __repr__(self) -> str:
        return f"<Workspace {self._free_bytes} octets free>"

    def join(self, parts: Sequence[Octets], size_bytes: int) -> Octets:
        """Return the parts as one piece, which is valid until the next call."""
        if len(parts) == 1:
            return parts[0]
        if len(self._scratch) < size_bytes:
            self._scratch = bytearray(size_bytes)
        whole = memoryview(self._scratch)[:size_bytes]
        offset = 0
        for part in parts:
            end = offset + len(part)
            whole[offset:end] = part
            offset = end
        return whole

    def buffer(self, size_bytes: int) -> bytearray:
        """Return a buffer of exactly so many octets, of any value."""
        free = self._free.get(size_bytes)
        if not free:
            return bytearray(size_bytes)
        self._free_bytes -= size_bytes
        return free.pop()

    def give_back(self, buffer: bytearray) -> None:
        """Take a buffer that was used; it is forgotten if anybody still has a view of it."""
        size_bytes = len(buffer)
        if not size_bytes:
            return
        try:
            buffer.pop()
        except BufferError:
            return
        buffer.append(0)
        if self._free_bytes + size_bytes > MAX_FREE_BYTES:
            self._free.clear()
            self._free_bytes = 0
        self._free.setdefault(size_bytes, []).append(buffer)
        self._free_bytes += size_bytes
