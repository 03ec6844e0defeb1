"""The doctor's own publisher: test Tracks on one session, and what a relay asked for.

It serves its Tracks like any publisher, from a `TrackStore` each, and counts the requests that
arrive. Everything carries a short MAX_CACHE_DURATION, so that a relay forgets it by itself.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Final

from kvcs.endpoint.connection import Connection
from kvcs.errors import PublishDoneCode, RequestErrorCode
from kvcs.kv.naming import PublicationName, publisher_priority
from kvcs.moqt.codepoints import ObjectStatus, PropertyType
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import (
    Event,
    FetchReceived,
    PublishNamespaceReceived,
    PublishReceived,
    SubscribeNamespaceReceived,
    SubscribeReceived,
    SubscribeTracksReceived,
    TrackStatusReceived,
)
from kvcs.moqt.track.responder import TrackResponder
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.names import FullTrackName, Location

__all__ = ("KEPT_SECONDS", "OBJECT_PROPERTY", "TRACK_PROPERTY", "SampleTrack", "Source", "payload")

#: MAX_CACHE_DURATION of what the doctor publishes: longer than an examination, and short enough
#: that nothing is left of it soon after.
KEPT_SECONDS: Final = 60.0
#: Properties that no relay knows, an integer and octets: both must pass unchanged.
TRACK_PROPERTY: Final = (0x3800, 22)
OBJECT_PROPERTY: Final = (0x3801, b"kvcs doctor")

_END_OF_TRACK_PRIORITY: Final = 128


def payload(location: Location, size_bytes: int) -> bytes:
    """Return octets that no other Location has."""
    return hashlib.shake_128(location.encode()).digest(size_bytes)


class SampleTrack:
    """One Track, and what was published on it.

    Args:
        connection: The session that serves it.
        track: Its name.
        groups: Groups that it will have, for the priorities.
        kept_seconds: Its MAX_CACHE_DURATION.

    Attributes:
        track: Its name.
        objects: What was published, status Objects left out.
        end: Location of End of Track, once that is published.
    """

    def __init__(
        self, connection: Connection, track: FullTrackName, *, groups: int, kept_seconds: float
    ) -> None:
        self.track = track
        self.objects: dict[Location, Object] = {}
        self.end: Location | None = None
        properties = Properties.of(
            (PropertyType.MAX_CACHE_DURATION, round(kept_seconds * 1000)), TRACK_PROPERTY
        )
        self.store = TrackStore(track, properties=properties, authoritative=True)
        self._connection = connection
        self._groups = groups

    @property
    def is_ended(self) -> bool:
        """Nothing more will be published."""
        return self.end is not None

    def within(self, start: Location, through: Location) -> dict[Location, Object]:
        """Return what was published from `start` to `through`, inclusive."""
        return {at: obj for at, obj in self.objects.items() if start <= at <= through}

    def publish(
        self, group_id: int, sizes: Sequence[int], *, with_properties: bool = False
    ) -> None:
        """Publish a whole Group with End of Group, an Object for each size in octets."""
        payloads = [
            payload(Location(group_id, object_id), size) for object_id, size in enumerate(sizes)
        ]
        self.publish_payloads(group_id, payloads, with_properties=with_properties)

    def publish_payloads(
        self, group_id: int, payloads: Sequence[bytes], *, with_properties: bool = False
    ) -> None:
        """Publish a whole Group with End of Group."""
        priority = publisher_priority(group_id, self._groups)
        properties = Properties.of(OBJECT_PROPERTY) if with_properties else EMPTY_PROPERTIES
        for object_id, octets in enumerate(payloads):
            obj = Object(
                group_id=group_id,
                object_id=object_id,
                subgroup_id=0,
                publisher_priority=priority,
                properties=properties,
                payload=octets,
            )
            self.objects[obj.location] = obj
            self.store.add(obj, now=self._connection.now)
        self._add_status(Location(group_id, len(payloads)), ObjectStatus.END_OF_GROUP, priority)

    def publish_end(self) -> None:
        """Publish End of Track."""
        self.end = Location(self._groups, 0)
        self._add_status(self.end, ObjectStatus.END_OF_TRACK, _END_OF_TRACK_PRIORITY)

    def _add_status(self, at: Location, status: ObjectStatus, priority: int) -> None:
        obj = Object(
            group_id=at.group_id,
            object_id=at.object_id,
            subgroup_id=0,
            publisher_priority=priority,
            status=status,
        )
        now = self._connection.now
        self.store.add(obj, now=now)
        self.store.finish_subgroup(at.group_id, 0, end_of_group=True, now=now)
        self._connection.wake()


class Source:
    """Test Tracks of one random publication on one session.

    Args:
        connection: A session that nobody else answers on.
        name: The publication.

    Attributes:
        connection: The session.
        name: The publication.
        subscribes: SUBSCRIBEs that arrived, by Track Name.
        fetches: FETCHes that arrived, likewise.
    """

    def __init__(self, connection: Connection, name: PublicationName) -> None:
        self.connection = connection
        self.name = name
        self.subscribes: Counter[bytes] = Counter()
        self.fetches: Counter[bytes] = Counter()
        self._responder = TrackResponder(connection.session, connection.outbox)
        self._tracks: dict[FullTrackName, SampleTrack] = {}
        self._announcement: RequestId | None = None
        connection.listen(self._receive)

    def add_track(
        self, name: bytes, *, groups: int, kept_seconds: float = KEPT_SECONDS
    ) -> SampleTrack:
        """Offer a Track without Objects."""
        track = self.name.track(name)
        self._tracks[track] = SampleTrack(
            self.connection, track, groups=groups, kept_seconds=kept_seconds
        )
        return self._tracks[track]

    async def announce(self, timeout: float) -> None:  # noqa: ASYNC109 - as Connection.answer has it
        """Send PUBLISH_NAMESPACE with the full namespace and wait for the answer.

        Raises:
            RequestFailed: It was refused, or not answered.
            KvcsError: The session ended.
        """
        self._announcement = self.connection.publish_namespace(self.name.namespace())
        await self.connection.answer(self._announcement, timeout=timeout)

    def withdraw(self) -> None:
        """Take the announcement back."""
        if self._announcement is not None:
            self.connection.cancel(self._announcement)
            self._announcement = None

    def end(self, track: SampleTrack) -> None:
        """Publish End of Track and end all subscriptions with PUBLISH_DONE."""
        track.publish_end()
        now = self.connection.now
        self._responder.end(track.store, PublishDoneCode.TRACK_ENDED, now=now)
        self.connection.wake()

    def close(self) -> None:
        """Stop serving."""
        self.withdraw()
        self.connection.unlisten(self._receive)
        self._responder.close()

    def _receive(self, event: Event) -> None:
        match event:
            case SubscribeReceived() | FetchReceived() | TrackStatusReceived():
                self._answer(event)
            case (
                PublishNamespaceReceived()
                | PublishReceived()
                | SubscribeNamespaceReceived()
                | SubscribeTracksReceived()
            ):
                self._refuse(event.request_id, RequestErrorCode.NOT_SUPPORTED, "a publisher only")
            case _:
                self._responder.receive(event, now=self.connection.now)
        self.connection.wake()

    def _answer(self, event: SubscribeReceived | FetchReceived | TrackStatusReceived) -> None:
        track, now = self._tracks.get(event.track), self.connection.now
        if track is None:
            self._refuse(event.request_id, RequestErrorCode.DOES_NOT_EXIST, "no such track")
            return
        self.connection.on_request(event.request_id, self._receive)
        match event:
            case SubscribeReceived():
                self.subscribes[event.track.name] += 1
                delivery = self._responder.answer_subscribe(event, track.store, now=now)
                if track.is_ended:
                    delivery.end(PublishDoneCode.TRACK_ENDED)
            case FetchReceived():
                self.fetches[event.track.name] += 1
                self._responder.answer_fetch(event, track.store, now=now)
            case TrackStatusReceived():
                self._responder.answer_track_status(event, track.store, now=now)

    def _refuse(self, request_id: RequestId, code: RequestErrorCode, reason: str) -> None:
        self.connection.session.reject(request_id, code, reason=reason, now=self.connection.now)
