"""What goes to the disk: a bounded queue, written in batches, and a budget.

Theory of operation. Objects wait in the queue of their `DiskTrack`, all queues together
bounded. A little later they are written, together with what is known of their Tracks, one
batch at a time; meanwhile the next one gathers. Nobody ever waits for the disk: what finds
the queue full, the budget in use or the disk broken is not written, and counted.

The budget is that of `Catalog`: the least recently used namespaces that nobody uses go,
each as a whole. A publication that exceeds the budget by itself is taken off the disk, and
not written again while anything of it is in use, or it would evict itself in a circle.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from kvcs.moqt.track.interval import to_position
from kvcs.moqt.wire.object import Object
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.complete import Tier
from kvcs.relay.disk.executor import DiskFailure
from kvcs.relay.disk.operation import TrackWrite, Written
from kvcs.relay.disk.parts import DiskParts
from kvcs.relay.disk.record import record_bytes
from kvcs.relay.disk.store import DiskStore
from kvcs.relay.disk.track import DiskTrack

__all__ = ("DiskWriter",)

_logger = logging.getLogger("kvcs.relay")

# What one transaction takes: reads wait behind it, a few milliseconds.
_BATCH_BYTES: Final = 4 * 2**20
_BATCH_OBJECTS: Final = 1024
# How long Objects gather before they are written.
_WRITE_DELAY: Final = 0.02
# How long nothing is looked for that could be evicted, after everything was in use.
_RECHECK: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Part:
    """What one batch has of one Track, to be noted once it is written."""

    track: DiskTrack
    epoch: int
    positions: tuple[int, ...]
    version: tuple[int, ...]
    complete: bool
    queued_bytes: int


class DiskWriter:
    """The writes of all Tracks.

    Attributes:
        queued_bytes: Octets of records that wait to be written, or are being written.
        is_paused: Nothing is written, since the disk was full or failed.
    """

    def __init__(
        self,
        parts: DiskParts,
        *,
        live: dict[FullTrackName, DiskTrack],
        on_expiry: Callable[[float | None, float], None],
    ) -> None:
        """Write nothing yet.

        Args:
            parts: What it shares.
            live: The Tracks in memory; the mapping is the caller's and changes.
            on_expiry: Called with the stamp at which the first file expires, and the time.
        """
        self.queued_bytes = 0
        self.is_paused = False
        self._parts = parts
        self._live = live
        self._on_expiry = on_expiry
        self._queued: Counter[TrackNamespace] = Counter()
        self._oversized: set[TrackNamespace] = set()
        self._waiting: dict[DiskTrack, None] = {}
        self._is_writing = self._is_armed = False
        self._all_used_until = 0.0

    def __repr__(self) -> str:
        return f"<DiskWriter queued={self.queued_bytes} paused={self.is_paused}>"

    @property
    def is_settled(self) -> bool:
        """Nothing waits to be written."""
        return not (self._waiting or self._is_writing)

    # What is to be written.

    def write(self, track: DiskTrack, obj: Object, received_at: float, *, now: float) -> None:
        """Write an Object, sooner or later, or count why not."""
        size_bytes = record_bytes(obj)
        reason = self._refusal(track, size_bytes, now)
        if reason is not None:
            self._parts.metrics.objects_dropped[reason] += 1
            return
        track.queue.append((obj, received_at))
        track.queued_bytes += size_bytes
        self.queued_bytes += size_bytes
        self._queued[track.name.namespace] += size_bytes
        self.save(track, now=now)

    def save(self, track: DiskTrack, *, now: float) -> None:
        """Save what is known of a Track, sooner or later."""
        self._waiting[track] = None
        if not (self._is_armed or self._is_writing):
            self._is_armed = True
            self._parts.schedule(now + _WRITE_DELAY, self._ring)

    def forget(self, track: DiskTrack) -> None:
        """Note that a Track is no longer in memory."""
        self._waiting.pop(track, None)
        namespace = track.name.namespace
        if namespace in self._oversized and not any(n.namespace == namespace for n in self._live):
            self._oversized.discard(namespace)

    def _refusal(self, track: DiskTrack, size_bytes: int, now: float) -> str | None:
        """Tell why an Object cannot be written; None if it can."""
        catalog, config = self._parts.catalog, self._parts.config
        namespace = track.name.namespace
        if self.is_paused:
            return "failed"
        if namespace in self._oversized:
            return "oversized"
        if self.queued_bytes + size_bytes > config.queue_bytes:
            return "queue"
        own_bytes = catalog.bytes_of(namespace) + self._queued[namespace] + size_bytes
        if own_bytes > config.capacity_bytes:
            self._oversized.add(namespace)
            self.evict(namespace, "oversized")
            return "oversized"
        if not self._make_room(namespace, self.queued_bytes + size_bytes, now):
            return "budget"
        is_new = track.name not in catalog and not (track.queue or track.writes)
        if is_new and not self._make_place(namespace, now):
            return "tracks"
        return None

    # The budget.

    def trim(self, *, now: float) -> None:
        """Evict what exceeds the budget; files take a little more than was foreseen."""
        catalog = self._parts.catalog
        self._make_room(None, 0, now)
        while len(catalog) > self._parts.config.max_tracks and self._evict_one(None, now):
            pass

    def evict(self, namespace: TrackNamespace, reason: str) -> None:
        """Delete all of a namespace, and write nothing of what waits of it."""
        names = self._parts.catalog.of(namespace)
        for name in names:
            self._parts.metrics.evicted_bytes[reason] += self._parts.catalog.remove(name)
            self._parts.complete.discard(Tier.DISK, name)
        for track in [track for name, track in self._live.items() if name.namespace == namespace]:
            if track.queue:
                self._parts.metrics.objects_dropped[reason] += len(track.queue)
                self._unqueue(track, track.queued_bytes)
            track.deleted()
            if track.writes:
                names.append(track.name)
        if names:
            self._parts.executor.submit(partial(DiskStore.drop, names=tuple(names)), self._dropped)

    def _make_room(self, namespace: TrackNamespace | None, needed_bytes: int, now: float) -> bool:
        catalog, capacity_bytes = self._parts.catalog, self._parts.config.capacity_bytes
        while catalog.size_bytes + needed_bytes > capacity_bytes:
            if not self._evict_one(namespace, now):
                return False
        return True

    def _make_place(self, namespace: TrackNamespace, now: float) -> bool:
        catalog, max_tracks = self._parts.catalog, self._parts.config.max_tracks
        while len(catalog) >= max_tracks:
            if not self._evict_one(namespace, now):
                return False
        return True

    def _evict_one(self, spared: TrackNamespace | None, now: float) -> bool:
        """Evict the least recently used namespace that nobody uses; tell whether there is one."""
        if now < self._all_used_until:
            return False
        used = {name.namespace for name, track in self._live.items() if _is_used(track)}
        for namespace in self._parts.catalog.namespaces():
            if namespace != spared and namespace not in used:
                self.evict(namespace, "idle")
                return True
        self._all_used_until = now + _RECHECK
        return False

    # Writing.

    def flush(self, *, now: float) -> None:
        """Write the next batch, unless one is being written."""
        if self._is_writing or self.is_paused:
            return
        batch = self._take_batch(now)
        if not batch:
            return
        self._is_writing = True
        stamp = self._parts.clock.stamp(now)
        writes, parts = [write for write, _ in batch], [part for _, part in batch]
        self._parts.executor.submit(
            partial(DiskStore.write, writes=writes, stamp=stamp),
            partial(self._written, writes, parts),
        )

    def _ring(self, now: float) -> None:
        self._is_armed = False
        self.flush(now=now)

    def _take_batch(self, now: float) -> list[tuple[TrackWrite, _Part]]:
        batch: list[tuple[TrackWrite, _Part]] = []
        room_bytes, room_objects = _BATCH_BYTES, _BATCH_OBJECTS
        for track in tuple(self._waiting):
            if room_bytes <= 0 or room_objects <= 0:
                break
            if not track.is_ready(now=now):
                continue
            entries = _take(track, room_bytes, room_objects)
            room_objects -= len(entries)
            size_bytes = sum(record_bytes(obj) for obj, _ in entries)
            room_bytes -= size_bytes
            if entries or track.has_news:
                batch.append(self._prepare(track, entries, size_bytes, now))
            if not track.queue:
                del self._waiting[track]
        return batch

    def _prepare(
        self,
        track: DiskTrack,
        entries: Sequence[tuple[Object, float]],
        size_bytes: int,
        now: float,
    ) -> tuple[TrackWrite, _Part]:
        """Return what is to be written of a Track, with what is known of it now."""
        store, clock = track.user.store, self._parts.clock
        data = {to_position(obj.location) for obj, _ in entries if not obj.status}
        positions = tuple(position for position in data if position not in track.held)
        version = store.knowledge_version
        complete = store.is_complete(track.held.size + len(positions))
        write = TrackWrite(
            name=track.name,
            objects=tuple((obj, clock.stamp(received_at)) for obj, received_at in entries),
            knowledge=None if version == track.saved_version else store.knowledge(),
            lifetime=store.lifetime,
            complete=complete,
            used=clock.stamp(now),
        )
        track.writes += 1
        return write, _Part(track, track.epoch, positions, version, complete, size_bytes)

    def _written(
        self,
        writes: Sequence[TrackWrite],
        parts: Sequence[_Part],
        result: Written | DiskFailure,
        now: float,
    ) -> None:
        self._is_writing = False
        for part in parts:
            part.track.writes -= 1
            self._queued_less(part.track.name.namespace, part.queued_bytes)
        if isinstance(result, DiskFailure):
            self._pause(result, sum(len(write.objects) for write in writes), now)
            return
        for write, part in zip(writes, parts, strict=True):
            # If all of it was deleted meanwhile, so is this, by the job behind this one.
            if part.track.epoch == part.epoch:
                self._note(write, part, result.sizes.get(write.name))
        self._on_expiry(result.next_expiry, now)
        self.trim(now=now)
        if self._waiting:
            self.flush(now=now)

    def _note(self, write: TrackWrite, part: _Part, size_bytes: int | None) -> None:
        track, name = part.track, write.name
        metrics, complete = self._parts.metrics, self._parts.complete
        if size_bytes is None:
            metrics.objects_dropped["expired"] += len(write.objects)
            return
        for position in part.positions:
            track.held.add(position, position)
        track.saved_version = part.version
        self._parts.catalog.put(name, size_bytes, used=write.used)
        metrics.objects_written += len(write.objects)
        metrics.bytes_written += part.queued_bytes
        if part.complete:
            complete.add(Tier.DISK, name)
        else:
            complete.discard(Tier.DISK, name)

    # Failures.

    def _pause(self, failure: DiskFailure, objects: int, now: float) -> None:
        """Write nothing for a while; what waited stays in memory only."""
        metrics, retry_interval = self._parts.metrics, self._parts.config.retry_interval
        self.is_paused = True
        metrics.failures[failure.kind] += 1
        metrics.objects_dropped["failed"] += objects
        for track in tuple(self._waiting):
            metrics.objects_dropped["failed"] += len(track.queue)
            self._unqueue(track, track.queued_bytes)
        self._waiting.clear()
        _logger.warning(
            "disk cache: %s; nothing is written for %g s, and Objects stay in memory only",
            failure.reason,
            retry_interval,
        )
        self._parts.schedule(now + retry_interval, self._resume)

    def _resume(self, now: float) -> None:
        self.is_paused = False
        for track in self._live.values():
            track.note_change(now=now)

    def _dropped(self, result: DiskFailure | None, _: float) -> None:
        """Note that files were deleted; if not, the next start finds them, as they are."""
        if isinstance(result, DiskFailure):
            self._parts.metrics.failures[result.kind] += 1

    def _unqueue(self, track: DiskTrack, size_bytes: int) -> None:
        track.queue.clear()
        track.queued_bytes = 0
        self._queued_less(track.name.namespace, size_bytes)

    def _queued_less(self, namespace: TrackNamespace, size_bytes: int) -> None:
        self.queued_bytes -= size_bytes
        self._queued[namespace] -= size_bytes
        if not self._queued[namespace]:
            del self._queued[namespace]


def _is_used(track: DiskTrack) -> bool:
    return track.is_busy or track.user.is_wanted


def _take(track: DiskTrack, room_bytes: int, room_objects: int) -> list[tuple[Object, float]]:
    """Take Objects off the queue of a Track, as many as fit."""
    count = 0
    for obj, _ in track.queue[:room_objects]:
        if room_bytes <= 0:
            break
        room_bytes -= record_bytes(obj)
        track.queued_bytes -= record_bytes(obj)
        count += 1
    taken, track.queue = track.queue[:count], track.queue[count:]
    return taken
