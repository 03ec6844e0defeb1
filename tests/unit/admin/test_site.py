"""What the admin listener says of a relay."""

import asyncio
import json
import re
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.relay.world import NAMESPACE, TRACK

from kvcs.admin import AdminConfig, AdminLimits, NamespaceStatus, Status
from kvcs.admin._reference import BEGIN, END, reference, replaced
from kvcs.admin.http import Request, Response
from kvcs.admin.metrics import COUNTS, STATES, Kind
from kvcs.admin.site import Site
from kvcs.errors import RequestErrorCode
from kvcs.moqt.track.outbox import Outbox
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay import RelayStatistics, UpstreamReport

ROOT = Path(__file__).parents[3]


def link(*, behind_since=None, peer="192.0.2.1:1", implementation="kvcs"):
    outbox = Outbox()
    outbox.behind_since = behind_since
    return SimpleNamespace(
        session=SimpleNamespace(peer_options=SimpleNamespace(implementation=implementation)),
        outbox=outbox,
        peer=peer,
        started_at=0.0,
        bytes_in=1,
        bytes_out=2,
        queued_bytes=3,
    )


async def get(admin, ask, target, kind=None, **settings):
    async with admin(**settings) as address:
        answer = await ask(address, target)
    assert answer.status == 200, answer.text
    return json.loads(answer.body) if kind is None else msgspec.json.decode(answer.body, type=kind)


# Health.


async def test_relay_that_is_open_is_ready(admin, ask):
    async with admin() as address:
        answer = await ask(address, "/readyz")

    assert (answer.status, answer.text) == (200, "ready\n")


async def test_relay_that_drains_is_not_ready_but_alive(admin, ask, relay):
    relay.is_open, relay.is_draining = False, True
    async with admin() as address:
        ready, alive = await ask(address, "/readyz"), await ask(address, "/healthz")

    assert (ready.status, ready.text) == (503, "draining\n")
    assert alive.status == 200


async def test_relay_that_is_closed_is_not_ready(admin, ask, relay):
    relay.is_open = False
    async with admin() as address:
        answer = await ask(address, "/readyz")

    assert (answer.status, answer.text) == (503, "not listening\n")


PARENTS = (
    UpstreamReport(url="moqt://a/", is_used=False, error="connection refused"),
    UpstreamReport(url="moqt://b/", is_used=False, error=""),
)


@pytest.mark.parametrize("settings", [{}, {"ready_without_upstream": True}])
@pytest.mark.parametrize("used", [0, 1, None])
async def test_relay_with_parents_needs_one_unless_it_may_do_without(
    admin, ask, relay, settings, used
):
    relay.parents = tuple(
        replace(parent, is_used=index == used) for index, parent in enumerate(PARENTS)
    )
    async with admin(**settings) as address:
        answer = await ask(address, "/readyz")

    is_ready = used is not None or bool(settings)
    assert (answer.status, answer.text) == (
        (200, "ready\n") if is_ready else (503, "no upstream\n")
    )


# Metrics.


async def metrics_of(admin, ask, headers=()):
    async with admin() as address:
        return await ask(address, "/metrics", headers=headers)


async def test_metrics_are_those_of_the_tables(admin, ask):
    answer = await metrics_of(admin, ask)
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}

    assert answer.headers["content-type"].startswith("text/plain; version=")
    for count in COUNTS:
        family = families[count.name.removesuffix("_total")]
        assert family.type == count.kind
        assert family.documentation == count.text
    for state in STATES:
        assert families[state.name].type == "gauge"
    assert "process_resident_memory_bytes" in families


async def test_prometheus_gets_the_form_it_prefers(admin, ask):
    answer = await metrics_of(
        admin, ask, [("Accept", "application/openmetrics-text;version=1.0.0")]
    )

    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


async def test_counters_have_the_values_of_the_relay(admin, ask, relay):
    publisher, subscriber = relay.world.client(), relay.world.client()
    publisher.announce()
    publisher.add_groups(0)
    subscriber.subscribe(track=FullTrackName(NAMESPACE, b"nothing"))
    relay.world.core.metrics.note_refusal(RequestErrorCode.UNAUTHORIZED)

    answer = await metrics_of(admin, ask)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }

    statistics = relay.statistics()
    assert samples["kvcs_relay_sessions",] == 2
    assert samples["kvcs_relay_namespaces",] == 1
    assert samples["kvcs_relay_ready",] == 1
    assert samples["kvcs_relay_requests_not_found_total",] == statistics.requests_not_found == 1
    assert statistics.requests_refused
    for code, number in statistics.requests_refused.items():
        assert samples["kvcs_relay_requests_refused_total", code] == number


def test_every_counter_of_the_relay_is_a_metric():
    assert [count.field for count in COUNTS] == [field.name for field in fields(RelayStatistics)]


