"""Objects that came before a signed manifest lists them: held, and not used.

A consumer that demands authenticity may use an Object only when its Data Digest stands in a
signed list, and a live publication lists a layer some layers after it was sent. Until then the
Object is held here, within a budget. One that does not fit is dropped, and asked for again when
its layer is listed: so nobody can fill the memory with Objects that no list will ever name.
"""

from collections.abc import Buffer, Sequence
from typing import Final

from kvcs.client.arrival import WholePayload
from kvcs.kv.naming import DataTrackName
from kvcs.moqt.session.payload_parts import PayloadParts

__all__ = ("UnlistedObjects",)

# A key, a tuple and a few parts; small Objects must not be held for free.
_OVERHEAD_BYTES: Final = 1024


class UnlistedObjects:
    """The Objects of all tracks of one retrieval that no signed manifest lists yet.

    Args:
        max_bytes: Octets that they may take, their bookkeeping included.

    Attributes:
        held_bytes: Octets that they take.
    """

    __slots__ = ("_held", "_max_bytes", "held_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: dict[tuple[DataTrackName, int, int], WholePayload] = {}
        self.held_bytes = 0

    def __repr__(self) -> str:
        return f"<UnlistedObjects {len(self._held)}, {self.held_bytes} octets>"

    def hold(self, track: DataTrackName, layer: int, block: int, payload: WholePayload) -> bool:
        """Hold one Object that is not held yet; return False when it does not fit."""
        size = payload.length + _OVERHEAD_BYTES
        if self.held_bytes + size > self._max_bytes:
            return False
        self._held[track, layer, block] = payload._replace(data=_kept(payload.data))
        self.held_bytes += size
        return True

    def take(self, track: DataTrackName, layer: int, block: int) -> WholePayload | None:
        """Return what is held of one block, and hold it no longer."""
        payload = self._held.pop((track, layer, block), None)
        if payload is not None:
            self.held_bytes -= payload.length + _OVERHEAD_BYTES
        return payload

    def digest(self, track: DataTrackName, layer: int, block: int) -> bytes | None:
        """Return the Data Digest of what is held of one block."""
        payload = self._held.get((track, layer, block))
        return None if payload is None else payload.digest

    def clear(self) -> None:
        """Forget all of them."""
        self._held.clear()
        self.held_bytes = 0


def _kept(data: Sequence[Buffer]) -> Sequence[Buffer]:
    parts = PayloadParts()
    for part in data:
        parts.add(memoryview(part))
    return tuple(parts)
