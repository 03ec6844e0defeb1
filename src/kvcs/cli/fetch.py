"""``kvcs fetch``: take a KV cache, or a part of one, into a file."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from kvcs.cli._connection import connect_config, renewing
from kvcs.cli._errors import NotFound, Unwritable
from kvcs.cli._index import FileIndex
from kvcs.cli._keys import load_member, member_options
from kvcs.cli._options import (
    INPUT_FILE,
    OUTPUT_FILE,
    RELAY_SETTINGS,
    Command,
    RelaySettings,
    connection_options,
    option,
    pass_output,
    url_argument,
)
from kvcs.cli._output import Output
from kvcs.cli._publication import (
    PublicationReference,
    parse_fragment,
    read_descriptor,
    read_manifest,
    read_tokens,
)
from kvcs.cli._ranges import LAYERS
from kvcs.cli._runtime import run
from kvcs.cli._search import DISCOVERY_WAIT, NotAppeared, find
from kvcs.cli._taking import Wanted, take_first
from kvcs.client import (
    Candidate,
    Consumer,
)
from kvcs.endpoint.connect import connect
from kvcs.endpoint.connection import Connection
from kvcs.engines.file import load_cache
from kvcs.errors import ConfigError
from kvcs.kv.descriptor import Descriptor
from kvcs.kv.naming import PublicationName
from kvcs.replaceable import replaceable

__all__ = ("fetch",)


@click.command(cls=Command)
@url_argument
@member_options
@option(
    "--allow-unsigned",
    is_flag=True,
    help="Take what anybody published, signed or not, although the key ring says whom to trust.",
)
@option("--like", type=INPUT_FILE, help="Cache file with the tokens and the descriptor to ask for.")
@option("--tokens", type=INPUT_FILE, help="JSON array with the tokens of the prompt.")
@option("--compat", type=INPUT_FILE, help="JSON object with the descriptor (kvcs inspect --json).")
@option("--layers", type=LAYERS, help="Layers, inclusive, such as 0-14 or 3; by default all.")
@option("--blocks", type=click.IntRange(min=1), help="Only the first so many blocks.")
@option(
    "--index",
    type=INPUT_FILE,
    help="Index of publications (kvcs publish --index): exact ones are asked for, and no relay "
    "learns which prefixes were looked for.",
)
@option(
    "--wait",
    is_flag=True,
    help="Wait until the publication appears, at most --timeout; without it, what is not announced "
    "within half a second is not there.",
)
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
    in the URL: moqt://host[:port]/path#kvcs:ID, as kvcs publish prints it; ID is the first 8 or
    more digits of its Publication ID, or its whole Track Namespace. --timeout is for everything:
    connecting, finding (with --wait as long as it takes) and taking, also while it is still being
    computed.

    When the key ring has producers to trust, only what one of them signed is taken; when it has
    object keys, only what is sealed with one of them.

    \b
    Examples:
      kvcs fetch moqt://127.0.0.1:4433/ --like cache.safetensors --ca certificate/ca.pem \\
          --scope-key-file scope.key --layers 0-14 --blocks 2 -o part.safetensors
    """  # noqa: D301 - click reads the backslash
    relay = RelaySettings(**{name: settings.pop(name) for name in RELAY_SETTINGS})
    reference = parse_fragment(relay.url)
    member = load_member(settings.pop("keys"), settings.pop("scope_key_file"))
    settings["member"] = replace(member, allow_unsigned=settings.pop("allow_unsigned"))
    run(_fetch(output, relay, reference, _wanted(settings, reference)))


