"""One peer asks for too much of everything: it is refused, and all others are served as before.

Each flood runs on one session of a relay core; a publisher and a subscriber of their own stand
beside it, and get everything before, during and after it. What the flood leaves behind is
bounded by named limits, and gone when its session is.
"""

import random

import pytest
from tests.unit.relay.test_publish import push
from tests.unit.relay.world import (
    NAMESPACE,
    TRACK,
    WHOLE,
    World,
    block,
    whole,
)

from kvcs.errors import PublishDoneCode, RequestErrorCode, StreamResetCode, TerminationCode
from kvcs.moqt.codepoints import LocationFilterType
from kvcs.moqt.session import events as ev
from kvcs.moqt.session.limits import SessionLimits
from kvcs.moqt.track.responder import MAX_FILLS
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import FillParameters, Parameters
from kvcs.moqt.wire.properties import Properties
from kvcs.moqt.wire.request import RequestUpdate
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.names import FullTrackName, TrackNamespace

FROM_START = FillParameters(location_filter=LocationFilter.absolute_start(0, 0))


@pytest.fixture
def relay():
    """A relay with a published Track, and the peer that attacks."""
    world = World(max_tracks=40, max_namespaces_per_session=20, max_prefixes_per_session=10)
    publisher = world.publisher()
    publisher.add_groups(0, 1)
    attacker = world.client()
    yield attacker
    assert_served(world)
    assert not any(client.session.is_closed for client in world.clients if client is not attacker)


def assert_served(world):
    """Somebody else still gets everything."""
    reader = world.client()
    request_id = reader.subscribe()
    assert reader.objects(request_id) == whole(2)


def track(number):
    return FullTrackName(NAMESPACE, b"track %d" % number)


def namespace(number):
    return TrackNamespace((b"flood", b"%d" % number))


def namespace_track(number):
    return FullTrackName(namespace(number), b"x")


def refusals(client):
    return [e for e in client.events if isinstance(e, ev.RequestRejected)]


# Requests.


def test_more_requests_than_the_limit_are_refused(relay):
    limit = SessionLimits().max_requests
    parameters = Parameters(rendezvous_timeout_ms=60_000)

    for number in range(limit + 50):
        relay.session.subscribe(
            FullTrackName(namespace(number % 30), b"x"), parameters, now=relay.world.now
        )
    relay.world.settle()

    refused = refusals(relay)
    assert len(refused) == 50
    assert {e.code for e in refused} == {RequestErrorCode.EXCESSIVE_LOAD}
    assert not relay.link.session.is_closed


def test_ever_new_tracks_leave_nothing_behind(relay):
    for number in range(500):
        relay.subscribe(track=track(number))
        relay.fetch(LocationFilter.none(), track=track(number))
        relay.send(relay.session.track_status, track(number))

    relay.world.pass_time(120)

    assert relay.world.statistics.tracks == 0


LARGE = Properties.of((0x3801, bytes(60_000)))


def test_large_properties_of_many_tracks_stay_in_the_budget():
    world = World(cache_bytes=2**20)
    publisher, attacker = world.publisher(), world.client()
    publisher.add_groups(0, 1)

    for number in range(100):
        push(attacker, track(number), LARGE)
        attacker.add(block(0, 0), track=track(number))
        # One may be too much until it has ended.
        assert world.statistics.cache_bytes <= 2**20 + 4 * len(LARGE.raw)
    attacker.lose()
    world.pass_time(30)

    kept = [held.supply.store.properties.raw for held in world.core.tracks()]
    assert sum(map(len, kept)) <= 2**20
    assert_served(world)


def test_properties_that_crowd_the_cache_end_their_track_and_no_other_is_taken():
    world = World(cache_bytes=2**20)
    publisher, attacker, other = world.publisher(), world.client(), world.client()
    publisher.add_groups(0, 1)
    reader = world.client()
    request_id = reader.subscribe()
    offers = [push(attacker, track(number), LARGE) for number in range(10)]

    ended = [one for one in offers if attacker.of(one, ev.RequestCancelled)]
    assert 0 < len(ended) < 10
    assert world.statistics.cache_bytes <= 2**20

    small = [push(attacker, namespace_track(number)) for number in range(200)]
    refused = [attacker.rejection(one) for one in small if attacker.of(one, ev.RequestRejected)]
    assert set(refused) == {RequestErrorCode.EXCESSIVE_LOAD}
    publisher.add_groups(2)
    assert sorted(reader.objects(request_id)) == whole(3)
    attacker.lose()
    world.pass_time(30)
    push(other)  # which is taken again
    assert not refusals(other)


