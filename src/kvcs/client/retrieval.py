"""One retrieval: a prefix of a publication, layer by layer, into the caller's memory.

Theory of operation. Entering a `Retrieval` obtains the manifest and raises when there is
nothing to retrieve: no such publication, other tokens, a signed manifest. From then on nothing
raises for the network's sake. One task drives each data track (`TrackRetrieval`), one follows the
manifest, and the retrieval watches: a layer is usable, and given by iteration in order, when all
its blocks are verified in all wanted segments and both components. When the tracks have brought
everything or given up, or the deadline passes, there is a verdict.

A layer is usable on the digests that its Objects carry, since the manifest lists a layer only
some layers later. The retrieval is complete only when every manifest has caught up: digests that
are listed later are compared with what was accepted, and a contradiction discards the whole
publication. Blocks of a segment whose complete manifest lists no digests need no confirmation.

Recovery goes to the other sources that the caller names, in order: the same publication at
another peer, or another publication when both are deterministic and cut alike. Anything else
would mix bytes of two computations, and is a new retrieval.

Source:
    KVCS, "Consumer Procedures".
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from kvcs.client.config import ConsumerConfig
from kvcs.client.intake import IntakeContext, TrackIntake
from kvcs.client.ledger import MissingReason
from kvcs.client.manifest_track import ManifestTrack
from kvcs.client.memory import Memory, Placement
from kvcs.client.selection import Prefix, WantedSegment
from kvcs.client.signal import Signal
from kvcs.client.source import Source
from kvcs.client.track import TrackRetrieval
from kvcs.client.verdict import (
    Counters,
    LayerArrival,
    MissingRange,
    Verdict,
    missing_ranges,
    verified_prefix,
)
from kvcs.client.verifier import Verifier
from kvcs.errors import ConfigError, DataError, KvcsError, RequestTimedOut
from kvcs.kv.layout import Layout
from kvcs.kv.manifest import Manifest
from kvcs.kv.naming import Component, PublicationName

__all__ = ("Layer", "Retrieval", "Wish")

_logger = logging.getLogger("kvcs.client")


@dataclass(frozen=True, slots=True)
class Layer:
    """A usable layer: keys and values of all wanted blocks, verified.

    Attributes:
        layer_index: Layer index.
        k: Keys, ``[tokens, kv_heads, head_dim]``, C order, little-endian, as octets.
        v: Values, likewise.
    """

    layer_index: int
    k: memoryview
    v: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the caller wants of a publication, and how long it is willing to wait.

    Attributes:
        prefix: Which blocks.
        layers: Wanted layer indexes, ascending; None for all.
        memory: Where Data goes.
        timeout: Seconds for the whole retrieval.
        idle_timeout: Seconds without a newly verified Object after which recovery starts; None
            waits for the timeout alone.
        check: Checks a manifest against the name of its publication; raises DataError.
    """

    prefix: Prefix
    layers: tuple[int, ...] | None
    memory: Memory
    timeout: float
    idle_timeout: float | None
    check: Callable[[Manifest, PublicationName], None]


