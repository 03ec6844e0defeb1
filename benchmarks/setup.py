"""What the benchmarks set up: a certificate for loopback, and ports."""

import functools
import socket
import tempfile
from pathlib import Path

from kvcs.endpoint.certificate import create_dev_certificate


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
