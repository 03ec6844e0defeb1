"""The disk tier of a relay, as its core sees it: no file, no thread, no clock.

Theory of operation. A `DiskTier` is part of every relay and does nothing until `open` gives
it a disk. Then it hands out a `DiskTrack` for each Track in memory, deletes what expires, and
says which Tracks were found complete. Everything that blocks runs elsewhere and comes back as
a call (`DiskExecutor`); what comes back is always given the time.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from kvcs.moqt.wire.object import Object
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.complete import CompleteTracks, Tier
from kvcs.relay.disk.catalog import Catalog
from kvcs.relay.disk.clock import DiskClock
from kvcs.relay.disk.config import DiskConfig
from kvcs.relay.disk.executor import DiskExecutor, DiskFailure
from kvcs.relay.disk.operation import Contents, Lost
from kvcs.relay.disk.parts import DiskParts
from kvcs.relay.disk.reader import DiskReader
from kvcs.relay.disk.store import DiskStore
from kvcs.relay.disk.track import DiskTrack, DiskUser
from kvcs.relay.disk.writer import DiskWriter
from kvcs.relay.statistics import DiskMetrics, DiskUsage

__all__ = ("DiskTier",)

# How often the wall clock is looked at, and written down what was used.
_LOOK_INTERVAL: Final = 60.0


class DiskTier:
    """Objects on disk, or nothing."""

    def __init__(
        self,
        *,
        metrics: DiskMetrics,
        complete: CompleteTracks,
        schedule: Callable[[float, Callable[[float], None]], None],
    ) -> None:
        """Be there, without a disk.

        Args:
            metrics: Counters.
            complete: Which Tracks are held completely.
            schedule: Calls back with the time when a time has come.
        """
        self._metrics = metrics
        self._complete = complete
        self._schedule = schedule
        self._live: dict[FullTrackName, DiskTrack] = {}
        self._parts: DiskParts | None = None
        self._reader: DiskReader | None = None
        self._writer: DiskWriter | None = None
        self._expiry: float | None = None

    def __repr__(self) -> str:
        return f"<DiskTier {self._parts.catalog if self._parts else 'none'}>"

    @property
    def is_open(self) -> bool:
        """Whether there is a disk at all."""
        return self._parts is not None

    @property
    def is_writable(self) -> bool:
        """Whether anything is written now."""
        return self._writer is not None and not self._writer.is_paused

    @property
    def is_settled(self) -> bool:
        """Nothing waits to be written."""
        return self._writer is None or self._writer.is_settled

    def usage(self) -> DiskUsage:
        """Return what it holds."""
        if self._parts is None or self._writer is None:
            return DiskUsage()
        return DiskUsage(
            size_bytes=self._parts.catalog.size_bytes,
            capacity_bytes=self._parts.config.capacity_bytes,
            tracks=len(self._parts.catalog),
            complete_tracks=self._complete.count(Tier.DISK),
            queued_bytes=self._writer.queued_bytes,
            writable=self.is_writable,
        )

    # Opening and closing.

    def open(
        self,
        executor: DiskExecutor,
        config: DiskConfig,
        contents: Contents,
        *,
        clock: DiskClock,
        now: float,
    ) -> list[TrackNamespace]:
        """Begin to use a disk, before there are any Tracks.

        Args:
            executor: Runs what blocks.
            config: Settings.
            contents: What was found.
            clock: Translates times.
            now: Monotonic seconds.

        Returns:
            The namespaces of which a complete Track was found.
        """
        parts = self._parts = DiskParts(
            config=config,
            executor=executor,
            clock=clock,
            catalog=Catalog(),
            complete=self._complete,
            metrics=self._metrics,
            schedule=self._schedule,
        )
        self._reader = DiskReader(parts)
        self._writer = DiskWriter(parts, live=self._live, on_expiry=self._expect)
        self._metrics.evicted_bytes.update(contents.discarded)
        for track in contents.tracks:
            parts.catalog.put(track.name, track.size_bytes, used=track.used)
            if track.complete:
                self._complete.add(Tier.DISK, track.name)
        parts.catalog.take_touched()
        self._writer.trim(now=now)
        self._expect(contents.next_expiry, now)
        self._sweep(0)
        self._schedule(now + _LOOK_INTERVAL, self._look)
        names = [track.name for track in contents.tracks if track.complete]
        found = [name.namespace for name in names if name in self._complete]
        return list(dict.fromkeys(found))

    def flush(self, *, now: float) -> None:
        """Write what waits, without delay."""
        if self._writer is not None:
            self._writer.flush(now=now)

    # Tracks.

    def track(self, name: FullTrackName, user: DiskUser) -> DiskTrack:
        """Return what the disk has of a Track that comes into memory."""
        track = self._live[name] = DiskTrack(name, user, self)
        return track

    def release(self, name: FullTrackName) -> None:
        """Note that a Track is no longer in memory; unknown ones are ignored."""
        track = self._live.pop(name, None)
        if track is not None and self._writer is not None:
            self._writer.forget(track)

    def touch(self, name: FullTrackName, *, now: float) -> None:
        """Note that somebody asked for a Track."""
        if self._parts is not None:
            self._parts.catalog.touch(name, used=self._parts.clock.stamp(now))

    # What Tracks ask for (TrackTier).

    def tracks_of(self, namespace: TrackNamespace) -> tuple[FullTrackName, ...]:
        """Return the Tracks of a namespace that are on disk."""
        return () if self._parts is None else tuple(self._parts.catalog.of(namespace))

    def bytes_of(self, namespace: TrackNamespace) -> int:
        """Return the octets of the files of a namespace."""
        return 0 if self._parts is None else self._parts.catalog.bytes_of(namespace)

    def is_stored(self, name: FullTrackName) -> bool:
        """Tell whether anything of a Track is on disk."""
        return self._parts is not None and name in self._parts.catalog

    def write(self, track: DiskTrack, obj: Object, received_at: float, *, now: float) -> None:
        """Write an Object, sooner or later."""
        if self._writer is not None:
            self._writer.write(track, obj, received_at, now=now)

    def save(self, track: DiskTrack, *, now: float) -> None:
        """Save what is known of a Track, sooner or later."""
        if self._writer is not None:
            self._writer.save(track, now=now)

    def recall(self, track: DiskTrack, *, now: float) -> None:
        """Recall what is on disk of a Track."""
        if self._reader is not None:
            self._reader.recall(track, now=now)

    def read(self, track: DiskTrack, first: int, through: int) -> None:
        """Read positions of a Track, both inclusive."""
        if self._reader is not None:
            self._reader.read(track, first, through)

    def abandon(self, track: DiskTrack, reason: str) -> None:
        """Delete what is on disk of a Track and all others of its namespace."""
        if self._writer is not None:
            self._writer.evict(track.name.namespace, reason)

    # Time.

    def _expect(self, expiry: float | None, now: float) -> None:
        """See to it that what expires is deleted then."""
        if self._parts is None or expiry is None:
            return
        if self._expiry is None or expiry < self._expiry:
            self._expiry = expiry
            deadline = max(self._parts.clock.instant(expiry), now)
            self._schedule(deadline, partial(self._expire, expiry))

    def _expire(self, expiry: float, now: float) -> None:
        parts = self._parts
        if parts is None or self._expiry != expiry:
            return
        stamp = parts.clock.stamp(now)
        parts.executor.submit(partial(DiskStore.expire, stamp=stamp), self._expired)

    def _expired(
        self, result: tuple[tuple[Lost, ...], float | None] | DiskFailure, now: float
    ) -> None:
        parts = self._parts
        assert parts is not None, "it asked for this"
        self._expiry = None
        if isinstance(result, DiskFailure):
            self._metrics.failures[result.kind] += 1
            retry_at = parts.clock.stamp(now + parts.config.retry_interval)
            self._expect(retry_at, now)
            return
        lost, next_expiry = result
        for one in lost:
            self._lose(one)
        self._expect(next_expiry, now)

    def _lose(self, lost: Lost) -> None:
        parts = self._parts
        assert parts is not None, "it was on disk"
        self._metrics.evicted_bytes["expired"] += lost.freed_bytes
        self._complete.discard(Tier.DISK, lost.name)
        track = self._live.get(lost.name)
        if lost.size_bytes is not None:
            parts.catalog.resize(lost.name, lost.size_bytes)
        else:
            parts.catalog.remove(lost.name)
        if track is not None:
            for first, last in lost.runs:
                track.held.remove(first, last)
            if lost.size_bytes is None:
                track.saved_version = None

    def _look(self, now: float) -> None:
        """Look at the wall clock, and write down what was used."""
        parts = self._parts
        assert parts is not None, "nobody looks before"
        shift = parts.clock.adjust(now=now)
        stamp = parts.clock.stamp(now)
        if shift:
            self._expiry = None
            parts.executor.submit(
                partial(DiskStore.shift, seconds=shift, stamp=stamp), self._shifted
            )
        elif self._expiry is not None:
            # It may be nearer than it was.
            expiry, self._expiry = self._expiry, None
            self._expect(expiry, now)
        used = parts.catalog.take_touched()
        parts.executor.submit(partial(DiskStore.use, used=used, stamp=stamp), self._noted)
        self._schedule(now + _LOOK_INTERVAL, self._look)

    def _shifted(self, result: float | DiskFailure | None, now: float) -> None:
        if isinstance(result, DiskFailure):
            self._metrics.failures[result.kind] += 1
        else:
            self._expect(result, now)

    def _noted(self, result: DiskFailure | None, _: float) -> None:
        if isinstance(result, DiskFailure):
            self._metrics.failures[result.kind] += 1

    def _sweep(self, shard: int) -> None:
        """Delete files that nobody knows, a folder at a time."""
        if self._parts is not None:
            self._parts.executor.submit(partial(DiskStore.sweep, shard=shard), self._swept)

    def _swept(self, result: int | DiskFailure | None, _: float) -> None:
        if isinstance(result, DiskFailure):
            self._metrics.failures[result.kind] += 1
        elif result is not None:
            self._sweep(result)
