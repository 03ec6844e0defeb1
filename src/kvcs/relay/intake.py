"""What publishers send of one Track, on its way into the store.

Theory of operation. Every Object that a publisher sends comes here, on whatever stream, and is
counted. The store takes it, or says that it contradicts what is known; the cache counts what the
store grew, and may drop something else for it; the disk keeps a copy.

Source: MOQT draft 22, Sections 7.1, 8.4 and 10.3.
"""

from collections.abc import Callable

from kvcs.errors import MalformedTrack
from kvcs.moqt.track.arriving import Arriving
from kvcs.moqt.track.interval import to_location
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import Properties
from kvcs.names import FullTrackName, Location
from kvcs.relay.disk.track import DiskTrack
from kvcs.relay.host import Host
from kvcs.relay.peer import Peer

__all__ = ("Intake",)


class Intake:
    """The way of Objects and knowledge into the store of one Track (`ObjectSink`).

    Attributes:
        name: The Track.
        store: Its Objects.
    """

    def __init__(
        self,
        store: TrackStore,
        host: Host,
        disk: Callable[[], DiskTrack],
        *,
        is_distrusted: Callable[[Peer], bool],
    ) -> None:
        """Take nothing yet.

        Args:
            store: Where Objects go.
            host: The relay.
            disk: Returns what the disk has of the Track.
            is_distrusted: Tells whether a publisher has contradicted itself.
        """
        self.name: FullTrackName = store.track
        self.store = store
        self._host = host
        self._disk = disk
        self._is_distrusted = is_distrusted
        self._has_properties = False

    def __repr__(self) -> str:
        return f"<Intake {self.store!r}>"

    @property
    def cut_through_bytes(self) -> int:
        """Objects of at least so many octets go on while they arrive."""
        return self._host.limits.cut_through_bytes

    def receive_object(
        self,
        obj: Object,
        peer: Peer,
        *,
        follows: int | None,
        fetched: bool,
        began_at: float | None = None,
        now: float,
    ) -> None:
        """Take an Object; arguments as in `ObjectSink`, raises MalformedTrack."""
        # What expires counts from the first octet on (Section 10.3).
        received_at = now if began_at is None else began_at
        host = self._host
        host.metrics.objects_in += 1
        host.metrics.bytes_in += len(obj.payload)
        if self._is_distrusted(peer):
            host.metrics.objects_rejected["malformed"] += 1
            return
        if not self.store.add(obj, now=received_at, follows=follows, fetched=fetched):
            host.metrics.objects_rejected["duplicate"] += 1
            return
        host.cache.grew(self.name, now=now, received_at=received_at)
        self._disk().keep(obj, received_at, now=now)
        if host.cache.is_crowded_by(self.name):
            raise MalformedTrack("more than the cache can remember of one Track")

    def begin_object(self, arriving: Arriving, peer: Peer, *, now: float) -> None:
        """Let an Object go on while it arrives; raises MalformedTrack."""
        if not self._is_distrusted(peer):
            self.store.begin(arriving, now=now)

    def mark_absent(self, start: int, through: int) -> None:
        """Note that nothing is at these positions, which may be none."""
        if start <= through:
            self.store.mark_absent(to_location(start), to_location(through))

    def largest_advertised(self, largest: Location | None) -> None:
        """Note a LARGEST_OBJECT of a publisher."""
        if largest is not None:
            self.store.raise_largest(largest)

    def learn_properties(self, properties: Properties, *, now: float) -> None:
        """Keep the Track Properties; a newer set replaces an older one whole (Section 8.4).

        Raises:
            MalformedTrack: The cache has no room for them.
        """
        if self._has_properties and not properties.raw:
            return
        self._has_properties = True
        if properties == self.store.properties:
            return
        cache, before = self._host.cache, self.store.properties
        self.store.properties = properties
        cache.recount(self.name, now=now)
        if cache.is_crowded_by(self.name):
            self.store.properties = before
            cache.recount(self.name, now=now)
            raise MalformedTrack("more Properties than the cache has room for")
        self._disk().note_properties()
