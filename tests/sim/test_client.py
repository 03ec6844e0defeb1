import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from kvcs.client import (
    BudgetExceeded,
    ConsumerConfig,
    Hold,
    HostMemory,
    MissingReason,
    Publisher,
    PublisherConfig,
)
from kvcs.client.serving import Serving
from kvcs.errors import (
    ConfigError,
    ConnectionLost,
    DataError,
    KeyMismatch,
    LayoutMismatch,
    LocalProtocolError,
    RequestRejected,
    RequestTimedOut,
)
from kvcs.kv import Component, ScopeKey
from kvcs.names import TrackNamespace
from kvcs.testing import LinkProfile, run
from kvcs.transport.interface import TransportConfig

LAYERS = 6
PACE = 0.1


async def take(retrieval, world, blocks=None):
    """Iterate a retrieval; return the layers in order, all compared with what was computed."""
    layers = []
    async for layer in retrieval:
        assert world.is_equal(layer, blocks)
        layers.append(layer.layer_index)
    return layers


@asynccontextmanager
async def published(world, config=None):
    """A publication of one segment that is complete."""
    async with world.publisher(config) as publisher, publisher.publication(world.tokens) as it:
        await world.publish_all(await it.add_segment())
        await it.complete()
        yield it


async def produce(world, publication, segments, *, pace=PACE):
    """Publish all layers of all segments, pass by pass, at the pace of an engine."""
    for segment in segments:
        for layer_index in range(segment.next_layer, LAYERS):
            await asyncio.sleep(pace)
            await world.publish_layer(segment, layer_index)
    await publication.complete()


def assert_whole(verdict, *, layers=LAYERS, blocks):
    """Everything that was wanted is there, and came exactly once."""
    assert verdict.complete
    assert verdict.missing == ()
    assert verdict.verified == 2 * layers * blocks
    assert (verdict.duplicate, verdict.rejected, verdict.missing_objects) == (0, {}, 0)
    assert verdict.verified_prefix_blocks == blocks
    assert not verdict.authenticated


# What everybody does.


def test_completed_publication_is_discovered_and_fetched(world):
    async def scenario():
        here = world()
        async with published(here), here.consumer() as consumer:
            (candidate,) = await consumer.discover(here.tokens)
            async with consumer.retrieve(candidate, timeout=10) as retrieval:
                layers = await take(retrieval, here)

        assert candidate.blocks == here.blocks
        assert layers == list(range(LAYERS))
        assert_whole(retrieval.verdict, blocks=here.blocks)
        assert retrieval.verdict.excess == 0

    run(scenario())


@pytest.mark.parametrize("before", range(LAYERS + 1))
def test_live_join_brings_every_object_once(world, before):
    async def scenario():
        here = world()
        async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
            segment = await publication.add_segment()
            for layer_index in range(before):
                await here.publish_layer(segment, layer_index)
            async with here.consumer() as consumer, asyncio.TaskGroup() as group:
                (candidate,) = await consumer.discover(here.tokens)
                async with consumer.retrieve(candidate, timeout=10) as retrieval:
                    group.create_task(produce(here, publication, [segment]))
                    layers = await take(retrieval, here)
            assert await publication.wait_delivered(1.0)

        assert layers == list(range(LAYERS))
        assert_whole(retrieval.verdict, blocks=here.blocks)

    run(scenario())


@pytest.mark.parametrize("seed", range(8))
def test_live_join_survives_streams_that_overtake_each_other(world, seed):
    async def scenario():
        here = world(seed=seed, profile=LinkProfile(delay=0.02, reorder=0.3, bandwidth=200_000))
        async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
            segment = await publication.add_segment()
            for layer_index in range(3):
                await here.publish_layer(segment, layer_index)
            async with here.consumer() as consumer, asyncio.TaskGroup() as group:
                candidate = consumer.candidate(publication.name, here.tokens)
                group.create_task(produce(here, publication, [segment], pace=0.01))
                async with consumer.retrieve(candidate, timeout=30) as retrieval:
                    layers = await take(retrieval, here)

        assert layers == list(range(LAYERS))
        assert_whole(retrieval.verdict, blocks=here.blocks)

    run(scenario(), seed=seed)


