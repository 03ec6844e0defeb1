"""FETCHes and TRACK_STATUSes of one Track that cannot be answered yet.

Theory of operation. FETCH waits until enough is known of the Largest Object, by asking a
publisher for what is missing of the range; without a publisher our own Largest Object is the
end, and so it is once FILL_TIMEOUT has passed. TRACK_STATUS waits for an upstream
subscription, or for what a publisher answers to one of ours. Requests that are answered
belong to `Demand`.

Source: MOQT draft 22, Sections 3.2.3, 9.11 to 9.13 and 9.20.5.
"""

from functools import partial
from typing import Final, Protocol

from kvcs.errors import RequestErrorCode
from kvcs.moqt.codepoints import LocationFilterType
from kvcs.moqt.session.events import FetchReceived, TrackStatusReceived
from kvcs.moqt.track.contents import Absent, Found, Unknown
from kvcs.moqt.track.delivery import OnGap
from kvcs.moqt.track.fetch_delivery import FetchDelivery
from kvcs.moqt.track.interval import MAX_POSITION, to_location, to_position
from kvcs.moqt.track.object_ids import ObjectIds
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.names import Location
from kvcs.relay.asker_shares import Stay
from kvcs.relay.host import Host
from kvcs.relay.namespaces import Route
from kvcs.relay.peer import Peer
from kvcs.relay.refusal import ASKED_MUCH, NOT_FOUND, Refusal
from kvcs.relay.supply import Supply
from kvcs.relay.upstream_status import UpstreamStatus
from kvcs.relay.waiting import Probe, Question, Waiting

__all__ = ("Questions",)

_NEEDS_LARGEST: Final = frozenset(
    {LocationFilterType.RELATIVE_START, LocationFilterType.NEXT_OBJECT}
)
_TIMED_OUT: Final = Refusal(RequestErrorCode.TIMEOUT, "nothing is known of the range in time")


class _Audience(Protocol):
    """The subscribers that questions come from."""

    def on_gap_of(self, peer: Peer) -> OnGap:
        """Return who fills gaps of deliveries to a peer."""
        ...

    def serve_fetch(self, question: Question, delivery: FetchDelivery) -> None:
        """Take over a FETCH that was answered."""
        ...

    def refuse(self, waiting: Question, refusal: Refusal, *, now: float) -> None:
        """Answer a question with REQUEST_ERROR."""
        ...

    def replay(self, waiting: Question, *, now: float) -> None:
        """Apply the updates that came before the answer."""
        ...


