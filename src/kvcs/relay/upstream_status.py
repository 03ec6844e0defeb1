"""One question of a relay to a publisher: how far does the Track go?

Source: MOQT draft 22, Sections 1.6 and 9.13.
"""

from typing import Final, Protocol

from kvcs.errors import (
    LocalProtocolError,
    RequestErrorCode,
)
from kvcs.moqt.session.events import (
    Event,
    RequestAccepted,
    RequestRejected,
    SubscribeAccepted,
)
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import FullTrackName
from kvcs.relay.asker_shares import Stay
from kvcs.relay.peer import Peer

__all__ = ("StatusSink", "UpstreamStatus")

_NEXT_OBJECT: Final = LocationFilter.next_object()


class StatusSink(Protocol):
    """The Track that a question works for."""

    name: FullTrackName

    def status_answered(
        self,
        status: "UpstreamStatus",
        answer: RequestAccepted | SubscribeAccepted | RequestRejected | None,
        *,
        now: float,
    ) -> None:
        """Note what a publisher said of the Track; None if the session ended before."""
        ...


class UpstreamStatus:
    """One question to one publisher: how far does the Track go?

    TRACK_STATUS asks that. An endpoint need not support it (Section 1.6); one that does not is
    asked with a paused SUBSCRIBE, which is cancelled as soon as it is answered.

    Attributes:
        peer: The publisher.
        request_id: The TRACK_STATUS, or the SUBSCRIBE in its place.
    """

    def __init__(self, sink: StatusSink, peer: Peer, *, asker: Peer | None, now: float) -> None:
        """Send TRACK_STATUS to a publisher; raises LocalProtocolError if it cannot be asked now.

        Args:
            sink: The Track.
            peer: The publisher.
            asker: For whose sake; None for nobody in particular.
            now: Monotonic seconds.
        """
        peer.count_question(asker, Stay.PASSING, now=now)
        self.peer = peer
        self._asker = asker
        self.request_id = peer.session.track_status(sink.name, now=now)
        self._sink = sink
        self._is_subscribe = False
        self._follow()

    def _follow(self) -> None:
        self.peer.charge(self.request_id, self._asker, Stay.PASSING)
        self.peer.follow(self.request_id, self._receive)
        self.peer.wake()

    def dismiss(self, *, now: float) -> None:
        """Take no answer any more, as if the publisher had gone."""
        self.peer.forget(self.request_id)
        if self.peer.session.is_active(self.request_id):
            self.peer.session.cancel(self.request_id, now=now)
            self.peer.wake()
        self._sink.status_answered(self, None, now=now)

    def _receive(self, event: Event, now: float) -> None:
        self.peer.forget(self.request_id)
        match event:
            case RequestRejected() if self._may_subscribe(event) and self._subscribe(now):
                return
            case SubscribeAccepted():
                self.peer.session.cancel(self.request_id, now=now)
                self.peer.wake()
                self._sink.status_answered(self, event, now=now)
            case RequestAccepted() | RequestRejected():
                self._sink.status_answered(self, event, now=now)
            case _:
                self._sink.status_answered(self, None, now=now)

    def _may_subscribe(self, rejection: RequestRejected) -> bool:
        return rejection.code == RequestErrorCode.NOT_SUPPORTED and not self._is_subscribe

    def _subscribe(self, now: float) -> bool:
        parameters = Parameters(location_filter=_NEXT_OBJECT, forward=False)
        try:
            self.peer.count_question(self._asker, Stay.PASSING, now=now)
            self.request_id = self.peer.session.subscribe(self._sink.name, parameters, now=now)
        except LocalProtocolError:
            return False
        self._is_subscribe = True
        self._follow()
        return True
