"""One retrieval: a prefix of a publication, layer by layer, into the caller's memory.

Theory of operation. Entering a `Retrieval` obtains the manifest and raises when there is
nothing to retrieve: no such publication, other tokens, no signature of a trusted producer, or one
that ended before its first segment; one that may still begin is waited for. From then on nothing
raises for the network's sake. One task drives each data track (`TrackRetrieval`), one follows the
manifest, and the retrieval watches: a layer is usable, and given by iteration in order, when all
its blocks are verified in all wanted segments and both components. When the tracks have brought
everything or given up, or the deadline passes, there is a verdict.

Recovery goes to the other sources that the caller names, in order: the same publication at
another peer, or another publication when both are deterministic and cut alike. Anything else
would mix bytes of two computations, and is a new retrieval.

Source:
    KVCS, "Consumer Procedures".
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self

from kvcs.client.config import ConsumerConfig
from kvcs.client.fetch_slots import FetchSlots
from kvcs.client.intake import TrackIntake
from kvcs.client.ledger import MissingReason
from kvcs.client.manifest_track import ManifestTrack
from kvcs.client.opening import Opening
from kvcs.client.received import Layer, Outcome, ReceivedPrefix, Wish
from kvcs.client.refused import counting
from kvcs.client.signal import Signal
from kvcs.client.source import Source
from kvcs.client.track import TrackRetrieval
from kvcs.client.verdict import Verdict
from kvcs.errors import (
    DataError,
    KvcsError,
    LocalProtocolError,
    ManifestError,
    RequestTimedOut,
    UnsupportedEncoding,
)
from kvcs.kv.manifest import Manifest
from kvcs.kv.naming import PublicationName
from kvcs.kv.segment import Segment

__all__ = ("Retrieval",)

_logger = logging.getLogger("kvcs.client")


class Retrieval:
    """A running retrieval; an async context manager, iterated for its layers.

    Args:
        sources: Where the publication can be had; the first one first.
        wish: What is wanted.
        config: Settings of the consumer.
        refused: Where publications are counted that are refused at their manifest.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        wish: Wish,
        config: ConsumerConfig,
        refused: Counter[str],
    ) -> None:
        self._sources = tuple(sources)
        self._wish = wish
        self._config = config
        self._refused = refused
        self._signal = Signal()
        self._opening = None if config.object_keys is None else Opening(config, self._signal.set)
        self._prefix: ReceivedPrefix | None = None
        self._manifest: ManifestTrack | None = None
        self._empty: PublicationName | None = None
        self._tracks: dict[TrackIntake, TrackRetrieval] = {}
        self._given_up: dict[TrackIntake, MissingReason] = {}
        self._cause = MissingReason.STOPPED
        self._error: KvcsError | None = None
        self._verdict: Verdict | None = None
        self._runner: asyncio.Task[None] | None = None
        self._group = asyncio.TaskGroup()

    def __repr__(self) -> str:
        usable = 0 if self._prefix is None else len(self._prefix.usable)
        return f"<Retrieval {self._sources[0].name}, {usable} layers>"

    # The caller's side.

    async def __aenter__(self) -> Self:
        self._prefix = ReceivedPrefix(
            self._wish,
            self._config,
            clock=asyncio.get_running_loop().time,
            on_change=self._signal.set,
        )
        waiting = asyncio.timeout_at(self._deadline)
        try:
            async with waiting:
                self._manifest = await self._open_first()
        except TimeoutError:
            if not waiting.expired():
                raise
            what = "no manifest" if self._empty is None else f"{_empty(self._empty)} yet,"
            raise RequestTimedOut(f"{what} within {self._wish.timeout:g} s") from None
        try:
            with counting(self._refused):
                self._prefix.take_manifest(self.manifest)
        except BaseException:
            self._manifest.close()
            raise
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
        for layer_index in self.layers:
            layer = await self.layer(layer_index)
            if layer is None:
                break
            yield layer
        await self.finished()

    async def layer(self, layer_index: int) -> Layer | None:
        """Wait until one layer is usable; return None as soon as it cannot become so."""
        await self._signal.until(
            lambda: layer_index in self._received.usable or self._is_hopeless(layer_index)
        )
        return self._received.usable.get(layer_index)

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
        return self._received.layers

    @property
    def blocks(self) -> int:
        """Wanted blocks of the prefix."""
        return self._received.blocks

    @property
    def _received(self) -> ReceivedPrefix:
        if self._prefix is None:
            raise LocalProtocolError("a retrieval begins when its block is entered")
        return self._prefix

    @property
    def _deadline(self) -> float:
        return self._received.started + self._wish.timeout

    def _judge(self) -> Verdict:
        key = self._manifest.key if self._manifest is not None else None
        signed_by = None if key is None else key.kid
        return self._received.judge(Outcome(self._cause, self._given_up, self._error, signed_by))

    # The manifest.

    async def _open_first(self) -> ManifestTrack:
        """Obtain the manifest at the first source, or at the next one where none comes.

        Raises:
            RequestTimedOut: It came from none of them.
            KvcsError: The first source has nothing to retrieve.
        """
        silent: RequestTimedOut | None = None
        for number, source in enumerate(self._sources):
            is_same = source.name == self._sources[0].name
            try:
                track = await self._open(source)
            except RequestTimedOut as error:
                silent = silent or error
                continue
            except KvcsError:
                if silent is None:
                    raise
                continue
            assert track.latest is not None
            if is_same or track.latest.deterministic:
                # Those before it said nothing, and are asked for nothing more.
                self._sources = self._sources[number:]
                return track
            track.close()
        assert silent is not None
        raise silent

    async def _open(self, source: Source, earlier: ManifestTrack | None = None) -> ManifestTrack:
        """Obtain the manifest at one source; it counts once `_manifest` is this track."""

        def check(manifest: Manifest) -> None:
            self._wish.check(manifest, source.name)

        def take(manifest: Manifest) -> None:
            self._take_manifest(track, manifest)

        track = ManifestTrack(
            source,
            self._config,
            signal=self._signal,
            check=check,
            on_manifest=take,
            on_error=lambda error, discards: self._take_manifest_error(track, error, discards),
        )
        if earlier is not None:
            track.resume(earlier)
        try:
            left = self._deadline - asyncio.get_running_loop().time()
            with counting(self._refused):
                await track.open(left / 2)
                await self._until_listed(track)
        except BaseException:
            track.close()
            raise
        return track

    async def _until_listed(self, track: ManifestTrack) -> None:
        """Wait for the first segment, as long as somebody may still publish one.

        Raises:
            ManifestError: None was listed, and nothing more comes.
            DataError: A newer version contradicts this one.
            KvcsError: The session ended.
        """

        def is_listed() -> bool:
            return track.latest is not None and bool(track.latest.segments)

        if is_listed():
            return
        errors: list[KvcsError] = []

        def is_over() -> bool:
            return track.is_final or bool(errors) or self._received.discarded is not None

        name = self._empty = track.source.name
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self._follow(track, errors), name="first segment")
            await self._signal.until(lambda: is_listed() or is_over())
            following.cancel()
        if errors:
            raise errors[0]
        if self._received.discarded is not None:
            raise self._received.discarded
        if not is_listed():
            error = None if track.request is None else track.request.error
            raise error or ManifestError(f"{_empty(name)}, and nothing more of it comes")
        self._empty = None

    async def _follow(self, track: ManifestTrack, errors: list[KvcsError]) -> None:
        """Follow a manifest; what goes wrong is told, or it would come back in a group."""
        try:
            await track.follow()
        except KvcsError as error:
            errors.append(error)
            track.is_final = True
            self._signal.set()

    def _take_manifest(self, track: ManifestTrack, manifest: Manifest) -> None:
        """Use a newer manifest; runs inside the event that brought it."""
        if track is not self._manifest:
            return
        try:
            self._received.take_manifest(manifest)
        except UnsupportedEncoding as error:
            # A later segment that cannot be read is merely not there.
            self._error = self._error or error
        except DataError as error:
            self._received.discard(error)

    def _take_manifest_error(
        self,
        track: ManifestTrack,
        error: DataError,
        discards: bool,  # noqa: FBT001 - a callback
    ) -> None:
        if not discards:
            self._received.counters.reject("manifest")
        elif track is self._manifest or track.source.name == self._sources[0].name:
            self._received.discard(error)

    # Running.

    async def _run(self) -> None:
        """Go through the sources until everything is there, then give the verdict."""
        try:
            async with asyncio.timeout_at(self._deadline):
                await self._run_sources()
        except TimeoutError:
            self._cause = MissingReason.DEADLINE
        finally:
            self._received.close()
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
            if self._received.is_done:
                return
            await self._leave()
        self._cause = MissingReason.NOT_PUBLISHED

    async def _run_source(self, source: Source) -> None:
        """Take from one source all that it gives."""
        manifest = self._manifest
        assert manifest is not None
        self._given_up.clear()
        slots = FetchSlots(self._config.max_open_fetches, window=self._config.fetch_window)
        async with asyncio.TaskGroup() as group:
            errors: list[KvcsError] = []
            helpers = [group.create_task(self._follow(manifest, errors), name="manifest")]
            if self._wish.idle_timeout is not None:
                helpers.append(group.create_task(self._watch_idle(self._wish.idle_timeout)))
            tasks: list[asyncio.Task[None]] = []
            while not self._is_over(manifest):
                slots.tracks = len(self._received.intakes)
                for intake in self._unstarted():
                    track = TrackRetrieval(
                        source,
                        intake,
                        self._config,
                        slots=slots,
                        signal=self._signal,
                        opening=self._opening,
                    )
                    self._tracks[intake] = track
                    tasks.append(group.create_task(self._bring(track), name=str(intake.name)))
                await self._signal.until(lambda: self._is_over(manifest) or any(self._unstarted()))
            for task in (*helpers, *tasks):
                task.cancel()
        self._error = self._error or next(iter(errors), None)

    async def _bring(self, track: TrackRetrieval) -> None:
        await track.run()
        self._given_up[track.intake] = track.reason
        self._error = self._error or track.error
        self._signal.set()

    async def _watch_idle(self, idle_timeout: float) -> None:
        """Let every track recover when nothing new was verified for too long."""
        loop, received = asyncio.get_running_loop(), self._received
        received.last_progress = loop.time()
        while True:
            quiet = loop.time() - received.last_progress
            if quiet < idle_timeout:
                # Not less than a tick, or rounding could make it look again for ever.
                await asyncio.sleep(max(idle_timeout - quiet, 0.001))
                continue
            received.last_progress = loop.time()
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
        self._take_manifest(manifest, self.manifest)
        return True

    async def _leave(self) -> None:
        """Close what is open at the current source."""
        tracks, self._tracks = self._tracks, {}
        try:
            async with asyncio.TaskGroup() as group:
                for track in tracks.values():
                    group.create_task(track.close(), name="close")
        finally:
            for track in tracks.values():
                track.cancel()
            if self._manifest is not None:
                self._manifest.close()

    def _unstarted(self) -> list[TrackIntake]:
        return [intake for intake in self._received.intakes if intake not in self._tracks]

    def _is_hopeless(self, layer_index: int) -> bool:
        if self._verdict is not None or self._received.discarded is not None:
            return True
        return len(self._sources) == 1 and any(
            intake.ledger.is_lacking(layer_index) for intake in self._given_up
        )

    def _is_over(self, manifest: ManifestTrack) -> bool:
        """Tell whether the current source has nothing more to give."""
        received = self._received
        if received.is_done:
            return True
        lacking = [intake for intake in received.intakes if intake.ledger.lacking]
        if any(intake not in self._given_up for intake in lacking):
            return False
        # The tracks have ended; only a newer manifest can add segments or list digests.
        return manifest.is_final or (bool(lacking) and not received.unlisted_objects)


def _empty(name: PublicationName) -> str:
    return f"publication {name.short_id} lists no segment"


def _is_interchangeable(one: Manifest, other: Manifest | None) -> bool:
    """Tell whether Objects of two publications may be combined in one segment.

    Both say so of themselves, perhaps without being right: where their lists differ, they are not.
    """
    if other is None or not (one.deterministic and other.deterministic):
        return False
    if one.compat != other.compat or len(other.segments) != len(one.segments):
        return False
    return all(map(_is_alike, one.segments, other.segments))


def _is_alike(one: Segment, other: Segment) -> bool:
    cuts = [
        (segment.first_block, segment.blocks, segment.block_keys_sha256, segment.tracks)
        for segment in (one, other)
    ]
    if cuts[0] != cuts[1]:
        return False
    listed = [
        (groups, other.object_digests.get(track, ()))
        for track, groups in one.object_digests.items()
    ]
    return all(mine == theirs for pair in listed for mine, theirs in zip(*pair, strict=False))
