"""What the parts of an open disk tier share."""

from collections.abc import Callable
from dataclasses import dataclass

from kvcs.relay.complete import CompleteTracks
from kvcs.relay.disk.catalog import Catalog
from kvcs.relay.disk.clock import DiskClock
from kvcs.relay.disk.config import DiskConfig
from kvcs.relay.disk.executor import DiskExecutor
from kvcs.relay.statistics import DiskMetrics

__all__ = ("DiskParts",)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskParts:
    """What the parts of an open disk tier share.

    Attributes:
        config: Settings.
        executor: Runs what blocks.
        clock: Translates times.
        catalog: What is on disk.
        complete: Which Tracks are held completely.
        metrics: Counters.
        schedule: Calls back at a time.
    """

    config: DiskConfig
    executor: DiskExecutor
    clock: DiskClock
    catalog: Catalog
    complete: CompleteTracks
    metrics: DiskMetrics
    schedule: Callable[[float, Callable[[float], None]], None]
