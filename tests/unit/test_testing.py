import asyncio
import random
import time

import pytest

from kvcs.testing import Deadlock, run


def test_waiting_takes_no_time():
    async def scenario():
        await asyncio.sleep(100_000)
        return asyncio.get_running_loop().time()

    before = time.monotonic()

    assert run(scenario()) == 100_000
    assert time.monotonic() - before < 1


def test_timers_fire_in_order_and_on_time():
    async def scenario():
        fired = []

        async def note(delay):
            await asyncio.sleep(delay)
            fired.append((delay, asyncio.get_running_loop().time()))

        async with asyncio.TaskGroup() as group:
            for delay in (3.0, 1.0, 2.0):
                group.create_task(note(delay))
        return fired

    assert run(scenario()) == [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]


def test_deadlock_is_an_error_that_names_who_waits():
    async def scenario():
        asyncio.current_task().set_name("the one who waits")
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"the one who waits at .*scenario") as caught:
        run(scenario(), seed=4)

    assert caught.value.__notes__ == ["to replay: seed=4"]


def test_seed_repeats_chance():
    async def scenario():
        return random.random()

    assert run(scenario(), seed=5) == run(scenario(), seed=5)
    assert run(scenario(), seed=5) != run(scenario(), seed=6)


def test_executor_runs_at_once_and_hands_errors_on():
    async def scenario():
        loop = asyncio.get_running_loop()
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 // 0)
        return await asyncio.to_thread(pow, 2, 10)

    assert run(scenario()) == 1024


def test_tasks_left_behind_are_cancelled():
    cancelled = []

    async def sleeper():
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def scenario():
        task = asyncio.create_task(sleeper())
        await asyncio.sleep(1)
        return task

    run(scenario())

    assert cancelled == [True]
