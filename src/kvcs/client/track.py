"""Bringing one data track of one segment: live join, FETCH, fallbacks, repetition.

Theory of operation. `TrackRetrieval.run` asks one peer until nothing is missing or nothing is
left to try. While the segment is in production it subscribes with Next Object and a fill from
the first layer that has holes, which brings every Object exactly once; a segment that is
complete is fetched. Whatever goes wrong (a refused subscription, a fill that never begins, a
reset, an end of range record) ends in the same question: which Locations are missing? They are
fetched exactly. Steps that bring nothing are repeated a few times with growing pauses; one that
verified anything new starts the count again, and a peer that is busy is asked again when it
says: a long prompt has more tracks than a peer serves FETCHes at a time. The deadline is the
retrieval's, which cancels.

Source:
    KVCS, "Retrieval during Production", "Retrieval of Completed Caches", "Verification and
    Recovery".
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum, auto
from itertools import batched

from kvcs.client.arrival import BlockArrival, SealedArrival
from kvcs.client.config import ConsumerConfig
from kvcs.client.fetch_slots import FetchSlots
from kvcs.client.intake import TrackIntake
from kvcs.client.ledger import BlockState, MissingReason
from kvcs.client.opening import Opening, TrackOpening
from kvcs.client.recovery import (
    FetchCoverage,
    FetchPlan,
    Refusal,
    judge_refusal,
    object_filter,
    plan_fetches,
)
from kvcs.client.request import FetchState, Request
from kvcs.client.signal import Signal
from kvcs.client.source import Source
from kvcs.errors import KvcsError, PublishDoneCode, RequestErrorCode
from kvcs.moqt.codepoints import GroupOrder, RangeMarker
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import FillParameters, Parameters
from kvcs.names import Location

__all__ = ("TrackRetrieval",)


class _Step(Enum):
    """What one step leaves to do, if anything is still missing."""

    NEXT = auto()  # take the next step at once
    REPEAT = auto()  # pause, then try again
    LATER = auto()  # try again when the peer says; it is busy, and that costs no attempt
    GIVE_UP = auto()  # asking this peer again is futile


class TrackRetrieval:
    """Brings one data track from one peer.

    Args:
        source: The peer and the publication.
        intake: Where Objects go, and what is missing.
        config: Settings of the consumer.
        slots: Which FETCHes of the retrieval may be open.
        signal: Shared with the retrieval; set after every change that anyone waits for.
        opening: Opens sealed Objects; None when they are taken in clear.

    Attributes:
        intake: As given.
        reason: Why the last step brought nothing.
        error: What ended the session, if that did.
    """

    def __init__(
        self,
        source: Source,
        intake: TrackIntake,
        config: ConsumerConfig,
        *,
        slots: FetchSlots,
        signal: Signal,
        opening: Opening | None = None,
    ) -> None:
        self.reason = MissingReason.NOT_PUBLISHED
        self.error: KvcsError | None = None
        self.intake = intake
        self._source = source
        self._config = config
        self._slots = slots
        self._signal = signal
        self._track = source.name.track(intake.name.format())
        self._opening: TrackOpening | None = None
        if opening is not None and config.object_keys is not None:
            self._opening = TrackOpening(
                opening, config.object_keys, self._track, key_id_property=config.key_id_property
            )
        self._is_stalled = False
        self._must_fetch = False
        self._is_ended = False
        self._retry_after = 0.0
        self._live: Request | None = None

    async def run(self) -> None:
        """Bring what is missing; return when nothing is, or when nothing is left to try."""
        ledger = self.intake.ledger
        failures = 0
        while failures < self._config.max_attempts:
            # What awaits the list of a signed manifest may still turn out to be missing.
            await self._signal.until(lambda: ledger.lacking or not ledger.remaining)
            if not ledger.remaining:
                return
            before = ledger.lacking
            self._is_stalled = False
            step = await self._step()
            await self._until_opened()
            if step is _Step.GIVE_UP:
                return
            if ledger.lacking < before:
                failures = 0
            elif step is _Step.REPEAT:
                failures += 1
                await asyncio.sleep(self._config.pause(failures))
            if step is _Step.LATER:
                await asyncio.sleep(self._retry_after)

    async def _until_opened(self) -> None:
        """Wait for what has arrived: it must not be asked for again."""
        await self._signal.until(lambda: not self.intake.is_opening)

    def stall(self) -> None:
        """End the current step: nothing new has come for too long."""
        self._is_stalled = True

    async def close(self) -> None:
        """Leave; a publisher that has nothing more to send may say so first."""
        if (request := self._live) is not None:
            if self._takes_everything and not self.intake.ledger.remaining:
                await self._signal.until(lambda: request.is_over, self._config.done_wait)
            self.cancel()

    def cancel(self) -> None:
        """Leave at once."""
        if self._live is not None:
            self._live.close()

    @property
    def _takes_everything(self) -> bool:
        wanted = self.intake.wanted
        layers = self.intake.ledger.layers
        return wanted.wanted_blocks == wanted.blocks and len(layers) == self.intake.layers

    def _is_settled(self) -> bool:
        return not self.intake.ledger.lacking or self._is_stalled

    async def _step(self) -> _Step:
        if self.intake.segment.complete or self._must_fetch:
            self._must_fetch = self._is_ended
            return await self._fetch_missing()
        return await self._join()

    # Live join.

    async def _join(self) -> _Step:
        """Subscribe with fill, and stay until the track ends, breaks or is whole."""
        if self._live is not None:
            self._live.close()
        first_layer = next(self.intake.ledger.holes())[0]
        receiver = _TrackReceiver(
            self.intake, self._opening, Location(first_layer, 0), filtered=self._is_filtered
        )
        request = self._live = Request.subscribe(
            self._source.connection,
            self._track,
            self._subscribe_parameters(first_layer),
            signal=self._signal,
            receiver=receiver,
        )
        await self._signal.until(lambda: request.is_answered or self._is_settled())
        if request.rejected is not None:
            return self._refused(request, subscribing=True)
        if request.largest is not None and request.largest >= Location(first_layer, 0):
            await self._await_fill(request, receiver, request.largest)
        return await self._stay(request)

    async def _await_fill(
        self, request: Request, receiver: "_TrackReceiver", largest: Location
    ) -> None:
        """See the fill through; fetch what it has not brought if it fails or falls silent."""
        await self._signal.until(
            lambda: request.fetch is not FetchState.NONE or request.is_over or self._is_settled(),
            self._config.fill_wait,
        )
        if request.fetch is not FetchState.NONE:
            await self._see_through(request)
        if request.fetch is FetchState.FINISHED:
            receiver.coverage.finish(largest)
            return
        request.stop_fetch()
        await self._until_opened()
        if request.error is None and not self._is_settled():
            # A fill comes in order, so that nothing before the first hole is fetched twice.
            layer_index, blocks = next(self.intake.ledger.holes())
            start = Location(layer_index, blocks.start)
            if start <= largest:
                await self._fetch(_up_to(start, largest))

    async def _see_through(self, request: Request) -> None:
        """Wait until a fetch stream has ended, or has been silent for too long."""
        config = self._config
        while not (request.is_delivered or self._is_settled()):
            deadline = request.silence_ends(config.fill_wait, config.max_silence)
            left = deadline - self._source.connection.now
            if left <= 0:
                return
            await self._signal.until(lambda: request.is_delivered or self._is_settled(), left)

    async def _stay(self, request: Request) -> _Step:
        """Take live Objects until nothing more comes; fetch what was reset, or returned."""
        aborted, returned = request.aborted_groups, self.intake.returned
        while True:
            await self._signal.until(
                lambda: request.is_over or aborted or returned or self._is_settled()
            )
            if self._is_settled() or not (aborted or returned):
                break
            layers = sorted((aborted | returned).intersection(self.intake.ledger.layers))
            aborted.clear()
            returned.clear()
            for layer_index in layers:
                await self._fetch_layers((layer_index,))
        if self._is_stalled:
            self.reason = MissingReason.STALLED
            request.close()
            return _Step.REPEAT
        return self._ended(request)

    def _ended(self, request: Request) -> _Step:
        """Judge a subscription that is over."""
        if request.error is not None:
            return self._lost(request.error)
        self._is_ended = (
            request.done is not None and request.done.status_code == PublishDoneCode.TRACK_ENDED
        )
        self.reason = MissingReason.NOT_PUBLISHED if self._is_ended else MissingReason.RESET
        # Whatever ended it, a FETCH of what is missing tells what can still be had.
        self._must_fetch = True
        return _Step.NEXT

    # FETCH.

    async def _fetch_missing(self) -> _Step:
        """Fetch exactly what is missing, all layers at once or window by window."""
        ledger = self.intake.ledger
        lacking = [layer for layer in ledger.layers if ledger.is_lacking(layer)]
        for layers in self._slots.windows(lacking):
            step = await self._fetch_layers(layers)
            if step is not _Step.REPEAT:
                return step
        futile = (BlockState.NON_EXISTENT, BlockState.UNLISTED)
        if ledger.lacking and all(run.state in futile for run in ledger.missing()):
            return _Step.GIVE_UP
        return _Step.REPEAT

    async def _fetch_layers(self, layers: Sequence[int]) -> _Step:
        """Fetch what is missing of some layers, a few requests at a time."""
        await self._until_opened()
        plans = plan_fetches(
            self.intake.ledger,
            segment_blocks=self.intake.wanted.blocks,
            filter_ranges=self._source.filter_ranges,
            layers=layers,
        )
        for batch in batched(plans, self._config.max_fetches):
            async with asyncio.TaskGroup() as group:
                name = f"fetch {self.intake.name}"
                tasks = [group.create_task(self._fetch(plan), name=name) for plan in batch]
            for step in (_Step.GIVE_UP, _Step.LATER):
                if any(task.result() is step for task in tasks):
                    return step
        return _Step.REPEAT

    async def _fetch(self, plan: FetchPlan) -> _Step:
        """Fetch one plan when it is its turn."""
        async with self._slots.hold(plan.first_layer):
            return await self._fetch_now(plan)

    async def _fetch_now(self, plan: FetchPlan) -> _Step:
        """Fetch one plan and note what the answer says about what it did not bring."""
        start = Location(plan.first_layer, plan.blocks.start)
        receiver = _TrackReceiver(self.intake, self._opening, start, filtered=plan.filtered)
        request = Request.fetch_range(
            self._source.connection,
            self._track,
            self._with_priority(replace(plan.parameters, fill_timeout_ms=self._fill_timeout_ms)),
            signal=self._signal,
            receiver=receiver,
        )
        try:
            # Until then it is the session that bounds the time.
            await self._signal.until(
                lambda: (
                    request.is_answered
                    or request.fetch is not FetchState.NONE
                    or self._is_settled()
                )
            )
            await self._see_through(request)
            return self._fetched(request, receiver, plan)
        finally:
            request.close()

    def _fetched(self, request: Request, receiver: "_TrackReceiver", plan: FetchPlan) -> _Step:
        if request.rejected is not None:
            return self._refused(request, subscribing=False)
        if request.error is not None:
            return self._lost(request.error)
        if self._is_stalled or not request.is_over:
            self.reason = MissingReason.STALLED
        elif request.fetch is FetchState.FINISHED and request.end_location is not None:
            self.reason = MissingReason.UNKNOWN if plan.filtered else MissingReason.NOT_PUBLISHED
            receiver.coverage.finish(request.end_location)
        else:
            self.reason = MissingReason.RESET
            # A plan may go up to whatever Largest the peer has claimed.
            for layer_index in self.intake.ledger.layers:
                if plan.first_layer <= layer_index <= plan.last_layer:
                    self.intake.ledger.mark(layer_index, plan.blocks, BlockState.RESET)
        return _Step.REPEAT

    def _lost(self, error: KvcsError) -> _Step:
        self.reason = MissingReason.CONNECTION_LOST
        self.error = error
        return _Step.GIVE_UP

    def _refused(self, request: Request, *, subscribing: bool) -> _Step:
        assert request.rejected is not None
        is_gone = request.rejected.code == RequestErrorCode.DOES_NOT_EXIST
        self.reason = MissingReason.UNKNOWN if is_gone else MissingReason.REFUSED
        match judge_refusal(request.rejected.code, subscribing=subscribing):
            case Refusal.FETCH_INSTEAD:
                self._must_fetch = True
                return _Step.NEXT
            case Refusal.LATER if request.rejected.retry_after:
                pause = self._config.retry_interval
                self._retry_after = max(request.rejected.retry_after, pause)
                return _Step.LATER
            case Refusal.RETRY | Refusal.LATER:
                return _Step.REPEAT
            case Refusal.FINAL:
                return _Step.GIVE_UP

    # Parameters.

    @property
    def _is_filtered(self) -> bool:
        wanted = self.intake.wanted
        return wanted.wanted_blocks < wanted.blocks and self._source.filter_ranges > 0

    @property
    def _fill_timeout_ms(self) -> int:
        return max(1, round(self._config.fill_timeout * 1000))

    def _subscribe_parameters(self, first_layer: int) -> Parameters:
        last_layer = self.intake.ledger.layers[-1]
        fill = FillParameters(
            location_filter=LocationFilter.absolute_start_group_end(
                first_layer, 0, last_layer - first_layer
            )
            if last_layer + 1 < self.intake.layers
            else LocationFilter.absolute_start(first_layer, 0),
            fill_timeout_ms=self._fill_timeout_ms,
        )
        blocks = range(self.intake.wanted.wanted_blocks)
        return self._with_priority(
            Parameters(
                location_filter=LocationFilter.next_object(),
                group_order=GroupOrder.ASCENDING,
                fill=fill,
                range_filters=(object_filter(blocks),) if self._is_filtered else (),
            )
        )

    def _with_priority(self, parameters: Parameters) -> Parameters:
        return replace(
            parameters,
            subscriber_priority=self._config.subscriber_priority,
            authorization_tokens=self._config.authorization,
        )


class _TrackReceiver:
    """Hands Objects to the intake, and the shape of a fetch stream to its coverage."""

    __slots__ = ("_intake", "_opening", "coverage", "start")

    def __init__(
        self,
        intake: TrackIntake,
        opening: TrackOpening | None,
        start: Location,
        *,
        filtered: bool,
    ) -> None:
        self.start = start
        self.coverage = FetchCoverage(intake.ledger, start, filtered=filtered)
        self._intake = intake
        self._opening = opening

    def receive_object(self, obj: Object, *, is_fetch: bool) -> None:
        if is_fetch:
            self.coverage.receive_object(obj.group_id, obj.object_id)
        self._intake.receive(obj, self._opening)

    def begin_object(
        self, obj: Object, length: int, data: memoryview, *, is_fetch: bool
    ) -> BlockArrival | SealedArrival | None:
        if is_fetch:
            self.coverage.receive_object(obj.group_id, obj.object_id)
        return self._intake.begin(obj, length, data, self._opening)

    def receive_marker(self, marker: RangeMarker, location: Location) -> None:
        self.coverage.receive_marker(marker, location)


def _up_to(start: Location, largest: Location) -> FetchPlan:
    """Plan the FETCH that stands in for a fill: everything up to the Largest of the join."""
    delta = largest.group_id - start.group_id
    location = LocationFilter.absolute_range(
        start.group_id, start.object_id, delta, largest.object_id
    )
    parameters = Parameters(location_filter=location, group_order=GroupOrder.ASCENDING)
    blocks = range(start.object_id, largest.object_id + 1)
    return FetchPlan(
        start.group_id, largest.group_id, blocks, filtered=False, parameters=parameters
    )
