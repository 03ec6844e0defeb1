"""Trees of relays: who finds what, what crosses the links, and what becomes of lost parents."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from tests.sim.forest import (
    LAYERS,
    SCOPE_KEY,
    A,
    B,
    C,
    assert_unread,
    assert_whole,
    consume,
    held,
    produce,
    publisher,
    relay,
    settled,
    url,
)

from kvcs.client import ConsumerConfig, Publisher
from kvcs.cose import Algorithm, SigningKey
from kvcs.endpoint.connect import connect
from kvcs.kv import MANIFEST, TrustedProducers
from kvcs.kv.sealing import ObjectKey, ObjectKeys
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import TrackNamespace
from kvcs.relay import RelayLimits
from kvcs.relay.ancestry import Ancestry
from kvcs.testing import LinkProfile, run

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


@pytest.mark.parametrize("bandwidth", [None, 20_000])
@pytest.mark.parametrize("delay", [0.05, 0.3, 0.6])
def test_publisher_that_leaves_when_all_is_delivered_leaves_relays_that_list_it(
    world, delay, bandwidth
):
    """What was sent is not what was taken: on a slow link the last of it is still under way."""

    async def scenario():
        here = world()
        async with (
            relay(here.network, A),
            relay(here.network, B, A) as b,
            relay(here.network, C, A) as c,
        ):
            await settled(b, c)
            here.network.conditions.profile = LinkProfile(delay=delay, bandwidth=bandwidth)
            async with asyncio.TaskGroup() as group:
                async with publisher(here, A) as it, it.publication(here.tokens) as publication:
                    await produce(here, publication)
                    before = group.create_task(consume(here, B))
                    assert await publication.wait_delivered(60.0)
                await before
            here.network.conditions.profile = LinkProfile()
            after = [await consume(here, port) for port in (B, C, A)]
        return [before.result(), *after]

    for verdict in run(scenario()):
        assert_whole(verdict)


def test_relay_below_takes_what_one_above_fetched_without_the_end_of_its_tracks(world):
    """Of the manifest the one above holds the newest version, and knows of no end."""

    async def fetch(here, name, track, location_filter):
        ended = asyncio.Event()
        async with connect(url(A), transport=here.network) as connection:
            connection.fetch(
                name.track(track),
                Parameters(location_filter=location_filter),
                lambda event: ended.set() if isinstance(event, ev.StreamFinished) else None,
            )
            await asyncio.wait_for(ended.wait(), 10)

    async def scenario():
        here = world()
        async with relay(here.network, A), relay(here.network, B, A) as b:
            await settled(b)
            async with publisher(here, A) as it, it.publication(here.tokens) as publication:
                await produce(here, publication)
                name = publication.name
                newest = LocationFilter.relative_start(1)
                await fetch(here, name, MANIFEST, newest)
                for track in (b"k.raw.s0", b"v.raw.s0"):
                    await fetch(here, name, track, LocationFilter.absolute_start(0, 0))
            await asyncio.sleep(6)
            return [await consume(here, port, name=name) for port in (A, B)]

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


def test_what_is_signed_sealed_and_padded_goes_through_two_relays_unread(world):
    signing_key = SigningKey(b"producer", Algorithm.ES256, bytes(range(1, 33)))
    object_key = ObjectKey(key_id=7, secret=bytes(range(16)))
    demands = ConsumerConfig(
        object_keys=ObjectKeys([object_key]),
        trusted_producers=TrustedProducers((signing_key.public,)),
    )
    settings = {"object_key": object_key, "signing_key": signing_key, "pad_segment_blocks": 4}

    async def scenario():
        here = world()
        async with relay(here.network, A) as a, relay(here.network, B, A) as b:
            await settled(b)
            async with (
                publisher(here, A, **settings) as it,
                it.publication(here.tokens) as publication,
                asyncio.TaskGroup() as group,
            ):
                segment, name = await publication.add_segment(), publication.name
                live = [
                    group.create_task(consume(here, B, name=name, config=demands, delay=delay))
                    for delay in (0.0, 0.25, 1.0)
                ]
                await produce(here, publication, segment)
                assert await publication.wait_delivered(10.0)
            late = await consume(here, B, name=name, config=demands)
            objects = [held(relay, name) for relay in (a, b)]
        return here, [*(task.result() for task in live), late], objects

    here, verdicts, objects = run(scenario())

    for verdict in verdicts:
        assert_whole(verdict)
        assert verdict.authenticated
    for each in objects:
        assert len([obj for obj in each if obj.payload]) > 2 * LAYERS * 8
        assert_unread(here, each, object_key.key_id)
        priorities = {(obj.group_id, obj.publisher_priority) for obj in each if obj.object_id}
        assert {(layer, 128 * layer // LAYERS) for layer in range(LAYERS)} <= priorities


def time_to_fetch(world, cut_through_bytes):
    """Return how long one large block takes over three slow links, and how much came early."""
    limits = RelayLimits(cut_through_bytes=cut_through_bytes)

    async def scenario():
        here = world(profile=LinkProfile(delay=0.001, bandwidth=1e6))
        here.descriptor = replace(here.descriptor, head_dim=8192)
        async with (
            relay(here.network, A, limits=limits),
            relay(here.network, B, A, limits=limits) as b,
            relay(here.network, C, B, limits=limits) as c,
        ):
            await settled(b, c)
            async with (
                publisher(here, A) as it,
                it.publication(here.tokens) as publication,
            ):
                await produce(here, publication, pace=0.0)
                loop = asyncio.get_running_loop()
                begun = loop.time()
                verdict = await consume(here, C, name=publication.name, layers=[0], blocks=1)
                taken = loop.time() - begun
            assert_whole(verdict, layers=1, blocks=1)
            return taken, c.statistics().bytes_in

    return run(scenario())


def test_a_large_object_that_is_fetched_goes_through_three_relays_while_it_arrives(world):
    early, early_bytes = time_to_fetch(world, cut_through_bytes=2**10)
    late, late_bytes = time_to_fetch(world, cut_through_bytes=2**30)

    # Two Objects of 128 KiB at 1 MB/s take 0.26 s over one link. A hop adds the time of the pieces
    # that the network carries, of 64 KiB, and not that of the Objects.
    assert early < 0.5 * late
    assert early_bytes == late_bytes


@pytest.mark.parametrize("away", [0.3, None])
def test_consumer_that_comes_while_the_publisher_is_away_goes_on_when_it_is_back(world, away):
    async def scenario():
        here = world()
        # Nobody subscribes when the second consumer comes, so that it is refused.
        limits = RelayLimits(subscription_linger=0.0)
        async with (
            relay(here.network, A, limits=limits),
            connect(url(A), transport=here.network) as connection,
        ):
            it = Publisher(connection, scope_key=SCOPE_KEY, descriptor=here.descriptor)
            async with it.publication(here.tokens) as publication:
                segment = await publication.add_segment()
                await produce(here, publication, segment, layers=2)
                early = await consume(here, A, name=publication.name, layers=[0, 1])
                await asyncio.sleep(0.2)
                await connection.close()
                late = asyncio.create_task(
                    consume(here, A, name=publication.name, timeout=20, idle_timeout=3)
                )
                if away is None:
                    return early, await late
                await asyncio.sleep(away)
                async with connect(url(A), transport=here.network) as again:
                    it.attach(again)
                    for layer_index in range(2, LAYERS):
                        await asyncio.sleep(0.1)
                        await here.publish_layer(segment, layer_index)
                    await publication.complete()
                    return early, await late

    early, late = run(scenario())

    assert_whole(early, layers=2)
    if away is None:
        assert not late.complete
        assert late.verified == 2 * 2 * 5
    else:
        assert_whole(late)


# SUBSCRIBE_TRACKS.


class Watcher:
    """Subscribes to all Tracks of a scope at one relay, and notes what comes."""

    def __init__(self, connection):
        self.connection = connection
        self.tracks = {}  # by request
        self.objects = Counter()  # by Track and Location
        self.done = Counter()  # by Track
        connection.listen(self.receive)

    def receive(self, event):
        if not isinstance(event, ev.PublishReceived):
            return
        self.tracks[event.request_id] = event.track.name
        self.connection.on_request(event.request_id, self.note)
        self.connection.session.accept(event.request_id, now=self.connection.now)
        self.connection.wake()

    def note(self, event):
        match event:
            case ev.ObjectReceived(request_id=request_id, obj=obj) if not obj.status:
                self.objects[self.tracks[request_id], obj.location] += 1
            case ev.PublishDoneReceived(request_id=request_id):
                self.done[self.tracks[request_id]] += 1


@pytest.mark.parametrize(("source", "sinks"), [(A, (A, B, C)), (B, (A, B, C)), (C, (B, B))])
def test_tracks_that_are_pushed_at_one_relay_reach_all_who_want_them_once(world, source, sinks):
    async def scenario():
        here = world()
        async with (
            relay(here.network, A) as a,
            relay(here.network, B, A) as b,
            relay(here.network, C, A) as c,
            AsyncExitStack() as stack,
        ):
            await settled(b, c)
            watchers = []
            for port in sinks:
                connection = await stack.enter_async_context(
                    connect(url(port), transport=here.network)
                )
                watchers.append(Watcher(connection))
                await connection.answer(connection.subscribe_tracks(TrackNamespace()))
            await asyncio.sleep(0.2)
            async with (
                publisher(here, source, push=True) as it,
                it.publication(here.tokens) as publication,
            ):
                await produce(here, publication)
                await asyncio.sleep(1)
            await asyncio.sleep(1)
        return watchers, [it.statistics() for it in (a, b, c)]

    watchers, statistics = run(scenario())

    for watcher in watchers:
        # All Objects of both data Tracks, 5 blocks of each layer; and the manifest.
        data = {key: count for key, count in watcher.objects.items() if b"raw" in key[0]}
        assert len(data) == 2 * LAYERS * 5
        assert set(watcher.objects.values()) == {1}
        assert len(watcher.tracks) == len(watcher.done) == 3
    # Each Object crosses each link once, and those alone that lead to somebody.
    for port, statistic in zip((A, B, C), statistics, strict=True):
        is_on_the_way = port in (A, source, *sinks)
        assert statistic.objects_rejected == {}
        assert (statistic.objects_in > 0) is is_on_the_way


# Circles.


def cycle(length):
    ports = [A, B, C][:length]
    return [(port, ports[(index + 1) % length]) for index, port in enumerate(ports)]


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_circle_of_relays_is_broken_at_one_place(world, length, seed):
    async def scenario():
        here = world(seed=seed, profile=LinkProfile(delay=0.02, reorder=0.01))
        async with AsyncExitStack() as stack:
            relays = [
                await stack.enter_async_context(relay(here.network, port, parent, seed=seed))
                for port, parent in cycle(length)
            ]
            samples = []
            for _ in range(20):
                await asyncio.sleep(3)
                samples.append(sum(it.parent is not None for it in relays))
            if length > 1:
                # What is left is a tree, and it works.
                async with (
                    publisher(here, A) as it,
                    it.publication(here.tokens) as publication,
                ):
                    await produce(here, publication, pace=0.01)
                    for port, _ in cycle(length):
                        assert_whole(await consume(here, port))
        return samples

    samples = run(scenario(), seed=seed)

    # Mostly exactly one relay of the circle has no parent, and never none.
    assert max(samples) <= length - 1
    assert samples[-3:] == [length - 1] * 3


@pytest.mark.parametrize("seed", range(3))
def test_circle_of_relays_that_do_not_tell_is_broken_as_well(world, monkeypatch, seed):
    monkeypatch.setattr(Ancestry, "decode", classmethod(lambda _, options: None))  # noqa: ARG005

    async def scenario():
        here = world(seed=seed)
        async with (
            relay(here.network, A, B, seed=seed) as a,
            relay(here.network, B, A, seed=seed) as b,
        ):
            samples = []
            for _ in range(20):
                await asyncio.sleep(3)
                samples.append(sum(it.parent is not None for it in (a, b)))
            verdicts = []
            for port in (A, B):
                async with (
                    publisher(here, port) as it,
                    it.publication(here.tokens) as publication,
                ):
                    await produce(here, publication, pace=0.01)
                    verdicts += [
                        await consume(here, sink, name=publication.name) for sink in (A, B)
                    ]
        return samples, verdicts

    samples, verdicts = run(scenario(), seed=seed)

    assert max(samples[-10:]) <= 1
    # One of the two has the other as its parent: what is at the parent is found from below, and
    # what is below is announced to the parent.
    for verdict in verdicts:
        assert_whole(verdict)


def test_relay_that_names_itself_among_others_uses_the_others(world):
    async def scenario():
        here = world()
        async with relay(here.network, A), relay(here.network, B, B, A) as b:
            await settled(b)
            return b.parent

    assert run(scenario()) == url(A)


def test_relay_learns_of_a_new_ancestor_of_its_parent(world):
    """C is below B; A, which wants to be below C, comes to be above B: only B would know."""

    async def scenario():
        here = world()
        async with (
            relay(here.network, B, A) as b,
            relay(here.network, C, B) as c,
        ):
            await settled(c)
            assert b.parent is None
            async with relay(here.network, A, C) as a:
                await asyncio.sleep(60)
                return [it.parent for it in (a, b, c)]

    parents = run(scenario())

    assert parents.count(None) == 1


# Loss.


def cut(network, port, *, index):
    """Break the path of one session of the relay at a port; both ends notice after a while."""
    ends = [it for it in network.transports if it.local_address.port == port]
    ends[index].cut()


def test_parent_that_dies_in_mid_production_is_replaced_and_nothing_is_missing(world):
    """The publisher keeps its sessions with both parents; the child loses the one it uses."""

    async def scenario():
        here = world()
        async with (
            relay(here.network, A) as a,
            relay(here.network, C, A) as c,
            relay(here.network, B, C, A) as b,
        ):
            await settled(b, c)
            assert b.parent == url(C)
            async with (
                publisher(here, A) as it,
                it.publication(here.tokens) as publication,
            ):
                segment = await publication.add_segment()
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(consume(here, B, name=publication.name, delay=delay))
                        for delay in (0.0, 0.3)
                    ]
                    group.create_task(produce(here, publication, segment, pace=0.5))
                    await asyncio.sleep(1.7)
                    cut(here.network, C, index=0)
            return [task.result() for task in tasks], b.parent, a.statistics(), b.statistics()

    verdicts, _, a, b = run(scenario())

    for verdict in verdicts:
        assert_whole(verdict)
    assert b.bytes_in <= 1.2 * a.bytes_in


def test_subscription_survives_that_its_publisher_is_lost_and_returns(world):
    """At the level of MOQT: the same subscription goes on, in order, and ends well."""

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
                    task = group.create_task(consume(here, B, name=publication.name))
                    group.create_task(produce(here, publication, segment, pace=0.5))
                    await asyncio.sleep(1.7)
                    cut(here.network, A, index=0)
            return task.result(), a.statistics(), b.statistics()

    verdict, a, b = run(scenario())

    assert_whole(verdict)
    assert verdict.duplicate == 0
    assert b.bytes_in <= 1.2 * a.bytes_in


def test_child_that_is_cut_off_serves_what_it_holds_and_comes_back(world):
    async def scenario():
        here = world()
        async with relay(here.network, B, A) as b:
            async with relay(here.network, A) as a:
                await settled(b)
                async with (
                    publisher(here, A) as it,
                    it.publication(here.tokens) as publication,
                ):
                    await produce(here, publication)
                    assert_whole(await consume(here, B))
                    assert await publication.wait_delivered(5.0)
                del a
            await asyncio.sleep(5)
            assert b.parent is None
            alone = await consume(here, B)
            # The new relay at A knows nothing, but for what its child can serve.
            async with relay(here.network, A):
                await settled(b)
                return alone, await consume(here, A)

    for verdict in run(scenario()):
        assert_whole(verdict)


def test_parent_that_drains_is_replaced_before_it_closes(world):
    async def scenario():
        here = world()
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            await enter(relay(here.network, A))
            c = await enter(relay(here.network, C, A))
            await settled(c)
            b = await enter(relay(here.network, B, C, A))
            await settled(b)
            assert b.parent == url(C)
            it = await enter(publisher(here, A))
            publication = await enter(it.publication(here.tokens))
            segment = await publication.add_segment()
            async with asyncio.TaskGroup() as group:
                task = group.create_task(consume(here, B, name=publication.name))
                group.create_task(produce(here, publication, segment, pace=0.5))
                await asyncio.sleep(1.2)
                await c.drain(5.0)
                parents = [b.parent]
            return task.result(), parents, c.statistics()

    verdict, parents, c = run(scenario())

    assert_whole(verdict)
    assert verdict.duplicate == 0
    assert parents == [url(A)]
    assert c.sessions <= 1  # Its own parent.


def test_only_parent_that_drains_and_restarts_serves_to_its_end_and_is_dialled_again(world):
    async def scenario():
        here = world()
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            await enter(relay(here.network, A))
            middle = await stack.enter_async_context(AsyncExitStack())
            c = await middle.enter_async_context(relay(here.network, C, A))
            await settled(c)
            b = await enter(relay(here.network, B, C))
            await settled(b)
            it = await enter(publisher(here, A))
            publication = await enter(it.publication(here.tokens))
            segment = await publication.add_segment()
            async with asyncio.TaskGroup() as group:
                task = group.create_task(consume(here, B, name=publication.name))
                group.create_task(produce(here, publication, segment, pace=1.0))
                await asyncio.sleep(1.5)
                await c.drain(2.0)
                await middle.aclose()
                await enter(relay(here.network, C, A))
            return task.result(), b.parent

    verdict, parent = run(scenario())

    assert_whole(verdict)
    assert parent == url(C)
