"""One SUBSCRIBE or FETCH of ours, and what has come of it so far.

A `Request` listens to the events of its request, hands Objects to its receiver at once, and
keeps everything else as plain state, so that whoever drives it can wait for a condition on
that state with the shared `Signal`.
"""

from collections.abc import Callable
from enum import Enum
from typing import Protocol, Self, runtime_checkable

from kvcs.client.signal import Signal
from kvcs.endpoint.connection import Connection
from kvcs.errors import KvcsError, RequestRejected, StreamResetCode
from kvcs.moqt.codepoints import RangeMarker
from kvcs.moqt.session import events
from kvcs.moqt.session.actions import RequestId, StreamId
from kvcs.moqt.session.events import (
    Event,
    FetchAccepted,
    FetchOpened,
    ObjectBegun,
    ObjectPayload,
    ObjectReceived,
    PublishDoneReceived,
    RangeEnded,
    RequestCancelled,
    SessionClosed,
    StreamAborted,
    StreamFinished,
    SubgroupOpened,
    SubscribeAccepted,
    SubscriptionDrained,
)
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import FullTrackName, Location

__all__ = ("Arrival", "FetchState", "PartReceiver", "Receiver", "Request")


class FetchState(Enum):
    """State of the fetch stream of a FETCH or a fill."""

    NONE = 0
    OPEN = 1
    FINISHED = 2
    ABORTED = 3


class Receiver(Protocol):
    """Takes the data of a request."""

    def receive_object(self, obj: Object, *, is_fetch: bool) -> None:
        """Take one whole Object."""
        ...

    def receive_marker(self, marker: RangeMarker, location: Location) -> None:
        """Take one End of Range record of the fetch stream."""
        ...


class Arrival(Protocol):
    """Takes the rest of the payload of one Object."""

    def take(self, data: memoryview) -> bool:
        """Take the next octets; return True after the last."""
        ...


@runtime_checkable
class PartReceiver(Receiver, Protocol):
    """Takes Objects while they arrive; `receive_object` brings only those without a payload."""

    def begin_object(
        self, obj: Object, length: int, data: memoryview, *, is_fetch: bool
    ) -> Arrival | None:
        """Take an Object whose payload of `length` octets begins with `data`.

        Returns:
            What takes the rest, or None when there is none, or nobody needs it.
        """
        ...


