"""What the subscribers of one Track want: the downstream half of a Track in a relay.

Theory of operation. A request that cannot be answered yet waits here, as a value, and every
change of the supply looks at all that wait again:

* SUBSCRIBE waits for an upstream subscription that is Established and, if the subscriber
  wants Objects now, forwards; then Largest and both filters are resolved in one turn;
* FETCH waits until enough is known of the Largest Object, by asking a publisher for what is
  missing of the range; without a publisher our own Largest Object is the end;
* TRACK_STATUS waits for one of ours, unless an upstream subscription knows better.

Requests that are answered belong to the `TrackResponder` of their session; only their
deliveries are kept here, to know what is still needed of the store.

Source: MOQT draft 22, Sections 3.1, 3.2.3, 7.4, 7.6 and 9.20.6.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from kvcs.errors import LocalProtocolError, PublishDoneCode, RequestErrorCode
from kvcs.moqt.codepoints import LocationFilterType
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import (
    Event,
    FetchReceived,
    RequestCancelled,
    RequestRejected,
    SessionClosed,
    SubscribeReceived,
    SubscriberFinished,
    TrackStatusReceived,
    UpdateReceived,
)
from kvcs.moqt.track.delivery import Delivery
from kvcs.moqt.track.fetch_delivery import FetchDelivery
from kvcs.moqt.track.interval import MAX_POSITION, to_location, to_position
from kvcs.moqt.track.store import Absent, Found, Unknown
from kvcs.moqt.track.subscription_delivery import SubscriptionDelivery
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import FullTrackName, Location
from kvcs.relay.host import Host
from kvcs.relay.namespaces import Route
from kvcs.relay.peer import Peer
from kvcs.relay.supply import Supply
from kvcs.relay.upstream_fetch import UpstreamFetch
from kvcs.relay.upstream_status import UpstreamStatus

__all__ = ("Demand",)

_NO_FILTER: Final = LocationFilter.none()
_NEEDS_LARGEST: Final = frozenset(
    {LocationFilterType.RELATIVE_START, LocationFilterType.NEXT_OBJECT}
)
_LAST_WORDS: Final = (RequestCancelled, RequestRejected, SessionClosed, SubscriberFinished)
_NOBODY: Final = "no publisher"

type _Probe = UpstreamFetch | UpstreamStatus


@dataclass(slots=True, eq=False)
class _Waiting[E: (SubscribeReceived, FetchReceived | TrackStatusReceived)]:
    """A request that cannot be answered yet.

    Attributes:
        peer: The subscriber.
        event: The request.
        deadline: How long a SUBSCRIBE waits for a publisher to appear; None if it does not.
        is_refused: A publisher does not know the Track; only a new one may.
        probe: What was sent to a publisher to learn more, for this request or another.
        is_learned: The publisher said as much as it will.
        updates: REQUEST_UPDATEs that came meanwhile.
    """

    peer: Peer
    event: E
    deadline: float | None = None
    is_refused: bool = False
    probe: _Probe | None = None
    is_learned: bool = False
    updates: list[UpdateReceived] = field(default_factory=list[UpdateReceived])

    @property
    def wants_objects(self) -> bool:
        return self.event.parameters.forward is not False

    @property
    def location_filter(self) -> LocationFilter:
        return self.event.parameters.location_filter or _NO_FILTER


class _Served(NamedTuple):
    """A request that was answered, and what it is owed."""

    peer: Peer
    delivery: SubscriptionDelivery | FetchDelivery


class Demand:
    """The subscribers of one Track.

    Attributes:
        supply: Its publishers.
    """

    def __init__(self, name: FullTrackName, host: Host) -> None:
        self.supply = Supply(name, host, self)
        self._host = host
        self._subscribes: dict[Route, _Waiting[SubscribeReceived]] = {}
        self._questions: dict[Route, _Waiting[FetchReceived | TrackStatusReceived]] = {}
        self._served: dict[Route, _Served] = {}
        self._missed: set[Delivery] = set()

    def __repr__(self) -> str:
        waiting = len(self._subscribes) + len(self._questions)
        return f"<Demand {self.supply.name} waiting={waiting} served={len(self._served)}>"

    @property
    def is_idle(self) -> bool:
        """Nobody wants anything."""
        return not (self._subscribes or self._questions or any(self.deliveries()))

    @property
    def wants_objects(self) -> bool:
        """A subscriber is not paused."""
        return any(waiting.wants_objects for waiting in self._subscribes.values()) or any(
            delivery.terms.forward for delivery in self.subscriptions()
        )

    def subscriptions(self) -> Iterator[SubscriptionDelivery]:
        """Yield the subscriptions that are served."""
        for served in self._served.values():
            delivery = served.delivery
            if isinstance(delivery, SubscriptionDelivery) and not delivery.finished:
                yield delivery

    def deliveries(self) -> Iterator[SubscriptionDelivery | FetchDelivery]:
        """Yield everything that is served: subscriptions, their fills, and fetches."""
        for _, delivery in self._served.values():
            if not delivery.finished:
                yield delivery
            if isinstance(delivery, SubscriptionDelivery):
                yield from (fill for fill in delivery.fills if not fill.finished)

    def awaits_publisher(self, peer: Peer) -> bool:
        """Tell whether a SUBSCRIBE of this peer is unanswered."""
        return any(route.peer == peer.id for route in self._subscribes)

    # Requests.

    def subscribe(self, peer: Peer, event: SubscribeReceived, *, now: float) -> None:
        """Take a SUBSCRIBE."""
        asked = (event.parameters.rendezvous_timeout_ms or 0) / 1000
        deadline = None
        if asked:
            deadline = now + min(asked, self._host.limits.max_rendezvous_timeout)
            self._host.schedule(deadline, self._expire)
        route = peer.route(event.request_id)
        self._subscribes[route] = _Waiting(peer, event, deadline)
        peer.follow(event.request_id, partial(self._receive, peer, event.request_id))
        self.settle(now=now)

    def ask(self, peer: Peer, event: FetchReceived | TrackStatusReceived, *, now: float) -> None:
        """Take a FETCH or a TRACK_STATUS."""
        self._questions[peer.route(event.request_id)] = _Waiting(peer, event)
        peer.follow(event.request_id, partial(self._receive, peer, event.request_id))
        self.settle(now=now)

    def publish_to(self, peer: Peer, parameters: Parameters, *, now: float) -> bool:
        """Send PUBLISH to a peer that subscribed to a prefix; False if it cannot be sent.

        Args:
            peer: The subscriber.
            parameters: Those of its SUBSCRIBE_TRACKS.
            now: Monotonic seconds.
        """
        store = self.supply.store
        try:
            request_id = peer.session.publish(
                self.supply.name,
                Parameters(
                    largest_object=store.largest,
                    forward=parameters.forward,
                    subscriber_priority=parameters.subscriber_priority,
                    location_filter=parameters.location_filter,
                    group_order=parameters.group_order,
                ),
                properties=store.properties,
                now=now,
            )
        except LocalProtocolError:
            return False
        delivery = peer.responder.serve_publish(
            request_id, store, parameters, now=now, on_gap=partial(self._on_gap, peer)
        )
        peer.follow(request_id, partial(self._receive, peer, request_id))
        self._serve(peer, request_id, delivery)
        return True

    def publisher_appeared(self, peer: Peer, *, now: float) -> None:
        """Note that a peer began to advertise the namespace."""
        for waiting in self._subscribes.values():
            waiting.is_refused = False
        if self._subscribes or any(self.subscriptions()):
            self.supply.publisher_appeared(peer, forward=self.wants_objects, now=now)
        self.settle(now=now)

    # Deciding.

    def settle(self, *, now: float) -> None:
        """Answer what can be answered, and ask publishers for what cannot."""
        supply = self.supply
        for route, waiting in tuple(self._subscribes.items()):
            if supply.is_established and (supply.is_forwarding or not waiting.wants_objects):
                del self._subscribes[route]
                self._answer_subscribe(waiting, now)
        if any(not waiting.is_refused for waiting in self._subscribes.values()):
            self._find_publisher(now)
        for route, question in tuple(self._questions.items()):
            if question.probe is None and route in self._questions:
                self._settle_question(route, question, now)

    def _find_publisher(self, now: float) -> None:
        deadlines = (waiting.deadline or now for waiting in self._subscribes.values())
        rendezvous_ms = max(0, round((max(deadlines) - now) * 1000))
        if not self.supply.subscribe(
            forward=self.wants_objects, rendezvous_ms=rendezvous_ms, now=now
        ):
            self.supply_refused(RequestErrorCode.DOES_NOT_EXIST, _NOBODY, now=now)

    def _settle_question(
        self, route: Route, question: _Waiting[FetchReceived | TrackStatusReceived], now: float
    ) -> None:
        event = question.event
        if isinstance(event, FetchReceived):
            is_answerable = self._knows_enough(question)
        else:
            is_answerable = self.supply.is_established or question.is_learned
        if not is_answerable:
            question.probe = self._probe(question, now)
            if question.probe is not None:
                return
        del self._questions[route]
        if isinstance(event, FetchReceived):
            self._answer_fetch(question.peer, event, now)
        elif is_answerable:
            question.peer.responder.answer_track_status(event, self.supply.store, now=now)
            question.peer.forget(event.request_id)
            question.peer.wake()
        else:
            self._refuse(question, RequestErrorCode.DOES_NOT_EXIST, _NOBODY, now)
        self._replay(question, now)

    def _knows_enough(self, question: _Waiting[FetchReceived | TrackStatusReceived]) -> bool:
        """Tell whether our Largest Object decides where the range of a FETCH ends."""
        store = self.supply.store
        if question.is_learned or self.supply.is_forwarding or store.end is not None:
            return True
        asked = _last(question.location_filter)
        return asked is not None and store.largest is not None and asked <= store.largest

    def _probe(
        self, question: _Waiting[FetchReceived | TrackStatusReceived], now: float
    ) -> _Probe | None:
        """Ask a publisher how far the Track goes; with a FETCH for what is missing anyway."""
        location_filter = question.location_filter
        is_fetch = isinstance(question.event, FetchReceived)
        if not is_fetch or location_filter.kind in _NEEDS_LARGEST:
            return self.supply.ask_status(now=now)
        asked = _last(location_filter)
        through = MAX_POSITION if asked is None else to_position(asked)
        start = self._first_unknown(_first(location_filter), through, now)
        for fetch in self.supply.gaps.fetches:
            if fetch.end is None and (fetch.covers(start) or fetch.through >= through):
                return fetch
        first = to_location(start)
        ask = LocationFilter.absolute_start(first.group_id, first.object_id)
        return self.supply.probe((start, through), None if asked is not None else ask, now=now)

    def _first_unknown(self, start: Location, through: int, now: float) -> int:
        """Return where to begin a FETCH that also finds out where a range ends.

        That is behind everything that is held; gaps before that are fetched by themselves.
        """
        store = self.supply.store
        position = to_position(start)
        for group_id in reversed(store.groups()):
            held = [ids[-1] for ids in (s.ids for s in store.subgroups(group_id)) if ids]
            if group_id << 64 <= through and held:
                position = max(position, (group_id << 64 | max(held)) + 1)
                break
        while position < through:
            match store.lookup(to_location(position), now=now):
                case Absent(through=last):
                    position = to_position(last) + 1
                case Found():
                    position += 1
                case Unknown():
                    break
        return min(position, through)

    # Answering.

    def _answer_subscribe(self, waiting: _Waiting[SubscribeReceived], now: float) -> None:
        peer, event = waiting.peer, waiting.event
        delivery = peer.responder.answer_subscribe(
            event, self.supply.store, now=now, on_gap=partial(self._on_gap, peer)
        )
        self._host.metrics.fetches_served += len(delivery.fills)
        self._serve(peer, event.request_id, delivery)
        self._replay(waiting, now)

    def _answer_fetch(self, peer: Peer, event: FetchReceived, now: float) -> None:
        store = self.supply.store
        has_publisher = bool(self.supply.publishers.available())
        if not (has_publisher or store.groups()):
            code = RequestErrorCode.DOES_NOT_EXIST
            self._host.refuse(peer, event.request_id, code, _NOBODY, now=now)
            peer.forget(event.request_id)
            return
        delivery = peer.responder.answer_fetch(
            event, store, now=now, on_gap=partial(self._on_gap, peer) if has_publisher else None
        )
        peer.wake()
        if delivery is None:
            peer.forget(event.request_id)
            return
        self._host.metrics.fetches_served += 1
        self._serve(peer, event.request_id, delivery)

    def _serve(
        self, peer: Peer, request_id: RequestId, delivery: SubscriptionDelivery | FetchDelivery
    ) -> None:
        self._served[peer.route(request_id)] = _Served(peer, delivery)
        peer.wake()

    def _replay(self, waiting: _Waiting[Any], now: float) -> None:
        """Apply the updates that came before the answer."""
        for update in waiting.updates:
            self._receive(waiting.peer, update.request_id, update, now)

    def _refuse(self, waiting: _Waiting[Any], code: int, reason: str, now: float) -> None:
        waiting.peer.forget(waiting.event.request_id)
        self._host.refuse(waiting.peer, waiting.event.request_id, code, reason, now=now)

    def _on_gap(self, peer: Peer, delivery: Delivery, start: Location, through: Location) -> None:
        """Have filled what a delivery stopped at."""
        if delivery not in self._missed and isinstance(delivery, FetchDelivery):
            self._missed.add(delivery)
            self._host.metrics.cache_misses += 1
        self.supply.wait_for(delivery, start, through, now=peer.now)

    # News from downstream.

    def _receive(self, peer: Peer, request_id: RequestId, event: Event, now: float) -> None:
        route = peer.route(request_id)
        waiting = self._subscribes.get(route) or self._questions.get(route)
        if isinstance(event, _LAST_WORDS):
            peer.forget(request_id)
            self._subscribes.pop(route, None)
            self._questions.pop(route, None)
            self._served.pop(route, None)
            peer.responder.receive(RequestCancelled(request_id, 0), now=now)
            self._look_for_idle(now)
        elif waiting is not None and isinstance(event, UpdateReceived):
            waiting.updates.append(event)
        elif waiting is None:
            fills = self._count_fills(route)
            peer.responder.receive(event, now=now)
            self._host.metrics.fetches_served += self._count_fills(route) - fills
            if self.wants_objects and self.supply.is_established:
                self.supply.subscribe(forward=True, rendezvous_ms=0, now=now)
            peer.wake()

    def _count_fills(self, route: Route) -> int:
        served = self._served.get(route)
        if served is None or not isinstance(served.delivery, SubscriptionDelivery):
            return 0
        return len(served.delivery.fills)

    def _expire(self, now: float) -> None:
        """Refuse SUBSCRIBEs for which no publisher appeared in time."""
        for route, waiting in tuple(self._subscribes.items()):
            if waiting.deadline is not None and waiting.deadline <= now:
                del self._subscribes[route]
                self._refuse(waiting, RequestErrorCode.TIMEOUT, "no publisher appeared", now)
        self._look_for_idle(now)

    def _look_for_idle(self, now: float) -> None:
        """Unsubscribe upstream when nobody subscribes any more, a little later."""
        if self._is_unwanted():
            linger = self._host.limits.subscription_linger
            self._host.schedule(now + linger, self._unsubscribe)

    def _unsubscribe(self, now: float) -> None:
        if self._is_unwanted():
            self.supply.unsubscribe(now=now)

    def _is_unwanted(self) -> bool:
        return not (self._subscribes or any(self.subscriptions()))

    # News from upstream (SupplyListener).

    def supply_changed(self, *, now: float) -> None:
        """Look at everything that waits again."""
        self.settle(now=now)

    def supply_refused(self, code: int, reason: str, *, now: float) -> None:
        """Note that no upstream subscription can be had."""
        for route, waiting in tuple(self._subscribes.items()):
            may_appear = waiting.deadline is not None and waiting.deadline > now
            if may_appear and code == RequestErrorCode.DOES_NOT_EXIST:
                waiting.is_refused = True
            else:
                del self._subscribes[route]
                self._refuse(waiting, code, reason, now)

    def supply_ended(self, code: PublishDoneCode, *, now: float) -> None:
        """Note that nothing more comes: the last upstream subscription is over."""
        self._end_all(code, "", drain=True, now=now)

    def supply_malformed(self, reason: str, *, now: float) -> None:
        """Note that the Track contradicts itself."""
        self._end_all(PublishDoneCode.MALFORMED_TRACK, reason, drain=False, now=now)

    def probe_answered(self, probe: _Probe, *, now: float) -> None:
        """Note that a publisher said how far the Track goes."""
        for question in self._questions.values():
            if question.probe is probe:
                question.probe = None
                question.is_learned = _says_enough(probe, question.location_filter)
        self.settle(now=now)

    def probe_refused(self, probe: _Probe, code: int, reason: str, *, now: float) -> None:
        """Note that a publisher did not say more about the Track."""
        store = self.supply.store
        is_short = code == RequestErrorCode.INVALID_RANGE and store.largest is not None
        # Of a publisher that is only busy nothing is learned: the subscriber asks again.
        is_busy = code == RequestErrorCode.EXCESSIVE_LOAD
        for route, question in tuple(self._questions.items()):
            if question.probe is not probe:
                continue
            question.probe = None
            is_fetch = isinstance(question.event, FetchReceived)
            if is_fetch and not is_busy and (is_short or store.groups()):
                question.is_learned = True
            else:
                del self._questions[route]
                self._refuse(question, code, reason, now)

    def _end_all(self, code: PublishDoneCode, reason: str, *, drain: bool, now: float) -> None:
        peers = {peer.id: peer for peer, _ in self._served.values()}
        for peer in peers.values():
            peer.responder.end(self.supply.store, code, reason, drain=drain, now=now)
            peer.wake()

    def sweep(self, *, now: float) -> None:
        """Forget requests that are over without a word of the session."""
        for route, (peer, delivery) in tuple(self._served.items()):
            if delivery.finished and not peer.session.is_active(route.request_id):
                del self._served[route]
                peer.forget(route.request_id)
                peer.responder.receive(RequestCancelled(route.request_id, 0), now=now)
        self._missed = {delivery for delivery in self._missed if not delivery.finished}


def _first(location_filter: LocationFilter) -> Location:
    return Location(location_filter.start_group, location_filter.start_object)


def _last(location_filter: LocationFilter) -> Location | None:
    """Return the last Location that a filter asks for, None where that is Largest."""
    location_range = location_filter.subscription_range(None)
    return location_range.end


def _says_enough(probe: _Probe, location_filter: LocationFilter) -> bool:
    if isinstance(probe, UpstreamStatus):
        return True
    asked = _last(location_filter)
    return probe.through >= (MAX_POSITION if asked is None else to_position(asked))
