"""One Object of a data track in the making: hashed while it arrives, kept until it is checked.

Each part is hashed when it comes, while it is still in the processor's caches, and kept as a view:
nothing is put together. Of an Object that cannot be right, since its length is not that of a
block, only the header is kept, which tells why. What is sealed is only kept: nothing can be said
about it before all of it is here.
"""

import hashlib
from collections.abc import Buffer, Callable, Sequence
from typing import NamedTuple

from kvcs.kv.payload import HEADER_BYTES
from kvcs.moqt.session.payload_parts import PayloadParts

__all__ = ("BlockArrival", "SealedArrival", "WholePayload")


class WholePayload(NamedTuple):
    """All octets of the payload of one Object, and what was computed while they came.

    Attributes:
        length: Octets of the payload.
        head: The first 68 of them, or all if there are fewer.
        digest: SHA-256 of the rest.
        data: The rest in order, in any number of parts.
    """

    length: int
    head: bytes
    digest: bytes
    data: Sequence[Buffer]


class BlockArrival:
    """Takes the payload of one Object.

    Args:
        length: Octets of the payload.
        keeps_data: Data is kept; otherwise the header alone.
        on_whole: Called when the last octet is here.
    """

    __slots__ = (
        "_head",
        "_keeps_data",
        "_length",
        "_missing",
        "_on_whole",
        "_parts",
        "_sha256",
    )

    def __init__(
        self,
        length: int,
        *,
        keeps_data: bool,
        on_whole: Callable[[WholePayload], None],
    ) -> None:
        self._length = self._missing = length
        self._head = b""
        self._parts = PayloadParts()
        self._keeps_data = keeps_data
        self._on_whole = on_whole
        self._sha256 = hashlib.sha256()

    def __repr__(self) -> str:
        return f"<BlockArrival {self._missing} of {self._length} missing>"

    def take(self, data: memoryview) -> bool:
        """Take the next octets; return True after the last."""
        self._missing -= len(data)
        if len(self._head) < HEADER_BYTES:
            cut = HEADER_BYTES - len(self._head)
            self._head += data[:cut]
            data = data[cut:]
        if data and self._keeps_data:
            self._sha256.update(data)
            self._parts.add(data)
        if self._missing:
            return False
        self._on_whole(
            WholePayload(self._length, self._head, self._sha256.digest(), tuple(self._parts))
        )
        return True


class SealedArrival:
    """Takes the payload of one sealed Object.

    Args:
        length: Octets of the payload.
        on_whole: Called with the parts when the last octet is here.
    """

    __slots__ = ("_missing", "_on_whole", "_parts")

    def __init__(
        self, length: int, on_whole: Callable[[Sequence[bytearray | memoryview]], None]
    ) -> None:
        self._missing = length
        self._parts = PayloadParts()
        self._on_whole = on_whole

    def __repr__(self) -> str:
        return f"<SealedArrival {self._missing} missing>"

    def take(self, data: memoryview) -> bool:
        """Take the next octets; return True after the last."""
        self._missing -= len(data)
        if data:
            self._parts.add(data)
        if self._missing:
            return False
        self._on_whole(tuple(self._parts))
        return True