class Request:
    """State of one request.

    Attributes:
        accepted: SUBSCRIBE_OK or FETCH_OK.
        rejected: REQUEST_ERROR, or no answer in time.
        fetch: State of the fetch stream.
        done: PUBLISH_DONE.
        aborted_groups: Groups whose Subgroup streams were reset and not taken yet.
        error: The session ended, with this error.
        changed_at: When anything but data came last, monotonic seconds.
    """

    def __init__(self, connection: Connection, signal: Signal, receiver: Receiver) -> None:
        self.accepted: SubscribeAccepted | FetchAccepted | None = None
        self.rejected: events.RequestRejected | None = None
        self.fetch = FetchState.NONE
        self.done: PublishDoneReceived | None = None
        self.aborted_groups: set[int] = set()
        self.error: KvcsError | None = None
        self.changed_at = connection.now
        self._connection = connection
        self._signal = signal
        self._receiver = receiver
        self._part_receiver = receiver if isinstance(receiver, PartReceiver) else None
        self._arrivals: dict[StreamId, Arrival] = {}
        self._request_id: RequestId | None = None
        self._groups: dict[StreamId, int] = {}
        self._fetch_stream: StreamId | None = None
        self._is_fetch = False
        self._is_ended = False

    @classmethod
    def subscribe(
        cls,
        connection: Connection,
        track: FullTrackName,
        parameters: Parameters,
        *,
        signal: Signal,
        receiver: Receiver,
    ) -> Self:
        """Send SUBSCRIBE."""
        request = cls(connection, signal, receiver)
        request._send(lambda: connection.subscribe(track, parameters, request.receive))
        return request

    @classmethod
    def fetch_range(
        cls,
        connection: Connection,
        track: FullTrackName,
        parameters: Parameters,
        *,
        signal: Signal,
        receiver: Receiver,
    ) -> Self:
        """Send FETCH."""
        request = cls(connection, signal, receiver)
        request._is_fetch = True
        request._send(lambda: connection.fetch(track, parameters, request.receive))
        return request

    def _send(self, send: Callable[[], RequestId]) -> None:
        """Send the request; on a session that is over it ends as those before it did."""
        try:
            self._request_id = send()
            if self._part_receiver is not None:
                self._connection.session.take_payloads(self._request_id)
        except KvcsError as error:
            if not self._connection.closed:
                raise
            self.error = error
            self._is_ended = True

    @property
    def is_answered(self) -> bool:
        """An answer arrived, or none can arrive any more."""
        return self.accepted is not None or self.is_over

    @property
    def is_over(self) -> bool:
        """Nothing more comes of the request."""
        if self._is_fetch and self.fetch is not FetchState.OPEN:
            is_finished = self.fetch is FetchState.FINISHED and self.accepted is not None
            return self._is_ended or is_finished or self.fetch is FetchState.ABORTED
        return self._is_ended

    @property
    def is_delivered(self) -> bool:
        """Nothing more comes on the fetch stream, of a FETCH or of a fill."""
        has_ended = self.fetch in (FetchState.FINISHED, FetchState.ABORTED)
        return self.is_over or (has_ended and not self._is_fetch)

    def silence_ends(self, fill_wait: float, max_silence: float) -> float:
        """Return when a fetch stream that brings nothing until then counts as dead.

        Args:
            fill_wait: Seconds for it to begin, while nothing else comes on the session: a link
                that is busy starves it rightly.
            max_silence: Seconds in any case, and between its octets.
        """
        received_at, stream_id = self._connection.session.received_at, self._fetch_stream
        if self.fetch is FetchState.OPEN and stream_id is not None:
            return max(self.changed_at, received_at(stream_id)) + max_silence
        return min(max(self.changed_at, received_at()) + fill_wait, self.changed_at + max_silence)

    def stop_fetch(self) -> None:
        """Refuse what may still come on an open fetch stream, and count it as aborted."""
        connection = self._connection
        if self._fetch_stream is not None and self.fetch is FetchState.OPEN:
            connection.session.stop_stream(
                self._fetch_stream, StreamResetCode.CANCELLED, now=connection.now
            )
            connection.wake()
            self.fetch = FetchState.ABORTED
            self._arrivals.pop(self._fetch_stream, None)

    @property
    def largest(self) -> Location | None:
        """LARGEST_OBJECT of SUBSCRIBE_OK."""
        if isinstance(self.accepted, SubscribeAccepted):
            return self.accepted.parameters.largest_object
        return None

    @property
    def end_location(self) -> Location | None:
        """End Location of FETCH_OK, inclusive."""
        return self.accepted.end_location if isinstance(self.accepted, FetchAccepted) else None

    def close(self) -> None:
        """Cancel the request unless it is over, and stop listening."""
        if self._request_id is None:
            return
        self._connection.cancel(self._request_id)
        self._request_id = None
        self._is_ended = True
        self._arrivals.clear()

    def receive(self, event: Event) -> None:
        """Take an event of the request or the end of its session."""
        match event:
            case ObjectBegun():
                self._begin_object(event)
                return
            case ObjectPayload(stream_id=stream_id, data=data):
                arrival = self._arrivals.get(stream_id)
                if arrival is not None and arrival.take(data):
                    del self._arrivals[stream_id]
                return
            case ObjectReceived(obj=obj, is_fetch=is_fetch):
                self._receiver.receive_object(obj, is_fetch=is_fetch)
                return
            case RangeEnded(marker=marker, location=location):
                self._receiver.receive_marker(marker, location)
                return
            case SubgroupOpened(stream_id=stream_id, header=header):
                self._groups[stream_id] = header.group_id
                return
            case StreamFinished(stream_id=stream_id) | StreamAborted(stream_id=stream_id):
                self._end_stream(stream_id, is_aborted=isinstance(event, StreamAborted))
            case _:
                self._receive_control(event)
        self.changed_at = self._connection.now
        self._signal.set()

    def _begin_object(self, event: ObjectBegun) -> None:
        assert self._part_receiver is not None
        _, stream_id, obj, length, data, is_fetch = event
        arrival = self._part_receiver.begin_object(obj, length, data, is_fetch=is_fetch)
        if arrival is not None:
            self._arrivals[stream_id] = arrival

    def _end_stream(self, stream_id: StreamId, *, is_aborted: bool) -> None:
        self._arrivals.pop(stream_id, None)
        group_id = self._groups.pop(stream_id, None)
        if group_id is None:
            self.fetch = FetchState.ABORTED if is_aborted else FetchState.FINISHED
        elif is_aborted:
            self.aborted_groups.add(group_id)

    def _receive_control(self, event: Event) -> None:
        match event:
            case SubscribeAccepted() | FetchAccepted():
                self.accepted = event
            case events.RequestRejected():
                self.rejected = event
                self._is_ended = True
            case FetchOpened(stream_id=stream_id):
                self.fetch = FetchState.OPEN
                self._fetch_stream = stream_id
            case PublishDoneReceived():
                self.done = event
            case SubscriptionDrained() | RequestCancelled():
                self._is_ended = True
            case SessionClosed(error=error):
                self.error = error
                self._is_ended = True
            case _:
                pass

    def rejection(self) -> RequestRejected:
        """Return the refusal as an exception."""
        assert self.rejected is not None
        return self.rejected.error()