class Questions:
    """What subscribers of one Track asked and were not told yet."""

    def __init__(self, supply: Supply, host: Host, audience: _Audience) -> None:
        self._supply = supply
        self._host = host
        self._audience = audience
        self._waiting: dict[Route, Question] = {}

    def __repr__(self) -> str:
        return f"<Questions {self._supply.name} waiting={len(self._waiting)}>"

    def __len__(self) -> int:
        return len(self._waiting)

    def find(self, route: Route) -> Question | None:
        """Return a question that waits."""
        return self._waiting.get(route)

    def remove(self, route: Route) -> None:
        """Forget a question; unknown ones are ignored."""
        self._waiting.pop(route, None)

    def add(self, peer: Peer, event: FetchReceived | TrackStatusReceived, *, now: float) -> Route:
        """Take a question; `settle_one` is due next."""
        timeout_ms = event.parameters.fill_timeout_ms
        deadline = None if timeout_ms is None else now + timeout_ms / 1000
        route = peer.route(event.request_id)
        self._waiting[route] = Waiting(peer, event, deadline)
        if deadline is not None:
            self._host.schedule(deadline, partial(self._expire, route))
        return route

    def settle_one(self, route: Route, *, now: float) -> None:
        """Answer a question if it can be answered, or else ask publishers."""
        question = self._waiting.get(route)
        if question is not None and question.probe is None:
            self._settle(route, question, now)

    def settle(self, *, now: float) -> None:
        """Answer what can be answered, and ask publishers for what cannot."""
        for route, question in tuple(self._waiting.items()):
            if question.probe is None and route in self._waiting:
                self._settle(route, question, now)

    def probe_answered(self, probe: Probe) -> None:
        """Note that a publisher said how far the Track goes; `settle` is due next."""
        for question in self._waiting.values():
            if question.probe is probe:
                question.probe = None
                question.is_learned = _says_enough(probe, question.location_filter)

    def probe_refused(self, probe: Probe, refusal: Refusal, *, now: float) -> None:
        """Note that a publisher did not say more about the Track; `settle` is due next."""
        store = self._supply.store
        is_short = refusal.code == RequestErrorCode.INVALID_RANGE and store.largest is not None
        for route, question in tuple(self._waiting.items()):
            if question.probe is not probe:
                continue
            question.probe = None
            question.note_refusal(probe.peer, refusal)
            peers = self._supply.publishers.for_fetch(question.peer, now)
            if any(peer not in question.denied for peer in peers):
                # Another publisher may know; `settle` is due next.
                continue
            told = question.told(refusal)
            # Of a publisher that is only busy nothing is learned: the subscriber asks again.
            is_busy = told.code == RequestErrorCode.EXCESSIVE_LOAD
            if not is_busy and (is_short or self._supply.holds_anything):
                question.is_learned = True
            else:
                del self._waiting[route]
                self._audience.refuse(question, told, now=now)

    def refuse_all(self, refusal: Refusal, *, now: float) -> None:
        """Refuse everything that waits."""
        for route, question in tuple(self._waiting.items()):
            del self._waiting[route]
            self._audience.refuse(question, refusal, now=now)

    def _expire(self, route: Route, now: float) -> None:
        """Answer a FETCH that may wait no longer with what there is."""
        question = self._waiting.get(route)
        if question is not None:
            question.probe = None
            self._settle(route, question, now)

    # Deciding.

    def _settle(self, route: Route, question: Question, now: float) -> None:
        event, turns, may_ask = question.event, self._host.turns, partial(self._may_ask, question)
        is_over = question.deadline is not None and now >= question.deadline
        is_answerable = self._is_answerable(question)
        if not is_answerable and not is_over:
            question.probe = self._probe(question, now)
            if question.probe is not None or turns.wait(
                question, may_ask, self._take_turn, now=now
            ):
                return
        del self._waiting[route]
        turns.forget(route)
        publishers, peer, denied = self._supply.publishers, question.peer, question.denied
        is_much = not may_ask() or publishers.are_asked_much(peer, denied, now)
        if is_much and not is_answerable:
            self._audience.refuse(question, ASKED_MUCH, now=now)
        elif isinstance(event, FetchReceived):
            is_known = is_answerable or not is_over or self._reaches(question)
            self._answer_fetch(question, event, is_known=is_known, now=now)
        elif is_answerable or self._supply.holds_anything:
            # Nobody who can be asked knows more. A relay below asks this before it fetches.
            question.peer.responder.answer_track_status(event, self._supply.store, now=now)
            question.peer.forget(event.request_id)
            question.peer.wake()
        else:
            self._audience.refuse(question, NOT_FOUND, now=now)
        self._audience.replay(question, now=now)

    def _may_ask(self, question: Question) -> bool:
        """Tell whether others of its client are not all that is in the way of a question."""
        publishers = self._supply.publishers
        is_asked = question.probe is not None
        return is_asked or not publishers.lack_room(question.peer, question.denied, Stay.PASSING)

    def _take_turn(self, route: Route, now: float) -> None:
        self.settle_one(route, now=now)

    def _is_answerable(self, question: Question) -> bool:
        """Tell whether our Largest Object decides where the range of a FETCH ends."""
        store, upstream = self._supply.store, self._supply.upstream
        if not isinstance(question.event, FetchReceived):
            # Where the end is known, it is all that a publisher could say.
            is_known = store.end is not None and self._supply.holds_anything
            return is_known or upstream.is_established(question.peer) or question.is_learned
        if question.is_learned or upstream.is_forwarding(question.peer) or store.end is not None:
            return True
        asked = _last(question.location_filter)
        return asked is not None and store.largest is not None and asked <= store.largest

    def _reaches(self, question: Question) -> bool:
        """Tell whether the range of a FETCH begins where the Track is known to go."""
        largest = self._supply.store.largest
        return largest is not None and question.location_filter.fetch_range(largest) is not None

    def _probe(self, question: Question, now: float) -> Probe | None:
        """Ask a publisher how far the Track goes; with a FETCH for what is missing anyway."""
        location_filter = question.location_filter
        is_fetch = isinstance(question.event, FetchReceived)
        if not is_fetch or location_filter.kind in _NEEDS_LARGEST:
            return self._supply.inquiries.ask_status(question.peer, question.denied, now=now)
        asked = _last(location_filter)
        through = MAX_POSITION if asked is None else to_position(asked)
        start = self._first_unknown(_first(location_filter), through, now)
        for fetch in self._supply.inquiries.fetches:
            if not fetch.peer.may_serve(question.peer) or fetch.end is not None:
                continue
            if fetch.covers(start) or fetch.through >= through:
                return fetch
        first = to_location(start)
        ask = LocationFilter.absolute_start(first.group_id, first.object_id)
        return self._supply.inquiries.probe(
            (start, through),
            None if asked is not None else ask,
            asker=question.peer,
            denied=question.denied,
            ids=ObjectIds.of(question.event.parameters.range_filters),
            now=now,
        )

    def _first_unknown(self, start: Location, through: int, now: float) -> int:
        """Return where to begin a FETCH that also finds out where a range ends.

        That is behind everything that is held; gaps before that are fetched by themselves.
        """
        store = self._supply.store
        position = to_position(start)
        for group_id in reversed(store.groups()):
            held = [ids[-1] for ids in (s.ids for s in store.subgroups(group_id)) if ids]
            if group_id << 64 <= through and held:
                position = max(position, (group_id << 64 | max(held)) + 1)
                break
        stored = self._supply.stored.disk.last_held(through)
        if stored is not None:
            position = max(position, stored + 1)
        while position < through:
            match store.lookup(to_location(position), now=now):
                case Absent(through=last):
                    position = to_position(last) + 1
                case Found():
                    position += 1
                case Unknown():
                    break
        return min(position, through)

    # Answering.

    def _answer_fetch(
        self, question: Question, event: FetchReceived, *, is_known: bool, now: float
    ) -> None:
        store, peer = self._supply.store, question.peer
        has_publisher = bool(self._supply.publishers.available(peer))
        can_fill = has_publisher or bool(self._supply.stored.disk.held)
        if not is_known:
            self._audience.refuse(question, _TIMED_OUT, now=now)
            return
        if not (has_publisher or self._supply.holds_anything):
            self._audience.refuse(question, NOT_FOUND, now=now)
            return
        delivery = peer.responder.answer_fetch(
            event,
            store,
            now=now,
            deadline=question.deadline,
            on_gap=self._audience.on_gap_of(peer) if can_fill else None,
        )
        peer.wake()
        if delivery is None:
            peer.forget(event.request_id)
            return
        self._host.metrics.fetches_served += 1
        self._audience.serve_fetch(question, delivery)


def _first(location_filter: LocationFilter) -> Location:
    return Location(location_filter.start_group, location_filter.start_object)


def _last(location_filter: LocationFilter) -> Location | None:
    """Return the last Location that a filter asks for, None where that is Largest."""
    return location_filter.subscription_range(None).end


def _says_enough(probe: Probe, location_filter: LocationFilter) -> bool:
    if isinstance(probe, UpstreamStatus):
        return True
    asked = _last(location_filter)
    return probe.through >= (MAX_POSITION if asked is None else to_position(asked))
