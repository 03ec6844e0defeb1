"""The status page in a real headless Chromium, beside a real relay.

Needs the dependency group ``browser`` and the program chromium; skipped without.
"""

import asyncio
import threading
from contextlib import AsyncExitStack, ExitStack

import pytest
from tests.browser.chromium import ARGUMENTS, CHROMIUM, card, watched_page

from kvcs.admin import AdminConfig, AdminServer
from kvcs.client import Publisher, PublisherConfig
from kvcs.endpoint.certificate import create_dev_certificate
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.engines.file import SAMPLE_CACHE, load_cache
from kvcs.kv import ScopeKey
from kvcs.moqt.session.events import StreamFinished
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import TrackNamespace
from kvcs.relay import Relay, RelayConfig, allow_all
from kvcs.transport.interface import ClientTls

playwright = pytest.importorskip("playwright.sync_api", reason="no dependency group browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(120),
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium"),
]

ALL = LocationFilter.absolute_start(0, 0)
#: Where nobody answers.
NOBODY = "127.0.0.1:9"
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


class Host:
    """A relay with its admin listener, on an event loop in a thread.

    Args:
        directory: Where its certificate is.
        parents: Other hosts that are its parents; nobody is behind ``None``.
    """

    def __init__(self, directory, *parents):
        self._directory = directory
        self._parents = parents
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._stack = AsyncExitStack()
        self.relay = None
        self.admin = None
        self.tls = None

    def __enter__(self):
        self._thread.start()
        self.run(self._open())
        return self

    def __exit__(self, *_):
        self.run(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    @property
    def url(self):
        return f"http://{self.admin.address}/"

    async def _open(self):
        certificate = create_dev_certificate(self._directory)
        self.tls = ClientTls(ca_file=str(certificate.ca_file))
        addresses = [NOBODY if it is None else it.relay.address for it in self._parents]
        config = RelayConfig(
            tls=certificate.tls,
            port=0,
            authorize=allow_all,
            upstream=tuple(f"moqt://{address}/" for address in addresses),
            upstream_tls=self.tls,
        )
        self.relay = await self._stack.enter_async_context(Relay(config))
        self.admin = AdminServer(self.relay, AdminConfig(port=0))
        await self.admin.__aenter__()
        self._stack.push_async_callback(self.close_admin)

    async def close_admin(self):
        admin, self.admin = self.admin, None
        if admin is not None:
            await admin.__aexit__(None, None, None)

    async def client(self, **settings):
        config = ConnectConfig(tls=self.tls, **settings)
        url = f"moqt://{self.relay.address}/"
        return await self._stack.enter_async_context(connect(url, config))

    async def announce(self, *names):
        client = await self.client()
        for name in names:
            client.publish_namespace(TrackNamespace(name))

    async def publish(self):
        """Publish the sample cache; the relay takes it all."""
        cache = load_cache(SAMPLE_CACHE)
        client = await self.client()
        publisher = Publisher(
            client,
            scope_key=ScopeKey(b"\x5c" * 32),
            descriptor=cache.descriptor,
            config=PublisherConfig(push=True),
        )
        publication = publisher.publication(cache.tokens)
        await self._stack.enter_async_context(publication)
        segment = await publication.add_segment()
        for layer_index, (k, v) in sorted(cache.layers.items()):
            await segment.publish_layer(layer_index, k, v)
        await publication.complete()
        assert await publication.wait_delivered(10.0)
        return publication.name

    async def fetch(self, name, *tracks):
        """Fetch Tracks of a publication, one after the other."""
        client = await self.client()
        for track in tracks:
            over = asyncio.Event()
            client.fetch(name.track(track), Parameters(location_filter=ALL), ending(over))
            await asyncio.wait_for(over.wait(), 20)


def ending(over):
    """Return a listener that notes the end of a stream."""
    return lambda event: isinstance(event, StreamFinished) and over.set()


@pytest.fixture
def host(tmp_path):
    with Host(tmp_path) as opened:
        yield opened


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as library:
        opened = library.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser):
    """A page on which nothing may go wrong unnoticed."""
    with watched_page(browser) as opened:
        yield opened


