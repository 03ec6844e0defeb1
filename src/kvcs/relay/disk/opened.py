"""A disk that is open for as long as its relay runs: the thread, the wall clock, the end."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Protocol

from kvcs.relay.disk.clock import DiskClock
from kvcs.relay.disk.config import DiskConfig
from kvcs.relay.disk.executor import DiskExecutor, DiskThread
from kvcs.relay.disk.operation import Contents
from kvcs.relay.disk.store import DiskStore
from kvcs.relay.disk.tier import DiskTier

__all__ = ("opened_disk",)

_logger = logging.getLogger("kvcs.relay")

# How long what waits for the disk is written when the relay ends, and how often that is looked at.
_CLOSE_TIMEOUT: Final = 5.0
_CLOSE_STEP: Final = 0.01


class _Core(Protocol):
    """What has the tier."""

    @property
    def disk(self) -> DiskTier:
        """The tier."""
        ...

    def open_disk(
        self,
        executor: DiskExecutor,
        config: DiskConfig,
        contents: Contents,
        *,
        clock: DiskClock,
        now: float,
    ) -> None:
        """Use a disk from now on."""
        ...


@asynccontextmanager
async def opened_disk(core: _Core, config: DiskConfig) -> AsyncGenerator[None]:
    """Give a relay its disk; at the end what waits is written, for a bounded time.

    Raises:
        ConfigError: The directory cannot be used.
    """
    loop = asyncio.get_running_loop()
    thread = await DiskThread.open(partial(DiskStore, config.directory))
    try:
        clock = DiskClock(time.time, now=loop.time())
        stamp = clock.stamp(loop.time())
        contents = await thread.run(partial(DiskStore.contents, stamp=stamp))
        core.open_disk(thread, config, contents, clock=clock, now=loop.time())
        usage = core.disk.usage()
        _logger.info("disk cache: %d tracks, %d octets", usage.tracks, usage.size_bytes)
        yield
    finally:
        deadline = loop.time() + _CLOSE_TIMEOUT
        while not core.disk.is_settled and loop.time() < deadline:
            core.disk.flush(now=loop.time())
            await asyncio.sleep(_CLOSE_STEP)
        if not await thread.close(timeout=_CLOSE_TIMEOUT):
            _logger.warning("disk cache: the disk does not answer, and is left as it is")
