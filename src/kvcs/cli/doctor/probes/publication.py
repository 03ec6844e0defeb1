"""The whole of KVCS through the relay: a small KV cache, by publisher and consumer of kvcs."""

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Final

from kvcs.cli.doctor.finding import Grade, Report
from kvcs.cli.doctor.site import DESCRIPTOR, Site
from kvcs.cli.doctor.source import KEPT_SECONDS
from kvcs.client.config import PublisherConfig
from kvcs.client.consumer import Consumer
from kvcs.client.discovery import Candidate
from kvcs.client.publication import Publication
from kvcs.client.publisher import Publisher
from kvcs.client.retrieval import Retrieval
from kvcs.client.segment import PublishedSegment
from kvcs.client.verdict import Verdict
from kvcs.errors import KvcsError, RequestFailed
from kvcs.kv.layout import Layout
from kvcs.kv.naming import Component, PublicationName

__all__ = ("probe_publication",)

_BLOCKS: Final = 4
_TOKENS: Final = tuple(range(_BLOCKS * DESCRIPTOR.block_tokens + 1))
_LAYERS: Final = DESCRIPTOR.layers
_HALF: Final = _LAYERS // 2
# Whole time of one retrieval of 1.5 MiB, recovery included.
_RETRIEVAL_SECONDS: Final = 8.0
_LEAVING_SECONDS: Final = 0.3


async def probe_publication(site: Site, report: Report) -> None:
    """Join a publication half way; take a part of it after the publisher has left."""
    config = PublisherConfig(max_cache_duration=KEPT_SECONDS, drain_timeout=1.0)
    async with site.session() as connection, site.reader() as reader:
        publisher = Publisher(
            connection, scope_key=site.scope_key, descriptor=DESCRIPTOR, config=config
        )
        async with publisher.publication(_TOKENS) as publication:
            segment = await publication.add_segment()
            name = publication.name
            await _publish(segment, range(_HALF))
            consumer = Consumer(reader.connection, scope_key=site.scope_key, descriptor=DESCRIPTOR)
            candidate, how = await _find(consumer, name)
            retrieval = consumer.retrieve(candidate, timeout=_RETRIEVAL_SECONDS)
            async with retrieval:
                right = await _take_live(retrieval, segment, publication)
    _note(report, "publication", retrieval.verdict, right=right, how=how)
    await asyncio.sleep(_LEAVING_SECONDS)
    await _take_late(site, name, report)


async def _publish(segment: PublishedSegment, layers: range) -> None:
    for layer_index in layers:
        k, v = (_tensor(component, layer_index) for component in (Component.K, Component.V))
        await segment.publish_layer(layer_index, k, v)


def _tensor(component: Component, layer_index: int, blocks: int = _BLOCKS) -> bytes:
    """Return keys or values of the first blocks of a layer, every block different."""
    size = Layout(DESCRIPTOR).data_bytes(component, layer_index)
    return b"".join(
        hashlib.shake_128(bytes([component, layer_index, block])).digest(size)
        for block in range(blocks)
    )


async def _find(consumer: Consumer, name: PublicationName) -> tuple[Candidate, str]:
    """Find the publication by its prompt, or else by its name."""
    try:
        found = await consumer.discover(_TOKENS)
    except RequestFailed:
        found = []
    by_prompt = [candidate for candidate in found if candidate.name == name]
    if by_prompt:
        return by_prompt[0], "found by its prompt"
    return consumer.candidate(name, _TOKENS), "by its exact name"


async def _take_live(
    retrieval: Retrieval, segment: PublishedSegment, publication: Publication
) -> bool:
    """Take all layers while the second half is published; tell whether all octets are right."""
    layers = aiter(retrieval)
    first = await anext(layers, None)
    await _publish(segment, range(_HALF, _LAYERS))
    await publication.complete()
    taken = [] if first is None else [first]
    taken += [layer async for layer in layers]
    return all(
        (bytes(layer.k), bytes(layer.v)) == _pair(layer.layer_index, _BLOCKS) for layer in taken
    )


def _pair(layer_index: int, blocks: int) -> tuple[bytes, bytes]:
    return _tensor(Component.K, layer_index, blocks), _tensor(Component.V, layer_index, blocks)


async def _take_late(site: Site, name: PublicationName, report: Report) -> None:
    """Take some layers and the first blocks, with the publisher gone."""
    blocks, layers = _BLOCKS // 2, range(1, _HALF + 1)
    async with site.reader() as reader:
        consumer = Consumer(reader.connection, scope_key=site.scope_key, descriptor=DESCRIPTOR)
        candidate, how = await _find(consumer, name)
        retrieval = consumer.retrieve(
            candidate, layers=layers, blocks=blocks, timeout=_RETRIEVAL_SECONDS
        )
        try:
            async with retrieval:
                taken = [layer async for layer in retrieval]
        except KvcsError as error:
            report.note("kept-publication", Grade.LIMITED, str(error))
            return
    right = all(
        (bytes(layer.k), bytes(layer.v)) == _pair(layer.layer_index, blocks) for layer in taken
    )
    _note(report, "kept-publication", retrieval.verdict, right=right, how=how)


def _note(report: Report, row: str, verdict: Verdict, *, right: bool, how: str) -> None:
    rejected = sum(verdict.rejected.values())
    if not right:
        report.note(row, Grade.BAD, "a verified layer is not what was published")
    elif not verdict.complete:
        text = f"{verdict.missing_objects} Objects missing, {_reasons(verdict)}"
        grade = Grade.BAD if row == "publication" else Grade.LIMITED
        report.note(row, grade, text)
    elif rejected:
        text = f"complete, after {rejected} Objects were rejected"
        report.note(row, Grade.LIMITED, text)
    else:
        report.note(row, Grade.GOOD, f"{verdict.verified} Objects verified, {how}")


def _reasons(verdict: Verdict) -> str:
    reasons: Sequence[str] = sorted({missing.reason.value for missing in verdict.missing})
    return ", ".join(reasons) or str(verdict.error)