def test_first_layer_is_usable_while_later_ones_are_computed(world):
    async def scenario():
        here = world()
        async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
            segment = await publication.add_segment()
            async with here.consumer() as consumer, asyncio.TaskGroup() as group:
                candidate = consumer.candidate(publication.name, here.tokens)
                async with consumer.retrieve(candidate, timeout=10) as retrieval:
                    group.create_task(produce(here, publication, [segment]))
                    await take(retrieval, here)

        verdict = retrieval.verdict
        gaps = [
            later.seconds - earlier.seconds
            for earlier, later in zip(verdict.arrivals, verdict.arrivals[1:], strict=False)
        ]
        assert [arrival.layer_index for arrival in verdict.arrivals] == list(range(LAYERS))
        assert all(abs(gap - PACE) < PACE / 10 for gap in gaps)

    run(scenario())


@pytest.mark.parametrize("filter_ranges", [0, 16])
def test_some_layers_and_first_blocks_are_fetched(world, filter_ranges):
    async def scenario():
        here = world(filter_ranges=filter_ranges)
        async with published(here) as publication, here.consumer() as consumer:
            candidate = consumer.candidate(publication.name, here.tokens)
            async with consumer.retrieve(candidate, layers=(1, 2, 4), blocks=2) as retrieval:
                layers = await take(retrieval, here, blocks=2)

        assert layers == [1, 2, 4]
        assert_whole(retrieval.verdict, layers=3, blocks=2)
        # A peer without filters gives the neighbours 1 and 2 whole.
        excess = 0 if filter_ranges else 2 * 2 * (here.blocks - 2)
        assert retrieval.verdict.excess == excess

    run(scenario())


def test_some_layers_and_first_blocks_of_a_live_publication(world):
    async def scenario():
        here = world()
        async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
            segment = await publication.add_segment()
            for layer_index in range(3):
                await here.publish_layer(segment, layer_index)
            async with here.consumer() as consumer, asyncio.TaskGroup() as group:
                candidate = consumer.candidate(publication.name, here.tokens)
                group.create_task(produce(here, publication, [segment]))
                async with consumer.retrieve(candidate, layers=(2, 3), blocks=3) as retrieval:
                    layers = await take(retrieval, here, blocks=3)

        assert layers == [2, 3]
        assert_whole(retrieval.verdict, layers=2, blocks=3)

    run(scenario())


def test_jointly_encoded_track_gives_the_same_keys_and_values(world):
    async def scenario():
        here = world()
        config = PublisherConfig(components=(Component.KV,))
        async with published(here, config) as publication, here.consumer() as consumer:
            candidate = consumer.candidate(publication.name, here.tokens)
            async with consumer.retrieve(candidate) as retrieval:
                layers = await take(retrieval, here)

        assert layers == list(range(LAYERS))
        assert retrieval.verdict.complete
        assert retrieval.verdict.verified == LAYERS * here.blocks

    run(scenario())


def test_exact_publication_needs_neither_tokens_nor_descriptor(world):
    async def scenario():
        here = world()
        async with published(here) as publication, here.consumer(descriptor=None) as consumer:
            candidate = consumer.candidate(publication.name.namespace())
            async with consumer.retrieve(candidate) as retrieval:
                await take(retrieval, here)

        assert retrieval.manifest.compat == here.descriptor
        assert_whole(retrieval.verdict, blocks=here.blocks)

    run(scenario())


def test_data_goes_into_memory_that_the_caller_provides(world):
    class Mine(HostMemory):
        def __init__(self):
            self.given = {}

        def buffer(self, component, layer_index, size_bytes):
            memory = super().buffer(component, layer_index, size_bytes)
            return self.given.setdefault((component, layer_index), memory)

    async def scenario():
        here = world()
        memory = Mine()
        async with published(here) as publication, here.consumer() as consumer:
            candidate = consumer.candidate(publication.name, here.tokens)
            async with consumer.retrieve(candidate, memory=memory, layers=[3]) as retrieval:
                await take(retrieval, here)

        assert set(memory.given) == {(Component.K, 3), (Component.V, 3)}
        assert memory.given[Component.V, 3] == here.tensor(Component.V, 3)

    run(scenario())


def test_one_layer_can_be_awaited_out_of_order(world):
    async def scenario():
        here = world()
        async with published(here) as publication, here.consumer() as consumer:
            candidate = consumer.candidate(publication.name, here.tokens)
            async with consumer.retrieve(candidate) as retrieval:
                layer = await retrieval.layer(4)
                verdict = await retrieval.finished()

        assert here.is_equal(layer)
        assert verdict.complete

    run(scenario())


