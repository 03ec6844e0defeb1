"""Where processes of tests meet: ports of loopback, and network namespaces joined by cables."""

import os
import shutil
import socket
import subprocess
import sys
from contextlib import contextmanager

from tests.integration.children import result_of

__all__ = ("Site", "free_port", "missing_rights", "star", "status_in")

_ASK = (
    "import urllib.request;"
    "print(urllib.request.urlopen('http://127.0.0.1:4434/status.json').read().decode())"
)


def free_port():
    """Return a UDP port of loopback, for what takes no port 0 or comes back to the same one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Site:
    """One network namespace.

    Attributes:
        name: Its name.
        address: Its address on the cable to the hub; of the hub, one for each cable.
    """

    def __init__(self, name, address):
        self.name = name
        self.address = address

    def command(self, *words):
        """Return a command that runs there."""
        return ["ip", "netns", "exec", self.name, *map(str, words)]


def status_in(site):
    """Return what the relay of a site says of itself; a small process looks often."""
    return result_of(site.command(sys.executable, "-I", "-c", _ASK))


def missing_rights():
    """Return why there can be no namespaces here, or an empty text."""
    if shutil.which("ip") is None:
        return "no ip command"
    probe = f"kvcs-probe-{os.getpid()}"
    made = _ip("netns", "add", probe, check=False)
    if made.returncode:
        return f"no network namespaces: {made.stderr.strip()}"
    cable = f"kp{os.getpid() % 10**6}"
    joined = _ip("-n", probe, "link", "add", cable, "type", "veth", check=False)
    _ip("netns", "del", probe)
    return f"no virtual cables: {joined.stderr.strip()}" if joined.returncode else ""


@contextmanager
def star(*leaves):
    """Make a hub and leaves that each have a cable to it; yield the hub, then the leaves."""
    prefix = f"kvcs-{os.getpid()}"
    hub = Site(f"{prefix}-hub", "10.78.0.1")
    sites = [Site(f"{prefix}-{leaf}", f"10.78.{n}.2") for n, leaf in enumerate(leaves, start=1)]
    made = []
    try:
        for site in (hub, *sites):
            _ip("netns", "add", site.name)
            made.append(site)
            _ip("-n", site.name, "link", "set", "lo", "up")
        for number, site in enumerate(sites, start=1):
            _join(hub, site, number)
        hub.address = "10.78.1.1"
        yield hub, *sites
    finally:
        for site in made:
            _ip("netns", "del", site.name)


def _join(hub, site, number):
    """Lay a cable, with a network of its own; leaves reach every address of the hub."""
    near, far = f"leaf{number}", "hub"
    _ip(
        *("-n", hub.name, "link", "add", near, "type", "veth"),
        *("peer", "name", far, "netns", site.name),
    )
    for name, device, address in (
        (hub.name, near, f"10.78.{number}.1"),
        (site.name, far, site.address),
    ):
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", device)
        _ip("-n", name, "link", "set", device, "up")
    _ip("-n", site.name, "route", "add", "default", "via", f"10.78.{number}.1")


def _ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True, timeout=20)