def test_page_shows_what_the_relay_does_and_asks_nobody_else(host, page):
    host.run(host.publish())

    page.goto(host.url)
    page.locator("#tracks canvas").nth(2).wait_for()

    assert page.locator("#health").inner_text() == "ready"
    assert page.title() == "kvcs relay"
    assert card(page, "Sessions").inner_text() == "1"
    assert card(page, "Track Namespaces").inner_text() == "1"
    assert "published" in page.locator("#namespace-rows tr").inner_text()
    assert page.locator("#session-rows tr").count() == 1
    labels = [canvas.get_attribute("aria-label") for canvas in page.locator("#tracks canvas").all()]
    assert [label for label in labels if "k.raw.s0" in label or "v.raw.s0" in label] == [
        label for label in labels if "100 % of the cells are here" in label and "raw" in label
    ]
    assert {url.partition("?")[0].removeprefix(host.url) for url in page.requests} <= {
        *("", "status.js", "status.css", "favicon.svg", "status.json", "namespace.json"),
    }
    assert not page.faults


def test_picture_has_the_colour_of_what_is_held(host, page):
    host.run(host.publish())

    page.goto(host.url)
    picture = page.locator("figure:has(strong:text-is('k.raw.s0')) canvas")
    picture.wait_for()
    drawn, held = picture.evaluate(
        """canvas => {
          const [r, g, b] = canvas.getContext("2d").getImageData(1, 1, 1, 1).data;
          const name = getComputedStyle(document.documentElement).getPropertyValue("--held").trim();
          return ["#" + [r, g, b].map(n => n.toString(16).padStart(2, "0")).join(""), name];
        }"""
    )

    assert drawn == held


def test_page_follows_what_happens(host, page):
    page.goto(host.url)
    page.get_by_text("Nothing is published here yet.").wait_for()
    page.get_by_text("Nobody is connected.").wait_for()

    host.run(host.announce((b"first",)))
    page.locator("#namespace-rows tr").nth(0).wait_for()
    host.run(host.announce((b"second",)))
    page.locator("#namespace-rows tr").nth(1).wait_for()

    assert page.locator("#session-rows tr").count() == 2
    assert not page.faults


def test_names_of_peers_are_text(host, page):
    names = [(HOSTILE.encode(),), ("\u202e\u2066".encode(), b"\x1b[2J"), (b"javascript:alert(1)",)]
    host.run(host.client(implementation=HOSTILE))
    host.run(host.announce(*names))

    page.goto(host.url)
    page.locator("#namespace-rows tr").nth(2).wait_for()
    page.locator("#session-rows tr").nth(1).wait_for()
    page.wait_for_timeout(1500)

    assert page.locator("main img, main script, main iframe").count() == 0
    assert HOSTILE in page.locator("#session-rows").inner_text()
    assert page.title() == "kvcs relay"
    assert not page.faults


def test_address_of_the_page_is_no_way_in(host, page):
    page.goto(f"{host.url}?search={HOSTILE}#{HOSTILE}")
    page.locator("#health.good").wait_for()

    assert page.title() == "kvcs relay"
    assert not page.faults


