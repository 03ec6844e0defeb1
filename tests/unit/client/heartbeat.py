"""How long an event loop stands still, in processor time, which other processes do not lengthen."""

import asyncio
import time


async def worst_gap(work):
    """Run `work` and return the most processor seconds between two turns of the event loop."""
    task = asyncio.ensure_future(work)
    worst, last = 0.0, time.process_time()
    while not task.done():
        await asyncio.sleep(0.0005)
        now = time.process_time()
        worst, last = max(worst, now - last), now
    await task
    return worst
