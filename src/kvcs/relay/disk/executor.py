"""Where disk operations run: in one thread, one after the other, beside the event loop.

This is the only place where the relay hands work to a thread. A job gets the `DiskStore`,
which belongs to that thread; what it returns, or a `DiskFailure`, comes back in the event loop.
"""

import asyncio
import errno
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from kvcs.relay.disk.store import DiskStore

__all__ = ("DiskExecutor", "DiskFailure", "DiskThread", "run_job")

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True, slots=True)
class DiskFailure:
    """A disk operation failed; nothing was changed.

    Attributes:
        kind: ``full`` or ``error``.
        reason: What the system said.
    """

    kind: str
    reason: str


class DiskExecutor(Protocol):
    """Runs disk operations in the order in which they are submitted."""

    def submit[T](
        self, job: Callable[[DiskStore], T], done: Callable[[T | DiskFailure, float], None]
    ) -> None:
        """Run `job`, and then call `done` with its outcome and the time, never at once."""
        ...


def run_job[T](job: Callable[[DiskStore], T], store: DiskStore) -> T | DiskFailure:
    """Run a job; failures of the disk are results."""
    try:
        return job(store)
    except OSError as error:
        kind = "full" if error.errno in _FULL else "error"
        return DiskFailure(kind, error.strerror or str(error))
    except sqlite3.Error as error:
        is_full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        return DiskFailure("full" if is_full else "error", f"index: {error}")


class DiskThread:
    """Runs disk operations in a thread of its own."""

    def __init__(self, store: DiskStore, pool: ThreadPoolExecutor) -> None:
        """Take over a store that was opened in the one thread of `pool`."""
        self._store = store
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._is_closed = False

    @classmethod
    async def open(cls, make: Callable[[], DiskStore]) -> "DiskThread":
        """Start the thread, and open the store in it.

        Raises:
            ConfigError: The store cannot be opened.
        """
        pool = ThreadPoolExecutor(1, thread_name_prefix="kvcs-disk")
        try:
            store = await asyncio.get_running_loop().run_in_executor(pool, make)
        except BaseException:
            pool.shutdown(wait=False)
            raise
        return cls(store, pool)

    def __repr__(self) -> str:
        return f"<DiskThread {self._store!r}>"

    async def run[T](self, job: Callable[[DiskStore], T]) -> T:
        """Run a job and wait for it."""
        return await self._loop.run_in_executor(self._pool, job, self._store)

    def submit[T](
        self, job: Callable[[DiskStore], T], done: Callable[[T | DiskFailure, float], None]
    ) -> None:
        """See `DiskExecutor`."""
        if self._is_closed:
            return
        future = self._pool.submit(run_job, job, self._store)
        future.add_done_callback(partial(self._hand_over, done))

    def _hand_over[T](
        self, done: Callable[[T | DiskFailure, float], None], future: "Future[T | DiskFailure]"
    ) -> None:
        """Go back to the event loop, which may be gone by now."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish, done, future)

    def _finish[T](
        self, done: Callable[[T | DiskFailure, float], None], future: "Future[T | DiskFailure]"
    ) -> None:
        # An exception that is no failure of the disk is a bug, and raised here.
        done(future.result(), self._loop.time())

    async def close(self, *, timeout: float) -> bool:  # noqa: ASYNC109 - the caller's budget
        """Wait for what was submitted, and end the thread; nothing is run afterwards.

        Returns:
            False if the disk did not answer within `timeout` seconds.
        """
        self._is_closed = True
        try:
            async with asyncio.timeout(timeout):
                await self.run(DiskStore.close)
        except TimeoutError:
            return False
        finally:
            self._pool.shutdown(wait=False)
        return True
