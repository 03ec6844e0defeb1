"""docs/howto/untrusted-relay.md, done as it is written: each command at its place, in order."""

import os
import re
import shlex
import shutil
import threading
from pathlib import Path

import pytest
from tests.integration.children import ENVIRONMENT, KVCS, child_process
from tests.integration.secrecy import (
    digests,
    found_in,
    ring_secrets,
    runs_of_tokens,
    runs_of_words,
)

import kvcs.cli
from kvcs.cli.demo.search import forms
from kvcs.engines.file import SAMPLE_CACHE, load_cache
from kvcs.keyring import Purpose, load_ring, load_ring_file

pytestmark = pytest.mark.timeout(180)

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "untrusted-relay.md"
STEP = re.compile(
    r"<!-- hand over: (?P<file>\S+) from (?P<giver>\S+) to (?P<taker>\S+) -->"
    r"|<!-- at: (?P<place>[\w-]+)(?:, exit code (?P<code>\d+))? -->\n```\n(?P<block>.*?)```",
    re.DOTALL,
)


class Site:
    """A directory with a home of its own."""

    def __init__(self, directory, ca):
        directory.mkdir()
        self.directory = directory
        self.environment = {
            **ENVIRONMENT,
            "HOME": str(directory),
            "XDG_CONFIG_HOME": str(directory / ".config"),
            "KVCS_CA": str(ca),
            "KVCS_LOG_LEVEL": "DEBUG",
        }

    @property
    def keys(self):
        return self.directory / ".config" / "kvcs" / "keys"

    def enter(self, monkeypatch):
        """Be here: what is run next is run at this site."""
        for name in os.environ:
            if name.startswith("KVCS_"):
                monkeypatch.delenv(name)
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(self.directory)


@pytest.fixture
def sites(tmp_path, certificate):
    found = {
        name: Site(tmp_path / name, certificate.ca_file) for name in ("site-a", "site-b", "relay")
    }
    for name in ("site-a", "site-b"):
        shutil.copy(SAMPLE_CACHE, found[name].directory / "cache.safetensors")
    tls = certificate.tls
    for source, name in ((tls.certificate_file, "chain.pem"), (tls.private_key_file, "key.pem")):
        shutil.copy(source, found["relay"].directory / name)
    # Where the reader has one machine for it, the test has free ports.
    found["relay"].environment |= {"KVCS_PORT": "0", "KVCS_ADMIN_PORT": "0"}
    return found


def commands(block):
    """The commands of a block, without the word kvcs."""
    for line in block.strip().replace("\\\n", " ").splitlines():
        program, *words = shlex.split(line)
        assert program == "kvcs"
        yield words


def test_page_works_as_it_is_written(sites, monkeypatch, capsys):
    seen, shown = set(), []
    with RelayOfThePage(sites["relay"]) as relay:
        for step in STEP.finditer(PAGE.read_text()):
            if step["file"]:
                taker = sites[step["taker"]].directory
                shutil.copy(sites[step["giver"]].directory / step["file"], taker)
                continue
            for words in commands(step["block"]):
                seen.add(tuple(words[:2]))
                if words[:2] == ["relay", "run"]:
                    relay.start(words)
                    continue
                there = [word.replace("relay.example:4433", relay.address) for word in words]
                shown.append(" ".join(there))
                sites[step["place"]].enter(monkeypatch)
                code = kvcs.cli._run(there)
                shown += capsys.readouterr()
                assert code == int(step["code"] or 0), (there, shown[-2:])

    out = sites["site-b"].directory / "out.safetensors"
    assert out.read_bytes() == SAMPLE_CACHE.read_bytes()
    assert {("keys", "rotate"), ("token", "mint"), ("relay", "run")} <= seen
    mine, theirs = load_ring(sites["site-a"].keys), load_ring(sites["site-b"].keys)
    assert mine is not None
    assert theirs is not None
    assert len(mine.trusted_producers) == len(theirs.trusted_producers) == 2
    assert len(mine.object_keys) == len(theirs.object_keys) == 2
    relays = load_ring_file(sites["relay"].directory / "for-the-relay.json")
    assert set(relays.sets) == {Purpose.VERIFIER}
    # Whatever was shown and logged on the way, at DEBUG, and the commands themselves, have no key
    # and no token, and nothing of the prompt and the model.
    text = "\n".join([*shown, *relay.log, relay.command_line])
    assert "DEBUG kvcs.endpoint" in text
    assert "refused: UNAUTHORIZED" in "".join(relay.log)
    cache = load_cache(SAMPLE_CACHE)
    secrets = {
        **{f"{name} of {site}": it for site, ring in (("a", mine), ("b", theirs))
           for name, it in ring_secrets(ring).items()},
        **{path.name: forms(path.read_bytes().strip())
           for path in sites["site-a"].directory.glob("*.token")},
        **digests(cache.descriptor),
        "prompt": runs_of_tokens(cache.tokens),
        "text of the prompt": runs_of_words(SAMPLE_CACHE.with_suffix(".txt").read_text("utf-8")),
    }  # fmt: skip
    assert {"scope key 0 of b", "object key 1 of b", "site-b.token", "prompt"} <= secrets.keys()
    assert found_in(text, secrets) == set()
    assert "relay run --host" in relay.command_line
    assert not any(key.is_secret for key in relays.keys(Purpose.VERIFIER))


class RelayOfThePage:
    """The process of ``kvcs relay run``, which stays until the page is done."""

    def __init__(self, site):
        self._site = site
        self._context = None
        self._child = None
        self._reader = None
        self.address = ""
        self.command_line = ""
        self.log = []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self._context is not None:
            # The reader ends with the process, and only then may the pipe be closed.
            self._child.kill()
            self._reader.join(10)
            self._context.__exit__(*error)

    def start(self, words):
        site = self._site
        self._context = child_process([*KVCS, *words], site.environment, site.directory)
        child = self._child = self._context.__enter__()
        # Nobody may leave its pipe full.
        self._reader = threading.Thread(target=lambda: self.log.extend(child.stderr))
        self._reader.start()
        for line in child.stdout:
            if found := re.search(r"moqt://[^\s/]*:(\d+)", line):
                self.address = f"localhost:{found[1]}"
                words = Path(f"/proc/{child.pid}/cmdline").read_text().split("\0")
                self.command_line = " ".join(words)
                return
        raise AssertionError("the relay did not start")
