"""The page of a relay as it is run, for other machines, in a real headless Chromium.

Needs the dependency group ``browser``, the program chromium and network namespaces; skipped
without.
"""

import re
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.browser.chromium import ARGUMENTS, CHROMIUM, card, watched_page
from tests.integration.children import KVCS, child_process, completed, end, first_line, until
from tests.integration.network import missing_rights, star

from kvcs.engines.file import SAMPLE_CACHE

playwright = pytest.importorskip("playwright.sync_api", reason="no dependency group browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(180),
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium"),
    pytest.mark.skipif(bool(reason := missing_rights()), reason=reason or "none"),
]

ROOT = Path(__file__).parents[2]
#: The admin listener of the example, on the relay's own machine.
PAGE = "http://127.0.0.1:4434/"


@pytest.fixture
def place(tmp_path):
    """A directory with the example file and a scope key."""
    (tmp_path / "scope.key").write_text("5c" * 32)
    (tmp_path / "relay.toml").write_text((ROOT / "examples" / "relay.toml").read_text())
    return tmp_path


def run(*command):
    """Run a command to its good end."""
    done = completed(*command)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def browser_in(site, place):
    """Run Chromium on another machine."""
    program = place / "chromium"
    program.write_text(f'#!/bin/sh\nexec ip netns exec {site.name} {CHROMIUM} "$@"\n')
    program.chmod(0o755)
    with playwright.sync_playwright() as library:
        opened = library.chromium.launch(executable_path=program, args=ARGUMENTS)
        try:
            yield opened
        finally:
            opened.close()


def test_page_shows_other_machines_and_a_publication_that_outlives_a_killed_relay(place):
    with star("publisher", "consumer") as (hub, publisher, consumer), browser_in(hub, place) as it:
        relay = hub.command(*KVCS, "relay", "run", "--config", place / "relay.toml", "--json")
        url = f"moqt://{hub.address}:4433/"
        with child_process(relay) as running:
            member = ("--ca", first_line(running)["ca"], "--scope-key-file", place / "scope.key")
            publish = publisher.command(*KVCS, "publish", SAMPLE_CACHE, "--url", url, *member)
            fetch = consumer.command(*KVCS, "fetch", url, "--like", SAMPLE_CACHE, *member)
            with child_process([*publish, "--json"]) as publishing, watched_page(it) as page:
                name = first_line(publishing)["publication"]
                run(*fetch, "-o", place / "one.safetensors")
                page.goto(PAGE)
                check_publication(page, name, "published")
                assert publisher.address in page.locator("#session-rows").inner_text()
                assert card(page, "Sessions").inner_text() == "1"
                assert not page.faults
                end(publishing)
                wait_for_disk(page)
                page.locator("#namespace-rows tr:has-text('kept')").wait_for()
                page.get_by_text("Nobody is connected.").wait_for()
            running.send_signal(signal.SIGKILL)
            running.wait()

        with child_process(relay) as running, watched_page(it) as page:
            first_line(running)
            page.goto(PAGE)
            row = page.locator("#namespace-rows tr:has-text('kept')")
            row.wait_for()
            assert row.locator("button").get_attribute("title") == name
            # Whether a manifest is over, the relay knows only if it saw that end.
            assert re.search("\t[23] of 3\t", row.inner_text())
            page.get_by_text("All of it is on disk only").wait_for()
            run(*fetch, "-o", place / "two.safetensors")
            page.get_by_text("All of it is on disk only").wait_for(state="hidden")
            check_publication(page, name, "kept")
            assert not page.faults

    for file in ("one.safetensors", "two.safetensors"):
        assert (place / file).read_bytes() == SAMPLE_CACHE.read_bytes()


def check_publication(page, name, state):
    """Check that the page shows a whole publication, its namespace and its arrival."""
    page.locator(f"#namespace-rows tr:has-text('{state}')").wait_for()
    page.locator("#tracks canvas").nth(2).wait_for()
    assert page.locator("#health").inner_text() == "ready"
    assert card(page, "Track Namespaces").inner_text() == "1"
    title = page.locator("#namespace-rows tr button").get_attribute("title")
    assert title == name
    pictures = [canvas.get_attribute("aria-label") for canvas in page.locator("canvas").all()]
    data = [text for text in pictures if ".raw.s0" in text]
    assert len(data) == 2
    assert all("100 % of the cells are here" in text for text in data), data


def wait_for_disk(page):
    """Wait until the one publication is on disk, both components and a manifest."""

    def written():
        status = page.evaluate("fetch('status.json').then(answer => answer.json())")
        counts, (namespace,) = status["statistics"], status["namespaces"]["shown"]
        is_written = counts["disk_complete_tracks"] >= 2 and not counts["disk_queued_bytes"]
        return (counts, namespace) if is_written else None

    counts, namespace = until(written)
    assert counts["disk_tracks"] == namespace["tracks"] == 3