def test_timeout_of_a_search_includes_the_ranking(world):
    async def scenario():
        here = world(profile=LinkProfile(delay=0.3))
        async with (
            here.publisher() as publisher,
            publisher.publication(here.tokens) as one,
            publisher.publication(here.tokens) as other,
            here.consumer() as consumer,
        ):
            for publication in (one, other):
                await publication.add_segment()
            loop = asyncio.get_running_loop()
            started = loop.time()
            found = await consumer.discover(here.tokens, timeout=1.0)
            seconds = loop.time() - started
            return {candidate.name for candidate in found}, {one.name, other.name}, seconds

    found, published, seconds = run(scenario())

    assert found == published
    assert seconds < 1.01


# Chunked prefill.


@pytest.mark.parametrize("joined", [0, 3, 9])
def test_prefix_spans_the_segments_of_all_passes(world, joined):
    async def scenario():
        here = world()
        async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
            segments = [await publication.add_segment(2), await publication.add_segment(3)]
            async with here.consumer() as consumer, asyncio.TaskGroup() as group:
                group.create_task(produce(here, publication, segments))
                await asyncio.sleep((joined + 0.5) * PACE)
                (candidate,) = await consumer.discover(here.tokens)
                async with consumer.retrieve(candidate, timeout=10) as retrieval:
                    layers = await take(retrieval, here)

        assert candidate.blocks == 2
        assert layers == list(range(LAYERS))
        assert_whole(retrieval.verdict, blocks=here.blocks)

    run(scenario())


def test_more_tracks_than_a_peer_serves_at_a_time_are_taken_one_after_the_other(world):
    async def scenario():
        here = world(profile=LinkProfile(delay=0.01, bandwidth=2_000))
        config = PublisherConfig(max_fetches=2)
        queues = TransportConfig(high_water_bytes=512, low_water_bytes=256)
        async with (
            here.publisher(config, transport=queues) as publisher,
            publisher.publication(here.tokens) as publication,
            here.consumer() as consumer,
        ):
            for _ in range(5):
                await here.publish_all(await publication.add_segment(1))
            await publication.complete()
            candidate = consumer.candidate(publication.name, here.tokens)
            async with consumer.retrieve(candidate, timeout=60) as retrieval:
                return await retrieval.finished()

    verdict = run(scenario())

    assert_whole(verdict, blocks=5)
    assert verdict.elapsed_s > 3


def test_first_layer_of_many_segments_is_usable_long_before_the_last(world):
    async def scenario():
        here = world(profile=LinkProfile(delay=0.01, bandwidth=20_000))
        here.tokens = list(range(20 * 4 + 1))
        queues = TransportConfig(high_water_bytes=2048, low_water_bytes=1024)
        async with (
            here.publisher(transport=queues) as publisher,
            publisher.publication(here.tokens) as publication,
            here.consumer() as consumer,
        ):
            for _ in range(20):
                await here.publish_all(await publication.add_segment(1))
            await publication.complete()
            candidate = consumer.candidate(publication.name, here.tokens)
            async with consumer.retrieve(candidate, timeout=60) as retrieval:
                return await take(retrieval, here), retrieval.verdict

    layers, verdict = run(scenario())

    first, *_, last = verdict.arrivals
    assert_whole(verdict, blocks=20)
    assert layers == [arrival.layer_index for arrival in verdict.arrivals] == list(range(LAYERS))
    assert first.seconds < 0.6 * last.seconds


def test_retrieval_waits_for_a_segment_that_is_added_later(world):
    async def scenario():
        here = world()

        async def two_passes(publication, first):
            for layer_index in range(LAYERS):
                await asyncio.sleep(PACE)
                await here.publish_layer(first, layer_index)
            await produce(here, publication, [await publication.add_segment()])

        async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
            first = await publication.add_segment(2)
            async with here.consumer() as consumer, asyncio.TaskGroup() as group:
                candidate = consumer.candidate(publication.name, here.tokens)
                group.create_task(two_passes(publication, first))
                async with consumer.retrieve(candidate, blocks=here.blocks) as retrieval:
                    layers = await take(retrieval, here)

        assert layers == list(range(LAYERS))
        assert_whole(retrieval.verdict, blocks=here.blocks)

    run(scenario())


def test_blocks_that_the_publication_never_had_are_missing(world):
    async def scenario():
        here = world()
        async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
            await here.publish_all(await publication.add_segment(2))
            await publication.complete()
            async with here.consumer() as consumer:
                candidate = consumer.candidate(publication.name, here.tokens)
                async with consumer.retrieve(candidate, blocks=4, timeout=30) as retrieval:
                    layers = await take(retrieval, here, blocks=4)

        verdict = retrieval.verdict
        assert layers == []
        assert not verdict.complete
        assert verdict.verified_prefix_blocks == 2
        assert {(gap.segment, gap.first, gap.end, gap.reason) for gap in verdict.missing} == {
            (1, 0, 2, MissingReason.NOT_PUBLISHED)
        }
        assert verdict.elapsed_s < 5

    run(scenario())


