"""Settings of the disk tier."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvcs.errors import ConfigError

__all__ = ("DiskConfig",)

_GIB: Final = 2**30
_MIB: Final = 2**20
_LEAST_CAPACITY_BYTES: Final = 64 * _MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskConfig:
    """Where a relay keeps Objects on disk, and how much.

    Sizes are octets, durations seconds.

    Attributes:
        directory: Directory of this relay alone; made with mode 0700 if it is not there.
        capacity_bytes: Octets of the files, each counted in whole blocks of 4 KiB.
        max_tracks: Tracks on disk. Their names stay in memory.
        queue_bytes: Octets of Objects that may wait to be written. What comes while it is
            full stays in memory only: a slow disk never holds a subscriber up.
        read_ahead_bytes: Octets that are read at a time for one subscriber; at most an
            eighth of the relay's memory for Objects.
        retry_interval: How long nothing is written after the disk was full or failed.

    Raises:
        ConfigError: A size is too small.
    """

    directory: Path
    capacity_bytes: int = 16 * _GIB
    max_tracks: int = 100_000
    queue_bytes: int = 64 * _MIB
    read_ahead_bytes: int = 4 * _MIB
    retry_interval: float = 10.0

    def __post_init__(self) -> None:
        if self.capacity_bytes < _LEAST_CAPACITY_BYTES:
            expected = f"at least {_LEAST_CAPACITY_BYTES}"
            raise ConfigError("disk.capacity_bytes", expected, str(self.capacity_bytes))
        for name in ("max_tracks", "queue_bytes", "read_ahead_bytes", "retry_interval"):
            value = getattr(self, name)
            if value <= 0:
                raise ConfigError(f"disk.{name}", "more than 0", str(value))
