"""Namespaces that come and go without end, from below and from above.

Each change is told to everybody who asked for its prefix, and to the parent. So who takes back more
than it may have announced, and goes on faster than the limit, is refused or left.
"""

import asyncio
from contextlib import AsyncExitStack

import pytest
from tests.attacks.actors import publish_all
from tests.attacks.liar import (
    DESCRIPTOR,
    LAYERS,
    SCOPE_KEY,
    TLS,
    TOKENS,
    is_genuine,
)
from tests.sim.forest import A, B, C, relay, url
from tests.unit.relay.kin import Parent
from tests.unit.relay.world import NAMESPACE, World, whole

from kvcs.client import Consumer, Publisher
from kvcs.endpoint.connect import connect
from kvcs.endpoint.serve import ServeConfig, serve
from kvcs.errors import RequestErrorCode, TerminationCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.session.limits import SessionLimits
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import TrackNamespace
from kvcs.relay import RelayLimits
from kvcs.testing import MemoryNetwork, run

RATE, STANDING = 10.0, 20
PREFIX = TrackNamespace((b"flap",))


def namespace(number):
    return TrackNamespace((b"flap", b"%d" % number))


def suffix(number):
    return TrackNamespace((b"%d" % number,))


def make_world(**limits):
    return World(max_withdrawal_rate=RATE, max_namespaces_per_session=STANDING, **limits)


def flap(client, times, first=0):
    """Announce and take back; return how often that was refused."""
    refused = []
    for number in range(first, first + times):
        request_id = client.announce(namespace(number))
        refused += client.of(request_id, ev.RequestRejected)
        if client.session.is_active(request_id):
            client.send(client.session.cancel, request_id)
    assert {event.code for event in refused} <= {RequestErrorCode.EXCESSIVE_LOAD}
    assert {event.retry_after for event in refused} <= {1.0}
    return len(refused)


def assert_served(world):
    reader = world.client()
    assert reader.objects(reader.subscribe()) == whole(1)


# From below.


def test_publisher_takes_back_as_many_as_it_may_have_announced_and_then_at_the_rate():
    world = make_world()
    world.publisher().add_groups(0)
    listener, flapping = world.client(), world.client()
    listener.send(listener.session.subscribe_namespace, PREFIX)
    standing = flapping.announce(namespace(10_000))

    assert flap(flapping, 500) == 500 - STANDING - 1
    world.pass_time(1.0)
    assert flap(flapping, 500, first=1000) == 500 - RATE

    told = [e for e in listener.events if isinstance(e, ev.NamespaceReceived)]
    assert len(told) == 1 + STANDING + 1 + RATE
    assert not flapping.link.session.is_closed
    assert flapping.session.is_active(standing)
    assert flap(world.client(), STANDING) == 0
    assert_served(world)


def test_publisher_that_comes_back_with_all_it_has_is_not_slowed_down():
    world = make_world()
    for _ in range(3):
        publisher = world.client()
        requests = [publisher.announce(namespace(number)) for number in range(STANDING)]
        for request_id in requests:
            publisher.send(publisher.session.cancel, request_id)
        requests = [publisher.announce(namespace(number)) for number in range(STANDING)]
        assert all(publisher.session.is_active(request_id) for request_id in requests)
        publisher.lose()


def test_publishers_that_flap_do_not_use_up_what_the_parent_takes_of_this_relay():
    world = make_world(max_upstream_namespaces=5)
    parent = Parent(world)
    publishers = [world.client() for _ in range(10)]

    for number, publisher in enumerate(publishers):
        flap(publisher, STANDING, first=100 * number)
    kept = publishers[0].announce(NAMESPACE)

    asked = parent.asked(ev.PublishNamespaceReceived)
    assert len(asked) <= 5 + 1
    assert parent.namespaces() == []
    world.pass_time(2.5)
    assert parent.namespaces() == [NAMESPACE]
    assert publishers[0].session.is_active(kept)
    for publisher in publishers[1:]:
        flap(publisher, STANDING, first=1000)
    assert len(parent.asked(ev.PublishNamespaceReceived)) <= 2 * (5 + 1) + 1
    assert not parent.session.is_closed


def test_announcement_is_not_repeated_at_once_because_the_parent_says_so():
    world = make_world()
    parent = Parent(world)
    busy = {"code": RequestErrorCode.EXCESSIVE_LOAD, "retry_interval_ms": 1}
    parent.silent.add(ev.PublishNamespaceReceived)
    world.publisher()

    for _ in range(40):
        for event in parent.active(ev.PublishNamespaceReceived):
            parent.send(parent.session.reject, event.request_id, **busy)
        world.pass_time(0.25)

    assert len(parent.asked(ev.PublishNamespaceReceived)) <= 11


