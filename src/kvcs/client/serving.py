"""One connection as a publisher sees it: who asks there, and what was announced.

A `Serving` answers the peer's requests from the publisher's tracks, announces publications to a
relay with PUBLISH_NAMESPACE, tells a consumer that is connected directly with NAMESPACE, and
pushes tracks with PUBLISH where that is wanted. It is over when the session is.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol

from kvcs.client.config import PublisherConfig
from kvcs.client.published import PublishedTrack
from kvcs.endpoint.connection import Connection
from kvcs.errors import PublishDoneCode, RequestErrorCode, StreamResetCode
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import (
    Event,
    FetchReceived,
    PublishNamespaceReceived,
    PublishReceived,
    RequestAccepted,
    RequestCancelled,
    RequestRejected,
    SubscribeNamespaceReceived,
    SubscribeReceived,
    SubscriberFinished,
    SubscribeTracksReceived,
    TrackStatusReceived,
)
from kvcs.moqt.track.delivery import Delivery
from kvcs.moqt.track.fetch_delivery import FetchDelivery
from kvcs.moqt.track.interval import MAX_POSITION, IntervalSet, to_location, to_position
from kvcs.moqt.track.responder import TrackResponder
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.track.subscription_delivery import SubscriptionDelivery
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import FullTrackName, Location, TrackNamespace

__all__ = ("PATIENCE", "Registry", "Serving")

# What another token may change.
_REFUSALS: Final = frozenset(
    {
        RequestErrorCode.UNAUTHORIZED,
        RequestErrorCode.MALFORMED_AUTH_TOKEN,
        RequestErrorCode.EXPIRED_AUTH_TOKEN,
    }
)

_logger = logging.getLogger("kvcs.client")

# Seconds after which a peer that does not say that it has taken a FETCH counts as if it had: as
# long as a session waits for the streams of a subscription that is over.
PATIENCE: Final = 10.0


class Registry(Protocol):
    """What a publisher has to offer."""

    def find(self, track: FullTrackName) -> PublishedTrack | None:
        """Return the track of that name, or None."""
        ...

    def namespaces(self) -> list[TrackNamespace]:
        """Return the namespaces of all publications that are announced."""
        ...


@dataclass(slots=True, eq=False)
class _Served:
    """One subscription or FETCH that was accepted.

    Attributes:
        track: The track.
        delivery: What is sent of it.
        positions: The positions that it brings.
        sent_at: When the last of a FETCH was sent, as far as is known.
    """

    track: PublishedTrack
    delivery: SubscriptionDelivery | FetchDelivery
    positions: tuple[tuple[int, int], ...]
    sent_at: float | None = None


class Serving:
    """One connection of a publisher.

    Args:
        connection: The session.
        registry: What can be served.
        config: Settings of the publisher.
        announces: Send PUBLISH_NAMESPACE and, if the settings say so, PUBLISH: the peer is a
            relay.

    Attributes:
        last_news: When the peer last asked for a track, or had taken what it asked for, in
            monotonic seconds.
        reaction_time: Longest time in seconds that the peer took to take the last of a FETCH
            and to say so.
    """

    def __init__(
        self,
        connection: Connection,
        registry: Registry,
        config: PublisherConfig,
        *,
        announces: bool,
    ) -> None:
        self.connection = connection
        self.announces = announces
        self._registry = registry
        self._config = config
        self._responder = TrackResponder(
            connection.session, connection.outbox, max_fetches=config.max_fetches
        )
        self.last_news = connection.now
        self.reaction_time = 0.0
        self._served: dict[RequestId, _Served] = {}
        self._delivered: dict[PublishedTrack, IntervalSet] = {}
        self._listeners: dict[RequestId, TrackNamespace] = {}
        self._announced: dict[TrackNamespace, RequestId] = {}
        self._lapsed: set[TrackNamespace] = set()
        self._outdated: set[TrackNamespace] = set()
        self._awaited: set[RequestId] = set()
        connection.on_authorized(self._announce_again)
        connection.listen(self._receive)

    def __repr__(self) -> str:
        return f"<Serving {self.connection.peer} {len(self._served)} requests>"

    # Announcing.

    async def announce(self, namespace: TrackNamespace) -> None:
        """Announce a publication and wait for the answer.

        Raises:
            RequestRejected: The relay does not want it.
            RequestTimedOut: No answer in time.
            KvcsError: The session ended.
        """
        request_id = self.send_announcement(namespace)
        self._awaited.add(request_id)
        try:
            await self.connection.answer(request_id, timeout=self._config.announce_timeout)
        finally:
            self._awaited.discard(request_id)

    def send_announcement(
        self, namespace: TrackNamespace, listener: Callable[[Event], None] | None = None
    ) -> RequestId:
        """Send PUBLISH_NAMESPACE, and NAMESPACE to whoever asked for the prefix."""
        parameters = Parameters(authorization_tokens=self._config.authorization)
        request_id = self.connection.publish_namespace(namespace, parameters, listener)
        self._announced[namespace] = request_id
        self._outdated.discard(namespace)
        return request_id

    def _announce_again(self) -> None:
        """Announce what was withdrawn or refused, with other tokens."""
        lapsed, self._lapsed = self._lapsed, set()
        # What is refused from now on may have been refused for the tokens before.
        self._outdated = set(self._announced)
        if not self.connection.closed:
            for namespace in lapsed:
                self.send_announcement(namespace)

    def tell(self, namespace: TrackNamespace) -> None:
        """Send NAMESPACE to whoever asked for a prefix of a new publication."""
        for request_id, prefix in self._listeners.items():
            if prefix.is_prefix_of(namespace):
                suffix = namespace.suffix_of(prefix)
                self.connection.session.announce(request_id, suffix, now=self.connection.now)
        self.connection.wake()

    def withdraw(self, namespace: TrackNamespace) -> None:
        """Take back the announcement of a publication."""
        self._lapsed.discard(namespace)
        self._outdated.discard(namespace)
        request_id = self._announced.pop(namespace, None)
        if request_id is not None:
            self.connection.cancel(request_id)
        if self.connection.closed:
            return
        for request_id, prefix in self._listeners.items():
            if prefix.is_prefix_of(namespace):
                suffix = namespace.suffix_of(prefix)
                self.connection.session.withdraw(request_id, suffix, now=self.connection.now)
        self.connection.wake()

    def push(self, track: PublishedTrack) -> None:
        """Send PUBLISH for a track, and deliver what is published from now on."""
        connection = self.connection
        parameters = Parameters(
            largest_object=track.store.largest, authorization_tokens=self._config.authorization
        )
        request_id = connection.publish(
            track.store.track, parameters, self._receive, properties=track.store.properties
        )
        delivery = self._responder.serve_publish(
            request_id, track.store, parameters, now=connection.now
        )
        self._serve(request_id, track, delivery)

    # Delivering.

    def deliveries(self, store: TrackStore) -> Iterator[Delivery]:
        """Yield the unfinished deliveries of a track to this peer."""
        return self._responder.deliveries(store)

    def end(self, track: PublishedTrack, code: PublishDoneCode, *, drain: bool = True) -> None:
        """End all subscriptions to a track, after what they are owed unless `drain` is false."""
        if not self.connection.closed:
            self._responder.end(track.store, code, drain=drain, now=self.connection.now)
            self.connection.wake()

    def note_delivered(self) -> None:
        """Mark the ended tracks of which the peer has everything, by whatever requests.

        A relay subscribes to what is still to come and fetches the rest, so what they bring is
        added up. A subscriber says that it has its part with the end of its request stream:
        of a subscription, fills included, after PUBLISH_DONE, and of a FETCH after its data. That
        a FETCH was sent says little: the last of it may still be under way when we leave. But
        nobody has to end a request stream, so after a while that has to do.
        """
        now = self.connection.now
        for request_id, served in tuple(self._served.items()):
            if isinstance(served.delivery, FetchDelivery) and served.delivery.finished:
                if served.sent_at is None:
                    served.sent_at = now
                if now - served.sent_at >= PATIENCE:
                    self._add_up(request_id)
        for track, delivered in self._delivered.items():
            if track.is_ended and not track.is_delivered:
                track.is_delivered = _covers(delivered, track.store)

    def close(self) -> None:
        """Let go of the session, which is over or goes on without the publisher."""
        self.note_delivered()
        self.connection.unlisten(self._receive)
        self._responder.close()

    # Receiving.

    def _receive(self, event: Event) -> None:
        match event:
            case SubscribeReceived() | FetchReceived() | TrackStatusReceived():
                self._answer(event)
            case SubscribeNamespaceReceived():
                self._answer_namespace(event)
            case PublishNamespaceReceived() | PublishReceived() | SubscribeTracksReceived():
                self._refuse(event.request_id, RequestErrorCode.NOT_SUPPORTED, "not a relay")
            case SubscriberFinished(request_id=request_id, in_order=in_order):
                self._finish(request_id, in_order=in_order)
            case RequestAccepted(request_id=request_id, parameters=parameters):
                self._accept_push(request_id, parameters)
            case RequestCancelled(request_id=request_id) | RequestRejected(request_id=request_id):
                self._note_withdrawn(event)
                self._listeners.pop(request_id, None)
                self._served.pop(request_id, None)
                self._responder.receive(event, now=self.connection.now)
            case _:
                self._responder.receive(event, now=self.connection.now)
        self.connection.wake()

    def _note_withdrawn(self, event: RequestCancelled | RequestRejected) -> None:
        """Note that the relay announces a publication no longer."""
        for namespace, request_id in tuple(self._announced.items()):
            if request_id != event.request_id:
                continue
            if namespace in self._outdated and event.request_id not in self._awaited:
                self.send_announcement(namespace)
                continue
            self._lapsed.add(namespace)
            # Who waits for the answer says so himself.
            if event.request_id not in self._awaited:
                peer, reason = self.connection.peer, _withdrawal_reason(event)
                _logger.warning("%s: a publication is no longer announced%s", peer, reason)

    def _finish(self, request_id: RequestId, *, in_order: bool) -> None:
        self.last_news = now = self.connection.now
        served = self._served.get(request_id)
        if served is not None and served.sent_at is not None:
            self.reaction_time = max(self.reaction_time, now - served.sent_at)
        if in_order:
            self._add_up(request_id)
        self._served.pop(request_id, None)

    def _add_up(self, request_id: RequestId) -> None:
        served = self._served.pop(request_id, None)
        if served is not None:
            delivered = self._delivered.setdefault(served.track, IntervalSet())
            for start, end in served.positions:
                delivered.add(start, end)

    def _answer(self, event: SubscribeReceived | FetchReceived | TrackStatusReceived) -> None:
        self.last_news = self.connection.now
        track = self._registry.find(event.track)
        if track is None:
            reason = "there is no such track here"
            self._refuse(event.request_id, RequestErrorCode.DOES_NOT_EXIST, reason)
            return
        responder, now = self._responder, self.connection.now
        delivery = None
        match event:
            case SubscribeReceived():
                delivery = responder.answer_subscribe(event, track.store, now=now)
                if track.is_ended:
                    delivery.end(PublishDoneCode.TRACK_ENDED)
            case FetchReceived():
                delivery = responder.answer_fetch(event, track.store, now=now)
            case TrackStatusReceived():
                responder.answer_track_status(event, track.store, now=now)
        if delivery is not None:
            self.connection.on_request(event.request_id, self._receive)
            self._serve(event.request_id, track, delivery)

    def _serve(
        self,
        request_id: RequestId,
        track: PublishedTrack,
        delivery: SubscriptionDelivery | FetchDelivery,
    ) -> None:
        """Remember what counts towards a delivery of the whole track."""
        self._served[request_id] = _Served(track, delivery, _positions(delivery, track.store))

    def _accept_push(self, request_id: RequestId, parameters: Parameters) -> None:
        """Apply what the relay says about a track that was pushed to it."""
        served = self._served.get(request_id)
        if served is None or not isinstance(served.delivery, SubscriptionDelivery):
            return
        if parameters.forward is not None:
            served.delivery.change(replace(served.delivery.terms, forward=parameters.forward))

    def _answer_namespace(self, event: SubscribeNamespaceReceived) -> None:
        session, now = self.connection.session, self.connection.now
        prefix, request_id = event.prefix, event.request_id
        for other in self._listeners.values():
            if other.is_prefix_of(prefix) or prefix.is_prefix_of(other):
                self._refuse(request_id, RequestErrorCode.PREFIX_OVERLAP, "the prefix is in use")
                return
        self._listeners[request_id] = prefix
        self.connection.on_request(request_id, self._receive)
        session.accept(request_id, now=now)
        for namespace in self._registry.namespaces():
            if prefix.is_prefix_of(namespace):
                session.announce(request_id, namespace.suffix_of(prefix), now=now)

    def _refuse(self, request_id: RequestId, code: RequestErrorCode, reason: str) -> None:
        self.connection.session.reject(request_id, code, reason=reason, now=self.connection.now)


def _positions(
    delivery: SubscriptionDelivery | FetchDelivery, store: TrackStore
) -> tuple[tuple[int, int], ...]:
    """Return what a delivery that begins now will have brought when it has finished."""
    if isinstance(delivery, FetchDelivery):
        return _unfiltered(delivery, 0)
    begun = 0 if store.largest is None else to_position(store.largest) + 1
    fills = [interval for fill in delivery.fills for interval in _unfiltered(fill, 0)]
    return (*fills, *_unfiltered(delivery, begun))


def _unfiltered(
    delivery: SubscriptionDelivery | FetchDelivery, begun: int
) -> tuple[tuple[int, int], ...]:
    terms = delivery.terms
    start = max(begun, to_position(terms.location_range.start))
    end = terms.location_range.end
    last = MAX_POSITION if end is None else to_position(end)
    return () if terms.range_filters or last < start else ((start, last),)


def _covers(delivered: IntervalSet, store: TrackStore) -> bool:
    """Tell whether every Object of a track with a known end is among the positions."""
    if store.end is None:
        return False
    position = 0
    while interval := delivered.find(position):
        location = to_location(interval[1])
        if location.group_id >= store.end.group_id:
            return True
        end = store.group_end(location.group_id)
        is_whole = end is not None and location >= end
        position = to_position(Location(location.group_id + 1, 0)) if is_whole else interval[1] + 1
        if position >= to_position(store.end):
            return True
    return False


def _withdrawal_reason(event: RequestCancelled | RequestRejected) -> str:
    """Return why a relay announces a publication no longer, and what helps, as far as is known."""
    if isinstance(event, RequestCancelled):
        if event.code == StreamResetCode.EXPIRED_AUTH_TOKEN:
            return ": its authorization token is good no longer; it is announced again with another"
        return ""
    if event.code in _REFUSALS:
        return ": the relay does not allow it; it is announced again with another token"
    return f": refused with code {event.code:#x}"