def _wanted(settings: dict[str, Any], reference: PublicationReference | None) -> Wanted:
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
    if reference is None and not (asked and descriptor):
        raise ConfigError(
            "what to fetch", "--like FILE, --tokens FILE with --compat FILE, or #kvcs: in the URL"
        )
    if settings["destination"] is not None:
        _check_destination(settings["destination"], asked)
    wanted = Wanted(tokens=asked, descriptor=descriptor, **settings)
    if asked and descriptor:
        _check_blocks(wanted, len(asked) // descriptor.block_tokens, "the prompt")
    return wanted


def _check_blocks(wanted: Wanted, blocks: int, where: str) -> None:
    """Refuse to ask for more blocks than there can be.

    Raises:
        ConfigError: `where` has fewer, or none at all.
    """
    if not blocks:
        raise ConfigError(where, "the tokens of at least one block")
    if wanted.blocks is not None and wanted.blocks > blocks:
        expected = f"at most {blocks}, the whole blocks of {where}"
        raise ConfigError("--blocks", expected, str(wanted.blocks))


def _check_destination(destination: Path, tokens: Sequence[int]) -> None:
    """Refuse what could not be written, before anything is fetched for it."""
    if not tokens:
        expected = "--tokens or --like beside it: a cache file holds tokens, a publication does not"
        raise ConfigError("--output", expected)
    try:
        folder = replaceable(destination).parent
    except OSError as error:
        got = f"{destination}: {error.strerror}"
        raise ConfigError("--output", "a file, or a name that is free", got) from error
    # The slash at the end asks for a folder.
    if not os.access(f"{folder}/", os.W_OK | os.X_OK):
        expected = "a file in a folder that exists and can be written"
        raise Unwritable("--output", expected, str(destination))


async def _fetch(
    output: Output, relay: RelaySettings, reference: PublicationReference | None, wanted: Wanted
) -> None:
    scope_key = wanted.member.scope_key
    loop = asyncio.get_running_loop()
    deadline = loop.time() + relay.timeout
    async with (
        connect(relay.url, connect_config(relay)) as connection,
        renewing(relay, connection.authorize),
    ):
        if wanted.wait:
            output.note("waiting until the publication appears")
        name = None
        if reference is not None:
            name = await find(connection, scope_key, reference, deadline=deadline, wait=wanted.wait)
            async with asyncio.timeout_at(deadline):
                wanted = await _completed(connection, name, wanted)
        consumer = Consumer(
            connection,
            scope_key=scope_key,
            descriptor=wanted.descriptor,
            config=wanted.member.consumer_config(),
            index=None if wanted.index is None else FileIndex(wanted.index),
        )
        candidates = await _candidates(consumer, name, wanted, deadline)
        await take_first(output, wanted, consumer, candidates, deadline=deadline)


async def _completed(connection: Connection, name: PublicationName, wanted: Wanted) -> Wanted:
    """Take what is not told about an exact publication from its manifest.

    Raises:
        ConfigError: It has fewer blocks than are wanted.
        KvcsError: There is no such publication, or the session ended.
    """
    is_told = wanted.descriptor is not None or not wanted.tokens
    if is_told and wanted.blocks is None:
        return wanted
    manifest = (await read_manifest(connection, name, wanted.member)).manifest
    if manifest.complete:
        _check_blocks(wanted, manifest.blocks, "the publication")
    return replace(wanted, descriptor=wanted.descriptor or manifest.compat)


async def _candidates(
    consumer: Consumer, name: PublicationName | None, wanted: Wanted, deadline: float
) -> Sequence[Candidate]:
    """Return the publications to try, best first.

    Raises:
        NotFound: None is announced, and nobody wants to wait.
        NotAppeared: None was announced in time.
        KvcsError: The relay refused to tell, or the session ended.
    """
    if name is not None:
        return [consumer.candidate(name, wanted.tokens)]
    loop = asyncio.get_running_loop()
    patience = deadline - loop.time()
    # An index answers at once: waiting for the publication means to look again.
    pause = 0.0 if wanted.index is None else DISCOVERY_WAIT
    while not (found := await consumer.discover(wanted.tokens, timeout=deadline - loop.time())):
        if not wanted.wait:
            raise NotFound("no publication of these tokens is known there")
        if loop.time() >= deadline:
            raise NotAppeared("a publication of these tokens", patience)
        await asyncio.sleep(pause)
    return found
