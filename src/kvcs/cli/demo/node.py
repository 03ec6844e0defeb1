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
)
from kvcs.endpoint.certificate import create_dev_certificate
from kvcs.errors import KvcsError
from kvcs.relay import Relay, RelayConfig, allow_all

__all__ = ("demo_node",)

HOST: Final = "127.0.0.1"


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
    """Serve until the demo closes the line; answer each `Go` with the counters."""
    certificate = create_dev_certificate(Path(job.directory))
    config = RelayConfig(
        host=HOST,
        port=0,
        tls=certificate.tls,
        cache_bytes=job.cache_bytes,
        authorize=allow_all,
    )
    async with Relay(config) as relay:
        link.send(Listening(port=relay.address.port))
        while True:
            await link.go()
            counted = relay.statistics()
            link.send(
                RelayCounters(
                    bytes_in=counted.bytes_in,
                    bytes_out=counted.bytes_out,
                    upstream_subscriptions=counted.upstream_subscriptions,
                )
            )
