"""The doctor's own consumer: what one request brought, written down as it came."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvcs.client.request import FetchState, Receiver, Request
from kvcs.client.signal import Signal
from kvcs.endpoint.connection import Connection
from kvcs.moqt.codepoints import ObjectStatus, RangeMarker
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import (
    Event,
    NamespaceDoneReceived,
    NamespaceReceived,
    SubgroupOpened,
    SubscriptionDrained,
)
from kvcs.moqt.wire.filters import LocationFilter, RangeFilter
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import FillParameters, Parameters
from kvcs.names import FullTrackName, Location, TrackNamespace

__all__ = ("FROM_START", "Arrival", "Listing", "Reader", "Reading", "WatchedRequest")

FROM_START = LocationFilter.absolute_start(0, 0)
# What a relay may wait for its publisher on a fill or a FETCH of ours.
_FILL_TIMEOUT_MS = 3000


@dataclass(frozen=True, slots=True)
class Arrival:
    """One Object as it came.

    Attributes:
        obj: The Object.
        is_fetch: It came on a fetch stream.
        at: When, in monotonic seconds.
    """

    obj: Object
    is_fetch: bool
    at: float


class WatchedRequest(Request):
    """A request that also remembers how its Subgroup streams began and ended.

    Attributes:
        ending_groups: Groups whose streams said that they hold the last Object.
        is_drained: PUBLISH_DONE and all streams that it counts have come.
    """

    def __init__(self, connection: Connection, signal: Signal, receiver: Receiver) -> None:
        super().__init__(connection, signal, receiver)
        self.ending_groups: set[int] = set()
        self.is_drained = False

    @property
    def is_broken(self) -> bool:
        """The fetch stream was reset."""
        return self.fetch is FetchState.ABORTED

    def receive(self, event: Event) -> None:
        """Take an event of the request or the end of its session."""
        match event:
            case SubgroupOpened(header=header) if header.end_of_group:
                self.ending_groups.add(header.group_id)
            case SubscriptionDrained(complete=complete):
                self.is_drained = complete
            case _:
                pass
        super().receive(event)


class Reading:
    """One SUBSCRIBE or FETCH, and all that it brought.

    Attributes:
        arrivals: All Objects, in order of arrival, status Objects included.
        records: Locations of Objects and of End of Range records, in order of arrival; None
            stands for an Object.
        request: State of the request.
    """

    def __init__(self, connection: Connection, signal: Signal) -> None:
        self.arrivals: list[Arrival] = []
        self.records: list[tuple[Location, RangeMarker | None]] = []
        self.request: WatchedRequest
        self._connection = connection
        self._signal = signal

    @property
    def objects(self) -> list[Object]:
        """What came, status Objects left out."""
        return [it.obj for it in self.arrivals if it.obj.status is ObjectStatus.NORMAL]

    @property
    def statuses(self) -> dict[Location, ObjectStatus]:
        """The status Objects that came."""
        return {
            it.obj.location: it.obj.status
            for it in self.arrivals
            if it.obj.status is not ObjectStatus.NORMAL
        }

    def has(self, locations: Iterable[Location]) -> bool:
        """Tell whether an Object of each of these Locations came."""
        return set(locations) <= {it.obj.location for it in self.arrivals}

    def receive_object(self, obj: Object, *, is_fetch: bool) -> None:
        """Take one Object."""
        self.arrivals.append(Arrival(obj, is_fetch, self._connection.now))
        self.records.append((obj.location, None))
        self._signal.set()

    def receive_marker(self, marker: RangeMarker, location: Location) -> None:
        """Take one End of Range record."""
        self.records.append((location, marker))
        self._signal.set()


class Listing:
    """One SUBSCRIBE_NAMESPACE, and the namespaces that are known by it.

    Attributes:
        present: Namespaces, whole, that exist now.
        gone: Those that ceased to.
        request_id: The request.
    """

    def __init__(self, prefix: TrackNamespace, signal: Signal) -> None:
        self.present: set[TrackNamespace] = set()
        self.gone: set[TrackNamespace] = set()
        self.request_id: RequestId
        self._prefix = prefix
        self._signal = signal

    def receive(self, event: Event) -> None:
        """Take an event of the request."""
        match event:
            case NamespaceReceived(suffix=suffix):
                self.present.add(self._prefix.joined(suffix))
            case NamespaceDoneReceived(suffix=suffix):
                self.present.discard(self._prefix.joined(suffix))
                self.gone.add(self._prefix.joined(suffix))
            case _:
                pass
        self._signal.set()


class Reader:
    """Asks on one session, and waits for what comes.

    Args:
        connection: The session.
        silence: Seconds without anything after which nothing more is expected.
    """

    def __init__(self, connection: Connection, *, silence: float) -> None:
        self.connection = connection
        self._silence = silence
        self._signal = Signal()

    def subscribe(self, track: FullTrackName, *, fill: bool = False) -> Reading:
        """SUBSCRIBE to what comes from now on; with a fill, to all that was before too."""
        filling = FillParameters(fill_timeout_ms=_FILL_TIMEOUT_MS, location_filter=FROM_START)
        parameters = Parameters(
            location_filter=LocationFilter.next_object(), fill=filling if fill else None
        )
        reading = Reading(self.connection, self._signal)
        reading.request = WatchedRequest.subscribe(
            self.connection, track, parameters, signal=self._signal, receiver=reading
        )
        return reading

    def fetch(
        self,
        track: FullTrackName,
        location_filter: LocationFilter,
        *range_filters: RangeFilter,
    ) -> Reading:
        """FETCH a range, in ascending order."""
        parameters = Parameters(
            fill_timeout_ms=_FILL_TIMEOUT_MS,
            location_filter=location_filter,
            range_filters=range_filters,
        )
        reading = Reading(self.connection, self._signal)
        reading.request = WatchedRequest.fetch_range(
            self.connection, track, parameters, signal=self._signal, receiver=reading
        )
        return reading

    async def list_namespaces(self, prefix: TrackNamespace) -> Listing:
        """SUBSCRIBE_NAMESPACE, and wait for its answer.

        Raises:
            RequestFailed: It was refused, or not answered.
            KvcsError: The session ended.
        """
        listing = Listing(prefix, self._signal)
        listing.request_id = self.connection.subscribe_namespace(prefix, listener=listing.receive)
        await self.connection.answer(listing.request_id, timeout=self._silence)
        return listing

    async def accepted(self, reading: Reading) -> None:
        """Wait until a request is answered.

        Raises:
            RequestRejected: It was refused.
            KvcsError: The session ended.
            TimeoutError: There is no answer.
        """
        request = reading.request
        if not await self.settled(lambda: request.is_answered):
            raise TimeoutError
        if request.rejected is not None:
            raise request.rejection()
        if request.error is not None:
            raise request.error

    async def finished(self, reading: Reading) -> None:
        """Wait until a request is answered, and until nothing more comes of it.

        Raises:
            RequestRejected: It was refused.
            KvcsError: The session ended.
            TimeoutError: There is no answer.
        """
        await self.accepted(reading)
        await self.settled(lambda: reading.request.is_over)

    async def settled(self, condition: Callable[[], bool]) -> bool:
        """Wait for a condition, as long as anything arrives; tell whether it came true."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        while not condition():
            ends = max(since, self.connection.session.received_at()) + self._silence
            if ends <= loop.time() or self.connection.closed:
                return False
            await self._signal.until(condition, ends - loop.time())
        return True
