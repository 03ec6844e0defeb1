"""What the operations of a disk store take and give: values that pass between threads."""

from dataclasses import dataclass, field

from kvcs.moqt.track.interval import IntervalSet
from kvcs.moqt.track.knowledge import Knowledge
from kvcs.moqt.wire.object import Object
from kvcs.names import FullTrackName

__all__ = ("Contents", "Loaded", "Lost", "Recalled", "StoredTrack", "TrackWrite", "Written")


@dataclass(frozen=True, slots=True)
class StoredTrack:
    """One Track on disk.

    Attributes:
        name: The Track.
        size_bytes: Octets of its files, in whole blocks.
        complete: Whether every Object of it is there.
        used: When somebody asked for it last.
    """

    name: FullTrackName
    size_bytes: int
    complete: bool
    used: float


@dataclass(frozen=True, slots=True)
class Lost:
    """What is no longer on disk of one Track.

    Attributes:
        name: The Track.
        size_bytes: Octets of its files that are left; None if it is gone altogether.
        freed_bytes: Octets that were deleted.
        runs: Positions of the data that was lost, ends inclusive.
    """

    name: FullTrackName
    size_bytes: int | None
    freed_bytes: int
    runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Contents:
    """What was found on disk at the start.

    Attributes:
        tracks: The Tracks, those that nobody asked for since long first.
        next_expiry: When the first file expires.
        discarded: Octets that were deleted, by reason.
    """

    tracks: tuple[StoredTrack, ...]
    next_expiry: float | None
    discarded: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackWrite:
    """What is to be written of one Track.

    Attributes:
        name: The Track.
        objects: Objects, and when each was received.
        knowledge: What is known of it; None has not changed.
        lifetime: Seconds for which its Objects may be kept; None is unlimited.
        complete: Whether every Object of it is on disk then.
        used: When somebody asked for it last.
    """

    name: FullTrackName
    objects: tuple[tuple[Object, float], ...]
    knowledge: Knowledge | None
    lifetime: float | None
    complete: bool
    used: float


@dataclass(frozen=True, slots=True)
class Written:
    """What a write did.

    Attributes:
        sizes: Octets of the files of each Track that was written to. One of which all that
            was there has expired meanwhile is not among them, unless it is written anew.
        next_expiry: When the first file expires.
    """

    sizes: dict[FullTrackName, int]
    next_expiry: float | None


@dataclass(frozen=True, slots=True)
class Recalled:
    """What is on disk of one Track.

    Attributes:
        knowledge: What is known of it.
        held: Positions of its data.
    """

    knowledge: Knowledge
    held: IntervalSet


@dataclass(slots=True)
class Loaded:
    """Objects that were read.

    Attributes:
        through: Last position that was looked at, inclusive.
        objects: Objects in order, and when each was received.
        size_bytes: Octets of their records.
        damaged_bytes: Octets of records that were forgotten.
    """

    through: int
    objects: list[tuple[Object, float]] = field(default_factory=list[tuple[Object, float]])
    size_bytes: int = 0
    damaged_bytes: int = 0
