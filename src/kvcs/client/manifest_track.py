"""Obtaining the manifest of a publication, and following its versions.

The signed track is asked for first. Only when it exists neither for SUBSCRIBE nor for FETCH is
the plain one used, so that whoever can refuse one request cannot strip a signature. The plain
track is joined live with a fill of its newest version; a refused subscription (the publisher
has left) becomes a FETCH of the same range.

Source:
    KVCS, "Manifest Track" and "Retrieval during Production".
"""

import asyncio
from collections.abc import Callable

from kvcs.client.config import ConsumerConfig
from kvcs.client.opening import clear_payload
from kvcs.client.recovery import Refusal, judge_refusal
from kvcs.client.request import FetchState, Request
from kvcs.client.signal import Signal
from kvcs.client.source import Source
from kvcs.errors import (
    DataError,
    ManifestError,
    PublishDoneCode,
    RequestErrorCode,
    UnsupportedEncoding,
)
from kvcs.kv.consistency import check_successor
from kvcs.kv.manifest import Manifest, parse_manifest
from kvcs.kv.naming import MANIFEST, SIGNED_MANIFEST
from kvcs.kv.sealing import TrackOpener
from kvcs.moqt.codepoints import GroupOrder, ObjectStatus, RangeMarker
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import FillParameters, Parameters
from kvcs.names import Location

__all__ = ("ManifestTrack",)


