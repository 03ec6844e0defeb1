"""Relays in a tree as real processes on loopback, with publishers and consumers at either one."""

import pytest
from tests.integration.test_cli import end, first_line, process, wait_for

import kvcs.cli
from kvcs.engines.file import SAMPLE_CACHE

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tree")
    (directory / "scope.key").write_text("5c" * 32)
    (directory / "other.key").write_text("0e" * 32)
    return directory


def relay(place, *parents):
    certificates = place / "certificate"
    arguments = ["relay", "run", "--port", 0, "--dev-cert", certificates, "--json"]
    for parent in parents:
        arguments += ["--upstream", parent["url"], "--upstream-ca", parent["ca"]]
    return process(*arguments, "--log-level", "INFO")


@pytest.fixture(scope="module")
def root(place):
    with relay(place) as child:
        yield first_line(child)


def below(place, root):
    """Yield a relay below the root, once it has a session with it."""
    with relay(place, root) as child:
        shown = first_line(child)
        wait_for(child.stderr, "the parent is")
        yield shown


@pytest.fixture(scope="module")
def site(place, root):
    yield from below(place, root)


@pytest.fixture(scope="module")
def other_site(place, root):
    yield from below(place, root)


def fetch(place, at, out, key="scope.key"):
    """Take the sample from a relay with ``kvcs fetch``; return the exit code."""
    arguments = ["fetch", at["url"], "--like", SAMPLE_CACHE, "--ca", at["ca"], "-o", out]
    arguments += ["--scope-key-file", place / key, "--timeout", "30s", "--json"]
    return int(kvcs.cli._run([str(argument) for argument in arguments]))


def test_publication_at_the_root_is_read_at_the_leaves_also_when_its_publisher_has_left(
    place, root, site, other_site, tmp_path
):
    arguments = ["publish", SAMPLE_CACHE, "--url", root["url"], "--ca", root["ca"], "--json"]
    arguments += ["--scope-key-file", place / "scope.key", "--exit-when-delivered"]
    out = tmp_path / "out.safetensors"

    with process(*arguments) as publisher:
        first_line(publisher)
        assert fetch(place, site, out) == 0
        assert out.read_bytes() == SAMPLE_CACHE.read_bytes()
        publisher.communicate(timeout=60)
        assert publisher.returncode == 0

    for sink in (site, other_site, root):
        out.unlink()
        assert fetch(place, sink, out) == 0
        assert out.read_bytes() == SAMPLE_CACHE.read_bytes()


def test_publication_at_a_leaf_is_found_from_everywhere(place, root, site, other_site, tmp_path):
    arguments = ["publish", SAMPLE_CACHE, "--url", site["url"], "--ca", site["ca"], "--json"]
    arguments += ["--scope-key-file", place / "other.key"]

    with process(*arguments) as publisher:
        first_line(publisher)
        for number, sink in enumerate((root, other_site, site)):
            out = tmp_path / f"{number}.safetensors"
            assert fetch(place, sink, out, "other.key") == 0
            assert out.read_bytes() == SAMPLE_CACHE.read_bytes()
        code, _ = end(publisher)

    assert code in {0, 130}