def test_shared_prefix_is_found_at_the_anchor_of_the_first_pass(world):
    async def scenario():
        here = world()
        async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
            await here.publish_all(await publication.add_segment(2))
            await here.publish_all(await publication.add_segment(3))
            await publication.complete()
            other = [*here.tokens[:12], 1, 2, 3, 4, 5, 6, 7, 8]
            async with here.consumer() as consumer:
                (candidate,) = await consumer.discover(other)
                async with consumer.retrieve(candidate) as retrieval:
                    layers = await take(retrieval, here, blocks=2)

        assert candidate.blocks == 2
        assert layers == list(range(LAYERS))
        assert_whole(retrieval.verdict, blocks=2)

    run(scenario())


# Discovery.


def test_discovery_of_an_unknown_prompt_finds_nothing_in_bounded_time(world):
    async def scenario():
        here = world()
        async with published(here), here.consumer() as consumer:
            found = await consumer.discover([5] * 400)
            elapsed = asyncio.get_running_loop().time()

        assert found == []
        assert elapsed < 3

    run(scenario())


def test_discovery_of_another_scope_finds_nothing(world):
    async def scenario():
        here = world()
        async with published(here) as publication, here.consumer(scope_key=bytes(32)) as stranger:
            assert await stranger.discover(here.tokens) == []
            with pytest.raises(KeyMismatch, match="scope"):
                async with stranger.retrieve(stranger.candidate(publication.name)):
                    pass

    run(scenario())


def test_discovery_waits_for_a_publication_that_is_announced_later(world):
    async def scenario():
        here = world()
        async with (
            here.publisher() as publisher,
            here.consumer(ConsumerConfig(discovery_wait=30)) as consumer,
            asyncio.TaskGroup() as group,
        ):
            searching = group.create_task(consumer.discover(here.tokens, timeout=60))
            await asyncio.sleep(5)
            async with publisher.publication(here.tokens) as publication:
                await publication.add_segment()
                (candidate,) = await searching
                assert candidate.name == publication.name
            elapsed = asyncio.get_running_loop().time()

        assert 5 <= elapsed < 7

    run(scenario())


def test_discovery_forgets_a_publication_that_is_withdrawn(world):
    async def scenario():
        here = world()
        async with (
            here.publisher() as publisher,
            here.consumer(ConsumerConfig(discovery_wait=30)) as consumer,
        ):
            prompt = [*here.tokens[:8], *([1] * 12)]
            async with publisher.publication(here.tokens[:8]) as publication:
                await publication.add_segment()
                searching = asyncio.ensure_future(consumer.discover(prompt, timeout=60))
                await asyncio.sleep(5)
            found = await searching

        assert found == []

    run(scenario())


def test_discovery_ends_at_its_timeout(world):
    async def scenario():
        here = world()
        async with here.publisher(), here.consumer(ConsumerConfig(discovery_wait=30)) as consumer:
            assert await consumer.discover(here.tokens, timeout=2) == []
            assert 2 <= asyncio.get_running_loop().time() < 3

    run(scenario())


def test_discovery_gives_what_it_has_found_at_its_timeout(world):
    async def scenario():
        here = world()
        async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
            await publication.add_segment(3)
            async with here.consumer() as consumer:
                found = await consumer.discover(here.tokens, timeout=0.4)
        return publication.name, [(candidate.name, candidate.blocks) for candidate in found]

    name, found = run(scenario())

    assert found == [(name, 3)]


def test_discovery_on_a_session_that_ends_is_an_error(world):
    async def scenario():
        here = world()
        async with here.publisher(), here.consumer(ConsumerConfig(discovery_wait=30)) as consumer:
            asyncio.get_running_loop().call_later(1, here.network.transports[1].close, 0, "")
            with pytest.raises(ConnectionLost):
                await consumer.discover(here.tokens, timeout=60)

    run(scenario())


def test_discovery_ignores_and_counts_what_is_no_publication(world):
    async def scenario():
        here = world()
        async with (
            here.publisher() as publisher,
            here.consumer() as consumer,
            publisher.publication(here.tokens) as publication,
        ):
            await publication.add_segment()
            namespaces = publisher.namespaces
            fields = publication.name.namespace().fields

            def with_strangers():
                strangers = [(*fields, b"more"), (*fields[:4], b"short")]
                return [*map(TrackNamespace, strangers), *namespaces()]

            publisher.namespaces = with_strangers
            (candidate,) = await consumer.discover(here.tokens)

        assert candidate.name == publication.name
        assert consumer.ignored_namespaces == 2

    run(scenario())