class ManifestTrack:
    """The manifest of one publication at one peer.

    Args:
        source: The peer and the publication.
        config: Settings of the consumer.
        signal: Set after every change.
        check: Checks one version against the publication's name; raises DataError.
        on_manifest: Takes each version that is newer than the ones before.
        on_error: Takes the error of a later version, and whether it discards the publication:
            one that contradicts what is known does, one that cannot be read does not.

    Attributes:
        source: As given.
        latest: The newest version, or None.
        is_final: No newer version will come from this peer.
    """

    def __init__(
        self,
        source: Source,
        config: ConsumerConfig,
        *,
        signal: Signal,
        check: Callable[[Manifest], None],
        on_manifest: Callable[[Manifest], None],
        on_error: Callable[[DataError, bool], None],
    ) -> None:
        self.source = source
        self.latest: Manifest | None = None
        self.is_final = False
        self._config = config
        self._signal = signal
        self._check = check
        self._on_manifest = on_manifest
        self._on_error = on_error
        self._version = -1
        self._is_stalled = False
        keys = config.object_keys
        self._opener = None if keys is None else TrackOpener(keys, source.name.track(MANIFEST))
        self._error: DataError | None = None
        self._request: Request | None = None

    async def open(self) -> Manifest:
        """Ask for the manifest and wait for its first version.

        Raises:
            UnsupportedEncoding: The publication signs its manifest.
            RequestRejected: The peer has no such publication, or refuses to give it.
            DataError: The manifest is not one, or is that of another publication.
            KvcsError: The session ended.
        """
        await self._refuse_signed()
        request = self._request = self._subscribe()
        await self._signal.until(lambda: request.is_answered)
        if request.accepted is None:
            await self._fetch_instead(request)
        elif request.largest is not None:
            await self._await_fill(request, request.largest)
        await self._signal.until(lambda: self._has_outcome or request.is_over)
        if self.latest is None:
            raise self._error or request.error or ManifestError("the manifest never arrived")
        return self.latest

    def resume(self, earlier: "ManifestTrack") -> None:
        """Go on from what another peer said about the same publication."""
        self.latest = earlier.latest
        self._version = earlier._version  # noqa: SLF001 - of the same class

    async def follow(self) -> None:
        """Take newer versions until no more can come; fetch what was lost or stays away.

        A subscription that ends before the track does is taken up again, as the data tracks
        are: the publisher may come back.
        """
        fruitless = 0
        while (request := self._request) is not None and not self.is_final:
            await self._signal.until(
                lambda request=request: (
                    request.is_over or request.aborted_groups or self._is_stalled
                )
            )
            request.aborted_groups.clear()
            was_stalled, self._is_stalled = self._is_stalled, False
            before = self._version
            if request.error is None and not self._is_complete:
                await self._fetch(LocationFilter.relative_start(1))
            is_fruitless = self._version == before and (was_stalled or request.is_over)
            fruitless = fruitless + 1 if is_fruitless else 0
            if _has_ended(request) or fruitless >= self._config.max_attempts:
                self.is_final = True
                self._signal.set()
            elif request.is_over:
                await asyncio.sleep(self._config.pause(fruitless))
                self._request = self._subscribe()

    def stall(self) -> None:
        """Ask for the newest version again: nothing new has come for too long."""
        self._is_stalled = True

    def close(self) -> None:
        """Cancel the subscription unless it is over."""
        if self._request is not None:
            self._request.close()

    @property
    def request(self) -> Request | None:
        """The subscription, once it was sent."""
        return self._request

    @property
    def _is_complete(self) -> bool:
        return self.latest is not None and self.latest.complete

    @property
    def _has_outcome(self) -> bool:
        return self.latest is not None or self._error is not None

    async def _refuse_signed(self) -> None:
        """Make sure that there is no signed manifest (never fall back for another reason)."""
        track, connection = self.source.name.track(SIGNED_MANIFEST), self.source.connection
        live = self._parameters(LocationFilter.next_object())
        latest = self._parameters(LocationFilter.relative_start(1))
        signal, nobody = self._signal, _Nobody()
        requests = (
            Request.subscribe(connection, track, live, signal=signal, receiver=nobody),
            Request.fetch_range(connection, track, latest, signal=signal, receiver=nobody),
        )
        try:
            for request in requests:
                await self._signal.until(lambda request=request: request.is_answered)
                if request.accepted is not None:
                    raise UnsupportedEncoding(
                        "the publication signs its manifest, and signed manifests are not "
                        "supported yet"
                    )
                if request.rejected is None:
                    raise request.error or ManifestError("the request for the manifest was ended")
                if request.rejected.code != RequestErrorCode.DOES_NOT_EXIST:
                    raise request.rejection()
        finally:
            for request in requests:
                request.close()

    def _subscribe(self) -> Request:
        fill = FillParameters(
            location_filter=LocationFilter.relative_start(1),
            fill_timeout_ms=_milliseconds(self._config.fill_timeout),
        )
        return Request.subscribe(
            self.source.connection,
            self.source.name.track(MANIFEST),
            self._parameters(LocationFilter.next_object(), fill),
            signal=self._signal,
            receiver=self,
        )

    async def _await_fill(self, request: Request, largest: Location) -> None:
        """Wait for the version that was the newest one at the join; fetch it if it stays away."""
        await self._signal.until(
            lambda: self._has_outcome or request.is_over or request.fetch is not FetchState.NONE,
            self._config.fill_wait,
        )
        await self._signal.until(
            lambda: self._has_outcome or request.is_over or request.fetch is not FetchState.OPEN
        )
        if not self._has_outcome:
            group, last = largest.group_id, largest.object_id
            await self._fetch(LocationFilter.absolute_range(group, 0, 0, last))

    async def _fetch_instead(self, request: Request) -> None:
        if request.rejected is None:
            raise request.error or ManifestError("the request for the manifest was ended")
        if judge_refusal(request.rejected.code, subscribing=True) is not Refusal.FETCH_INSTEAD:
            raise request.rejection()
        fetch = await self._fetch(LocationFilter.relative_start(1))
        self.is_final = True
        if fetch.rejected is not None and not self._has_outcome:
            raise fetch.rejection()

    async def _fetch(self, location_filter: LocationFilter) -> Request:
        """Fetch, and wait until the stream ended or the request failed."""
        parameters = self._parameters(location_filter)
        request = Request.fetch_range(
            self.source.connection,
            self.source.name.track(MANIFEST),
            parameters,
            signal=self._signal,
            receiver=self,
        )
        try:
            await self._signal.until(lambda: request.is_over)
        finally:
            request.close()
        return request

    def _parameters(
        self, location_filter: LocationFilter, fill: FillParameters | None = None
    ) -> Parameters:
        return Parameters(
            location_filter=location_filter,
            fill=fill,
            subscriber_priority=self._config.subscriber_priority - 1,
            group_order=GroupOrder.ASCENDING,
            authorization_tokens=self._config.authorization,
        )

    def receive_object(self, obj: Object, *, is_fetch: bool) -> None:
        """Take one version; an older one that comes late is ignored."""
        del is_fetch
        is_version = obj.status is ObjectStatus.NORMAL and obj.object_id == 0
        if not is_version or obj.group_id <= self._version:
            return
        try:
            payload = clear_payload(obj, self._opener, self._config.key_id_property)
            manifest = parse_manifest(payload, self._config.manifest_limits)
        except DataError as error:
            self._refuse(error, discards=False)
            return
        try:
            self._check(manifest)
            if self.latest is not None:
                check_successor(self.latest, manifest)
        except DataError as error:
            self._refuse(error, discards=True)
            return
        self._version = obj.group_id
        self.latest = manifest
        self._signal.set()
        self._on_manifest(manifest)

    def receive_marker(self, marker: RangeMarker, location: Location) -> None:
        """Ignore what the peer says about older versions."""

    def _refuse(self, error: DataError, *, discards: bool) -> None:
        if self.latest is None:
            self._error = error
            self._signal.set()
        else:
            self._on_error(error, discards)


def _has_ended(request: Request) -> bool:
    """Tell whether the track is over, and not just one subscription to it."""
    is_track_ended = (
        request.done is not None and request.done.status_code == PublishDoneCode.TRACK_ENDED
    )
    return request.is_over and (request.error is not None or is_track_ended)


class _Nobody:
    """Receiver of a request whose data nobody wants."""

    def receive_object(self, obj: Object, *, is_fetch: bool) -> None:
        pass

    def receive_marker(self, marker: RangeMarker, location: Location) -> None:
        pass


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
