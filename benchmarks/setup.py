"""What the benchmarks set up: a certificate for loopback, ports, and sizes."""

import functools
import socket
import tempfile
from pathlib import Path
from typing import Final

from kvcs.endpoint.certificate import create_dev_certificate

#: Objects of a Group at least, of 64 tokens each: short prompts are not worth a cache.
MIN_BLOCKS: Final = 8


@functools.cache
def certificate() -> dict[str, str]:
    """Make a development certificate for this run."""
    files = create_dev_certificate(Path(_directory().name))
    return {
        "ca": str(files.ca_file),
        "certificate": str(files.certificate_file),
        "key": str(files.private_key_file),
    }


@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    """Make a directory that goes away with this process."""
    return tempfile.TemporaryDirectory(prefix="kvcs-benchmarks-")


def free_port() -> int:
    """Return a UDP port that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def publication_bytes(about: float, per_block: int, seconds: float) -> int:
    """Return the octets of a publication in whole blocks, `MIN_BLOCKS` at least.

    A benchmark of less than a second shows that it runs, and no more; it may have fewer.
    """
    least = max(1, round(MIN_BLOCKS * min(1.0, seconds)))
    return max(least, round(about / per_block)) * per_block
