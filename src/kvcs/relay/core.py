"""The relay without a socket: events of sessions in, commands to sessions out.

Theory of operation. `RelayCore` owns the peers, the namespaces, the cache and the Tracks.
Every event of every session enters through `receive`: events of a request that somebody
follows go there, new requests are checked (reserved namespace, authorization, limits, in
this order and before any look-up) and then handed to the Track or the namespaces. All of it
is synchronous, so that both filters of a SUBSCRIBE are resolved against one Largest Object.

Source: MOQT draft 22, Sections 4, 7 and 15.
"""

from collections.abc import Callable, Iterable
from functools import partial
from heapq import heappop, heappush
from typing import Final

from kvcs.errors import RequestErrorCode, TerminationCode
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import (
    Event,
    FetchReceived,
    GoawayReceived,
    PublishNamespaceReceived,
    PublishReceived,
    PublishSkippedReceived,
    RequestCancelled,
    RequestRejected,
    SessionClosed,
    SetupComplete,
    StateNotified,
    SubscribeNamespaceReceived,
    SubscribeReceived,
    SubscribeTracksReceived,
    TrackStatusReceived,
    Unheard,
    UpdateReceived,
    UpdateRejected,
)
from kvcs.moqt.session.partial import PartialBudget
from kvcs.moqt.track.subscription_delivery import SubscriptionDelivery
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.admission import Admission, NamespaceRequest, TrackRequest
from kvcs.relay.ancestry import RELAY_ID_BYTES
from kvcs.relay.auth import Access, Authorize
from kvcs.relay.cache import Cache
from kvcs.relay.circle import SECRET_BYTES
from kvcs.relay.complete import CompleteTracks, Tier
from kvcs.relay.config import RelayLimits
from kvcs.relay.discovery import Discovery
from kvcs.relay.disk.clock import DiskClock
from kvcs.relay.disk.config import DiskConfig
from kvcs.relay.disk.executor import DiskExecutor
from kvcs.relay.disk.operation import Contents
from kvcs.relay.disk.tier import DiskTier
from kvcs.relay.drain import Drain
from kvcs.relay.journal import Journal
from kvcs.relay.namespaces import (
    PeerId,
)
from kvcs.relay.parent_refusals import ParentRefusals
from kvcs.relay.peer import Link, Listener, Peer
from kvcs.relay.refusal import NOT_FOUND, UNINTERESTED, Refusal
from kvcs.relay.statistics import Metrics, RelayStatistics, frozen_counts
from kvcs.relay.track_room import TrackRoom
from kvcs.relay.track_table import TrackTable
from kvcs.relay.tracks import Track
from kvcs.relay.tree import Tree
from kvcs.relay.turns import Turns

__all__ = ("RelayCore",)

# When it goes off, in which order among those of one moment, and what it calls.
type _Alarm = tuple[float, int, Callable[[float], None]]

type _Unanswered = PublishSkippedReceived | StateNotified | Unheard
type _Counted = NamespaceRequest | TrackRequest | UpdateReceived | _Unanswered

_REJECTED: Final = (RequestRejected, UpdateRejected)
# What counts as a request for its rate, since others must be told of it.
_COUNTED: Final = (
    FetchReceived,
    PublishNamespaceReceived,
    PublishReceived,
    PublishSkippedReceived,
    StateNotified,
    SubscribeNamespaceReceived,
    SubscribeReceived,
    SubscribeTracksReceived,
    TrackStatusReceived,
    Unheard,
    UpdateReceived,
)

_RETRY_INTERVAL_MS: Final = 1000


