"""Obtaining the manifest of a publication, and following its versions.

The signed track is asked for first. Only when it exists neither for SUBSCRIBE nor for FETCH is
the plain one used, so that whoever can refuse one request cannot strip a signature; and where
authenticity is demanded, the plain one is never used. A track is joined live with a fill of its
newest version; a refused subscription (the publisher has left) becomes a FETCH of the same range.
What the versions say is the business of `kvcs.client.manifest_versions`.

Source:
    KVCS, "Manifest Track" and "Retrieval during Production".
"""

import asyncio
import math
from collections.abc import Callable

from kvcs.client.config import ConsumerConfig
from kvcs.client.manifest_versions import ManifestVersions
from kvcs.client.recovery import Refusal, judge_refusal
from kvcs.client.request import FetchState, Request
from kvcs.client.signal import Signal
from kvcs.client.source import Source
from kvcs.cose import VerifyingKey
from kvcs.errors import (
    DataError,
    ManifestError,
    NotAuthentic,
    PublishDoneCode,
    RequestErrorCode,
    RequestRejected,
    RequestTimedOut,
)
from kvcs.kv.manifest import Manifest
from kvcs.kv.naming import MANIFEST, SIGNED_MANIFEST
from kvcs.moqt.codepoints import GroupOrder, RangeMarker
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
        self.is_final = False
        self._config = config
        self._signal = signal
        self._on_manifest = on_manifest
        self._on_error = on_error
        self._versions = ManifestVersions(
            source.name,
            config,
            check=check,
            on_manifest=self._receive_manifest,
            on_refused=self._refuse,
        )
        self._track = MANIFEST
        self._is_stalled = False
        self._request: Request | None = None

    async def open(self, patience: float = math.inf) -> Manifest:
        """Ask for the manifest and wait for its first version.

        Args:
            patience: Seconds to wait, where they are fewer than `ConsumerConfig.manifest_wait`.

        Raises:
            RequestTimedOut: It did not come in time.
            NotAuthentic: Nobody who is trusted signed the manifest, or nobody is trusted and the
                publication signs its manifest.
            RequestRejected: The peer has no such publication, or refuses to give it.
            DataError: The manifest is not one, or is that of another publication.
            KvcsError: The session ended.
        """
        wait = min(self._config.manifest_wait, patience)
        waiting = asyncio.timeout(wait)
        try:
            async with waiting:
                await self._open()
        except TimeoutError:
            if not waiting.expired():
                raise
            text = f"no manifest of publication {self.source.name.short_id} within {wait:.3g} s"
            raise RequestTimedOut(text) from None
        assert self.latest is not None
        return self.latest

    async def _open(self) -> None:
        if self._config.trusted_producers is None and not self._config.allow_unverified:
            await self._refuse_signed()
            absence = await self._obtain(MANIFEST)
        else:
            absence = await self._obtain(SIGNED_MANIFEST)
            if absence is not None and self._config.trusted_producers is not None:
                await self._refuse_unsigned()
            elif absence is not None:
                absence = await self._obtain(MANIFEST)
        if absence is not None:
            raise absence

    async def _obtain(self, track: bytes) -> RequestRejected | None:
        """Ask for one of the two tracks; return why not when it exists for no request at all."""
        self._track = track
        self._versions.is_signed = track == SIGNED_MANIFEST
        request = self._request = self._subscribe()
        await self._signal.until(lambda: request.is_answered)
        if request.accepted is None:
            absence = await self._fetch_instead(request)
            if absence is not None:
                return absence
        elif request.largest is not None:
            await self._await_fill(request, request.largest)
        await self._signal.until(lambda: self._has_outcome or request.is_over)
        await self._until_parsed()
        if self.latest is None:
            error = self._versions.error or request.error
            raise error or ManifestError("the manifest never arrived")
        return None

    def resume(self, earlier: "ManifestTrack") -> None:
        """Go on from what another peer said about the same publication."""
        self._versions.resume(earlier._versions)  # noqa: SLF001 - of the same class

    @property
    def latest(self) -> Manifest | None:
        """The newest version, or None."""
        return self._versions.latest

    @property
    def key(self) -> VerifyingKey | None:
        """Who signed it, where a signature was demanded and verified."""
        return self._versions.key

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
            before = self._versions.version
            if request.error is None and not self._is_complete:
                await self._fetch(LocationFilter.relative_start(1))
            is_fruitless = self._versions.version == before and (was_stalled or request.is_over)
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
        self._versions.close()
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
        return self._versions.has_outcome

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
                    raise NotAuthentic(
                        "untrusted",
                        "the publication signs its manifest, and no producer is trusted here: "
                        "the public key of its producer is needed",
                    )
                if request.rejected is None:
                    raise request.error or ManifestError("the request for the manifest was ended")
                if request.rejected.code != RequestErrorCode.DOES_NOT_EXIST:
                    raise request.rejection()
        finally:
            for request in requests:
                request.close()

    async def _refuse_unsigned(self) -> None:
        """Tell a publication that does not sign its manifest from one that is not there."""
        request = Request.fetch_range(
            self.source.connection,
            self.source.name.track(MANIFEST),
            self._parameters(LocationFilter.relative_start(1)),
            signal=self._signal,
            receiver=_Nobody(),
        )
        try:
            await self._signal.until(lambda: request.is_answered)
        finally:
            request.close()
        if request.accepted is not None:
            raise NotAuthentic(
                "unsigned",
                "the publication does not sign its manifest, and only signed ones are trusted",
            )

    def _subscribe(self) -> Request:
        fill = FillParameters(
            location_filter=LocationFilter.relative_start(1),
            fill_timeout_ms=_milliseconds(self._config.fill_timeout),
        )
        return Request.subscribe(
            self.source.connection,
            self.source.name.track(self._track),
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
        await self._until_parsed()
        if not self._has_outcome:
            group, last = largest.group_id, largest.object_id
            await self._fetch(LocationFilter.absolute_range(group, 0, 0, last))

    async def _fetch_instead(self, request: Request) -> RequestRejected | None:
        """Fetch what cannot be subscribed to; return why not when it does not exist at all."""
        if request.rejected is None:
            raise request.error or ManifestError("the request for the manifest was ended")
        if judge_refusal(request.rejected.code, subscribing=True) is not Refusal.FETCH_INSTEAD:
            raise request.rejection()
        fetch = await self._fetch(LocationFilter.relative_start(1))
        if fetch.rejected is not None and not self._has_outcome:
            codes = {request.rejected.code, fetch.rejected.code}
            if codes == {RequestErrorCode.DOES_NOT_EXIST}:
                return fetch.rejection()
            raise fetch.rejection()
        # A publisher that is away may come back, and go on; `follow` looks a few times.
        self.is_final = self._is_complete
        return None

    async def _fetch(self, location_filter: LocationFilter) -> Request:
        """Fetch, and wait until the stream ended or the request failed, and all is parsed."""
        parameters = self._parameters(location_filter)
        request = Request.fetch_range(
            self.source.connection,
            self.source.name.track(self._track),
            parameters,
            signal=self._signal,
            receiver=self,
        )
        try:
            await self._signal.until(lambda: request.is_over)
            await self._until_parsed()
        finally:
            request.close()
        return request

    async def _until_parsed(self) -> None:
        await self._signal.until(lambda: not self._versions.is_busy)

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
        """Take one version."""
        del is_fetch
        self._versions.receive(obj)

    def receive_marker(self, marker: RangeMarker, location: Location) -> None:
        """Ignore what the peer says about older versions."""

    def _receive_manifest(self, manifest: Manifest) -> None:
        self._signal.set()
        self._on_manifest(manifest)

    def _refuse(self, error: DataError, discards: bool) -> None:  # noqa: FBT001 - a callback
        self._signal.set()
        if self.latest is not None:
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
