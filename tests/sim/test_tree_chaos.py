"""Trees of relays under random faults, replayable from the seed in the test's id.

A root, two relays below it, and two leaves that may use either of these. Sessions between
relays die, the relays in the middle restart and lose all they hold, streams overtake each other.
Where the leaves and the root keep running, and so does the publisher, nobody may lose anything.
Where they restart too, who was interrupted asks again, and gets everything as soon as there is a
way. Nothing wrong is accepted, and everything ends.
"""

import asyncio
import random
from concurrent.futures import Executor, Future
from contextlib import AsyncExitStack

from tests.seeds import seeded
from tests.sim.forest import SCOPE_KEY, A, assert_whole, consume, produce, publisher, relay, url

from kvcs.client import Publisher
from kvcs.endpoint.connect import connect
from kvcs.endpoint.reconnect import Backoff, PersistentConnection
from kvcs.errors import KvcsError, ManifestError, RequestRejected
from kvcs.moqt.session.limits import SessionLimits
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import FillParameters, Parameters
from kvcs.relay import DiskConfig, RelayLimits
from kvcs.relay.cache import TRACK_BYTES
from kvcs.relay.disk import executor
from kvcs.testing import LinkProfile, run

LEFT, RIGHT, ONE, OTHER = 4441, 4442, 4451, 4452
PARENTS = {A: (), LEFT: (A,), RIGHT: (A,), ONE: (LEFT, RIGHT), OTHER: (RIGHT, LEFT)}
# An outage is noticed, and another parent is found, well within what subscriptions wait.
SETTINGS = {
    "limits": RelayLimits(publisher_wait=30.0, cut_through_bytes=100),
    "upstream_backoff": Backoff(initial=0.2, maximum=1.0),
}
FAULTS = 6
#: Faults where everybody restarts.
MANY_FAULTS = 12
EVERYTHING = Parameters(
    location_filter=LocationFilter.next_object(),
    fill=FillParameters(location_filter=LocationFilter.absolute_start(0, 0)),
)


class Forest:
    """Relays that can be stopped and started again.

    Args:
        own: Settings of single relays, by port.
        settings: Those of all.
    """

    def __init__(self, network, seed, *, own=(), **settings):
        self.network = network
        self.seed = seed
        self.own = dict(own)
        self.settings = {**SETTINGS, **settings}
        self.stacks = {}
        self.relays = {}

    async def start(self, port):
        self.stacks[port] = AsyncExitStack()
        settings = {**self.settings, **self.own.get(port, {})}
        self.relays[port] = await self.stacks[port].enter_async_context(
            relay(self.network, port, *PARENTS[port], seed=self.seed, **settings)
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


async def scenario(here, seed, **settings):
    chance = random.Random(seed)
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
                group.create_task(consume(here, port, **options)) for port in (A, ONE, ONE, OTHER)
            ]
            tasks += [
                group.create_task(
                    consume_patiently(
                        here,
                        chance.choice([A, ONE, OTHER]),
                        delay=chance.uniform(0, 15),
                        **options,
                    )
                )
                for _ in range(4)
            ]
            group.create_task(produce(here, publication, segment, pace=chance.uniform(1, 4)))
            group.create_task(trouble(forest, chance))
        await asyncio.sleep(15)
        late = [await consume_patiently(here, port, name=name) for port in (A, ONE, OTHER)]
    await asyncio.sleep(1)
    relays = await forest.close()
    return [task.result() for task in tasks], late, [it.statistics() for it in relays]


class SameThread(Executor):
    """Runs what a thread would, in the thread that asks: the clock here is not the thread's."""

    def __init__(self, *_, **__):
        """Take the settings of a pool of threads."""

    def submit(self, work, /, *args, **options):
        done = Future()
        try:
            done.set_result(work(*args, **options))
        except Exception as error:  # noqa: BLE001 - as a pool does
            done.set_exception(error)
        return done


async def trouble_everywhere(forest, publisher, chance):
    """Let things go wrong at every relay, at sessions between them, and at the publisher."""
    for _ in range(MANY_FAULTS):
        await asyncio.sleep(chance.uniform(0.2, 3))
        what = chance.random()
        if what < 0.6:
            port = chance.choice(list(PARENTS))
            await forest.stop(port)
            await asyncio.sleep(chance.uniform(0, 4))
            await forest.start(port)
        elif what < 0.8 and publisher.current is not None:
            publisher.current.abort(1, "restarts")
        elif uplinks := forest.uplinks():
            chance.choice(uplinks).cut()


