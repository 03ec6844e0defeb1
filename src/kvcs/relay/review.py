"""What was allowed for a time is decided again when the time is over, and ends if it must.

Theory of operation. Each request that a policy granted for a time carries the time at which the
grant is over (`Access.until`). One alarm is set for the earliest of them; those that are due then
are decided as if they came now. A grant that goes on gets a new time. One that does not ends as
the draft has it: subscriptions with PUBLISH_DONE EXPIRED, fetches by a reset, both with all their
streams reset with EXPIRED_AUTH_TOKEN; what was announced is withdrawn, and nothing more is taken
from who may no longer publish. What a publisher sends for a namespace that it has taken back goes
by what the namespace was announced by, as long as it sends: it would outlast its token otherwise.

Source: MOQT draft 22, Sections 8.9, 12.4 and 12.5; draft-ietf-moq-c4m-01, Section 2.1 (moqt-reval).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, Protocol

from kvcs.errors import PublishDoneCode, RequestErrorCode, StreamResetCode
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import RequestCancelled
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.auth import Access, AccessAction, Decision, Grant, RefusalReasons
from kvcs.relay.grants import GRID, slot_of
from kvcs.relay.journal import Journal
from kvcs.relay.peer import Peer
from kvcs.relay.refusal import Refusal
from kvcs.relay.statistics import Metrics
from kvcs.relay.tracks import Track

__all__ = ("Host", "Review")

# Requests that are decided before the relay does something else.
_MOST_AT_ONCE: Final = 1000
# Seconds until it is seen whether a publisher still sends for a namespace that it has taken back.
_WITHDRAWN_INTERVAL: Final = 60.0
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

    def publishers(self, namespace: TrackNamespace) -> list[Peer]:
        """Return the peers that advertise a namespace."""
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
        due = slot_of(until)
        if due < self._due:
            self._due = due
            self._host.schedule(due, self._look)

    def withdrawn(self, peer: Peer, access: Access, *, now: float) -> None:
        """Note that a publisher has taken back what it had announced or published by `access`."""
        if not peer.is_parent and not peer.session.is_closed:
            self._keep_withdrawn(peer, access, access.until, now)

    def everything(self, *, now: float) -> None:
        """Decide everything again, since the policy has changed."""
        for peer in tuple(self._host.peers()):
            for request_id, access in tuple(peer.granted.items()):
                peer.granted[request_id] = replace(access, until=now)
            for name, access in tuple(peer.withdrawn.items()):
                peer.withdrawn[name] = replace(access, until=now)
        self._decide(lambda peer: tuple(peer.granted), now)

    def _look(self, now: float) -> None:
        if now < self._due:
            return  # An earlier alarm has taken the place of this one.
        self._due = math.inf
        self._decide(lambda peer: peer.granted.due(now=now), now)

    def _decide(self, due: Callable[[Peer], Iterable[RequestId]], now: float) -> None:
        is_done, left = False, _MOST_AT_ONCE
        try:
            for peer in tuple(self._host.peers()):
                for request_id in due(peer):
                    access = peer.granted.get(request_id)
                    if access is None:
                        continue
                    if not left:
                        self._go_on(now)
                        is_done = True
                        return
                    left -= 1
                    self._again(peer, request_id, access, now)
                self._decide_withdrawn(peer, now)
                self.expect(peer.granted.next_due)
            is_done = True
        finally:
            if not is_done:
                # The policy failed, and is asked for the others in a moment.
                self.expect(now + GRID)

    def _go_on(self, now: float) -> None:
        """Look for the rest as soon as others had their turn."""
        self._due = now
        self._host.schedule(now, self._look)

    def _decide_withdrawn(self, peer: Peer, now: float) -> None:
        for name, access in tuple(peer.withdrawn.items()):
            if access.until is not None and access.until > now:
                self.expect(access.until)
                continue
            del peer.withdrawn[name]
            if not self._outlasting(peer, access):
                continue
            decision: Decision = RequestErrorCode.UNAUTHORIZED
            reasons = RefusalReasons()
            try:
                # Nothing is left to renew it by: another token comes with what is asked next.
                tokens = (*peer.presented, *access.tokens)
                decision = self._judge(peer, replace(access, tokens=tokens, reasons=reasons))
            finally:
                # A policy that fails allows nothing.
                self._apply_withdrawn(peer, access, decision, reasons, now)

    def _apply_withdrawn(
        self, peer: Peer, access: Access, decision: Decision, reasons: RefusalReasons, now: float
    ) -> None:
        match decision:
            case None:
                self._keep_withdrawn(peer, access, None, now)
            case Grant(seconds=seconds):
                self._keep_withdrawn(peer, access, now + seconds, now)
            case code:
                self._note_end(peer, access, Refusal(code, "", note=str(reasons)), now)
                for track in self._outlasting(peer, access):
                    track.supply.dismiss(peer, now=now)
                peer.wake()

    def _keep_withdrawn(self, peer: Peer, access: Access, until: float | None, now: float) -> None:
        """Decide again what something was announced by, if anything goes by it now."""
        if self._outlasting(peer, access):
            soon = now + _WITHDRAWN_INTERVAL
            until = soon if until is None else min(until, soon)
            name = access.namespace
            kept = name if access.track_name is None else FullTrackName(name, access.track_name)
            peer.withdrawn[kept] = replace(access, until=until)
            self.expect(until)

    def _outlasting(self, peer: Peer, access: Access) -> list[Track]:
        """Return the Tracks of what was announced by `access` that a peer sends by nothing else."""
        return [
            track
            for track in self._host.tracks_below(access.namespace)
            if access.track_name in (None, track.name.name)
            and track.supply.uses(peer)
            and peer not in self._host.publishers(track.name.namespace)
        ]

    def _dismiss(self, peer: Peer, namespace: TrackNamespace, now: float) -> None:
        """Take nothing more from a peer below a namespace, but for what else it announces."""
        for track in self._host.tracks_below(namespace):
            if peer not in self._host.publishers(track.name.namespace):
                track.supply.dismiss(peer, now=now)
        peer.wake()

    def _dismiss_questions(self, peer: Peer, access: Access, now: float) -> None:
        """Take no answers about a Track from a peer that may not publish it any longer."""
        for track in self._host.tracks_below(access.namespace):
            if track.name.name == access.track_name:
                track.supply.inquiries.dismiss(peer, now=now)

    def _note_end(self, peer: Peer, access: Access, refusal: Refusal, now: float) -> None:
        self._host.metrics.grants_ended[refusal.code.name] += 1
        self._host.journal.grant_ended(peer, access, refusal, now=now)

    def _again(self, peer: Peer, request_id: RequestId, access: Access, now: float) -> None:
        if not peer.session.is_active(request_id):
            peer.granted.pop(request_id, None)
            return
        decision: Decision = RequestErrorCode.UNAUTHORIZED
        reasons = RefusalReasons()
        try:
            decision = self._judge(peer, replace(access, reasons=reasons))
        finally:
            # A policy that fails allows nothing.
            if isinstance(decision, RequestErrorCode):
                refusal = Refusal(decision, "", note=str(reasons))
                self._end(peer, request_id, access, refusal, now)
            else:
                self._keep(peer, request_id, access, decision, now)

    def _keep(
        self, peer: Peer, request_id: RequestId, access: Access, grant: Grant | None, now: float
    ) -> None:
        match grant:
            case None:
                peer.granted[request_id] = replace(access, until=None)
            case Grant(seconds=seconds):
                peer.granted[request_id] = replace(access, until=now + seconds)
                self.expect(now + seconds)

    def _end(
        self, peer: Peer, request_id: RequestId, access: Access, refusal: Refusal, now: float
    ) -> None:
        """End a request that may not go on, answered or not."""
        self._note_end(peer, access, refusal, now)
        code = refusal.code
        listener = peer.listener(request_id)
        done = PublishDoneCode.UNAUTHORIZED
        if code is RequestErrorCode.EXPIRED_AUTH_TOKEN:
            done = PublishDoneCode.EXPIRED
        if not peer.responder.cut_off(request_id, done, now=now):
            if peer.session.is_unanswered(request_id):
                self._host.refuse(peer, request_id, refusal, now=now)
            else:
                peer.session.revoke(request_id, code=_RESET, now=now)
            # Before the listener, which would have it go on as one that was taken back.
            peer.granted.pop(request_id, None)
            if listener is not None:
                listener(RequestCancelled(request_id, _RESET), now)
        peer.granted.pop(request_id, None)
        peer.wake()
        if access.action is AccessAction.PUBLISH_NAMESPACE:
            self._dismiss(peer, access.namespace, now)
        elif access.action is AccessAction.PUBLISH:
            self._dismiss_questions(peer, access, now)
