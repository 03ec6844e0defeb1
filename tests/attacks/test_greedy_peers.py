"""Peers that want more of a relay than their share: requests, octets, connections, patience.

Each bound is set low here and has a sensible default elsewhere; whoever keeps to it notices
nothing, and nobody else notices those who do not.
"""

import asyncio
from contextlib import AsyncExitStack

import pytest
from tests.attacks.actors import consume, publish
from tests.attacks.liar import TLS, URL
from tests.sim.test_relay_chaos import Source
from tests.unit.relay.test_publish import push
from tests.unit.relay.world import TRACK, World, whole

from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.errors import KvcsError, PublishDoneCode, RequestErrorCode, TerminationCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.session.limits import SessionLimits
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import FillParameters, Parameters
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.names import FullTrackName, Location, TrackNamespace
from kvcs.relay import Relay, RelayConfig, RelayLimits, allow_all
from kvcs.relay.egress import MIN_SHARE_BYTES
from kvcs.testing import LinkProfile, MemoryNetwork, run
from kvcs.transport.interface import TransportConfig

RATE, BURST = 10, 20


@pytest.fixture
def greedy():
    """A peer of a relay that serves others, and takes few requests of each."""
    world = World(max_request_rate=float(RATE), max_request_burst=BURST)
    publisher = world.publisher()
    publisher.add_groups(0, 1)
    greedy = world.client()
    yield greedy
    reader = world.client()
    assert reader.objects(reader.subscribe()) == whole(2)


def ask(client, times):
    """Ask for something that is answered at once; return the codes of the refusals."""
    asked = [client.send(client.session.track_status, TRACK) for _ in range(times)]
    return [event.code for one in asked for event in client.of(one, ev.RequestRejected)]


# Rates.


def test_requests_beyond_the_rate_are_refused_with_a_time_to_try_again(greedy):
    assert ask(greedy, BURST) == []
    assert ask(greedy, 3) == [RequestErrorCode.EXCESSIVE_LOAD] * 3
    refused = [event for event in greedy.events if isinstance(event, ev.RequestRejected)]
    assert {event.retry_after for event in refused} == {1.0}

    greedy.world.pass_time(2.0)

    assert ask(greedy, RATE) == []
    assert not greedy.link.session.is_closed


def test_namespaces_are_listed_over_and_over_only_as_fast_as_the_limit():
    world = World(max_listing_rate=10.0, session=SessionLimits(max_namespaces=30))
    publisher, client = world.client(), world.client()
    for number in range(20):
        publisher.announce(TrackNamespace((b"list", b"%d" % number)))

    def list_all():
        request_id = client.send(client.session.subscribe_namespace, TrackNamespace((b"list",)))
        refused = [event.code for event in client.of(request_id, ev.RequestRejected)]
        listed = len(client.of(request_id, ev.NamespaceReceived))
        if not refused:
            client.send(client.session.cancel, request_id)
        return refused or listed

    assert list_all() == 20
    assert [list_all() for _ in range(5)] == [[RequestErrorCode.EXCESSIVE_LOAD]] * 5
    world.pass_time(1.0)  # what was refused does not count
    assert list_all() == 20
    other = world.client()
    other.send(other.session.subscribe_namespace, TrackNamespace((b"list",)))
    assert len([e for e in other.events if isinstance(e, ev.NamespaceReceived)]) == 20


def test_a_prefix_that_moves_has_namespaces_listed_no_faster():
    world = World(max_listing_rate=10.0, session=SessionLimits(max_namespaces=30))
    publisher, client = world.client(), world.client()
    for number in range(20):
        publisher.announce(TrackNamespace((b"list", b"%d" % number)))
    nothing, all_of_them = TrackNamespace((b"none",)), TrackNamespace((b"list",))
    request_id = client.send(client.session.subscribe_namespace, nothing)

    for prefix in (all_of_them, nothing, all_of_them):
        move = Parameters(track_namespace_prefix=prefix)
        client.send(client.session.update, request_id, move)

    assert len(client.of(request_id, ev.NamespaceReceived)) == 20
    (refused,) = client.of(request_id, ev.UpdateRejected)
    assert refused.code == RequestErrorCode.EXCESSIVE_LOAD


