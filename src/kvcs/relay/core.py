"""The relay without a socket: events of sessions in, commands to sessions out.

Theory of operation. `RelayCore` owns the peers, the namespaces, the cache and the Tracks.
Every event of every session enters through `receive`: events of a request that somebody
follows go there, new requests are checked (reserved namespace, authorization, limits, in
this order and before any look-up) and then handed to the Track or the namespaces. All of it
is synchronous, so that both filters of a SUBSCRIBE are resolved against one Largest Object.

Source: MOQT draft 22, Sections 4, 7 and 15.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from typing import Final

from kvcs.errors import RequestErrorCode
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import (
    Event,
    FetchReceived,
    GoawayReceived,
    PublishNamespaceReceived,
    PublishReceived,
    SessionClosed,
    SetupComplete,
    SubscribeNamespaceReceived,
    SubscribeReceived,
    SubscribeTracksReceived,
    TrackStatusReceived,
    UpdateReceived,
)
from kvcs.moqt.track.subscription_delivery import SubscriptionDelivery
from kvcs.moqt.wire.filters import matches_track
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.auth import Access, AccessAction, Authorize
from kvcs.relay.cache import Cache
from kvcs.relay.config import RelayLimits
from kvcs.relay.namespaces import (
    Change,
    Namespaces,
    PeerId,
    PrefixRefused,
    PrefixTable,
    Route,
    reserved_code,
)
from kvcs.relay.peer import Link, Peer
from kvcs.relay.statistics import Metrics, RelayStatistics, frozen_counts
from kvcs.relay.tracks import Track

__all__ = ("RelayCore",)

type _NamespaceRequest = (
    PublishNamespaceReceived | SubscribeNamespaceReceived | SubscribeTracksReceived
)
type _TrackRequest = SubscribeReceived | FetchReceived | TrackStatusReceived | PublishReceived

_ACTIONS: Final[dict[type[Event], AccessAction]] = {
    PublishNamespaceReceived: AccessAction.PUBLISH_NAMESPACE,
    SubscribeNamespaceReceived: AccessAction.SUBSCRIBE_NAMESPACE,
    SubscribeTracksReceived: AccessAction.SUBSCRIBE_TRACKS,
    PublishReceived: AccessAction.PUBLISH,
    SubscribeReceived: AccessAction.SUBSCRIBE,
    FetchReceived: AccessAction.FETCH,
    TrackStatusReceived: AccessAction.TRACK_STATUS,
}

_RETRY_INTERVAL_MS: Final = 1000
_SWEEP_INTERVAL: Final = 60.0


class RelayCore:
    """All that a relay knows and decides.

    Attributes:
        cache: The Objects.
        limits: Bounds on what peers can make it hold.
        metrics: Counters.
        namespaces: What is listed, and for whom.
    """

    def __init__(
        self,
        *,
        cache_bytes: int,
        authorize: Authorize,
        limits: RelayLimits,
        on_deadline: Callable[[], None] | None = None,
    ) -> None:
        """Create a relay without peers.

        Args:
            cache_bytes: Octets that the cache may hold.
            authorize: Decides every request.
            limits: Bounds.
            on_deadline: Called when `next_deadline` became earlier.
        """
        self.limits = limits
        self.metrics = Metrics()
        self.namespaces = Namespaces(max_matches=limits.session.max_namespaces)
        self.cache = Cache(
            cache_bytes,
            metrics=self.metrics,
            on_complete=self.namespaces.track_completed,
            on_lost=lambda namespace: self._announce(self.namespaces.track_lost(namespace)),
        )
        self._authorize = authorize
        self._on_deadline = on_deadline
        self._peers: dict[PeerId, Peer] = {}
        self._tracks: dict[FullTrackName, Track] = {}
        self._track_prefixes = PrefixTable()
        self._track_terms: dict[Route, Parameters] = {}
        self._alarms: list[tuple[float, int, Callable[[float], None]]] = []
        self._alarms_set = 0
        self._now = 0.0

    def __repr__(self) -> str:
        return f"<RelayCore peers={len(self._peers)} tracks={len(self._tracks)} {self.cache!r}>"

    # Sessions.

    def connect(self, link: Link) -> Peer:
        """Take a new session; its events go to `receive`."""
        self.metrics.sessions_opened += 1
        peer_id = PeerId(self.metrics.sessions_opened)
        peer = Peer(peer_id, link, max_fetches=self.limits.max_fetches_per_session)
        self._peers[peer.id] = peer
        return peer

    def receive(self, peer: Peer, event: Event, *, now: float) -> None:
        """Take one event of a session."""
        self._now = now
        listener = peer.listener(getattr(event, "request_id", None))
        if listener is not None:
            listener(event, now)
            return
        match event:
            case PublishNamespaceReceived() | SubscribeNamespaceReceived():
                self._receive_namespace_request(peer, event)
            case SubscribeTracksReceived():
                self._receive_namespace_request(peer, event)
            case SubscribeReceived() | FetchReceived() | TrackStatusReceived() | PublishReceived():
                self._receive_track_request(peer, event)
            case SetupComplete():
                peer.tokens = event.options.authorization_tokens
            case GoawayReceived(request_id=None):
                peer.going_away = True
            case SessionClosed():
                self._disconnect(peer, event)
            case _:
                # The rest of a request that we gave up while it was under way.
                pass

    def _disconnect(self, peer: Peer, event: SessionClosed) -> None:
        self.metrics.sessions_closed += 1
        del self._peers[peer.id]
        for route in self.namespaces.subscribed_by(peer.id):
            self.namespaces.unsubscribe(route)
        for route in self._track_prefixes.of_peer(peer.id):
            self._forget_track_prefix(route)
        for route in self.namespaces.advertised_by(peer.id):
            self._announce(self.namespaces.withdraw(route))
        for request_id in peer.followed():
            listener = peer.listener(request_id)
            if listener is not None:
                listener(event, self._now)

    # Time.

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
        """Let time pass."""
        self._now = now
        self.cache.expire(now=now)
        due: list[Callable[[float], None]] = []
        while self._alarms and self._alarms[0][0] <= now:
            due.append(heappop(self._alarms)[2])
        for alarm in due:
            alarm(now)

    # Requests.

    def publishers(self, namespace: TrackNamespace) -> list[Peer]:
        """Return the peers that advertise a namespace, the longest prefix first."""
        routes = self.namespaces.publishers(namespace)
        return [self._peers[route.peer] for route in routes if route.peer in self._peers]

    def refuse(
        self, peer: Peer, request_id: RequestId, code: int, reason: str, *, now: float
    ) -> None:
        """Answer a request of a peer with REQUEST_ERROR."""
        if not peer.session.is_active(request_id):
            return
        self.metrics.requests_refused[_code_name(code)] += 1
        is_load = code == RequestErrorCode.EXCESSIVE_LOAD
        retry_interval_ms = _RETRY_INTERVAL_MS if is_load else None
        peer.session.reject(
            request_id, code, reason=reason, retry_interval_ms=retry_interval_ms, now=now
        )
        peer.wake()

    def _allows(self, peer: Peer, event: Event, parameters: Parameters) -> bool:
        """Decide whether a peer may ask, and refuse if not; nothing is looked up before."""
        match event:
            case PublishNamespaceReceived():
                namespace, track_name = event.namespace, None
            case SubscribeNamespaceReceived() | SubscribeTracksReceived():
                namespace, track_name = event.prefix, None
            case SubscribeReceived() | FetchReceived() | TrackStatusReceived() | PublishReceived():
                namespace, track_name = event.track.namespace, event.track.name
            case _:
                raise AssertionError(event)
        code = reserved_code(namespace) or self._authorize(
            Access(
                action=_ACTIONS[type(event)],
                namespace=namespace,
                track_name=track_name,
                tokens=peer.tokens + parameters.authorization_tokens,
            )
        )
        if code is not None:
            self.refuse(peer, event.request_id, code, "", now=self._now)
        return code is None

    # Tracks.

    def _receive_track_request(self, peer: Peer, event: _TrackRequest) -> None:
        if not self._allows(peer, event, event.parameters):
            return
        track = self._track(event.track)
        if track is None:
            code, reason = RequestErrorCode.EXCESSIVE_LOAD, "too many tracks"
            self.refuse(peer, event.request_id, code, reason, now=self._now)
            return
        self.cache.touch(track.name, now=self._now)
        match event:
            case SubscribeReceived():
                track.demand.subscribe(peer, event, now=self._now)
            case FetchReceived() | TrackStatusReceived():
                track.demand.ask(peer, event, now=self._now)
            case PublishReceived():
                self._receive_publish(peer, track, event)

    def _receive_publish(self, peer: Peer, track: Track, event: PublishReceived) -> None:
        unknown = event.properties.unknown_mandatory()
        if unknown:
            code, reason = RequestErrorCode.UNSUPPORTED_EXTENSION, f"property {unknown[0]:#x}"
            self.refuse(peer, event.request_id, code, reason, now=self._now)
            return
        waiting = {p.id for p in self._peers.values() if track.demand.awaits_publisher(p)}
        peer.session.accept(event.request_id, now=self._now)
        peer.wake()
        track.supply.publish(peer, event, now=self._now)
        for route, suffix in self._track_prefixes.matching(track.name.namespace):
            if route.peer != peer.id and route.peer not in waiting:
                self._publish_to(route, suffix, track)

    def _publish_to(self, route: Route, suffix: TrackNamespace, track: Track) -> None:
        """Publish a Track to a subscriber of its prefix, or say that it is skipped."""
        subscriber, terms = self._peers[route.peer], self._track_terms[route]
        if not matches_track(terms.range_filters, track.supply.store.properties):
            return
        if subscriber.is_available and track.demand.publish_to(subscriber, terms, now=self._now):
            return
        subscriber.session.skip_publish(route.request_id, suffix, track.name.name, now=self._now)
        subscriber.wake()

    def _track(self, name: FullTrackName) -> Track | None:
        track = self._tracks.get(name)
        if track is None:
            if len(self._tracks) >= self.limits.max_tracks:
                self._sweep(self._now)
            if len(self._tracks) >= self.limits.max_tracks:
                return None
            if not self._tracks:
                self.schedule(self._now + _SWEEP_INTERVAL, self._sweep_regularly)
            track = self._tracks[name] = Track(name, self, now=self._now)
        return track

    def _sweep(self, now: float) -> None:
        """Forget Tracks that nobody uses and of which nothing is held."""
        del now
        for track in tuple(self._tracks.values()):
            track.demand.sweep()
            if track.is_forgettable:
                self.cache.remove(track.name)
                del self._tracks[track.name]

    def _sweep_regularly(self, now: float) -> None:
        self._sweep(now)
        if self._tracks:
            self.schedule(now + _SWEEP_INTERVAL, self._sweep_regularly)

    # Namespaces.

    def _receive_namespace_request(self, peer: Peer, event: _NamespaceRequest) -> None:
        if not self._allows(peer, event, event.parameters):
            return
        match event:
            case PublishNamespaceReceived():
                self._publish_namespace(peer, event)
            case SubscribeNamespaceReceived():
                self._subscribe_namespace(peer, event)
            case SubscribeTracksReceived():
                self._subscribe_tracks(peer, event)

    def _publish_namespace(self, peer: Peer, event: PublishNamespaceReceived) -> None:
        limits, namespaces = self.limits, self.namespaces
        if (
            len(namespaces) >= limits.max_namespaces
            or namespaces.advertisements(peer.id) >= limits.max_namespaces_per_session
        ):
            code, reason = RequestErrorCode.EXCESSIVE_LOAD, "too many namespaces"
            self.refuse(peer, event.request_id, code, reason, now=self._now)
            return
        route = peer.route(event.request_id)
        peer.session.accept(event.request_id, now=self._now)
        peer.follow(event.request_id, partial(self._follow_publisher, peer, route))
        peer.wake()
        self._announce(namespaces.publish(route, event.namespace))
        for track in tuple(self._tracks.values()):
            if event.namespace.is_prefix_of(track.name.namespace):
                track.demand.publisher_appeared(peer, now=self._now)

    def _follow_publisher(self, peer: Peer, route: Route, event: Event, now: float) -> None:
        if isinstance(event, UpdateReceived):
            peer.session.accept_update(route.request_id, now=now)
            peer.wake()
        else:
            peer.forget(route.request_id)
            self._announce(self.namespaces.withdraw(route))

    def _subscribe_namespace(self, peer: Peer, event: SubscribeNamespaceReceived) -> None:
        route = peer.route(event.request_id)
        if len(self.namespaces.subscribed_by(peer.id)) >= self.limits.max_prefixes_per_session:
            code, reason = RequestErrorCode.EXCESSIVE_LOAD, "too many prefixes"
            self.refuse(peer, event.request_id, code, reason, now=self._now)
            return
        try:
            changes = self.namespaces.subscribe(route, event.prefix)
        except PrefixRefused as refusal:
            self.refuse(peer, event.request_id, refusal.code, str(refusal), now=self._now)
            return
        peer.session.accept(event.request_id, now=self._now)
        peer.follow(event.request_id, partial(self._follow_namespace_subscriber, peer, route))
        peer.wake()
        self._announce(changes)

    def _follow_namespace_subscriber(
        self, peer: Peer, route: Route, event: Event, now: float
    ) -> None:
        if not isinstance(event, UpdateReceived):
            peer.forget(route.request_id)
            self.namespaces.unsubscribe(route)
            return
        prefix = event.parameters.track_namespace_prefix
        changes: list[Change] = []
        if prefix is not None:
            code = self._update_refusal(peer, AccessAction.SUBSCRIBE_NAMESPACE, prefix, event)
            try:
                changes = [] if code is not None else self.namespaces.subscribe(route, prefix)
            except PrefixRefused as refusal:
                code = refusal.code
            if code is not None:
                peer.session.reject_update(route.request_id, code, now=now)
                peer.wake()
                return
        peer.session.accept_update(route.request_id, now=now)
        peer.wake()
        self._announce(changes)

    def _update_refusal(
        self, peer: Peer, action: AccessAction, prefix: TrackNamespace, event: UpdateReceived
    ) -> RequestErrorCode | None:
        tokens = peer.tokens + event.parameters.authorization_tokens
        access = Access(action=action, namespace=prefix, track_name=None, tokens=tokens)
        return reserved_code(prefix) or self._authorize(access)

    def _announce(self, changes: list[Change]) -> None:
        """Send what subscribers of namespaces are to know."""
        for change in changes:
            peer = self._peers.get(change.route.peer)
            if peer is None or not peer.session.is_active(change.route.request_id):
                continue
            tell = peer.session.announce if change.listed else peer.session.withdraw
            tell(change.route.request_id, change.suffix, now=self._now)
            peer.wake()

    # Tracks by prefix.

    def _subscribe_tracks(self, peer: Peer, event: SubscribeTracksReceived) -> None:
        route = peer.route(event.request_id)
        if len(self._track_prefixes.of_peer(peer.id)) >= self.limits.max_prefixes_per_session:
            code, reason = RequestErrorCode.EXCESSIVE_LOAD, "too many prefixes"
            self.refuse(peer, event.request_id, code, reason, now=self._now)
            return
        try:
            self._track_prefixes.add(route, event.prefix)
        except PrefixRefused as refusal:
            self.refuse(peer, event.request_id, refusal.code, str(refusal), now=self._now)
            return
        self._track_terms[route] = event.parameters
        peer.session.accept(event.request_id, now=self._now)
        peer.follow(event.request_id, partial(self._follow_track_subscriber, peer, route))
        peer.wake()
        self._publish_all_to(route, event.prefix)

    def _publish_all_to(self, route: Route, prefix: TrackNamespace) -> None:
        for track in tuple(self._tracks.values()):
            namespace = track.name.namespace
            if prefix.is_prefix_of(namespace) and track.supply.is_pushed_by_others(route.peer):
                self._publish_to(route, namespace.suffix_of(prefix), track)

    def _follow_track_subscriber(self, peer: Peer, route: Route, event: Event, now: float) -> None:
        if not isinstance(event, UpdateReceived):
            peer.forget(route.request_id)
            self._forget_track_prefix(route)
            return
        parameters = event.parameters
        prefix = parameters.track_namespace_prefix
        code = None
        if prefix is not None:
            code = self._update_refusal(peer, AccessAction.SUBSCRIBE_TRACKS, prefix, event)
            try:
                if code is None:
                    self._track_prefixes.add(route, prefix)
            except PrefixRefused as refusal:
                code = refusal.code
        if code is not None:
            peer.session.reject_update(route.request_id, code, now=now)
            peer.wake()
            return
        terms = self._track_terms[route]
        forward = terms.forward if parameters.forward is None else parameters.forward
        self._track_terms[route] = replace(terms, forward=forward)
        peer.session.accept_update(route.request_id, now=now)
        peer.wake()
        if prefix is not None:
            self._publish_all_to(route, prefix)

    def _forget_track_prefix(self, route: Route) -> None:
        self._track_prefixes.remove(route)
        self._track_terms.pop(route, None)

    # Statistics.

    def statistics(self) -> RelayStatistics:
        """Return a copy of all counters."""
        metrics = self.metrics
        deliveries = [d for track in self._tracks.values() for d in track.demand.deliveries()]
        subscriptions = sum(isinstance(d, SubscriptionDelivery) for d in deliveries)
        return RelayStatistics(
            sessions=len(self._peers),
            sessions_opened=metrics.sessions_opened,
            sessions_refused=metrics.sessions_refused,
            namespaces=len(self.namespaces),
            tracks=len(self._tracks),
            subscriptions=subscriptions,
            fetches=len(deliveries) - subscriptions,
            objects_in=metrics.objects_in,
            bytes_in=metrics.bytes_in,
            bytes_out=metrics.bytes_out,
            objects_rejected=frozen_counts(metrics.objects_rejected),
            upstream_subscriptions=metrics.upstream_subscriptions,
            upstream_fetches=metrics.upstream_fetches,
            cache_bytes=self.cache.size_bytes,
            cache_capacity_bytes=self.cache.capacity_bytes,
            cache_hits=metrics.fetches_served - metrics.cache_misses,
            cache_misses=metrics.cache_misses,
            evicted_bytes=frozen_counts(metrics.evicted_bytes),
            requests_refused=frozen_counts(metrics.requests_refused),
            malformed_tracks=metrics.malformed_tracks,
        )


def _code_name(code: int) -> str:
    try:
        return RequestErrorCode(code).name
    except ValueError:
        return "UNKNOWN"