@pytest.mark.parametrize("kind", ["subscribe", "fetch", "publish", "rendezvous", "prefix"])
def test_requests_that_are_cancelled_at_once_leave_nothing_behind(relay, kind):
    session, world = relay.session, relay.world
    for number in range(300):
        match kind:
            case "subscribe":
                request_id = session.subscribe(TRACK, WHOLE, now=world.now)
            case "fetch":
                request_id = session.fetch(TRACK, now=world.now)
            case "publish":
                request_id = session.publish(track(number % 20), now=world.now)
            case "rendezvous":
                wait = Parameters(rendezvous_timeout_ms=60_000)
                request_id = session.subscribe(track(number % 20), wait, now=world.now)
            case _:
                request_id = session.subscribe_tracks(namespace(number), now=world.now)
        if number % 2:
            world.settle()
        if session.is_active(request_id):
            session.cancel(request_id, now=world.now)
        world.settle()

    world.pass_time(120)

    statistics = world.statistics
    assert (statistics.subscriptions, statistics.fetches) == (0, 0)
    assert statistics.tracks <= 1
    assert len(world.core._alarms) <= 2


def test_more_fetches_than_the_limit_are_refused(relay):
    relay.room = 0

    for _ in range(200):
        relay.fetch(LocationFilter.none())

    assert {e.code for e in refusals(relay)} == {RequestErrorCode.EXCESSIVE_LOAD}
    assert relay.world.statistics.fetches <= 64
    relay.room = 2**30


