"""The publisher of the demo: prefills and publishes live, or publishes a file."""

import asyncio
from collections.abc import Buffer
from pathlib import Path

from kvcs.cli.demo.link import Link
from kvcs.cli.demo.material import Material, load_material
from kvcs.cli.demo.messages import Announced, Halfway, LayerPassed, PublisherJob
from kvcs.cli.demo.provision import job_member, job_tokens
from kvcs.cli.demo.security import block_samples
from kvcs.client import Publication, PublishedSegment, Publisher
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.engines.bridge import publish_prefill
from kvcs.errors import RequestTimedOut
from kvcs.kv.layout import Layout, layer_digest
from kvcs.kv.naming import Component
from kvcs.transport.interface import ClientTls

__all__ = ("block_digests", "publish")


def block_digests(layout: Layout, layer_index: int, k: Buffer, v: Buffer) -> list[str]:
    """Return the KVSP layer digest of each block of a layer, in hex."""
    pairs = zip(
        layout.blocks(Component.K, layer_index, k),
        layout.blocks(Component.V, layer_index, v),
        strict=True,
    )
    return [layer_digest(*pair).hex() for pair in pairs]


async def publish(link: Link, job: PublisherJob) -> None:
    """Publish until the relay has everything.

    Raises:
        KvcsError: The relay cannot be reached, or did not take everything in time.
    """
    material = await asyncio.to_thread(load_material, job)
    member = job_member(job)
    config = ConnectConfig(tls=ClientTls(ca_file=str(Path(job.directory) / "ca.pem")))
    link.send(material.ready())
    await link.go()
    async with connect(job.url, config) as connection:
        publisher = Publisher(
            connection,
            scope_key=member.scope_key,
            descriptor=material.descriptor,
            config=member.publisher_config(authorization=job_tokens(job)),
        )
        tokens = material.tokens[: material.prefix_tokens]
        async with publisher.publication(tokens) as publication:
            segment = await publication.add_segment(material.blocks)
            link.send(Announced(short_id=publication.name.short_id))
            await link.go()
            shown = _Shown(
                publication, segment, link, material.layout, gives_samples=job.keys is not None
            )
            await _publish_layers(material, shown)
            if not await publication.wait_delivered(job.timeout):
                raise RequestTimedOut("the relay did not take the whole publication")


async def _publish_layers(material: Material, shown: "_Shown") -> None:
    if material.engine is not None:
        tokens = material.tokens[: material.prefix_tokens]
        await publish_prefill(material.engine, tokens, shown, layout=material.layout)
        return
    assert material.file is not None
    for layer_index, (k, v) in sorted(material.file.layers.items()):
        await shown.publish_layer(layer_index, k, v)
    await shown.complete()


class _Shown:
    """A publication of one announced segment that tells the demo about every layer.

    Halfway it waits for the demo, so that a consumer joins in mid-production however fast the
    layers come; the engine goes on computing meanwhile.
    """

    def __init__(
        self,
        publication: Publication,
        segment: PublishedSegment,
        link: Link,
        layout: Layout,
        *,
        gives_samples: bool,
    ) -> None:
        self._publication = publication
        self._gives_samples = gives_samples
        self._segment = segment
        self._link = link
        self._layout = layout
        self._started = asyncio.get_running_loop().time()

    async def add_segment(self, blocks: int) -> "_Shown":
        """Return the segment that was announced: there is one pass."""
        assert blocks == self._segment.blocks
        return self

    async def publish_layer(self, layer_index: int, k: Buffer, v: Buffer) -> None:
        """Publish a layer and report it."""
        await self._segment.publish_layer(layer_index, k, v)
        has_samples = self._gives_samples
        self._link.send(
            LayerPassed(
                layer_index=layer_index,
                size_bytes=memoryview(k).nbytes + memoryview(v).nbytes,
                digests=block_digests(self._layout, layer_index, k, v),
                seconds=asyncio.get_running_loop().time() - self._started,
                samples=block_samples(self._layout, layer_index, k, v) if has_samples else [],
            )
        )
        if layer_index + 1 == self._layout.layers // 2:
            self._link.send(Halfway())
            await self._link.go()

    async def complete(self) -> None:
        """End the publication."""
        await self._publication.complete()