async def insist(here, port, *, delay, **options):
    """Take a publication, and begin again until it has all come; return the last verdict."""
    await asyncio.sleep(delay)
    verdict = None
    for _ in range(60):
        try:
            verdict = await consume(here, port, **options)
            if verdict.complete:
                break
            assert verdict.missing or verdict.error or verdict.unconfirmed_layers
        except KvcsError:
            # The relay is away, or knows nothing yet.
            pass
        await asyncio.sleep(1)
    return verdict


async def stand_still(here, port, name):
    """Ask for everything, and take nothing for as long as the relay bears it."""
    try:
        async with connect(url(port), transport=here.network) as connection:
            for track in (b"manifest", b"k.raw.s0", b"v.raw.s0"):
                connection.subscribe(name.track(track), EVERYTHING, lambda _: None)
            await asyncio.sleep(1)
            connection._transport.stall()
            await connection.wait_closed()
    except KvcsError:
        # The relay restarts.
        pass


async def wild(here, seed, directory):
    """Restart everybody; return what consumers got meanwhile, and at every relay afterwards."""
    chance = random.Random(seed)
    disk = DiskConfig(directory=directory)
    forest = Forest(here.network, seed, own={ONE: {"disk": disk}})
    for port in PARENTS:
        await forest.start(port)
    await asyncio.sleep(1)
    it = Publisher(scope_key=SCOPE_KEY, descriptor=here.descriptor)
    source = url(chance.choice([A, ONE, OTHER]))
    backoff = Backoff(initial=0.2, maximum=1.0)
    async with (
        PersistentConnection(
            source, transport=here.network, on_connected=it.attach, backoff=backoff, rng=chance
        ) as keeper,
        it.publication(here.tokens) as publication,
    ):
        segment = await publication.add_segment()
        name = publication.name
        options = {"name": name, "timeout": 60, "idle_timeout": 20}
        still = asyncio.ensure_future(stand_still(here, ONE, name))
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(insist(here, port, delay=chance.uniform(0, 15), **options))
                for port in (A, LEFT, ONE, ONE, OTHER, OTHER)
            ]
            group.create_task(produce(here, publication, segment, pace=chance.uniform(1, 4)))
            group.create_task(trouble_everywhere(forest, keeper, chance))
        await asyncio.sleep(15)
        late = [await consume_patiently(here, port, name=name, tries=1) for port in PARENTS]
        still.cancel()
        await asyncio.wait([still])
    await asyncio.sleep(15)
    relays = await forest.close()
    return [task.result() for task in tasks], late, [it.statistics() for it in relays]


@seeded("seed", range(2), soak=range(2, 8))
def test_whoever_restarts_all_get_everything_in_the_end(world, seed, tmp_path, monkeypatch):
    monkeypatch.setattr(executor, "ThreadPoolExecutor", SameThread)
    chance = random.Random(seed)
    profile = LinkProfile(
        delay=chance.uniform(0.001, 0.05), reorder=chance.uniform(0, 0.1), bandwidth=500_000
    )
    here = world(seed=seed, profile=profile)

    verdicts, late, statistics = run(wild(here, seed, tmp_path / "disk"), seed=seed)

    for verdict in (*verdicts, *late):
        assert_whole(verdict)
    for it in statistics:
        assert (it.sessions, it.subscriptions, it.fetches) == (0, 0, 0)
        assert it.malformed_tracks == 0
    assert [it.disk_tracks for it in statistics if it.disk_capacity_bytes] == [3]


@seeded("seed", range(3), soak=range(3, 12))
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


@seeded("seed", range(1), soak=range(1, 8))
def test_caches_that_are_too_small_cost_time_and_nothing_else(world, seed):
    profile = LinkProfile(delay=0.01, reorder=0.02, bandwidth=500_000)
    here = world(seed=seed, profile=profile)
    session = SessionLimits(max_object_bytes=8192)
    limits = RelayLimits(publisher_wait=30.0, session=session, cut_through_bytes=100)
    # Room for what is known of the publication, and for half of its Objects.
    settings = {"limits": limits, "cache_bytes": 3 * TRACK_BYTES + 45_000}

    verdicts, late, statistics = run(scenario(here, seed, **settings), seed=seed)

    # The publisher has all of it and can be reached: whatever a cache dropped comes once more.
    for verdict in (*verdicts, *late):
        assert_whole(verdict)
        assert verdict.elapsed_s < 200
    for it in statistics:
        assert (it.sessions, it.subscriptions, it.fetches) == (0, 0, 0)
        assert it.malformed_tracks == 0
        assert it.cache_bytes <= it.cache_capacity_bytes
    assert any(it.evicted_bytes for it in statistics)