class RelayCore:
    """All that a relay knows and decides.

    Attributes:
        cache: The Objects in memory.
        disk: The Objects on disk, once `open_disk` was called.
        partials: What all sessions hold of Objects that are not whole.
        limits: Bounds on what peers can make it hold.
        metrics: Counters.
        journal: What happens, for the log.
        admission: Who may do what.
        discovery: What is listed, and for whom.
        turns: Requests that wait until more may be asked for their clients.
        drain: The orderly end.
        tree: Where this relay stands among others.
    """

    def __init__(
        self,
        *,
        cache_bytes: int,
        authorize: Authorize,
        limits: RelayLimits,
        relay_id: bytes = bytes(RELAY_ID_BYTES),
        secret: bytes = bytes(SECRET_BYTES),
        on_deadline: Callable[[], None] | None = None,
    ) -> None:
        """Create a relay without peers.

        Args:
            cache_bytes: Octets that the cache may hold.
            authorize: Decides every request.
            limits: Bounds.
            relay_id: Id of this relay among others, different for every start.
            secret: By which it knows its own questions; the same, and told to nobody else.
            on_deadline: Called when `next_deadline` became earlier.
        """
        self.limits = limits
        self.metrics = Metrics()
        self.journal = Journal()
        self.parent_refusals = ParentRefusals(self.metrics)
        self.admission = Admission(self, authorize)
        self.tree = Tree(relay_id, secret, self)
        self.discovery = Discovery(self)
        self._complete = CompleteTracks(on_complete=self._gain_track, on_lost=self._lose_track)
        self.cache = Cache(
            cache_bytes,
            metrics=self.metrics,
            on_complete=partial(self._complete.add, Tier.MEMORY),
            on_lost=partial(self._complete.discard, Tier.MEMORY),
        )
        self.disk = DiskTier(
            metrics=self.metrics.disk, complete=self._complete, schedule=self.schedule
        )
        self.partials = PartialBudget(limits.max_partial_bytes)
        self.turns = Turns(self.schedule)
        self.drain = Drain(self)
        self._on_deadline = on_deadline
        self._peers: dict[PeerId, Peer] = {}
        self._tracks = TrackTable()
        self._published = TrackTable()
        self._room = TrackRoom(self, self._tracks, self._published)
        self._alarms: list[_Alarm] = []
        self._alarms_set = 0
        self._now = 0.0

    def __repr__(self) -> str:
        return f"<RelayCore peers={len(self._peers)} tracks={len(self._tracks)} {self.cache!r}>"

    def open_disk(
        self,
        executor: DiskExecutor,
        config: DiskConfig,
        contents: Contents,
        *,
        clock: DiskClock,
        now: float,
    ) -> None:
        """Use a disk from now on, and list what was found there; arguments as in `DiskTier`."""
        for namespace in self.disk.open(executor, config, contents, clock=clock, now=now):
            self.discovery.announce(self.discovery.namespaces.list_complete(namespace), now=now)

    # Sessions.

    def connect(self, link: Link, *, is_parent: bool = False) -> Peer:
        """Take a new session before its SETUP; its events go to `receive`.

        Args:
            link: The connection.
            is_parent: This relay dialled it to have a parent.
        """
        self.metrics.sessions_opened += 1
        peer_id = PeerId(self.metrics.sessions_opened)
        peer = Peer(peer_id, link, self.limits, is_parent=is_parent)
        link.session.share_partials(self.partials, link.wake)
        self.tree.begin(peer)
        self._peers[peer.id] = peer
        return peer

    def receive(self, peer: Peer, event: Event, *, now: float) -> None:
        """Take one event of a session."""
        self._now = now
        if isinstance(event, _REJECTED) and peer.is_parent:
            self.parent_refusals.note(peer, event, now=now)
        listener = peer.listener(getattr(event, "request_id", None))
        if isinstance(event, _COUNTED) and not peer.requests.admit(1, now=now):
            self._refuse_rate(peer, event, listener)
        elif isinstance(event, UpdateReceived) and (
            refusal := self.admission.update_refusal(peer, event, now=now)
        ):
            self._refuse_update(peer, event, listener, refusal)
        elif listener is not None:
            listener(event, now)
        else:
            self._receive_first(peer, event)

    def _receive_first(self, peer: Peer, event: Event) -> None:
        """Take an event that nobody follows: a request, or one about the session."""
        match event:
            case (
                PublishNamespaceReceived()
                | SubscribeNamespaceReceived()
                | SubscribeTracksReceived()
            ):
                if self.admission.admit(peer, event, now=self._now):
                    self.discovery.receive(peer, event, now=self._now)
            case SubscribeReceived() | FetchReceived() | TrackStatusReceived() | PublishReceived():
                self._receive_track_request(peer, event)
            case SetupComplete():
                peer.tokens = event.options.authorization_tokens
                self.journal.session_opened(peer, event.options.implementation)
                self.drain.ask(peer, now=self._now)
                self.tree.set_up(peer, event.options, now=self._now)
                if peer.is_relay and not peer.session.is_closed:
                    self.discovery.interest.attach(peer, now=self._now)
            case GoawayReceived(request_id=None):
                peer.going_away = True
            case SessionClosed():
                self._disconnect(peer, event)
            case _:
                # The rest of a request that we gave up while it was under way.
                pass

    def _refuse_rate(self, peer: Peer, event: _Counted, listener: Listener | None) -> None:
        """Refuse what comes faster than the limits allow, and close a session that goes on."""
        now = self._now
        if peer.requests.is_flooded:
            self.close_flood(peer, "requests", now=now)
            return
        if isinstance(event, PublishSkippedReceived | StateNotified | Unheard):
            return  # It has no answer, or has had one, and is not heard.
        refusal = Refusal(RequestErrorCode.EXCESSIVE_LOAD, "too many requests a second")
        if isinstance(event, UpdateReceived):
            self._refuse_update(peer, event, listener, refusal)
        else:
            self.refuse(peer, event.request_id, refusal, now=now)

    def close_flood(self, peer: Peer, what: str, *, now: float) -> None:
        """Close the session of a peer that goes on far beyond what it may do."""
        if peer.session.is_closed:
            return
        self.metrics.sessions_flooded += 1
        reason = f"excessive load: a flood of {what}"
        peer.session.close(TerminationCode.INTERNAL_ERROR, reason, now=now)
        peer.wake()

    def _refuse_update(
        self, peer: Peer, event: UpdateReceived, listener: Listener | None, refusal: Refusal
    ) -> None:
        """Refuse an update, and with it the request, also one that has no answer yet."""
        request_id, now = event.request_id, self._now
        if peer.session.is_unanswered(request_id):
            self.refuse(peer, request_id, refusal, now=now)
        elif peer.session.is_active(request_id):
            self.journal.request_refused(peer, peer.granted.get(request_id), refusal, now=now)
            peer.session.reject_update(request_id, refusal.code, refusal.reason, now=now)
            peer.wake()
        if listener is not None and not peer.session.is_active(request_id):
            listener(RequestCancelled(request_id, refusal.code), now)

    def _disconnect(self, peer: Peer, event: SessionClosed) -> None:
        self.metrics.sessions_closed += 1
        del self._peers[peer.id]
        self.drain.forget(peer)
        self.tree.end(peer, now=self._now)
        self.discovery.disconnect(peer, now=self._now)
        self._room.disconnect(peer)
        for request_id in peer.followed():
            listener = peer.listener(request_id)
            if listener is not None:
                listener(event, self._now)

    # The tree.

    @property
    def parent(self) -> Peer | None:
        """The relay above this one, which is asked for what nobody here publishes."""
        return self.tree.parent

    def uses(self, peer: Peer) -> bool:
        """Tell whether Objects are received from a peer, or sent to it."""
        tracks = self._tracks.values()
        return any(track.supply.uses(peer) or track.demand.serves(peer) for track in tracks)

    def parent_gained(self, parent: Peer, *, now: float) -> None:
        """Ask and tell a new parent what is to be asked and told."""
        self.parent_refusals.forget()
        self.discovery.upward.attach(parent, now=now)
        for track in tuple(self._tracks.values()):
            track.demand.publisher_appeared(parent, now=now)

    def tokens_replaced(self, *, now: float) -> None:
        """Ask the parent again for what it may have refused: it is shown other tokens now."""
        self.discovery.upward.renew(now=now)
        parent = self.parent
        if parent is not None:
            for track in tuple(self._tracks.values()):
                track.demand.parent_trusts(parent, now=now)

    def relay_authorized(self, relay: Peer, *, now: float) -> None:
        """Ask a relay for what it may publish now, and could not before."""
        self.discovery.interest.authorize(relay, now=now)

    def parent_lost(self, *, now: float) -> None:
        """Do without a parent."""
        self.discovery.upward.detach(now=now)

    # Time.

    @property
    def now(self) -> float:
        """When the event arrived that is being dealt with, in monotonic seconds."""
        return self._now

    def schedule(self, deadline: float, alarm: Callable[[float], None]) -> None:
        """Call `alarm` with the time when `deadline` has passed; it cannot be taken back."""
        self._alarms_set += 1
        is_earliest = not self._alarms or deadline < self._alarms[0][0]
        heappush(self._alarms, (deadline, self._alarms_set, alarm))
        if is_earliest and self._on_deadline is not None:
            self._on_deadline()

    def next_deadline(self) -> float | None:
        """Return when `advance` has something to do, in monotonic seconds."""
        deadlines = [self._alarms[0][0]] if self._alarms else []
        expiry = self.cache.next_deadline()
        return min([*deadlines, *([] if expiry is None else [expiry])], default=None)

    def advance(self, *, now: float) -> None:
        """Let time pass.

        An exception in an alarm leaves those behind it set, to go off the next time.
        """
        self._now = now
        self.cache.expire(now=now)
        # An alarm that is set again for now goes off the next time, or this might never end.
        last = self._alarms_set
        again: list[_Alarm] = []
        try:
            while self._alarms and self._alarms[0][0] <= now:
                entry = heappop(self._alarms)
                if entry[1] > last:
                    again.append(entry)
                else:
                    entry[2](now)
        finally:
            for entry in again:
                heappush(self._alarms, entry)

    # Requests.

    def publishers(self, namespace: TrackNamespace) -> list[Peer]:
        """Return the peers that advertise a namespace, the longest prefix first."""
        return self.discovery.publishers(namespace)

    def peer(self, peer_id: PeerId) -> Peer | None:
        """Return an open session."""
        return self._peers.get(peer_id)

    def peers(self) -> Iterable[Peer]:
        """Return the open sessions."""
        return self._peers.values()

    def track(self, name: FullTrackName) -> Track | None:
        """Return a Track with any state."""
        return self._tracks.get(name)

    def is_complete(self, name: FullTrackName) -> bool:
        """Tell whether every Object of a Track is held, in memory or on disk."""
        return name in self._complete

    def tracks(self) -> Iterable[Track]:
        """Return the Tracks with any state."""
        return self._tracks.values()

    def tracks_below(self, prefix: TrackNamespace) -> list[Track]:
        """Return the Tracks with any state in a namespace or below it."""
        return self._tracks.below(prefix)

    def published_below(self, prefix: TrackNamespace, *, at_most: int) -> list[Track]:
        """Return the Tracks below a prefix that somebody published with PUBLISH, or did once.

        Args:
            prefix: The prefix.
            at_most: Of more, one more is returned.
        """
        return self._published.below(prefix, at_most=at_most)

    def refuse(self, peer: Peer, request_id: RequestId, refusal: Refusal, *, now: float) -> None:
        """Answer a request of a peer with REQUEST_ERROR."""
        access = peer.granted.pop(request_id, None)
        if not peer.session.is_active(request_id):
            return
        self.journal.request_refused(peer, access, refusal, now=now)
        self.metrics.note_refusal(refusal.code)
        if access is not None and access.track_name is not None:
            # A Track that does not exist is none.
            name = FullTrackName(access.namespace, access.track_name)
            self.schedule(now, lambda _: self._room.release_unused(name))
        is_load = refusal.code is RequestErrorCode.EXCESSIVE_LOAD
        peer.session.reject(
            request_id,
            refusal.code,
            reason=refusal.reason,
            retry_interval_ms=_RETRY_INTERVAL_MS if is_load else None,
            redirect=refusal.redirect,
            now=now,
        )
        peer.wake()

    # Tracks.

    def _receive_track_request(self, peer: Peer, event: TrackRequest) -> None:
        if self.tree.closes_circle(event.track, now=self._now):
            self.refuse(peer, event.request_id, NOT_FOUND, now=self._now)
            return
        if not self.admission.admit(peer, event, now=self._now):
            return
        track = self._room.obtain(event.track, peer, now=self._now)
        if track is None:
            refusal = Refusal(RequestErrorCode.EXCESSIVE_LOAD, "too many tracks")
            self.refuse(peer, event.request_id, refusal, now=self._now)
            return
        self.cache.touch(track.name, now=self._now)
        self.disk.touch(track.name, now=self._now)
        match event:
            case SubscribeReceived():
                track.demand.subscribe(peer, event, now=self._now)
            case FetchReceived() | TrackStatusReceived():
                track.demand.ask(peer, event, now=self._now)
            case PublishReceived():
                self._receive_publish(peer, track, event)
        self._room.release(track)
        # It may have made room for itself while nobody used it yet.
        self.cache.recount(track.name, now=self._now)

    def _receive_publish(self, peer: Peer, track: Track, event: PublishReceived) -> None:
        now = self._now
        if self._published.get(track.name) is None:
            self._published.add(track)
        waiting = track.demand.awaiting
        if peer.is_relay and not self._takes_from_relay(peer, track, event):
            self.refuse(peer, event.request_id, UNINTERESTED, now=now)
        else:
            peer.session.accept(event.request_id, now=now)
            peer.wake()
            track.supply.upstream.publish(peer, event, now=now)
        self.discovery.offer(track, excluded={peer.id, *waiting}, now=now)

    def _takes_from_relay(self, peer: Peer, track: Track, event: PublishReceived) -> bool:
        """Tell whether a Track that another relay publishes is to come from there.

        Not what comes already: twice would double what crosses the link.
        """
        if track.supply.upstream.note_offer():
            return False
        return not track.demand.is_idle or self.discovery.is_wanted(
            track.name, event.properties, except_for=peer.id
        )

    def publish_ended(self, peer: Peer, access: Access, *, now: float) -> None:
        """Note that a PUBLISH of a peer is over that was allowed by `access`."""
        self.admission.review.withdrawn(peer, access, now=now)

    def track_forgotten(self, name: FullTrackName) -> None:
        """Remove a Track of which nothing is held, once whoever looks at it now is done."""
        self._room.note_forgotten(name, now=self._now)

    def _gain_track(self, namespace: TrackNamespace) -> None:
        changes = self.discovery.namespaces.track_completed(namespace)
        self.discovery.announce(changes, now=self._now)

    def _lose_track(self, namespace: TrackNamespace) -> None:
        changes = self.discovery.namespaces.track_lost(namespace)
        self.discovery.announce(changes, now=self._now)

    # Statistics.

    def statistics(self) -> RelayStatistics:
        """Return a copy of all counters."""
        metrics, disk, usage = self.metrics, self.metrics.disk, self.disk.usage()
        # There may be a hundred thousand Tracks, and far fewer that are served.
        deliveries = [d for peer in self._peers.values() for d in peer.deliveries]
        subscriptions = sum(isinstance(d, SubscriptionDelivery) for d in deliveries)
        return RelayStatistics(
            sessions=len(self._peers),
            sessions_opened=metrics.sessions_opened,
            sessions_flooded=metrics.sessions_flooded,
            namespaces=len(self.discovery.namespaces),
            tracks=len(self._tracks),
            subscriptions=subscriptions,
            fetches=len(deliveries) - subscriptions,
            objects_in=metrics.objects_in,
            bytes_in=metrics.bytes_in,
            bytes_out=metrics.bytes_out,
            objects_rejected=frozen_counts(metrics.objects_rejected),
            upstream_subscriptions=metrics.upstream_subscriptions,
            upstream_fetches=metrics.upstream_fetches,
            upstream_refused=frozen_counts(metrics.upstream_refused),
            cache_bytes=self.cache.size_bytes,
            cache_capacity_bytes=self.cache.capacity_bytes,
            cache_hits=metrics.fetches_served - metrics.cache_misses,
            cache_misses=metrics.cache_misses,
            disk_hits=metrics.disk_hits,
            evicted_bytes=frozen_counts(metrics.evicted_bytes),
            requests_not_found=metrics.requests_not_found,
            requests_refused=frozen_counts(metrics.requests_refused),
            grants_ended=frozen_counts(metrics.grants_ended),
            malformed_tracks=metrics.malformed_tracks,
            disk_bytes=usage.size_bytes,
            disk_capacity_bytes=usage.capacity_bytes,
            disk_tracks=usage.tracks,
            disk_complete_tracks=usage.complete_tracks,
            disk_queued_bytes=usage.queued_bytes,
            disk_writable=usage.writable,
            disk_objects_written=disk.objects_written,
            disk_bytes_written=disk.bytes_written,
            disk_objects_read=disk.objects_read,
            disk_bytes_read=disk.bytes_read,
            disk_objects_dropped=frozen_counts(disk.objects_dropped),
            disk_evicted_bytes=frozen_counts(disk.evicted_bytes),
            disk_failures=frozen_counts(disk.failures),
            partial_bytes=self.partials.size_bytes,
            partial_streams_refused=self.partials.streams_given_up,
        )
