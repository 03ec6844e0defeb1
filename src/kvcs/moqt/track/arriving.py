"""Objects on their way: what is here of them goes on before the rest has come.

Theory of operation. Whoever receives a Track in parts notes each Object that has begun here
(`Arrivals.begin`), on whatever stream it comes, adds its parts, and says when it is whole or lost.
A delivery that stands right before such an Object, of a subscription, a fill or a FETCH, sends its
header and then each part when it comes (`EarlyObject`), so that a hop costs an Object of any size
no more time than one part of it. The store knows nothing of an Object before it is whole: what ends
early was never there, and the streams that carry it are reset.

Source: MOQT draft 22, Sections 7.4, 11.3 and 11.4.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from typing import Final

from kvcs.moqt.wire.object import Object

__all__ = ("PART_BYTES", "Arrivals", "Arriving")

#: Most octets that are handed to a session at a time.
PART_BYTES: Final = 256 * 1024
# Smaller parts are put together: each costs some hundred octets of its own.
_SMALL_BYTES: Final = 16 * 1024


class Arriving:
    """One Object whose payload has begun.

    Attributes:
        obj: The Object, with an empty payload.
        payload_length: Octets of its payload.
        size: Octets that are here.
        is_lost: The rest does not come, or nobody holds it any more.
    """

    __slots__ = (
        "_parts",
        "_payload",
        "_starts",
        "_tail",
        "is_lost",
        "obj",
        "payload_length",
        "size",
    )

    def __init__(self, obj: Object, payload_length: int) -> None:
        self.obj = obj
        self.payload_length = payload_length
        self.size = 0
        self.is_lost = False
        self._parts: list[bytes] = []
        self._starts: list[int] = []
        self._tail = bytearray()
        self._payload: bytes | None = None

    def __repr__(self) -> str:
        return f"<Arriving {self.obj.location}, {self.size} of {self.payload_length} octets>"

    @property
    def is_whole(self) -> bool:
        """Whether the whole payload is here."""
        return self.size == self.payload_length

    @property
    def is_handed_over(self) -> bool:
        """Whether it went to the store."""
        return self._payload is not None

    def add(self, part: memoryview) -> None:
        """Add the next octets, copied once for all who send them."""
        if len(part) < _SMALL_BYTES:
            self._tail += part
            self.size += len(part)
            if len(self._tail) >= _SMALL_BYTES:
                self._keep_tail()
            return
        self._keep_tail()
        for at in range(0, len(part), PART_BYTES):
            self._starts.append(self.size + at)
            self._parts.append(bytes(part[at : at + PART_BYTES]))
        self.size += len(part)

    def read(self, offset: int) -> bytes:
        """Return octets from `offset` on, as many as are at hand; none when none are here."""
        if self._payload is not None:
            return self._payload[offset : offset + PART_BYTES]
        if self.is_lost:
            return b""
        tail_start = self.size - len(self._tail)
        if offset >= tail_start:
            return bytes(self._tail[offset - tail_start :])
        index = bisect_right(self._starts, offset) - 1
        start, part = self._starts[index], self._parts[index]
        return part[offset - start :] if offset > start else part

    def whole(self) -> Object:
        """Return the Object; its parts are not needed any more."""
        payload = self._payload = b"".join((*self._parts, self._tail))
        self._parts.clear()
        self._starts.clear()
        self._tail.clear()
        return self.obj._replace(payload=payload)

    def lose(self) -> None:
        """Let go of the octets: the rest does not come, or the store has dropped the Object."""
        self.is_lost = True
        self._payload = None
        self._parts.clear()
        self._starts.clear()
        self._tail.clear()

    def _keep_tail(self) -> None:
        if self._tail:
            self._starts.append(self.size - len(self._tail))
            self._parts.append(bytes(self._tail))
            self._tail.clear()


class Arrivals:
    """The Objects of one Track that have begun.

    Attributes:
        by_location: Those Objects, by Group ID and Object ID.
    """

    __slots__ = ("_in_subgroup", "_on_change", "by_location")

    def __init__(self, on_change: Callable[[Object], None]) -> None:
        """Have none.

        Args:
            on_change: Called with an Object, without its payload, of which more is here, or that
                is lost.
        """
        self.by_location: dict[tuple[int, int], Arriving] = {}
        self._in_subgroup: Counter[tuple[int, int | None]] = Counter()
        self._on_change = on_change

    def __len__(self) -> int:
        return len(self.by_location)

    def __repr__(self) -> str:
        return f"<Arrivals {len(self)}>"

    def at(self, group_id: int, object_id: int) -> Arriving | None:
        """Return the Object at a Location that has begun."""
        return self.by_location.get((group_id, object_id))

    def has_any_in(self, group_id: int, subgroup_id: int | None) -> bool:
        """Tell whether an Object of a Subgroup has begun."""
        return (group_id, subgroup_id) in self._in_subgroup

    def begin(self, arriving: Arriving) -> None:
        """Note an Object that nobody had before; a second copy of it is not noted."""
        obj = arriving.obj
        if (obj.group_id, obj.object_id) not in self.by_location:
            self.by_location[obj.group_id, obj.object_id] = arriving
            self._in_subgroup[obj.group_id, obj.subgroup_id] += 1

    def grew(self, arriving: Arriving) -> None:
        """Tell that more of an Object is here."""
        if self._is_noted(arriving):
            self._on_change(arriving.obj)

    def end(self, arriving: Arriving, *, lost: bool) -> None:
        """Forget an Object that is whole and in the store, or lost."""
        if lost:
            arriving.lose()
        if not self._is_noted(arriving):
            return
        obj = arriving.obj
        del self.by_location[obj.group_id, obj.object_id]
        subgroup = obj.group_id, obj.subgroup_id
        self._in_subgroup[subgroup] -= 1
        if not self._in_subgroup[subgroup]:
            del self._in_subgroup[subgroup]
        self._on_change(obj)

    def _is_noted(self, arriving: Arriving) -> bool:
        return self.at(arriving.obj.group_id, arriving.obj.object_id) is arriving