class Retrieval:
    """A running retrieval; an async context manager, iterated for its layers.

    Args:
        sources: Where the publication can be had; the first one first.
        wish: What is wanted.
        config: Settings of the consumer.
    """

    def __init__(self, sources: Sequence[Source], wish: Wish, config: ConsumerConfig) -> None:
        self._sources = tuple(sources)
        self._wish = wish
        self._config = config
        self._signal = Signal()
        self._counters = Counters()
        self._prefix = wish.prefix
        self._layers: tuple[int, ...] = ()
        self._context: IntakeContext | None = None
        self._segments: list[tuple[WantedSegment, tuple[TrackIntake, ...]]] = []
        self._tracks: dict[TrackIntake, TrackRetrieval] = {}
        self._given_up: dict[TrackIntake, MissingReason] = {}
        self._manifest: ManifestTrack | None = None
        self._usable: dict[int, Layer] = {}
        self._arrivals: list[LayerArrival] = []
        self._cause = MissingReason.STOPPED
        self._error: KvcsError | None = None
        self._discarded: DataError | None = None
        self._verdict: Verdict | None = None
        self._started = 0.0
        self._last_progress = 0.0
        self._runner: asyncio.Task[None] | None = None
        self._group = asyncio.TaskGroup()

    def __repr__(self) -> str:
        return f"<Retrieval {self._sources[0].name} {len(self._usable)}/{len(self._layers)} layers>"

    # The caller's side.

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._started = self._last_progress = loop.time()
        try:
            async with asyncio.timeout_at(self._deadline):
                self._manifest = await self._open(self._sources[0])
        except TimeoutError:
            raise RequestTimedOut(f"no manifest within {self._wish.timeout} s") from None
        await self._group.__aenter__()
        self._runner = self._group.create_task(self._run(), name=f"retrieval {id(self):x}")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._runner is not None and (exc is not None or self._verdict is None):
            self._runner.cancel()
        # The caller's own error is the caller's: it must not come back in a group.
        if isinstance(exc, asyncio.CancelledError):
            await self._group.__aexit__(exc_type, exc, traceback)
        else:
            await self._group.__aexit__(None, None, None)

    async def __aiter__(self) -> AsyncIterator[Layer]:
        """Yield each wanted layer in order, as soon as it is usable; end with the verdict."""
        for layer_index in self._layers:
            layer = await self.layer(layer_index)
            if layer is None:
                break
            yield layer
        await self.finished()

    async def layer(self, layer_index: int) -> Layer | None:
        """Wait until one layer is usable; return None as soon as it cannot become so."""
        await self._signal.until(
            lambda: layer_index in self._usable or self._is_hopeless(layer_index)
        )
        return self._usable.get(layer_index)

    async def finished(self) -> Verdict:
        """Wait for the end and return the verdict."""
        await self._signal.until(lambda: self._verdict is not None)
        return self.verdict

    @property
    def verdict(self) -> Verdict:
        """The final verdict, or what it would be if the retrieval stopped now."""
        return self._verdict or self._judge()

    @property
    def manifest(self) -> Manifest:
        """The newest manifest."""
        assert self._manifest is not None
        assert self._manifest.latest is not None
        return self._manifest.latest

    @property
    def layers(self) -> tuple[int, ...]:
        """The wanted layer indexes, ascending."""
        return self._layers

    @property
    def blocks(self) -> int:
        """Wanted blocks of the prefix."""
        return self._prefix.blocks or 0

    # The manifest.

    @property
    def _deadline(self) -> float:
        return self._started + self._wish.timeout

    async def _open(self, source: Source, earlier: ManifestTrack | None = None) -> ManifestTrack:
        """Obtain the manifest at one source, and plan by it."""
        track = ManifestTrack(
            source,
            self._config,
            signal=self._signal,
            check=lambda manifest: self._wish.check(manifest, source.name),
            on_manifest=self._take_manifest,
            on_error=self._take_manifest_error,
        )
        if earlier is not None:
            track.resume(earlier)
        try:
            manifest = await track.open()
            await self._signal.until(lambda: track.latest is not None and track.latest.segments)
            self._plan(track.latest or manifest)
        except BaseException:
            track.close()
            raise
        return track

    def _take_manifest(self, manifest: Manifest) -> None:
        """Use a newer manifest; runs inside the event that brought it."""
        if self._context is None:
            return
        try:
            for _, intakes in self._segments:
                for intake in intakes:
                    intake.take_manifest(manifest)
            self._plan(manifest)
        except DataError as error:
            self._discard(error)
        self._signal.set()

    def _take_manifest_error(self, error: DataError, discards: bool) -> None:  # noqa: FBT001 - a callback
        if discards:
            self._discard(error)
        else:
            self._counters.reject("manifest")

    def _plan(self, manifest: Manifest) -> None:
        """Start what the manifest newly lists of the wanted prefix."""
        wanted = self._prefix.segments(manifest)
        context = self._context or self._prepare(manifest, wanted)
        for segment in wanted[len(self._segments) :]:
            intakes = tuple(
                TrackIntake(context, segment, name, layers=self._layers, manifest=manifest)
                for name in segment.tracks
            )
            self._segments.append((segment, intakes))

    def _prepare(self, manifest: Manifest, wanted: Sequence[WantedSegment]) -> IntakeContext:
        """Fix layers, blocks and memory by the first manifest."""
        layout = Layout(manifest.compat)
        layers = self._wish.layers
        self._layers = tuple(range(layout.layers)) if layers is None else layers
        if self._layers and not 0 <= self._layers[0] <= self._layers[-1] < layout.layers:
            raise ConfigError("layers", f"0..{layout.layers - 1}", f"{self._layers[-1]}")
        if self._prefix.blocks is None:
            blocks = sum(segment.wanted_blocks for segment in wanted)
            self._prefix = replace(self._prefix, blocks=blocks)
        size = self.blocks * sum(layout.data_bytes(Component.KV, layer) for layer in self._layers)
        if size > self._config.max_memory_bytes:
            expected = f"at least {size} octets for this retrieval"
            raise ConfigError("max_memory_bytes", expected, str(self._config.max_memory_bytes))
        self._context = IntakeContext(
            layout=layout,
            placement=Placement(self._wish.memory, layout, layers=self._layers, blocks=self.blocks),
            counters=self._counters,
            verifier=Verifier(
                threshold_bytes=self._config.hash_threshold_bytes,
                max_pending_bytes=self._config.max_hashing_bytes,
            ),
            on_verified=self._on_verified,
            on_settled=self._signal.set,
            on_discard=self._discard,
        )
        return self._context

    # Running.

    async def _run(self) -> None:
        """Go through the sources until everything is there, then give the verdict."""
        try:
            async with asyncio.timeout_at(self._deadline):
                await self._run_sources()
        except TimeoutError:
            self._cause = MissingReason.DEADLINE
        finally:
            self._verdict = verdict = self._judge()
            self._signal.set()
            _logger.info(
                "retrieval %s %s: %d verified, %d missing, %d rejected, %.3f s",
                self._sources[0].name,
                "complete" if verdict.complete else "incomplete",
                verdict.verified,
                verdict.missing_objects,
                sum(verdict.rejected.values()),
                verdict.elapsed_s,
            )
            await self._leave()

    async def _run_sources(self) -> None:
        for source in self._sources:
            if source is not self._sources[0] and not await self._switch(source):
                continue
            await self._run_source(source)
            if self._is_done:
                return
            await self._leave()
        self._cause = MissingReason.NOT_PUBLISHED

    async def _run_source(self, source: Source) -> None:
        """Take from one source all that it gives."""
        manifest = self._manifest
        assert manifest is not None
        self._given_up.clear()
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(manifest.follow(), name="manifest")]
            if self._wish.idle_timeout is not None:
                helpers.append(group.create_task(self._watch_idle(self._wish.idle_timeout)))
            tasks: list[asyncio.Task[None]] = []
            while not self._is_over(manifest):
                for intake in self._unstarted():
                    track = TrackRetrieval(source, intake, self._config, signal=self._signal)
                    self._tracks[intake] = track
                    tasks.append(group.create_task(self._bring(track), name=str(intake.name)))
                await self._signal.until(lambda: self._is_over(manifest) or any(self._unstarted()))
            for task in (*helpers, *tasks):
                task.cancel()

    async def _bring(self, track: TrackRetrieval) -> None:
        await track.run()
        self._given_up[track.intake] = track.reason
        self._error = self._error or track.error
        self._signal.set()

    async def _watch_idle(self, idle_timeout: float) -> None:
        """Let every track recover when nothing new was verified for too long."""
        loop = asyncio.get_running_loop()
        self._last_progress = loop.time()
        while True:
            quiet = loop.time() - self._last_progress
            if quiet < idle_timeout:
                # Not less than a tick, or rounding could make it look again for ever.
                await asyncio.sleep(max(idle_timeout - quiet, 0.001))
                continue
            self._last_progress = loop.time()
            for track in self._tracks.values():
                track.stall()
            if self._manifest is not None:
                self._manifest.stall()
            self._signal.set()

    async def _switch(self, source: Source) -> bool:
        """Prepare to go on with another source; return False when it cannot be used."""
        earlier = self._manifest
        assert earlier is not None
        assert earlier.latest is not None
        is_same = source.name == self._sources[0].name
        if not is_same and not earlier.latest.deterministic:
            return False
        try:
            manifest = await self._open(source, earlier if is_same else None)
        except KvcsError as error:
            self._error = self._error or error
            return False
        if not is_same and not _is_interchangeable(earlier.latest, manifest.latest):
            manifest.close()
            return False
        self._manifest = manifest
        return True

    async def _leave(self) -> None:
        """Close what is open at the current source."""
        tracks, self._tracks = self._tracks, {}
        async with asyncio.TaskGroup() as group:
            for track in tracks.values():
                group.create_task(track.close(), name="close")
        if self._manifest is not None:
            self._manifest.close()

    def _unstarted(self) -> list[TrackIntake]:
        return [
            intake
            for _, intakes in self._segments
            for intake in intakes
            if intake not in self._tracks
        ]

    # What is there, and what is not.

    def _on_verified(self, layer_index: int, is_whole: bool) -> None:  # noqa: FBT001 - a callback
        self._last_progress = asyncio.get_running_loop().time()
        if not is_whole:
            return
        if layer_index not in self._usable and self._is_usable(layer_index):
            self._usable[layer_index] = Layer(
                layer_index,
                self._view(Component.K, layer_index),
                self._view(Component.V, layer_index),
            )
            seconds = self._last_progress - self._started
            self._arrivals.append(LayerArrival(layer_index=layer_index, seconds=seconds))
        self._signal.set()

    def _view(self, component: Component, layer_index: int) -> memoryview:
        assert self._context is not None
        return self._context.placement.view(component, layer_index).toreadonly()

    def _discard(self, error: DataError) -> None:
        if self._discarded is None:
            self._discarded = error
            self._usable.clear()
            self._signal.set()

    def _is_usable(self, layer_index: int) -> bool:
        return (
            self._discarded is None
            and self._planned_blocks == self.blocks
            and all(intake.ledger.is_whole(layer_index) for intake in self._intakes)
        )

    def _is_hopeless(self, layer_index: int) -> bool:
        if self._verdict is not None or self._discarded is not None:
            return True
        return len(self._sources) == 1 and any(
            not intake.ledger.is_whole(layer_index) for intake in self._given_up
        )

    @property
    def _intakes(self) -> list[TrackIntake]:
        return [intake for _, intakes in self._segments for intake in intakes]

    @property
    def _planned_blocks(self) -> int:
        return sum(segment.wanted_blocks for segment, _ in self._segments)

    @property
    def _has_everything(self) -> bool:
        return self._planned_blocks == self.blocks and not any(
            intake.ledger.remaining for intake in self._intakes
        )

    @property
    def _is_done(self) -> bool:
        """Nothing is left to ask anyone."""
        if self._discarded is not None:
            return True
        return self._has_everything and not self._unconfirmed_layers

    @property
    def _unconfirmed_layers(self) -> int:
        return sum(
            intake.ledger.unconfirmed() for intake in self._intakes if not intake.is_unlisted
        )

    def _is_over(self, manifest: ManifestTrack) -> bool:
        """Tell whether the current source has nothing more to give."""
        if self._is_done:
            return True
        if any(intake not in self._given_up for intake in self._intakes):
            return False
        # The tracks have ended; only a newer manifest can add segments or confirm digests.
        return manifest.is_final or any(intake.ledger.remaining for intake in self._intakes)

    # The verdict.

    def _judge(self) -> Verdict:
        missing = tuple(self._missing())
        unplanned = self.blocks - self._planned_blocks
        missing_objects = sum(
            intake.ledger.wanted if self._discarded else intake.ledger.remaining
            for intake in self._intakes
        )
        ledgers = [[intake.ledger for intake in intakes] for _, intakes in self._segments]
        counters = self._counters
        return Verdict(
            complete=self._discarded is None and self._is_done,
            missing=missing,
            verified_prefix_blocks=0 if self._discarded else verified_prefix(ledgers),
            unconfirmed_layers=self._unconfirmed_layers,
            error=self._discarded or self._error,
            verified=counters.verified,
            rejected=dict(counters.rejected),
            duplicate=counters.duplicate,
            excess=counters.excess,
            missing_objects=missing_objects + 2 * unplanned * len(self._layers),
            verified_bytes=counters.verified_bytes,
            payload_bytes=counters.payload_bytes,
            arrivals=tuple(self._arrivals),
            elapsed_s=asyncio.get_running_loop().time() - self._started,
        )

    def _missing(self) -> list[MissingRange]:
        ranges: list[MissingRange] = []
        if self._discarded is not None:
            return [
                MissingRange(
                    segment=segment.segment,
                    layer=layer_index,
                    first=0,
                    end=segment.wanted_blocks,
                    reason=MissingReason.DISCARDED,
                )
                for segment, _ in self._segments
                for layer_index in self._layers
            ]
        for segment, intakes in self._segments:
            pending = [self._pending_reason(intake) for intake in intakes]
            ledgers = [intake.ledger for intake in intakes]
            ranges += missing_ranges(segment.segment, ledgers, pending)
        if unplanned := self.blocks - self._planned_blocks:
            ranges += (
                MissingRange(
                    segment=len(self._segments),
                    layer=layer_index,
                    first=0,
                    end=unplanned,
                    reason=self._cause,
                )
                for layer_index in self._layers
            )
        return ranges

    def _pending_reason(self, intake: TrackIntake) -> MissingReason:
        return self._given_up.get(intake, self._cause)


def _is_interchangeable(one: Manifest, other: Manifest | None) -> bool:
    """Tell whether Objects of two publications may be combined in one segment."""
    if other is None or not (one.deterministic and other.deterministic):
        return False
    if one.compat != other.compat:
        return False
    return [_cut(one, number) for number in range(len(one.segments))] == [
        _cut(other, number) for number in range(len(other.segments))
    ]


def _cut(manifest: Manifest, number: int) -> tuple[object, ...]:
    segment = manifest.segments[number]
    return segment.first_block, segment.blocks, segment.block_keys_sha256, segment.tracks
