"""Where upstream requests put what they receive: `Intake`, or less in tests."""

from typing import Protocol

from kvcs.moqt.track.arriving import Arriving
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.object import Object
from kvcs.names import FullTrackName, Location
from kvcs.relay.peer import Peer

__all__ = ("ObjectSink",)


class ObjectSink(Protocol):
    """The way into a Track.

    Attributes:
        name: Its name.
        store: Its Objects.
    """

    name: FullTrackName
    store: TrackStore

    @property
    def cut_through_bytes(self) -> int:
        """Objects of at least so many octets go on while they arrive."""
        ...

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
        """Take an Object; raises MalformedTrack.

        Args:
            obj: The Object.
            peer: Who sent it.
            follows: Object ID of the Object right before it on the same Subgroup stream.
            fetched: It came on a fetch stream.
            began_at: When its first octet came; None is now.
            now: Monotonic seconds.
        """
        ...

    def begin_object(self, arriving: Arriving, peer: Peer, *, now: float) -> None:
        """Let an Object go on while it arrives; raises MalformedTrack."""
        ...

    def mark_absent(self, start: int, through: int) -> None:
        """Note that nothing is at these positions, which may be none."""
        ...

    def largest_advertised(self, largest: Location | None) -> None:
        """Note a LARGEST_OBJECT of a publisher."""
        ...