def test_discovery_prefers_complete_publications_to_those_in_the_making(world):
    async def scenario():
        here = world()
        async with (
            here.publisher() as publisher,
            publisher.publication(here.tokens) as first,
            publisher.publication(here.tokens) as second,
            publisher.publication(here.tokens) as third,
        ):
            await first.add_segment()
            await here.publish_layer(await second.add_segment(), 0)
            await here.publish_all(await third.add_segment())
            await third.complete()
            async with here.consumer() as consumer:
                found = await consumer.discover(here.tokens)
            names = [third.name, second.name, first.name]

        assert [candidate.name for candidate in found] == names

    run(scenario())


# What goes wrong.


def test_unknown_publication_is_refused(world):
    async def scenario():
        here = world()
        async with published(here) as publication, here.consumer() as consumer:
            namespace = publication.name.namespace()
            unknown = type(namespace)((*namespace.fields[:4], b"another publicat"))
            with pytest.raises(RequestRejected, match="DOES_NOT_EXIST"):
                async with consumer.retrieve(consumer.candidate(unknown, here.tokens)):
                    pass

    run(scenario())


def test_publication_of_other_tokens_is_refused(world):
    async def scenario():
        here = world()
        async with published(here) as publication, here.consumer() as consumer:
            candidate = consumer.candidate(publication.name, here.tokens[4:])
            with pytest.raises(KeyMismatch):
                async with consumer.retrieve(candidate):
                    pass

    run(scenario())


def test_publication_of_another_model_is_refused(world):
    async def scenario():
        here = world()
        other = replace(here.descriptor, position="other")
        async with published(here) as publication, here.consumer(descriptor=other) as consumer:
            with pytest.raises(KeyMismatch, match="another model"):
                async with consumer.retrieve(consumer.candidate(publication.name)):
                    pass

    run(scenario())


def test_memory_that_does_not_fit_is_the_callers_error(world):
    class Small(HostMemory):
        def buffer(self, component, layer_index, size_bytes):
            return super().buffer(component, layer_index, size_bytes - 1)

    async def scenario():
        here = world()
        async with published(here) as publication, here.consumer() as consumer:
            candidate = consumer.candidate(publication.name, here.tokens)
            with pytest.raises(LayoutMismatch):
                async with consumer.retrieve(candidate, memory=Small()):
                    pass
            async with consumer.retrieve(candidate) as retrieval:
                await take(retrieval, here)

        assert retrieval.verdict.complete

    run(scenario())


@pytest.mark.parametrize("wanted", [{"layers": [6]}, {"layers": []}, {"blocks": 0}])
def test_wish_that_makes_no_sense_is_refused(world, wanted):
    async def scenario():
        here = world()
        async with published(here) as publication, here.consumer() as consumer:
            candidate = consumer.candidate(publication.name, here.tokens)
            with pytest.raises(ConfigError):
                async with consumer.retrieve(candidate, **wanted):
                    pass

    run(scenario())


def test_silent_peer_is_a_timeout(world):
    async def scenario():
        here = world()
        async with published(here) as publication, here.consumer() as consumer:
            here.network.transports[1].stall()
            candidate = consumer.candidate(publication.name, here.tokens)
            with pytest.raises(RequestTimedOut):
                async with consumer.retrieve(candidate, timeout=3):
                    pass
            assert asyncio.get_running_loop().time() < 4
            here.network.transports[1].resume()

    run(scenario())


def test_deadline_gives_a_verdict_and_no_half_layer(world):
    async def scenario():
        here = world()
        async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
            segment = await publication.add_segment()
            for layer_index in range(2):
                await here.publish_layer(segment, layer_index)
            async with here.consumer() as consumer:
                candidate = consumer.candidate(publication.name, here.tokens)
                async with consumer.retrieve(candidate, timeout=2) as retrieval:
                    layers = await take(retrieval, here)

        verdict = retrieval.verdict
        assert layers == [0, 1]
        assert not verdict.complete
        assert [(gap.layer, gap.first, gap.end, gap.reason) for gap in verdict.missing] == [
            (layer_index, 0, here.blocks, MissingReason.DEADLINE) for layer_index in range(2, 6)
        ]
        assert verdict.missing_objects == 2 * 4 * here.blocks
        assert verdict.verified_prefix_blocks == 0
        assert 2 <= verdict.elapsed_s < 2.1

    run(scenario())