def test_fills_without_number_end_their_subscription(relay):
    """Each REQUEST_UPDATE may ask for a fill; a subscriber that takes none asks for ever more."""
    request_id = relay.subscribe()
    relay.room = 0
    parameters = Parameters(fill=FROM_START)

    for _ in range(2 * MAX_FILLS):
        if relay.session.is_active(request_id):
            relay.session.update(request_id, parameters, now=relay.world.now)
            relay.world.settle()

    done = relay.one(request_id, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.UPDATE_FAILED
    relay.room = 2**30
    relay.world.pass_time(1)
    assert relay.world.statistics.fetches == 0
    assert not relay.link.session.is_closed


def test_fills_in_one_flight_end_their_subscription(relay):
    request_id = relay.subscribe()
    relay.room = 0

    for _ in range(60):
        relay.session.update(request_id, Parameters(fill=FROM_START), now=relay.world.now)
    relay.world.settle()

    assert not relay.session.is_active(request_id)
    assert not relay.link.session.is_closed


def test_updates_that_do_not_wait_for_answers_close_the_session(relay):
    request_id = relay.subscribe()
    stream_id = relay.session._registry.by_id[request_id].stream_id
    updates = b"".join(
        RequestUpdate(request_id=2 * number, parameters=Parameters(subscriber_priority=1)).encode()
        for number in range(1, SessionLimits().max_request_updates + 2)
    )

    relay.link.session.receive_stream(stream_id, updates, False, now=relay.world.now)
    relay.world.settle()

    (closed,) = [e for e in relay.events if isinstance(e, ev.SessionClosed)]
    assert closed.error.code == TerminationCode.TOO_MANY_REQUEST_UPDATES


# Namespaces.


def test_more_namespaces_than_the_limit_are_refused(relay):
    for number in range(50):
        relay.announce(namespace(number))

    assert len(refusals(relay)) == 30
    assert {e.code for e in refusals(relay)} == {RequestErrorCode.EXCESSIVE_LOAD}
    relay.lose()
    assert relay.world.statistics.namespaces == 1


@pytest.mark.parametrize("kind", ["subscribe_namespace", "subscribe_tracks"])
def test_more_prefixes_than_the_limit_are_refused(relay, kind):
    for number in range(50):
        relay.send(getattr(relay.session, kind), namespace(number))

    assert len(refusals(relay)) == 40


def test_cached_tracks_make_room_for_new_ones(relay):
    """A table full of Tracks that are only held must not shut out everybody else for ever."""
    world = relay.world
    for number in range(100):
        publisher, name = world.client(), FullTrackName(namespace(number), b"k.raw.s0")
        publisher.store(name)
        publisher.announce(name.namespace)
        reader = world.client()
        request_id = reader.subscribe(track=name)
        publisher.add_groups(0, track=name)
        publisher.end_track(1, track=name)
        assert reader.objects(request_id) == whole(1), f"publication {number} was refused"
        reader.lose()
        publisher.lose()
        world.pass_time(2)

    assert world.statistics.tracks <= 40


# Data streams.


def test_streams_of_unknown_tracks_are_bounded(relay):
    """A publisher opens streams for Track Aliases that nothing has explained."""
    session, world = relay.session, relay.world
    limits = SessionLimits()

    for number in range(10 * limits.max_pending_streams):
        encoded = SubgroupHeader(
            track_alias=1000 + number, group_id=0, subgroup_id=0, publisher_priority=0
        ).encode()
        relay.link.session.receive_stream(
            4 * number + 2 + 400, encoded + bytes(1000), False, now=world.now
        )

    held = relay.link.session._incoming._held
    assert len(held._streams) == limits.max_pending_streams
    stopped = relay.link.session.take_actions()
    assert {a.code for a in stopped} == {StreamResetCode.EXCESSIVE_LOAD}
    relay.link.session.advance(now=world.now + limits.pending_timeout + 1)
    assert not held._streams
    assert not relay.link.session.is_closed
    assert not session.is_closed


def test_objects_that_never_end_are_bounded(relay):
    """Large Objects begun on many streams, none of them finished."""
    world = relay.world
    relay.store()
    world.clients[0].lose()
    relay.announce()
    reader = world.client()
    reader.subscribe()
    (asked,) = relay.asked(ev.SubscribeReceived)
    session = relay.link.session
    limits = SessionLimits()
    size = limits.max_object_bytes
    alias = relay.session._registry.by_id[asked.request_id].track_alias

    for number in range(8):
        header = SubgroupHeader(
            track_alias=alias, group_id=number, subgroup_id=0, publisher_priority=0
        )
        start = header.encode() + b"\x00" + b"\xff" + size.to_bytes(8)
        session.receive_stream(4 * number + 402, start, False, now=world.now)
        session.receive_stream(4 * number + 402, bytes(size - 1), False, now=world.now)

    assert session._context.partial_bytes <= limits.max_partial_bytes
    assert not session.is_closed
    session.advance(now=world.now + limits.data_stream_timeout + 1)
    assert session._context.partial_bytes == 0
    assert not session.is_closed
    relay.lose()  # or it would be asked for what it does not have
    publisher = world.publisher()
    publisher.add_groups(0, 1)


def test_object_above_the_limit_ends_its_stream_only(relay):
    world = relay.world
    relay.store(track(1))
    relay.announce(NAMESPACE)
    reader = world.client()
    request_id = reader.subscribe(track=track(1))
    big = block(0, 0, size=SessionLimits().max_object_bytes + 2)

    relay.add(big, track=track(1))
    relay.add_groups(1, track=track(1))

    assert reader.objects(request_id) == [(1, i) for i in range(4)]
    assert not relay.link.session.is_closed


# Random requests.


def random_filter(chance):
    numbers = (0, 1, 2, 2**32, 2**62, 2**64 - 2, 2**64 - 1)
    while True:
        kind = chance.choice(list(LocationFilterType))
        fields = [chance.choice(numbers) for _ in range(4)]
        try:
            return LocationFilter(kind, *fields)
        except (ValueError, TypeError):
            continue


@pytest.mark.parametrize("part", range(10))
def test_huge_ranges_make_no_work(relay, part):
    """Filters with ids up to 2^64-1, alone and as fills, of one reader and of another."""
    chance = random.Random(part)

    for _ in range(40):
        fill = FillParameters(location_filter=random_filter(chance))
        parameters = Parameters(location_filter=random_filter(chance), fill=fill)
        request_id = relay.subscribe(parameters)
        relay.fetch(random_filter(chance))
        if relay.session.is_active(request_id):
            relay.send(relay.session.update, request_id, parameters)
            relay.session.cancel(request_id, now=relay.world.now)
        relay.world.settle()

    relay.world.pass_time(10)
    assert not relay.link.session.is_closed
    assert relay.world.statistics.fetches == 0
