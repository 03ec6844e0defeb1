import asyncio

from kvcs.client.signal import Signal
from kvcs.testing import run


def test_signal_lets_everyone_look_again():
    async def scenario():
        signal, state = Signal(), []

        async def wait(length):
            await signal.until(lambda: len(state) >= length)
            return len(state)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(wait(length)) for length in (0, 1, 2)]
            for _ in range(2):
                await asyncio.sleep(1)
                state.append(None)
                signal.set()
        return [task.result() for task in tasks]

    assert run(scenario()) == [0, 1, 2]


def test_signal_that_stays_away_is_false_at_the_timeout():
    async def scenario():
        holds = await Signal().until(lambda: False, 5.0)
        return holds, asyncio.get_running_loop().time()

    assert run(scenario()) == (False, 5.0)


def test_signal_looks_once_more_at_the_timeout():
    async def scenario():
        loop = asyncio.get_running_loop()
        return await Signal().until(lambda: loop.time() >= 5.0, 5.0)

    assert run(scenario())
