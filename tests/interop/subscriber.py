"""aiomoqt as a subscriber: what its session API delivers, written down."""

from collections import defaultdict
from dataclasses import dataclass, field

from aiomoqt.messages import LocationFilter
from aiomoqt.messages.params import D20ParamType
from aiomoqt.types import ObjectStatus

from kvcs.client.signal import Signal

__all__ = ("Arrivals", "Reader", "by_location")


def by_location(records) -> dict[tuple[int, int], tuple[int, bytes]]:
    """Priority and payload of received Objects, each of which came once."""
    locations = [location for location, *_ in records]
    assert len(locations) == len(set(locations)), "an Object came twice"
    return {location: (priority, payload) for location, priority, payload in records}


@dataclass
class Arrivals:
    """What one request brought, in order of arrival.

    Attributes:
        answer: SUBSCRIBE_OK or FETCH_OK.
        live: Objects of subgroup streams: Location, priority, payload.
        fetched: Objects of the fetch or fill stream, likewise.
        markers: End of Range records.
        statuses: Objects of another status: Location, status, priority.
        ended: Groups whose subgroup stream ended.
        unclean: Subgroup streams that were reset.
        done: PUBLISH_DONE.
    """

    answer: object = None
    live: list = field(default_factory=list)
    fetched: list = field(default_factory=list)
    markers: list = field(default_factory=list)
    statuses: list = field(default_factory=list)
    ended: list = field(default_factory=list)
    unclean: int = 0
    done: object = None
    signal: Signal = field(default_factory=Signal)

    @property
    def largest(self) -> tuple[int, int]:
        """LARGEST_OBJECT of the answer."""
        return self.answer.largest_group_id, self.answer.largest_object_id

    def receive_object(self, msg, _size, _now, group_id, subgroup_id) -> None:
        location = (group_id, msg.object_id)
        assert subgroup_id == 0
        if msg.status == ObjectStatus.NORMAL:
            self.live.append((location, msg.publisher_priority, bytes(msg.payload)))
        else:
            assert not msg.payload
            self.statuses.append((location, msg.status, msg.publisher_priority))
        self.signal.set()

    def receive_end(self, group_id, _subgroup_id, *, clean, reset_code) -> None:
        self.ended.append(group_id)
        self.unclean += not clean or bool(reset_code)
        self.signal.set()

    def receive_done(self, msg) -> None:
        self.done = msg
        self.signal.set()


class Reader:
    """Subscribes and fetches on one aiomoqt session."""

    def __init__(self, session) -> None:
        self._session = session
        # A fill may begin before SUBSCRIBE_OK tells the Request ID.
        self._fetched = defaultdict(list)
        self._markers = defaultdict(list)
        session.on_fetch_object = self._receive_fetched
        session.on_fetch_gap = self._receive_marker

    async def subscribe(
        self, track, *, fill: LocationFilter | None = None, parameters=None
    ) -> Arrivals:
        """SUBSCRIBE with Next Object, and with a fill when one is given."""
        arrivals = Arrivals()
        parameters = dict(parameters or {})
        if fill is not None:
            parameters[D20ParamType.FILL_PARAMETERS] = {D20ParamType.LOCATION_FILTER: fill}
        answer = await self._session.subscribe(
            track.namespace.fields,
            track.name,
            location_filter=LocationFilter.next_object(),
            parameters=parameters,
            on_object=arrivals.receive_object,
            on_done=arrivals.receive_done,
            wait_response=True,
        )
        self._answer(arrivals, answer)
        self._session.register_stream_end_handler(answer.track_alias, arrivals.receive_end)
        return arrivals

    async def update(
        self, arrivals: Arrivals, *, forward: bool, fill: LocationFilter | None = None
    ) -> Arrivals:
        """REQUEST_UPDATE of a subscription; gives what its fill brings."""
        parameters = {}
        if fill is not None:
            parameters[D20ParamType.FILL_PARAMETERS] = {D20ParamType.LOCATION_FILTER: fill}
        filled = Arrivals()
        answer = await self._session.request_update(
            arrivals.answer.request_id,
            forward=int(forward),
            parameters=parameters,
            wait_response=True,
        )
        self._answer(filled, answer)
        return filled

    async def fetch(self, track, location_filter: LocationFilter, **options) -> Arrivals:
        """FETCH, to the end of its stream."""
        arrivals = Arrivals()
        answer = await self._session.fetch(
            track.namespace.fields,
            track.name,
            location_filter=location_filter,
            wait_response=True,
            **options,
        )
        self._answer(arrivals, answer)
        assert await self.filled(arrivals)
        return arrivals

    async def filled(self, arrivals: Arrivals) -> bool:
        """Wait for the end of a fill or fetch stream; tell whether it was clean."""
        return await self._session.await_fetch_done(arrivals.answer.request_id)

    async def finished(self, arrivals: Arrivals, *, fills: int) -> None:
        """Wait for PUBLISH_DONE and the end of all streams that it counts."""
        await arrivals.signal.until(lambda: arrivals.done is not None)
        streams = arrivals.done.stream_count - fills
        await arrivals.signal.until(lambda: len(arrivals.ended) >= streams)
        if fills:
            assert await self.filled(arrivals)

    def _answer(self, arrivals: Arrivals, answer) -> None:
        arrivals.answer = answer
        arrivals.fetched = self._fetched[answer.request_id]
        arrivals.markers = self._markers[answer.request_id]

    def _receive_fetched(self, msg, _size, _now, request_id) -> None:
        assert msg.subgroup_id == 0
        location = (msg.group_id, msg.object_id)
        self._fetched[request_id].append((location, msg.publisher_priority, bytes(msg.payload)))

    def _receive_marker(self, msg, request_id) -> None:
        self._markers[request_id].append(msg.end_of_range)
