"""``kvcs demo-node``: one process of the demo, driven by JSON lines on standard input."""

import asyncio
import os
from pathlib import Path
from typing import Final

import click

from kvcs.cli._errors import ExitCode, first_cause
from kvcs.cli._options import configure_logging
from kvcs.cli._runtime import run
from kvcs.cli.demo.link import Link
from kvcs.cli.demo.messages import (
    ConsumerJob,
    Failed,
    Go,
    Listening,
    PublisherJob,
    RelayCounters,
    RelayJob,
    SeenTrack,
)
from kvcs.endpoint.certificate import create_dev_certificate
from kvcs.errors import KvcsError
from kvcs.keyring import load_ring_file
from kvcs.names import TrackNamespace
from kvcs.relay import Authorize, DiskConfig, Relay, RelayConfig, TokenPolicy, allow_all

__all__ = ("demo_node",)

HOST: Final = "127.0.0.1"
_MOST_SHOWN: Final = 64
# Cells of a picture of arrivals that stand for something.
_HELD: Final = frozenset("0123456789dx")


@click.command(hidden=True)
def demo_node() -> int:
    """Run one process of ``kvcs demo``."""
    configure_logging(os.environ.get("KVCS_LOG_LEVEL", "WARNING"))
    return run(_run())


async def _run() -> int:
    async with Link() as link:
        try:
            await _work(link)
        except asyncio.CancelledError:
            if not link.is_closed:
                raise
        except Exception as error:
            cause = first_cause(error)
            if not isinstance(cause, KvcsError):
                raise
            link.send(Failed(reason=str(cause)))
            return ExitCode.FAILED
    return ExitCode.DONE


async def _work(link: Link) -> None:
    job = await link.receive()
    match job:
        case RelayJob():
            await _relay(link, job)
        case PublisherJob():
            from kvcs.cli.demo.publishing import publish

            await publish(link, job)
        case ConsumerJob():
            from kvcs.cli.demo.retrieving import retrieve

            await retrieve(link, job)
        case Go():
            pass


async def _relay(link: Link, job: RelayJob) -> None:
    """Serve until the demo closes the line; answer each `Go` with what it counts and sees."""
    certificate = create_dev_certificate(Path(job.directory))
    config = RelayConfig(
        host=HOST,
        port=0,
        tls=certificate.tls,
        cache_bytes=job.cache_bytes,
        authorize=allow_all if job.keys is None else _policy(Path(job.keys)),
        disk=None if job.disk is None else DiskConfig(directory=Path(job.disk)),
    )
    async with Relay(config) as relay:
        link.send(Listening(port=relay.address.port))
        while True:
            await link.go()
            link.send(_counted(relay))


def _policy(keys: Path) -> Authorize:
    """Return a policy that goes by tokens; without one everything is refused."""
    return TokenPolicy(load_ring_file(keys).token_verifiers)


def _counted(relay: Relay) -> RelayCounters:
    counted = relay.statistics()
    now = asyncio.get_running_loop().time()
    names = [each.namespace for each in relay.reporter.namespaces(_MOST_SHOWN, now=now).shown]
    tracks = [
        SeenTrack(
            name=track.name,
            groups=sum(any(cell in _HELD for cell in column) for column in track.arrival.columns),
            objects_per_group=track.arrival.objects,
            size_bytes=track.size_bytes,
        )
        for name in names
        for track in relay.reporter.tracks(TrackNamespace.parse(name), _MOST_SHOWN)
    ]
    return RelayCounters(
        bytes_in=counted.bytes_in,
        bytes_out=counted.bytes_out,
        upstream_subscriptions=counted.upstream_subscriptions,
        objects_on_disk=counted.disk_objects_written,
        bytes_on_disk=counted.disk_bytes_written,
        objects_dropped=sum(counted.disk_objects_dropped.values()),
        bytes_waiting=counted.disk_queued_bytes,
        sessions=counted.sessions_opened,
        namespaces=names,
        tracks=sorted(tracks, key=lambda track: track.name),
    )
