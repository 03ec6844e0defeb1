"""What deliveries have in common: readiness, rank and the parameters that shape them.

A delivery hands the Objects of one Track to one subscriber, on request of that
subscriber. It pulls them from the store when the outbox says so, one Object a step, and
holds none of them: what waits for a slow subscriber waits in the store.

Source: MOQT draft 22, Sections 3.3, 5.1 and 5.2.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from kvcs.moqt.codepoints import GroupOrder, RangeMarker
from kvcs.moqt.session.actions import RequestId, StreamId
from kvcs.moqt.session.session import Session
from kvcs.moqt.wire.filters import LocationRange, RangeFilter, matches
from kvcs.moqt.wire.object import Object
from kvcs.names import Location

__all__ = (
    "DEFAULT_SUBSCRIBER_PRIORITY",
    "Delivery",
    "DeliveryTerms",
    "OnGap",
    "OnStopped",
    "Rank",
    "transport_priority",
)

DEFAULT_SUBSCRIBER_PRIORITY: Final = 128

type Rank = tuple[int, int, int]
"""Subscriber priority, publisher priority, then fills and subscriptions; lower goes first."""

type OnStopped = Callable[["Delivery", Location], None]
"""Called whenever a delivery stops at a Location that it has reported as part of a gap."""

type OnGap = Callable[["Delivery", Location, Location], None]
"""Called once for each run of Locations, inclusive, that a delivery waits for.

Whoever takes it owes the delivery an end of its waiting: Objects or `mark_absent` in the
store, or `give_up` on the delivery.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryTerms:
    """What a subscriber asked for.

    Attributes:
        location_range: Locations to deliver; a fetch has an end, a subscription may not.
        group_order: Order of Groups.
        range_filters: Range filters in force.
        subscriber_priority: 0..255, lower is more urgent.
        forward: Forward State of a subscription.
        object_timeout: OBJECT_DELIVERY_TIMEOUT of the subscriber in seconds; 0 is none.
        subgroup_timeout: SUBGROUP_DELIVERY_TIMEOUT of the subscriber in seconds; 0 is none.
        deadline: When a fetch stops waiting, in monotonic seconds (FILL_TIMEOUT).
    """

    location_range: LocationRange
    group_order: GroupOrder = GroupOrder.ASCENDING
    range_filters: tuple[RangeFilter, ...] = ()
    subscriber_priority: int = DEFAULT_SUBSCRIBER_PRIORITY
    forward: bool = True
    object_timeout: float = 0.0
    subgroup_timeout: float = 0.0
    deadline: float | None = None

    def admits(self, obj: Object) -> bool:
        """Tell whether `obj` passes the range filters."""
        return not self.range_filters or matches(
            self.range_filters,
            subgroup_id=obj.subgroup_id,
            object_id=obj.object_id,
            publisher_priority=obj.publisher_priority,
            properties=obj.properties,
        )


class Delivery(Protocol):
    """One source of Objects for one subscriber."""

    on_ready: Callable[[], None] | None
    """Called when the delivery may have something to do again."""

    terms: DeliveryTerms
    """What is to be delivered."""

    on_stopped: OnStopped | None
    """Called when it stops inside a gap that was reported; for who fills gaps bit by bit."""

    @property
    def request_id(self) -> RequestId:
        """The request that it serves; a fill serves its subscription."""
        ...

    @property
    def finished(self) -> bool:
        """Nothing more will be sent."""
        ...

    @property
    def awaits_transport(self) -> bool:
        """It can go on when the transport has sent what is on one of its streams."""
        ...

    @property
    def is_walking(self) -> bool:
        """The last step broke off between Objects, so that others get their turn."""
        ...

    @property
    def deadline(self) -> float | None:
        """When it must be stepped again at the latest, in monotonic seconds."""
        ...

    def rank(self) -> Rank:
        """Return how urgent its next Object is."""
        ...

    def step(self, session: Session, *, now: float) -> int:
        """Hand at most one Object to the session.

        Returns:
            Octets handed over; 0 when there is nothing to do until `on_ready` is called, unless it
            `is_walking`.
        """
        ...

    def stream_stopped(self, stream_id: StreamId) -> bool:
        """Note that the peer refused a stream; tell whether it is one of this delivery."""
        ...

    def needs(self, group_id: int) -> bool:
        """Tell whether Objects of this Group may still have to be sent."""
        ...

    def give_up(
        self, start: Location, through: Location, marker: RangeMarker = RangeMarker.UNKNOWN
    ) -> None:
        """Stop waiting for unknown Locations, inclusive, that nobody can give.

        Args:
            start: First Location.
            through: Last Location.
            marker: What a fetch says about them: UNKNOWN or TIMED_OUT.
        """
        ...

    def cancel(self, session: Session, *, now: float, code: int) -> None:
        """Reset all streams with `code` and stop."""
        ...

    def stop(self) -> None:
        """Stop when the session has ended the request, and its streams with it."""
        ...


def transport_priority(subscriber_priority: int, publisher_priority: int) -> int:
    """Return the QUIC priority of a data stream, an even value in 4..252.

    Half of the values are for the default subscriber priority, where they follow the
    publisher priority; more and less urgent subscribers share the rest. The outbox ranks
    exactly; this only orders what is already queued.
    """
    if subscriber_priority < DEFAULT_SUBSCRIBER_PRIORITY:
        level = subscriber_priority >> 2
    elif subscriber_priority == DEFAULT_SUBSCRIBER_PRIORITY:
        level = 32 + (publisher_priority >> 2)
    else:
        level = 96 + min((subscriber_priority - DEFAULT_SUBSCRIBER_PRIORITY) >> 2, 28)
    return 4 + 2 * level
