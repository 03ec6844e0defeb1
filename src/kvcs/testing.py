"""Test against kvcs without a network and without waiting.

`run` executes a coroutine on a `VirtualClockLoop`: an asyncio event loop whose clock stands
still while anything can run and jumps to the next timer when nothing can. A test with
`MemoryNetwork` and long timeouts takes milliseconds, gives the same run for the same seed,
and a deadlock is an error instead of a hang:

    from kvcs.testing import MemoryNetwork, run

    def test_something():
        async def scenario():
            network = MemoryNetwork(seed=1)
            ...

        run(scenario(), seed=1)
"""

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from kvcs.errors import KvcsError
from kvcs.transport.memory import LinkProfile, MemoryListener, MemoryNetwork, MemoryTransport

__all__ = (
    "Deadlock",
    "LinkProfile",
    "MemoryListener",
    "MemoryNetwork",
    "MemoryTransport",
    "VirtualClockLoop",
    "run",
)


class Deadlock(KvcsError):
    """Every task waits, and no timer is set that could wake one.

    Attributes:
        waiting: Name and place of each task that waits.
    """

    def __init__(self, waiting: tuple[str, ...]) -> None:
        super().__init__(waiting)
        self.waiting = waiting

    def __str__(self) -> str:
        return "nothing is left that could run; waiting: " + "; ".join(self.waiting)


class _JumpingSelector(selectors.SelectSelector):
    """Polls instead of waiting, and moves a clock by the time it would have waited."""

    def __init__(self, on_deadlock: Callable[[], None]) -> None:
        super().__init__()
        self.now = 0.0
        self._on_deadlock = on_deadlock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                self._on_deadlock()
            else:
                self.now += timeout
        return ready


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose time starts at 0 and jumps from timer to timer.

    Functions given to an executor run at once, on the loop's thread, so that every run is the
    same. Sockets and threads that would wake the loop from outside are not supported.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector(self._raise_deadlock)
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._jumping.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run `func` now and return its finished future."""
        del executor
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - handed to whoever awaits, as an executor does
            future.set_exception(error)
        return future

    def _raise_deadlock(self) -> None:
        raise Deadlock(tuple(sorted(map(_describe, asyncio.all_tasks(self)))))


def _describe(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    where = f" at {frames[0].f_code.co_qualname}:{frames[0].f_lineno}" if frames else ""
    return f"{task.get_name()}{where}"


def run[T](main: Coroutine[Any, Any, T], *, seed: int = 0) -> T:
    """Run a coroutine on a virtual clock; the same seed gives the same run.

    Args:
        main: What to run. Tasks that it leaves behind are cancelled.
        seed: Start of the global `random`; named in a note on any error.

    Raises:
        Deadlock: Nothing is left that could run.
    """
    random.seed(seed)
    try:
        with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
            return runner.run(main)
    except BaseException as error:
        error.add_note(f"to replay: seed={seed}")
        raise
