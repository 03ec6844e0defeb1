"""The types that users of the public API see; pyright checks this file, nobody runs it."""

from collections.abc import Buffer
from typing import assert_type

import kvcs


async def consume(connection: kvcs.Connection, scope_key: kvcs.ScopeKey) -> None:
    consumer = kvcs.Consumer(connection, scope_key=scope_key, config=kvcs.ConsumerConfig())
    found = await consumer.discover([1, 2, 3], timeout=1.0)
    assert_type(found, list[kvcs.Candidate])

    async with consumer.retrieve(*found, layers=range(2), memory=kvcs.HostMemory()) as retrieval:
        assert_type(retrieval, kvcs.Retrieval)
        async for layer in retrieval:
            assert_type(layer, kvcs.Layer)
            assert_type(layer.k, memoryview)
        assert_type(await retrieval.layer(0), kvcs.Layer | None)
        verdict = await retrieval.finished()

    assert_type(verdict, kvcs.Verdict)
    assert_type(verdict.missing, tuple[kvcs.MissingRange, ...])
    assert_type(verdict.first_layer_s, float | None)


async def publish(
    connection: kvcs.Connection, scope_key: kvcs.ScopeKey, descriptor: kvcs.Descriptor, k: Buffer
) -> None:
    config = kvcs.PublisherConfig(hold=kvcs.Hold.UNTIL_DELIVERED, push=True)
    publisher = kvcs.Publisher(
        connection, scope_key=scope_key, descriptor=descriptor, config=config
    )
    async with publisher.publication(range(64)) as publication:
        assert_type(publication, kvcs.Publication)
        segment = await publication.add_segment()
        assert_type(segment, kvcs.PublishedSegment)
        await segment.publish_layer(0, k, bytearray(4))
        await publication.complete()
        assert_type(await publication.wait_delivered(1.0), bool)
