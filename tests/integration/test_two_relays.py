"""Relays in a tree as real processes on loopback, with publishers and consumers at either one."""

import pytest
from tests.integration.children import end, first_line, process, wait_for

from kvcs.engines.file import SAMPLE_CACHE

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def root(relay):
    return relay


def below(directory, root):
    """Yield a relay below the root, once it has a session with it."""
    here = ("--port", 0, "--dev-cert", directory, "--no-admin", "--json", "--log-level", "INFO")
    parent = ("--upstream", root["url"], "--upstream-ca", root["ca"])
    with process("relay", "run", *here, *parent) as child:
        shown = first_line(child)
        wait_for(child.stderr, "the parent is")
        yield shown


@pytest.fixture(scope="module")
def site(certificate_directory, root):
    yield from below(certificate_directory, root)


@pytest.fixture(scope="module")
def other_site(certificate_directory, root):
    yield from below(certificate_directory, root)


def member(at, key):
    """What a member of a scope tells a command about a relay."""
    return ("--ca", at["ca"], "--scope-key-file", key, "--timeout", "30s")


@pytest.fixture
def fetch(run, own_scope_key_file, tmp_path):
    """Take the sample from a relay, and see that it is the sample."""

    def call(at):
        out = tmp_path / "out.safetensors"
        where = (*member(at, own_scope_key_file), "-o", out)
        code, _, err = run("fetch", at["url"], "--like", SAMPLE_CACHE, *where)
        assert code == 0, err
        assert out.read_bytes() == SAMPLE_CACHE.read_bytes()
        out.unlink()

    return call


def test_publication_at_the_root_is_read_at_the_leaves_also_when_its_publisher_has_left(
    root, site, other_site, own_scope_key_file, fetch
):
    where = ("--url", root["url"], *member(root, own_scope_key_file), "--json")

    with process("publish", SAMPLE_CACHE, *where, "--exit-when-delivered") as publisher:
        first_line(publisher)
        fetch(site)
        publisher.communicate(timeout=60)

    assert publisher.returncode == 0
    for sink in (site, other_site, root):
        fetch(sink)


def test_publication_at_a_leaf_is_found_from_everywhere(
    root, site, other_site, own_scope_key_file, fetch
):
    where = ("--url", site["url"], *member(site, own_scope_key_file), "--json")

    with process("publish", SAMPLE_CACHE, *where) as publisher:
        first_line(publisher)
        for sink in (root, other_site, site):
            fetch(sink)
        code, _, _ = end(publisher)

    assert code in {0, 130}
