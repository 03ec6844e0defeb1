"""What both ways to deploy share: a Debian to deploy on, commands, and what a relay has to do."""

import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from kvcs.endpoint.certificate import create_dev_certificate
from kvcs.engines.file import SAMPLE_CACHE

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
_PACKAGES = (
    "ca-certificates,systemd,systemd-sysv,dbus,libssl3,libffi8,zlib1g,libbz2-1.0,liblzma5,"
    "libsqlite3-0,libreadline8,libncursesw6"
)
_CA_FILE = "/etc/ssl/certs/ca-certificates.crt"
#: Variables for programs inside that load packages: a network may have an authority of its own.
CA_VARIABLES = {"SSL_CERT_FILE": _CA_FILE, "PIP_CERT": _CA_FILE}


class NotSeen(Exception):
    """Something is not as it should be."""


def see(what, is_so, *, instead=""):
    """Print what was seen; raise NotSeen if it was not."""
    if not is_so:
        raise NotSeen(f"{what}: {instead}" if instead else what)
    print(f"ok  {what}", flush=True)  # noqa: T201


def call(*words, timeout=600.0, **options):
    """Run a command and return what it prints; raise NotSeen when it fails."""
    command = [str(word) for word in words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=timeout, **options
    )
    if done.returncode:
        raise NotSeen(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def debian(root):
    """Make a Debian with systemd, and this Python in /usr/local."""
    call("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", root)
    for name in ("bin", "lib", "include"):
        shutil.copytree(
            Path(sys.base_prefix) / name,
            root / "usr/local" / name,
            symlinks=True,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("test", "__pycache__"),
        )
    python = root / "usr/local/bin/python"
    python.unlink(missing_ok=True)
    python.symlink_to(f"python{sys.version_info.major}.{sys.version_info.minor}")
    call("chroot", root, "ldconfig")
    with suppress(KeyError):
        shutil.copy(os.environ["SSL_CERT_FILE"], root / _CA_FILE[1:])


def settings(place, *, policy="allow-anyone"):
    """Write the settings of deploy/, with a policy, and a development certificate, to a place."""
    place.mkdir(parents=True, exist_ok=True)
    text = (DEPLOY / "relay.toml").read_text()
    (place / "relay.toml").write_text(text.replace('policy = "deny"', f'policy = "{policy}"'))
    made = place.parent / "made"
    certificate = create_dev_certificate(made)
    shutil.copy(certificate.certificate_file, place / "chain.pem")
    shutil.copy(certificate.private_key_file, place / "key.pem")
    return certificate.ca_file


class Client:
    """The command line of kvcs on the other side of the relay's port."""

    def __init__(self, place, ca_file, enter=()):
        """Use a scope key of its own; `enter` are the words that lead to the relay's network."""
        self._enter = enter
        self._out = place / "out.safetensors"
        key = place / "scope.key"
        key.write_text(secrets.token_hex(32))
        key.chmod(0o600)
        self._url = "moqt://127.0.0.1:4433/"
        self._tls = ("--ca", ca_file)
        self._member = ("--scope-key-file", key, *self._tls, "--timeout", "20s")

    def kvcs(self, *words):
        """Run a command of kvcs."""
        return call(*self._enter, sys.executable, "-m", "kvcs", *words, cwd=ROOT, timeout=120)

    def examine(self):
        """Run kvcs doctor."""
        told = self.kvcs("doctor", self._url, *self._tls)
        see("kvcs doctor finds all that KVCS uses", "has all that KVCS uses" in told, instead=told)

    def publish(self):
        """Publish the sample, and leave when the relay has it."""
        member = (*self._member, "--push", "--exit-when-delivered")
        self.kvcs("publish", SAMPLE_CACHE, "--url", self._url, *member)

    def see_served(self, when):
        """Fetch what was published, and compare."""
        self._out.unlink(missing_ok=True)
        self.kvcs("fetch", self._url, "--like", SAMPLE_CACHE, *self._member, "-o", self._out)
        is_same = self._out.read_bytes() == SAMPLE_CACHE.read_bytes()
        see(f"{when} the publication is served, every byte the same", is_same)


def until(what, is_so, *, seconds=30.0):
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise NotSeen(f"{what} within {seconds:.0f} s")
        time.sleep(0.2)


def answers(url):
    """Tell whether a page says 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False
