"""What was allowed for a time is decided again when the time is over, and ends if it must.

Theory of operation. Each request that a policy granted for a time carries the time at which the
grant is over (`Access.until`). One alarm is set for the earliest of them; it looks at all
requests, and decides those that are due as if they came now. A grant that goes on gets a new
time. One that does not ends as the draft has it: subscriptions with PUBLISH_DONE EXPIRED,
fetches by a reset, both with all their streams reset with EXPIRED_AUTH_TOKEN; what was announced
is withdrawn, and nothing more is taken from who may no longer publish.

Alarms are rounded up to a quarter of a second, so that many short grants cost few looks.

Source: MOQT draft 22, Sections 8.9, 12.4 and 12.5; draft-ietf-moq-c4m-01, Section 2.1 (moqt-reval).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, Protocol

from kvcs.errors import PublishDoneCode, RequestErrorCode, StreamResetCode
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import RequestCancelled
from kvcs.names import TrackNamespace
from kvcs.relay.auth import Access, AccessAction, Decision, Grant
from kvcs.relay.journal import Journal
from kvcs.relay.peer import Peer
from kvcs.relay.refusal import Refusal
from kvcs.relay.statistics import Metrics
from kvcs.relay.tracks import Track

__all__ = ("Host", "Review")

_GRID: Final = 0.25
_RESET: Final = StreamResetCode.EXPIRED_AUTH_TOKEN


class Host(Protocol):
    """What reviewing needs of the relay around it."""

    @property
    def metrics(self) -> Metrics:
        """Counters."""
        ...

    @property
    def journal(self) -> Journal:
        """What happens, for the log."""
        ...

    def peers(self) -> Iterable[Peer]:
        """Return the open sessions."""
        ...

    def tracks_below(self, prefix: TrackNamespace) -> list[Track]:
        """Return the Tracks with any state in a namespace or below it."""
        ...

    def refuse(self, peer: Peer, request_id: RequestId, refusal: Refusal, *, now: float) -> None:
        """Answer a request with REQUEST_ERROR."""
        ...

    def schedule(self, deadline: float, alarm: Callable[[float], None]) -> None:
        """Call `alarm` with the time when `deadline` has passed."""
        ...


class Review:
    """Ends what may not go on."""

    __slots__ = ("_due", "_host", "_judge")

    def __init__(self, host: Host, judge: Callable[[Peer, Access], Decision]) -> None:
        """Have nothing to decide yet.

        Args:
            host: The relay around it.
            judge: Decides what a peer may do.
        """
        self._host = host
        self._judge = judge
        self._due = math.inf

    def __repr__(self) -> str:
        return f"<Review due={self._due}>"

    def expect(self, until: float) -> None:
        """Look again when a grant is over; monotonic seconds."""
        due = math.ceil(until / _GRID) * _GRID
        if due < self._due:
            self._due = due
            self._host.schedule(due, self._look)

    def everything(self, *, now: float) -> None:
        """Decide everything again, since the policy has changed."""
        for peer in tuple(self._host.peers()):
            for request_id, access in tuple(peer.granted.items()):
                peer.granted[request_id] = replace(access, until=now)
        self._decide_all_due(now)

    def _look(self, now: float) -> None:
        if now < self._due:
            return  # An earlier alarm has taken the place of this one.
        self._due = math.inf
        self._decide_all_due(now)

    def _decide_all_due(self, now: float) -> None:
        is_done = False
        try:
            for peer in tuple(self._host.peers()):
                for request_id, access in tuple(peer.granted.items()):
                    if access.until is None:
                        continue
                    if access.until <= now:
                        self._again(peer, request_id, access, now)
                    else:
                        self.expect(access.until)
            is_done = True
        finally:
            if not is_done:
                # The policy failed, and is asked for the others in a moment.
                self.expect(now + _GRID)

    def _again(self, peer: Peer, request_id: RequestId, access: Access, now: float) -> None:
        if not peer.session.is_active(request_id):
            peer.granted.pop(request_id, None)
            return
        decision: Decision = RequestErrorCode.UNAUTHORIZED
        try:
            decision = self._judge(peer, access)
        finally:
            # A policy that fails allows nothing.
            self._apply(peer, request_id, access, decision, now)

    def _apply(
        self, peer: Peer, request_id: RequestId, access: Access, decision: Decision, now: float
    ) -> None:
        match decision:
            case None:
                peer.granted[request_id] = replace(access, until=None)
            case Grant(seconds=seconds):
                peer.granted[request_id] = replace(access, until=now + seconds)
                self.expect(now + seconds)
            case code:
                self._end(peer, request_id, access, code, now)

    def _end(
        self, peer: Peer, request_id: RequestId, access: Access, code: RequestErrorCode, now: float
    ) -> None:
        """End a request that may not go on, answered or not."""
        self._host.metrics.grants_ended[code.name] += 1
        self._host.journal.grant_ended(peer, access, code, now=now)
        listener = peer.listener(request_id)
        done = PublishDoneCode.UNAUTHORIZED
        if code is RequestErrorCode.EXPIRED_AUTH_TOKEN:
            done = PublishDoneCode.EXPIRED
        if not peer.responder.cut_off(request_id, done, now=now):
            if peer.session.is_unanswered(request_id):
                self._host.refuse(peer, request_id, Refusal(code, ""), now=now)
            else:
                peer.session.revoke(request_id, code=_RESET, now=now)
            if listener is not None:
                listener(RequestCancelled(request_id, _RESET), now)
        peer.granted.pop(request_id, None)
        peer.wake()
        if access.action is AccessAction.PUBLISH_NAMESPACE:
            for track in self._host.tracks_below(access.namespace):
                track.supply.dismiss(peer, now=now)