def test_abort_ends_the_retrieval_without_end_of_track(world):
    async def scenario():
        here = world()
        async with here.publisher() as publisher, here.consumer() as consumer:
            publication = publisher.publication(here.tokens)
            await publication.__aenter__()
            await here.publish_layer(await publication.add_segment(), 0)
            candidate = consumer.candidate(publication.name, here.tokens)
            async with consumer.retrieve(candidate, timeout=20) as retrieval:
                assert await retrieval.layer(0) is not None
                error = ZeroDivisionError()
                await publication.__aexit__(type(error), error, None)
                verdict = await retrieval.finished()

        assert not verdict.complete
        assert {gap.layer for gap in verdict.missing} == {1, 2, 3, 4, 5}
        assert verdict.elapsed_s < 10
        assert publisher.namespaces() == []

    run(scenario())


@pytest.mark.parametrize(
    ("published", "reason"),
    [
        (2, "segment 1 lacks layers 2..5"),
        (LAYERS, "all layers are there, but complete() was not called"),
    ],
)
def test_leaving_a_publication_that_is_not_complete_is_a_warning(published, reason, world, caplog):
    async def scenario():
        here = world()
        async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
            whole = await publication.add_segment(1)
            await here.publish_all(whole)
            segment = await publication.add_segment()
            for layer_index in range(published):
                await here.publish_layer(segment, layer_index)
            return publication.name

    with caplog.at_level(logging.WARNING, "kvcs.client"):
        name = run(scenario())

    expected = f"publication {name.short_id} was left and is aborted: {reason}"
    assert [text for text in caplog.messages if "was left" in text] == [expected]


def test_leaving_a_complete_publication_is_no_warning(world, caplog):
    async def scenario():
        here = world()
        async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
            await here.publish_all(await publication.add_segment())
            await publication.complete()

    with caplog.at_level(logging.WARNING, "kvcs.client"):
        run(scenario())

    assert not [text for text in caplog.messages if "was left" in text]


def test_a_publication_left_with_an_error_or_aborted_is_no_warning(world, caplog):
    async def scenario():
        here = world()
        async with here.publisher() as publisher:
            async with publisher.publication(here.tokens) as publication:
                await publication.add_segment()
                publication.abort()
            async with publisher.publication(here.tokens) as publication:
                await publication.add_segment()
                raise ZeroDivisionError

    with caplog.at_level(logging.WARNING, "kvcs.client"), pytest.raises(ZeroDivisionError):
        run(scenario())

    assert not [text for text in caplog.messages if "was left" in text]


def test_killed_publisher_is_a_verdict_with_what_was_verified(world):
    async def scenario():
        here = world()
        async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
            segment = await publication.add_segment()
            await here.publish_layer(segment, 0)
            async with here.consumer() as consumer:
                candidate = consumer.candidate(publication.name, here.tokens)
                async with consumer.retrieve(candidate, timeout=60) as retrieval:
                    assert await retrieval.layer(0) is not None
                    here.network.transports[1].kill()
                    assert await retrieval.layer(1) is None
                    verdict = await retrieval.finished()

        assert not verdict.complete
        assert {gap.reason for gap in verdict.missing} == {MissingReason.CONNECTION_LOST}
        assert verdict.error is not None
        assert verdict.elapsed_s < 15

    run(scenario())


def test_stalled_consumer_does_not_stop_the_others(world):
    async def scenario():
        here = world()
        async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
            segment = await publication.add_segment()
            async with (
                here.consumer() as slow,
                here.consumer() as consumer,
                asyncio.TaskGroup() as group,
            ):
                candidate = consumer.candidate(publication.name, here.tokens)
                async with (
                    slow.retrieve(candidate, timeout=30) as late,
                    consumer.retrieve(candidate, timeout=30) as retrieval,
                ):
                    here.network.transports[0].stall()
                    group.create_task(produce(here, publication, [segment]))
                    await take(retrieval, here)
                    assert_whole(retrieval.verdict, blocks=here.blocks)
                    here.network.transports[0].resume()
                    await take(late, here)

        assert_whole(late.verdict, blocks=here.blocks)

    run(scenario())


