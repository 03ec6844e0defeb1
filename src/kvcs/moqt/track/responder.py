"""Answers to requests for Tracks that are served from stores.

Theory of operation. A `TrackResponder` belongs to one session. Whoever dispatches its
events (an original publisher, a relay) decides whether and from which store a request is
served, and calls `answer_subscribe`, `answer_fetch` or `answer_track_status`, at once or
when it knows enough; `receive` then takes what is said about these requests later.

Largest and both filters of a SUBSCRIBE are resolved in one turn, here: the fill delivers
up to Largest, the subscription what comes after it, and nothing falls between the two.

Source: MOQT draft 22, Sections 3.1 to 3.4, 9.5 to 9.7 and 9.11 to 9.13.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kvcs.errors import PublishDoneCode, RequestErrorCode, StreamResetCode
from kvcs.moqt.codepoints import GroupOrder
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import (
    Event,
    FetchReceived,
    RequestCancelled,
    RequestRejected,
    StreamStopped,
    SubscribeReceived,
    TrackStatusReceived,
    UpdateReceived,
)
from kvcs.moqt.session.session import Session
from kvcs.moqt.track.delivery import DEFAULT_SUBSCRIBER_PRIORITY, Delivery, DeliveryTerms, OnGap
from kvcs.moqt.track.fetch_delivery import FetchDelivery
from kvcs.moqt.track.fetch_service import FetchService
from kvcs.moqt.track.interval import to_location, to_position
from kvcs.moqt.track.outbox import Outbox
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.track.subscription_delivery import SubscriptionDelivery
from kvcs.moqt.wire.filters import LocationFilter, LocationRange, replace_filters
from kvcs.moqt.wire.parameters import FillParameters, Parameters
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties

__all__ = ("MAX_FETCHES", "MAX_FILLS", "SubscriptionService", "TrackResponder")

# A consumer fetches a few Tracks of a few segments at a time; more would only queue here.
MAX_FETCHES: Final = 16
# Fills that one subscription may have under way. Below the number of updates for which a session
# remembers the fill, so that each of these can still be opened.
MAX_FILLS: Final = 16
# When a subscriber with too many fetches may try again.
_RETRY_INTERVAL_MS: Final = 1000

# What a code of PUBLISH_DONE means for a fetch: refused, or reset.
_CODES: Final[Mapping[PublishDoneCode, tuple[RequestErrorCode, StreamResetCode]]] = {
    PublishDoneCode.MALFORMED_TRACK: (
        RequestErrorCode.MALFORMED_TRACK,
        StreamResetCode.MALFORMED_TRACK,
    ),
    PublishDoneCode.GOING_AWAY: (RequestErrorCode.GOING_AWAY, StreamResetCode.GOING_AWAY),
    PublishDoneCode.EXPIRED: (
        RequestErrorCode.EXPIRED_AUTH_TOKEN,
        StreamResetCode.EXPIRED_AUTH_TOKEN,
    ),
    PublishDoneCode.UNAUTHORIZED: (
        RequestErrorCode.UNAUTHORIZED,
        StreamResetCode.EXPIRED_AUTH_TOKEN,
    ),
}
_OTHER_CODES: Final = (RequestErrorCode.INTERNAL_ERROR, StreamResetCode.INTERNAL_ERROR)

_NO_FILTER: Final = LocationFilter.none()


@dataclass(slots=True, eq=False)
class SubscriptionService:
    """A subscription that is served here.

    Attributes:
        store: The Track.
        delivery: What it is owed, and its fills.
        location_filter: The Location Filter in force, which a fill may inherit.
        on_gap: Who fills gaps; None if nobody can.
    """

    store: TrackStore
    delivery: SubscriptionDelivery
    location_filter: LocationFilter
    on_gap: OnGap | None


class TrackResponder:
    """Serves the requests of one session from stores."""

    def __init__(self, session: Session, outbox: Outbox, *, max_fetches: int = MAX_FETCHES) -> None:
        """Create a responder that serves nothing yet.

        Args:
            session: The session of all requests.
            outbox: The outbox of that session.
            max_fetches: FETCH requests that are served at a time; more are refused with
                EXCESSIVE_LOAD. Fills do not count.
        """
        self._session = session
        self._outbox = outbox
        self._max_fetches = max_fetches
        self._subscriptions: dict[RequestId, SubscriptionService] = {}
        self._fetches: dict[RequestId, FetchService] = {}

    def __repr__(self) -> str:
        return (
            f"<TrackResponder subscriptions={len(self._subscriptions)}"
            f" fetches={len(self._fetches)}>"
        )

    def deliveries(self, store: TrackStore) -> Iterator[Delivery]:
        """Yield the unfinished deliveries from `store`: subscriptions, fills and fetches."""
        for subscription in self._subscriptions.values():
            if subscription.store is store:
                yield from (
                    delivery
                    for delivery in (subscription.delivery, *subscription.delivery.fills)
                    if not delivery.finished
                )
        for fetch in self._fetches.values():
            if fetch.store is store and not fetch.delivery.finished:
                yield fetch.delivery

    # Answers.

    def answer_subscribe(
        self,
        event: SubscribeReceived,
        store: TrackStore,
        *,
        now: float,
        on_gap: OnGap | None = None,
    ) -> SubscriptionDelivery:
        """Send SUBSCRIBE_OK and begin to deliver, the fill included."""
        parameters = event.parameters
        self._session.accept_subscribe(
            event.request_id,
            Parameters(largest_object=store.largest),
            properties=_properties(parameters, store),
            now=now,
        )
        return self._serve_subscription(event.request_id, store, parameters, now=now, on_gap=on_gap)

    def serve_publish(
        self,
        request_id: RequestId,
        store: TrackStore,
        parameters: Parameters,
        *,
        now: float,
        on_gap: OnGap | None = None,
    ) -> SubscriptionDelivery:
        """Begin to deliver for a PUBLISH of ours, whose `parameters` were sent."""
        return self._serve_subscription(request_id, store, parameters, now=now, on_gap=on_gap)

    def answer_fetch(
        self,
        event: FetchReceived,
        store: TrackStore,
        *,
        now: float,
        deadline: float | None = None,
        on_gap: OnGap | None = None,
    ) -> FetchDelivery | None:
        """Begin to deliver, and send FETCH_OK as soon as its End Location is known.

        Args:
            event: The FETCH.
            store: The Track.
            now: Monotonic seconds.
            deadline: When FILL_TIMEOUT ends the waiting; None counts it from now.
            on_gap: Who fills gaps; None if nobody can tell more than the store does, so that
                FETCH_OK goes out at once.

        Returns:
            The delivery, or None when the FETCH was refused.
        """
        parameters = event.parameters
        self._forget_finished_fetches()
        serving = _count_unfinished(fetch.delivery for fetch in self._fetches.values())
        if serving >= self._max_fetches:
            self._session.reject(
                event.request_id,
                RequestErrorCode.EXCESSIVE_LOAD,
                reason=f"{serving} fetches are under way",
                retry_interval_ms=_RETRY_INTERVAL_MS,
                now=now,
            )
            return None
        location_range = _fetch_range(parameters.location_filter or _NO_FILTER, store)
        if location_range is None:
            reason = f"nothing is there; Largest is {store.largest}"
            self._session.reject(
                event.request_id, RequestErrorCode.INVALID_RANGE, reason=reason, now=now
            )
            return None
        terms = DeliveryTerms(
            location_range=location_range,
            group_order=parameters.group_order or GroupOrder.ASCENDING,
            range_filters=parameters.range_filters,
            subscriber_priority=_or(parameters.subscriber_priority, DEFAULT_SUBSCRIBER_PRIORITY),
            deadline=_deadline(parameters.fill_timeout_ms, now) if deadline is None else deadline,
        )
        delivery = FetchDelivery(store, event.request_id, terms, on_gap=on_gap)
        with_properties = parameters.include_properties is not False
        fetch = FetchService(self._session, store, delivery, with_properties=with_properties)
        self._fetches[event.request_id] = fetch
        self._outbox.add(delivery)
        fetch.answer(can_learn=on_gap is not None, now=now)
        return delivery

    def answer_track_status(
        self, event: TrackStatusReceived, store: TrackStore, *, now: float
    ) -> None:
        """Send REQUEST_OK with Largest and the Track Properties."""
        self._session.accept(
            event.request_id,
            Parameters(largest_object=store.largest),
            properties=_properties(event.parameters, store),
            now=now,
        )

    # What happens to requests that are served.

    def receive(self, event: Event, *, now: float) -> bool:
        """Take an event about a request that is served here; tell whether it was one."""
        match event:
            case UpdateReceived(request_id=request_id) if request_id in self._subscriptions:
                self._update_subscription(self._subscriptions[request_id], event, now)
            case UpdateReceived(request_id=request_id) if request_id in self._fetches:
                self._fetches[request_id].update(event.parameters.subscriber_priority, now=now)
                self._outbox.wake()
            case StreamStopped(request_id=request_id, stream_id=stream_id):
                return any(delivery.stream_stopped(stream_id) for delivery in self._of(request_id))
            case RequestCancelled(request_id=request_id) | RequestRejected(request_id=request_id):
                return self._forget(request_id)
            case _:
                return False
        return True

    def end(
        self,
        store: TrackStore,
        code: PublishDoneCode,
        reason: str = "",
        *,
        drain: bool = True,
        now: float,
    ) -> None:
        """End all subscriptions to a Track with PUBLISH_DONE.

        Args:
            store: The Track.
            code: Why.
            reason: Text for the subscribers.
            drain: Deliver what is owed first; False resets all streams, those of fetches
                too.
            now: Monotonic seconds.
        """
        served = [item for item in self._subscriptions.values() if item.store is store]
        for subscription in served:
            subscription.delivery.end(code, reason, drain=drain)
        if drain:
            return
        error, reset = _CODES.get(code, _OTHER_CODES)
        for subscription in served:
            for fill in subscription.delivery.fills:
                fill.fail(self._session, now=now, code=reset)
        for request_id in [
            fetch.request_id for fetch in self._fetches.values() if fetch.store is store
        ]:
            self.fail_fetch(request_id, error, reset, reason=reason, now=now)

    def cut_off(self, request_id: RequestId, code: PublishDoneCode, *, now: float) -> bool:
        """End one request at once, with all its streams; tell whether it was served here.

        Args:
            request_id: A subscription, or a FETCH.
            code: Why; for a FETCH what corresponds to it.
            now: Monotonic seconds.
        """
        error, reset = _CODES.get(code, _OTHER_CODES)
        subscription = self._subscriptions.get(request_id)
        if subscription is not None:
            subscription.delivery.end(code, drain=False)
            for fill in subscription.delivery.fills:
                fill.fail(self._session, now=now, code=reset)
            return True
        if request_id in self._fetches:
            self.fail_fetch(request_id, error, reset, now=now)
            return True
        return False

    def fail_fetch(
        self,
        request_id: RequestId,
        error: RequestErrorCode,
        reset: StreamResetCode,
        *,
        reason: str = "",
        now: float,
    ) -> None:
        """End a FETCH that cannot be served: REQUEST_ERROR or a reset, whichever is due."""
        fetch = self._fetches.pop(request_id, None)
        if fetch is not None:
            fetch.fail(error, reset, reason=reason, now=now)

    def close(self) -> None:
        """Let go of all stores when the session is over."""
        for request_id in (*self._subscriptions, *self._fetches):
            self._forget(request_id)

    # Subscriptions.

    def _serve_subscription(
        self,
        request_id: RequestId,
        store: TrackStore,
        parameters: Parameters,
        *,
        now: float,
        on_gap: OnGap | None,
    ) -> SubscriptionDelivery:
        location_filter = parameters.location_filter or _NO_FILTER
        terms = DeliveryTerms(
            location_range=_live_range(parameters, store),
            group_order=parameters.group_order or store.properties.default_group_order,
            range_filters=parameters.range_filters,
            subscriber_priority=_or(parameters.subscriber_priority, DEFAULT_SUBSCRIBER_PRIORITY),
            forward=_or(parameters.forward, True),
            object_timeout=(parameters.object_delivery_timeout_ms or 0) / 1000,
            subgroup_timeout=(parameters.subgroup_delivery_timeout_ms or 0) / 1000,
        )
        delivery = SubscriptionDelivery(
            store,
            request_id,
            terms,
            on_gap=on_gap,
            is_drained=self._outbox.is_drained,
            late=self._outbox.late,
        )
        subscription = SubscriptionService(store, delivery, location_filter, on_gap)
        self._subscriptions[request_id] = subscription
        self._outbox.add(delivery)
        if parameters.fill is not None and terms.forward:
            self._fill(subscription, parameters.fill, request_id, now)
        return delivery

    def _update_subscription(
        self, subscription: SubscriptionService, event: UpdateReceived, now: float
    ) -> None:
        parameters, delivery, store = event.parameters, subscription.delivery, subscription.store
        if parameters.fill is not None and _count_unfinished(delivery.fills) >= MAX_FILLS:
            reason = f"{MAX_FILLS} fills are under way"
            code = RequestErrorCode.EXCESSIVE_LOAD
            self._session.reject_update(event.request_id, code, reason, now=now)
            self._forget(event.request_id)
            return
        terms = delivery.terms
        location_range = terms.location_range
        if parameters.location_filter is not None:
            subscription.location_filter = parameters.location_filter
            location_range = parameters.location_filter.subscription_range(store.largest)
        terms = replace(
            terms,
            location_range=location_range,
            range_filters=replace_filters(terms.range_filters, parameters.range_filters),
            subscriber_priority=_or(parameters.subscriber_priority, terms.subscriber_priority),
            forward=_or(parameters.forward, terms.forward),
            object_timeout=_or(parameters.object_delivery_timeout_ms, terms.object_timeout * 1000)
            / 1000,
            subgroup_timeout=_or(
                parameters.subgroup_delivery_timeout_ms, terms.subgroup_timeout * 1000
            )
            / 1000,
        )
        self._session.accept_update(
            event.request_id, Parameters(largest_object=store.largest), now=now
        )
        delivery.change(terms)
        if parameters.fill is not None and terms.forward:
            self._fill(subscription, parameters.fill, event.update_id, now)
        self._outbox.wake()

    def _fill(
        self,
        subscription: SubscriptionService,
        fill: FillParameters,
        trigger_id: RequestId,
        now: float,
    ) -> None:
        """Begin a fill, unless its range is empty (Section 3.4)."""
        store, delivery = subscription.store, subscription.delivery
        location_range = _fetch_range(fill.location_filter or subscription.location_filter, store)
        if location_range is None:
            return
        order = fill.group_order or delivery.terms.group_order
        terms = DeliveryTerms(
            location_range=location_range,
            group_order=order,
            range_filters=replace_filters(delivery.terms.range_filters, fill.range_filters),
            subscriber_priority=_or(fill.subscriber_priority, delivery.terms.subscriber_priority),
            deadline=_deadline(fill.fill_timeout_ms, now),
        )
        # A fill has the lower Groups: they go first in ascending order, and last where the
        # order is another (Section 5.1).
        ascending = order is delivery.terms.group_order is GroupOrder.ASCENDING
        filling = FetchDelivery(
            store,
            delivery.request_id,
            terms,
            trigger_id=trigger_id,
            on_gap=subscription.on_gap,
            turn=0 if ascending else 2,
        )
        filling.on_finished = delivery.wake
        delivery.fills = [other for other in delivery.fills if not other.finished]
        delivery.fills.append(filling)
        self._outbox.add(filling)

    # All.

    def _forget_finished_fetches(self) -> None:
        for request_id, fetch in tuple(self._fetches.items()):
            if fetch.delivery.finished and not self._session.is_active(request_id):
                self._forget(request_id)

    def _of(self, request_id: RequestId) -> tuple[Delivery, ...]:
        if request_id in self._subscriptions:
            delivery = self._subscriptions[request_id].delivery
            return delivery, *delivery.fills
        return (self._fetches[request_id].delivery,) if request_id in self._fetches else ()

    def _forget(self, request_id: RequestId) -> bool:
        """Stop what the session has ended; tell whether it was served here."""
        deliveries = self._of(request_id)
        fetch = self._fetches.pop(request_id, None)
        if fetch is not None:
            fetch.release()
        self._subscriptions.pop(request_id, None)
        for delivery in deliveries:
            delivery.stop()
            self._outbox.remove(delivery)
        return bool(deliveries)


def _count_unfinished(deliveries: Iterable[Delivery]) -> int:
    return sum(not delivery.finished for delivery in deliveries)


def _or[T](value: T | None, otherwise: T) -> T:
    return otherwise if value is None else value


def _properties(parameters: Parameters, store: TrackStore) -> Properties:
    return EMPTY_PROPERTIES if parameters.include_properties is False else store.properties


def _deadline(timeout_ms: int | None, now: float) -> float | None:
    return None if timeout_ms is None else now + timeout_ms / 1000


def _live_range(parameters: Parameters, store: TrackStore) -> LocationRange:
    """Return what a subscription delivers itself: not what its fill does, whatever arrives late.

    That matters where the ranges overlap: a relay may get an old Object only because the fill
    asked for it.
    """
    location_filter = parameters.location_filter or _NO_FILTER
    live = location_filter.subscription_range(store.largest)
    fill = parameters.fill
    if fill is None or parameters.forward is False:
        return live
    filled = _fetch_range(fill.location_filter or location_filter, store)
    if filled is None or filled.end is None:
        return live
    behind = to_location(to_position(filled.end) + 1)
    return replace(live, start=max(live.start, behind))


def _fetch_range(location_filter: LocationFilter, store: TrackStore) -> LocationRange | None:
    return None if store.largest is None else location_filter.fetch_range(store.largest)
