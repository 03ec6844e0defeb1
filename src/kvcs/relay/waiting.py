"""A request of a subscriber that a relay cannot answer yet.

Source: MOQT draft 22, Sections 3.2.3, 9.20.5 and 9.20.6.
"""

from dataclasses import dataclass, field

from kvcs.errors import RequestErrorCode
from kvcs.moqt.session.events import (
    FetchReceived,
    SubscribeReceived,
    TrackStatusReceived,
    UpdateReceived,
)
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.relay.peer import Peer
from kvcs.relay.refusal import NO_PARENT, Refusal
from kvcs.relay.upstream_fetch import UpstreamFetch
from kvcs.relay.upstream_status import UpstreamStatus

__all__ = ("Probe", "Question", "Waiting")

type Probe = UpstreamFetch | UpstreamStatus
"""What was sent to a publisher to learn how far a Track goes."""

type Question = Waiting[FetchReceived | TrackStatusReceived]


@dataclass(slots=True, eq=False)
class Waiting[E: (SubscribeReceived, FetchReceived | TrackStatusReceived)]:
    """A request that cannot be answered yet.

    Attributes:
        peer: The subscriber.
        event: The request.
        deadline: How long a SUBSCRIBE waits for a publisher to appear, and a FETCH for what
            is missing, in monotonic seconds; None if the request does not say.
        turn_until: How long it waits for its client to be asked for less, in monotonic seconds;
            None while it has not waited.
        is_refused: A publisher does not know the Track; only a new one may.
        probe: What was sent to a publisher to learn more, for this request or another.
        is_learned: The publisher said as much as it will.
        denied: Publishers that did not say more.
        refusal: What one of them said first, but for that the Track does not exist.
        updates: REQUEST_UPDATEs that came meanwhile.
    """

    peer: Peer
    event: E
    deadline: float | None = None
    turn_until: float | None = None
    is_refused: bool = False
    probe: Probe | None = None
    is_learned: bool = False
    denied: set[Peer] = field(default_factory=set[Peer])
    refusal: Refusal | None = None
    updates: list[UpdateReceived] = field(default_factory=list[UpdateReceived])

    def note_refusal(self, peer: Peer, refusal: Refusal) -> None:
        """Note that a publisher refuses."""
        self.denied.add(peer)
        if self.refusal is None and refusal.code != RequestErrorCode.DOES_NOT_EXIST:
            self.refusal = refusal

    def told(self, refusal: Refusal) -> Refusal:
        """Return what to tell the subscriber, where the last publisher gave this refusal.

        A parent that does not trust this relay says less than any publisher.
        """
        return self.refusal if refusal == NO_PARENT and self.refusal is not None else refusal

    @property
    def wants_objects(self) -> bool:
        """Whether Objects are to come at once."""
        return self.event.parameters.forward is not False

    @property
    def location_filter(self) -> LocationFilter:
        """The range that is asked for."""
        return self.event.parameters.location_filter or LocationFilter.none()
