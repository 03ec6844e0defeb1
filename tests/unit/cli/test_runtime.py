import asyncio
import os
import signal

import pytest

from kvcs.cli._runtime import interruption, run, unless


async def forever():
    await asyncio.Event().wait()


async def test_work_that_ends_first_is_done():
    assert await unless(asyncio.Event(), asyncio.sleep(0))


async def test_work_is_cancelled_when_stopped_first():
    stopped = asyncio.Event()
    stopped.set()

    assert not await unless(stopped, forever())
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_error_of_the_work_is_raised():
    async def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await unless(asyncio.Event(), fail())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_breaks_a_command_off(number):
    async def command():
        os.kill(os.getpid(), number)
        await forever()

    with pytest.raises(KeyboardInterrupt):
        run(command())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_service_well(number):
    async def command():
        async with interruption() as stopped:
            os.kill(os.getpid(), number)
            await stopped.wait()
        return "ended"

    assert run(command()) == "ended"


def test_second_signal_breaks_a_service_off():
    async def command():
        async with interruption() as stopped:
            os.kill(os.getpid(), signal.SIGTERM)
            await stopped.wait()
            os.kill(os.getpid(), signal.SIGTERM)
            await forever()

    with pytest.raises(KeyboardInterrupt):
        run(command())


def test_result_of_a_command_is_returned():
    async def command():
        return 3

    assert run(command()) == 3
