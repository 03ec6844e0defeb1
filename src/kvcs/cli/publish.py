"""``kvcs publish``: publish a KV cache from a file."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from kvcs.cli._connection import connect_config, renewing
from kvcs.cli._errors import ExitCode, Incomplete
from kvcs.cli._index import add_to_index
from kvcs.cli._keys import Member, load_member, member_options
from kvcs.cli._options import (
    INPUT_FILE,
    OUTPUT_FILE,
    RELAY_SETTINGS,
    Command,
    RelaySettings,
    connection_options,
    option,
    pass_output,
)
from kvcs.cli._output import Output, format_bytes
from kvcs.cli._ranges import format_layers
from kvcs.cli._runtime import interruption, run, unless
from kvcs.cli._text import format_kid
from kvcs.cli._units import DURATION
from kvcs.client import Hold, Publication, Publisher, PublisherConfig
from kvcs.endpoint.connection import Connection
from kvcs.endpoint.reconnect import PersistentConnection
from kvcs.engines.file import CacheFile, load_cache
from kvcs.errors import ConfigError

__all__ = ("publish",)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    member: Member
    linger: float | None
    exit_when_delivered: bool
    push: bool
    hold: Hold
    index: Path | None
    pad_blocks: int | None


@click.command(cls=Command)
@click.argument("file", type=INPUT_FILE, envvar="KVCS_FILE")
@option("--url", required=True, help="Relay to publish through: moqt://host[:port]/path.")
@member_options
@option(
    "--linger",
    type=DURATION,
    help="Leave so long after the last layer; by default stay until interrupted.",
)
@option(
    "--exit-when-delivered",
    is_flag=True,
    help="Leave when somebody has taken every track to its end; with --push the relay does.",
)
@option("--push", is_flag=True, help="Send PUBLISH, so that the relay takes everything at once.")
@option(
    "--hold",
    type=click.Choice([hold.value for hold in Hold]),
    default=Hold.ALL.value,
    help="What stays available here: everything, each layer until it is delivered, or nothing.",
)
@option(
    "--pad-blocks",
    type=click.IntRange(min=1),
    help="Let it look to relays as long as the next multiple of so many blocks; needs an object "
    "key.",
)
@option(
    "--index",
    type=OUTPUT_FILE,
    help="File to add the publication to, for kvcs fetch --index; made if it is not there.",
)
@connection_options
@pass_output
def publish(output: Output, file: Path, **settings: Any) -> int:
    """Publish the KV cache in FILE, layer by layer.

    Prints the URL of the publication. Its manifest is signed when the key ring has a producer
    key, its Objects are sealed when the ring has an object key.

    \b
    Examples:
      kvcs publish cache.safetensors --url moqt://127.0.0.1:4433/ --ca certificate/ca.pem \\
          --scope-key-file scope.key --exit-when-delivered
    """  # noqa: D301 - click reads the backslash
    relay = RelaySettings(**{name: settings.pop(name) for name in RELAY_SETTINGS})
    member = load_member(settings.pop("keys"), settings.pop("scope_key_file"))
    chosen = _Settings(member=member, hold=Hold(settings.pop("hold")), **settings)
    if chosen.linger is not None and chosen.exit_when_delivered:
        raise ConfigError("--linger", "no --exit-when-delivered beside it")
    return run(_publish(output, file, relay, chosen))


async def _publish(output: Output, file: Path, relay: RelaySettings, settings: _Settings) -> int:
    member = settings.member
    cache = _load(file)
    if cache.note:
        output.note(f"note: {cache.note}")
    config = member.publisher_config(
        hold=settings.hold,
        push=settings.push,
        announce_timeout=relay.timeout,
        pad_segment_blocks=settings.pad_blocks,
    )
    if config.signing_key is None and member.ring.trusted_producers:
        output.note(
            "note: not signed, since the ring has no producer key (kvcs keys new producer): "
            "members that trust producers do not take it"
        )
    publisher = Publisher(scope_key=member.scope_key, descriptor=cache.descriptor, config=config)
    async with (
        interruption() as stopped,
        PersistentConnection(
            relay.url, connect_config(relay), on_connected=_attaching(output, publisher)
        ) as connection,
        renewing(relay, connection.authorize),
    ):
        if not await unless(stopped, _connected(connection, relay.timeout)):
            return ExitCode.INTERRUPTED
        async with publisher.publication(cache.tokens) as publication:
            work = _publish_layers(output, cache, publication, relay.url, settings.index)
            if not await unless(stopped, work):
                return ExitCode.INTERRUPTED
            await _stay(output, publication, stopped, settings)
    return ExitCode.DONE


def _load(file: Path) -> CacheFile:
    """Load a cache with all its layers.

    Raises:
        Incomplete: It has some of them only.
        DataError: The file cannot be used.
    """
    cache = load_cache(file, partial=True)
    layers = cache.descriptor.layers
    if len(cache.layers) < layers:
        raise Incomplete(
            f"{file}: has layers {format_layers(sorted(cache.layers))} of {layers}, and a "
            "publication has all of them",
            ExitCode.DATA,
            "A fetch with --layers writes such a file; fetch again without it.",
        )
    return cache


async def _connected(connection: PersistentConnection, timeout: float) -> None:  # noqa: ASYNC109
    await connection.connection(timeout)


def _attaching(output: Output, publisher: Publisher) -> Callable[[Connection], None]:
    """Return what is done with each session: a person who saw it fail learns that it is back."""
    sessions = 0

    def attach(connection: Connection) -> None:
        nonlocal sessions
        sessions += 1
        if sessions > 1:
            output.note(f"connected again to {connection.peer}")
        publisher.attach(connection)

    return attach


async def _publish_layers(
    output: Output, cache: CacheFile, publication: Publication, url: str, index: Path | None
) -> None:
    segment = await publication.add_segment()
    if index is not None:
        add_to_index(index, publication.name, publication.block_keys)
    namespace = str(publication.name.namespace())
    address = f"{url.partition('#')[0]}#kvcs:"
    key, object_key = publication.config.signing_key, publication.config.object_key
    size_bytes = sum(k.nbytes + v.nbytes for k, v in cache.layers.values())
    output.result(
        {
            "publication": namespace,
            "publication_id": publication.name.publication_id.hex(),
            "url": f"{address}{namespace}",
            "layers": cache.descriptor.layers,
            "blocks": cache.blocks,
            "tokens": len(cache.tokens),
            "bytes": size_bytes,
            "signed_by": None if key is None else format_kid(key.kid),
            "sealed_with_key_id": None if object_key is None else object_key.key_id,
        }
    )
    output.text(f"{address}{publication.name.short_id}")
    with output.progress() as progress:
        task = progress.add_task("publishing", total=size_bytes)
        for layer_index, (k, v) in sorted(cache.layers.items()):
            await segment.publish_layer(layer_index, k, v)
            progress.advance(task, k.nbytes + v.nbytes)
    await publication.complete()
    output.note(
        f"published {cache.descriptor.layers} layers, {cache.blocks} blocks, "
        f"{format_bytes(size_bytes)}, {_protection(publication.config)}"
    )


def _protection(config: PublisherConfig) -> str:
    """Say what is against relays that lie and that read."""
    key, object_key = config.signing_key, config.object_key
    signed = "not signed" if key is None else f"signed by {format_kid(key.kid)}"
    sealed = "not sealed" if object_key is None else f"sealed with key {object_key.key_id}"
    return f"{signed}, {sealed}"


async def _stay(
    output: Output, publication: Publication, stopped: asyncio.Event, settings: _Settings
) -> None:
    """Stay until what was asked for, or a signal; both are a good end."""
    if settings.exit_when_delivered:
        if await unless(stopped, _delivered(publication)):
            output.note("delivered")
            return
    elif settings.linger is not None:
        await unless(stopped, asyncio.sleep(settings.linger))
    else:
        output.note("staying until interrupted")
        await stopped.wait()
    if not await publication.wait_delivered(0.0):
        output.note(
            "nobody has taken all of it: a relay takes what somebody asks for, or everything "
            "with --push; what it has not taken is gone now"
        )


async def _delivered(publication: Publication) -> None:
    await publication.wait_delivered()
