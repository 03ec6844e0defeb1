"""What a relay says of itself in detail."""

from types import SimpleNamespace

import pytest
from tests.unit.relay.world import NAMESPACE, TRACK

from kvcs.errors import RequestErrorCode
from kvcs.moqt.track.outbox import Outbox
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.demand import Demand
from kvcs.relay.report import Reporter

OTHER = TrackNamespace((b"kvcs-1", b"other"))


def link(client, *, behind_since=None):
    outbox = Outbox()
    outbox.behind_since = behind_since
    return SimpleNamespace(
        session=client.link.session,
        outbox=outbox,
        peer=f"192.0.2.{client.peer.id}:1",
        started_at=client.world.now,
        bytes_in=10,
        bytes_out=20,
        queued_bytes=30,
    )


@pytest.fixture
def links():
    return {}


@pytest.fixture
def reporter(world, links):
    return Reporter(world.core, links)


def test_session_is_reported_with_what_it_does(world, links, reporter):
    publisher = world.client()
    publisher.announce()
    links[publisher.peer.id] = link(publisher)
    publisher.peer.going_away = True

    (session,) = reporter.sessions(10, now=world.now + 5)

    assert session.session_id == publisher.peer.id
    assert session.address == "192.0.2.1:1"
    assert session.age == 5.0
    assert session.namespaces == 1
    assert (session.bytes_in, session.bytes_out, session.queued_bytes) == (10, 20, 30)
    assert session.behind == 0.0
    assert session.is_going_away


def test_session_that_has_just_ended_is_reported_without_the_core(world, links, reporter):
    client = world.client()
    links[client.peer.id] = link(client)
    world.core._peers.clear()

    (session,) = reporter.sessions(10, now=world.now)

    assert not session.is_going_away


def test_sessions_furthest_behind_come_first_then_the_newest(world, links, reporter):
    for since in (None, 40.0, 90.0, None):
        client = world.client()
        links[client.peer.id] = link(client, behind_since=since)

    sessions = reporter.sessions(3, now=100.0)

    assert [(session.session_id, session.behind) for session in sessions] == [
        (2, 60.0),
        (3, 10.0),
        (4, 0.0),
    ]
    assert reporter.slow_sessions(10.0, now=100.0) == 2


def test_namespaces_used_last_come_first(world, reporter):
    publisher, subscriber = world.client(), world.client()
    publisher.announce(OTHER)
    publisher.announce()
    publisher.add_groups(0)
    world.now += 10
    subscriber.subscribe()
    world.now += 5

    page = reporter.namespaces(10, now=world.now)

    assert (page.total, page.matching) == (2, 2)
    used, unused = page.shown
    assert used.namespace == NAMESPACE.format()
    assert (used.publishers, used.tracks, used.deliveries, used.idle) == (1, 1, 1, 5.0)
    assert used.size_bytes > 400
    assert (unused.namespace, unused.tracks, unused.idle) == (OTHER.format(), 0, None)
    assert used.is_listed
    assert unused.is_listed


def test_namespace_whose_publisher_left_early_is_shown_as_not_listed(world, reporter):
    publisher, subscriber = world.client(), world.client()
    publisher.announce()
    publisher.add_groups(0)
    subscriber.subscribe()
    publisher.lose()

    (report,) = reporter.namespaces(10, now=world.now).shown

    assert (report.is_listed, report.publishers, report.tracks) == (False, 0, 1)
    assert report.size_bytes > 400


def test_tracks_are_shown_in_the_order_they_appeared(world, reporter):
    publisher, subscriber = world.client(), world.client()
    second = FullTrackName(NAMESPACE, b"v.raw.s0")
    publisher.announce()
    for track in (TRACK, second):
        publisher.add_groups(0, track=track)
        subscriber.subscribe(track=track)
        publisher.end_track(1, track=track)

    reports = list(reporter.tracks(NAMESPACE, 10))

    assert [report.name for report in reports] == ["k.2eraw.2es0", "v.2eraw.2es0"]
    assert all(report.is_complete for report in reports)
    assert all(report.arrival.columns == ("9999", "----") for report in reports)
    assert len(list(reporter.tracks(NAMESPACE, 1))) == 1


def test_track_that_goes_while_it_is_looked_at_is_left_out(world, reporter):
    publisher, subscriber = world.client(), world.client()
    publisher.announce()
    publisher.add_groups(0)
    subscriber.subscribe()
    looking = reporter.tracks(NAMESPACE, 10)
    for track in tuple(world.core.tracks()):
        world.core._tracks.remove(track.name)

    assert list(looking) == []


def test_many_namespaces_are_looked_for_in_short_steps(world, reporter):
    publishers = [world.client(), world.client()]
    for index in range(1200):
        publishers[index % 2].announce(TrackNamespace((b"n", b"%04d" % index)))

    looking = reporter.look_for_namespaces(5, now=world.now)
    steps = 0
    while True:
        try:
            next(looking)
        except StopIteration as stop:
            page = stop.value
            break
        steps += 1
        publishers[0].announce(TrackNamespace((b"meanwhile", b"%d" % steps)))

    assert steps >= 3
    assert page.total == 1200
    assert len(page.shown) == 5


def test_track_that_no_publisher_has_is_none(world, reporter):
    publisher, subscriber = world.client(), world.client()
    publisher.announce()
    publisher.add_groups(0)
    subscriber.subscribe()
    for _ in range(2):
        refused = subscriber.subscribe(track=FullTrackName(NAMESPACE, b"nothing"))
        subscriber.fetch(LocationFilter.absolute_start(0, 0), FullTrackName(NAMESPACE, b"nothing"))
    assert subscriber.rejection(refused) is RequestErrorCode.DOES_NOT_EXIST
    world.core.advance(now=world.now)

    (shown,) = reporter.namespaces(10, now=world.now).shown
    assert shown.tracks == world.statistics.tracks == 1


def test_what_is_counted_often_does_not_look_at_every_track(world, monkeypatch):
    publisher, subscriber = world.client(), world.client()
    publisher.announce()
    publisher.add_groups(0)
    subscriber.subscribe()

    with monkeypatch.context() as patch:
        patch.setattr(Demand, "deliveries", None)
        statistics = world.statistics

    assert statistics.subscriptions == 1
    assert statistics.subscriptions + statistics.fetches == len(
        [*world.core.track(TRACK).demand.deliveries()]
    )