def test_code_from_elsewhere_does_not_run(host, page):
    page.goto(host.url)
    page.locator("#health.good").wait_for()
    page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "document.title = 'owned'";
          document.body.append(script);
        }"""
    )

    assert page.title() == "kvcs relay"
    assert any("Content Security Policy" in fault for fault in page.faults)


def test_many_namespaces_have_pages_and_can_be_searched(host, page):
    host.run(host.announce(*((b"name", b"%03d" % index) for index in range(120))))

    page.goto(host.url)
    page.locator("#pages").wait_for()
    assert page.locator("#namespace-rows tr").count() == 50
    assert page.locator("#previous").is_disabled()
    page.locator("#next").click()
    page.get_by_text("51 to 100 of 120").wait_for()
    page.locator("#next").click()
    page.get_by_text("101 to 120 of 120").wait_for()
    assert page.locator("#next").is_disabled()
    page.locator("#search").fill("117")
    page.get_by_text("1 of 120").wait_for()

    assert "name / 117" in page.locator("#namespace-rows tr").inner_text()
    page.locator("#search").fill("nothing like that")
    page.get_by_text("No namespace matches.").wait_for()
    assert not page.faults


def test_subscriber_that_is_slow_comes_first(host, page):
    async def delay():
        clients = [await host.client(), await host.client()]
        link = host.relay._links[1]
        link.outbox.behind_since = asyncio.get_running_loop().time() - 60
        return clients

    host.run(delay())

    page.goto(host.url)
    page.locator("#session-rows tr").nth(1).wait_for()

    assert "slow, behind for 60 s" in page.locator("#session-rows tr").nth(0).inner_text()
    assert page.locator(".card:has(dt:text-is('Sessions')) .note").inner_text() == "1 slow"


def test_namespace_is_chosen_with_the_keyboard_and_stays(host, page):
    host.run(host.announce((b"one",), (b"two",)))

    page.goto(host.url)
    page.locator("#namespace-rows tr").nth(1).wait_for()
    other = page.locator("#namespace-rows tr:not(.chosen) button")
    name = other.inner_text()
    other.focus()
    page.keyboard.press("Enter")
    page.locator(f"#namespace-rows tr.chosen button:text-is('{name}')").wait_for()
    page.wait_for_timeout(1500)

    assert page.locator("#detail-name").inner_text() == name
    assert page.evaluate("document.activeElement.textContent") == name


def test_relay_that_leaves_is_said_to_do_so(host, page):
    host.run(host.client())
    page.goto(host.url)
    page.locator("#health.good").wait_for()

    async def drain():
        host.relay._core.drain.begin(60.0, "", now=asyncio.get_running_loop().time())

    host.run(drain())
    page.get_by_text("draining", exact=True).wait_for()
    assert page.title() == "draining - kvcs relay"
    host.run(host.close_admin())
    page.get_by_text("no answer", exact=True).wait_for()

    assert page.locator("body.stale").count() == 1


def test_parents_and_the_hit_ratio_are_shown(page, tmp_path):
    with ExitStack() as stack, Host(tmp_path) as parent:
        name = parent.run(parent.publish())
        address = str(parent.relay.address)
        # They share a certificate, and the child outlives its parent.
        child = Host(tmp_path, parent, None)
        stack.enter_context(child)
        page.goto(child.url)
        used = page.locator("#upstream-rows tr", has_text=address)
        used.get_by_text("in use").wait_for()
        before = card(page, "Hit ratio").inner_text()
        # One is asked for at the parent, and the same twice more here.
        child.run(child.fetch(name, b"k.raw.s0", b"k.raw.s0", b"k.raw.s0"))
        page.locator(".card .value:text-is('66.7 %')").wait_for()

        assert before == "\u2013"
        assert page.locator("#upstream-rows tr").count() == 2
        standby = page.locator("#upstream-rows tr", has_text=NOBODY)
        assert "standby" in standby.inner_text()
        note = page.locator(".card:has(dt:text-is('Hit ratio')) .note")
        assert note.inner_text() == "of 3 fetches and fills"
        stack.callback(used.get_by_text("failed").wait_for)

    assert not page.faults


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_page_fits_and_has_a_name_for_everything(host, browser, scheme, width):
    host.run(host.publish())
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)

    page.goto(host.url)
    page.locator("#tracks canvas").nth(2).wait_for()

    # Wide tables scroll by themselves; the page does not.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.querySelectorAll('canvas')].every(c => c.ariaLabel)")
    assert page.evaluate("[...document.querySelectorAll('th')].every(h => h.scope === 'col')")
    assert page.evaluate("document.documentElement.lang") == "en"
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(16, 21, 27)") == (scheme == "dark")
    page.close()
