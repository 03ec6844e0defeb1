"""What an operator may want to see of a relay: immutable values, made on request.

Theory of operation. A `Reporter` reads the core between two events and hands out values that
do not move; it changes nothing, keeps nothing and logs nothing, so looking cannot hurt a
transfer. Every answer is bounded by the arguments, not by what peers did, and the costs are
those of what is shown, plus a step for each session or namespace where the first ones of an
order are looked for.
"""

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice
from typing import Final, Protocol

from kvcs.moqt.session.session import Session
from kvcs.moqt.track.outbox import Outbox
from kvcs.moqt.track.subscription_delivery import SubscriptionDelivery
from kvcs.names import Location, TrackNamespace
from kvcs.relay.arrival import Arrival, arrival
from kvcs.relay.core import RelayCore
from kvcs.relay.namespaces import PeerId
from kvcs.relay.tracks import Track

__all__ = (
    "NamespacePage",
    "NamespaceReport",
    "Reporter",
    "SessionLink",
    "SessionReport",
    "TrackReport",
    "UpstreamReport",
)

# Namespaces that are looked at between two pauses: about a millisecond's work.
_STEP: Final = 500


class SessionLink(Protocol):
    """What is known of the connection of a session: `endpoint.Connection`, or less in tests."""

    @property
    def session(self) -> Session:
        """The session."""
        ...

    @property
    def outbox(self) -> Outbox:
        """What is owed to the peer."""
        ...

    @property
    def peer(self) -> str:
        """Address of the peer, for people."""
        ...

    @property
    def started_at(self) -> float:
        """When it began, in monotonic seconds."""
        ...

    @property
    def bytes_in(self) -> int:
        """Octets received."""
        ...

    @property
    def bytes_out(self) -> int:
        """Octets handed to the transport."""
        ...

    @property
    def queued_bytes(self) -> int:
        """Octets that wait for the peer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReport:
    """One session.

    Attributes:
        session_id: Number inside the relay.
        address: Address of the peer.
        implementation: What the peer calls itself, None if it does not say.
        age: Seconds since it began.
        namespaces: Namespaces that it advertises.
        deliveries: Subscriptions, fills and fetches that it is served.
        bytes_in: Octets received.
        bytes_out: Octets handed to the transport.
        queued_bytes: Octets that wait for the peer.
        behind: Seconds since it last had everything that there was for it; 0 if it has now.
        is_going_away: It sent GOAWAY.
    """

    session_id: int
    address: str
    implementation: str | None
    age: float
    namespaces: int
    deliveries: int
    bytes_in: int
    bytes_out: int
    queued_bytes: int
    behind: float
    is_going_away: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceReport:
    """One Track Namespace.

    Attributes:
        namespace: Its text form.
        is_listed: Subscribers of a prefix are told of it.
        publishers: Sessions that advertise it, or a prefix of it.
        tracks: Tracks with any state, and those on disk.
        complete_tracks: Those of which every Object is held, in memory or on disk.
        size_bytes: Octets held in memory.
        disk_bytes: Octets of the files on disk.
        deliveries: Subscriptions, fills and fetches that are served of it.
        idle: Seconds since it was last asked for or added to; None for one without Tracks.
    """

    namespace: str
    is_listed: bool
    publishers: int
    tracks: int
    complete_tracks: int
    size_bytes: int
    disk_bytes: int
    deliveries: int
    idle: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespacePage:
    """Some of the namespaces, those that were used last first.

    Attributes:
        total: Namespaces there are.
        matching: Those that match what was looked for.
        shown: Those of the page.
    """

    total: int
    matching: int
    shown: tuple[NamespaceReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackReport:
    """One Track.

    Attributes:
        name: Text form of its Track Name.
        size_bytes: Octets held of it in memory, records included.
        largest: Largest Object that was published, as far as is known.
        end: Last Location, when known.
        is_complete: Every Object is held, in memory or on disk.
        subscriptions: Subscriptions that are served.
        fetches: Fetches and fills that are served.
        is_received: A publisher sends it now.
        arrival: Which Objects are held, and where.
    """

    name: str
    size_bytes: int
    largest: Location | None
    end: Location | None
    is_complete: bool
    subscriptions: int
    fetches: int
    is_received: bool
    arrival: Arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamReport:
    """One parent.

    Attributes:
        url: Where it is.
        is_used: The session with it is the one that is used now.
        error: Why the last attempt or session ended; of the parent that is used, what it refused
            a moment ago; empty where all is well, and for one that was not tried last.
    """

    url: str
    is_used: bool
    error: str


class Reporter:
    """Makes reports of one relay."""

    def __init__(self, core: RelayCore, links: Mapping[PeerId, SessionLink]) -> None:
        """Report of a relay.

        Args:
            core: The relay.
            links: Its connections; the mapping is the caller's and changes.
        """
        self._core = core
        self._links = links

    def __repr__(self) -> str:
        return f"<Reporter of {self._core!r}>"

    def sessions(self, limit: int, *, now: float) -> tuple[SessionReport, ...]:
        """Return at most `limit` sessions: those furthest behind first, then the newest."""
        peers = nlargest(
            limit, self._links, key=lambda peer_id: (self._behind(peer_id, now), peer_id)
        )
        return tuple(self._session(peer_id, now) for peer_id in peers)

    def slow_sessions(self, threshold: float, *, now: float) -> int:
        """Count the sessions that are behind for at least so many seconds."""
        return sum(self._behind(peer_id, now) >= threshold for peer_id in self._links)

    def namespaces(
        self, limit: int, *, now: float, offset: int = 0, search: str = ""
    ) -> NamespacePage:
        """Return at most `limit` namespaces.

        Args:
            limit: Most namespaces of the page.
            now: Monotonic seconds.
            offset: Namespaces before the page.
            search: Only those whose text form contains this.
        """
        looking = self.look_for_namespaces(limit, now=now, offset=offset, search=search)
        while True:
            try:
                next(looking)
            except StopIteration as stop:
                return stop.value

    def look_for_namespaces(
        self, limit: int, *, now: float, offset: int = 0, search: str = ""
    ) -> Generator[None, None, NamespacePage]:
        """Return what `namespaces` does, with a pause after each short piece of work.

        There may be tens of thousands; what came or went meanwhile may be in it or not.
        """
        cache, listed = self._core.cache, self._core.discovery.namespaces.listed()
        order: list[tuple[float, int, TrackNamespace]] = []
        total = 0
        for namespaces, is_held in ((cache.namespaces(), True), (listed, False)):
            for first in range(0, len(namespaces), _STEP):
                for namespace in namespaces[first : first + _STEP]:
                    used = cache.used(namespace)
                    if (used is None) is is_held:
                        continue  # both held and listed, or gone meanwhile
                    total += 1
                    if not search or search in namespace.format():
                        order.append((-1.0 if used is None else used, -total, namespace))
                yield
        shown = nlargest(offset + limit, order)[offset:]
        return NamespacePage(
            total=total,
            matching=len(order),
            shown=tuple(self._namespace(namespace, now) for _, _, namespace in shown),
        )

    def tracks(self, namespace: TrackNamespace, limit: int) -> Iterator[TrackReport]:
        """Yield at most `limit` Tracks of a namespace, in the order they appeared."""
        for track in islice(self._tracks(namespace), limit):
            yield self._track(track)

    def _session(self, peer_id: PeerId, now: float) -> SessionReport:
        link, peer = self._links[peer_id], self._core.peer(peer_id)
        options = link.session.peer_options
        return SessionReport(
            session_id=peer_id,
            address=link.peer,
            implementation=None if options is None else options.implementation,
            age=now - link.started_at,
            namespaces=self._core.discovery.namespaces.advertisements(peer_id),
            deliveries=len(link.outbox),
            bytes_in=link.bytes_in,
            bytes_out=link.bytes_out,
            queued_bytes=link.queued_bytes,
            behind=self._behind(peer_id, now),
            is_going_away=peer is not None and peer.going_away,
        )

    def _behind(self, peer_id: PeerId, now: float) -> float:
        since = self._links[peer_id].outbox.behind_since
        return 0.0 if since is None else max(0.0, now - since)

    def _namespace(self, namespace: TrackNamespace, now: float) -> NamespaceReport:
        core = self._core
        size = core.cache.publication(namespace)
        names = {*core.cache.tracks_of(namespace), *core.disk.tracks_of(namespace)}
        deliveries = sum(1 for track in self._tracks(namespace) for _ in track.demand.deliveries())
        return NamespaceReport(
            namespace=namespace.format(),
            is_listed=core.discovery.namespaces.is_listed(namespace),
            publishers=len(core.publishers(namespace)),
            tracks=len(names),
            complete_tracks=sum(map(core.is_complete, names)),
            size_bytes=0 if size is None else size.size_bytes,
            disk_bytes=core.disk.bytes_of(namespace),
            deliveries=deliveries,
            idle=None if size is None else max(0.0, now - size.used),
        )

    def _tracks(self, namespace: TrackNamespace) -> Iterator[Track]:
        for name in self._core.cache.tracks_of(namespace):
            track = self._core.track(name)
            if track is not None:
                yield track

    def _track(self, track: Track) -> TrackReport:
        store = track.supply.store
        deliveries = tuple(track.demand.deliveries())
        subscriptions = sum(isinstance(d, SubscriptionDelivery) for d in deliveries)
        return TrackReport(
            name=track.name.format().rpartition("--")[2],
            size_bytes=store.size_bytes,
            largest=store.largest,
            end=store.end,
            is_complete=self._core.is_complete(track.name),
            subscriptions=subscriptions,
            fetches=len(deliveries) - subscriptions,
            is_received=track.supply.upstream.is_established(None),
            arrival=arrival(store, is_on_disk=track.supply.stored.disk.has_any),
        )
