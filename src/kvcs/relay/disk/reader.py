"""What is read from the disk: a few reads at a time, in the order in which they were asked.

Each read brings at most `DiskConfig.read_ahead_bytes` and goes to memory, where it counts
like everything else. Further ones wait here as numbers, so that neither many subscribers nor
a fast disk fill the memory with what nobody can take yet.
"""

import logging
import math
from collections import deque
from functools import partial
from typing import Final

from kvcs.relay.complete import Tier
from kvcs.relay.disk.executor import DiskFailure
from kvcs.relay.disk.operation import Loaded, Recalled
from kvcs.relay.disk.parts import DiskParts
from kvcs.relay.disk.store import DiskStore
from kvcs.relay.disk.track import DiskTrack

__all__ = ("DiskReader",)

# One is read while the one before is taken in.
_MAX_READS: Final = 2
# Seconds between lines about damage, which the counter has in full.
_WARNING_INTERVAL: Final = 10.0

_logger = logging.getLogger("kvcs.relay")


class DiskReader:
    """The reads of all Tracks."""

    __slots__ = ("_next_warning", "_parts", "_under_way", "_waiting")

    def __init__(self, parts: DiskParts) -> None:
        self._parts = parts
        self._waiting: deque[tuple[DiskTrack, int, int]] = deque()
        self._under_way = 0
        self._next_warning = -math.inf

    def __repr__(self) -> str:
        return f"<DiskReader under_way={self._under_way} waiting={len(self._waiting)}>"

    def recall(self, track: DiskTrack, *, now: float) -> None:
        """Recall what is on disk of a Track."""
        name, stamp = track.name, self._parts.clock.stamp(now)
        self._parts.executor.submit(
            partial(DiskStore.recall, name=name, stamp=stamp), partial(self._recalled, track)
        )

    def read(self, track: DiskTrack, first: int, through: int) -> None:
        """Read positions of a Track, both inclusive."""
        self._waiting.append((track, first, through))
        self._submit()

    def _submit(self) -> None:
        while self._waiting and self._under_way < _MAX_READS:
            track, first, through = self._waiting.popleft()
            name, limit_bytes = track.name, self._parts.config.read_ahead_bytes
            self._under_way += 1
            self._parts.executor.submit(
                partial(
                    DiskStore.read, name=name, first=first, through=through, limit_bytes=limit_bytes
                ),
                partial(self._was_read, track, (first, through)),
            )

    def _recalled(
        self, track: DiskTrack, result: Recalled | DiskFailure | None, now: float
    ) -> None:
        if isinstance(result, DiskFailure):
            self._parts.metrics.failures[result.kind] += 1
            result = None
        if result is None:
            # The Track can be served as if it had never been there.
            self._parts.complete.discard(Tier.DISK, track.name)
        track.recalled(result, now=now)

    def _was_read(
        self, track: DiskTrack, asked: tuple[int, int], result: Loaded | DiskFailure, now: float
    ) -> None:
        self._under_way -= 1
        self._submit()
        metrics, clock = self._parts.metrics, self._parts.clock
        if isinstance(result, DiskFailure):
            metrics.failures[result.kind] += 1
            result = Loaded(asked[1])
        metrics.objects_read += len(result.objects)
        metrics.bytes_read += result.size_bytes
        if result.damaged_bytes:
            metrics.evicted_bytes["damaged"] += result.damaged_bytes
            self._parts.complete.discard(Tier.DISK, track.name)
            self._warn_of_damage(now)
        objects = [(obj, clock.instant(stamp)) for obj, stamp in result.objects]
        track.was_read(asked, result.through, objects, now=now)

    def _warn_of_damage(self, now: float) -> None:
        if now >= self._next_warning:
            self._next_warning = now + _WARNING_INTERVAL
            damaged = self._parts.metrics.evicted_bytes["damaged"]
            _logger.warning(
                "disk cache: %d octets so far did not match their digests and are forgotten; "
                "look at the disk",
                damaged,
            )
