"""What a relay asks the publishers of one Track: FETCHes, and how far the Track goes.

Theory of operation. `Inquiries` owns the FETCHes and questions of one Track that are under
way, chooses whom to ask, and ends a FETCH on which nothing moves. What comes back goes to the
sink, which also takes what is over from the lists here.

Source: MOQT draft 22, Sections 3.2.3, 7.6, 9.11 and 9.13.
"""

from collections.abc import Callable, Collection
from typing import Protocol

from kvcs.errors import LocalProtocolError
from kvcs.moqt.track.object_ids import ObjectIds
from kvcs.moqt.wire.filters import LocationFilter, RangeFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.relay.gaps import Gap
from kvcs.relay.host import Host
from kvcs.relay.peer import Peer
from kvcs.relay.publishers import Publishers
from kvcs.relay.upstream_fetch import FetchSink, UpstreamFetch, range_filter
from kvcs.relay.upstream_status import StatusSink, UpstreamStatus
from kvcs.varint import MAX_VI64

__all__ = ("Inquiries",)


class _Sink(FetchSink, StatusSink, Protocol):
    """The Track that is asked about."""


class Inquiries:
    """What is asked about one Track.

    Attributes:
        fetches: FETCHes under way.
        statuses: Questions under way how far it goes.
    """

    __slots__ = ("_host", "_may_ask_later", "_publishers", "_sink", "fetches", "statuses")

    def __init__(
        self,
        sink: _Sink,
        publishers: Publishers,
        host: Host,
        *,
        may_ask_later: Callable[[], bool],
    ) -> None:
        """Ask nothing yet.

        Args:
            sink: The Track.
            publishers: Who can be asked.
            host: The relay.
            may_ask_later: Tells whether a publisher may come, if there is none.
        """
        self.fetches: list[UpstreamFetch] = []
        self.statuses: list[UpstreamStatus] = []
        self._sink = sink
        self._publishers = publishers
        self._host = host
        self._may_ask_later = may_ask_later

    def __repr__(self) -> str:
        return f"<Inquiries fetches={self.fetches} statuses={len(self.statuses)}>"

    @property
    def is_open(self) -> bool:
        """Whether an answer is outstanding."""
        return bool(self.fetches or self.statuses)

    @property
    def may_ask_later(self) -> bool:
        """Whether a publisher may come, if there is none."""
        return self._may_ask_later()

    def is_busy(self, asker: Peer | None, *, now: float) -> bool:
        """Tell whether whoever can be asked for somebody is to be asked later."""
        return self._publishers.are_busy(asker, now)

    def probe(
        self,
        span: tuple[int, int],
        location_filter: LocationFilter | None,
        *,
        asker: Peer | None,
        denied: Collection[Peer] = (),
        ids: ObjectIds | None = None,
        now: float,
    ) -> UpstreamFetch | None:
        """Fetch a range of which the end is not known; None if there is nobody to ask.

        Args:
            span: First and last position, inclusive.
            location_filter: How to ask where the range is open.
            asker: For whose sake; None for nobody in particular.
            denied: Publishers that are not asked.
            ids: Object IDs that are wanted; None for all.
            now: Monotonic seconds.
        """
        peers = [p for p in self._publishers.for_fetch(asker, now) if p not in denied]
        return self._fetch(peers, span, now, asker=asker, location_filter=location_filter, ids=ids)

    def ask_status(
        self, asker: Peer | None = None, denied: Collection[Peer] = (), *, now: float
    ) -> UpstreamStatus | None:
        """Ask how far the Track goes, unless that is under way; None if there is nobody to ask."""
        for status in self.statuses:
            if status.peer.may_serve(asker) and status.peer not in denied:
                return status
        for peer in self._publishers.available(asker):
            if peer in denied:
                continue
            try:
                status = UpstreamStatus(self._sink, peer, asker=asker, now=now)
            except LocalProtocolError:
                continue
            self.statuses.append(status)
            return status
        return None

    def dismiss(self, peer: Peer, *, now: float) -> None:
        """Take no answer any more from a peer that may not publish the Track any longer."""
        for question in (*self.fetches, *self.statuses):
            if question.peer is peer:
                question.dismiss(now=now)

    def ask(self, start: int, through: int, now: float) -> bool:
        """Fetch positions from the first to the second, inclusive, for the sake of the Track."""
        peers = self._publishers.for_fetch(None, now)
        return self._fetch(peers, (start, through), now, asker=None) is not None

    def ask_for(self, gap: Gap, through: int, *, now: float) -> bool:
        """Ask for what a delivery waits for, of somebody who has not denied it."""
        peers = self._publishers.for_fetch(gap.asker, now)
        peers = [peer for peer in peers if peer not in gap.denied]
        asker = gap.asker
        if gap.ids is None or through < gap.through:
            span = (gap.position, through)
            return self._fetch(peers, span, now, asker=asker, ids=gap.ids) is not None
        # What is missing of this Group, the following ones probably lack too.
        object_id = gap.position & MAX_VI64
        ids = gap.ids if gap.ids.next_id(0) == object_id else gap.ids.starting(object_id)
        starts = (f.position for f in self.fetches if gap.position < f.position <= gap.horizon)
        through = min((start - 1 for start in starts), default=gap.horizon)
        span = (gap.position, through)
        return self._fetch(peers, span, now, asker=asker, ids=ids) is not None

    def _fetch(
        self,
        peers: list[Peer],
        span: tuple[int, int],
        now: float,
        *,
        asker: Peer | None,
        location_filter: LocationFilter | None = None,
        ids: ObjectIds | None = None,
    ) -> UpstreamFetch | None:
        for peer in peers:
            parameters = Parameters(
                location_filter=location_filter or range_filter(*span),
                fill_timeout_ms=max(0, round(self._host.limits.fill_timeout * 1000)),
                range_filters=_filters(peer, ids),
            )
            try:
                fetch = UpstreamFetch.request(
                    self._sink, peer, span, parameters, asker=asker, now=now
                )
            except LocalProtocolError:
                continue
            self.fetches.append(fetch)
            self._host.metrics.upstream_fetches += 1
            self._watch_progress(fetch, now)
            return fetch
        return None

    def _watch_progress(self, fetch: UpstreamFetch, now: float) -> None:
        """End a FETCH on which nothing moved for as long as a fill may wait."""
        progress = fetch.progress

        def look(now: float) -> None:
            if fetch not in self.fetches:
                return
            if fetch.progress == progress:
                self._publishers.stall(fetch.peer, until=now + self._host.limits.fill_timeout)
                fetch.give_up(now=now)
            else:
                self._watch_progress(fetch, now)

        self._host.schedule(now + self._host.limits.fill_timeout, look)


def _filters(peer: Peer, ids: ObjectIds | None) -> tuple[RangeFilter, ...]:
    """Return the filter for Object IDs, if a publisher takes it (Section 9.1)."""
    options = peer.session.peer_options
    if ids is None or options is None or len(ids) > options.max_filter_ranges:
        return ()
    return (ids.to_filter(),)
