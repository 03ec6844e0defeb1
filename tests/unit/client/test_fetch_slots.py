import asyncio

import pytest

from kvcs.client.fetch_slots import FetchSlots
from kvcs.testing import run


@pytest.mark.parametrize(
    ("tracks", "expected"), [(2, [(0, 1, 2, 5, 6)]), (3, [(0, 1), (2, 5), (6,)])]
)
def test_layers_are_split_when_there_are_more_tracks_than_slots(tracks, expected):
    slots = FetchSlots(2, window=2)
    slots.tracks = tracks

    assert slots.windows((0, 1, 2, 5, 6)) == expected
    assert slots.windows(()) == []


def test_free_slot_goes_to_the_lowest_layer_that_waits():
    async def scenario():
        slots, order = FetchSlots(1, window=1), []

        async def fetch(layer_index):
            async with slots.hold(layer_index):
                order.append(layer_index)
                await asyncio.sleep(1)

        async with asyncio.TaskGroup() as group:
            for layer_index in (9, 5, 3, 5, 0):
                group.create_task(fetch(layer_index))
        return order

    assert run(scenario()) == [9, 0, 3, 5, 5]


def test_slot_of_one_that_stops_waiting_is_not_lost():
    async def scenario():
        slots = FetchSlots(1, window=1)

        async def fetch():
            async with slots.hold(0):
                await asyncio.sleep(1)

        first, second, third = (asyncio.ensure_future(fetch()) for _ in range(3))
        await asyncio.sleep(0.5)
        third.cancel()
        await first
        second.cancel()
        await asyncio.wait((second, third))
        async with asyncio.timeout(1), slots.hold(0):
            return second.cancelled(), third.cancelled()

    assert run(scenario()) == (True, True)