def test_leaving_early_cancels_and_says_so(world):
    async def scenario():
        here = world()
        async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
            await here.publish_layer(await publication.add_segment(), 0)
            async with here.consumer() as consumer:
                candidate = consumer.candidate(publication.name, here.tokens)
                async with consumer.retrieve(candidate, timeout=60) as retrieval:
                    assert await retrieval.layer(0) is not None
                elapsed = asyncio.get_running_loop().time()
            await asyncio.sleep(0.1)
            owed = [d for s in publisher.servings for d in s.deliveries(None)]

        assert elapsed < 5
        assert not retrieval.verdict.complete
        assert {gap.reason for gap in retrieval.verdict.missing} == {MissingReason.STOPPED}
        assert owed == []

    run(scenario())


# The publisher's side.


def test_publisher_refuses_layers_out_of_order(world):
    async def scenario():
        here = world()
        async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
            segment = await publication.add_segment()
            await here.publish_layer(segment, 0)
            for layer_index in (0, 2):
                with pytest.raises(LocalProtocolError, match="next one to publish is 1"):
                    await here.publish_layer(segment, layer_index)
            with pytest.raises(LocalProtocolError, match="complete"):
                await publication.complete()
            with pytest.raises(DataError):
                await publication.add_segment(1)

    run(scenario())


def test_publisher_at_its_budget_fails_and_loses_nothing(world):
    async def scenario():
        here = world()
        config = PublisherConfig(max_held_bytes=20_000)
        async with (
            here.publisher(config) as publisher,
            here.consumer() as consumer,
            publisher.publication(here.tokens) as publication,
        ):
            segment = await publication.add_segment()
            with pytest.raises(BudgetExceeded):
                await here.publish_all(segment)
            published_layers = segment.next_layer
            candidate = consumer.candidate(publication.name, here.tokens)
            layers = range(published_layers)
            async with consumer.retrieve(candidate, layers=layers, timeout=2) as retrieval:
                taken = await take(retrieval, here)

        assert 0 < published_layers < LAYERS
        assert taken == list(range(published_layers))

    run(scenario())


def test_publisher_that_holds_nothing_marks_what_is_gone(world):
    async def scenario():
        here = world()
        config = PublisherConfig(hold=Hold.NONE)
        async with published(here, config) as publication, here.consumer() as consumer:
            await asyncio.sleep(1)
            candidate = consumer.candidate(publication.name, here.tokens)
            async with consumer.retrieve(candidate, timeout=20) as retrieval:
                layers = await take(retrieval, here)

        assert layers == []
        assert {gap.reason for gap in retrieval.verdict.missing} == {MissingReason.UNKNOWN}
        assert retrieval.verdict.elapsed_s < 10

    run(scenario())


@pytest.mark.parametrize("hold", [Hold.UNTIL_DELIVERED, Hold.NONE])
def test_publisher_drops_what_its_subscriber_has(world, hold):
    async def scenario():
        here = world()
        config = PublisherConfig(hold=hold)
        async with (
            here.publisher(config) as publisher,
            publisher.publication(here.tokens) as publication,
        ):
            segment = await publication.add_segment()
            async with here.consumer() as consumer, asyncio.TaskGroup() as group:
                candidate = consumer.candidate(publication.name, here.tokens)
                async with consumer.retrieve(candidate, timeout=10) as retrieval:
                    await asyncio.sleep(PACE)
                    group.create_task(produce(here, publication, [segment]))
                    await take(retrieval, here)
            await asyncio.sleep(1)
            held = sum(track.store.object_bytes for track in publication.tracks.data_tracks(0))

        assert_whole(retrieval.verdict, blocks=here.blocks)
        assert held < 3000

    run(scenario())


def test_until_delivered_holds_what_nobody_has_yet(world):
    async def scenario():
        here = world()
        config = PublisherConfig(hold=Hold.UNTIL_DELIVERED)
        async with published(here, config) as publication, here.consumer() as consumer:
            await asyncio.sleep(1)
            candidate = consumer.candidate(publication.name, here.tokens)
            async with consumer.retrieve(candidate) as retrieval:
                await take(retrieval, here)

        assert_whole(retrieval.verdict, blocks=here.blocks)

    run(scenario())


def test_manifest_versions_follow_the_cadence_and_only_the_newest_is_kept(world):
    async def scenario():
        here = world()
        async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
            versions = []
            segment = await publication.add_segment()
            for layer_index in range(LAYERS):
                await here.publish_layer(segment, layer_index)
                versions.append(publication.tracks.manifest_track.store.largest.group_id)
            await publication.complete()
            await asyncio.sleep(1)
            kept = publication.tracks.manifest_track.store.groups()

        # Version 0 lists no layer; then after layers 1, 2, 4 and with the last one.
        assert versions == [1, 2, 2, 3, 3, 4]
        assert kept == (4,)

    run(scenario())


