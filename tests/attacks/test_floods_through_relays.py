"""Clients that ask a relay for as much as each may, so that another relay leaves it for the sum.

A relay closes a session with far more requests than it takes of one. What many clients of one relay
want goes to its neighbour on one session, and with that everybody behind it would be cut off.
"""

import asyncio
from contextlib import AsyncExitStack

import pytest
from tests.attacks.actors import publish_all
from tests.attacks.liar import DESCRIPTOR, LAYERS, SCOPE_KEY, TOKENS, is_genuine
from tests.sim.forest import A, C, relay, settled, url
from tests.unit.relay.kin import Child, Parent, place
from tests.unit.relay.world import NAMESPACE, World, whole

from kvcs.client import Consumer, Publisher
from kvcs.endpoint.connect import connect
from kvcs.errors import RequestErrorCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay import RelayLimits
from kvcs.testing import MemoryNetwork, run

RATE, BURST = 20, 40
ATTACKERS = 8
#: Tenths of a second. In one second all together ask for more than burst and refusals allow.
FLOOD_TENTHS = 60
PREFIX = TrackNamespace((b"flood",))


def track(number):
    return FullTrackName(TrackNamespace((b"flood", b"%d" % number)), b"t")


def prefix(number):
    """One that shares with no other what relays merge."""
    return TrackNamespace((b"flood", b"scope", b"%d" % number, b"below"))


REQUESTS = {
    "subscribe": lambda session, number, now: session.subscribe(track(number), now=now),
    "status": lambda session, number, now: session.track_status(track(number), now=now),
    "namespaces": lambda session, number, now: session.subscribe_namespace(prefix(number), now=now),
    "tracks": lambda session, number, now: session.subscribe_tracks(prefix(number), now=now),
    "publish": lambda session, number, now: session.publish(track(number), now=now),
}


async def flood(clients, request, stopped):
    """Send requests as fast as each client may, and cancel what is not over at once."""
    number = 0
    while not stopped.is_set():
        for client in clients:
            session, number = client.session, number + 1
            request_id = request(session, number, client.now)
            client.wake()
            await asyncio.sleep(0.9 / (RATE * len(clients)))
            if session.is_active(request_id):
                session.cancel(request_id, now=client.now)
                client.wake()


async def retrieved_during(kind):
    """Retrieve through two relays during a flood.

    Returns:
        The layers, and how often the child had no parent when it was looked at.
    """
    network, stopped, layers, orphaned = MemoryNetwork(), asyncio.Event(), 0, 0
    limits = RelayLimits(max_request_rate=RATE, max_request_burst=BURST)
    async with AsyncExitStack() as stack:

        async def connection(port):
            return await stack.enter_async_context(connect(url(port), transport=network))

        await stack.enter_async_context(relay(network, A, limits=limits))
        child = await stack.enter_async_context(relay(network, C, A, limits=limits))
        await settled(child)
        publisher = Publisher(await connection(A), scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
        publishing = asyncio.ensure_future(publish_all(publisher, 0.05, linger=300.0))
        clients = [await connection(A if kind == "publish" else C) for _ in range(ATTACKERS)]
        if kind == "publish":
            wanting = await connection(C)
            wanting.listen(lambda _: None)
            wanting.session.subscribe_tracks(PREFIX, now=wanting.now)
            wanting.wake()
        for client in clients:
            client.listen(lambda _: None)
        flooding = asyncio.ensure_future(flood(clients, REQUESTS[kind], stopped))
        for _ in range(FLOOD_TENTHS):
            await asyncio.sleep(0.1)
            orphaned += child.parent is None
        assert not flooding.done()
        stopped.set()
        await flooding
        consumer = Consumer(await connection(C), scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
        await asyncio.sleep(2.0)
        (candidate, *_) = await consumer.discover(TOKENS, timeout=10.0)
        async with consumer.retrieve(candidate) as retrieval:
            async for layer in retrieval:
                layers += is_genuine(layer)
        publishing.cancel()
        await asyncio.wait([publishing])
    return layers, orphaned


@pytest.mark.parametrize("kind", REQUESTS)
def test_relays_stay_together_whatever_their_clients_ask_and_publish(kind):
    assert run(retrieved_during(kind)) == (LAYERS, 0)


# What clients are told, and when.


@pytest.fixture
def below():
    """A relay with a parent that knows nothing, and many who used up what it may be asked."""
    world = World(max_request_rate=float(RATE), max_request_burst=BURST)
    parent = Parent(world)
    for number in range(BURST // 2):
        world.client().subscribe(track=track(number))
    return world, parent, world.client()


def code(client, request_id):
    (rejected,) = client.of(request_id, ev.RequestRejected)
    return rejected.code


def test_whoever_asks_next_is_told_to_try_again_and_not_that_there_is_nothing(below):
    world, parent, client = below
    asked = len(parent.received)

    requests = [
        client.subscribe(track=track(1000)),
        client.fetch(LocationFilter.absolute_start(0, 0), track=track(1001)),
        client.send(client.session.track_status, track(1002)),
    ]

    assert len(parent.received) == asked
    for request_id in requests:
        (rejected,) = client.of(request_id, ev.RequestRejected)
        assert (rejected.code, rejected.retry_after) == (RequestErrorCode.EXCESSIVE_LOAD, 1.0)
    world.pass_time(1.0)
    again = client.subscribe(track=track(1000))
    assert code(client, again) == RequestErrorCode.DOES_NOT_EXIST


def test_what_is_published_here_is_served_meanwhile(below):
    world, _, client = below
    world.publisher().add_groups(0)

    assert client.objects(client.subscribe()) == whole(1)


def test_prefixes_are_asked_for_as_soon_as_the_parent_takes_questions_again(below):
    world, parent, client = below
    client.send(client.session.subscribe_namespace, NAMESPACE)
    client.send(client.session.subscribe_tracks, PREFIX)
    assert parent.track_prefixes() == []
    assert parent.active(ev.SubscribeNamespaceReceived) == []

    world.pass_time(2.0)

    assert parent.track_prefixes() == [PREFIX]
    (asked,) = parent.active(ev.SubscribeNamespaceReceived)
    assert asked.prefix == NAMESPACE


# What a relay below is offered.


@pytest.fixture
def above():
    """A relay with a child that wants Tracks of a prefix, and a publisher."""
    world = World(max_request_rate=float(RATE), max_request_burst=BURST)
    child, publisher = Child(world, place(7)), world.client()
    wish = child.send(child.session.subscribe_tracks, PREFIX)
    return world, child, publisher, wish


def offered(child):
    events = (e for e in child.events + child.received if isinstance(e, ev.PublishReceived))
    return {event.track for event in events}


def test_tracks_beyond_what_a_child_takes_are_published_to_it_a_little_later(above):
    world, child, publisher, _ = above
    tracks = [track(number) for number in range(BURST - 1)]
    requests = [publisher.send(publisher.session.publish, each) for each in tracks]
    assert offered(child) == set(tracks[: BURST // 2])

    publisher.send(publisher.session.cancel, requests[-1])
    world.pass_time(10.0)

    assert offered(child) == set(tracks[:-1])


def test_prefix_that_is_given_up_meanwhile_is_published_nothing(above):
    world, child, publisher, wish = above
    for number in range(BURST - 1):
        publisher.send(publisher.session.publish, track(number))

    child.send(child.session.cancel, wish)
    world.pass_time(10.0)

    assert len(offered(child)) == BURST // 2
