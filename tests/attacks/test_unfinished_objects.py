"""Many sessions begin Objects and leave them: all together they cost what the operator set.

Whoever has held the most for the longest loses a stream at a time; an honest publisher, whose
Objects arrive a part at a time like theirs, loses nothing.
"""

import asyncio
from contextlib import AsyncExitStack

import pytest
from tests.attacks.actors import consume, publish
from tests.attacks.liar import TLS, URL
from tests.unit.relay.world import World

from kvcs.endpoint.connect import connect
from kvcs.errors import StreamResetCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.session.actions import StopSending
from kvcs.moqt.session.limits import SessionLimits
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay import Relay, RelayConfig, RelayLimits, allow_all
from kvcs.testing import LinkProfile, MemoryNetwork, run
from kvcs.varint import encode_vi64

BUDGET = 2**22
SESSIONS = 100
PART = 50_000
# Below this size Objects are kept until they are whole, from it on they go on at once.
SIZES = {"kept": 200_000, "going on": 400_000}


def published(client, number):
    """Push a Track of one's own, and return what its streams begin with."""
    track = FullTrackName(TrackNamespace((b"attack", b"%d" % number)), b"x")
    request_id = client.send(client.session.publish, track)
    return client.session._registry.by_id[request_id].track_alias


def beginning(alias, size, part):
    header = SubgroupHeader(track_alias=alias, group_id=0, subgroup_id=0, publisher_priority=0)
    return header.encode() + b"\x00" + encode_vi64(size) + bytes(part)


def say(client, data, stream_id=402, *, fin=False):
    """Let the relay receive raw octets of a client."""
    client.link.session.receive_stream(stream_id, data, fin, now=client.world.now)


@pytest.fixture
def world():
    return World(max_partial_bytes=BUDGET)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_many_who_begin_objects_do_not_harm_one_who_finishes_them(world, size):
    partials = world.core.partials
    publisher = world.publisher()
    publisher.store()
    reader = world.client()
    request_id = reader.subscribe()
    (asked,) = publisher.asked(ev.SubscribeReceived)
    alias = publisher.session._registry.by_id[asked.request_id].track_alias
    attackers = [world.client() for _ in range(SESSIONS)]
    for number, attacker in enumerate(attackers):
        say(attacker, beginning(published(attacker, number), size, size // 2))
        world.settle()
        assert partials.size_bytes <= BUDGET
    assert world.statistics.partial_bytes > BUDGET - size
    world.now += 3.0

    say(publisher, beginning(alias, size, PART))
    for _ in range(size // PART - 1):
        world.now += 0.5
        # They come back as fast as they are refused.
        for number, attacker in enumerate(attackers[:2]):
            data = beginning(published(attacker, 1000 + number), size, size // 2)
            say(attacker, data, 406 + 4 * round(2 * world.now) + 4000 * number)
        say(publisher, bytes(PART))
        world.settle()
        assert partials.size_bytes <= BUDGET

    (received,) = reader.of(request_id, ev.ObjectReceived)
    assert received.obj.payload == bytes(size)
    assert world.statistics.partial_streams_refused > 0
    assert not any(client.link.session.is_closed for client in world.clients)
    for attacker in attackers:
        attacker.lose()
    assert world.statistics.partial_bytes == 0


def test_what_gives_way_is_refused_at_its_peer_and_its_track_goes_on(world):
    first, second = world.client(), world.client()
    size = SIZES["kept"]
    for number in range(20):
        say(first, beginning(published(first, number), size, size - 1), 402 + 4 * number)
    world.settle()
    stopped = []
    really = first.session.receive_stop_sending
    first.session.receive_stop_sending = lambda stream_id, code, *, now: (
        stopped.append((stream_id, code)) or really(stream_id, code, now=now)
    )
    assert world.statistics.partial_streams_refused == 0
    world.now += 1.0

    say(second, beginning(published(second, 100), size, size - 1))
    world.settle()
    say(second, b"x", fin=True)
    world.settle()

    assert stopped == [(402 + 4 * 19, StreamResetCode.EXCESSIVE_LOAD)]
    assert world.statistics.partial_streams_refused == 1
    assert not first.link.session.is_closed


def test_streams_of_unknown_tracks_count_in_all_sessions_together(world):
    for _ in range(10):
        client = world.client()
        for number in range(20):
            say(client, beginning(1000 + number, PART, PART // 2), 402 + 4 * number)
        world.settle()

    assert BUDGET - PART <= world.statistics.partial_bytes <= BUDGET
    publisher = world.publisher()
    publisher.add_groups(0)
    assert world.client().subscribe() is not None


# On a network: the relay tells them itself, and an honest retrieval goes through.


async def begin_objects(network, number, stopped):
    """Push a Track, begin an Object on each of some streams, and leave all of them."""
    async with connect(URL, transport=network) as connection:
        track = FullTrackName(TrackNamespace((b"attack", b"%d" % number)), b"x")
        request_id = connection.session.publish(track, now=connection.now)
        alias = connection.session._registry.by_id[request_id].track_alias
        really = connection.session.receive_stop_sending
        connection.session.receive_stop_sending = lambda stream_id, code, *, now: (
            stopped.append(StopSending(stream_id, code)) or really(stream_id, code, now=now)
        )
        connection.wake()
        for stream in range(25):
            data = beginning(alias, 100_000, 40_000)
            connection._transport.write(4 * stream + 402, data)
            await asyncio.sleep(0.02)
        await asyncio.sleep(1000)


async def beside_unfinished_objects():
    network = MemoryNetwork(profile=LinkProfile(bandwidth=50_000_000))
    limits = RelayLimits(
        max_partial_bytes=BUDGET, session=SessionLimits(max_object_bytes=BUDGET // 2)
    )
    config = RelayConfig(tls=TLS, authorize=allow_all, limits=limits)
    stopped, peaks = [], []
    async with AsyncExitStack() as stack:
        relay = await stack.enter_async_context(Relay(config, transport=network))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        lasting = [group.create_task(begin_objects(network, n, stopped)) for n in range(10)]

        async def watch():
            while True:
                peaks.append(relay.statistics().partial_bytes)
                await asyncio.sleep(0.01)

        lasting.append(group.create_task(watch()))
        lasting.append(group.create_task(publish(network, 0.1)))
        is_whole = await consume(network, after=0.3)
        statistics = relay.statistics()
        for task in lasting:
            task.cancel()
        await asyncio.wait(lasting)
    return is_whole, max(peaks), stopped, statistics


def test_a_relay_stays_in_its_budget_and_tells_who_exceeds_it():
    is_whole, peak, stopped, statistics = run(beside_unfinished_objects())

    assert is_whole
    assert BUDGET // 2 < peak <= BUDGET
    assert {action.code for action in stopped} == {StreamResetCode.EXCESSIVE_LOAD}
    assert len(stopped) == statistics.partial_streams_refused > 0
    assert statistics.sessions == 12
