"""One attempt to take a publication: its layers into memory, then into a file."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn

from kvcs.cli._keys import Member
from kvcs.cli._output import Output, format_bytes, rounded
from kvcs.cli._ranges import format_layers
from kvcs.cli._text import format_kid
from kvcs.cli._verdict import describe_missing, incomplete
from kvcs.client import Candidate, Consumer, Layer, Retrieval, Verdict
from kvcs.engines.file import CacheFile, LayerTensors, save_cache
from kvcs.errors import DataError, RequestRejected, RequestTimedOut
from kvcs.kv.descriptor import Descriptor
from kvcs.kv.layout import Layout
from kvcs.kv.naming import Component

__all__ = ("Taking", "Wanted", "take_first")

_COLUMNS: Final = (TextColumn("fetching"), BarColumn(), DownloadColumn(), TransferSpeedColumn())


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to fetch.

    Attributes:
        member: Who takes it: the key of the scope, and the key ring.
        tokens: The prompt; empty where an exact publication is vouched for.
        descriptor: What the cache must be computed with, or None to take the publication's.
        layers: Wanted layers, or None for all.
        blocks: The first so many blocks, or None for all.
        wait: Wait until the publication appears.
        destination: Where to write it, or None.
        index: File with an index of publications, or None to ask relays.
    """

    member: Member
    tokens: Sequence[int]
    descriptor: Descriptor | None
    layers: Sequence[int] | None
    blocks: int | None
    wait: bool
    destination: Path | None
    index: Path | None = None


@dataclass(slots=True)
class Taking:
    """One attempt with one publication."""

    output: Output
    wanted: Wanted
    consumer: Consumer
    candidate: Candidate
    layers: dict[int, Layer] = field(default_factory=dict[int, Layer])
    retrieval: Retrieval | None = None

    async def run(self, *, timeout: float) -> Verdict:  # noqa: ASYNC109
        """Take the layers; show how they come in."""
        retrieval = self.retrieval = self.consumer.retrieve(
            self.candidate, layers=self.wanted.layers, blocks=self.wanted.blocks, timeout=timeout
        )
        async with retrieval:
            with self.output.progress(*_COLUMNS) as progress:
                layout = Layout(retrieval.manifest.compat)
                total = retrieval.blocks * sum(
                    layout.data_bytes(Component.KV, layer) for layer in retrieval.layers
                )
                task = progress.add_task("fetching", total=total)
                async for layer in retrieval:
                    self.layers[layer.layer_index] = layer
                    progress.advance(task, layer.k.nbytes + layer.v.nbytes)
            return await retrieval.finished()

    def finish(self, verdict: Verdict) -> None:
        """Write the file if everything is there, and report.

        Raises:
            Incomplete: Something is missing.
            DataError: The file cannot be written.
        """
        if verdict.complete and self.wanted.destination is not None:
            self._save(self.wanted.destination)
        self._report(verdict)
        self._note_partial(verdict)
        if not verdict.complete:
            raise incomplete(verdict)

    def _note_partial(self, verdict: Verdict) -> None:
        """Say what a file with some of the layers is good for."""
        retrieval = self.retrieval
        assert retrieval is not None
        layers, there = retrieval.manifest.layers, len(retrieval.layers)
        if verdict.complete and self.wanted.destination is not None and there < layers:
            self.output.note(
                f"note: the file has {there} of {layers} layers: kvcs inspect and --like take it, "
                "kvcs publish needs all of them"
            )

    def _save(self, destination: Path) -> None:
        retrieval = self.retrieval
        assert retrieval is not None
        descriptor = retrieval.manifest.compat
        tokens = self.wanted.tokens[: retrieval.blocks * descriptor.block_tokens]
        layers = {
            layer_index: LayerTensors(layer.k, layer.v)
            for layer_index, layer in self.layers.items()
        }
        save_cache(
            destination, CacheFile(descriptor=descriptor, tokens=tuple(tokens), layers=layers)
        )

    def _report(self, verdict: Verdict) -> None:
        retrieval = self.retrieval
        assert retrieval is not None
        destination = self.wanted.destination if verdict.complete else None
        self.output.result(
            {
                "publication": str(self.candidate.name.namespace()),
                "publication_id": self.candidate.name.publication_id.hex(),
                "complete": verdict.complete,
                "signed_by": format_kid(verdict.signed_by),
                "sealed": verdict.sealed,
                "layers": format_layers(retrieval.layers),
                "blocks": retrieval.blocks,
                "verified_prefix_blocks": verdict.verified_prefix_blocks,
                "missing": [describe_missing(missing) for missing in verdict.missing],
                "objects_verified": verdict.verified,
                "objects_rejected": sum(verdict.rejected.values()),
                "objects_missing": verdict.missing_objects,
                "objects_duplicate": verdict.duplicate,
                "objects_excess": verdict.excess,
                "refused": dict(self.consumer.refused),
                "bytes": verdict.verified_bytes,
                "first_layer_s": rounded(verdict.first_layer_s),
                "last_layer_s": rounded(verdict.last_layer_s),
                "elapsed_s": rounded(verdict.elapsed_s),
                "output": None if destination is None else str(destination),
            }
        )
        _note_refused(self.output, self.consumer)
        if verdict.complete:
            where = f", written to {destination}" if destination else ""
            self.output.text(
                f"{self.candidate.name.short_id}: layers {format_layers(retrieval.layers)}, "
                f"{retrieval.blocks} blocks, {format_bytes(verdict.verified_bytes)} verified in "
                f"{verdict.elapsed_s:.3f} s, {_protection(verdict)}{where}"
            )


