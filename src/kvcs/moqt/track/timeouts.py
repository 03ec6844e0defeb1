"""Delivery timeouts of one subscription: how late an Object may be sent.

The effective value is the shorter one of what the publisher and the subscriber say. The
publisher says it for the Track, or for one Subgroup on the first Object of that. An Object in a
datagram is a Subgroup of its own.

A timeout is looked at when an Object is about to be handed to the transport, and
`kvcs.moqt.track.late_streams` looks at what waits there. What is on the network is not taken back.

Source: MOQT draft 22, Sections 5.2 and 10.
"""

from typing import Final

from kvcs.moqt.track.cursor import Cursor, Timeouts
from kvcs.moqt.track.delivery import DeliveryTerms
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties

__all__ = ("NO_TIMEOUTS", "DeliveryTimeouts")


NO_TIMEOUTS: Final = Timeouts(0.0, 0.0)


class DeliveryTimeouts:
    """The delivery timeouts of one subscription."""

    __slots__ = ("_store", "terms")

    def __init__(self, store: TrackStore, terms: DeliveryTerms) -> None:
        """Take what the subscriber asked for; `terms` may be replaced later."""
        self._store = store
        self.terms = terms

    def of(self, cursor: Cursor, *, begun: Object | None = None, now: float) -> Timeouts:
        """Return the timeouts of a Subgroup, found out once for each cursor.

        Args:
            cursor: Where the subscription is in the Subgroup.
            begun: An Object of it that is on its way, which may be the first one.
            now: Monotonic seconds.
        """
        if cursor.timeouts is not None:
            return cursor.timeouts
        subgroup = cursor.subgroup
        first_id = subgroup.first_object_id
        first = None if first_id is None else self._store.held(subgroup.group_id, first_id, now=now)
        if first is None and begun is not None and begun.object_id == first_id:
            first = begun
        found = self._effective(EMPTY_PROPERTIES if first is None else first.properties)
        cursor.timeouts = found
        return found

    def due_at(self, cursor: Cursor, obj: Object, *, now: float) -> float | None:
        """Return until when an Object of a Subgroup stream may be sent; None for ever."""
        subgroup_due_at = self.subgroup_due_at(cursor, now=now)
        if subgroup_due_at is not None:
            return subgroup_due_at
        return self._object_due_at(obj, self.of(cursor, now=now).for_object)

    def subgroup_due_at(self, cursor: Cursor, *, now: float) -> float | None:
        """Return until when a Subgroup whose end is known may be sent; None for ever."""
        timeout, finished_at = self.of(cursor, now=now).for_subgroup, cursor.subgroup.finished_at
        return finished_at + timeout if timeout and finished_at is not None else None

    def is_datagram_over(self, obj: Object, *, now: float) -> bool:
        """Tell whether it is too late to send an Object in a datagram."""
        timeouts = self._effective(obj.properties)
        due_at = self._object_due_at(obj, _shorter(*timeouts))
        return due_at is not None and now > due_at

    def _object_due_at(self, obj: Object, timeout: float) -> float | None:
        received_at = self._store.received_at(obj.group_id, obj.object_id) if timeout else None
        return None if received_at is None else received_at + timeout

    def _effective(self, own: Properties) -> Timeouts:
        """Return the timeouts where the first Object of a Subgroup has these properties."""
        track, terms = self._store.properties, self.terms
        for_object = own.object_delivery_timeout_ms or track.object_delivery_timeout_ms
        for_subgroup = own.subgroup_delivery_timeout_ms or track.subgroup_delivery_timeout_ms
        if not (for_object or for_subgroup or terms.object_timeout or terms.subgroup_timeout):
            return NO_TIMEOUTS
        return Timeouts(
            _shorter(terms.object_timeout, for_object / 1000),
            _shorter(terms.subgroup_timeout, for_subgroup / 1000),
        )


def _shorter(one: float, other: float) -> float:
    """Return the shorter of two timeouts, of which 0 is none."""
    return min(one, other) if one and other else one or other