# From above.


@pytest.fixture
def below():
    """A relay whose parent lists something to a subscriber here."""
    world = World(max_withdrawal_rate=RATE, session=SessionLimits(max_namespaces=STANDING))
    world.publisher().add_groups(0)
    parent, listener = Parent(world), world.client()
    listener.send(listener.session.subscribe_namespace, PREFIX)
    return world, parent, listener


def list_and_withdraw(parent, number):
    parent.list(suffix(number))
    (asked,) = parent.active(ev.SubscribeNamespaceReceived)
    parent.send(parent.session.withdraw, asked.request_id, suffix(number))


def closing(parent):
    return [e.error for e in parent.events if isinstance(e, ev.SessionClosed)]


def test_parent_whose_namespaces_come_and_go_without_end_is_left(below):
    world, parent, listener = below

    for number in range(10 * STANDING):
        if not parent.session.is_closed:
            list_and_withdraw(parent, number)

    (error,) = closing(parent)
    assert error.code == TerminationCode.INTERNAL_ERROR
    assert "a flood of namespaces" in str(error)
    assert world.core.parent is None
    assert world.core.metrics.sessions_flooded == 1
    told = [e for e in listener.events if isinstance(e, ev.NamespaceReceived)]
    assert len(told) == STANDING + 1
    assert not listener.session.is_closed
    assert_served(world)


def test_parent_that_says_the_same_over_and_over_is_left(below):
    _, parent, listener = below

    for _ in range(10 * STANDING):
        if not parent.session.is_closed:
            parent.list(suffix(1))

    assert closing(parent)
    assert len([e for e in listener.events if isinstance(e, ev.NamespaceReceived)]) == 1


def test_flood_in_one_piece_is_counted_once(below):
    world, parent, _ = below
    (asked,) = parent.active(ev.SubscribeNamespaceReceived)

    for number in range(10 * STANDING):
        parent.session.announce(asked.request_id, suffix(number), now=world.now)
        parent.session.withdraw(asked.request_id, suffix(number), now=world.now)
    world.settle()

    assert world.core.metrics.sessions_flooded == 1
    assert world.core.parent is None


def test_parent_that_takes_all_back_at_once_and_then_keeps_to_the_rate_stays(below):
    world, parent, listener = below
    for number in range(STANDING):
        parent.list(suffix(number))
    (asked,) = parent.active(ev.SubscribeNamespaceReceived)
    for number in range(STANDING):
        parent.send(parent.session.withdraw, asked.request_id, suffix(number))

    for number in range(100):
        world.pass_time(1.5 / RATE)
        list_and_withdraw(parent, 100 + number)

    assert not parent.session.is_closed
    done = [e for e in listener.events if isinstance(e, ev.NamespaceDoneReceived)]
    assert len(done) == STANDING + 100


@pytest.fixture
def many_below():
    """A relay with a listener, and publishers that together take back more than a child bears."""
    world = make_world(session=SessionLimits(max_namespaces=STANDING))
    listener = world.client()
    asked = listener.send(listener.session.subscribe_namespace, PREFIX)
    return world, listener, asked, [world.client() for _ in range(10)]


def told(listener, kind):
    return [event.suffix for event in listener.events if isinstance(event, kind)]


def test_publishers_together_have_no_more_taken_back_than_one_listener_bears(many_below):
    world, listener, _, publishers = many_below
    for number, publisher in enumerate(publishers):
        assert flap(publisher, STANDING, first=100 * number) == 0

    assert len(told(listener, ev.NamespaceDoneReceived)) == STANDING + 1
    standing = [namespace(2000), namespace(2001)]
    requests = [publishers[0].announce(each) for each in standing]
    publishers[0].send(publishers[0].session.cancel, requests[0])
    assert suffix(2001) not in told(listener, ev.NamespaceReceived)
    world.pass_time(2.0)
    assert told(listener, ev.NamespaceReceived)[STANDING + 1 :] == [suffix(2001)]
    assert len(told(listener, ev.NamespaceDoneReceived)) == STANDING + 1


def test_what_flaps_below_one_prefix_keeps_nobody_from_another(many_below):
    _, listener, _, publishers = many_below
    other = listener.send(listener.session.subscribe_namespace, NAMESPACE)
    for number, publisher in enumerate(publishers):
        flap(publisher, STANDING, first=100 * number)

    publishers[0].announce(NAMESPACE)

    assert listener.of(other, ev.NamespaceReceived)


