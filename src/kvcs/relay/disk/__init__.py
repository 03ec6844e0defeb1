"""The second tier of a relay's cache: Objects in files, found again after a restart."""

from kvcs.relay.disk.config import DiskConfig

__all__ = ("DiskConfig",)
