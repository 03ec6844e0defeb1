"""``kvcs fetch``: take a KV cache, or a part of one, into a file."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import click
from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn

from kvcs.cli._connection import connect_config
from kvcs.cli._errors import ExitCode, Incomplete, NotFound, Unwritable, exit_code
from kvcs.cli._options import (
    INPUT_FILE,
    OUTPUT_FILE,
    Command,
    RelaySettings,
    connection_options,
    option,
    pass_output,
    url_argument,
)
from kvcs.cli._output import Output, format_bytes, rounded
from kvcs.cli._publication import parse_fragment, read_descriptor, read_manifest, read_tokens
from kvcs.cli._ranges import LAYERS, format_layers
from kvcs.cli._runtime import run
from kvcs.cli.scope import load_scope_key, scope_key_option
from kvcs.client import (
    Candidate,
    Consumer,
    Layer,
    MissingRange,
    MissingReason,
    Retrieval,
    Verdict,
)
from kvcs.endpoint.connect import connect
from kvcs.engines.file import CacheFile, LayerTensors, load_cache, save_cache
from kvcs.errors import ConfigError
from kvcs.kv.descriptor import Descriptor
from kvcs.kv.layout import Layout
from kvcs.kv.naming import Component, PublicationName

__all__ = ("fetch",)

_REASON_CODES: Final = {
    MissingReason.DISCARDED: ExitCode.DATA,
    MissingReason.REJECTED: ExitCode.DATA,
    MissingReason.REFUSED: ExitCode.REFUSED,
    MissingReason.NON_EXISTENT: ExitCode.NOT_FOUND,
    MissingReason.NOT_PUBLISHED: ExitCode.NOT_FOUND,
    MissingReason.UNKNOWN: ExitCode.NOT_FOUND,
    MissingReason.TIMED_OUT: ExitCode.TIMEOUT,
    MissingReason.RESET: ExitCode.UNREACHABLE,
    MissingReason.CONNECTION_LOST: ExitCode.UNREACHABLE,
    MissingReason.STALLED: ExitCode.TIMEOUT,
    MissingReason.DEADLINE: ExitCode.TIMEOUT,
    MissingReason.STOPPED: ExitCode.FAILED,
}
_GRAVITY: Final = tuple(MissingReason)
_COLUMNS: Final = (TextColumn("fetching"), BarColumn(), DownloadColumn(), TransferSpeedColumn())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What to fetch.

    Attributes:
        scope_key_file: Key of the scope.
        tokens: The prompt; empty where an exact publication is vouched for.
        descriptor: What the cache must be computed with, or None to take the publication's.
        layers: Wanted layers, or None for all.
        blocks: The first so many blocks, or None for all.
        destination: Where to write it, or None.
    """

    scope_key_file: Path
    tokens: Sequence[int]
    descriptor: Descriptor | None
    layers: Sequence[int] | None
    blocks: int | None
    destination: Path | None


@click.command(cls=Command)
@url_argument
@scope_key_option()
@option("--like", type=INPUT_FILE, help="Cache file with the tokens and the descriptor to ask for.")
@option("--tokens", type=INPUT_FILE, help="JSON array with the tokens of the prompt.")
@option("--compat", type=INPUT_FILE, help="JSON object with the descriptor (kvcs inspect --json).")
@option("--layers", type=LAYERS, help="Layers, inclusive, such as 0-14 or 3; by default all.")
@option("--blocks", type=click.IntRange(min=1), help="Only the first so many blocks.")
@option(
    "-o",
    "--output",
    "destination",
    type=OUTPUT_FILE,
    help="File to write; appears when everything is there and verified. Without it, "
    "everything is verified and dropped. Needs the tokens, also of an exact publication.",
)
@connection_options
@pass_output
def fetch(output: Output, **settings: Any) -> None:
    """Take the KV cache of a prompt, or of an exact publication, from URL.

    The prompt is given with --like, or with --tokens and --compat. An exact publication is named
    in the URL: moqt://host[:port]/path#kvcs:NAMESPACE, as kvcs publish prints it.

    \b
    Examples:
      kvcs fetch moqt://127.0.0.1:4433/ --like cache.safetensors --ca certificate/ca.pem \\
          --scope-key-file scope.key --layers 0-14 --blocks 2 -o part.safetensors
    """  # noqa: D301 - click reads the backslash
    relay = RelaySettings(
        **{name: settings.pop(name) for name in ("url", "ca", "insecure_loopback", "timeout")}
    )
    name = parse_fragment(relay.url)
    run(_fetch(output, relay, name, _wanted(settings, name)))


def _wanted(settings: dict[str, Any], name: PublicationName | None) -> _Wanted:
    like, tokens, compat = (settings.pop(key) for key in ("like", "tokens", "compat"))
    if like is not None and (tokens is not None or compat is not None):
        raise ConfigError("--like", "no --tokens and --compat beside it")
    if like is not None:
        cache = load_cache(like, partial=True)
        asked: Sequence[int] = cache.tokens
        descriptor: Descriptor | None = cache.descriptor
    else:
        asked = () if tokens is None else read_tokens(tokens)
        descriptor = None if compat is None else read_descriptor(compat)
    if name is None and not (asked and descriptor):
        raise ConfigError(
            "what to fetch", "--like FILE, --tokens FILE with --compat FILE, or #kvcs: in the URL"
        )
    if settings["destination"] is not None:
        _check_destination(settings["destination"], asked)
    return _Wanted(tokens=asked, descriptor=descriptor, **settings)


