"""Which Tracks a relay holds completely, in memory, on disk, or both.

A namespace stays listed while one Track of it is held completely by either tier. Only the
first tier that gets there and the last one that loses it make a difference outside.
"""

from collections.abc import Callable
from enum import Enum, auto

from kvcs.names import FullTrackName, TrackNamespace

__all__ = ("CompleteTracks", "Tier")


class Tier(Enum):
    """Where Objects are held."""

    MEMORY = auto()
    DISK = auto()


class CompleteTracks:
    """Complete Tracks by tier."""

    __slots__ = ("_on_complete", "_on_lost", "_tracks")

    def __init__(
        self,
        *,
        on_complete: Callable[[TrackNamespace], None],
        on_lost: Callable[[TrackNamespace], None],
    ) -> None:
        """Know of none.

        Args:
            on_complete: Called when a Track of this namespace is held completely.
            on_lost: Called when one that was no longer is.
        """
        self._on_complete = on_complete
        self._on_lost = on_lost
        self._tracks: dict[Tier, set[FullTrackName]] = {tier: set() for tier in Tier}

    def __repr__(self) -> str:
        counts = {tier.name: len(tracks) for tier, tracks in self._tracks.items()}
        return f"<CompleteTracks {counts}>"

    def __contains__(self, track: FullTrackName) -> bool:
        return any(track in tracks for tracks in self._tracks.values())

    def count(self, tier: Tier) -> int:
        """Return how many Tracks a tier holds completely."""
        return len(self._tracks[tier])

    def add(self, tier: Tier, track: FullTrackName) -> None:
        """Note that a tier holds a Track completely."""
        is_news = track not in self
        self._tracks[tier].add(track)
        if is_news:
            self._on_complete(track.namespace)

    def discard(self, tier: Tier, track: FullTrackName) -> None:
        """Note that a tier does not hold a Track completely; it may never have."""
        if track in self._tracks[tier]:
            self._tracks[tier].remove(track)
            if track not in self:
                self._on_lost(track.namespace)
