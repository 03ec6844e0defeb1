"""What the disk gives one Track: its third source, beside subscriptions and FETCHes.

Objects come into the store as they were received once, with the time they were received
then, so that they expire when they should have; what was known of the Track comes first.
What contradicts what has come meanwhile is not taken, and deleted from the disk.
"""

import logging
from collections.abc import Callable, Sequence

from kvcs.errors import MalformedTrack
from kvcs.moqt.track.knowledge import Knowledge
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import Properties
from kvcs.names import FullTrackName
from kvcs.relay.cache import Cache
from kvcs.relay.disk.tier import DiskTier

__all__ = ("Stored",)

_logger = logging.getLogger("kvcs.relay")


class Stored:
    """One Track on disk, for the store of that Track in memory.

    Attributes:
        name: The Track.
        store: What is held in memory.
        disk: What the disk has.
    """

    __slots__ = (
        "_cache",
        "_is_wanted",
        "_learn_properties",
        "_look_again",
        "_tier",
        "disk",
        "name",
        "store",
    )

    def __init__(
        self,
        store: TrackStore,
        cache: Cache,
        tier: DiskTier,
        *,
        is_wanted: Callable[[], bool],
        learn_properties: Callable[[Properties, float], None],
        look_again: Callable[[float], None],
    ) -> None:
        """Stand between a store and the disk.

        Args:
            store: What is held in memory.
            cache: The budget that it belongs to.
            tier: The disk.
            is_wanted: Tells whether somebody receives the Track, or it is being received.
            learn_properties: Called with the Track Properties that the disk knows, and the
                time; raises MalformedTrack.
            look_again: Called with the time when something has come.
        """
        self.name: FullTrackName = store.track
        self.store = store
        self._cache = cache
        self._tier = tier
        self._is_wanted = is_wanted
        self._learn_properties = learn_properties
        self._look_again = look_again
        self.disk = tier.track(store.track, self)

    def __repr__(self) -> str:
        return f"<Stored {self.disk!r}>"

    @property
    def is_wanted(self) -> bool:
        """Somebody receives the Track, or it is being received."""
        return self._is_wanted()

    def receive_stored(self, objects: Sequence[tuple[Object, float]], *, now: float) -> None:
        """Take Objects from the disk, and when each was received; perhaps none came."""
        try:
            for obj, received_at in objects:
                if self.store.add(obj, now=received_at, fetched=True):
                    self._cache.grew(self.name, now=now, received_at=received_at)
        except MalformedTrack as error:
            self._contradicted(error)
        self._look_again(now)

    def receive_knowledge(self, knowledge: Knowledge | None, *, now: float) -> bool:
        """Take what is known of the Track; False if it contradicts what came meanwhile."""
        accepted = True
        if knowledge is not None:
            try:
                self.store.recall(knowledge)
                self._take_properties(knowledge.properties, now)
            except MalformedTrack as error:
                accepted = False
                _logger.warning(
                    "disk cache: what it knows of %s is contradicted: %s", self.name, error
                )
            else:
                self._cache.grew(self.name, now=now)
        self._look_again(now)
        return accepted

    def _take_properties(self, properties: Properties, now: float) -> None:
        """Take the Track Properties, unless a publisher has sent some by now."""
        if properties.raw and not self.store.properties.raw:
            self._learn_properties(properties, now)

    def _contradicted(self, error: MalformedTrack) -> None:
        _logger.warning("disk cache: %s is contradicted: %s", self.name, error)
        self._tier.abandon(self.disk, "contradicted")
