"""Trees of relays: who finds what, what crosses the links, and what becomes of lost parents."""

import asyncio

import pytest
from tests.sim.forest import (
    A,
    B,
    C,
    assert_whole,
    consume,
    produce,
    publisher,
    relay,
    settled,
)

from kvcs.testing import run

# Where the publisher is, and where its consumer.
PLACES = [(A, B), (B, A), (B, C), (B, B), (A, A)]


@pytest.mark.parametrize(("source", "sink"), PLACES)
def test_publication_at_one_relay_is_found_and_read_at_another(world, source, sink):
    async def scenario():
        here = world()
        async with (
            relay(here.network, A),
            relay(here.network, B, A) as b,
            relay(here.network, C, A) as c,
        ):
            await settled(b, c)
            async with (
                publisher(here, source) as it,
                it.publication(here.tokens) as publication,
            ):
                await produce(here, publication)
                verdict = await consume(here, sink)
                assert await publication.wait_delivered(5.0)
            await asyncio.sleep(1)
            after = await consume(here, sink)
        return verdict, after

    for verdict in run(scenario()):
        assert_whole(verdict)


def test_consumers_behind_two_relays_share_one_copy_on_the_link_between_them(world):
    async def scenario():
        here = world()
        async with relay(here.network, A) as a, relay(here.network, B, A) as b:
            await settled(b)
            async with (
                publisher(here, A) as it,
                it.publication(here.tokens) as publication,
            ):
                segment = await publication.add_segment()
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(consume(here, B, name=publication.name, delay=delay))
                        for delay in (0.0, 0.05, 0.25, 0.25, 0.4, 0.5)
                    ]
                    group.create_task(produce(here, publication, segment))
            return [task.result() for task in tasks], a.statistics(), b.statistics()

    verdicts, a, b = run(scenario())

    for verdict in verdicts:
        assert_whole(verdict)
        assert verdict.duplicate == 0
    assert (a.upstream_subscriptions, b.upstream_subscriptions) == (3, 3)
    assert b.objects_rejected == {}
    assert b.bytes_in <= 1.05 * a.bytes_in
