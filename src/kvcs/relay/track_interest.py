"""Which prefixes of Tracks this relay asks other relays to publish: SUBSCRIBE_TRACKS along a tree.

Theory of operation. A peer that subscribed to a prefix wants the Tracks below it wherever in the
tree they are published. So every prefix that is wanted here goes to the parent and to the relays
below, each of which is asked for what somebody else wants, never for what it wants itself: a
request runs through a tree once and does not turn round. A relay below is asked only for what it
may publish, since every client can say that it is one. To one relay there are few requests,
which must not overlap: one that another covers is not sent, one that covers others replaces them,
and when many differ in their last field only, what they have in common is asked for instead. They
ask for Next Object and have no other terms; those of a subscriber are kept here. What a client
wants beyond its share of requests is asked for later (`kvcs.relay.asker_shares`).

What they bring is a PUBLISH like any other, which is refused where nobody wants it. A Track that
was skipped is skipped here as well.

Source: MOQT draft 22, Sections 3.6, 7.6, 9.18 and 9.19.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from kvcs.errors import LocalProtocolError
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import (
    Event,
    PublishSkippedReceived,
    RequestCancelled,
    RequestRejected,
)
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.admission import Admission
from kvcs.relay.asker_shares import Stay
from kvcs.relay.config import RelayLimits
from kvcs.relay.namespaces import PeerId, Route
from kvcs.relay.peer import Peer
from kvcs.relay.prefix_requests import PrefixRequests, retry_wait

__all__ = ("TrackInterest",)

# Seconds without questions to a relay once too many were asked.
_PAUSE: Final = 1.0

type OnSkipped = Callable[[Peer, FullTrackName, float], None]
"""Called with the relay that could not publish a Track, the Track and the time."""


class _Host(Protocol):
    """What this part needs of the relay around it."""

    @property
    def limits(self) -> RelayLimits:
        """Bounds."""
        ...

    @property
    def admission(self) -> Admission:
        """Who may do what."""
        ...

    def schedule(self, deadline: float, alarm: Callable[[float], None]) -> None:
        """Call `alarm` with the time when `deadline` has passed."""
        ...


@dataclass(frozen=True, slots=True)
class _Wish:
    """What one SUBSCRIBE_TRACKS wants."""

    prefix: TrackNamespace
    asker: Peer
    forward: bool


@dataclass(slots=True, eq=False)
class _Request:
    """One SUBSCRIBE_TRACKS of ours."""

    request_id: RequestId
    forward: bool


@dataclass(slots=True, eq=False)
class _Neighbour:
    """A relay next to this one.

    Attributes:
        peer: Its session.
        wanted: What it wants itself.
        requests: What it is asked for.
        lacks_right: It was not asked for something since it may not publish it.
        asks_later: It is asked again soon for what it could not be asked for.
        rests_until: Whether it may publish more is not seen before, in monotonic seconds.
    """

    peer: Peer
    wanted: Counter[TrackNamespace] = field(default_factory=Counter[TrackNamespace])
    requests: PrefixRequests[_Request] = field(default_factory=PrefixRequests[_Request])
    lacks_right: bool = False
    asks_later: bool = False
    rests_until: float = 0.0


class TrackInterest:
    """The SUBSCRIBE_TRACKS requests of a relay to those next to it."""

    def __init__(self, host: _Host, on_skipped: OnSkipped) -> None:
        self._host = host
        self._on_skipped = on_skipped
        self._wishes: dict[Route, _Wish] = {}
        self._wanted: Counter[TrackNamespace] = Counter()
        self._neighbours: dict[PeerId, _Neighbour] = {}
        self._is_pruning = False

    def __repr__(self) -> str:
        return f"<TrackInterest wanted={len(self._wanted)} relays={len(self._neighbours)}>"

    # Relays.

    def attach(self, peer: Peer, *, now: float) -> None:
        """Ask a relay that is next to this one from now on."""
        neighbour = self._neighbours[peer.id] = _Neighbour(peer)
        for route, wish in self._wishes.items():
            if route.peer == peer.id:
                neighbour.wanted[wish.prefix] += 1
        for wish in tuple(self._wishes.values()):
            self._cover(neighbour, wish, now)

    def authorize(self, peer: Peer, *, now: float) -> None:
        """Ask a relay for what it may publish since it presented another token."""
        neighbour = self._neighbours.get(peer.id)
        if neighbour is None or not neighbour.lacks_right:
            return
        neighbour.lacks_right = False
        if now >= neighbour.rests_until:
            neighbour.rests_until = now + _PAUSE
            self._cover_all(neighbour, TrackNamespace(), now)
        else:
            # Everybody with two tokens can show now the one and now the other.
            self._ask_later(neighbour, now)

    def detach(self, peer: Peer) -> None:
        """Note that a session is over; those of no relays are ignored."""
        self._neighbours.pop(peer.id, None)

    # Wishes.

    def want(
        self, route: Route, prefix: TrackNamespace, asker: Peer, *, forward: bool, now: float
    ) -> None:
        """Ask all relays but the one that wants it for a prefix, in place of what `route` wanted.

        Args:
            route: The SUBSCRIBE_TRACKS.
            prefix: Its prefix.
            asker: Whose it is.
            forward: Its subscriptions are not paused.
            now: Monotonic seconds.
        """
        self.forget(route, now=now)
        wish = self._wishes[route] = _Wish(prefix, asker, forward)
        self._count(route, wish, 1)
        for neighbour in tuple(self._neighbours.values()):
            neighbour.requests.refused.discard(prefix)
            self._cover(neighbour, wish, now)

    def forget(self, route: Route, *, now: float) -> None:
        """Take back what a request wanted; relays are asked no longer a little later."""
        wish = self._wishes.pop(route, None)
        if wish is None:
            return
        self._count(route, wish, -1)
        if not self._is_pruning:
            self._is_pruning = True
            self._host.schedule(now + self._host.limits.subscription_linger, self._prune)

    def _count(self, route: Route, wish: _Wish, change: int) -> None:
        neighbour = self._neighbours.get(route.peer)
        for counter in (self._wanted, *(() if neighbour is None else (neighbour.wanted,))):
            counter[wish.prefix] += change
            if not counter[wish.prefix]:
                del counter[wish.prefix]

    def _wanted_of(self, neighbour: _Neighbour) -> list[TrackNamespace]:
        """Return what somebody else wants."""
        own = neighbour.wanted
        return [prefix for prefix, count in self._wanted.items() if count > own[prefix]]

    # Requests.

    def _cover(self, neighbour: _Neighbour, wish: _Wish, now: float) -> None:
        """Have a relay publish what is wanted, if somebody else wants it."""
        prefix, peer = wish.prefix, neighbour.peer
        if self._wanted[prefix] <= neighbour.wanted[prefix] or not peer.is_available:
            return
        request = neighbour.requests.covering(prefix)
        if request is not None:
            self._let_forward(neighbour, request, forward=wish.forward, now=now)
            return
        if not peer.takes_question(wish.asker, now=now):
            self._ask_later(neighbour, now)
            return
        asked = neighbour.requests.to_ask_for(prefix, partial(self._may_offer, neighbour))
        if asked is None:
            return
        # A request that ends others takes nothing.
        has_room = peer.has_room_for(wish.asker, Stay.STANDING) or neighbour.requests.below(asked)
        if not has_room:
            self._ask_later(neighbour, now)
        elif self._may_offer(neighbour, asked):
            self._subscribe(neighbour, asked, wish, now=now)
        else:
            neighbour.lacks_right = True

    def _may_offer(self, neighbour: _Neighbour, prefix: TrackNamespace) -> bool:
        """Tell whether a relay may know that somebody wants a prefix."""
        return self._host.admission.may_offer(neighbour.peer, prefix)

    def _subscribe(
        self, neighbour: _Neighbour, prefix: TrackNamespace, wish: _Wish, *, now: float
    ) -> None:
        running, peer, forward = neighbour.requests.running, neighbour.peer, wish.forward
        for narrower in neighbour.requests.below(prefix):
            forward |= running[narrower].forward
            self._cancel(neighbour, narrower, now)
        if len(running) >= self._host.limits.max_prefixes_per_session:
            return
        parameters = Parameters(
            location_filter=LocationFilter.next_object(), forward=None if forward else False
        )
        try:
            request_id = peer.session.subscribe_tracks(prefix, parameters, now=now)
        except LocalProtocolError:
            # The session takes no requests any more, and so is as good as over.
            return
        peer.note_question(wish.asker, now=now)
        peer.charge(request_id, wish.asker, Stay.STANDING)
        running[prefix] = _Request(request_id, forward)
        peer.follow(request_id, partial(self._receive, neighbour, prefix))
        peer.wake()

    def _let_forward(
        self, neighbour: _Neighbour, request: _Request, *, forward: bool, now: float
    ) -> None:
        """Have Tracks that are published from now on not begin paused."""
        session = neighbour.peer.session
        if not forward or request.forward or not session.is_active(request.request_id):
            return
        try:
            session.update(request.request_id, Parameters(forward=True), now=now)
        except LocalProtocolError:
            # So many updates are unanswered; each Track is resumed when it comes.
            return
        request.forward = True
        neighbour.peer.note_question(None, now=now)
        neighbour.peer.wake()

    def _cancel(self, neighbour: _Neighbour, prefix: TrackNamespace, now: float) -> None:
        peer, request = neighbour.peer, neighbour.requests.running.pop(prefix)
        peer.forget(request.request_id)
        if peer.session.is_active(request.request_id):
            peer.session.cancel(request.request_id, now=now)
            peer.wake()

    def _prune(self, now: float) -> None:
        """Ask nobody for what nobody wants any more."""
        self._is_pruning = False
        for neighbour in self._neighbours.values():
            for prefix in neighbour.requests.forget_unwanted(self._wanted_of(neighbour)):
                self._cancel(neighbour, prefix, now)
            wishes = ((wish.prefix, wish.asker) for wish in self._wishes.values())
            neighbour.requests.charge(neighbour.peer, wishes)

    # News.

    def _receive(
        self, neighbour: _Neighbour, prefix: TrackNamespace, event: Event, now: float
    ) -> None:
        match event:
            case PublishSkippedReceived():
                self._receive_skipped(neighbour.peer, prefix, event, now)
            case RequestRejected() | RequestCancelled():
                self._receive_refusal(neighbour, prefix, event, now)
            case _:
                # The end of the session, above all: `detach` forgets all of them.
                pass

    def _receive_skipped(
        self, peer: Peer, prefix: TrackNamespace, event: PublishSkippedReceived, now: float
    ) -> None:
        try:
            track = FullTrackName(prefix.joined(event.suffix), event.track_name)
        except ValueError:
            # A name that is too long is the name of no Track.
            return
        if not self._host.admission.may_offer(peer, track.namespace):
            return
        self._on_skipped(peer, track, now)

    def _receive_refusal(
        self,
        neighbour: _Neighbour,
        prefix: TrackNamespace,
        event: RequestRejected | RequestCancelled,
        now: float,
    ) -> None:
        """Ask again later where that helps; else for what was to be covered by it."""
        neighbour.peer.forget(event.request_id)
        neighbour.requests.running.pop(prefix, None)
        neighbour.requests.refused.add(prefix)
        wait = retry_wait(event)
        if wait is not None:
            self._host.schedule(now + wait, partial(self._ask_again, neighbour, prefix))
        self._cover_all(neighbour, prefix, now)

    def _ask_again(self, neighbour: _Neighbour, prefix: TrackNamespace, now: float) -> None:
        if self._neighbours.get(neighbour.peer.id) is neighbour:
            neighbour.requests.refused.discard(prefix)
            self._cover_all(neighbour, prefix, now)

    def _ask_later(self, neighbour: _Neighbour, now: float) -> None:
        """Ask for what is wanted once the relay takes more questions, or more of one client."""
        if not neighbour.asks_later:
            neighbour.asks_later = True
            self._host.schedule(now + _PAUSE, partial(self._ask_postponed, neighbour))

    def _ask_postponed(self, neighbour: _Neighbour, now: float) -> None:
        neighbour.asks_later = False
        if self._neighbours.get(neighbour.peer.id) is neighbour:
            self._cover_all(neighbour, TrackNamespace(), now)

    def _cover_all(self, neighbour: _Neighbour, prefix: TrackNamespace, now: float) -> None:
        """Have a relay publish what is wanted below a prefix: for others nothing has changed."""
        for wish in tuple(self._wishes.values()):
            if prefix.is_prefix_of(wish.prefix):
                self._cover(neighbour, wish, now)
