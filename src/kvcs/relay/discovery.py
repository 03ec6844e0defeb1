"""Who publishes what, and who wants to know: the namespace requests of a relay.

Theory of operation. `Discovery` owns the namespaces that are listed and the prefixes of
SUBSCRIBE_TRACKS. Requests reach it after they were authorized; it answers them, follows
them until they end, and tells every subscriber of a prefix what changes.

Source: MOQT draft 22, Sections 3.6, 4 and 7.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from kvcs.errors import RequestErrorCode
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import (
    Event,
    PublishNamespaceReceived,
    SubscribeNamespaceReceived,
    SubscribeTracksReceived,
    UpdateReceived,
)
from kvcs.moqt.wire.filters import matches_track, replace_filters
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.admission import Admission, NamespaceRequest
from kvcs.relay.auth import Access
from kvcs.relay.config import RelayLimits
from kvcs.relay.journal import Journal
from kvcs.relay.lister import Lister
from kvcs.relay.namespaces import (
    Change,
    Namespaces,
    PeerId,
    PrefixRefused,
    PrefixTable,
    Route,
)
from kvcs.relay.peer import Peer
from kvcs.relay.refusal import Refusal
from kvcs.relay.track_interest import TrackInterest
from kvcs.relay.tracks import Track
from kvcs.relay.upward import Upward

__all__ = ("Discovery",)


# What an update of SUBSCRIBE_TRACKS changes of the subscriptions that it brings later.
_STICKY: Final = (
    "forward",
    "location_filter",
    "object_delivery_timeout_ms",
    "subgroup_delivery_timeout_ms",
    "subscriber_priority",
)


# Seconds without new Tracks to a relay once it was offered as many as it takes.
_PAUSE: Final = 1.0


class _Host(Protocol):
    """What discovery needs of the relay around it."""

    @property
    def limits(self) -> RelayLimits:
        """Bounds."""
        ...

    @property
    def now(self) -> float:
        """Monotonic seconds."""
        ...

    @property
    def journal(self) -> Journal:
        """What happens, for the log."""
        ...

    def refuse(self, peer: Peer, request_id: RequestId, refusal: Refusal, *, now: float) -> None:
        """Answer a request with REQUEST_ERROR."""
        ...

    def close_flood(self, peer: Peer, what: str, *, now: float) -> None:
        """Close the session of a peer that goes on far beyond what it may do."""
        ...

    def schedule(self, deadline: float, alarm: Callable[[float], None]) -> None:
        """Call `alarm` with the time when `deadline` has passed."""
        ...

    @property
    def admission(self) -> Admission:
        """Who may do and see what."""
        ...

    def peer(self, peer_id: PeerId) -> Peer | None:
        """Return an open session."""
        ...

    def track(self, name: FullTrackName) -> Track | None:
        """Return a Track with any state."""
        ...

    def tracks_below(self, prefix: TrackNamespace) -> list[Track]:
        """Return the Tracks with any state in a namespace or below it."""
        ...

    def published_below(self, prefix: TrackNamespace, *, at_most: int) -> list[Track]:
        """Return the Tracks below a prefix that somebody published; of more, one more."""
        ...


class Discovery:
    """The namespaces and prefixes of a relay.

    Attributes:
        namespaces: What is listed, and for whom.
        upward: What is said about it to the parent.
        interest: Which Tracks other relays are asked to publish.
        lister: Tells subscribers what is listed.
    """

    def __init__(self, host: _Host) -> None:
        self.namespaces = Namespaces(
            max_matches=host.limits.session.max_namespaces, on_local=self._localized
        )
        self.upward = Upward(
            host, self.namespaces, lambda changes, now: self.announce(changes, now=now)
        )
        self.interest = TrackInterest(host, self._skip_for_all)
        self._host = host
        self.lister = Lister(host)
        self._expressed: dict[Route, tuple[TrackNamespace, Peer]] = {}
        self._unanswered: dict[Route, list[UpdateReceived]] = {}
        self._track_prefixes = PrefixTable()
        self._track_terms: dict[Route, Parameters] = {}
        self._postponed: dict[Route, dict[FullTrackName, None]] = {}

    # Namespaces.

    def receive(self, peer: Peer, event: NamespaceRequest, *, now: float) -> None:
        """Take a request that was admitted."""
        match event:
            case PublishNamespaceReceived():
                self._publish_namespace(peer, event, now)
            case SubscribeNamespaceReceived():
                self._subscribe_namespace(peer, event, now)
            case SubscribeTracksReceived():
                self._subscribe_tracks(peer, event, now)

    def disconnect(self, peer: Peer, *, now: float) -> None:
        """Forget all that a session asked for."""
        for route in self.namespaces.subscribed_by(peer.id):
            self._forget_prefix(route, now)
        for route in self._track_prefixes.of_peer(peer.id):
            self._forget_track_prefix(route, now)
        self.interest.detach(peer)
        for route in self.namespaces.advertised_by(peer.id):
            self.announce(self.namespaces.withdraw(route), now=now)

    def publishers(self, namespace: TrackNamespace) -> list[Peer]:
        """Return the peers that advertise a namespace, the longest prefix first."""
        peers = (self._host.peer(route.peer) for route in self.namespaces.publishers(namespace))
        return [peer for peer in peers if peer is not None]

    def offer(self, track: Track, *, excluded: Collection[PeerId], now: float) -> None:
        """Publish a Track to everybody who asked for its prefix."""
        for route, suffix in self._track_prefixes.matching(track.name.namespace):
            if route.peer not in excluded:
                self._publish_to(route, suffix, track, now)

    def _publish_namespace(self, peer: Peer, event: PublishNamespaceReceived, now: float) -> None:
        limits, namespaces = self._host.limits, self.namespaces
        if (
            len(namespaces) >= limits.max_namespaces
            or namespaces.advertisements(peer.id) >= limits.max_namespaces_per_session
        ):
            self._refuse_load(peer, event.request_id, "too many namespaces", now)
            return
        if not peer.withdrawals.admit(0, now=now):
            self._refuse_load(peer, event.request_id, "namespaces come and go too fast", now)
            return
        route = peer.route(event.request_id)
        peer.session.accept(event.request_id, now=now)
        peer.follow(event.request_id, partial(self._follow_publisher, peer, route))
        peer.wake()
        self.announce(namespaces.publish(route, event.namespace), now=now)
        for track in self._host.tracks_below(event.namespace):
            track.demand.publisher_appeared(peer, now=now)

    def _follow_publisher(self, peer: Peer, route: Route, event: Event, now: float) -> None:
        if isinstance(event, UpdateReceived):
            peer.session.accept_update(route.request_id, now=now)
            peer.wake()
        else:
            peer.withdrawals.admit(1, now=now)
            access = peer.granted.get(route.request_id)
            peer.forget(route.request_id)
            self.announce(self.namespaces.withdraw(route), now=now)
            if access is not None:
                self._host.admission.review.withdrawn(peer, access, now=now)

    def _refuse_load(self, peer: Peer, request_id: RequestId, reason: str, now: float) -> None:
        refusal = Refusal(RequestErrorCode.EXCESSIVE_LOAD, reason)
        self._host.refuse(peer, request_id, refusal, now=now)

    def _subscribe_namespace(
        self, peer: Peer, event: SubscribeNamespaceReceived, now: float
    ) -> None:
        route = peer.route(event.request_id)
        unanswered = sum(waiting.peer == peer.id for waiting in self._unanswered)
        if (
            len(self.namespaces.subscribed_by(peer.id)) + unanswered
            >= self._host.limits.max_prefixes_per_session
        ):
            self._refuse_load(peer, event.request_id, "too many prefixes", now)
            return
        self._unanswered[route] = []
        peer.follow(event.request_id, partial(self._follow_namespace_subscriber, peer, route))
        answer = partial(self._answer_namespace_subscriber, peer, route, event.prefix)
        if peer.is_parent:
            answer(now)
        else:
            self._expressed[route] = event.prefix, peer
            self.upward.express(event.prefix, peer, answer, now=now)

    def _answer_namespace_subscriber(
        self, peer: Peer, route: Route, prefix: TrackNamespace, now: float
    ) -> None:
        updates = self._unanswered.pop(route, None)
        if updates is None:
            return
        try:
            changes = self._list_below(peer, route, prefix, now)
        except PrefixRefused as error:
            self._forget_prefix(route, now)
            refusal = Refusal(error.code, str(error))
            self._host.refuse(peer, route.request_id, refusal, now=now)
            peer.forget(route.request_id)
            return
        peer.session.accept(route.request_id, now=now)
        peer.wake()
        self.announce(changes, now=now)
        for update in updates:
            self._follow_namespace_subscriber(peer, route, update, now)

    def _list_below(
        self, peer: Peer, route: Route, prefix: TrackNamespace, now: float
    ) -> list[Change]:
        """Record a prefix, and return what is to be listed.

        Raises:
            PrefixRefused: It cannot be subscribed to, or too much was listed of late.
        """
        self.lister.move(route)
        if self._is_hidden(peer, route):
            self.namespaces.subscribe_hidden(route, prefix)
            return []
        matches = self.namespaces.matches(prefix)
        is_small = matches <= self._host.limits.session.max_namespaces
        if is_small and not peer.listings.take(matches, now=now):
            raise PrefixRefused(RequestErrorCode.EXCESSIVE_LOAD, "too many namespaces a second")
        return self.namespaces.subscribe(route, prefix)

    @staticmethod
    def _is_hidden(peer: Peer, route: Route) -> bool:
        """Tell whether it is to be as if there were nothing below the prefix of a request."""
        access = peer.granted.get(route.request_id)
        return access is None or access.is_hidden

    def _forget_prefix(self, route: Route, now: float) -> None:
        self._unanswered.pop(route, None)
        self.namespaces.unsubscribe(route)
        self.lister.forget(route)
        expressed = self._expressed.pop(route, None)
        if expressed is not None:
            self.upward.release(*expressed, now=now)

    def _follow_namespace_subscriber(
        self, peer: Peer, route: Route, event: Event, now: float
    ) -> None:
        if not isinstance(event, UpdateReceived):
            peer.forget(route.request_id)
            self._forget_prefix(route, now)
            return
        if route in self._unanswered:
            self._unanswered[route].append(event)
            return
        prefix = event.parameters.track_namespace_prefix
        changes: list[Change] = []
        if prefix is not None:
            refusal = self._host.admission.move_refusal(peer, event, prefix, now=now)
            try:
                changes = [] if refusal is not None else self._list_below(peer, route, prefix, now)
            except PrefixRefused as error:
                refusal = Refusal(error.code, "", note=str(error))
            if refusal is not None:
                self._refuse_move(peer, route, refusal, now)
                self._forget_prefix(route, now)
                return
        peer.session.accept_update(route.request_id, now=now)
        peer.wake()
        self.announce(changes, now=now)
        if prefix is not None and route in self._expressed:
            before, self._expressed[route] = self._expressed[route], (prefix, peer)
            self.upward.express(prefix, peer, lambda _: None, now=now)
            self.upward.release(*before, now=now)

    def _refuse_move(self, peer: Peer, route: Route, refusal: Refusal, now: float) -> None:
        """Refuse an update, and with it the request."""
        access = peer.granted.get(route.request_id)
        self._host.journal.request_refused(peer, access, refusal, now=now)
        peer.session.reject_update(route.request_id, refusal.code, now=now)
        peer.forget(route.request_id)
        peer.wake()

    def _localized(self, namespace: TrackNamespace, listed: bool) -> None:  # noqa: FBT001
        self.upward.localized(namespace, listed=listed, now=self._host.now)

    def announce(self, changes: list[Change], *, now: float) -> None:
        """Send what subscribers of namespaces are to know."""
        self.lister.announce(changes, now=now)

    # Tracks by prefix.

    def _subscribe_tracks(self, peer: Peer, event: SubscribeTracksReceived, now: float) -> None:
        route = peer.route(event.request_id)
        if len(self._track_prefixes.of_peer(peer.id)) >= self._host.limits.max_prefixes_per_session:
            self._refuse_load(peer, event.request_id, "too many prefixes", now)
            return
        try:
            self._track_prefixes.add(route, event.prefix)
            tracks = self._published_below(peer, route, event.prefix, now)
        except PrefixRefused as error:
            self._track_prefixes.remove(route)
            refusal = Refusal(error.code, str(error))
            self._host.refuse(peer, event.request_id, refusal, now=now)
            return
        self._track_terms[route] = event.parameters
        peer.session.accept(event.request_id, now=now)
        peer.follow(event.request_id, partial(self._follow_track_subscriber, peer, route))
        peer.wake()
        self._want_tracks(peer, route, now)
        self._publish_all_to(route, tracks, now)

    def _want_tracks(self, peer: Peer, route: Route, now: float) -> None:
        """Have other relays publish what a subscriber of a prefix wants."""
        prefix, terms = self._track_prefixes.prefix(route), self._track_terms[route]
        self.interest.want(route, prefix, peer, forward=terms.forward is not False, now=now)

    def _published_below(
        self, peer: Peer, route: Route, prefix: TrackNamespace, now: float
    ) -> list[Track]:
        """Return the Tracks that are to be published below a prefix, or to be skipped.

        Raises:
            PrefixRefused: So much was listed to this session of late, or they are too many for
                one request.
        """
        if self._is_hidden(peer, route):
            return []
        room = int(peer.listings.room(now=now))
        tracks = self._host.published_below(prefix, at_most=room)
        if peer.listings.take(len(tracks), now=now):
            return [track for track in tracks if track.supply.upstream.is_pushed_by_others(peer.id)]
        most = self._host.limits.session.max_namespaces
        if room >= most:
            reason = f"more than {most} Tracks below {prefix}"
            raise PrefixRefused(RequestErrorCode.NAMESPACE_TOO_LARGE, reason)
        raise PrefixRefused(RequestErrorCode.EXCESSIVE_LOAD, "too many tracks a second")

    def _publish_all_to(self, route: Route, tracks: Iterable[Track], now: float) -> None:
        prefix = self._track_prefixes.prefix(route)
        for track in tracks:
            self._publish_to(route, track.name.namespace.suffix_of(prefix), track, now)

    def _follow_track_subscriber(self, peer: Peer, route: Route, event: Event, now: float) -> None:
        if not isinstance(event, UpdateReceived):
            peer.forget(route.request_id)
            self._forget_track_prefix(route, now)
            return
        try:
            tracks = self._tracks_of_update(peer, route, event, now)
        except PrefixRefused as error:
            self._refuse_move(peer, route, Refusal(error.code, "", note=str(error)), now)
            self._forget_track_prefix(route, now)
            return
        self._track_terms[route] = _updated(self._track_terms[route], event.parameters)
        self._want_tracks(peer, route, now)
        peer.session.accept_update(route.request_id, now=now)
        peer.wake()
        self._publish_all_to(route, tracks, now)

    def _tracks_of_update(
        self, peer: Peer, route: Route, event: UpdateReceived, now: float
    ) -> list[Track]:
        """Move a prefix, and return the Tracks that an update has published.

        Those that were published or skipped before are not among them (Section 9.19).

        Raises:
            PrefixRefused: The update is to be refused.
        """
        before, terms = self._track_prefixes.prefix(route), self._track_terms[route]
        was_hidden = self._is_hidden(peer, route)
        prefix = event.parameters.track_namespace_prefix
        if prefix is not None:
            refusal = self._host.admission.move_refusal(peer, event, prefix, now=now)
            if refusal is not None:
                raise PrefixRefused(refusal.code, refusal.note)
            self._track_prefixes.add(route, prefix)
        elif not event.parameters.range_filters:
            return []
        below = before if prefix is None else prefix
        return [
            track
            for track in self._published_below(peer, route, below, now)
            if was_hidden
            or not before.is_prefix_of(track.name.namespace)
            or not matches_track(terms.range_filters, track.supply.store.properties)
        ]

    def _forget_track_prefix(self, route: Route, now: float) -> None:
        self._track_prefixes.remove(route)
        self._track_terms.pop(route, None)
        self.interest.forget(route, now=now)

    def _publish_to(self, route: Route, suffix: TrackNamespace, track: Track, now: float) -> None:
        """Publish a Track to a subscriber of its prefix, or say that it is skipped.

        One that has several publishers, or that was below the prefix before, is published once.
        """
        subscriber, terms = self._host.peer(route.peer), self._track_terms[route]
        if subscriber is None:
            return
        properties = track.supply.store.properties
        access = self._wanted_as(subscriber, route, track.name, properties)
        if access is None:
            return
        if track.demand.is_published_to(subscriber):
            return
        if not subscriber.takes_offer(now=now):
            self._postpone(route, track.name, now)
            return
        subscriber.offers.admit(1, now=now)
        if subscriber.takes_publish and track.demand.publish_to(
            subscriber, terms, access=access, now=now
        ):
            return
        subscriber.session.skip_publish(route.request_id, suffix, track.name.name, now=now)
        subscriber.wake()

    def _postpone(self, route: Route, name: FullTrackName, now: float) -> None:
        """Publish a Track to a subscriber of its prefix when that takes more again."""
        if route not in self._postponed:
            self._postponed[route] = {}
            self._host.schedule(now + _PAUSE, partial(self._publish_postponed, route))
        self._postponed[route][name] = None

    def _publish_postponed(self, route: Route, now: float) -> None:
        """Publish what was postponed and is there still, as much as may be now."""
        names, subscriber = self._postponed.pop(route), self._host.peer(route.peer)
        if subscriber is None or route not in self._track_terms:
            return
        prefix = self._track_prefixes.prefix(route)
        for name in names:
            if not subscriber.takes_offer(now=now):
                self._postpone(route, name, now)
                continue
            track = self._host.track(name)
            if track is None or not prefix.is_prefix_of(name.namespace):
                continue
            if track.supply.upstream.is_pushed_by_others(route.peer):
                self._publish_to(route, name.namespace.suffix_of(prefix), track, now)

    def _wanted_as(
        self, subscriber: Peer, route: Route, name: FullTrackName, properties: Properties
    ) -> Access | None:
        """Return by what a subscriber of a prefix may have a Track that it wants, else None."""
        terms = self._track_terms[route]
        if subscriber.session.is_closed or not matches_track(terms.range_filters, properties):
            return None
        return self._host.admission.access_to(subscriber, route.request_id, name)

    def is_wanted(self, name: FullTrackName, properties: Properties, *, except_for: PeerId) -> bool:
        """Tell whether a subscriber of a prefix other than one peer wants a Track."""
        for route, _ in self._track_prefixes.matching(name.namespace):
            subscriber = self._host.peer(route.peer)
            if route.peer == except_for or subscriber is None:
                continue
            if self._wanted_as(subscriber, route, name, properties) is not None:
                return True
        return False

    def _skip_for_all(self, relay: Peer, name: FullTrackName, now: float) -> None:
        """Tell subscribers of a prefix that a Track is skipped which a relay could not publish."""
        track = self._host.track(name)
        for route, suffix in self._track_prefixes.matching(name.namespace):
            subscriber = self._host.peer(route.peer)
            if subscriber is None or subscriber is relay:
                continue
            if track is not None and track.demand.is_published_to(subscriber):
                continue
            if not subscriber.takes_offer(now=now):
                # Nothing is lost but the news: whoever wants the Track can ask for it.
                continue
            if self._wanted_as(subscriber, route, name, EMPTY_PROPERTIES) is not None:
                subscriber.offers.admit(1, now=now)
                subscriber.session.skip_publish(route.request_id, suffix, name.name, now=now)
                subscriber.wake()


def _updated(terms: Parameters, change: Parameters) -> Parameters:
    """Return the terms for Tracks that are published from now on (Section 9.5)."""
    given = {name: getattr(change, name) for name in _STICKY}
    return replace(
        terms,
        **{name: value for name, value in given.items() if value is not None},
        range_filters=replace_filters(terms.range_filters, change.range_filters),
    )
