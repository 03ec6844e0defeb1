"""Running a command's coroutine, and ending it when somebody interrupts."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

__all__ = ("interruption", "run", "unless")

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def run[T](main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a new event loop, uvloop's where it is installed.

    Raises:
        KeyboardInterrupt: SIGINT or SIGTERM arrived; `main` was cancelled and has ended.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            return runner.run(_ended_by_sigterm(main))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


async def _ended_by_sigterm[T](main: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await main


@asynccontextmanager
async def interruption() -> AsyncGenerator[asyncio.Event]:
    """Give an event that SIGINT and SIGTERM set; a second signal cancels the command.

    For commands that run until they are stopped, where that is how they end well.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    stopped = asyncio.Event()

    def stop() -> None:
        if stopped.is_set():
            task.cancel()
        stopped.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield stopped
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def unless(stopped: asyncio.Event, work: Coroutine[Any, Any, object]) -> bool:
    """Do `work` unless `stopped` is set first, which cancels it; tell whether it was done.

    Raises:
        Exception: What `work` raised.
    """
    working = asyncio.create_task(work, name="work")
    waiting = asyncio.create_task(stopped.wait(), name="interruption")
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        working.result()
    finally:
        working.cancel()
        waiting.cancel()
        await asyncio.wait((working, waiting))
    return True


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