#: Files of the relay, and how they give a reason there.
REASONS = {
    "objects_rejected": ("*.py", (r'objects_rejected\["(\w+)"\]',)),
    "evicted_bytes": ("cache.py", (r'_drop(?:_passed_of)?\(entry, (?:\w+, )?"(\w+)"',)),
    "disk_objects_dropped": (
        "disk/[tw]r[ai]*.py",
        (
            *(r'objects_dropped\["(\w+)"\]', r'return "(\w+)"$'),
            r'abandon\(self, "(\w+)"\)',
        ),
    ),
    "disk_evicted_bytes": (
        "disk/*.py",
        (
            *(r'\.evicted_bytes\["(\w+)"\]', r'abandon\(self, "(\w+)"\)'),
            *(r'evict\(namespace, "(\w+)"\)', r'_discarded\["(\w+)"\]'),
            *(r'reason = "(\w+)" if', r'went_back else "(\w+)"'),
        ),
    ),
    "disk_failures": ("disk/executor.py", (r'"(full|error)"',)),
}


@pytest.mark.parametrize("field", REASONS)
def test_values_of_labels_are_those_that_the_relay_uses(field):
    files, patterns = REASONS[field]
    texts = [path.read_text() for path in (ROOT / "src" / "kvcs" / "relay").glob(files)]
    used = {
        value
        for text in texts
        for pattern in patterns
        for value in re.findall(pattern, text, re.MULTILINE)
    }
    (count,) = [count for count in COUNTS if count.field == field]

    assert used == set(count.values)


def test_every_label_says_what_its_values_are():
    assert all(bool(count.label) == bool(count.values) for count in COUNTS)


PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "deploy" / "alerts.yml"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_metrics_that_are_written_about_are_there(page):
    counts = {count.name: count for count in COUNTS}
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"kvcs_relay_\w*[a-z]", text))
    parts = re.findall(r'(kvcs_relay_\w+)\{(\w+)="(\w+)"\}', text)

    assert named <= counts.keys() | {state.name for state in STATES} | {"kvcs_relay_info"}
    for name, label, value in parts:
        assert (counts[name].label, value in counts[name].values) == (label, True)


def test_alerts_are_rules_that_say_what_is_wrong():
    yaml = pytest.importorskip("yaml", reason="no YAML library")
    (group,) = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text())["groups"]
    names = [rule["alert"] for rule in group["rules"]]

    assert len(set(names)) == len(names) > 5
    for rule in group["rules"]:
        assert set(rule) <= {"alert", "expr", "for", "annotations"}
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert rule["annotations"]["summary"].endswith(".")


def test_names_of_metrics_follow_the_conventions():
    names = [count.name for count in COUNTS] + [state.name for state in STATES]

    assert len(set(names)) == len(names)
    for count in COUNTS:
        assert (count.kind is Kind.COUNTER) == count.name.endswith("_total")
        assert (count.unit == "bytes") == ("_bytes" in count.name)
        assert bool(count.label) == (
            RelayStatistics.__dataclass_fields__[count.field].type not in {int, bool}
        )
    assert all(name.startswith("kvcs_relay_") for name in names)


def test_page_has_every_metric_as_it_is():
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")

    assert replaced(page) == page, "python -m kvcs.admin._reference docs/reference/metrics.md"


def test_only_the_part_between_the_marks_is_replaced():
    assert replaced(f"a\n{BEGIN}\nold\n{END}\nz") == f"a\n{BEGIN}\n\n{reference()}\n{END}\nz"


# Status.


async def test_status_says_what_the_relay_does(admin, ask, relay):
    publisher = relay.world.client()
    publisher.announce()
    relay.links[publisher.peer.id] = link()
    relay.parents = (replace(PARENTS[0], is_used=True, error=""), PARENTS[1])

    status = await get(admin, ask, "/status.json", Status)

    assert status.is_ready
    assert status.upstreams == relay.parents
    assert status.address == "127.0.0.1:4433"
    assert status.statistics == relay.statistics()
    assert [session.address for session in status.sessions] == ["192.0.2.1:1"]
    assert [session.namespaces for session in status.sessions] == [1]
    (namespace,) = status.namespaces.shown
    assert namespace.namespace == NAMESPACE.format()
    assert (namespace.publishers, namespace.is_listed, namespace.idle) == (1, True, None)


async def test_sessions_that_are_behind_come_first_and_are_counted_as_slow(admin, ask, relay):
    now = asyncio.get_running_loop().time()
    relay.links |= {
        1: link(peer="fine"),
        2: link(peer="slow", behind_since=now - 60),
        3: link(peer="sending", behind_since=now - 1),
        4: link(peer="newest", implementation=None),
    }

    status = await get(admin, ask, "/status.json", Status)

    assert [session.address for session in status.sessions] == ["slow", "sending", "newest", "fine"]
    assert status.sessions[0].behind >= 60
    assert (status.slow_after, status.slow_sessions) == (5.0, 1)


