"""docs/howto/two-sites.md over a way that is long, loses packets, and is cut for some seconds.

Each site is a network namespace with its relay and its engines; between them is a third one, which
carries what the relays say to each other 40 ms late and loses one packet in a hundred. The parent
goes by tokens.
"""

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.integration.children import (
    ENVIRONMENT,
    KVCS,
    child_process,
    end,
    first_line,
    result_of,
    until,
    wait_for,
)
from tests.integration.network import Site, missing_rights, star, status_in

from kvcs.engines.file import SAMPLE_CACHE

ROOT = Path(__file__).parents[2]
URL = "moqt://127.0.0.1:4433/"
#: Mbit/s, milliseconds for a round trip, and the part of the packets that is lost.
RATE, ROUND_TRIP, LOSS = 100, 80, 0.01
#: Seconds for each layer of thirty.
PACE = 0.25
HELD, CUT = "0e" * 32, "5c" * 32

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(bool(reason := missing_rights()), reason=reason or "none"),
]


def process(site, *command):
    return child_process(site.command(*command), ENVIRONMENT, cwd=ROOT)


@dataclass
class Sites:
    """Two sites with a relay each, the way between them, and a directory with keys and tokens."""

    place: Path
    hub: Site
    a: Site
    b: Site
    ca: Path
    child_ca: Path

    @contextmanager
    def link_down(self):
        """Pull the cable of site b."""
        link = ("ip", "-n", self.hub.name, "link", "set", "leaf2")
        subprocess.run([*link, "down"], check=True, timeout=20)
        yield
        subprocess.run([*link, "up"], check=True, timeout=20)

    def publish(self, scope_key, pace):
        """Publish the sample at site a, a layer every `pace` seconds."""
        settings = {
            "url": URL,
            "ca": str(self.ca),
            "scope_key": scope_key,
            "token": str(self.place / "producer.token"),
            "pace": pace,
        }
        module = (sys.executable, "-m", "tests.integration.paced")
        return process(self.a, *module, json.dumps(settings))

    def fetch(self, scope_key, out):
        """Return a command that takes the sample at site b."""
        words = (*KVCS, "fetch", URL, "--like", SAMPLE_CACHE, "--ca", self.child_ca, "--wait")
        member = ("--scope-key-file", self.place / f"{scope_key}.key", "--timeout", "45s")
        return self.b.command(*words, *member, "-o", out, "--json")

    def status(self):
        """Return what the relay of site b says of itself."""
        return status_in(self.b)


@pytest.fixture
def place(tmp_path, run):
    """Scope keys, a token key with its public part, and the tokens that it made."""

    def command(*words):
        code, _, err = run(*words)
        assert code == 0, err

    ring = ("--keys", tmp_path / "ring")
    for scope_key in (HELD, CUT):
        (tmp_path / f"{scope_key}.key").write_text(scope_key)
        (tmp_path / f"{scope_key}.key").chmod(0o600)
    command("keys", "new", "token", *ring)
    command("keys", "export", "relay", tmp_path / "relay.json", *ring)
    for role in ("producer", "relay"):
        output = ("-o", tmp_path / f"{role}.token")
        command("token", "mint", "--scope", "all", "--role", role, *output, *ring)
    (tmp_path / "long.toml").write_text('[transport]\nidle_timeout = "3s"\n')
    return tmp_path


@pytest.fixture
def sites(place):
    """The relays of both sites, of which the one at site b has its parent at site a."""
    with star("site-a", "site-b") as (hub, a, b):
        # Site b sees the parent at the hub's end of its own cable.
        parent = "10.78.2.1"
        relay = (*KVCS, "relay", "run", "--host", "0.0.0.0", "--config", place / "long.toml")
        relay = (*relay, "--json", "--log-level", "INFO")
        tokens = ("--token-keys", place / "relay.json", "--dev-cert-name", parent)
        figures = (RATE, ROUND_TRIP, LOSS)
        way = (sys.executable, "-m", "benchmarks.link", 4433, a.address, 4433, *figures)
        with (
            process(hub, *way) as carrying,
            process(a, *relay, "--dev-cert", place / "a", *tokens) as root,
        ):
            first_line(carrying)
            ca = first_line(root)["ca"]
            upstream = ("--upstream", f"moqt://{parent}:4433/", "--upstream-ca", ca)
            trust = (*upstream, "--upstream-token-file", place / "relay.token", "--allow-anyone")
            with process(b, *relay, "--dev-cert", place / "b", *trust) as child:
                child_ca = first_line(child)["ca"]
                wait_for(child.stderr, "the parent is")
                yield Sites(place, hub, a, b, ca, child_ca)
                assert end(child)[0] == 0
            assert end(root)[0] == 0


def test_link_is_cut_while_a_cache_is_produced(sites, tmp_path):
    outs = [tmp_path / f"{number}.safetensors" for number in range(3)]
    with sites.publish(HELD, 0.0):
        result_of(sites.fetch(HELD, outs[0]))
    with (
        child_process(sites.fetch(CUT, outs[1])) as consumer,
        sites.publish(CUT, PACE) as publisher,
    ):
        before = sites.status()["statistics"]["objects_in"]
        until(lambda: sites.status()["statistics"]["objects_in"] > before + 30)
        with sites.link_down():
            down_at = time.monotonic()
            # It goes on with what it has, and notices that its parent is gone.
            held = result_of(sites.fetch(HELD, outs[2]))
            until(lambda: not sites.status()["upstreams"][0]["is_used"])
            up_at = time.monotonic()
        text, log = consumer.communicate(timeout=60)
        publisher.kill()
        times = [json.loads(line)["at"] for line in publisher.stdout]
    status = sites.status()

    assert any(down_at < at < up_at for at in times)
    assert consumer.returncode == 0, log
    assert held["complete"]
    assert json.loads(text)["objects_rejected"] == 0
    for out in outs:
        assert out.read_bytes() == SAMPLE_CACHE.read_bytes()
    assert status["upstreams"][0]["is_used"]
    assert status["faults"] == []