def test_publication_whose_manifest_no_consumer_takes_is_refused_before_it_is_computed(world):
    async def scenario():
        here = world()
        blocks = 16 * 2**20 // (67 * 2 * LAYERS)
        tokens = [0] * (blocks * here.descriptor.block_tokens)
        async with here.publisher() as publisher, publisher.publication(tokens) as publication:
            with pytest.raises(ConfigError, match="at most 16777216 octets"):
                await publication.add_segment()
            await publication.add_segment(blocks // 2)

    run(scenario())


def test_nobody_to_deliver_to_is_not_a_delivery(world):
    async def scenario():
        here = world()
        async with published(here) as publication:
            assert not await publication.wait_delivered(1.0)

    run(scenario())


def test_delivered_is_what_several_requests_of_one_peer_bring_together(world):
    async def scenario():
        here = world()
        delivered = []
        async with published(here) as publication, here.consumer() as consumer:
            (candidate,) = await consumer.discover(here.tokens)
            for layers in (range(2), range(4, LAYERS), range(2, 4)):
                async with consumer.retrieve(candidate, layers=layers, timeout=10) as retrieval:
                    await retrieval.finished()
                delivered.append(await publication.wait_delivered(1.0))

        assert delivered == [False, False, True]

    run(scenario())


def test_peer_that_does_not_say_that_it_has_taken_a_fetch_counts_after_a_while(world, monkeypatch):
    monkeypatch.setattr(Serving, "_finish", lambda *_args, **_options: None)

    async def scenario():
        here = world()
        async with published(here) as publication, here.consumer() as consumer:
            (candidate,) = await consumer.discover(here.tokens)
            async with consumer.retrieve(candidate, timeout=10) as retrieval:
                await retrieval.finished()
                return [await publication.wait_delivered(9.0) for _ in range(2)]

    assert run(scenario()) == [False, True]


@pytest.mark.parametrize(("bandwidth", "shortest", "longest"), [(2000, 3, 9), (10, 6, 13)])
def test_slow_subscriber_makes_the_publisher_wait_but_not_for_ever(
    world, bandwidth, shortest, longest
):
    async def scenario():
        here = world()
        config = PublisherConfig(max_unsent_bytes=1500, send_timeout=2.0)
        # The transport takes what it has room for; only what is left in the stores is unsent.
        transport = TransportConfig(high_water_bytes=500, low_water_bytes=200)
        async with (
            here.publisher(config, transport=transport) as publisher,
            here.consumer() as consumer,
            publisher.publication(here.tokens) as publication,
        ):
            segment = await publication.add_segment()
            candidate = consumer.candidate(publication.name, here.tokens)
            async with consumer.retrieve(candidate, timeout=600) as retrieval:
                await asyncio.sleep(PACE)
                started = asyncio.get_running_loop().time()
                here.network.conditions.profile = LinkProfile(bandwidth=bandwidth)
                await here.publish_all(segment)
                waited = asyncio.get_running_loop().time() - started
                here.network.conditions.profile = LinkProfile()
                await publication.complete()
                await take(retrieval, here)

        assert shortest < waited < longest
        assert_whole(retrieval.verdict, blocks=here.blocks)

    run(scenario())


def test_consumer_config_refuses_a_priority_that_leaves_no_room_for_the_manifest():
    with pytest.raises(ConfigError, match="subscriber_priority"):
        ConsumerConfig(subscriber_priority=0)


def test_publisher_refuses_more_than_the_tokens_have(world):
    async def scenario():
        here = world()
        async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
            for blocks in (0, 6):
                with pytest.raises(DataError, match="5 complete ones are left"):
                    await publication.add_segment(blocks)
            with pytest.raises(LocalProtocolError):
                _ = publication.name

    run(scenario())


def test_second_publisher_on_a_connection_is_refused_at_once(world):
    async def scenario():
        here = world()
        async with here.publisher() as publisher, here.consumer():
            (serving,) = publisher.servings
            with pytest.raises(ConfigError, match="for each Publisher"):
                Publisher(
                    serving.connection, scope_key=ScopeKey(bytes(32)), descriptor=here.descriptor
                )

    run(scenario())


def test_publisher_refuses_tensors_of_another_size(world):
    async def scenario():
        here = world()
        async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
            segment = await publication.add_segment()
            k = here.tensor(Component.K, 0)
            with pytest.raises(LayoutMismatch):
                await segment.publish_layer(0, k, k[:-1])
            await here.publish_layer(segment, 0)

        assert segment.next_layer == 1

    run(scenario())