@pytest.fixture
def crowd():
    """A peer of a relay at which twenty Tracks are pushed, of which ten a second are listed."""
    decisions = []
    world = World(
        authorize=decisions.append, max_listing_rate=10.0, session=SessionLimits(max_namespaces=30)
    )
    publisher, client = world.client(), world.client()
    for number in range(20):
        push(publisher, FullTrackName(CROWD, b"%d" % number))
    client.decisions = decisions
    decisions.clear()
    return client


CROWD = TrackNamespace((b"crowd",))


def subscribe_tracks(client, prefix=CROWD):
    """Subscribe to a prefix and end that; return how many Tracks came, or the refusals."""
    before = len(client.asked(ev.PublishReceived))
    request_id = client.send(client.session.subscribe_tracks, prefix)
    refused = [event.code for event in client.of(request_id, ev.RequestRejected)]
    if not refused:
        client.send(client.session.cancel, request_id)
    offers = client.asked(ev.PublishReceived)[before:]
    for offer in offers:
        client.send(client.session.reject, offer.request_id, RequestErrorCode.UNINTERESTED)
    return refused or len(offers)


def test_tracks_are_published_over_and_over_only_as_fast_as_the_limit(crowd):
    assert subscribe_tracks(crowd) == 20
    decided = len(crowd.decisions)
    assert [subscribe_tracks(crowd) for _ in range(5)] == [[RequestErrorCode.EXCESSIVE_LOAD]] * 5
    assert len(crowd.decisions) == decided + 5
    assert subscribe_tracks(crowd, TrackNamespace((b"nobody",))) == 0
    crowd.world.pass_time(1.0)  # what was refused does not count
    assert subscribe_tracks(crowd) == 20
    other = crowd.world.client()
    assert subscribe_tracks(other) == 20


def test_more_tracks_than_are_ever_listed_at_once_are_too_large_a_prefix(crowd):
    publisher = crowd.world.client()
    for number in range(20, 40):
        push(publisher, FullTrackName(CROWD, b"%d" % number))

    assert subscribe_tracks(crowd) == [RequestErrorCode.NAMESPACE_TOO_LARGE]
    assert not crowd.asked(ev.PublishReceived)


def test_a_prefix_that_moves_has_tracks_published_no_faster(crowd):
    elsewhere = TrackNamespace((b"elsewhere",))
    request_id = crowd.send(crowd.session.subscribe_tracks, elsewhere)

    for prefix in (CROWD, elsewhere, CROWD):
        crowd.send(crowd.session.update, request_id, Parameters(track_namespace_prefix=prefix))

    (refused,) = crowd.of(request_id, ev.UpdateRejected)
    assert refused.code == RequestErrorCode.EXCESSIVE_LOAD
    assert len(crowd.asked(ev.PublishReceived)) == 20


@pytest.mark.parametrize("prefix", [CROWD, TrackNamespace((b"nobody",))])
@pytest.mark.parametrize("kind", ["subscribe_namespace", "subscribe_tracks"])
def test_how_much_is_below_a_prefix_that_is_hidden_does_not_show(kind, prefix):
    def hide(access):
        return RequestErrorCode.DOES_NOT_EXIST if access.action.name.startswith("SUB") else None

    world = World(authorize=hide, max_listing_rate=10.0, session=SessionLimits(max_namespaces=10))
    publisher, client = world.client(), world.client()
    for number in range(20):
        push(publisher, FullTrackName(CROWD, b"%d" % number))
        publisher.announce(TrackNamespace((*CROWD.fields, b"%d" % number)))

    for _ in range(3):
        request_id = client.send(getattr(client.session, kind), prefix)
        client.send(client.session.update, request_id, Parameters(track_namespace_prefix=prefix))
        client.send(client.session.cancel, request_id)

    kinds = {type(event) for event in client.events if hasattr(event, "request_id")}
    assert kinds == {ev.RequestAccepted, ev.UpdateAccepted}


