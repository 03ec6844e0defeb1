"""Where hashing runs: in the event loop for small Objects, in threads for large ones.

Hashing releases the GIL, so threads keep the loop free; below the threshold the hand-over
costs more than the hash. What waits for a thread is bounded: above the bound the caller pays
at once, which slows the reading of the connection down and nothing else.
"""

import asyncio
from collections.abc import Callable
from functools import partial

__all__ = ("Verifier",)


class Verifier:
    """Runs checks and reports each result in the event loop.

    Args:
        threshold_bytes: Payloads of at least this size go to the event loop's threads; None
            checks everything in the loop.
        max_pending_bytes: Payload octets that may wait for a thread.
    """

    __slots__ = ("_max_pending_bytes", "_pending_bytes", "_threshold_bytes")

    def __init__(self, *, threshold_bytes: int | None, max_pending_bytes: int) -> None:
        self._threshold_bytes = threshold_bytes
        self._max_pending_bytes = max_pending_bytes
        self._pending_bytes = 0

    def is_immediate(self, size_bytes: int) -> bool:
        """Tell whether `run` would check a payload of this size at once, in the loop."""
        return (
            self._threshold_bytes is None
            or size_bytes < self._threshold_bytes
            or self._pending_bytes + size_bytes > self._max_pending_bytes
        )

    def run[T](self, check: Callable[[], T], done: Callable[[T], None], size_bytes: int) -> None:
        """Run `check` here or in a thread, then `done` with its result in the loop.

        `check` reports failures as values: it must not raise.
        """
        if self.is_immediate(size_bytes):
            done(check())
            return
        self._pending_bytes += size_bytes
        future = asyncio.get_running_loop().run_in_executor(None, check)
        future.add_done_callback(partial(self._finish, done, size_bytes))

    def _finish[T](
        self, done: Callable[[T], None], size_bytes: int, future: asyncio.Future[T]
    ) -> None:
        self._pending_bytes -= size_bytes
        if not future.cancelled():
            done(future.result())
