"""What the subscribers of one Track want: the downstream half of a Track in a relay.

Theory of operation. A request that cannot be answered yet waits here, as a value, and every
change of the supply looks at all that wait again:

* SUBSCRIBE waits for an upstream subscription that is Established and, if the subscriber
  wants Objects now, forwards; then Largest and both filters are resolved in one turn;
* FETCH and TRACK_STATUS wait in `Questions`.

A request for which a relay would have to be asked waits in `Turns` as well while that relay has
its share of requests of the same client.

Requests that are answered belong to the `TrackResponder` of their session; only their
deliveries are kept here, to know what is still needed of the store.

Source: MOQT draft 22, Sections 3.1, 3.2.3, 7.4, 7.6 and 9.20.6.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from kvcs.errors import LocalProtocolError, PublishDoneCode, RequestErrorCode
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import (
    Event,
    FetchReceived,
    GoawayReceived,
    RequestCancelled,
    RequestRejected,
    SessionClosed,
    SubscribeReceived,
    SubscriberFinished,
    TrackStatusReceived,
    UpdateReceived,
)
from kvcs.moqt.track.delivery import Delivery, OnGap
from kvcs.moqt.track.fetch_delivery import FetchDelivery
from kvcs.moqt.track.subscription_delivery import SubscriptionDelivery
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES
from kvcs.names import FullTrackName, Location
from kvcs.relay.asker_shares import Stay
from kvcs.relay.auth import Access
from kvcs.relay.gaps import Origin
from kvcs.relay.host import Host
from kvcs.relay.namespaces import PeerId, Route
from kvcs.relay.peer import Peer
from kvcs.relay.questions import Questions
from kvcs.relay.refusal import ASKED_MUCH, NOBODY_CAME, NOT_FOUND, Refusal
from kvcs.relay.supply import Supply
from kvcs.relay.upstream import SubscriptionWish
from kvcs.relay.waiting import Probe, Question, Waiting

__all__ = ("Demand",)

_LAST_WORDS: Final = (RequestCancelled, RequestRejected, SessionClosed, SubscriberFinished)
# A publisher that speaks more often is heard, and passed on together.
_NOTIFY_INTERVAL: Final = 1.0
# So often is asked whether there is a Track now for which nobody above waits.
_ASK_AGAIN_INTERVAL: Final = 2.0
_LEAVING: Final = Refusal(RequestErrorCode.GOING_AWAY, "this relay is going away")


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
        self._subscribes: dict[Route, Waiting[SubscribeReceived]] = {}
        self._questions = Questions(self.supply, host, self)
        self._served: dict[Route, _Served] = {}
        self._published: set[Route] = set()
        self._is_notifying = False
        self._notified_at = -math.inf
        self._origins: dict[FetchDelivery, set[Origin]] = {}
        self._asks_again: set[PeerId] = set()

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

    def serves(self, peer: Peer) -> bool:
        """Tell whether something is being sent to a subscriber."""
        served = self._served.values()
        return any(to is peer and not delivery.finished for to, delivery in served)

    @property
    def awaiting(self) -> set[PeerId]:
        """The peers of which a SUBSCRIBE is unanswered."""
        return {route.peer for route in self._subscribes}

    # Requests.

    def subscribe(self, peer: Peer, event: SubscribeReceived, *, now: float) -> None:
        """Take a SUBSCRIBE."""
        asked = (event.parameters.rendezvous_timeout_ms or 0) / 1000
        deadline = None
        route = peer.route(event.request_id)
        if self._is_unwanted():
            # What lingers is for the sake of this one from now on.
            self.supply.upstream.pass_on([peer.id])
        if asked:
            deadline = now + min(asked, self._host.limits.max_rendezvous_timeout)
            self._host.schedule(deadline, partial(self._expire, route))
        waiting = self._subscribes[route] = Waiting(peer, event, deadline)
        self._ask_new_group(event.parameters, now)
        peer.follow(event.request_id, partial(self._receive, peer, event.request_id))
        # For all others nothing has changed, and they may be thousands.
        if self.supply.stored.disk.is_ready(now=now):
            self._settle_subscribe(route, waiting, now)
            if route in self._subscribes:
                self._find_publisher(route, waiting, NOT_FOUND, now)

    def ask(self, peer: Peer, event: FetchReceived | TrackStatusReceived, *, now: float) -> None:
        """Take a FETCH or a TRACK_STATUS."""
        route = self._questions.add(peer, event, now=now)
        peer.follow(event.request_id, partial(self._receive, peer, event.request_id))
        if self.supply.stored.disk.is_ready(now=now):
            self._questions.settle_one(route, now=now)

    def publish_to(self, peer: Peer, parameters: Parameters, *, access: Access, now: float) -> bool:
        """Send PUBLISH to a peer that subscribed to a prefix; False if it cannot be sent.

        Args:
            peer: The subscriber.
            parameters: Those of its SUBSCRIBE_TRACKS.
            access: What it goes by.
            now: Monotonic seconds.
        """
        store = self.supply.store
        without = parameters.include_properties is False
        try:
            request_id = peer.session.publish(
                self.supply.name,
                Parameters(
                    largest_object=store.largest,
                    forward=parameters.forward,
                    subscriber_priority=parameters.subscriber_priority,
                    location_filter=parameters.location_filter,
                    group_order=parameters.group_order,
                    object_delivery_timeout_ms=parameters.object_delivery_timeout_ms,
                    subgroup_delivery_timeout_ms=parameters.subgroup_delivery_timeout_ms,
                ),
                properties=EMPTY_PROPERTIES if without else store.properties,
                now=now,
            )
        except LocalProtocolError:
            return False
        delivery = peer.responder.serve_publish(
            request_id, store, parameters, now=now, on_gap=self.on_gap_of(peer)
        )
        peer.follow(request_id, partial(self._receive, peer, request_id))
        peer.granted[request_id] = access
        peer.published.add(request_id)
        self._serve(peer, request_id, delivery)
        self._published.add(peer.route(request_id))
        if delivery.terms.forward:
            self.supply.upstream.resume(now=now)
        return True

    def is_published_to(self, peer: Peer) -> bool:
        """Tell whether a PUBLISH of ours to this peer is going on."""
        routes = (route for route in self._published if route.peer == peer.id)
        return any(not self._served[route].delivery.finished for route in routes)

    def publisher_appeared(self, peer: Peer, *, now: float) -> None:
        """Note that a peer began to advertise the namespace."""
        for waiting in self._subscribes.values():
            waiting.is_refused = False
            waiting.denied.discard(peer)
        asker = self._only_asker()
        if asker is not None and not peer.may_serve(asker):
            return
        first = next(iter(self._askers()), None)
        if first is not None:
            wish = SubscriptionWish(
                asker=first, is_running=self.is_subscribed, forward=self.wants_objects
            )
            self.supply.upstream.publisher_appeared(peer, wish, now=now)
        self.settle(now=now)

    def _only_asker(self) -> Peer | None:
        """Return who subscribes or wants to, None if they are several or nobody."""
        askers = self._askers()
        return askers[0] if len(askers) == 1 else None

    def _askers(self) -> list[Peer]:
        """Return who subscribes or wants to, those first that are served."""
        askers = {peer.id: peer for peer in self._subscribers()}
        askers |= {waiting.peer.id: waiting.peer for waiting in self._subscribes.values()}
        return list(askers.values())

    # Deciding.

    def settle(self, *, now: float) -> None:
        """Answer what can be answered, and ask publishers for what cannot."""
        if not self.supply.stored.disk.is_ready(now=now):
            return
        for route, waiting in tuple(self._subscribes.items()):
            self._settle_subscribe(route, waiting, now)
        self._find_publishers(NOT_FOUND, now)
        self._questions.settle(now=now)

    def _settle_subscribe(
        self, route: Route, waiting: Waiting[SubscribeReceived], now: float
    ) -> None:
        """Answer a SUBSCRIBE if it can be answered."""
        supply, peer = self.supply, waiting.peer
        if supply.upstream.is_established(peer) and (
            supply.upstream.is_forwarding(peer) or not waiting.wants_objects
        ):
            del self._subscribes[route]
            self._host.turns.forget(route)
            self._answer_subscribe(waiting, now)

    def _rendezvous_ms(self, now: float) -> int:
        """Return how long the most patient of those who wait does so."""
        deadlines = (waiting.deadline or now for waiting in self._subscribes.values())
        return max(0, round((max(deadlines, default=now) - now) * 1000))

    # Answering.

    def _answer_subscribe(self, waiting: Waiting[SubscribeReceived], now: float) -> None:
        peer, event = waiting.peer, waiting.event
        delivery = peer.responder.answer_subscribe(
            event, self.supply.store, now=now, on_gap=self.on_gap_of(peer)
        )
        self._host.metrics.fetches_served += len(delivery.fills)
        self._serve(peer, event.request_id, delivery)
        self.replay(waiting, now=now)

    def serve_fetch(self, question: Question, delivery: FetchDelivery) -> None:
        """Take over a FETCH that was answered."""
        self._serve(question.peer, question.event.request_id, delivery)

    def _serve(
        self, peer: Peer, request_id: RequestId, delivery: SubscriptionDelivery | FetchDelivery
    ) -> None:
        self._served[peer.route(request_id)] = _Served(peer, delivery)
        peer.wake()

    def replay(self, waiting: Waiting[Any], *, now: float) -> None:
        """Apply the updates that came before the answer."""
        for update in waiting.updates:
            self._receive(waiting.peer, update.request_id, update, now)

    def refuse(self, waiting: Waiting[Any], refusal: Refusal, *, now: float) -> None:
        """Answer a request that waits with REQUEST_ERROR."""
        request_id = waiting.event.request_id
        self._host.turns.forget(waiting.peer.route(request_id))
        self._host.refuse(waiting.peer, request_id, refusal, now=now)
        waiting.peer.forget(request_id)

    def on_gap_of(self, peer: Peer) -> OnGap:
        """Return who fills gaps of deliveries to a peer."""
        return partial(self._on_gap, peer)

    def _on_gap(self, peer: Peer, delivery: Delivery, start: Location, through: Location) -> None:
        """Have filled what a delivery stopped at."""
        delivery.on_stopped = partial(self._on_stopped, peer)
        self.supply.wait_for(delivery, start, through, asker=peer, now=peer.now)

    def _on_stopped(self, peer: Peer, delivery: Delivery, location: Location) -> None:
        self.supply.stopped(delivery, location, asker=peer, now=peer.now)

    # News from downstream.

    def _receive(self, peer: Peer, request_id: RequestId, event: Event, now: float) -> None:
        route = peer.route(request_id)
        waiting = self._subscribes.get(route) or self._questions.find(route)
        if isinstance(event, _LAST_WORDS):
            peer.forget(request_id)
            self._subscribes.pop(route, None)
            self._questions.remove(route)
            self._served.pop(route, None)
            self._published.discard(route)
            self._host.turns.forget(route)
            peer.responder.receive(RequestCancelled(request_id, 0), now=now)
            self._look_for_idle(now)
            self._pass_on(peer)
        elif waiting is not None and isinstance(event, UpdateReceived):
            waiting.updates.append(event)
        elif isinstance(event, GoawayReceived):
            self._let_go(route)
        elif waiting is None:
            fills = self._fills(route)
            peer.responder.receive(event, now=now)
            if isinstance(event, UpdateReceived):
                self._ask_new_group(event.parameters, now)
            self._host.metrics.fetches_served += len(self._fills(route) - fills)
            if self.wants_objects and self.supply.upstream.is_established(peer):
                self.supply.upstream.subscribe(peer, forward=True, now=now)
            peer.wake()

    def _let_go(self, route: Route) -> None:
        """End a subscription whose subscriber asks to move it, after what it is owed."""
        served = self._served.get(route)
        if served is not None and isinstance(served.delivery, SubscriptionDelivery):
            served.delivery.end(PublishDoneCode.GOING_AWAY)
            served.peer.wake()

    def _ask_new_group(self, parameters: Parameters, now: float) -> None:
        if parameters.new_group_request is not None:
            self.supply.upstream.new_groups.ask(parameters.new_group_request, now=now)

    def _fills(self, route: Route) -> set[FetchDelivery]:
        served = self._served.get(route)
        if served is None or not isinstance(served.delivery, SubscriptionDelivery):
            return set()
        return set(served.delivery.fills)

    def _expire(self, route: Route, now: float) -> None:
        """Refuse a SUBSCRIBE for which no publisher appeared in time."""
        waiting = self._subscribes.pop(route, None)
        if waiting is not None:
            self.refuse(waiting, NOBODY_CAME, now=now)
            self._look_for_idle(now)

    def _look_for_idle(self, now: float) -> None:
        """Unsubscribe upstream when nobody subscribes any more, a little later."""
        if self._is_unwanted():
            linger = self._host.limits.subscription_linger
            self._host.schedule(now + linger, self._unsubscribe)

    def _pass_on(self, gone: Peer) -> None:
        """Have others be charged for what one wants no longer who asked for it first."""
        if self.supply.upstream.is_charged_to(gone.id):
            self.supply.upstream.pass_on([peer.id for peer in self._askers()])

    def _unsubscribe(self, now: float) -> None:
        if self._is_unwanted():
            self.supply.upstream.unsubscribe(now=now)

    def _is_unwanted(self) -> bool:
        return not (self._subscribes or any(self.subscriptions()))

    # News from upstream (SupplyListener).

    def note_origin(self, fetch: FetchDelivery, origin: Origin) -> None:
        """Note where what a fetch lacks comes from; each counts once for each origin."""
        origins = self._origins.setdefault(fetch, set())
        if origin not in origins:
            origins.add(origin)
            if origin is Origin.PUBLISHER:
                self._host.metrics.cache_misses += 1
            else:
                self._host.metrics.disk_hits += 1

    def supply_changed(self, *, now: float) -> None:
        """Look at everything that waits again."""
        self.settle(now=now)

    def largest_notified(self, *, now: float) -> None:
        """Tell paused subscribers how far the Track is, soon and together."""
        if not self._is_notifying:
            self._is_notifying = True
            self._host.schedule(max(now, self._notified_at + _NOTIFY_INTERVAL), self._notify)

    def _notify(self, now: float) -> None:
        self._is_notifying = False
        self._notified_at = now
        state, is_told = Parameters(largest_object=self.supply.store.largest), True
        for route, (peer, delivery) in self._served.items():
            is_paused = isinstance(delivery, SubscriptionDelivery) and not delivery.terms.forward
            if not is_paused or delivery.finished or not peer.session.is_active(route.request_id):
                continue
            if peer.takes_offer(now=now):
                peer.offers.admit(1, now=now)
                peer.session.notify_state(route.request_id, state, now=now)
                peer.wake()
            else:
                is_told = False
        if not is_told:
            self.largest_notified(now=now)

    def supply_refused(self, peer: Peer, refusal: Refusal, *, now: float) -> None:
        """Note that a publisher refused, and ask others; else refuse in turn."""
        for waiting in self._subscribes.values():
            waiting.note_refusal(peer, refusal)
        self._find_publishers(refusal, now)

    def refused_in_haste(self, peer: Peer, *, now: float) -> None:
        """Note that a publisher had no room to wait in for another one, and ask it again later."""
        is_waited_for = any(waiting.is_refused for waiting in self._subscribes.values())
        if is_waited_for and peer.id not in self._asks_again:
            self._asks_again.add(peer.id)
            self._host.schedule(now + _ASK_AGAIN_INTERVAL, partial(self._ask_again, peer))

    def _ask_again(self, peer: Peer, now: float) -> None:
        self._asks_again.discard(peer.id)
        refused = [waiting for waiting in self._subscribes.values() if waiting.is_refused]
        if not refused or not peer.is_available:
            return
        if not peer.takes_repetition(refused[0].peer, now=now):
            self.refused_in_haste(peer, now=now)
            return
        self._return_to(peer, refused, now)

    def parent_trusts(self, parent: Peer, *, now: float) -> None:
        """Ask the parent again that refused: this relay has other tokens now."""
        refused = [waiting for waiting in self._subscribes.values() if parent in waiting.denied]
        if refused:
            self.supply.publishers.return_to(parent)
            self._return_to(parent, refused, now)

    def _return_to(
        self, peer: Peer, refused: Sequence[Waiting[SubscribeReceived]], now: float
    ) -> None:
        """Let those wait again that a peer refused, and ask it for them."""
        for waiting in refused:
            waiting.is_refused = False
            waiting.denied.discard(peer)
        self._find_publishers(NOT_FOUND, now)

    def _find_publishers(self, refusal: Refusal, now: float) -> None:
        """Subscribe for those who wait, or refuse them if there is nobody left to ask."""
        for route, waiting in tuple(self._subscribes.items()):
            self._find_publisher(route, waiting, refusal, now)

    def _find_publisher(
        self, route: Route, waiting: Waiting[SubscribeReceived], refusal: Refusal, now: float
    ) -> None:
        if waiting.is_refused or self.supply.upstream.subscribe(
            waiting.peer,
            waiting.denied,
            forward=waiting.wants_objects or self.wants_objects,
            rendezvous_ms=partial(self._rendezvous_ms, now),
            now=now,
        ):
            self._host.turns.forget(route)
            return
        if self.supply.switchover.is_waiting:
            # A publisher is being waited for already.
            return
        may_ask = partial(self._may_ask, waiting)
        if self._host.turns.wait(waiting, may_ask, self._take_turn, now=now):
            return
        publishers, denied = self.supply.publishers, waiting.denied
        if not may_ask() or publishers.are_asked_much(waiting.peer, denied, now):
            refusal = ASKED_MUCH
        refusal = waiting.told(refusal)
        may_appear = waiting.deadline is not None and waiting.deadline > now
        if may_appear and refusal.code == RequestErrorCode.DOES_NOT_EXIST:
            waiting.is_refused = True
        elif self._subscribes.pop(route, None) is not None:
            self.refuse(waiting, refusal, now=now)

    def _may_ask(self, waiting: Waiting[SubscribeReceived]) -> bool:
        """Tell whether others of its client are not all that is in the way of a SUBSCRIBE."""
        supply, peer = self.supply, waiting.peer
        lacks_room = supply.publishers.lack_room(peer, waiting.denied, Stay.STANDING)
        return supply.upstream.is_running(peer) or not lacks_room

    def _take_turn(self, route: Route, now: float) -> None:
        waiting = self._subscribes.get(route)
        if waiting is not None:
            self._find_publisher(route, waiting, NOT_FOUND, now)

    def supply_ended(self, code: PublishDoneCode, *, forced: bool, now: float) -> None:
        """End the subscriptions that no upstream subscription serves, or all, after what came."""
        for peer in self._served_peers():
            if forced or not self.supply.upstream.is_established(peer):
                peer.responder.end(self.supply.store, code, now=now)
                peer.wake()

    @property
    def is_subscribed(self) -> bool:
        """Whether a subscription runs."""
        return any(self.subscriptions())

    def seek_publisher(self, *, now: float) -> bool:
        """Subscribe for the running subscriptions; False if there is nobody for one of them."""
        refusing = self.supply.publishers.refusing(now)
        forward = self.wants_objects
        is_served = True
        for peer in self._subscribers():
            is_served &= self.supply.upstream.subscribe(
                peer, refusing, forward=forward, is_running=True, now=now
            )
        return is_served

    def only_subscriber(self) -> Peer | None:
        """Return whose subscriptions run, None if they are of several or of none."""
        subscribers = self._subscribers()
        return subscribers[0] if len(subscribers) == 1 else None

    def _subscribers(self) -> list[Peer]:
        peers = {
            peer.id: peer
            for peer, delivery in self._served.values()
            if isinstance(delivery, SubscriptionDelivery) and not delivery.finished
        }
        return list(peers.values())

    def supply_malformed(self, reason: str, *, now: float) -> None:
        """Note that the Track contradicts itself."""
        self._end(PublishDoneCode.MALFORMED_TRACK, reason, now=now)

    def probe_answered(self, probe: Probe, *, now: float) -> None:
        """Note that a publisher said how far the Track goes."""
        self._questions.probe_answered(probe)
        self.settle(now=now)

    def probe_refused(self, probe: Probe, refusal: Refusal, *, now: float) -> None:
        """Note that a publisher did not say more about the Track."""
        self._questions.probe_refused(probe, refusal, now=now)
        self._questions.settle(now=now)

    def leave(self, *, now: float) -> None:
        """End everything, since the relay is about to close."""
        for route, waiting in tuple(self._subscribes.items()):
            del self._subscribes[route]
            self.refuse(waiting, _LEAVING, now=now)
        self._questions.refuse_all(_LEAVING, now=now)
        self._end(PublishDoneCode.GOING_AWAY, "", now=now)

    def _end(self, code: PublishDoneCode, reason: str, *, now: float) -> None:
        """End everything that is served, at once."""
        for peer in self._served_peers():
            peer.responder.end(self.supply.store, code, reason, drain=False, now=now)
            peer.wake()

    def _served_peers(self) -> list[Peer]:
        return list({peer.id: peer for peer, _ in self._served.values()}.values())

    def sweep(self, *, now: float) -> None:
        """Forget requests that are over without a word of the session."""
        self.supply.stored.disk.note_change(now=now)
        for route, (peer, delivery) in tuple(self._served.items()):
            if delivery.finished and not peer.session.is_active(route.request_id):
                del self._served[route]
                self._published.discard(route)
                peer.forget(route.request_id)
                peer.responder.receive(RequestCancelled(route.request_id, 0), now=now)
        origins = self._origins.items()
        self._origins = {fetch: its for fetch, its in origins if not fetch.finished}
