"""Waiting for a condition that events may make true."""

import asyncio
from collections.abc import Callable

__all__ = ("Signal",)


class Signal:
    """Wakes whoever waits for a condition, so that it looks again."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        """Let everyone who waits look at its condition again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, condition: Callable[[], object], timeout: float | None = None) -> bool:  # noqa: ASYNC109 - expiry is a result here, not an exception
        """Wait until `condition()` is true; return False when `timeout` seconds pass first."""
        if condition():
            return True
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.add(waiter)
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                return bool(condition())
            finally:
                self._waiters.discard(waiter)
            if condition():
                return True
