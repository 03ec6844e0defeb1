"""``kvcs inspect``: look into a cache file, or at what a relay knows."""

import asyncio
from pathlib import Path
from typing import Any, Final

import click

from kvcs.cli._connection import connect_config
from kvcs.cli._errors import sentence
from kvcs.cli._keys import Member, find_scope_key, load_member, member_options
from kvcs.cli._options import (
    INPUT_FILE,
    Command,
    RelaySettings,
    connection_options,
    option,
    pass_output,
)
from kvcs.cli._output import Output, format_bytes
from kvcs.cli._publication import (
    KnownPublication,
    PublicationReference,
    parse_fragment,
    read_manifest,
)
from kvcs.cli._ranges import format_layers
from kvcs.cli._runtime import run
from kvcs.cli._search import Announced, NotListed, find, short_ids
from kvcs.cli._text import format_kid
from kvcs.cli._units import DURATION
from kvcs.endpoint.connect import connect
from kvcs.endpoint.connection import Connection
from kvcs.engines.file import CacheFile, load_cache
from kvcs.errors import KvcsError
from kvcs.kv.identity import KVSP_PROVISIONAL, ScopeKey
from kvcs.kv.naming import PublicationName

__all__ = ("inspect",)

_SCHEME: Final = "moqt:"


def _convert_target(ctx: click.Context, parameter: click.Parameter, value: str) -> str | Path:
    """Return a URL as it is, and anything else as the file that it must be."""
    if value.startswith(_SCHEME):
        return value
    return Path(INPUT_FILE.convert(value, parameter, ctx))


@click.command(cls=Command)
@click.argument("target", metavar="FILE|URL", callback=_convert_target)
@member_options
@option(
    "--discovery-wait",
    type=DURATION,
    default="500ms",
    help="How long to listen for publications: the protocol has no end of list.",
)
@connection_options
@pass_output
def inspect(output: Output, target: str | Path, **settings: Any) -> None:
    """Show a cache file, or the publications of a scope at a relay.

    A file is shown with its descriptor, tokens and blocks, and with its identifiers when the
    scope key is given. A URL shows the publications of the scope that the relay knows, or the
    one that its fragment names, with their manifests. The scope key itself is never shown.

    \b
    Examples:
      kvcs inspect cache.safetensors --scope-key-file scope.key
      kvcs inspect moqt://127.0.0.1:4433/ --ca certificate/ca.pem \\
          --scope-key-file scope.key --json
    """  # noqa: D301 - click reads the backslash
    keys, scope_key_file = settings.pop("keys"), settings.pop("scope_key_file")
    if isinstance(target, Path):
        _show_file(output, target, find_scope_key(keys, scope_key_file))
        return
    member = load_member(keys, scope_key_file)
    wait = settings.pop("discovery_wait")
    relay = RelaySettings(url=target, **settings)
    found = run(_look(relay, parse_fragment(target), member, wait))
    _show_publications(output, found)


# Files.


def _show_file(output: Output, path: Path, scope_key: ScopeKey | None) -> None:
    cache = load_cache(path, partial=True)
    described: dict[str, Any] = {
        "file": str(path),
        "descriptor": cache.descriptor.to_json(),
        "tokens": list(cache.tokens),
        "ignored_tokens": cache.ignored_tokens,
        "blocks": cache.blocks,
        "layers": format_layers(sorted(cache.layers)),
        "bytes": sum(k.nbytes + v.nbytes for k, v in cache.layers.values()),
        "ids": None if scope_key is None else _ids(cache, scope_key),
    }
    output.result(described)
    if not output.as_json:
        _print_file(output, described, cache)


def _ids(cache: CacheFile, scope_key: ScopeKey) -> dict[str, Any]:
    profile = KVSP_PROVISIONAL
    compatibility_id = profile.compatibility_id(scope_key, cache.descriptor)
    keys = profile.block_keys(
        scope_key, compatibility_id, cache.tokens, block_tokens=cache.descriptor.block_tokens
    )
    return {
        "profile": profile.name,
        "scope_id": profile.scope_id(scope_key).hex(),
        "compatibility_id": compatibility_id.hex(),
        "block_keys": [key.hex() for key in keys],
    }


def _blocks(cache: CacheFile) -> str:
    block_tokens = cache.descriptor.block_tokens
    tokens = cache.blocks * block_tokens
    return f"{cache.blocks} blocks of {block_tokens} tokens ({tokens} tokens)"


