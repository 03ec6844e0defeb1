"""What the publishers of one Track give: the upstream half of a Track in a relay.

Theory of operation. A `Supply` owns the store, the upstream subscriptions, which
`UpstreamSubscriptions` begins and keeps, and the FETCHes under way, of which it takes the
answers. It asks for no more than `demand` needs, and tells it when there is something new to look
at. What arrives goes into the store and is counted by the cache, which may drop something else.

What was held before a publisher contradicted itself stays; whom to ask next is up to
`Publishers`.

Source: MOQT draft 22, Sections 3.2.3, 7.1 to 7.6 and 12.1.
"""

from collections.abc import Callable
from typing import Final

from kvcs.errors import (
    MalformedTrack,
    PublishDoneCode,
    RequestErrorCode,
    StreamResetCode,
)
from kvcs.moqt.codepoints import RangeMarker
from kvcs.moqt.session.events import (
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
from kvcs.relay.peer import Peer
from kvcs.relay.publishers import Publishers
from kvcs.relay.refusal import Refusal
from kvcs.relay.stored import Stored
from kvcs.relay.switchover import Backlog, Switchover
from kvcs.relay.upstream import UpstreamSubscription
from kvcs.relay.upstream_fetch import UpstreamFetch
from kvcs.relay.upstream_status import UpstreamStatus
from kvcs.relay.upstream_subscriptions import UpstreamSubscriptions

__all__ = ("Supply",)

# How often gaps are looked at without news: what had arrived may have been dropped again,
# and a subscriber that has fallen behind may have taken what was fetched for it.
_RECHECK: Final = 0.25


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
        ends: What is still to be learned about the ends of Groups and of the Track.
        upstream: Begins and keeps the subscriptions.
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
            look_again=lambda now: self.look_again(now=now),
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
        self.ends = Ends(
            self.store,
            self.gaps,
            self.stored.disk,
            ask=self.inquiries.ask,
            ask_status=lambda now: self.inquiries.ask_status(now=now),
        )
        self.upstream = UpstreamSubscriptions(self, self.subscriptions, host, listener)
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

    def dismiss(self, peer: Peer, *, now: float) -> None:
        """Take nothing more from a peer that may not advertise the namespace any longer."""
        self.upstream.dismiss(peer, now=now)
        self.inquiries.dismiss(peer, now=now)

    def sacrifice(self, group_id: int, *, now: float) -> None:
        """Stop fetching a Group, and what follows it, that nobody waits for right now."""
        for fetch in tuple(self.inquiries.fetches):
            is_ahead = fetch.end is not None and fetch.position >> 64 >= group_id
            is_ahead &= fetch.arriving is None
            if is_ahead and not self.gaps.is_awaited(fetch.position, fetch.through, now=now):
                self.inquiries.fetches.remove(fetch)
                fetch.cancel(StreamResetCode.CANCELLED, now=now)

    # News from publishers (FetchSink, StatusSink).

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
        self.upstream.distrust(peer, now=now)
        for fetch in [f for f in self.inquiries.fetches if f.peer is peer]:
            self.inquiries.fetches.remove(fetch)
            fetch.cancel(StreamResetCode.MALFORMED_TRACK, now=now)
            refusal = Refusal(RequestErrorCode.MALFORMED_TRACK, str(error))
            self._listener.probe_refused(fetch, refusal, now=now)
        self._listener.supply_malformed(str(error), now=now)
        self.look_again(now=now)

    def fetch_answered(self, fetch: UpstreamFetch, properties: Properties, *, now: float) -> None:
        """Note that FETCH_OK arrived."""
        if not self.learn_properties(fetch.peer, properties, now=now) or fetch.end is None:
            return
        end = to_location(fetch.end)
        if fetch.end_of_track and not self.finish_track(fetch.peer, end, now=now):
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
        refusal = Refusal.of(rejection, is_parent=fetch.peer.is_parent)
        self._listener.probe_refused(fetch, refusal, now=now)
        if rejection.code == RequestErrorCode.EXCESSIVE_LOAD and rejection.retry_after:
            fetch.peer.busy_until = now + rejection.retry_after
            self.gaps.take_back(fetch, now=now)
        else:
            marker = RangeMarker.UNKNOWN
            self.gaps.mark_unknown(fetch, fetch.position, fetch.through, marker, now=now)
        self.look_again(now=now)

    def fetch_ended(self, fetch: UpstreamFetch, *, now: float) -> None:
        """Note that nothing more comes on a FETCH."""
        if fetch not in self.inquiries.fetches:
            # Its FETCH_OK, which came last, contradicted the Track.
            return
        self.inquiries.fetches.remove(fetch)
        if fetch.end is None:
            self._listener.probe_refused(fetch, self.publishers.unanswered(fetch.peer), now=now)
        else:
            start = to_location(fetch.start)
            if self.store.received_at(start.group_id, start.object_id) is not None:
                self.store.raise_largest(start)
            self._listener.probe_answered(fetch, now=now)
        for subscription in self.subscriptions:
            self.ends.close_join_group(subscription, now=now)
        self._host.cache.check_complete(self.name)
        self.look_again(now=now)
        self.switchover.fetched(now=now)
        if fetch.ids is not None:
            self.ends.note_filtered(fetch.start >> 64, fetch.through >> 64)
        elif not self.subscriptions:
            self.ends.seek_track_end(now=now)

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
                if not self.learn_properties(status.peer, answer.properties, now=now):
                    return
                self.intake.largest_advertised(answer.parameters.largest_object)
                self._listener.probe_answered(status, now=now)
                self.ends.status_answered(status, now=now)
            case RequestRejected():
                refusal = Refusal.of(answer, is_parent=status.peer.is_parent)
                self._listener.probe_refused(status, refusal, now=now)
            case None:
                refusal = self.publishers.unanswered(status.peer)
                self._listener.probe_refused(status, refusal, now=now)
        self.look_again(now=now)

    def learn_properties(self, peer: Peer, properties: Properties, *, now: float) -> bool:
        """Keep the Track Properties of a publisher; False if there is no room for them."""
        if self.publishers.is_distrusted(peer):
            return True
        try:
            self.intake.learn_properties(properties, now=now)
        except MalformedTrack as error:
            self.malformed(peer, error, now=now)
            return False
        return True

    def finish_track(
        self, peer: Peer, final: Location, *, assumed: bool = False, now: float
    ) -> bool:
        """Note where the Track ends; False if that contradicts what is known."""
        try:
            self.store.finish_track(final, assumed=assumed)
        except MalformedTrack as error:
            self.malformed(peer, error, now=now)
            return False
        return True

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
        self.look_again(now=now)

    def schedule(self, deadline: float, alarm: Callable[[float], None]) -> None:
        """Call `alarm` with the time when `deadline` has passed."""
        self._host.schedule(deadline, alarm)

    def look_again(self, *, now: float) -> None:
        """Look at everything that waits again: there may be news for it."""
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
