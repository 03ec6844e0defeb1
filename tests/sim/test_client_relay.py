"""Publisher, relay and consumers, each with its own session, on the network in memory."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from kvcs.client import Consumer, ConsumerConfig, Hold, MissingReason, Publisher, PublisherConfig
from kvcs.cose import SigningKey
from kvcs.endpoint.connect import connect
from kvcs.endpoint.reconnect import PersistentConnection
from kvcs.errors import RequestRejected
from kvcs.kv import ScopeKey, TrustedProducers
from kvcs.relay import Relay, RelayConfig, allow_all, deny_all
from kvcs.testing import LinkProfile, run
from kvcs.transport.interface import ServerTls

URL = "moqt://localhost:4433/"
SCOPE_KEY = ScopeKey(bytes(range(32)))
LAYERS = 6
PACE = 0.1


@asynccontextmanager
async def relay(world):
    config = RelayConfig(
        tls=ServerTls(certificate_file="", private_key_file=""), authorize=allow_all
    )
    async with Relay(config, transport=world.network) as it:
        yield it


@asynccontextmanager
async def publisher(world, config=None):
    async with connect(URL, transport=world.network) as connection:
        yield Publisher(connection, scope_key=SCOPE_KEY, descriptor=world.descriptor, config=config)


@asynccontextmanager
async def consumer(world, config=None):
    async with connect(URL, transport=world.network) as connection:
        yield Consumer(connection, scope_key=SCOPE_KEY, descriptor=world.descriptor, config=config)


async def produce(world, publication, segments, *, pace=PACE):
    for segment in segments:
        for layer_index in range(segment.next_layer, LAYERS):
            await asyncio.sleep(pace)
            await world.publish_layer(segment, layer_index)
    await publication.complete()


async def consume(world, *, delay=0.0, name=None, config=None, **options):
    """Discover or name the publication after `delay`, take it all, and return the verdict."""
    await asyncio.sleep(delay)
    async with consumer(world, config) as it:
        if name is None:
            (candidate, *_) = await it.discover(world.tokens)
        else:
            candidate = it.candidate(name, world.tokens)
        async with it.retrieve(candidate, **{"timeout": 60, **options}) as retrieval:
            async for layer in retrieval:
                assert world.is_equal(layer, options.get("blocks"))
            return retrieval.verdict


def assert_whole(verdict, *, layers=LAYERS, blocks=5):
    assert verdict.complete
    assert verdict.verified == 2 * layers * blocks
    assert (verdict.duplicate, verdict.rejected, verdict.missing) == (0, {}, ())


def test_three_consumers_at_three_times_share_one_upstream_subscription(world):
    async def scenario():
        here = world()
        async with relay(here) as it:
            async with publisher(here) as source, source.publication(here.tokens) as publication:
                segment = await publication.add_segment()
                async with asyncio.TaskGroup() as group:
                    name = publication.name
                    early = group.create_task(consume(here, name=name))
                    middle = group.create_task(consume(here, name=name, delay=3.5 * PACE))
                    group.create_task(produce(here, publication, [segment]))
                live = it.statistics()
                late = await consume(here)
                assert await publication.wait_delivered(5.0)
            await asyncio.sleep(1)
            after = await consume(here, layers=range(3), blocks=2)
        return early.result(), middle.result(), late, after, live

    early, middle, late, after, live = run(scenario())

    for verdict in (early, middle, late):
        assert_whole(verdict)
        assert verdict.excess == 0
    assert_whole(after, layers=3, blocks=2)
    assert live.upstream_subscriptions == 3
    assert early.first_layer_s < middle.first_layer_s + 3.5 * PACE


def test_a_signed_publication_is_authentic_live_late_and_after_its_publisher_has_left(world):
    key = SigningKey.generate(b"producer-1")
    trust = ConsumerConfig(trusted_producers=TrustedProducers((key.public,)))

    async def scenario():
        here = world()
        async with relay(here):
            async with (
                publisher(here, PublisherConfig(signing_key=key)) as source,
                source.publication(here.tokens) as publication,
            ):
                segment = await publication.add_segment()
                async with asyncio.TaskGroup() as group:
                    name = publication.name
                    live = group.create_task(consume(here, name=name, config=trust))
                    late = group.create_task(
                        consume(here, name=name, config=trust, delay=3.5 * PACE)
                    )
                    group.create_task(produce(here, publication, [segment]))
                assert await publication.wait_delivered(5.0)
            await asyncio.sleep(1)
            after = await consume(here, config=trust, layers=range(3), blocks=2)
        return live.result(), late.result(), after

    live, late, after = run(scenario())

    for verdict in (live, late):
        assert_whole(verdict)
    assert_whole(after, layers=3, blocks=2)
    assert {verdict.signed_by for verdict in (live, late, after)} == {b"producer-1"}


@pytest.mark.parametrize("seed", range(8))
def test_live_join_through_a_relay_survives_reordering(world, seed):
    async def scenario():
        here = world(seed=seed, profile=LinkProfile(delay=0.02, reorder=0.2, bandwidth=200_000))
        async with (
            relay(here),
            publisher(here) as source,
            source.publication(here.tokens) as publication,
        ):
            segment = await publication.add_segment()
            async with asyncio.TaskGroup() as group:
                name = publication.name
                tasks = [
                    group.create_task(consume(here, name=name, delay=delay))
                    for delay in (0.0, 0.07, 0.2, 0.5)
                ]
                group.create_task(produce(here, publication, [segment], pace=0.03))
        return [task.result() for task in tasks]

    for verdict in run(scenario(), seed=seed):
        assert_whole(verdict)


def test_chunked_prefill_through_a_relay(world):
    async def scenario():
        here = world()
        async with (
            relay(here),
            publisher(here) as source,
            source.publication(here.tokens) as publication,
        ):
            segments = [await publication.add_segment(2), await publication.add_segment(3)]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(consume(here, delay=delay)) for delay in (0.0, 0.7, 2.0)]
                group.create_task(produce(here, publication, segments))
        return [task.result() for task in tasks]

    for verdict in run(scenario()):
        assert_whole(verdict)


def test_pushed_publication_outlives_a_publisher_that_nobody_subscribed_to(world):
    async def scenario():
        here = world()
        async with relay(here):
            config = PublisherConfig(push=True, hold=Hold.UNTIL_DELIVERED)
            async with (
                publisher(here, config) as source,
                source.publication(here.tokens) as publication,
            ):
                await here.publish_all(await publication.add_segment())
                await publication.complete()
                assert await publication.wait_delivered(5.0)
            await asyncio.sleep(1)
            return await consume(here)

    assert_whole(run(scenario()))


def test_publisher_that_nobody_subscribed_to_leaves_nothing_behind(world):
    async def scenario():
        here = world()
        async with relay(here):
            async with publisher(here) as source, source.publication(here.tokens) as publication:
                await here.publish_all(await publication.add_segment())
                await publication.complete()
            await asyncio.sleep(1)
            async with consumer(here) as it:
                return await it.discover(here.tokens)

    assert run(scenario()) == []


def test_killed_publisher_is_a_verdict(world):
    async def scenario():
        here = world()
        async with relay(here), publisher(here) as source:
            publication = await source.publication(here.tokens).__aenter__()
            await here.publish_layer(await publication.add_segment(), 0)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(consume(here, name=publication.name))
                await asyncio.sleep(1)
                here.network.transports[0].kill()
            await publication.__aexit__(None, None, None)
        return task.result()

    verdict = run(scenario())

    assert not verdict.complete
    assert verdict.verified == 2 * 5
    assert {gap.layer for gap in verdict.missing} == {1, 2, 3, 4, 5}
    assert MissingReason.DEADLINE not in {gap.reason for gap in verdict.missing}
    assert verdict.elapsed_s < 40


def test_publisher_that_comes_back_goes_on_with_the_same_publication(world):
    async def scenario():
        here = world()
        async with relay(here):
            source = Publisher(scope_key=SCOPE_KEY, descriptor=here.descriptor)
            async with (
                PersistentConnection(
                    URL, transport=here.network, on_connected=source.attach
                ) as persistent,
                source.publication(here.tokens) as publication,
            ):
                await persistent.connection(5.0)
                segment = await publication.add_segment()
                await here.publish_layer(segment, 0)
                name = publication.name
                assert persistent.current is not None
                persistent.current.abort(1, "lost")
                await here.publish_layer(segment, 1)
                await asyncio.sleep(2)
                async with asyncio.TaskGroup() as group:
                    task = group.create_task(consume(here))
                    group.create_task(produce(here, publication, [segment]))
                assert publication.name == name
        return task.result()

    assert_whole(run(scenario()))


def test_consumer_waits_out_a_publisher_that_comes_back(world):
    async def scenario():
        here = world()
        async with relay(here):
            source = Publisher(scope_key=SCOPE_KEY, descriptor=here.descriptor)
            async with (
                PersistentConnection(
                    URL, transport=here.network, on_connected=source.attach
                ) as persistent,
                source.publication(here.tokens) as publication,
                asyncio.TaskGroup() as group,
            ):
                await persistent.connection(5.0)
                segment = await publication.add_segment()
                await here.publish_layer(segment, 0)
                task = group.create_task(consume(here, name=publication.name))
                await asyncio.sleep(1)
                persistent.current.abort(1, "lost")
                await asyncio.sleep(0.1)
                group.create_task(produce(here, publication, [segment]))
        return task.result()

    assert_whole(run(scenario()))


def test_lost_relay_is_a_verdict_with_what_was_verified(world):
    async def scenario():
        here = world()
        async with (
            relay(here),
            publisher(here) as source,
            source.publication(here.tokens) as publication,
        ):
            segment = await publication.add_segment()
            for layer_index in range(2):
                await here.publish_layer(segment, layer_index)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(consume(here, name=publication.name))
                await asyncio.sleep(1)
                here.network.transports[3].kill()
        return task.result()

    verdict = run(scenario())

    assert not verdict.complete
    assert verdict.verified == 2 * 2 * 5
    assert {gap.reason for gap in verdict.missing} == {MissingReason.CONNECTION_LOST}


def test_stalled_consumer_stops_nobody_else(world):
    async def scenario():
        here = world()
        async with (
            relay(here),
            publisher(here) as source,
            source.publication(here.tokens) as publication,
        ):
            segment = await publication.add_segment()
            async with asyncio.TaskGroup() as group:
                slow = group.create_task(consume(here, name=publication.name))
                await asyncio.sleep(0.5)
                here.network.transports[2].stall()
                quick = group.create_task(consume(here, name=publication.name))
                await produce(here, publication, [segment])
                await asyncio.sleep(1)
                assert_whole(quick.result())
                here.network.transports[2].resume()
        return slow.result()

    assert_whole(run(scenario()))


def test_relay_that_refuses_the_announcement_is_an_error(world):
    async def scenario():
        here = world()
        config = RelayConfig(
            tls=ServerTls(certificate_file="", private_key_file=""), authorize=deny_all
        )
        async with Relay(config, transport=here.network), publisher(here) as source:
            async with source.publication(here.tokens) as publication:
                with pytest.raises(RequestRejected, match="UNAUTHORIZED"):
                    await publication.add_segment()
            async with consumer(here) as it:
                with pytest.raises(RequestRejected, match="UNAUTHORIZED"):
                    await it.discover(here.tokens)

    run(scenario())


def test_publisher_without_a_relay_announces_when_one_comes(world):
    async def scenario():
        here = world()
        source = Publisher(scope_key=SCOPE_KEY, descriptor=here.descriptor)
        async with source.publication(here.tokens) as publication:
            await here.publish_all(await publication.add_segment())
            await publication.complete()
            async with (
                relay(here),
                PersistentConnection(URL, transport=here.network, on_connected=source.attach),
            ):
                await asyncio.sleep(1)
                return await consume(here)

    assert_whole(run(scenario()))