def test_prefix_that_moves_is_listed_as_it_is_and_owes_nothing_of_the_old_one(many_below):
    world, listener, asked, publishers = many_below
    for number, publisher in enumerate(publishers):
        flap(publisher, STANDING, first=100 * number)
    publishers[0].announce(namespace(2000))
    publishers[0].announce(NAMESPACE)

    moved = Parameters(track_namespace_prefix=NAMESPACE)
    listener.send(listener.session.update, asked, moved)
    world.pass_time(3.0)

    assert told(listener, ev.NamespaceReceived)[STANDING + 1 :] == [TrackNamespace()]


def test_nothing_is_kept_of_a_listener_that_left(many_below):
    world, listener, asked, publishers = many_below
    for number, publisher in enumerate(publishers):
        flap(publisher, STANDING, first=100 * number)
    publishers[0].announce(namespace(2000))

    listener.send(listener.session.cancel, asked)
    world.pass_time(3.0)

    assert suffix(2000) not in told(listener, ev.NamespaceReceived)
    assert repr(world.core.discovery.lister) == "<Lister 0 prefixes>"


async def below_publishers_that_flap():
    """Eight publishers flap at a parent; return what its child says of it."""
    network = MemoryNetwork()
    limits = RelayLimits(
        max_withdrawal_rate=RATE,
        max_namespaces_per_session=STANDING,
        session=SessionLimits(max_namespaces=5 * STANDING),
    )
    without_parent = number = 0
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(relay(network, A, limits=limits))
        child = await stack.enter_async_context(relay(network, C, A, limits=limits))
        listener = await stack.enter_async_context(connect(url(C), transport=network))
        listener.session.subscribe_namespace(PREFIX, now=listener.now)
        listener.wake()
        publishers = [
            await stack.enter_async_context(connect(url(A), transport=network)) for _ in range(8)
        ]
        await asyncio.sleep(1.0)
        for _ in range(100):
            for publisher in publishers:
                number, session = number + 1, publisher.session
                request_id = session.publish_namespace(namespace(number), now=publisher.now)
                publisher.wake()
                await asyncio.sleep(0.01)
                if session.is_active(request_id):
                    session.cancel(request_id, now=publisher.now)
                    publisher.wake()
            without_parent += child.parent is None
    return without_parent


def test_child_keeps_a_parent_at_which_many_publishers_flap():
    assert run(below_publishers_that_flap()) == 0


# On a network: the next parent has its turn.


class Flapping:
    """A parent that lists and withdraws for ever to whoever asks for a prefix."""

    def attach(self, connection):
        connection.listen(lambda event: self.receive(connection, event))

    def receive(self, connection, event):
        if isinstance(event, ev.PublishNamespaceReceived):
            connection.session.accept(event.request_id, now=connection.now)
        if isinstance(event, ev.SubscribeNamespaceReceived):
            connection.session.accept(event.request_id, now=connection.now)
            self.flap(connection, event.request_id, 0)

    def flap(self, connection, request_id, number):
        if not connection.session.is_active(request_id):
            return
        session, now = connection.session, connection.now
        for each in range(number, number + 50):
            session.announce(request_id, suffix(each), now=now)
            session.withdraw(request_id, suffix(each), now=now)
        connection.wake()
        loop = asyncio.get_running_loop()
        loop.call_later(0.05, self.flap, connection, request_id, number + 50)


async def below_a_flapping_parent():
    """Publish at the second parent, and find it behind a relay whose first one flaps."""
    network, flapping, layers = MemoryNetwork(), Flapping(), 0
    limits = RelayLimits(session=SessionLimits(max_namespaces=1000))
    async with AsyncExitStack() as stack:
        server = serve(
            "localhost",
            A,
            flapping.attach,
            config=ServeConfig(tls=TLS, limits=limits.session),
            transport=network,
        )
        await stack.enter_async_context(server)
        await stack.enter_async_context(relay(network, B))
        here = await stack.enter_async_context(relay(network, C, A, B, limits=limits))
        source = await stack.enter_async_context(connect(url(B), transport=network))
        publisher = Publisher(source, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
        publishing = asyncio.ensure_future(publish_all(publisher, 0.05, linger=60.0))
        connection = await stack.enter_async_context(connect(url(C), transport=network))
        consumer = Consumer(connection, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
        first = here.parent
        for _ in range(60):
            if found := await consumer.discover(TOKENS, timeout=2.0):
                break
        async with consumer.retrieve(found[0]) as retrieval:
            async for layer in retrieval:
                layers += is_genuine(layer)
        second = here.parent
        publishing.cancel()
        await asyncio.wait([publishing])
    return layers, first, second


def test_the_next_parent_has_its_turn():
    layers, first, second = run(below_a_flapping_parent())

    assert layers == LAYERS
    assert (first, second) == (url(A), url(B))