def _protection(verdict: Verdict) -> str:
    """Say what was against relays that lie and that read."""
    signer = format_kid(verdict.signed_by)
    signed = f"signed by {signer}" if signer else "no signature asked for"
    return f"{signed}, {'sealed' if verdict.sealed else 'not sealed'}"


def _note_refused(output: Output, consumer: Consumer, *, beyond: int = 0) -> None:
    """Tell people what the result has for programs, where it is more than `beyond`."""
    if consumer.refused.total() > beyond and not output.as_json:
        reasons = ", ".join(f"{number} {reason}" for reason, number in consumer.refused.items())
        output.note(f"note: publications refused at their manifest: {reasons}")


async def take_first(
    output: Output,
    wanted: Wanted,
    consumer: Consumer,
    candidates: Sequence[Candidate],
    *,
    deadline: float,
) -> None:
    """Take the first publication that gives everything, and finish with it.

    Whoever may announce can announce what nobody believes, and for more of the prompt than
    everybody else. So one that is refused, or whose manifest does not come in time, gives way to
    the next one, and those of one prefix to those of a shorter one.

    Args:
        output: Where it is told.
        wanted: What to take.
        consumer: Takes it.
        candidates: Publications, best first; at least one.
        deadline: Time of the event loop at which everything ends.

    Raises:
        Incomplete: Of those that could be used none gave everything.
        KvcsError: None could be used: why not the first one; or the session ended.
    """
    refused: list[DataError | RequestRejected | RequestTimedOut] = []
    clock = asyncio.get_running_loop().time
    while candidates:
        lacking: tuple[Taking, Verdict] | None = None
        for candidate in candidates:
            taking = Taking(output, wanted, consumer, candidate)
            try:
                verdict = await taking.run(timeout=deadline - clock())
            except (DataError, RequestRejected, RequestTimedOut) as error:
                refused.append(error)
                if clock() >= deadline:
                    _report_refused(output, consumer)
                    raise
                continue
            if verdict.complete:
                taking.finish(verdict)
                return
            lacking = taking, verdict
        if lacking is not None:
            lacking[0].finish(lacking[1])
        candidates = await _shorter(consumer, wanted, candidates[-1], deadline - clock())
        if candidates:
            output.note(f"note: longer publications are not used: {refused[0]}")
    _report_refused(output, consumer)
    raise refused[0]


def _report_refused(output: Output, consumer: Consumer) -> None:
    """Tell which publications were refused where none is used."""
    # One is what the error is about.
    _note_refused(output, consumer, beyond=1)
    if consumer.refused:
        output.result({"complete": False, "refused": dict(consumer.refused)})


async def _shorter(
    consumer: Consumer, wanted: Wanted, candidate: Candidate, seconds: float
) -> Sequence[Candidate]:
    """Return publications of fewer blocks of the prompt; none where an exact one was named."""
    if candidate.blocks < 2:
        return ()
    return await consumer.discover(wanted.tokens, blocks=candidate.blocks - 1, timeout=seconds)