def _check_destination(destination: Path, tokens: Sequence[int]) -> None:
    """Refuse what could not be written, before anything is fetched for it."""
    if not tokens:
        expected = "--tokens or --like beside it: a cache file holds tokens, a publication does not"
        raise ConfigError("--output", expected)
    # The slash at the end asks for a folder.
    if not os.access(f"{destination.parent}/", os.W_OK | os.X_OK):
        expected = "a file in a folder that exists and can be written"
        raise Unwritable("--output", expected, str(destination))


async def _fetch(
    output: Output, relay: RelaySettings, name: PublicationName | None, wanted: _Wanted
) -> None:
    scope_key = load_scope_key(wanted.scope_key_file)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + relay.timeout
    async with connect(relay.url, connect_config(relay)) as connection:
        if name is not None and wanted.tokens and wanted.descriptor is None:
            async with asyncio.timeout_at(deadline):
                manifest = await read_manifest(connection, name, scope_key)
            wanted = replace(wanted, descriptor=manifest.compat)
        consumer = Consumer(connection, scope_key=scope_key, descriptor=wanted.descriptor)
        candidates = await _candidates(consumer, name, wanted, deadline - loop.time())
        for candidate in candidates:
            taking = _Taking(output, wanted, candidate)
            verdict = await taking.run(consumer, timeout=deadline - loop.time())
            if verdict.complete or candidate is candidates[-1]:
                taking.finish(verdict)
                break


async def _candidates(
    consumer: Consumer,
    name: PublicationName | None,
    wanted: _Wanted,
    timeout: float,  # noqa: ASYNC109 - handed on
) -> Sequence[Candidate]:
    if name is not None:
        return [consumer.candidate(name, wanted.tokens)]
    found = await consumer.discover(wanted.tokens, timeout=timeout)
    if not found:
        raise NotFound("no publication of these tokens is known there")
    return found


@dataclass(slots=True)
class _Taking:
    """One attempt with one publication."""

    output: Output
    wanted: _Wanted
    candidate: Candidate
    layers: dict[int, Layer] = field(default_factory=dict[int, Layer])
    retrieval: Retrieval | None = None

    async def run(self, consumer: Consumer, *, timeout: float) -> Verdict:  # noqa: ASYNC109
        """Take the layers; show how they come in."""
        retrieval = self.retrieval = consumer.retrieve(
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
        if not verdict.complete:
            raise _incomplete(verdict)

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
                "complete": verdict.complete,
                "layers": format_layers(retrieval.layers),
                "blocks": retrieval.blocks,
                "verified_prefix_blocks": verdict.verified_prefix_blocks,
                "missing": [_missing(missing) for missing in verdict.missing],
                "objects_verified": verdict.verified,
                "objects_rejected": sum(verdict.rejected.values()),
                "objects_missing": verdict.missing_objects,
                "objects_duplicate": verdict.duplicate,
                "objects_excess": verdict.excess,
                "bytes": verdict.verified_bytes,
                "first_layer_s": rounded(verdict.first_layer_s),
                "last_layer_s": rounded(verdict.last_layer_s),
                "elapsed_s": rounded(verdict.elapsed_s),
                "output": None if destination is None else str(destination),
            }
        )
        if verdict.complete:
            where = f", written to {destination}" if destination else ""
            self.output.text(
                f"layers {format_layers(retrieval.layers)}, {retrieval.blocks} blocks, "
                f"{format_bytes(verdict.verified_bytes)} verified in {verdict.elapsed_s:.3f} s"
                f"{where}"
            )


def _missing(missing: MissingRange) -> dict[str, Any]:
    return {
        "segment": missing.segment,
        "layer": missing.layer,
        "first": missing.first,
        "end": missing.end,
        "reason": missing.reason.value,
    }


def _incomplete(verdict: Verdict) -> Incomplete:
    """Say what lacks, with the exit code of the gravest reason."""
    reasons = sorted({missing.reason for missing in verdict.missing}, key=_GRAVITY.index)
    if verdict.error is not None:
        cause, code = str(verdict.error), exit_code(verdict.error)
    elif reasons:
        cause, code = ", ".join(reasons), _REASON_CODES[reasons[0]]
    else:
        # Everything arrived, but no manifest confirmed it.
        cause, code = "the manifest does not confirm it", ExitCode.DATA
    return Incomplete(
        f"{verdict.missing_objects} of the Objects are missing ({cause}); the first "
        f"{verdict.verified_prefix_blocks} blocks are there in all layers",
        code,
        "Nothing was written; try again, or ask for what is there (--blocks, --layers).",
    )