def _print_file(output: Output, described: dict[str, Any], cache: CacheFile) -> None:
    descriptor = cache.descriptor
    lines = [
        f"file             {described['file']}",
        f"layers           {described['layers']} of {descriptor.layers}",
        f"blocks           {_blocks(cache)}",
        f"size             {format_bytes(described['bytes'])} of keys and values",
        "descriptor",
    ]
    lines += [f"  {name:<16} {value}" for name, value in sorted(descriptor.to_json().items())]
    if cache.note:
        lines.append(f"note             {cache.note}")
    if described["ids"] is not None:
        ids = described["ids"]
        lines += [
            f"Scope ID         {ids['scope_id']}",
            f"Compatibility ID {ids['compatibility_id']}",
            *(f"Block Key {index:<6} {key}" for index, key in enumerate(ids["block_keys"])),
        ]
    output.text("\n".join(lines))


# Relays.


async def _look(
    relay: RelaySettings,
    reference: PublicationReference | None,
    member: Member,
    wait: float,
) -> list[tuple[PublicationName, KnownPublication | KvcsError]]:
    """Return the publications and their manifests, or why there is none.

    Raises:
        NotListed: Nothing is known there.
        KvcsError: The one that was named cannot be had.
    """
    deadline = asyncio.get_running_loop().time() + relay.timeout
    async with (
        asyncio.timeout_at(deadline),
        connect(relay.url, connect_config(relay)) as connection,
    ):
        if reference is not None:
            name = await find(connection, member.scope_key, reference, deadline=deadline)
            return [(name, await read_manifest(connection, name, member))]
        async with Announced(connection, member.scope_key, deadline=deadline) as announced:
            await asyncio.sleep(wait)
            names = announced.matching()
        if not names:
            raise NotListed("no publication of this scope")
        return [(name, await _manifest(connection, name, member)) for name in names]


async def _manifest(
    connection: Connection, name: PublicationName, member: Member
) -> KnownPublication | KvcsError:
    try:
        return await read_manifest(connection, name, member)
    except KvcsError as error:
        if connection.closed:
            raise
        return error


def _show_publications(
    output: Output, found: list[tuple[PublicationName, KnownPublication | KvcsError]]
) -> None:
    described = [_describe(name, known) for name, known in found]
    output.result({"publications": described})
    shown = short_ids([name for name, _ in found])
    for publication, (name, _) in zip(described, found, strict=True):
        output.text(_format(publication, shown[name]))


def _describe(name: PublicationName, known: KnownPublication | KvcsError) -> dict[str, Any]:
    described: dict[str, Any] = {
        "namespace": str(name.namespace()),
        "anchor_key": name.anchor_key.hex(),
        "publication_id": name.publication_id.hex(),
    }
    if isinstance(known, KvcsError):
        return {**described, "error": sentence(known)}
    manifest = known.manifest
    return {
        **described,
        "signed_by": format_kid(known.signed_by),
        "sealed": known.sealed,
        "descriptor": manifest.compat.to_json(),
        "complete": manifest.complete,
        "deterministic": manifest.deterministic,
        "layers": manifest.layers,
        "blocks": manifest.blocks,
        "segments": [
            {
                "segment": segment.segment,
                "first_block": segment.first_block,
                "blocks": segment.blocks,
                "complete": segment.complete,
                "tracks": list(segment.tracks),
                "listed_layers": min(map(len, segment.object_digests.values()), default=0),
            }
            for segment in manifest.segments
        ],
    }


def _format(publication: dict[str, Any], short_id: str) -> str:
    lines = [f"publication {short_id}"]
    if "error" in publication:
        return f"{lines[0]}\n  no manifest: {publication['error']}"
    state = "complete" if publication["complete"] else "in production"
    if publication["signed_by"]:
        state += f", signed by {publication['signed_by']}"
    if publication["sealed"]:
        state += ", sealed"
    lines.append(
        f"  {state}, {publication['layers']} layers, {publication['blocks']} blocks of "
        f"{publication['descriptor']['block_tokens']} tokens, {publication['descriptor']['dtype']}"
    )
    lines += [
        f"  segment {segment['segment']}: blocks {segment['first_block']} to "
        f"{segment['first_block'] + segment['blocks'] - 1}, {segment['listed_layers']} layers "
        f"listed, tracks {', '.join(segment['tracks'])}"
        for segment in publication["segments"]
    ]
    return "\n".join(lines)
