"""What is on disk, as the event loop knows it: names and sizes, and what goes first.

Theory of operation. The `Catalog` lists every Track on disk under its namespace, and the
namespaces in the order in which somebody asked for them. What is evicted is a whole
namespace: a publication is kept together, and lost together. Of the Objects the catalog
knows nothing; see `DiskTrack`.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvcs.names import FullTrackName, TrackNamespace

__all__ = ("Catalog", "CatalogEntry")


@dataclass(slots=True, eq=False)
class CatalogEntry:
    """One Track on disk.

    Attributes:
        size_bytes: Octets of its files.
        used: Stamp of when somebody asked for it last.
    """

    size_bytes: int
    used: float


@dataclass(slots=True, eq=False)
class _Publication:
    entries: dict[FullTrackName, CatalogEntry] = field(
        default_factory=dict[FullTrackName, CatalogEntry]
    )
    size_bytes: int = 0


class Catalog:
    """The Tracks on disk.

    Attributes:
        size_bytes: Octets of all files.
    """

    __slots__ = ("_publications", "_touched", "_tracks", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self._tracks = 0
        self._publications: OrderedDict[TrackNamespace, _Publication] = OrderedDict()
        self._touched: dict[FullTrackName, float] = {}

    def __len__(self) -> int:
        return self._tracks

    def __contains__(self, track: FullTrackName) -> bool:
        publication = self._publications.get(track.namespace)
        return publication is not None and track in publication.entries

    def __repr__(self) -> str:
        return f"<Catalog tracks={self._tracks} bytes={self.size_bytes}>"

    def put(self, track: FullTrackName, size_bytes: int, *, used: float) -> None:
        """Note what a Track takes on disk; it is new, or has changed its size."""
        publication = self._publications.setdefault(track.namespace, _Publication())
        entry = publication.entries.get(track)
        if entry is None:
            entry = publication.entries[track] = CatalogEntry(0, used)
            self._tracks += 1
        grown = size_bytes - entry.size_bytes
        entry.size_bytes = size_bytes
        publication.size_bytes += grown
        self.size_bytes += grown
        self.touch(track, used=used)

    def resize(self, track: FullTrackName, size_bytes: int) -> None:
        """Note that files of a Track are gone; nobody asked for it."""
        publication = self._publications.get(track.namespace)
        entry = publication.entries.get(track) if publication is not None else None
        if publication is not None and entry is not None:
            grown = size_bytes - entry.size_bytes
            entry.size_bytes = size_bytes
            publication.size_bytes += grown
            self.size_bytes += grown

    def remove(self, track: FullTrackName) -> int:
        """Forget a Track; return the octets that it took. Unknown ones are ignored."""
        publication = self._publications.get(track.namespace)
        entry = publication.entries.pop(track, None) if publication is not None else None
        if publication is None or entry is None:
            return 0
        publication.size_bytes -= entry.size_bytes
        self.size_bytes -= entry.size_bytes
        self._tracks -= 1
        self._touched.pop(track, None)
        if not publication.entries:
            del self._publications[track.namespace]
        return entry.size_bytes

    def touch(self, track: FullTrackName, *, used: float) -> None:
        """Note that somebody asked for a Track."""
        publication = self._publications.get(track.namespace)
        entry = publication.entries.get(track) if publication is not None else None
        if entry is not None:
            entry.used = used
            self._touched[track] = used
            self._publications.move_to_end(track.namespace)

    def take_touched(self) -> dict[FullTrackName, float]:
        """Return the Tracks that were asked for since the last call, and when."""
        touched, self._touched = self._touched, {}
        return touched

    def of(self, namespace: TrackNamespace) -> list[FullTrackName]:
        """Return the Tracks of a namespace."""
        publication = self._publications.get(namespace)
        return [] if publication is None else list(publication.entries)

    def bytes_of(self, namespace: TrackNamespace) -> int:
        """Return the octets of the files of a namespace."""
        publication = self._publications.get(namespace)
        return 0 if publication is None else publication.size_bytes

    def namespaces(self) -> Iterator[TrackNamespace]:
        """Yield the namespaces, the least recently used one first."""
        yield from self._publications
