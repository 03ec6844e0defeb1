"""The subscriptions of a relay to the publishers of one Track: begun, renewed, moved, ended.

Theory of operation. An `UpstreamSubscriptions` belongs to one `Supply` and takes the news of its
subscriptions (`SubscriptionSink`). There is one for each publisher that advertised the namespace,
or pushes the Track, and one only to a parent; KVCS has one publisher. They are begun when
somebody here subscribes, forward when somebody wants Objects, and are over when the publisher says
so or, a while later, when nobody subscribes any more. What becomes of the subscribers when one
ends before the Track does is up to `Switchover`.

Source: MOQT draft 22, Sections 3.1, 7.1 and 7.4 to 7.6.
"""

from collections.abc import Callable, Collection
from typing import Final, Protocol

from kvcs.errors import LocalProtocolError, MalformedTrack, PublishDoneCode, StreamResetCode
from kvcs.moqt.session.events import PublishReceived, RequestRejected
from kvcs.moqt.wire.properties import Properties
from kvcs.names import Location
from kvcs.relay.asker_shares import Stay
from kvcs.relay.auth import Access
from kvcs.relay.ends import Ends
from kvcs.relay.host import Host, SupplyListener
from kvcs.relay.intake import Intake
from kvcs.relay.moves import Moves
from kvcs.relay.namespaces import PeerId
from kvcs.relay.new_groups import NewGroups
from kvcs.relay.peer import Peer
from kvcs.relay.publishers import Publishers
from kvcs.relay.refusal import Refusal
from kvcs.relay.switchover import Switchover
from kvcs.relay.upstream import SubscriptionWish, UpstreamState, UpstreamSubscription

__all__ = ("UpstreamSubscriptions",)

# A publisher that lets subscriptions expire sooner has them renewed no more often than this.
_LEAST_RENEWAL: Final = 1.0
# Ends of an upstream subscription that are ends for everybody; all others concern our own.
_ENDED: Final = frozenset({PublishDoneCode.TRACK_ENDED, PublishDoneCode.MALFORMED_TRACK})
# Ends after which the same publisher may serve us again. That our token has expired is nothing
# to our subscribers: another one brings the subscription back.
_MAY_RETURN: Final = frozenset(
    {PublishDoneCode.GOING_AWAY, PublishDoneCode.TOO_FAR_BEHIND, PublishDoneCode.EXPIRED}
)


class _Supply(Protocol):
    """What subscriptions need of the publishers of their Track."""

    @property
    def intake(self) -> Intake:
        """The way of what arrives into the store."""
        ...

    @property
    def publishers(self) -> Publishers:
        """Who can be subscribed to."""
        ...

    @property
    def switchover(self) -> Switchover:
        """What becomes of running subscriptions when a publisher is lost."""
        ...

    @property
    def ends(self) -> Ends:
        """What is still to be learned about the ends of Groups."""
        ...

    def malformed(self, peer: Peer, error: MalformedTrack, *, now: float) -> None:
        """Contain a Track that contradicts itself."""
        ...

    def learn_properties(self, peer: Peer, properties: Properties, *, now: float) -> bool:
        """Keep the Track Properties of a publisher; False if there is no room for them."""
        ...

    def finish_track(
        self, peer: Peer, final: Location, *, assumed: bool = False, now: float
    ) -> bool:
        """Note where the Track ends; False if that contradicts what is known."""
        ...

    def look_again(self, *, now: float) -> None:
        """Look at everything that waits again."""
        ...


