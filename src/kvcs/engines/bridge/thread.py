"""Engine calls in a thread of their own, owned by a coroutine."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

__all__ = ("STOP_TIMEOUT", "end_task", "run_in_engine_thread")

# Seconds: longer than one layer takes on a slow machine.
STOP_TIMEOUT: Final = 10.0


async def run_in_engine_thread[T](
    call: Callable[[], T], *, stop: Callable[[], None], name: str = "kvcs-engine"
) -> T:
    """Run `call` in a thread of its own; return or raise what it does.

    When the caller is cancelled, `stop` is called and the end of the thread awaited, for at
    most `STOP_TIMEOUT` seconds.
    """
    loop = asyncio.get_running_loop()
    work: Future[T] = Future()
    ended = asyncio.Event()

    def run() -> None:
        try:
            work.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again by result()
            work.set_exception(error)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(ended.set)

    # A daemon: an engine that hangs inside its own library must not keep the process alive.
    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        await ended.wait()
    except asyncio.CancelledError:
        stop()
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), STOP_TIMEOUT)
        raise
    return work.result()


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel a task that the caller owns and wait for its end; its error is for the caller."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
