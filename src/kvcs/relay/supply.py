"""What the publishers of one Track give: the upstream half of a Track in a relay.

Theory of operation. A `Supply` owns the store, the upstream subscriptions (one for each
publisher that advertised the namespace; KVCS has one) and the FETCHes under way. It asks
for no more than `demand` needs, and tells it when there is something new to look at. What
arrives goes into the store and is counted by the cache, which may drop something else.

What was held before a publisher contradicted itself stays; whom to ask next is up to
`Publishers`.

Source: MOQT draft 22, Sections 3.2.3, 7.1 to 7.6 and 12.1.
"""

from collections.abc import Callable, Collection
from typing import Final

from kvcs.errors import (
    LocalProtocolError,
    MalformedTrack,
    PublishDoneCode,
    RequestErrorCode,
    StreamResetCode,
)
from kvcs.moqt.codepoints import RangeMarker
from kvcs.moqt.session.events import (
    PublishReceived,
    RequestAccepted,
    RequestRejected,
    SubscribeAccepted,
)
from kvcs.moqt.track.delivery import Delivery
from kvcs.moqt.track.interval import MAX_POSITION, to_location, to_position
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.names import FullTrackName, Location
from kvcs.relay.ends import Ends
from kvcs.relay.gaps import Gaps
from kvcs.relay.host import Host, SupplyListener
from kvcs.relay.inquiries import Inquiries
from kvcs.relay.intake import Intake
from kvcs.relay.moves import Moves
from kvcs.relay.namespaces import PeerId
from kvcs.relay.new_groups import NewGroups
from kvcs.relay.peer import Peer
from kvcs.relay.publishers import Publishers
from kvcs.relay.refusal import NOT_FOUND, Refusal
from kvcs.relay.stored import Stored
from kvcs.relay.switchover import Backlog, Switchover
from kvcs.relay.upstream import SubscriptionWish, UpstreamState, UpstreamSubscription
from kvcs.relay.upstream_fetch import UpstreamFetch
from kvcs.relay.upstream_status import UpstreamStatus

__all__ = ("Supply",)

# How often gaps are looked at without news: what had arrived may have been dropped again,
# and a subscriber that has fallen behind may have taken what was fetched for it.
_RECHECK: Final = 0.25
# A publisher that lets subscriptions expire sooner has them renewed no more often than this.
_LEAST_RENEWAL: Final = 1.0
# Ends of an upstream subscription that are ends for everybody; all others concern our own.
_ENDED: Final = frozenset({PublishDoneCode.TRACK_ENDED, PublishDoneCode.MALFORMED_TRACK})
# Ends after which the same publisher may serve us again. That our token has expired is nothing
# to our subscribers: another one brings the subscription back.
_MAY_RETURN: Final = frozenset(
    {PublishDoneCode.GOING_AWAY, PublishDoneCode.TOO_FAR_BEHIND, PublishDoneCode.EXPIRED}
)


