import asyncio
import contextlib
import os

import pytest

from kvcs.transport.pump import Look, Pump, gather_interval


class Context:
    """A library context: an eventfd, and how much the next looks receive."""

    def __init__(self, received=(), *, waits=False):
        self.eventfd = os.eventfd(0, os.EFD_NONBLOCK)
        self.received = list(received)
        self.waits = waits
        self.looks = []
        self.looked = asyncio.Event()
        self.on_look = lambda: None
        self.pump = Pump(self.eventfd, self._turn, lambda: self.waits)

    def _turn(self):
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.eventfd)
        self.looks.append(asyncio.get_running_loop().time())
        self.looked.set()
        self.on_look()
        return Look(self.received.pop(0) if self.received else 0, 0, starved=False)

    def notify(self):
        os.eventfd_write(self.eventfd, 1)

    async def look(self):
        self.looked.clear()
        async with asyncio.timeout(5):
            await self.looked.wait()

    def close(self):
        self.pump.stop()
        os.close(self.eventfd)


async def test_idle_context_is_looked_at_as_soon_as_something_waits():
    context = Context()

    context.notify()
    await context.look()

    assert len(context.looks) == 1
    context.close()


async def test_busy_context_leaves_the_eventfd_alone_until_it_is_quiet():
    context = Context([1 << 20, 1 << 20, 0])

    context.notify()
    await context.look()
    context.notify()
    for _ in range(3):
        await asyncio.sleep(0)
    at_once = len(context.looks)
    await context.look()
    await context.look()
    context.notify()
    await context.look()

    assert at_once == 1
    assert context.looks[1] - context.looks[0] >= 0.0009
    assert len(context.looks) == 4
    context.close()


async def test_waiting_queue_is_looked_at_by_timer_and_less_often():
    context = Context(waits=True)

    context.pump.wake()
    for _ in range(4):
        await context.look()
    gaps = [b - a for a, b in zip(context.looks, context.looks[1:], strict=False)]

    assert gaps[0] >= 0.0019
    assert gaps[2] >= 0.0079
    context.close()


async def test_stopped_pump_looks_no_more():
    context = Context(waits=True)

    context.pump.wake()
    context.pump.stop()
    context.notify()
    await asyncio.sleep(0.005)

    assert context.looks == []
    context.close()


async def test_events_that_were_taken_between_looks_are_handed_on_at_once():
    context = Context(waits=True)
    context.pump.wake()

    context.pump.hurry()
    for _ in range(3):
        await asyncio.sleep(0)

    assert len(context.looks) == 1
    context.close()


async def test_events_that_were_taken_in_the_last_look_of_a_busy_context_do_not_wait():
    context = Context([1 << 20, 0])
    hurried = []

    def hurry():
        if len(context.looks) == 2:
            hurried.append(context.pump.hurry())

    context.on_look = hurry

    context.notify()
    for _ in range(3):
        await context.look()

    assert hurried
    assert len(context.looks) == 3
    context.close()


async def test_busy_context_hands_on_what_was_taken_with_what_gathers():
    context = Context([1 << 20])
    context.notify()
    await context.look()

    context.pump.hurry()
    for _ in range(3):
        await asyncio.sleep(0)
    at_once = len(context.looks)
    await context.look()

    assert at_once == 1
    context.close()


@pytest.mark.parametrize(
    ("received", "sent", "starved", "interval"),
    [
        (200 * 1024, 0, False, 0.002),
        (256 * 1024, 0, False, 0.004),
        (20 * 1024, 240 * 1024, False, 0.004),
        (1 << 20, 1 << 20, True, 0.002),
    ],
)
def test_busy_link_is_looked_at_half_as_often_unless_a_stream_ran_dry(
    received, sent, starved, interval
):
    assert gather_interval(Look(received, sent, starved)) == interval