def test_every_kind_of_request_counts(greedy):
    session, now = greedy.session, greedy.world.now
    ask(greedy, BURST)
    namespace = TrackNamespace((b"greedy",))
    for command, subject in [
        (session.subscribe, TRACK),
        (session.fetch, TRACK),
        (session.track_status, TRACK),
        (session.publish, FullTrackName(namespace, b"x")),
        (session.publish_namespace, namespace),
        (session.subscribe_namespace, namespace),
        (session.subscribe_tracks, namespace),
    ]:
        request_id = command(subject, now=now)
        greedy.world.settle()
        assert greedy.rejection(request_id) == RequestErrorCode.EXCESSIVE_LOAD


def test_updates_beyond_the_rate_end_their_subscription_only(greedy):
    request_id, other = greedy.subscribe(), greedy.subscribe(track=TRACK)

    for _ in range(BURST):
        if greedy.session.is_active(request_id):
            parameters = Parameters(subscriber_priority=7)
            greedy.send(greedy.session.update, request_id, parameters)

    done = greedy.one(request_id, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.UPDATE_FAILED
    assert greedy.session.is_active(other)
    assert greedy.world.statistics.subscriptions == 1


def test_states_beyond_the_rate_are_not_heard_and_a_flood_of_them_closes(greedy):
    world = greedy.world
    track = FullTrackName(CROWD, b"noted")
    request_id = push(greedy, track)
    reader = world.client()
    subscribed = reader.subscribe(track=track)

    def notify(group_id):
        largest = Parameters(largest_object=Location(group_id, 0))
        greedy.send(greedy.session.notify_state, request_id, largest)
        return world.core.track(track).supply.store.largest

    assert notify(1) == Location(1, 0)
    for number in range(BURST):
        notify(number)
    assert notify(100) == Location(BURST - 3, 0)
    assert reader.session.is_active(subscribed)

    for number in range(BURST):
        if not greedy.link.session.is_closed:
            notify(number)
    assert world.statistics.sessions_flooded == 1


def test_flood_of_requests_closes_its_session(greedy):
    for _ in range(2 * BURST + 1):
        if not greedy.link.session.is_closed:
            greedy.send(greedy.session.track_status, TRACK)

    (closed,) = [e for e in greedy.events if isinstance(e, ev.SessionClosed)]
    assert closed.error.code == TerminationCode.INTERNAL_ERROR
    assert greedy.world.statistics.sessions_flooded == 1


# On a network.


async def outcome_of(work):
    try:
        return await work
    except KvcsError as error:
        return error


def write_stream(transport, number, size_bytes):
    """Send octets on a stream that nothing explains."""
    header = SubgroupHeader(track_alias=7, group_id=0, subgroup_id=0, publisher_priority=0)
    transport.write(4 * number + 402, header.encode() + bytes(size_bytes), fin=True)


def send_datagrams(transport, _number, size_bytes):
    """Send octets in datagrams of a Track that nobody knows."""
    header = bytes.fromhex("00070000") + b"\x05"
    for _ in range(size_bytes // 1000):
        transport.send_datagram(header + bytes(1000 - len(header)))


async def flood(network, size_bytes, seconds, send):
    """Send so many octets a second, as fast as the relay takes them."""
    async with connect(URL, transport=network) as connection:
        step = 0.01
        for number in range(round(seconds / step)):
            if connection.closed:
                break
            send(connection._transport, number, round(size_bytes * step))
            await asyncio.sleep(step)
        return connection.closed


async def beside_a_flood(rate, send):
    """Publish and consume beside a peer that sends; return both outcomes."""
    network = MemoryNetwork(profile=LinkProfile(bandwidth=50_000_000))
    limits = RelayLimits(max_receive_rate=1_000_000)
    async with Relay(RelayConfig(tls=TLS, authorize=allow_all, limits=limits), transport=network):
        flooding = asyncio.ensure_future(flood(network, rate, 3.0, send))
        publishing = asyncio.ensure_future(publish(network, 0.05, linger=2.0))
        whole_prefix = await consume(network, after=0.3)
        await publishing
        return whole_prefix, await flooding


@pytest.mark.parametrize("send", [write_stream, send_datagrams])
def test_peer_that_sends_faster_than_it_may_is_closed_and_nobody_else(send):
    assert run(beside_a_flood(5_000_000, send)) == (True, True)


@pytest.mark.parametrize("send", [write_stream, send_datagrams])
def test_peer_that_keeps_to_the_rate_is_left_alone(send):
    assert run(beside_a_flood(800_000, send)) == (True, False)


async def open_streams(network, count):
    """Open streams, send 64 kB on each, and end none."""
    async with connect(URL, transport=network) as connection:
        for number in range(count):
            header = SubgroupHeader(
                track_alias=7, group_id=number, subgroup_id=0, publisher_priority=0
            ).encode()
            connection._transport.write(4 * number + 402, header + bytes(64_000))
        await asyncio.sleep(3.0)
        return connection.closed


@pytest.mark.parametrize(("count", "is_closed"), [(100, True), (20, False)])
def test_peer_that_opens_streams_and_ends_none_is_closed_at_its_limit(count, is_closed):
    async def scenario():
        network = MemoryNetwork(profile=LinkProfile(bandwidth=50_000_000))
        limits = RelayLimits(max_window_bytes=2_000_000)
        config = RelayConfig(tls=TLS, authorize=allow_all, limits=limits)
        async with Relay(config, transport=network):
            return await open_streams(network, count)

    assert run(scenario()) is is_closed


async def many_open_streams(sessions, total):
    """Open streams in many sessions, each within its bound, beside a publisher and a consumer."""
    network = MemoryNetwork(profile=LinkProfile(bandwidth=50_000_000))
    limits = RelayLimits(max_window_bytes=2_000_000, max_total_window_bytes=total)
    config = RelayConfig(tls=TLS, authorize=allow_all, limits=limits)
    peaks = []
    async with Relay(config, transport=network) as relay:
        opening = [asyncio.ensure_future(open_streams(network, 20)) for _ in range(sessions)]
        publishing = asyncio.ensure_future(publish(network, 0.05, linger=2.0))

        async def watch():
            while True:
                peaks.append(relay.statistics().window_bytes)
                await asyncio.sleep(0.01)

        watching = asyncio.ensure_future(watch())
        is_whole = await consume(network, after=0.3)
        closed = [await outcome_of(one) for one in opening]
        await publishing
        watching.cancel()
        await asyncio.wait([watching])
        await asyncio.sleep(1.0)
        return is_whole, max(peaks), closed, relay.statistics().window_bytes


def test_all_who_open_streams_have_a_budget_together_and_a_publisher_goes_on():
    total = 10_000_000
    is_whole, peak, closed, left = run(many_open_streams(20, total))

    assert is_whole
    assert total - 2_000_000 < peak <= total
    assert closed.count(True) >= 10
    assert closed.count(False) >= 5
    assert left == 0


def test_all_who_keep_to_the_budget_together_are_left_alone():
    is_whole, _, closed, _ = run(many_open_streams(5, 10_000_000))

    assert is_whole
    assert closed == [False] * 5


EVERYTHING = Parameters(
    location_filter=LocationFilter.next_object(),
    fill=FillParameters(location_filter=LocationFilter.absolute_start(0, 0)),
)
BLOCK = 64 * 1024


async def never_reading(count, *, capacity, reader_timeout=300.0, seconds=30.0, stalling=None):
    """Let `count` subscribers ask for 4 MB each and take nothing, and one take all of it.

    Return the relay's own view of the end, and whether the reader got everything in time.
    """
    network = MemoryNetwork(profile=LinkProfile(bandwidth=50_000_000))
    limits = RelayLimits(max_queued_bytes=capacity, reader_timeout=reader_timeout)
    config = RelayConfig(
        tls=TLS,
        authorize=allow_all,
        limits=limits,
        transport=TransportConfig(high_water_bytes=2**20, low_water_bytes=2**19),
    )
    config_of_stalled = ConnectConfig(transport=stalling or TransportConfig())
    peaks, got, open_sessions = [], [], 0
    async with AsyncExitStack() as stack:
        relay = await stack.enter_async_context(Relay(config, transport=network))
        source = Source([TRACK])
        connection = await stack.enter_async_context(
            connect(URL, transport=network, on_connection=source.attach)
        )
        await connection.answer(connection.publish_namespace(TRACK.namespace))
        for group_id in range(16):
            for object_id in range(4):
                obj = Object(
                    group_id=group_id,
                    object_id=object_id,
                    subgroup_id=0,
                    publisher_priority=0,
                    payload=bytes(BLOCK),
                )
                source.stores[TRACK].add(obj, now=0.0)
            source.stores[TRACK].finish_subgroup(group_id, 0, end_of_group=True, now=0.0)
        stalled = []
        for _ in range(count):
            reader = await stack.enter_async_context(
                connect(URL, config_of_stalled, transport=network)
            )
            reader.subscribe(TRACK, EVERYTHING, lambda _: None)
            reader._transport.stall()
            stalled.append(reader)
        await asyncio.sleep(2.0)
        honest = await stack.enter_async_context(connect(URL, transport=network))
        honest.subscribe(
            TRACK, EVERYTHING, lambda e: got.append(e) if isinstance(e, ev.ObjectReceived) else None
        )
        started_at = honest.now
        while len(got) < 64 and honest.now < started_at + 10:
            peaks.append(relay._egress.queued_bytes)
            await asyncio.sleep(0.01)
        await asyncio.sleep(seconds)
        open_sessions = relay.statistics().sessions
        for reader in stalled:
            reader._transport.kill()
    return max(peaks), len(got), open_sessions


@pytest.mark.parametrize("capacity", [2**20, 4 * 2**20, 8 * 2**20])
def test_all_subscribers_together_have_a_budget_and_a_reader_goes_on(capacity):
    # What they do not take waits at the relay, and not on the way to them.
    small = TransportConfig(max_data=BLOCK, max_stream_data=BLOCK)
    peak, got, _ = run(never_reading(12, capacity=capacity, stalling=small))

    assert got == 64
    assert capacity <= peak <= capacity + 12 * (MIN_SHARE_BYTES + BLOCK)


def test_reader_that_takes_nothing_for_long_is_closed():
    _, got, open_sessions = run(never_reading(3, capacity=2**30, reader_timeout=60.0, seconds=100))

    assert got == 64
    assert open_sessions == 2


def test_reader_that_takes_nothing_for_a_while_is_kept():
    _, _, open_sessions = run(never_reading(3, capacity=2**30, reader_timeout=60.0, seconds=40))

    assert open_sessions == 5


async def listing_never_read(count):
    """Announce namespaces of 4 KB to two sessions that list all, of which one reads nothing.

    Return the most that waited in all sessions, how many are left, and what the reader saw.
    """
    network = MemoryNetwork(profile=LinkProfile(bandwidth=50_000_000))
    limits = RelayLimits(max_queued_bytes=2**20)
    config = RelayConfig(tls=TLS, authorize=allow_all, limits=limits)
    seen, peak, everything = set(), 0, TrackNamespace(())
    async with AsyncExitStack() as stack:
        relay = await stack.enter_async_context(Relay(config, transport=network))
        publisher, greedy, honest = [
            await stack.enter_async_context(connect(URL, transport=network)) for _ in range(3)
        ]
        await greedy.answer(greedy.subscribe_namespace(everything))
        greedy._transport.stall()
        listen = lambda e: seen.add(e.suffix) if isinstance(e, ev.NamespaceReceived) else None  # noqa: E731
        honest.subscribe_namespace(everything, listener=listen)
        for number in range(count):
            name = TrackNamespace((b"%04d" % number, *[bytes(1000)] * 4))
            request_id = publisher.publish_namespace(name)
            await publisher.answer(request_id)
            peak = max(peak, sum(end.queued_bytes for end in network.transports))
            publisher.cancel(request_id)
        await asyncio.sleep(1.0)
        sessions = relay.statistics().sessions
        greedy._transport.kill()
    return peak, sessions, len(seen)


def test_who_lists_everything_and_reads_nothing_is_closed_before_the_budget_is_gone():
    peak, sessions, seen = run(listing_never_read(2000))

    assert 2**20 < peak <= 2 * (2**20 + 4 * MIN_SHARE_BYTES)
    assert sessions == 2
    assert seen == 2000
