"""Running a command's coroutine, and ending it when somebody interrupts.

Theory of operation. SIGINT and SIGTERM are told to the event loop, which ends the command well. A
write to a pipe or a terminal that nobody reads stands still, and the loop with it: whoever writes
what nobody may lose says so (`writing`). Where such a write still stands a second after a signal,
a thread sends the signal again, which then ends the write, and the command.
"""

import asyncio
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

__all__ = ("interruption", "run", "unless", "writing")

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
# Seconds that a write may take after a signal.
_WRITE_TIME: Final = 1.0


class _Writes:
    """The write of the main thread that may stand still.

    Attributes:
        number: Its number, and that of the last one while there is none.
        is_under_way: Whether there is one.
        stuck: Number of the one that a signal is to end; None for none.
        signal: The signal that came last; None before the first.
    """

    number = 0
    is_under_way = False
    stuck: int | None = None
    signal: int | None = None


@contextmanager
def writing() -> Generator[None]:
    """Let a signal end what is written meanwhile, if it stands still.

    Raises:
        KeyboardInterrupt: SIGINT or SIGTERM arrived.
    """
    _Writes.number += 1
    _Writes.is_under_way = True
    if _Writes.signal is not None:
        # It was told to the event loop, and does not come again by itself.
        _end_later(_Writes.signal)
    try:
        yield
    finally:
        _Writes.is_under_way = False


def _end_later(signal_number: int) -> None:
    """End the write that is under way if it stands still."""
    timer = threading.Timer(_WRITE_TIME, _end_if_stuck, (_Writes.number, signal_number))
    timer.daemon = True
    timer.start()


def _end_if_stuck(number: int, signal_number: int) -> None:
    """Send a signal again to the main thread, if it is still at the same write."""
    main = threading.main_thread().ident
    if _Writes.is_under_way and _Writes.number == number and main is not None:
        _Writes.stuck = number
        signal.pthread_kill(main, signal_number)


def run[T](main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a new event loop, uvloop's where it is installed.

    Raises:
        KeyboardInterrupt: SIGINT or SIGTERM arrived; `main` was cancelled and has ended.
    """
    _Writes.signal = None
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            return runner.run(_ended_by_signals(main))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


async def _ended_by_signals[T](main: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    assert task is not None
    # A shell without job control has what it starts in the background ignore SIGINT.
    heeded = [n for n in _SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
    with _handled(task.cancel, patience=1, numbers=heeded):
        return await main


@contextmanager
def _handled(
    react: Callable[[], object], *, patience: int, numbers: Sequence[int] = _SIGNALS
) -> Generator[None]:
    """Have the loop call `react` for each signal; what comes after `patience` of them ends all."""
    loop = asyncio.get_running_loop()
    signals = 0

    def handle(signal_number: int, _: object) -> None:
        nonlocal signals
        stuck, _Writes.stuck = _Writes.stuck, None
        if stuck is not None:
            if _Writes.is_under_way and _Writes.number == stuck:
                raise KeyboardInterrupt
            return
        signals += 1
        if signals > patience:
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(react)
        _Writes.signal = signal_number
        if _Writes.is_under_way:
            _end_later(signal_number)

    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@asynccontextmanager
async def interruption() -> AsyncGenerator[asyncio.Event]:
    """Give an event that SIGINT and SIGTERM set; a second signal cancels the command.

    For commands that run until they are stopped, where that is how they end well.
    """
    task = asyncio.current_task()
    assert task is not None
    stopped = asyncio.Event()

    def stop() -> None:
        if stopped.is_set():
            task.cancel()
        stopped.set()

    with _handled(stop, patience=2):
        yield stopped


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