async def test_answers_are_bounded_whatever_there_is(admin, ask, relay):
    publisher = relay.world.client()
    for index in range(300):
        publisher.announce(TrackNamespace((b"n", b"%03d" % index)))
    relay.links |= {number: link() for number in range(300)}

    status = await get(admin, ask, "/status.json?limit=1000", Status)
    default = await get(admin, ask, "/status.json", Status)

    assert (status.namespaces.total, len(status.namespaces.shown)) == (300, 200)
    assert (len(status.sessions), len(default.sessions)) == (200, 50)
    assert len(default.namespaces.shown) == 50


async def test_pages_follow_each_other(admin, ask, relay):
    publisher = relay.world.client()
    for index in range(25):
        publisher.announce(TrackNamespace((b"n", b"%02d" % index)))

    seen = []
    for offset in (0, 10, 20, 30):
        status = await get(admin, ask, f"/status.json?limit=10&offset={offset}", Status)
        seen.append([report.namespace for report in status.namespaces.shown])

    assert [len(page) for page in seen] == [10, 10, 5, 0]
    assert len({name for page in seen for name in page}) == 25


async def test_search_finds_parts_of_names(admin, ask, relay):
    publisher = relay.world.client()
    for name in (b"alpha", b"beta", b"alphabet"):
        publisher.announce(TrackNamespace((name,)))

    status = await get(admin, ask, "/status.json?search=alpha", Status)

    assert {report.namespace for report in status.namespaces.shown} == {"alpha", "alphabet"}
    assert (status.namespaces.total, status.namespaces.matching) == (3, 2)


@pytest.mark.parametrize(
    "target",
    [
        "/status.json?limit=-1",
        "/status.json?limit=x",
        "/status.json?offset=9999999999",
        "/status.json?limit=%D9%A3",
        "/namespace.json?name=.zz",
        "/namespace.json?name=%3Cscript%3E",
        "/status.json?" + "&".join(f"a{index}=1" for index in range(30)),
    ],
)
async def test_wrong_question_is_a_bad_request(admin, ask, target):
    async with admin() as address:
        answer = await ask(address, target)

    assert answer.status == 400
    assert answer.headers["content-type"].startswith("text/plain")


async def test_namespace_shows_which_objects_are_here(admin, ask, relay):
    publisher, subscriber = relay.world.client(), relay.world.client()
    publisher.announce()
    publisher.add_groups(0, 1)
    subscriber.subscribe()
    relay.world.settle()

    shown = await get(admin, ask, f"/namespace.json?name={NAMESPACE.format()}", NamespaceStatus)

    (track,) = shown.tracks
    assert track.name == FullTrackName(NAMESPACE, TRACK.name).format().rpartition("--")[2]
    assert track.subscriptions == 1
    assert track.is_received
    assert track.arrival.group_ids == (0, 1)
    assert track.arrival.columns == ("9999", "9999")


async def test_namespace_without_tracks_is_empty(admin, ask):
    shown = await get(admin, ask, "/namespace.json?name=nothing", NamespaceStatus)

    assert shown.tracks == ()


async def test_answer_serves_again_for_a_moment(admin, ask, relay):
    asked = []
    statistics = relay.statistics
    relay.statistics = lambda: asked.append(1) or statistics()
    async with admin(limits=AdminLimits(snapshot_age=60.0)) as address:
        first = await ask(address, "/status.json")
        second = await ask(address, "/status.json")
        await ask(address, "/status.json?limit=1")

    assert first.body == second.body
    assert len(asked) == 2


async def test_kept_answers_are_few(relay):
    site = Site(relay, AdminConfig(), version="0")
    for index in range(100):
        await site.answer(Request("/status.json", {"search": str(index)}))

    assert len(site._kept) <= 32


async def test_kept_answers_are_bounded_in_octets_and_the_newest_is_kept(relay, monkeypatch):
    site = Site(relay, AdminConfig(limits=AdminLimits(snapshot_age=60.0)), version="0")

    async def large(_):
        return Response(bytes(3 * 2**20), "text/plain")

    monkeypatch.setitem(site._made, "/metrics", large)
    for index in range(10):
        await site.answer(Request("/metrics", {"n": str(index)}))
    assert sum(len(response.body) for _, response in site._kept.values()) <= 8 * 2**20

    async def huge(_):
        return Response(bytes(9 * 2**20), "text/plain")

    monkeypatch.setitem(site._made, "/metrics", huge)
    first = await site.answer(Request("/metrics", {"n": "x"}))
    assert await site.answer(Request("/metrics", {"n": "x"})) is first
    assert len(site._kept) == 1


async def test_answer_that_took_long_serves_for_longer(relay):
    site = Site(relay, AdminConfig(limits=AdminLimits(snapshot_age=0.0)), version="0")
    times = iter([0.0, 1.0, 20.9, 21.1, 21.2])
    site._clock = lambda: next(times)

    first = await site.answer(Request("/metrics", {}))
    again = await site.answer(Request("/metrics", {}))
    new = await site.answer(Request("/metrics", {}))

    assert again is first
    assert new is not first
