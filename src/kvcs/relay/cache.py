"""Which Objects stay: the stores of all Tracks under one byte budget.

Theory of operation. `Cache` owns a `TrackStore` for every Full Track Name and counts what
they hold. When that exceeds the budget, it drops, in this order, until a sixteenth of the
budget is free, so that the search for something to drop is not repeated for every Object:

1. Groups that nobody needs any more of namespaces that are larger than the budget by
   themselves: such a publication is served without being kept, or it would evict itself
   in a circle;
2. whole Tracks of idle namespaces, the least recently used namespace first;
3. Groups that every current subscriber has passed, the last one first, so that the
   beginning of a Track stays and a second reader of it finds something;
4. Groups that are still needed: protection ends where the budget does. The Track with the
   most bytes chooses which of its Groups it can do without best.

Of an idle Track nothing is kept. One in use keeps its name, its Properties and the records of its
Groups, which count too. What is dropped is *unknown* afterwards, never "does not exist". The cache
does not know who needs what: it asks the `Usage` that came with each Track.

Source: MOQT draft 22, Sections 7.1 and 10.3.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from kvcs.moqt.track.contents import FORWARDING_TIME
from kvcs.moqt.track.costs import properties_bytes
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.properties import Properties
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.statistics import Metrics

__all__ = ("TRACK_BYTES", "Cache", "PublicationSize", "Usage", "track_bytes")

# Part of the budget that is freed at a time.
_SLACK: Final = 16

# What a Track costs in a relay beside its Objects, its Properties and its name, measured and
# rounded up: both halves of it, and its places in the tables.
TRACK_BYTES: Final = 9 * 1024


def track_bytes(store: TrackStore) -> int:
    """Return the octets that a Track counts for beside what its store counts itself."""
    track = store.track
    name_bytes = track.namespace.size_bytes + len(track.name)
    return TRACK_BYTES + name_bytes + properties_bytes(store.properties)


class Usage(Protocol):
    """What is going on with one Track."""

    @property
    def is_idle(self) -> bool:
        """Nobody receives this Track, nor is it being received."""
        ...

    def needs(self, group_id: int) -> bool:
        """Tell whether a current subscriber or fetch has not passed this Group yet."""
        ...

    def lost(self) -> None:
        """Note that Objects were dropped."""
        ...

    def forgotten(self) -> None:
        """Note that the store forgot all it knew; the Track is to be removed, if it can be."""
        ...

    def victims(self) -> Sequence[int]:
        """Return the held Groups that are needed; the one whose loss hurts least comes first."""
        ...

    def sacrifice(self, group_id: int, *, now: float) -> None:
        """Prepare to lose a Group."""
        ...


@dataclass(slots=True, eq=False)
class _Entry:
    store: TrackStore
    usage: Usage
    size_bytes: int = 0
    record_bytes: int = 0
    track_bytes: int = 0
    properties: Properties | None = None  # of which `track_bytes` is
    complete: bool = False
    is_forgotten: bool = False  # nothing is left but what goes with its removal
    first_expiry: float | None = None
    last_expiry: float | None = None


@dataclass(slots=True, eq=False)
class _Publication:
    """The Tracks of one namespace: kept together, and lost together."""

    entries: dict[FullTrackName, _Entry]
    used: float
    size_bytes: int = 0

    @property
    def is_idle(self) -> bool:
        return all(entry.usage.is_idle for entry in self.entries.values())


class PublicationSize(NamedTuple):
    """What the cache holds of one namespace.

    Attributes:
        namespace: The namespace.
        tracks: Tracks with any state.
        complete_tracks: Those of which every Object is held.
        size_bytes: Octets, records included.
        used: When it was last asked for or added to, in monotonic seconds.
    """

    namespace: TrackNamespace
    tracks: int
    complete_tracks: int
    size_bytes: int
    used: float


class Cache:
    """All Objects that a relay holds."""

    def __init__(
        self,
        capacity_bytes: int,
        *,
        metrics: Metrics,
        on_complete: Callable[[FullTrackName], None],
        on_lost: Callable[[FullTrackName], None],
    ) -> None:
        """Create an empty cache.

        Args:
            capacity_bytes: Octets that all stores together may hold.
            metrics: Counters of evictions.
            on_complete: Called when a Track is held completely.
            on_lost: Called when a Track that was complete no longer is.
        """
        self.capacity_bytes = capacity_bytes
        self._low_water_bytes = capacity_bytes - capacity_bytes // _SLACK
        self._metrics = metrics
        self._on_complete = on_complete
        self._on_lost = on_lost
        self._publications: dict[TrackNamespace, _Publication] = {}
        self._oversized: dict[TrackNamespace, _Publication] = {}
        self._tracks = 0
        self._size_bytes = 0
        self._record_bytes = 0
        self._next_expiry: float | None = None

    def __len__(self) -> int:
        return self._tracks

    def __repr__(self) -> str:
        return f"<Cache tracks={len(self)} bytes={self._size_bytes}/{self.capacity_bytes}>"

    @property
    def size_bytes(self) -> int:
        """Octets held, records included.

        At most `capacity_bytes` after every call, unless what Tracks in use need beside their
        Objects, which cannot be dropped, is more by itself; see `is_crowded_by`.
        """
        return self._size_bytes

    @property
    def takes_tracks(self) -> bool:
        """Whether there is room for another Track; the last bit is left to those that are there."""
        return self._record_bytes <= self._low_water_bytes

    def is_crowded_by(self, track: FullTrackName) -> bool:
        """Tell whether all that is not Objects exceeds the budget, and a Track has its share of it.

        That is names, Properties and records.
        """
        entry = self._find(track)
        if self._record_bytes <= self.capacity_bytes or entry is None:
            return False
        return entry.record_bytes * len(self) >= self._record_bytes

    def is_complete(self, track: FullTrackName) -> bool:
        """Tell whether every Object of a Track is held."""
        entry = self._find(track)
        return entry is not None and entry.complete

    def namespaces(self) -> tuple[TrackNamespace, ...]:
        """Return the namespaces that have Tracks."""
        return tuple(self._publications)

    def used(self, namespace: TrackNamespace) -> float | None:
        """Return when a namespace was last asked for or added to; None for one without Tracks."""
        publication = self._publications.get(namespace)
        return None if publication is None else publication.used

    def publication(self, namespace: TrackNamespace) -> PublicationSize | None:
        """Return what is held of exactly this namespace, None without any Track."""
        publication = self._publications.get(namespace)
        if publication is None:
            return None
        entries = publication.entries.values()
        return PublicationSize(
            namespace=namespace,
            tracks=len(entries),
            complete_tracks=sum(entry.complete for entry in entries),
            size_bytes=publication.size_bytes,
            used=publication.used,
        )

    def tracks_of(self, namespace: TrackNamespace) -> tuple[FullTrackName, ...]:
        """Return the Tracks of exactly this namespace, in the order they appeared."""
        publication = self._publications.get(namespace)
        return () if publication is None else tuple(publication.entries)

    def add(self, store: TrackStore, usage: Usage, *, now: float) -> None:
        """Take a new, empty store into the budget, and make room if need be."""
        namespace = store.track.namespace
        publication = self._publications.setdefault(namespace, _Publication({}, now))
        publication.entries[store.track] = _Entry(store, usage)
        publication.used = now
        self._tracks += 1
        self.recount(store.track, now=now)

    def remove(self, track: FullTrackName) -> None:
        """Drop a Track and forget it; unknown ones are ignored."""
        entry = self._find(track)
        if entry is None:
            return
        self._drop(entry, None, "removed")
        publication = self._publications[track.namespace]
        publication.size_bytes -= entry.size_bytes
        self._size_bytes -= entry.size_bytes
        self._record_bytes -= entry.record_bytes
        self._tracks -= 1
        del publication.entries[track]
        if not publication.entries:
            del self._publications[track.namespace]
            self._oversized.pop(track.namespace, None)

    def touch(self, track: FullTrackName, *, now: float) -> None:
        """Note that somebody asked for a Track."""
        publication = self._publications.get(track.namespace)
        if publication is not None:
            publication.used = now

    def grew(self, track: FullTrackName, *, now: float, received_at: float | None = None) -> None:
        """Count what was added to the store of a Track, and make room if need be.

        Args:
            track: The Track.
            now: Monotonic seconds.
            received_at: When it was received; now if None.
        """
        entry = self._find(track)
        if entry is None:
            return
        publication = self._publications[track.namespace]
        publication.used = now
        lifetime_ms = entry.store.properties.max_cache_duration_ms
        if lifetime_ms is not None:
            # What expires sooner goes no sooner to those who waited for it.
            lifetime = max(lifetime_ms / 1000, FORWARDING_TIME)
            expiry = (now if received_at is None else received_at) + lifetime
            entry.last_expiry = max(entry.last_expiry or expiry, expiry)
            entry.first_expiry = min(entry.first_expiry or expiry, expiry)
            self._next_expiry = min(self._next_expiry or entry.first_expiry, entry.first_expiry)
        entry.is_forgotten = False
        self._count(publication, entry)
        if publication.size_bytes > self.capacity_bytes:
            self._oversized[track.namespace] = publication
        if self._size_bytes > self.capacity_bytes:
            self._make_room(now)

    def recount(self, track: FullTrackName, *, now: float) -> None:
        """Count what a Track costs beside its Objects, and make room if need be.

        For one whose Properties changed, or that is used although it was forgotten.
        """
        entry = self._find(track)
        if entry is None:
            return
        entry.is_forgotten = False
        self._count(self._publications[track.namespace], entry)
        if self._size_bytes > self.capacity_bytes:
            self._make_room(now)

    def drop_idle(self, tracks: int, *, among: Collection[TrackNamespace] | None = None) -> None:
        """Drop at least so many Tracks that nobody uses, as far as there are.

        The least recently used publications go, each as a whole.

        Args:
            tracks: How many.
            among: The publications from which to choose; None for all.
        """
        for publication in self._idle(among):
            if tracks <= 0:
                return
            tracks -= self._drop_publication(publication)

    def check_complete(self, track: FullTrackName) -> None:
        """See whether a Track became complete; called where that can happen."""
        entry = self._find(track)
        if entry is not None and not entry.complete and entry.store.is_complete():
            entry.complete = True
            self._on_complete(track)

    def next_deadline(self) -> float | None:
        """Return when `expire` has something to do, or an earlier time."""
        return self._next_expiry

    def expire(self, *, now: float) -> None:
        """Drop Tracks whose last Object expired, and note which are no longer complete."""
        if self._next_expiry is None or now < self._next_expiry:
            return
        due = [entry for entry, deadline in self._deadlines() if deadline <= now]
        for entry in due:
            self._lose(entry)
            entry.first_expiry = None
            if entry.last_expiry is not None and entry.last_expiry <= now:
                self._drop(entry, None, "expired")
                entry.last_expiry = None
        self._next_expiry = min((deadline for _, deadline in self._deadlines()), default=None)

    def _deadlines(self) -> Iterator[tuple[_Entry, float]]:
        for publication in self._publications.values():
            for entry in publication.entries.values():
                deadline = entry.first_expiry or entry.last_expiry
                if deadline is not None:
                    yield entry, deadline

    def _find(self, track: FullTrackName) -> _Entry | None:
        publication = self._publications.get(track.namespace)
        return publication.entries.get(track) if publication is not None else None

    def _count(self, publication: _Publication, entry: _Entry) -> None:
        store = entry.store
        if store.properties is not entry.properties:
            entry.properties = store.properties
            entry.track_bytes = track_bytes(store)
        records = 0 if entry.is_forgotten else store.record_bytes + entry.track_bytes
        grown = store.object_bytes + records - entry.size_bytes
        entry.size_bytes += grown
        publication.size_bytes += grown
        self._size_bytes += grown
        self._record_bytes += records - entry.record_bytes
        entry.record_bytes = records

    def _make_room(self, now: float) -> None:
        for step in (self._drop_passed_of_oversized, self._drop_idle, self._drop_passed):
            step()
            if self._fits():
                return
        self._drop_needed(now)

    def _fits(self) -> bool:
        return self._size_bytes <= self._low_water_bytes

    def _drop_passed_of_oversized(self) -> None:
        for publication in self._oversized.values():
            for entry in publication.entries.values():
                self._drop_passed_of(entry, "oversized", everything=True)

    def _drop_idle(self) -> None:
        for publication in self._idle():
            if self._fits():
                return
            self._drop_publication(publication)

    def _drop_publication(self, publication: _Publication) -> int:
        """Drop what is held of all Tracks of an idle publication; return how many there were.

        Without one of them the others are of no use, and would be listed all the same.
        """
        entries = [entry for entry in publication.entries.values() if not entry.is_forgotten]
        for entry in entries:
            self._drop(entry, None, "idle")
        return len(entries)

    def _idle(self, among: Collection[TrackNamespace] | None = None) -> list[_Publication]:
        """Return the publications that nobody uses, least recently used first."""
        some = self._publications if among is None else among
        idle = [p for p in (self._publications[namespace] for namespace in some) if p.is_idle]
        return sorted(idle, key=lambda publication: publication.used)

    def _drop_passed(self) -> None:
        for entry in self._largest_first():
            self._drop_passed_of(entry, "passed", everything=False)
            if self._fits():
                return

    def _drop_needed(self, now: float) -> None:
        for entry in self._largest_first():
            for group_id in entry.usage.victims():
                if self._fits():
                    return
                entry.usage.sacrifice(group_id, now=now)
                self._drop(entry, group_id, "needed")
        if self._size_bytes > self.capacity_bytes:
            for entry in self._largest_first():
                self._drop(entry, None, "needed")

    def _largest_first(self) -> list[_Entry]:
        entries = (
            entry
            for publication in self._publications.values()
            for entry in publication.entries.values()
            if entry.size_bytes
        )
        return sorted(entries, key=lambda entry: entry.size_bytes, reverse=True)

    def _drop_passed_of(self, entry: _Entry, reason: str, *, everything: bool) -> None:
        for group_id in sorted(entry.store.groups(), reverse=True):
            if not everything and self._fits():
                return
            if not entry.usage.needs(group_id):
                self._drop(entry, group_id, reason)

    def _drop(self, entry: _Entry, group_id: int | None, reason: str) -> None:
        store = entry.store
        freed = self._drop_all(entry) if group_id is None else store.drop_group(group_id)
        if freed:
            self._metrics.evicted_bytes[reason] += freed
            entry.usage.lost()
        self._count(self._publications[store.track.namespace], entry)
        self._lose(entry)

    def _drop_all(self, entry: _Entry) -> int:
        """Drop all Objects of a Track, and what is known of it if nobody uses it."""
        if not entry.usage.is_idle:
            return entry.store.drop_all()
        freed = entry.store.forget()
        entry.is_forgotten = True
        entry.usage.forgotten()
        return freed

    def _lose(self, entry: _Entry) -> None:
        if entry.complete:
            entry.complete = False
            self._on_lost(entry.store.track)
