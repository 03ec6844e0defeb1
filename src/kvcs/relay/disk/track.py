"""One Track and the disk: what is there of it, what is on its way there and back.

Theory of operation. A `DiskTrack` stands between the store of a Track in memory and the disk.
What the store takes is offered with `keep`; what a delivery lacks is asked for with `read`,
and put into the store when it arrives, so that a delivery waits for the disk as it waits for
a publisher. Before anything is answered or read, what the disk knows of the Track is recalled
(`is_ready`); a Track that the disk does not know is ready at once.

`held` is what can be read as far as is known. Files expire, are evicted or turn out damaged:
only what arrives counts.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from kvcs.moqt.track.interval import IntervalSet, to_position
from kvcs.moqt.track.knowledge import Knowledge
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.object import Object
from kvcs.names import FullTrackName
from kvcs.relay.disk.operation import Recalled

__all__ = ("DiskTrack", "DiskUser", "TrackTier")

# A version that no store has.
_OUTDATED: Final = (-2,)


class DiskUser(Protocol):
    """Whoever has the Track in memory."""

    name: FullTrackName
    store: TrackStore

    @property
    def is_wanted(self) -> bool:
        """Somebody receives the Track, or it is being received."""
        ...

    def receive_stored(self, objects: Sequence[tuple[Object, float]], *, now: float) -> None:
        """Take Objects from the disk, and when each was received; perhaps none came."""
        ...

    def receive_knowledge(self, knowledge: Knowledge | None, *, now: float) -> bool:
        """Take what is known of the Track; False if it contradicts what came meanwhile."""
        ...


class TrackTier(Protocol):
    """What a Track needs of the tier."""

    @property
    def is_open(self) -> bool:
        """Whether there is a disk at all."""
        ...

    @property
    def is_writable(self) -> bool:
        """Whether anything is written now."""
        ...

    def is_stored(self, name: FullTrackName) -> bool:
        """Tell whether anything of a Track is on disk."""
        ...

    def write(self, track: "DiskTrack", obj: Object, received_at: float, *, now: float) -> None:
        """Write an Object, sooner or later."""
        ...

    def save(self, track: "DiskTrack", *, now: float) -> None:
        """Save what is known of a Track, sooner or later."""
        ...

    def recall(self, track: "DiskTrack", *, now: float) -> None:
        """Recall what is on disk; `DiskTrack.recalled` hears of it."""
        ...

    def read(self, track: "DiskTrack", first: int, through: int) -> None:
        """Read positions, both inclusive; `DiskTrack.was_read` hears of it."""
        ...

    def abandon(self, track: "DiskTrack", reason: str) -> None:
        """Delete what is on disk of a Track and all others of its namespace."""
        ...


class DiskTrack:
    """What the disk has of one Track.

    Attributes:
        name: The Track.
        user: Whoever has it in memory.
        held: Positions of data on disk, as far as is known.
        queue: Objects to be written, and when each was received.
        queued_bytes: Octets of their records.
        writes: Writes under way.
        epoch: Grows when all that is on disk is deleted.
        saved_version: What of the store's knowledge is on disk; None is nothing.
    """

    __slots__ = (
        "_is_recalling",
        "_reads",
        "_tier",
        "epoch",
        "held",
        "is_recalled",
        "name",
        "queue",
        "queued_bytes",
        "saved_version",
        "user",
        "writes",
    )

    def __init__(self, name: FullTrackName, user: DiskUser, tier: TrackTier) -> None:
        self.name = name
        self.user = user
        self.held = IntervalSet()
        self.queue: list[tuple[Object, float]] = []
        self.queued_bytes = 0
        self.writes = 0
        self.epoch = 0
        self.saved_version: tuple[int, ...] | None = None
        self.is_recalled = False
        self._is_recalling = False
        self._reads: list[tuple[int, int]] = []
        self._tier = tier

    def __repr__(self) -> str:
        return f"<DiskTrack {self.name} held={self.held.size} queued={len(self.queue)}>"

    @property
    def is_busy(self) -> bool:
        """Something is on its way to the disk or back, or ought to be."""
        return bool(
            self.queue
            or self.writes
            or self._reads
            or self._is_recalling
            or (self.has_news and self._tier.is_writable)
        )

    @property
    def has_news(self) -> bool:
        """More is known of the Track than the disk knows."""
        return (
            self.is_recalled
            and self.saved_version is not None
            and self.saved_version != self.user.store.knowledge_version
        )

    # From memory to disk.

    def keep(self, obj: Object, received_at: float, *, now: float) -> None:
        """Offer an Object that the store took.

        Args:
            obj: The Object.
            received_at: When its first octet came.
            now: Monotonic seconds.
        """
        if not self._tier.is_open or self.user.store.lifetime == 0:
            return
        if not obj.status and to_position(obj.location) in self.held:
            return
        self._tier.write(self, obj, received_at, now=now)

    def note_properties(self) -> None:
        """Note that the Track Properties changed."""
        if self.saved_version is not None:
            self.saved_version = _OUTDATED

    def note_change(self, *, now: float) -> None:
        """Note that the store may know more than before."""
        if self._tier.is_open and self.has_news:
            self._tier.save(self, now=now)

    def forgotten(self) -> None:
        """Note that the store forgot everything; what the disk knows is to be recalled."""
        self.is_recalled = False
        self.held = IntervalSet()
        self.saved_version = None

    # From disk to memory.

    def is_ready(self, *, now: float) -> bool:
        """Tell whether the store knows what the disk knows, and see to it if not."""
        if not self.is_recalled and not self._is_recalling:
            if self._tier.is_open and self._tier.is_stored(self.name):
                self._is_recalling = True
                self._tier.recall(self, now=now)
            else:
                self.is_recalled = True
        return self.is_recalled

    def is_reading(self, position: int) -> bool:
        """Tell whether a read under way will say what is at `position`."""
        return any(first <= position <= through for first, through in self._reads)

    def read(self, position: int, through: int) -> bool:
        """Begin to read what is at `position` and, as far as it is enough, after it.

        Returns:
            Whether there is anything to read at `position`.
        """
        if position not in self.held:
            return False
        if not self.is_reading(position):
            # What another read brings already is not read twice.
            begun = [first for first, _ in self._reads if position < first <= through]
            through = min(begun) - 1 if begun else through
            self._reads.append((position, through))
            self._tier.read(self, position, through)
        return True

    def has_any(self, first: int, through: int) -> bool:
        """Tell whether the disk has anything between two positions, inclusive."""
        following = self.held.next_start(first)
        return first in self.held or (following is not None and following <= through)

    def last_held(self, through: int) -> int | None:
        """Return the last position up to `through`, inclusive, that the disk has."""
        return through if through in self.held else self.held.previous_end(through)

    # What comes back.

    def recalled(self, recalled: Recalled | None, *, now: float) -> None:
        """Take what is on disk; None if that is nothing after all."""
        self._is_recalling = False
        self.is_recalled = True
        if self.queue:
            self._tier.save(self, now=now)
        if recalled is None:
            self.user.receive_knowledge(None, now=now)
            return
        self.held = recalled.held
        store = self.user.store
        if not self.user.receive_knowledge(recalled.knowledge, now=now):
            self._tier.abandon(self, "contradicted")
            return
        # What came before the recall is not on disk yet.
        is_all = store.knowledge() == recalled.knowledge
        self.saved_version = store.knowledge_version if is_all else _OUTDATED
        self.note_change(now=now)

    def was_read(
        self,
        asked: tuple[int, int],
        through: int,
        objects: Sequence[tuple[Object, float]],
        *,
        now: float,
    ) -> None:
        """Take what a read brought.

        Args:
            asked: First and last position that were asked for.
            through: Last position that was looked at.
            objects: Objects, and when each was received.
            now: Monotonic seconds.
        """
        self._reads.remove(asked)
        # What did not come is not there.
        self.held.remove(asked[0], through)
        for obj, _ in objects:
            if not obj.status:
                position = to_position(obj.location)
                self.held.add(position, position)
        self.user.receive_stored(objects, now=now)

    def deleted(self) -> None:
        """Note that nothing is on disk any more, and nothing is to be written."""
        self.held = IntervalSet()
        self.queue.clear()
        self.queued_bytes = 0
        self.epoch += 1
        self.saved_version = None