class Supply:
    """The publishers of one Track.

    Attributes:
        name: The Track.
        store: What is held and known of it.
        subscriptions: Upstream subscriptions that are not over.
        publishers: Who may be asked for more.
        intake: The way of what they send into the store.
        inquiries: What they are asked.
        gaps: What deliveries wait for.
        stored: What the disk has of the Track.
        switchover: What becomes of running subscriptions when a publisher is lost.
        new_groups: Groups that subscribers want publishers to begin.
    """

    def __init__(self, name: FullTrackName, host: Host, listener: SupplyListener) -> None:
        self.name = name
        self.store = TrackStore(name, properties=EMPTY_PROPERTIES, authoritative=False)
        self.subscriptions: list[UpstreamSubscription] = []
        self.publishers = Publishers(name.namespace, host, self.subscriptions)
        self.intake = Intake(
            self.store,
            host,
            lambda: self.stored.disk,
            is_distrusted=self.publishers.is_distrusted,
        )
        self.inquiries = Inquiries(
            self, self.publishers, host, may_ask_later=lambda: self.switchover.is_waiting
        )
        self.stored = Stored(
            self.store,
            host.cache,
            host.disk,
            is_wanted=lambda: not (self.is_idle and listener.is_idle),
            learn_properties=lambda properties, now: self.intake.learn_properties(
                properties, now=now
            ),
            look_again=self._look_again,
        )
        self.gaps = Gaps(
            self.store,
            self.subscriptions,
            self.inquiries,
            self.stored.disk,
            live_wait=host.limits.live_wait,
            stall_wait=host.limits.fill_timeout,
        )
        self.gaps.on_origin = listener.note_origin
        self._ends = Ends(
            self.store,
            self.gaps,
            self.stored.disk,
            ask=self.inquiries.ask,
            ask_status=lambda now: self.inquiries.ask_status(now=now),
        )
        self.new_groups = NewGroups(self.store, self.subscriptions)
        self._moves = Moves(host, self.publishers, self.subscriptions, self._subscribe_instead)
        self.switchover = Switchover(self, wait=host.limits.publisher_wait)
        self._host = host
        self._listener = listener
        self._alarm: float | None = None

    def __repr__(self) -> str:
        return f"<Supply {self.name} {self.subscriptions} {self.inquiries.fetches}>"

    @property
    def is_idle(self) -> bool:
        """Nothing is being received."""
        return not (self.subscriptions or self.inquiries.is_open)

    @property
    def holds_anything(self) -> bool:
        """Objects are held, in memory or on disk."""
        return bool(self.store.groups() or self.stored.disk.held)

    def uses(self, peer: Peer) -> bool:
        """Tell whether Objects are received from a publisher."""
        return any(r.peer is peer for r in (*self.subscriptions, *self.inquiries.fetches))

    def is_established(self, asker: Peer | None) -> bool:
        """Tell whether an upstream subscription that may serve `asker` is Established."""
        return any(s.state is UpstreamState.ESTABLISHED for s in self._serving(asker))

    def is_forwarding(self, asker: Peer | None) -> bool:
        """Tell whether Objects come as they are published, so that our Largest is current."""
        return any(s.is_forwarding for s in self._serving(asker))

    def _serving(self, asker: Peer | None) -> list[UpstreamSubscription]:
        return [s for s in self.subscriptions if s.peer.may_serve(asker)]

    def is_pushed_by_others(self, peer_id: PeerId) -> bool:
        """Tell whether a publisher other than this peer sent PUBLISH, and goes on."""
        return any(
            s.is_offered and s.peer.id != peer_id and s.state is UpstreamState.ESTABLISHED
            for s in self.subscriptions
        )

    def note_offer(self) -> bool:
        """Note a PUBLISH of what is received already; False if that is nothing."""
        for subscription in self.subscriptions:
            subscription.is_offered = True
        return bool(self.subscriptions)

    def resume(self, *, now: float) -> None:
        """Have all publishers forward."""
        for subscription in self.subscriptions:
            if subscription.state is UpstreamState.ESTABLISHED:
                subscription.resume(now=now)

    # Subscribing.

    def subscribe(
        self,
        asker: Peer | None,
        denied: Collection[Peer] = (),
        *,
        forward: bool,
        rendezvous_ms: Callable[[], int] = lambda: 0,
        now: float,
    ) -> bool:
        """See to it that there is an upstream subscription, forwarding if need be.

        Args:
            asker: For whose sake; None for nobody in particular.
            denied: Publishers that refused it.
            forward: Objects are wanted now.
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
        publishers = self.publishers.for_subscribe(asker, denied)
        if not publishers:
            return False
        wish = SubscriptionWish(
            forward=forward, rendezvous_ms=rendezvous_ms(), new_group=self.new_groups.take()
        )
        for peer in publishers:
            self._subscribe_to(peer, wish, now=now)
        return bool(self._serving(asker))

    def publisher_appeared(self, peer: Peer, *, forward: bool, now: float) -> None:
        """Subscribe at a new publisher too (Section 7.6)."""
        self.publishers.return_to(peer)
        if peer.is_parent and self.subscriptions:
            # A second subscription would double what crosses the link to the parent.
            return
        known = {subscription.peer.id for subscription in self.subscriptions}
        if peer.id not in known and not self.publishers.is_distrusted(peer):
            self._subscribe_to(peer, SubscriptionWish(forward=forward), now=now)

    def publish(self, peer: Peer, event: PublishReceived, *, now: float) -> None:
        """Take a PUBLISH that was accepted; what clients push warms the cache."""
        subscription = UpstreamSubscription.published(self, peer, event, now=now)
        self.subscriptions.append(subscription)
        if not self._learn_properties(peer, event.properties, now):
            return
        if self._listener.wants_objects or not peer.is_relay:
            subscription.resume(now=now)
        self._host.metrics.upstream_subscriptions += 1
        self._watch_join_group(subscription, now)
        self.switchover.established(now=now)
        self._look_again(now)

    def unsubscribe(self, *, now: float) -> None:
        """Cancel the subscriptions that we began, or asked a relay to begin."""
        for subscription in tuple(self.subscriptions):
            if not subscription.pushed or subscription.peer.is_relay:
                self.subscriptions.remove(subscription)
                subscription.cancel(StreamResetCode.CANCELLED, now=now)

    def dismiss(self, peer: Peer, *, now: float) -> None:
        """Take nothing more from a peer that may not advertise the namespace any longer."""
        for subscription in [s for s in self.subscriptions if s.peer is peer and not s.pushed]:
            subscription.cancel(StreamResetCode.EXPIRED_AUTH_TOKEN, now=now)
            self.subscription_ended(subscription, PublishDoneCode.EXPIRED, is_whole=False, now=now)
        self.inquiries.dismiss(peer, now=now)

    def _subscribe_to(
        self, peer: Peer, wish: SubscriptionWish, *, now: float
    ) -> UpstreamSubscription | None:
        try:
            subscription = UpstreamSubscription.subscribe(self, peer, wish, now=now)
        except LocalProtocolError:
            # The session takes no new requests; it is as good as gone.
            return None
        self.subscriptions.append(subscription)
        return subscription

    def _subscribe_instead(
        self, peer: Peer, old: UpstreamSubscription, now: float
    ) -> UpstreamSubscription | None:
        return self._subscribe_to(peer, SubscriptionWish(forward=old.forward), now=now)

    def sacrifice(self, group_id: int, *, now: float) -> None:
        """Stop fetching a Group, and what follows it, that nobody waits for right now."""
        for fetch in tuple(self.inquiries.fetches):
            is_ahead = fetch.end is not None and fetch.position >> 64 >= group_id
            is_ahead &= fetch.arriving is None
            if is_ahead and not self.gaps.is_awaited(fetch.position, fetch.through, now=now):
                self.inquiries.fetches.remove(fetch)
                fetch.cancel(StreamResetCode.CANCELLED, now=now)

    # News from publishers (SubscriptionSink, FetchSink, StatusSink).

    def stream_ended(self, *, now: float) -> None:
        """Note that a Subgroup stream of a publisher is over."""
        self._look_again(now)

    def mark_unknown(
        self, fetch: UpstreamFetch, start: int, through: int, marker: RangeMarker, *, now: float
    ) -> None:
        """Note that a FETCH does not say what is at those of these positions that it asks for."""
        self.gaps.mark_unknown(fetch, start, through, marker, now=now)

    def malformed(self, peer: Peer, error: MalformedTrack, *, now: float) -> None:
        """Contain a Track that contradicts itself."""
        if self.publishers.is_distrusted(peer):
            return
        self._host.metrics.malformed_tracks += 1
        # Text: an error would keep alive what it passed through, as long as the record.
        self._host.journal.track_malformed(peer, self.name, str(error))
        self.publishers.distrust(peer)
        for subscription in [s for s in self.subscriptions if s.peer is peer]:
            self.subscriptions.remove(subscription)
            subscription.cancel(StreamResetCode.MALFORMED_TRACK, now=now)
        for fetch in [f for f in self.inquiries.fetches if f.peer is peer]:
            self.inquiries.fetches.remove(fetch)
            fetch.cancel(StreamResetCode.MALFORMED_TRACK, now=now)
            refusal = Refusal(RequestErrorCode.MALFORMED_TRACK, str(error))
            self._listener.probe_refused(fetch, refusal, now=now)
        self._listener.supply_malformed(str(error), now=now)
        self._look_again(now)

    def subscription_established(
        self, subscription: UpstreamSubscription, properties: Properties, *, now: float
    ) -> None:
        """Note that a publisher accepted a subscription."""
        if not self._learn_properties(subscription.peer, properties, now):
            return
        self._host.metrics.upstream_subscriptions += 1
        self._watch_join_group(subscription, now)
        self._moves.established(subscription, now=now)
        self.switchover.established(now=now)
        self._look_again(now)

    def subscription_refused(
        self, subscription: UpstreamSubscription, rejection: RequestRejected, *, now: float
    ) -> None:
        """Note that a publisher refused a subscription."""
        self.subscriptions.remove(subscription)
        self._moves.ended(subscription)
        self._refused(subscription, Refusal.of(rejection), now)

    def subscription_resumed(self, *, now: float) -> None:
        """Note that a paused subscription forwards again."""
        self.switchover.established(now=now)
        self._look_again(now)

    def subscription_expires(
        self, subscription: UpstreamSubscription, lifetime: float, *, now: float
    ) -> None:
        """Renew a subscription when half of its time is over."""

        def renew(now: float) -> None:
            if subscription in self.subscriptions:
                subscription.renew(now=now)

        self._host.schedule(now + max(lifetime / 2, _LEAST_RENEWAL), renew)

    def state_notified(
        self, subscription: UpstreamSubscription, largest: Location | None, *, now: float
    ) -> None:
        """Note a PUBLISH_STATE_NOTIFY of a publisher."""
        before = self.store.largest
        self.intake.largest_advertised(largest)
        if self._listener.wants_objects:
            subscription.resume(now=now)
        if self.store.largest != before:
            self._listener.largest_notified(now=now)
        self._look_again(now)

    def subscription_leaving(self, subscription: UpstreamSubscription, *, now: float) -> None:
        """Note that a publisher asks for a subscription to be made anew."""
        self._moves.begin(subscription, now=now)

    def subscription_closing(self, subscription: UpstreamSubscription, *, now: float) -> None:
        """Note that a publisher opens no more streams on a subscription."""
        self._ends.close_join_group(subscription, now=now)

    def subscription_ended(
        self, subscription: UpstreamSubscription, code: int, *, is_whole: bool, now: float
    ) -> None:
        """Note that nothing more comes on a subscription."""
        self.subscriptions.remove(subscription)
        self._moves.ended(subscription)
        if subscription.was_established:
            journal, size_bytes = self._host.journal, self.store.size_bytes
            journal.track_ended(subscription.peer, self.name, code, size_bytes)
        if is_whole and code == PublishDoneCode.TRACK_ENDED and self.store.largest is not None:
            self._finish_track(subscription.peer, self.store.largest, now, assumed=True)
        self._host.cache.check_complete(self.name)
        if not subscription.was_established:
            self._refused(subscription, self._gone(subscription.peer), now)
        elif code in _ENDED:
            # Unless another subscription goes on, for those whom it may serve.
            self.switchover.ended(PublishDoneCode(code), now=now)
        else:
            may_return = subscription.peer.session.is_closed or code in _MAY_RETURN
            if not may_return:
                self.publishers.refuse(subscription.peer, now=now)
            self.switchover.begin(subscription, may_return=may_return, now=now)
        self._look_again(now)

    def fetch_answered(self, fetch: UpstreamFetch, properties: Properties, *, now: float) -> None:
        """Note that FETCH_OK arrived."""
        if not self._learn_properties(fetch.peer, properties, now) or fetch.end is None:
            return
        end = to_location(fetch.end)
        if fetch.end_of_track and not self._finish_track(fetch.peer, end, now):
            return
        # An End Location is never before the range, so that one at its first Location may
        # stand for a range that is empty; the stream will tell.
        if fetch.end > fetch.start or fetch.end_of_track or fetch.arriving is not None:
            self.store.raise_largest(end)
            self._listener.probe_answered(fetch, now=now)

    def fetch_began_object(self, fetch: UpstreamFetch, *, now: float) -> None:
        """Note that a FETCH brings an Object, so that its range is not empty."""
        start = fetch.start
        if fetch.end == start and not fetch.end_of_track:
            self.store.raise_largest(to_location(start))
            self._listener.probe_answered(fetch, now=now)

    def fetch_refused(
        self, fetch: UpstreamFetch, rejection: RequestRejected, *, now: float
    ) -> None:
        """Note that a FETCH was refused; nothing more comes of it."""
        self.inquiries.fetches.remove(fetch)
        self._listener.probe_refused(fetch, Refusal.of(rejection), now=now)
        if rejection.code == RequestErrorCode.EXCESSIVE_LOAD and rejection.retry_after:
            fetch.peer.busy_until = now + rejection.retry_after
            self.gaps.take_back(fetch, now=now)
        else:
            marker = RangeMarker.UNKNOWN
            self.gaps.mark_unknown(fetch, fetch.position, fetch.through, marker, now=now)
        self._look_again(now)

    def fetch_ended(self, fetch: UpstreamFetch, *, now: float) -> None:
        """Note that nothing more comes on a FETCH."""
        if fetch not in self.inquiries.fetches:
            # Its FETCH_OK, which came last, contradicted the Track.
            return
        self.inquiries.fetches.remove(fetch)
        if fetch.end is None:
            self._listener.probe_refused(fetch, self._gone(fetch.peer), now=now)
        else:
            start = to_location(fetch.start)
            if self.store.received_at(start.group_id, start.object_id) is not None:
                self.store.raise_largest(start)
            self._listener.probe_answered(fetch, now=now)
        for subscription in self.subscriptions:
            self._ends.close_join_group(subscription, now=now)
        self._host.cache.check_complete(self.name)
        self._look_again(now)
        self.switchover.fetched(now=now)
        if fetch.ids is not None:
            self._ends.note_filtered(fetch.start >> 64, fetch.through >> 64)
        elif not self.subscriptions:
            self._ends.seek_track_end(now=now)

    def status_answered(
        self,
        status: UpstreamStatus,
        answer: RequestAccepted | SubscribeAccepted | RequestRejected | None,
        *,
        now: float,
    ) -> None:
        """Note what a publisher said of the Track; None if the session ended before."""
        self.inquiries.statuses.remove(status)
        match answer:
            case RequestAccepted() | SubscribeAccepted():
                if not self._learn_properties(status.peer, answer.properties, now):
                    return
                self.intake.largest_advertised(answer.parameters.largest_object)
                self._listener.probe_answered(status, now=now)
                self._ends.status_answered(status, now=now)
            case RequestRejected():
                self._listener.probe_refused(status, Refusal.of(answer), now=now)
            case None:
                self._listener.probe_refused(status, self._gone(status.peer), now=now)
        self._look_again(now)

    def _gone(self, peer: Peer) -> Refusal:
        """Return the refusal of a request that a publisher left without an answer."""
        if peer in self.publishers.available(None):
            return Refusal(RequestErrorCode.INTERNAL_ERROR, "the publisher gave no answer")
        # For the subscriber it is as if there had been no publisher.
        return NOT_FOUND

    def _learn_properties(self, peer: Peer, properties: Properties, now: float) -> bool:
        """Keep the Track Properties of a publisher; False if there is no room for them."""
        if self.publishers.is_distrusted(peer):
            return True
        try:
            self.intake.learn_properties(properties, now=now)
        except MalformedTrack as error:
            self.malformed(peer, error, now=now)
            return False
        return True

    def _finish_track(
        self, peer: Peer, final: Location, now: float, *, assumed: bool = False
    ) -> bool:
        """Note where the Track ends; False if that contradicts what is known."""
        try:
            self.store.finish_track(final, assumed=assumed)
        except MalformedTrack as error:
            self.malformed(peer, error, now=now)
            return False
        return True

    def _watch_join_group(self, subscription: UpstreamSubscription, now: float) -> None:
        """Look from time to time whether the Group in which a subscription began is over."""

        def look(now: float) -> None:
            is_open = subscription in self.subscriptions
            if is_open and not self._ends.close_join_group(subscription, now=now):
                self._host.schedule(now + self._host.limits.live_wait, look)

        self._host.schedule(now + self._host.limits.live_wait, look)

    def _refused(self, subscription: UpstreamSubscription, refusal: Refusal, now: float) -> None:
        self.publishers.refuse(subscription.peer, now=now)
        self._listener.supply_refused(subscription.peer, refusal, now=now)
        self._look_again(now)

    def wait_for(
        self,
        owner: Delivery,
        start: Location,
        through: Location,
        *,
        asker: Peer | None,
        now: float,
    ) -> None:
        """Have a gap of a delivery filled, or the delivery told that it cannot be."""
        self.gaps.wait(owner, to_position(start), to_position(through), asker=asker, now=now)
        self._rearm(now)

    def stopped(self, owner: Delivery, location: Location, *, asker: Peer, now: float) -> None:
        """Note where inside a gap that it has reported a delivery stands."""
        self.gaps.stopped(owner, to_position(location), asker=asker, now=now)
        self._rearm(now)

    # What a switchover needs.

    def is_wanted(self) -> bool:
        """Tell whether a subscription runs."""
        return self._listener.is_subscribed

    def seek_publisher(self, *, now: float) -> bool:
        """Subscribe for the running subscriptions; False if there is nobody for one of them."""
        return self._listener.seek_publisher(now=now)

    def fetch_rest(self, start: int, *, now: float) -> bool:
        """Fetch from a position to the end, if that is not under way; False if nobody can."""
        if any(fetch.covers(start) for fetch in self.inquiries.fetches):
            return True
        first = to_location(start)
        ask = LocationFilter.absolute_start(first.group_id, first.object_id)
        asker = self._listener.only_subscriber()
        probe = self.inquiries.probe((start, MAX_POSITION), ask, asker=asker, now=now)
        return probe is not None

    def wait_for_backlog(self, backlog: Backlog, start: int, through: int, *, now: float) -> None:
        """Have a range filled for the running subscriptions."""
        self.gaps.wait(backlog, start, through, asker=self._listener.only_subscriber(), now=now)
        self._rearm(now)

    def end_subscriptions(self, code: PublishDoneCode, *, forced: bool = False, now: float) -> None:
        """End the subscriptions that no upstream subscription serves, or all, after what came."""
        self._listener.supply_ended(code, forced=forced, now=now)
        self._look_again(now)

    def schedule(self, deadline: float, alarm: Callable[[float], None]) -> None:
        """Call `alarm` with the time when `deadline` has passed."""
        self._host.schedule(deadline, alarm)

    def _look_again(self, now: float) -> None:
        self.gaps.reconsider(now=now)
        self._listener.supply_changed(now=now)
        self._rearm(now)
        self.stored.disk.note_change(now=now)

    def _rearm(self, now: float) -> None:
        """See to it that gaps are looked at when something is late, and now and then."""
        if not len(self.gaps):
            return
        recheck = now + _RECHECK
        deadline = min(self.gaps.next_deadline(now=now) or recheck, recheck)
        if self._alarm is None or deadline < self._alarm:
            self._alarm = deadline
            self._host.schedule(deadline, self._ring)

    def _ring(self, now: float) -> None:
        if self._alarm is not None and now >= self._alarm:
            self._alarm = None
            self.gaps.look_back(now=now)
            self._rearm(now)
