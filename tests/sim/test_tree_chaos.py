"""Trees of relays under random faults, replayable from the seed in the test's id.

A root, two relays below it, and two leaves that may use either of these. Sessions between
relays die, the relays in the middle restart and lose all they hold, streams overtake each other.
The leaves and the root keep running, and so does the publisher: so nothing may be lost, nothing
wrong is accepted, and everything ends.
"""

import asyncio
import random
from contextlib import AsyncExitStack
from functools import partial

import pytest
from tests.sim.forest import A, assert_whole, consume, produce, publisher, relay

from kvcs.endpoint.reconnect import Backoff
from kvcs.errors import ManifestError, RequestRejected
from kvcs.moqt.session.limits import SessionLimits
from kvcs.relay import RelayLimits
from kvcs.relay.cache import TRACK_BYTES
from kvcs.testing import LinkProfile, run

LEFT, RIGHT, ONE, OTHER = 4441, 4442, 4451, 4452
PARENTS = {A: (), LEFT: (A,), RIGHT: (A,), ONE: (LEFT, RIGHT), OTHER: (RIGHT, LEFT)}
# An outage is noticed, and another parent is found, well within what subscriptions wait.
SETTINGS = {
    "limits": RelayLimits(publisher_wait=30.0, cut_through_bytes=100),
    "upstream_backoff": Backoff(initial=0.2, maximum=1.0),
}
FAULTS = 6


class Forest:
    """Relays that can be stopped and started again."""

    def __init__(self, network, seed, **settings):
        self.network = network
        self.seed = seed
        self.settings = {**SETTINGS, **settings}
        self.stacks = {}
        self.relays = {}

    async def start(self, port):
        self.stacks[port] = AsyncExitStack()
        self.relays[port] = await self.stacks[port].enter_async_context(
            relay(self.network, port, *PARENTS[port], seed=self.seed, **self.settings)
        )

    async def stop(self, port):
        await self.stacks.pop(port).aclose()
        return self.relays.pop(port)

    async def close(self):
        return [await self.stop(port) for port in reversed(list(self.stacks))]

    def uplinks(self):
        """Return the ends, at the children, of sessions with parents."""
        return [
            peer._link._transport
            for it in self.relays.values()
            for peer in it._core.peers()
            if peer.is_parent
        ]


async def trouble(forest, chance):
    """Let things go wrong a few times, one after the other."""
    await asyncio.sleep(5)
    for _ in range(FAULTS):
        await asyncio.sleep(chance.uniform(0.2, 4))
        if chance.random() < 0.5:
            port = chance.choice([LEFT, RIGHT])
            await forest.stop(port)
            await asyncio.sleep(chance.uniform(0, 6))
            await forest.start(port)
        elif uplinks := forest.uplinks():
            victim = chance.choice(uplinks)
            victim.cut()
            if chance.random() < 0.5:
                await asyncio.sleep(chance.uniform(0, 4))
                victim.heal()


async def consume_patiently(*args, delay=0.0, tries=30, **options):
    """Take a publication; try again while a relay that is cut off has but a part of it."""
    outcome = None
    for _ in range(tries):
        try:
            outcome = await consume(*args, delay=delay, **options)
            if outcome.complete:
                break
            assert outcome.missing or outcome.unconfirmed_layers
        except (RequestRejected, ManifestError):
            pass
        delay = 1.0
    return outcome


async def scenario(here, seed, *, tries=30, **settings):
    chance = random.Random(seed)
    take = consume if tries > 1 else partial(consume_patiently, tries=1)
    forest = Forest(here.network, seed, **settings)
    for port in PARENTS:
        await forest.start(port)
    await asyncio.sleep(1)
    source = chance.choice([A, ONE, OTHER])
    async with publisher(here, source) as it, it.publication(here.tokens) as publication:
        segment = await publication.add_segment()
        name = publication.name
        async with asyncio.TaskGroup() as group:
            options = {"name": name, "timeout": 240, "idle_timeout": 100}
            # Who was there before anything went wrong notices nothing of it.
            tasks = [
                group.create_task(take(here, port, **options)) for port in (A, ONE, ONE, OTHER)
            ]
            tasks += [
                group.create_task(
                    consume_patiently(
                        here,
                        chance.choice([A, ONE, OTHER]),
                        delay=chance.uniform(0, 15),
                        tries=tries,
                        **options,
                    )
                )
                for _ in range(4)
            ]
            group.create_task(produce(here, publication, segment, pace=chance.uniform(1, 4)))
            group.create_task(trouble(forest, chance))
        await asyncio.sleep(15)
        late = [
            await consume_patiently(here, port, name=name, tries=tries) for port in (A, ONE, OTHER)
        ]
    await asyncio.sleep(1)
    relays = await forest.close()
    return [task.result() for task in tasks], late, [it.statistics() for it in relays]


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_lost_or_wrong_whatever_happens_between_relays(world, seed):
    chance = random.Random(seed)
    profile = LinkProfile(
        delay=chance.uniform(0.001, 0.05), reorder=chance.uniform(0, 0.1), bandwidth=500_000
    )
    here = world(seed=seed, profile=profile)

    verdicts, late, statistics = run(scenario(here, seed), seed=seed)

    for verdict in (*verdicts, *late):
        assert_whole(verdict)
    for it in statistics:
        assert (it.sessions, it.subscriptions, it.fetches) == (0, 0, 0)
        assert it.malformed_tracks == 0


@pytest.mark.parametrize("seed", range(8))
def test_caches_that_are_too_small_cost_time_and_nothing_else(world, seed):
    profile = LinkProfile(delay=0.01, reorder=0.02, bandwidth=500_000)
    here = world(seed=seed, profile=profile)
    session = SessionLimits(max_object_bytes=8192)
    limits = RelayLimits(publisher_wait=30.0, session=session, cut_through_bytes=100)
    # Room for what is known of the publication, and for half of its Objects.
    settings = {"limits": limits, "cache_bytes": 3 * TRACK_BYTES + 45_000}

    verdicts, late, statistics = run(scenario(here, seed, tries=1, **settings), seed=seed)

    ended = [verdict for verdict in (*verdicts, *late) if verdict is not None]
    assert len(ended) >= 3
    for verdict in ended:
        assert verdict.rejected == {}
        assert verdict.elapsed_s < 200
    for it in statistics:
        assert (it.sessions, it.subscriptions, it.fetches) == (0, 0, 0)
        assert it.malformed_tracks == 0
        assert it.cache_bytes <= it.cache_capacity_bytes
    assert any(it.evicted_bytes for it in statistics)
