"""The Tracks of a relay by name, and by what their namespaces begin with.

Theory of operation. A relay that holds a hundred thousand Tracks is asked for those below a
prefix whenever a namespace is announced or withdrawn, or a prefix is subscribed to. Namespaces
with Tracks are kept in order, so that those with a common prefix stand side by side: a look-up
costs a few comparisons and what it finds, whatever else there is.
"""

from bisect import bisect_left, insort
from collections.abc import ValuesView
from itertools import islice
from typing import Final

from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.tracks import Track

__all__ = ("TrackTable",)

type _Fields = tuple[bytes, ...]

_ANY_NUMBER: Final = 2**62


class TrackTable:
    """Tracks with any state."""

    __slots__ = ("_in_order", "_of_namespace", "_tracks")

    def __init__(self) -> None:
        self._tracks: dict[FullTrackName, Track] = {}
        self._of_namespace: dict[_Fields, dict[bytes, Track]] = {}
        self._in_order: list[_Fields] = []

    def __repr__(self) -> str:
        return f"<TrackTable tracks={len(self._tracks)} namespaces={len(self._in_order)}>"

    def __len__(self) -> int:
        return len(self._tracks)

    def __getitem__(self, name: FullTrackName) -> Track:
        return self._tracks[name]

    def get(self, name: FullTrackName) -> Track | None:
        """Return a Track, or None."""
        return self._tracks.get(name)

    def values(self) -> ValuesView[Track]:
        """Return all Tracks."""
        return self._tracks.values()

    def below(self, prefix: TrackNamespace, *, at_most: int = _ANY_NUMBER) -> list[Track]:
        """Return the Tracks of a namespace and of those that begin with it.

        Args:
            prefix: The namespace.
            at_most: Of more, one more is returned.
        """
        fields, in_order = prefix.fields, self._in_order
        found: list[Track] = []
        for position in range(bisect_left(in_order, fields), len(in_order)):
            namespace = in_order[position]
            if namespace[: len(fields)] != fields or len(found) > at_most:
                break
            found += islice(self._of_namespace[namespace].values(), at_most + 1 - len(found))
        return found

    def add(self, track: Track) -> None:
        """Add a Track whose name is not there yet."""
        name, fields = track.name, track.name.namespace.fields
        self._tracks[name] = track
        if fields not in self._of_namespace:
            self._of_namespace[fields] = {}
            insort(self._in_order, fields)
        self._of_namespace[fields][name.name] = track

    def remove(self, name: FullTrackName) -> None:
        """Forget a Track that is there."""
        fields = name.namespace.fields
        del self._tracks[name]
        del self._of_namespace[fields][name.name]
        if not self._of_namespace[fields]:
            del self._of_namespace[fields]
            del self._in_order[bisect_left(self._in_order, fields)]
