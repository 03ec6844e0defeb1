"""A consumer of the demo: retrieves a prefix, decodes from it, and compares."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from kvcs.cli._errors import NotFound
from kvcs.cli.demo.link import Link
from kvcs.cli.demo.material import Material, load_material
from kvcs.cli.demo.messages import Compared, ConsumerJob, Joined, LayerPassed, Retrieved
from kvcs.cli.demo.provision import job_member, job_tokens
from kvcs.cli.demo.publishing import block_digests
from kvcs.client import Consumer, Layer, Retrieval, Verdict
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.engines.bridge import (
    PrefixMemory,
    Promise,
    generate_streaming,
    run_in_engine_thread,
)
from kvcs.engines.interface import Engine, Generation, PassPlan
from kvcs.kv.layout import Layout
from kvcs.kv.manifest import Manifest
from kvcs.transport.interface import ClientTls, TransportConfig

__all__ = ("retrieve",)


async def retrieve(link: Link, job: ConsumerJob) -> None:
    """Retrieve and decode at the first `Go`, tell at the second how it compares.

    Raises:
        KvcsError: There is no such publication, or the relay cannot be reached.
    """
    material = await asyncio.to_thread(load_material, job)
    link.send(material.ready())
    await link.go()
    alone: Generation | None = None
    if job.alone_first and material.engine is not None:
        await _run_alone(material.engine, material, new_tokens=1)
        alone = await _run_alone(material.engine, material, new_tokens=job.new_tokens)
    generation = await _take(link, job, material)
    if generation is not None and material.engine is not None:
        await link.go()
        if alone is None:
            alone = await _run_alone(material.engine, material, new_tokens=job.new_tokens)
        link.send(
            Compared(
                is_equal=alone.tokens == generation.tokens,
                tokens=len(alone.tokens),
                time_to_first_token=alone.time_to_first_token,
            )
        )


async def _take(link: Link, job: ConsumerJob, material: Material) -> Generation | None:
    """Connect, find the publication and take it; return what was decoded from it."""
    taking = _Taking(link, job, material, asked=asyncio.get_running_loop().time())
    config = ConnectConfig(
        tls=ClientTls(ca_file=str(Path(job.directory) / "ca.pem")),
        transport=TransportConfig(idle_timeout=job.idle_timeout),
    )
    async with connect(job.url, config) as connection:
        member = job_member(job)
        consumer = Consumer(
            connection,
            scope_key=member.scope_key,
            descriptor=material.descriptor,
            # A consumer may be here before the publisher: it waits for the announcement.
            config=member.consumer_config(
                discovery_wait=job.timeout, authorization=job_tokens(job)
            ),
        )
        return await taking.run(consumer)


async def _run_alone(engine: Engine, material: Material, *, new_tokens: int) -> Generation:
    """Run without reuse, in the same passes as with it."""
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True

    return await run_in_engine_thread(
        lambda: engine.generate(
            material.tokens,
            new_tokens=new_tokens,
            plan=PassPlan(split_at=material.prefix_tokens),
            should_stop=lambda: stopped,
        ),
        stop=stop,
    )


@dataclass(slots=True)
class _Taking:
    """One retrieval, and what the demo is told about it.

    Attributes:
        asked: When the consumer began to connect.
        waited: Seconds since then when decoding began, if they count.
    """

    link: Link
    job: ConsumerJob
    material: Material
    asked: float
    is_like_file: bool | None = None
    waited: float = 0.0

    async def run(self, consumer: Consumer) -> Generation | None:
        """Find the publication, take it and decode; return what was decoded."""
        job, material = self.job, self.material
        found = await consumer.discover(
            material.tokens, blocks=material.blocks, timeout=job.timeout
        )
        if not found:
            raise NotFound("no publication of the prompt is known at the relay")
        memory = PrefixMemory(material.layout)
        retrieval = consumer.retrieve(
            found[0],
            layers=None if job.layers is None else range(job.layers),
            blocks=job.blocks or material.blocks,
            memory=memory,
            timeout=job.timeout,
        )
        async with retrieval:
            self.link.send(Joined(listed_layers=_listed_layers(retrieval.manifest)))
            shown = _Shown(retrieval, self)
            generation = await self._decode(shown, memory)
            if generation is None:
                async for _ in shown:
                    pass
            verdict = await retrieval.finished()
        self.link.send(self._outcome(retrieval, verdict, generation))
        return generation

    async def _decode(self, shown: "_Shown", memory: PrefixMemory) -> Generation | None:
        """Decode while layers are still on the wire: each is waited for where it is needed."""
        engine = self.material.engine
        if engine is None or not self.job.new_tokens:
            return None
        if self.job.alone_first:
            self.waited = asyncio.get_running_loop().time() - self.asked
        return await generate_streaming(
            engine,
            self.material.tokens,
            shown,
            Promise(
                layout=self.material.layout,
                blocks=self.material.blocks,
                deadline=asyncio.get_running_loop().time() + self.job.timeout,
                memory=memory,
            ),
            new_tokens=self.job.new_tokens,
            plan=PassPlan(split_at=self.material.prefix_tokens),
        )

    def pass_layer(self, layer: Layer, seconds: float) -> None:
        """Report a usable layer; compare it with the file where there is one."""
        if self.material.file is not None:
            expected = self.material.file.layers[layer.layer_index]
            is_equal = (
                layer.k == expected.k[: layer.k.nbytes] and layer.v == expected.v[: layer.v.nbytes]
            )
            self.is_like_file = is_equal and self.is_like_file is not False
        self.link.send(
            LayerPassed(
                layer_index=layer.layer_index,
                size_bytes=layer.k.nbytes + layer.v.nbytes,
                digests=block_digests(self.layout, layer.layer_index, layer.k, layer.v),
                seconds=seconds,
            )
        )

    @property
    def layout(self) -> Layout:
        """The layout of the descriptor."""
        return self.material.layout

    def _outcome(
        self, retrieval: Retrieval, verdict: Verdict, generation: Generation | None
    ) -> Retrieved:
        outcome = Retrieved(
            complete=verdict.complete,
            verified=verdict.verified,
            rejected=sum(verdict.rejected.values()),
            missing=verdict.missing_objects,
            duplicate=verdict.duplicate,
            excess=verdict.excess,
            payload_bytes=verdict.payload_bytes,
            first_layer_s=verdict.first_layer_s,
            last_layer_s=verdict.last_layer_s,
            layers=len(retrieval.layers),
            blocks=retrieval.blocks,
            is_like_file=self.is_like_file,
            authenticated=verdict.authenticated,
        )
        engine = self.material.engine
        if engine is not None and generation is not None:
            outcome.text = engine.detokenize(generation.tokens)
            outcome.reused_tokens = generation.reused_tokens
            outcome.time_to_first_token = self.waited + generation.time_to_first_token
            outcome.failure = str(generation.failure) if generation.failure else None
        return outcome


class _Shown:
    """A retrieval that tells the demo about every layer that becomes usable."""

    def __init__(self, retrieval: Retrieval, taking: _Taking) -> None:
        self._retrieval = retrieval
        self._taking = taking
        self._started = asyncio.get_running_loop().time()

    async def __aiter__(self) -> AsyncIterator[Layer]:
        async for layer in self._retrieval:
            self._taking.pass_layer(layer, asyncio.get_running_loop().time() - self._started)
            yield layer

    @property
    def verdict(self) -> Verdict:
        """The outcome."""
        return self._retrieval.verdict


def _listed_layers(manifest: Manifest) -> int:
    """Return how many layers the manifest lists completely."""
    counts = [
        len(groups) for segment in manifest.segments for groups in segment.object_digests.values()
    ]
    return min(counts, default=0)
