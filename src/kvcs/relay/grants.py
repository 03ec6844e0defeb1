"""What the requests of a session go by, found by when it is to be decided again.

A relay has hundreds of thousands of them, and few are due at a time: whoever looks for those must
not look at the others. Times are rounded up to a quarter of a second, so that many short grants
cost few looks.
"""

import math
from collections.abc import Iterator, MutableMapping
from typing import Final

from kvcs.moqt.session.actions import RequestId
from kvcs.relay.auth import Access

__all__ = ("GRID", "Grants", "slot_of")

#: Seconds between two times at which something can be due.
GRID: Final = 0.25


def slot_of(until: float) -> float:
    """Return when what lasts until then is looked at, in monotonic seconds; infinity for never."""
    return until if math.isinf(until) else math.ceil(until / GRID) * GRID


class Grants(MutableMapping[RequestId, Access]):
    """The requests of one session by their ids."""

    __slots__ = ("_accesses", "_earliest", "_slots")

    def __init__(self) -> None:
        self._accesses: dict[RequestId, Access] = {}
        self._slots: dict[float, dict[RequestId, None]] = {}
        self._earliest = math.inf

    def __repr__(self) -> str:
        return f"<Grants {len(self._accesses)}, next at {self._earliest:g}>"

    def __getitem__(self, request_id: RequestId) -> Access:
        return self._accesses[request_id]

    def __setitem__(self, request_id: RequestId, access: Access) -> None:
        before = self._accesses.get(request_id)
        if before is not None:
            self._unslot(request_id, before)
        self._accesses[request_id] = access
        if access.until is not None:
            slot = slot_of(access.until)
            self._slots.setdefault(slot, {})[request_id] = None
            self._earliest = min(self._earliest, slot)

    def __delitem__(self, request_id: RequestId) -> None:
        self._unslot(request_id, self._accesses.pop(request_id))

    def __iter__(self) -> Iterator[RequestId]:
        return iter(self._accesses)

    def __len__(self) -> int:
        return len(self._accesses)

    @property
    def next_due(self) -> float:
        """When the next one is due, in monotonic seconds; infinity for never."""
        return self._earliest

    def due(self, *, now: float) -> list[RequestId]:
        """Return the requests that are to be decided again now, the earliest first."""
        if self._earliest > now:
            return []
        slots = sorted(slot for slot in self._slots if slot <= now)
        return [request_id for slot in slots for request_id in self._slots[slot]]

    def _unslot(self, request_id: RequestId, access: Access) -> None:
        if access.until is None:
            return
        slot = slot_of(access.until)
        del self._slots[slot][request_id]
        if not self._slots[slot]:
            del self._slots[slot]
            if slot == self._earliest:
                self._earliest = min(self._slots, default=math.inf)
