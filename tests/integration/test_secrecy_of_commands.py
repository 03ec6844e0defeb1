"""A run of the command line at DEBUG, searched for what nobody may read in it.

A publisher, two relays and consumers, signed, sealed, padded and found by an index, and once more
in clear; strangers fail. The cache lies where the model has a name. What the commands write, to
standard output and to standard error, what the relays log and show (metrics, status, ``kvcs top``
on a terminal), and the index must have no key, no token, no token of the prompt or its text,
nothing that tells the model, and not where the cache lies.
"""

import contextlib
import json
import os
import pty
import secrets
import shutil
import signal
import subprocess
import threading
import urllib.request

import pytest
from tests.integration.children import ENVIRONMENT, KVCS, child_process, first_line
from tests.integration.secrecy import (
    digests,
    found_in,
    ring_secrets,
    runs_of_tokens,
    runs_of_words,
)

import kvcs.cli
from kvcs.cli._tokens import decode_token
from kvcs.cli.demo.search import forms
from kvcs.engines.file import SAMPLE_CACHE, load_cache
from kvcs.keyring import load_ring

pytestmark = pytest.mark.timeout(120)

DEBUG = ("--log-level", "DEBUG")


class Run:
    """Commands at one place, and all that they write."""

    def __init__(self, directory, capfd):
        self.directory = directory
        self.written = []
        self._capfd = capfd

    def __call__(self, *arguments, code=0):
        """Run a command in this process."""
        found = kvcs.cli._run([str(argument) for argument in arguments])
        self.written += (captured := self._capfd.readouterr())
        assert int(found) == code, captured

    @contextlib.contextmanager
    def beside(self, *arguments):
        """Run a command in a process of its own, until the end of the block; give its JSON."""
        command = (*KVCS, *arguments, *DEBUG, "--json")
        with child_process(command, ENVIRONMENT) as child:
            shown = first_line(child)
            # Nobody may leave its pipe full.
            reader = threading.Thread(target=lambda: self.written.extend(child.stderr))
            reader.start()
            self.written.append(json.dumps(shown))
            try:
                yield shown
            finally:
                child.send_signal(signal.SIGTERM)
                self.written += child.stdout
                reader.join(20)

    def on_a_terminal(self, *arguments, until):
        """Run a command on a terminal until it has shown something; then interrupt it."""
        own, theirs = pty.openpty()
        environment = {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "300", "LINES": "100"}
        command = [*KVCS, *map(str, arguments)]
        with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as child:
            os.close(theirs)
            shown = bytearray()
            try:
                # A terminal that nobody reads from would hold up the command; it ends with it.
                with contextlib.suppress(OSError):
                    while part := os.read(own, 2**16):
                        if until not in shown and until in shown + part:
                            child.send_signal(signal.SIGINT)
                        shown += part
            finally:
                child.kill()
                os.close(own)
        assert until in shown
        self.written.append(shown.decode(errors="replace"))

    def page(self, admin, path):
        with urllib.request.urlopen(admin + path, timeout=10) as answer:
            self.written.append(answer.read().decode())


@pytest.fixture
def run(tmp_path, capfd, monkeypatch):
    for name in list(os.environ):
        if name.startswith("KVCS_"):
            monkeypatch.delenv(name)
    return Run(tmp_path, capfd)


@pytest.fixture
def cache(tmp_path):
    """The sample, where nobody may learn that it lies."""
    path = tmp_path / f"Model-{secrets.token_hex(6)}" / "cache.safetensors"
    path.parent.mkdir()
    shutil.copy(SAMPLE_CACHE, path)
    return path


@pytest.fixture
def member(run):
    """A ring with a key of each kind, and a file with its scope key; beside them, tokens."""
    ring = run.directory / "ring"
    run("scope", "new", "--keys", ring)
    for purpose in ("producer", "object", "token"):
        run("keys", "new", purpose, "--keys", ring)
    run("keys", "export", "relay", run.directory / "relay.json", "--keys", ring)
    key = run.directory / "scope.key"
    key.write_text(load_ring(ring).scope_key.octets.hex())
    for role in ("producer", "consumer", "relay"):
        file = run.directory / f"{role}.token"
        run("token", "mint", "--role", role, "--keys", ring, "-o", file)
        run("token", "inspect", file, "--token-keys", run.directory / "relay.json", *DEBUG)
    return ring, key


def secrets_of(run, ring, cache):
    content = load_cache(cache)
    found = {
        **ring_secrets(load_ring(ring)),
        **digests(content.descriptor),
        "prompt": runs_of_tokens(content.tokens),
        "text of the prompt": runs_of_words(SAMPLE_CACHE.with_suffix(".txt").read_text("utf-8")),
        "place of the cache": (cache.parent.name.encode(),),
    }
    for path in run.directory.glob("*.token"):
        found[path.name] = (*forms(decode_token(path.read_bytes())), path.read_bytes().strip())
    return found


def relay_arguments(run):
    return (
        *("relay", "run", "--port", 0, "--admin-port", 0, "--dev-cert", run.directory / "tls"),
        *("--token-keys", run.directory / "relay.json"),
    )


def test_commands_write_nothing_secret(run, cache, member):
    ring, key = member
    tokens = {role: run.directory / f"{role}.token" for role in ("producer", "consumer", "relay")}
    index = run.directory / "index"
    in_clear = ("--scope-key-file", key)
    with run.beside(*relay_arguments(run)) as upper:
        tls = ("--ca", upper["ca"], "--timeout", "20s", *DEBUG)
        above = ("--upstream", upper["url"], "--upstream-ca", upper["ca"])
        uplink = ("--upstream-token-file", tokens["relay"])
        with run.beside(*relay_arguments(run), *above, *uplink) as lower:
            publish = ("publish", cache, "--url", lower["url"], "--token-file", tokens["producer"])
            fetch = ("fetch", upper["url"], "--like", cache, *tls)
            taking = ("--token-file", tokens["consumer"])
            sealed = ("--keys", ring, "--pad-blocks", 8, "--index", index)
            with run.beside(*publish, *sealed, "--ca", upper["ca"]) as publication:
                run(*fetch, *taking, "--keys", ring, "--wait")
                run(*fetch, *taking, "--keys", ring, "--index", index, "--layers", "0-1")
                run("inspect", upper["url"], *tls, *taking, "--keys", ring)
                run(*fetch, "--keys", ring, code=4)
                run(*fetch, "--keys", ring, "--token-file", tokens["producer"], code=4)
                exact = f"{upper['url']}#kvcs:{publication['publication_id']}"
                run("fetch", exact, *tls, *taking, *in_clear, code=7)
                for shown in (upper, lower):
                    run("relay", "status", "--admin-url", shown["admin"])
                    run.page(shown["admin"], "metrics")
                    run.page(shown["admin"], "status.json")
                run.on_a_terminal("top", "--admin-url", lower["admin"], until=b"arrival of")
            run(*publish, *tls, *in_clear, "--push", "--exit-when-delivered")
            run(*fetch, *taking, *in_clear, "--layers", "0-1")
    run.written.append(index.read_text())

    wanted = secrets_of(run, ring, cache)
    text = "\n".join(run.written)
    assert text.count("DEBUG kvcs.endpoint") > 100
    assert publication["publication"] in text
    assert "refused: UNAUTHORIZED" in text
    assert "signed by" in text
    assert len(wanted) == 4 + 2 + 3 + 3
    assert found_in(text, wanted) == set()
    # Each of them, as it would be in a line of text.
    planted = " ".join(texts[-1].decode() for texts in wanted.values())
    assert found_in(planted, wanted) == wanted.keys()