class UpstreamSubscriptions:
    """The subscriptions to one Track.

    Attributes:
        intake: The way of what arrives into the store.
        new_groups: Groups that subscribers want publishers to begin.
    """

    __slots__ = ("_host", "_listener", "_moves", "_running", "_supply", "intake", "new_groups")

    def __init__(
        self,
        supply: _Supply,
        running: list[UpstreamSubscription],
        host: Host,
        listener: SupplyListener,
    ) -> None:
        """Have none yet.

        Args:
            supply: The publishers of the Track.
            running: Holds those that are not over; others may look at it.
            host: The relay.
            listener: Who wants the Track.
        """
        self.intake = supply.intake
        self._supply = supply
        self._running = running
        self._host = host
        self._listener = listener
        self._moves = Moves(host, supply.publishers, running, self._subscribe_instead)
        self.new_groups = NewGroups(self.intake.store, running)

    def __repr__(self) -> str:
        return f"<UpstreamSubscriptions {self._running}>"

    def is_established(self, asker: Peer | None) -> bool:
        """Tell whether an upstream subscription that may serve `asker` is Established."""
        return any(s.state is UpstreamState.ESTABLISHED for s in self._serving(asker))

    def is_running(self, asker: Peer | None) -> bool:
        """Tell whether there is an upstream subscription that may serve `asker`, or will be."""
        return bool(self._serving(asker))

    def is_forwarding(self, asker: Peer | None) -> bool:
        """Tell whether Objects come as they are published, so that our Largest is current."""
        return any(s.is_forwarding for s in self._serving(asker))

    def _serving(self, asker: Peer | None) -> list[UpstreamSubscription]:
        return [s for s in self._running if s.peer.may_serve(asker)]

    def is_pushed_by_others(self, peer_id: PeerId) -> bool:
        """Tell whether a publisher other than this peer sent PUBLISH, and goes on."""
        return any(
            s.is_offered and s.peer.id != peer_id and s.state is UpstreamState.ESTABLISHED
            for s in self._running
        )

    def note_offer(self) -> bool:
        """Note a PUBLISH of what is received already; False if that is nothing."""
        for subscription in self._running:
            subscription.is_offered = True
        return bool(self._running)

    def resume(self, *, now: float) -> None:
        """Have all publishers forward."""
        for subscription in self._running:
            if subscription.state is UpstreamState.ESTABLISHED:
                subscription.resume(now=now)

    # Subscribing.

    def subscribe(
        self,
        asker: Peer | None,
        denied: Collection[Peer] = (),
        *,
        forward: bool,
        is_running: bool = False,
        rendezvous_ms: Callable[[], int] = lambda: 0,
        now: float,
    ) -> bool:
        """See to it that there is an upstream subscription, forwarding if need be.

        Args:
            asker: For whose sake; None for nobody in particular.
            denied: Publishers that refused it.
            forward: Objects are wanted now.
            is_running: It is for subscriptions that run, which no share is to end.
            rendezvous_ms: Tells how long a publisher may wait for another one to appear; called
                only if one is asked, since it looks at all who wait.
            now: Monotonic seconds.

        Returns:
            False if there is nobody to subscribe to.
        """
        serving = self._serving(asker)
        established = [s for s in serving if s.state is UpstreamState.ESTABLISHED]
        if established:
            for subscription in established if forward else ():
                subscription.resume(now=now)
            return True
        if serving:
            # One is Pending, or about to be over; either way there will be news.
            return True
        publishers = [
            peer
            for peer in self._supply.publishers.for_subscribe(asker, denied)
            if is_running or peer.has_room_for(asker, Stay.STANDING)
        ]
        if not publishers:
            return False
        wish = SubscriptionWish(
            asker=asker,
            is_running=is_running,
            forward=forward,
            rendezvous_ms=rendezvous_ms(),
            new_group=self.new_groups.take(),
        )
        for peer in publishers:
            self._subscribe_to(peer, wish, now=now)
        return bool(self._serving(asker))

    def publisher_appeared(self, peer: Peer, wish: SubscriptionWish, *, now: float) -> None:
        """Subscribe at a new publisher too (Section 7.6)."""
        self._supply.publishers.return_to(peer)
        if peer.is_parent and self._running:
            # A second subscription would double what crosses the link to the parent.
            return
        known = {subscription.peer.id for subscription in self._running}
        if peer.id not in known and not self._supply.publishers.is_distrusted(peer):
            self._subscribe_to(peer, wish, now=now)

    def publish(self, peer: Peer, event: PublishReceived, *, now: float) -> None:
        """Take a PUBLISH that was accepted; what clients push warms the cache."""
        subscription = UpstreamSubscription.published(self, peer, event, now=now)
        self._running.append(subscription)
        if not self._supply.learn_properties(peer, event.properties, now=now):
            return
        if self._listener.wants_objects or not peer.is_relay:
            subscription.resume(now=now)
        self._host.metrics.upstream_subscriptions += 1
        self._watch_join_group(subscription, now)
        self._supply.switchover.established(now=now)
        self._supply.look_again(now=now)

    def unsubscribe(self, *, now: float) -> None:
        """Cancel the subscriptions that we began, or asked a relay to begin."""
        for subscription in tuple(self._running):
            if not subscription.pushed or subscription.peer.is_relay:
                self._running.remove(subscription)
                subscription.cancel(StreamResetCode.CANCELLED, now=now)

    def distrust(self, peer: Peer, *, now: float) -> None:
        """End all that comes from a peer whose Track contradicts itself."""
        for subscription in [s for s in self._running if s.peer is peer]:
            self._running.remove(subscription)
            subscription.cancel(StreamResetCode.MALFORMED_TRACK, now=now)

    def dismiss(self, peer: Peer, *, now: float) -> None:
        """Take nothing more from a peer that may not advertise the namespace any longer."""
        for subscription in [s for s in self._running if s.peer is peer and not s.pushed]:
            subscription.cancel(StreamResetCode.EXPIRED_AUTH_TOKEN, now=now)
            self.subscription_ended(subscription, PublishDoneCode.EXPIRED, is_whole=False, now=now)

    def _subscribe_to(
        self, peer: Peer, wish: SubscriptionWish, *, now: float
    ) -> UpstreamSubscription | None:
        try:
            subscription = UpstreamSubscription.subscribe(self, peer, wish, now=now)
        except LocalProtocolError:
            # The session takes no new requests; it is as good as gone.
            return None
        self._running.append(subscription)
        return subscription

    def _subscribe_instead(
        self, peer: Peer, old: UpstreamSubscription, now: float
    ) -> UpstreamSubscription | None:
        wish = SubscriptionWish(asker=None, forward=old.forward)
        successor = self._subscribe_to(peer, wish, now=now)
        asker = old.peer.shares.asker(old.request_id)
        if successor is not None and asker is not None:
            peer.shares.charge(successor.request_id, asker, Stay.STANDING)
        return successor

    def is_charged_to(self, asker: PeerId) -> bool:
        """Tell whether a subscription is for the sake of a session."""
        return any(s.peer.shares.asker(s.request_id) == asker for s in self._running)

    def pass_on(self, wanting: Collection[PeerId]) -> None:
        """Have those be charged for the subscriptions who want the Track still."""
        for subscription in self._running:
            subscription.peer.shares.pass_on(subscription.request_id, wanting)

    # News from publishers (SubscriptionSink).

    def malformed(self, peer: Peer, error: MalformedTrack, *, now: float) -> None:
        """Contain a Track that contradicts itself."""
        self._supply.malformed(peer, error, now=now)

    def stream_ended(self, *, now: float) -> None:
        """Note that a Subgroup stream of a publisher is over."""
        self._supply.look_again(now=now)

    def subscription_established(
        self, subscription: UpstreamSubscription, properties: Properties, *, now: float
    ) -> None:
        """Note that a publisher accepted a subscription."""
        if not self._supply.learn_properties(subscription.peer, properties, now=now):
            return
        self._host.metrics.upstream_subscriptions += 1
        self._watch_join_group(subscription, now)
        self._moves.established(subscription, now=now)
        self._supply.switchover.established(now=now)
        self._supply.look_again(now=now)

    def subscription_refused(
        self, subscription: UpstreamSubscription, rejection: RequestRejected, *, now: float
    ) -> None:
        """Note that a publisher refused a subscription."""
        self._running.remove(subscription)
        self._moves.ended(subscription)
        refusal = Refusal.of(rejection, is_parent=subscription.peer.is_parent)
        self._refused(subscription, refusal, now)
        if subscription.is_hasty:
            self._listener.refused_in_haste(subscription.peer, now=now)

    def subscription_resumed(self, *, now: float) -> None:
        """Note that a paused subscription forwards again."""
        self._supply.switchover.established(now=now)
        self._supply.look_again(now=now)

    def subscription_expires(
        self, subscription: UpstreamSubscription, lifetime: float, *, now: float
    ) -> None:
        """Renew a subscription when half of its time is over."""

        def renew(now: float) -> None:
            if subscription in self._running:
                subscription.renew(now=now)

        self._host.schedule(now + max(lifetime / 2, _LEAST_RENEWAL), renew)

    def state_notified(
        self, subscription: UpstreamSubscription, largest: Location | None, *, now: float
    ) -> None:
        """Note a PUBLISH_STATE_NOTIFY of a publisher."""
        store = self.intake.store
        before = store.largest
        self.intake.largest_advertised(largest)
        if self._listener.wants_objects:
            subscription.resume(now=now)
        if store.largest != before:
            self._listener.largest_notified(now=now)
        self._supply.look_again(now=now)

    def subscription_leaving(self, subscription: UpstreamSubscription, *, now: float) -> None:
        """Note that a publisher asks for a subscription to be made anew."""
        self._moves.begin(subscription, now=now)

    def subscription_closing(self, subscription: UpstreamSubscription, *, now: float) -> None:
        """Note that a publisher opens no more streams on a subscription."""
        self._supply.ends.close_join_group(subscription, now=now)

    def publish_ended(self, peer: Peer, access: Access, *, now: float) -> None:
        """Note that a PUBLISH is over that was allowed by `access`, before its subscription is."""
        self._host.schedule(now, lambda now: self._host.publish_ended(peer, access, now=now))

    def subscription_ended(
        self, subscription: UpstreamSubscription, code: int, *, is_whole: bool, now: float
    ) -> None:
        """Note that nothing more comes on a subscription."""
        name, store = self.intake.name, self.intake.store
        self._running.remove(subscription)
        self._moves.ended(subscription)
        if subscription.was_established:
            self._host.journal.track_ended(subscription.peer, name, code, store.size_bytes)
        if is_whole and code == PublishDoneCode.TRACK_ENDED and store.largest is not None:
            self._supply.finish_track(subscription.peer, store.largest, assumed=True, now=now)
        self._host.cache.check_complete(name)
        if not subscription.was_established:
            self._refused(subscription, self._supply.publishers.unanswered(subscription.peer), now)
        elif code in _ENDED:
            # Unless another subscription goes on, for those whom it may serve.
            self._supply.switchover.ended(PublishDoneCode(code), now=now)
        else:
            may_return = subscription.peer.session.is_closed or code in _MAY_RETURN
            if not may_return:
                self._supply.publishers.refuse(subscription.peer, now=now)
            self._supply.switchover.begin(subscription, may_return=may_return, now=now)
        self._supply.look_again(now=now)

    def _watch_join_group(self, subscription: UpstreamSubscription, now: float) -> None:
        """Look from time to time whether the Group in which a subscription began is over."""

        def look(now: float) -> None:
            is_open = subscription in self._running
            if is_open and not self._supply.ends.close_join_group(subscription, now=now):
                self._host.schedule(now + self._host.limits.live_wait, look)

        self._host.schedule(now + self._host.limits.live_wait, look)

    def _refused(self, subscription: UpstreamSubscription, refusal: Refusal, now: float) -> None:
        self._supply.publishers.refuse(subscription.peer, now=now)
        self._listener.supply_refused(subscription.peer, refusal, now=now)
        self._supply.look_again(now=now)
