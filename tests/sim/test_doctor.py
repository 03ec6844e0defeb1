"""The doctor examines relays on the network in memory: ours, and ones that lack something."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from kvcs.cli.doctor.examination import examine
from kvcs.cli.doctor.finding import ROWS, Grade, Outcome
from kvcs.cli.doctor.probes import PROBES
from kvcs.cli.doctor.site import Site
from kvcs.cli.doctor.source import KEPT_SECONDS
from kvcs.endpoint.connect import ConnectConfig
from kvcs.endpoint.serve import ServeConfig, serve
from kvcs.errors import ConfigError, RequestErrorCode, TerminationCode
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.session.events import FetchReceived, ObjectReceived
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES
from kvcs.relay import Relay, RelayConfig, allow_all
from kvcs.relay.auth import AccessAction
from kvcs.testing import LinkProfile, MemoryNetwork, run
from kvcs.transport.interface import ServerTls

URL = "moqt://localhost:4433/"
TLS = ServerTls(certificate_file="", private_key_file="")


@asynccontextmanager
async def relay(network, **settings):
    config = RelayConfig(**{"tls": TLS, "authorize": allow_all, **settings})
    async with Relay(config, transport=network) as it:
        yield it


def examined(*, seconds=120.0, network=None, **settings):
    """Examine a relay of ours with these settings; return findings, outcome, relay, seconds."""
    network = network or MemoryNetwork()

    async def scenario():
        loop = asyncio.get_running_loop()
        async with relay(network, **settings) as it:
            begun = loop.time()
            report = await examine(Site(URL, ConnectConfig(), transport=network), seconds=seconds)
            elapsed = loop.time() - begun
            # All that the doctor published has expired by then.
            await asyncio.sleep(KEPT_SECONDS + 1)
            return report, it.statistics(), elapsed

    report, statistics, elapsed = run(scenario())
    findings = {finding.row.name: finding for finding in report.findings()}
    return findings, report.outcome(), statistics, elapsed


def lacking(findings):
    return {name for name, finding in findings.items() if not finding.is_fine}


def test_relay_of_kvcs_has_all_that_kvcs_uses():
    findings, outcome, statistics, elapsed = examined()

    assert {name: findings[name].text for name in lacking(findings)} == {}
    assert outcome is Outcome.GOOD
    assert (statistics.sessions, statistics.namespaces) == (0, 0)
    assert elapsed < 15


def test_slow_and_distant_relay_is_not_blamed_for_its_link():
    network = MemoryNetwork(profile=LinkProfile(delay=0.1, bandwidth=2_000_000))
    findings, outcome, _, _ = examined(network=network)

    assert {name: findings[name].text for name in lacking(findings)} == {}
    assert outcome is Outcome.GOOD
    assert findings["round-trip"].value == pytest.approx(0.2, rel=0.1)
    assert findings["live-rate"].value == pytest.approx(2_000_000, rel=0.3)


def test_relay_without_range_filters_is_a_limitation():
    findings, outcome, _, _ = examined(max_filter_ranges=0)

    assert lacking(findings) == {"filter-ranges", "range-filter"}
    assert outcome is Outcome.LIMITED


def refusing(*actions, code=RequestErrorCode.UNAUTHORIZED):
    return lambda access: code if access.action in actions else None


@pytest.mark.parametrize(
    ("action", "outcome", "rows"),
    [
        (
            AccessAction.SUBSCRIBE_NAMESPACE,
            Outcome.LIMITED,
            {"discovery", "scope-listing", "later-namespace", "withdrawal", "kept-listing"},
        ),
        (
            # Consumers turn to an unsigned manifest only when FETCH says that no other exists.
            AccessAction.FETCH,
            Outcome.UNSUITABLE,
            {
                "publication",
                "refusal",
                "fetch",
                "open-fetch",
                "range-filter",
                "filtered-cache",
                "gap-filling",
                "kept-fetch",
                "kept-publication",
                "fetch-rate",
            },
        ),
    ],
)
def test_refused_requests_are_named_and_stop_nothing_else(action, outcome, rows):
    findings, found, _, _ = examined(authorize=refusing(action))

    assert lacking(findings) == rows
    assert found is outcome
    assert "UNAUTHORIZED" in findings[min(rows)].text


def test_relay_that_refuses_to_take_a_publication_is_not_judged_and_told_at_once():
    findings, outcome, _, elapsed = examined(authorize=refusing(AccessAction.PUBLISH_NAMESPACE))

    assert outcome is Outcome.REFUSED
    assert findings["announce"].grade is Grade.BAD
    assert "UNAUTHORIZED" in findings["announce"].text
    assert findings["live"].text == "needs PUBLISH_NAMESPACE"
    assert elapsed < 5


def test_smallest_cache_of_a_relay_is_large_enough_for_an_examination():
    findings, outcome, _, _ = examined(cache_bytes=2 * 16 * 2**20)

    assert outcome is Outcome.GOOD, {name: findings[name].text for name in lacking(findings)}


def test_time_that_is_up_leaves_rows_unknown():
    findings, outcome, _, elapsed = examined(seconds=0.5)

    assert outcome is Outcome.UNSUITABLE
    assert findings["kept-publication"].text == "the time was up"
    assert elapsed < 3


def test_nobody_at_the_address_is_unsuitable_in_bounded_time():
    async def scenario():
        loop = asyncio.get_running_loop()
        site = Site(URL, ConnectConfig(), transport=MemoryNetwork())
        report = await examine(site, seconds=120)
        return report, loop.time()

    report, elapsed = run(scenario())

    findings = {finding.row.name: finding for finding in report.findings()}
    assert report.outcome() is Outcome.UNSUITABLE
    assert findings["connection"].grade is Grade.BAD
    assert findings["publication"].text == "needs QUIC connection"
    assert elapsed < 15


@asynccontextmanager
async def foreign(network, on_connection):
    config = ServeConfig(tls=TLS)
    async with serve("localhost", 4433, on_connection, config=config, transport=network) as it:
        yield it


def test_relay_that_answers_nothing_is_unsuitable_in_bounded_time():
    async def scenario():
        network = MemoryNetwork()
        loop = asyncio.get_running_loop()
        async with foreign(network, lambda connection: connection.listen(lambda _: None)):
            report = await examine(Site(URL, ConnectConfig(), transport=network), seconds=300)
            return report, loop.time()

    report, elapsed = run(scenario())

    findings = {finding.row.name: finding for finding in report.findings()}
    assert report.outcome() is Outcome.UNSUITABLE
    assert findings["connection"].grade is Grade.GOOD
    assert "no answer within 3 s" in findings["announce"].text
    assert elapsed < 30


def test_session_that_dies_in_a_probe_stops_no_other():
    async def scenario():
        network = MemoryNetwork()
        async with relay(network) as it:
            accept = it._accept

            def fragile(connection):
                accept(connection)

                def die(event):
                    if isinstance(event, FetchReceived):
                        connection.abort(TerminationCode.PROTOCOL_VIOLATION, "no FETCH here")

                connection.listen(die)

            it._server._on_connection = fragile
            return await examine(Site(URL, ConnectConfig(), transport=network), seconds=300)

    report = run(scenario())

    findings = {finding.row.name: finding for finding in report.findings()}
    assert findings["fetch"].grade is Grade.BAD
    assert "PROTOCOL_VIOLATION" in findings["fetch"].text
    assert findings["live"].grade is findings["join"].grade is Grade.GOOD
    assert findings["kept-listing"].grade is Grade.GOOD


def changed(obj, **values):
    return [obj._replace(**values)]


def end_as_group_end(obj):
    is_end = obj.status is ObjectStatus.END_OF_TRACK
    return changed(obj, status=ObjectStatus.END_OF_GROUP) if is_end else [obj]


def without_second_object(obj):
    is_lost = obj.status is ObjectStatus.NORMAL and obj.object_id == 1
    return [] if is_lost else [obj]


def with_other_octets(obj):
    is_data = obj.status is ObjectStatus.NORMAL
    return changed(obj, payload=obj.payload[:-1] + b"!") if is_data else [obj]


LIES = [
    (end_as_group_end, {"end-of-track": Grade.LIMITED}, Outcome.LIMITED),
    (
        lambda obj: changed(obj, publisher_priority=obj.publisher_priority ^ 1),
        {"priority": Grade.LIMITED},
        Outcome.LIMITED,
    ),
    (
        lambda obj: changed(obj, properties=EMPTY_PROPERTIES),
        {"object-properties": Grade.LIMITED},
        Outcome.LIMITED,
    ),
    (with_other_octets, {"payload": Grade.BAD, "publication": Grade.BAD}, Outcome.UNSUITABLE),
    (without_second_object, {"live": Grade.BAD, "join": Grade.BAD}, Outcome.UNSUITABLE),
]


@pytest.mark.parametrize(
    ("lie", "grades", "outcome"),
    LIES,
    ids=["end", "priority", "properties", "octets", "loss"],
)
def test_relay_that_changes_or_loses_objects_is_found_out(lie, grades, outcome):
    async def scenario():
        network = MemoryNetwork()
        async with relay(network) as it:
            receive = it._core.receive

            def lying(peer, event, *, now):
                if not isinstance(event, ObjectReceived):
                    receive(peer, event, now=now)
                    return
                for obj in lie(event.obj):
                    receive(peer, event._replace(obj=obj), now=now)

            it._core.receive = lying
            return await examine(Site(URL, ConnectConfig(), transport=network), seconds=400)

    report = run(scenario())

    findings = {finding.row.name: finding for finding in report.findings()}
    texts = {name: findings[name].text for name in lacking(findings)}
    assert {name: findings[name].grade for name in grades} == grades, texts
    assert report.outcome() is outcome, texts


def test_wrong_url_is_the_callers_mistake():
    async def scenario():
        with pytest.raises(ConfigError):
            await examine(Site("http://localhost/", ConnectConfig()), seconds=10)

    run(scenario())


def test_progress_names_every_probe():
    seen = []

    async def scenario():
        network = MemoryNetwork()
        async with relay(network):
            await examine(
                Site(URL, ConnectConfig(), transport=network),
                seconds=120,
                on_probe=lambda number, title: seen.append((number, title)),
            )

    run(scenario())

    assert seen == [(number, probe.title) for number, probe in enumerate(PROBES)]
    assert len(ROWS) > 30
