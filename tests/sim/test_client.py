import asyncio

from kvcs.testing import run


async def take(retrieval, world, blocks=None):
    """Iterate a retrieval; return the layers in order, all compared with what was computed."""
    layers = []
    async for layer in retrieval:
        assert world.is_equal(layer, blocks)
        layers.append(layer.layer_index)
    return layers


def test_completed_publication_is_discovered_and_fetched(world):
    async def scenario():
        here = world()
        async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
            await here.publish_all(await publication.add_segment())
            await publication.complete()
            async with here.consumer() as consumer:
                (candidate,) = await consumer.discover(here.tokens)
                async with consumer.retrieve(candidate, timeout=10) as retrieval:
                    layers = await take(retrieval, here)
                verdict = retrieval.verdict

        assert candidate.blocks == here.blocks
        assert layers == list(range(6))
        assert verdict.complete
        assert verdict.verified == 2 * 6 * here.blocks
        assert (verdict.duplicate, verdict.excess, verdict.rejected) == (0, 0, {})
        assert verdict.verified_prefix_blocks == here.blocks

    run(scenario())


def test_live_join_in_the_middle_brings_every_object_once(world):
    async def scenario():
        here = world()
        async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
            segment = await publication.add_segment()
            for layer_index in range(3):
                await here.publish_layer(segment, layer_index)

            async def produce():
                for layer_index in range(3, 6):
                    await asyncio.sleep(0.1)
                    await here.publish_layer(segment, layer_index)
                await publication.complete()

            async with here.consumer() as consumer, asyncio.TaskGroup() as group:
                (candidate,) = await consumer.discover(here.tokens)
                async with consumer.retrieve(candidate, timeout=10) as retrieval:
                    group.create_task(produce())
                    layers = await take(retrieval, here)
                verdict = retrieval.verdict
            assert await publication.wait_delivered(1.0)

        assert layers == list(range(6))
        assert verdict.complete
        assert verdict.verified == 2 * 6 * here.blocks
        assert (verdict.duplicate, verdict.excess) == (0, 0)

    run(scenario())
