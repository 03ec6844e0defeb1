"""Clients of a relay that ask for all they may, so that nothing is left to ask for others.

A relay asks its parent for all its clients on one session, in which so many requests can be open.
The transport lets no more begin until some have ended.
"""

import asyncio
from contextlib import AsyncExitStack
from functools import partial

import pytest
from tests.attacks.actors import publish_all
from tests.attacks.liar import DESCRIPTOR, LAYERS, SCOPE_KEY, TOKENS, is_genuine
from tests.sim.forest import A, C, relay, settled, url
from tests.unit.relay.kin import Parent
from tests.unit.relay.world import TRACK, World, block

from kvcs.client import Consumer, Publisher
from kvcs.endpoint.connect import connect
from kvcs.errors import PublishDoneCode, RequestErrorCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.asker_shares import LEAST_ASKED
from kvcs.relay.turns import MAX_WAIT, Turns
from kvcs.relay.waiting import Waiting
from kvcs.testing import MemoryNetwork, run
from kvcs.transport.interface import TransportConfig

#: Streams that the parent lets a session have open; QUIC itself begins with as many.
STREAMS = 128
ALL = LocationFilter.absolute_start(0, 0)
GREEDY = 200
#: What one client may have of requests that stand, while nobody else has any.
SHARE = STREAMS * 3 // 16
GROUPS, TRACKS = 160, 65


def track(number, below=b"greedy"):
    return FullTrackName(TrackNamespace((below, b"%d" % number)), b"t")


def prefix(number):
    """One that shares with no other what relays merge."""
    return TrackNamespace((b"greedy", b"scope", b"%d" % number, b"below"))


def absent(session, number, now):
    return session.subscribe(track(number), Parameters(rendezvous_timeout_ms=60_000), now=now)


REQUESTS = {
    "namespaces": lambda session, number, now: session.subscribe_namespace(prefix(number), now=now),
    "tracks": lambda session, number, now: session.subscribe_tracks(prefix(number), now=now),
    "subscribe": absent,
}


def ask_for_all(client, requests, numbers):
    for request in requests:
        for number in numbers:
            request(client.session, number, client.now)
    client.wake()


async def retrieved_beside(requests, *, sessions=1, each=GREEDY):
    """Retrieve through two relays while other sessions ask for all that they may.

    Returns:
        The layers, and the seconds that discovery and retrieval took.
    """
    network, layers = MemoryNetwork(), 0
    async with AsyncExitStack() as stack:

        async def connection(port):
            return await stack.enter_async_context(connect(url(port), transport=network))

        few = TransportConfig(max_bidi_streams=STREAMS)
        await stack.enter_async_context(relay(network, A, transport=few))
        child = await stack.enter_async_context(relay(network, C, A))
        await settled(child)
        publisher = Publisher(await connection(A), scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
        publishing = asyncio.ensure_future(publish_all(publisher, 0.05, linger=300.0))
        for first in range(0, sessions * each, each):
            greedy = await connection(C)
            greedy.listen(lambda _: None)
            ask_for_all(greedy, requests, range(first, first + each))
        await asyncio.sleep(3.0)
        began = asyncio.get_running_loop().time()
        consumer = Consumer(await connection(C), scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
        (candidate, *_) = await consumer.discover(TOKENS, timeout=20.0)
        async with consumer.retrieve(candidate) as retrieval:
            async for layer in retrieval:
                layers += is_genuine(layer)
        took = asyncio.get_running_loop().time() - began
        publishing.cancel()
        await asyncio.wait([publishing])
    return layers, took


@pytest.mark.parametrize("kind", [*REQUESTS, "all"])
def test_who_asks_beside_one_that_asks_for_all_is_served_in_the_usual_time(kind):
    _, usual = run(retrieved_beside([]))

    requests = REQUESTS.values() if kind == "all" else [REQUESTS[kind]]
    layers, took = run(retrieved_beside(requests))

    assert layers == LAYERS
    assert took < usual + 1.0


@pytest.mark.parametrize("each", [LEAST_ASKED, 40])
def test_many_sessions_that_wait_for_absent_tracks_leave_room_for_who_comes(each):
    layers, took = run(retrieved_beside([absent], sessions=20, each=each))

    assert layers == LAYERS
    assert took < 5.0


# What one client has of the streams, and when it is given back.


@pytest.fixture
def world():
    return World()


def small_parent(world, streams=STREAMS):
    """A parent that answers nothing about Tracks, and lets so many requests be open."""
    parent = Parent(world)
    parent.link.max_request_streams = streams
    parent.silent |= {ev.SubscribeReceived, ev.FetchReceived, ev.TrackStatusReceived}
    return parent


def ask(client, kind, *numbers):
    return [client.send(partial(REQUESTS[kind], client.session, each)) for each in numbers]


def added(parent, client, kind, numbers):
    """How many streams to the parent are open more once a client has asked for all of these."""
    before = parent.link.session.open_request_streams
    ask(client, kind, *numbers)
    return parent.link.session.open_request_streams - before


@pytest.mark.parametrize("kind", ["namespaces", "tracks"])
def test_one_client_has_a_share_and_the_next_one_half_of_what_is_left(world, kind):
    parent = small_parent(world)
    clients = [world.client() for _ in range(8)]

    shares = [
        added(parent, client, kind, range(40 * number, 40 * (number + 1)))
        for number, client in enumerate(clients)
    ]

    assert SHARE - 1 <= shares[0] <= SHARE
    assert SHARE // 2 - 1 <= shares[1] <= SHARE // 2
    assert shares[2] == LEAST_ASKED
    assert sum(shares) == STREAMS * 7 // 16


@pytest.mark.parametrize("kind", REQUESTS)
def test_many_sessions_leave_streams_for_what_is_answered_at_once(world, kind):
    parent, number = small_parent(world), 0
    for _ in range(20):
        client = world.client()
        ask(client, kind, *range(number, number + 12))
        number += 12
    assert parent.link.session.open_request_streams < STREAMS // 2

    world.client().fetch(ALL, track=track(number))

    assert track(number) in {event.track for event in parent.asked(ev.FetchReceived)}


# SUBSCRIBEs that wait for a publisher.


def full_parent(world):
    """A parent at which nobody may wait for a publisher any more; who asks it tells no more."""
    parent, number = small_parent(world), GREEDY
    for _ in range(8):
        ask(world.client(), "subscribe", *range(number, number + LEAST_ASKED))
        number += LEAST_ASKED
    waiting = [e for e in parent.asked(ev.SubscribeReceived) if e.parameters.rendezvous_timeout_ms]
    assert len(waiting) == STREAMS // 4
    for event in parent.active(ev.SubscribeReceived):
        if event not in waiting:
            parent.send(parent.session.reject, event.request_id, RequestErrorCode.DOES_NOT_EXIST)
    parent.silent.clear()
    return parent


def asked_for(parent, name):
    return [event for event in parent.asked(ev.SubscribeReceived) if event.track == name]


def test_track_for_which_nobody_above_waits_is_asked_for_until_it_is_there(world):
    parent, client = full_parent(world), world.client()
    request_id = client.subscribe(Parameters(rendezvous_timeout_ms=60_000))
    (hasty,) = asked_for(parent, TRACK)
    assert hasty.parameters.rendezvous_timeout_ms is None
    assert not client.of(request_id)

    parent.add(block(0, 0))
    for _ in range(5):
        world.pass_time(1.0)

    assert isinstance(client.of(request_id)[0], ev.SubscribeAccepted)
    world.pass_time(10.0)
    assert len(asked_for(parent, TRACK)) == 2


def test_track_that_nobody_publishes_is_asked_for_no_longer_than_somebody_waits(world):
    parent, client = full_parent(world), world.client()
    request_id = client.subscribe(Parameters(rendezvous_timeout_ms=7_000))

    for _ in range(20):
        world.pass_time(1.0)

    assert client.rejection(request_id) is RequestErrorCode.TIMEOUT
    assert 2 <= len(asked_for(parent, TRACK)) <= 4


def test_who_waited_for_a_publisher_and_has_one_makes_room_for_others(world):
    parent = full_parent(world)
    (first, *_) = parent.active(ev.SubscribeReceived)
    parent.store(first.track).add(block(0, 0), now=world.now)
    parent.responder.answer_subscribe(first, parent.store(first.track), now=world.now)
    world.settle()
    client, name = world.client(), track(5000)

    client.subscribe(Parameters(rendezvous_timeout_ms=60_000), track=name)

    (asked,) = asked_for(parent, name)
    assert asked.parameters.rendezvous_timeout_ms


# What one client has is given back.


@pytest.mark.parametrize("kind", REQUESTS)
def test_share_of_a_client_that_has_left_is_free_again(world, kind):
    parent = small_parent(world)
    greedy, other = world.client(), world.client()
    first = added(parent, greedy, kind, range(GREEDY))
    greedy.lose()
    world.pass_time(world.core.limits.subscription_linger + 1.0)

    assert added(parent, other, kind, range(GREEDY, 2 * GREEDY)) == first


def test_prefixes_beyond_the_share_are_asked_for_once_others_have_ended(world):
    parent, client = small_parent(world), world.client()
    requests = ask(client, "namespaces", *range(SHARE))
    (late,) = ask(client, "namespaces", GREEDY)
    assert prefix(GREEDY) not in parent.prefixes()
    assert isinstance(client.of(late)[0], ev.RequestAccepted)

    for request_id in requests[:8]:
        client.send(client.session.cancel, request_id)
    world.pass_time(world.core.limits.subscription_linger + 2.0)

    assert prefix(GREEDY) in parent.prefixes()


def test_shared_request_is_charged_to_who_asked_first_and_then_to_who_stays(world):
    parent, first, second = small_parent(world), world.client(), world.client()
    ask(first, "subscribe", *range(10))
    ask(second, "subscribe", *range(10))
    shares = parent.peer.shares
    asked = [event.request_id for event in parent.asked(ev.SubscribeReceived)]
    assert {shares.asker(each) for each in asked} == {first.peer.id}

    first.lose()

    assert {shares.asker(each) for each in asked} == {second.peer.id}
    second.lose()
    third = world.client()
    ask(third, "subscribe", *range(10))
    assert {shares.asker(each) for each in asked} == {third.peer.id}


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        ("namespaces", ev.SubscribeNamespaceReceived),
        ("tracks", ev.SubscribeTracksReceived),
    ],
)
def test_shared_prefix_is_charged_to_who_stays(world, kind, event):
    parent, first, second = small_parent(world), world.client(), world.client()
    ask(first, kind, 1)
    ask(second, kind, 1)
    first.lose()
    world.pass_time(world.core.limits.subscription_linger + 1.0)

    (asked,) = parent.active(event)
    assert parent.peer.shares.asker(asked.request_id) == second.peer.id


def test_who_asks_as_fast_as_it_may_leaves_room_for_questions_of_others():
    rate = 20
    world = World(max_request_rate=float(rate), max_request_burst=2 * rate)
    parent, greedy, other = Parent(world), world.client(), world.client()
    number = 0
    for _ in range(5):
        for _ in range(rate):
            greedy.subscribe(track=track(number))
            number += 1
        (rejected,) = greedy.of(greedy.subscribe(track=track(number)), ev.RequestRejected)
        assert rejected.code == RequestErrorCode.EXCESSIVE_LOAD
        world.pass_time(1.0)
    asked = len(parent.asked(ev.SubscribeReceived))
    assert asked >= rate // 4 * 5

    request_id = other.subscribe(track=track(number))

    assert other.rejection(request_id) is RequestErrorCode.DOES_NOT_EXIST


def test_who_has_subscribed_to_its_share_can_fetch_what_it_lacks(world):
    parent, client = small_parent(world), world.client()
    ask(client, "subscribe", *range(GREEDY))

    client.fetch(ALL, track=track(GREEDY))

    assert [event.track for event in parent.asked(ev.FetchReceived)] == [track(GREEDY)]


# Waiting.


@pytest.mark.parametrize("kind", ["subscribe", "fetch", "status"])
def test_request_beyond_the_share_waits_and_is_told_to_try_again_in_the_end(world, kind):
    parent, client, other = small_parent(world), world.client(), world.client()
    send = {
        "subscribe": lambda number: client.subscribe(track=track(number)),
        "fetch": lambda number: client.fetch(ALL, track=track(number)),
        "status": lambda number: client.send(client.session.track_status, track(number)),
    }[kind]
    requests = [send(number) for number in range(STREAMS // 4 + 1)]
    late = requests[-1]
    asked = {event.track for event in parent.received if hasattr(event, "track")}
    assert track(STREAMS // 4) not in asked
    assert not client.of(late)

    world.pass_time(MAX_WAIT + 0.5)

    (rejected,) = client.of(late, ev.RequestRejected)
    assert (rejected.code, rejected.retry_after) == (RequestErrorCode.EXCESSIVE_LOAD, 1.0)
    assert not other.of(other.subscribe(track=track(1000)))
    assert track(1000) in {event.track for event in parent.asked(ev.SubscribeReceived)}


def test_fetch_does_not_wait_for_subscribes_of_its_client(world):
    parent, client = small_parent(world), world.client()
    ask(client, "subscribe", *range(GREEDY))
    requests = [client.fetch(ALL, track=track(GREEDY + number)) for number in range(GREEDY)]
    fetches = parent.asked(ev.FetchReceived)
    assert not any(map(client.of, requests))

    for event in fetches:
        parent.send(parent.session.reject, event.request_id, RequestErrorCode.DOES_NOT_EXIST)
    world.pass_time(0.5)

    assert len(parent.asked(ev.FetchReceived)) == 2 * len(fetches)


def test_subscribe_for_which_somebody_else_asked_keeps_no_turn(world):
    small_parent(world)
    client, other = world.client(), world.client()
    (*_, late) = ask(client, "subscribe", *range(STREAMS // 4 + 1))
    assert repr(world.core.turns) == "<Turns 1 waiting>"
    other.subscribe(track=track(STREAMS // 4))

    world.pass_time(0.5)

    assert repr(world.core.turns) == "<Turns 0 waiting>"
    assert not client.of(late)


def test_fault_in_the_turn_of_one_request_leaves_the_others_theirs(world):
    looks, went = [], []
    turns = Turns(lambda _, look: looks.append(look))
    for client, then in ((world.client(), None), (world.client(), lambda *_: went.append(1))):
        event = ev.TrackStatusReceived(client.subscribe(), TRACK, Parameters())
        rooms = iter([False])
        assert turns.wait(
            Waiting(client.peer, event),
            lambda rooms=rooms: next(rooms, True),
            then,
            now=0.0,
        )

    with pytest.raises(TypeError):
        looks.pop()(1.0)
    looks.pop()(2.0)

    assert went == [1]
    assert not looks


def test_requests_that_wait_are_forgotten_with_their_client(world):
    small_parent(world)
    client = world.client()
    for request_id in ask(client, "subscribe", *range(GREEDY))[: GREEDY // 2]:
        client.send(client.session.cancel, request_id)
    assert repr(world.core.turns) != "<Turns 0 waiting>"

    client.lose()

    assert repr(world.core.turns) == "<Turns 0 waiting>"


def test_request_that_waits_goes_on_when_another_one_has_ended(world):
    parent, client = small_parent(world), world.client()
    ask(client, "subscribe", *range(STREAMS // 4 + 1))
    (first, *_) = parent.asked(ev.SubscribeReceived)

    parent.send(parent.session.reject, first.request_id, RequestErrorCode.DOES_NOT_EXIST)
    world.pass_time(0.5)

    assert track(STREAMS // 4) in {event.track for event in parent.asked(ev.SubscribeReceived)}


def test_what_fetches_lack_beyond_the_share_is_asked_for_a_little_later(world):
    parent, client, count = Parent(world), world.client(), 3 * LEAST_ASKED
    tracks = [track(number, b"large") for number in range(count)]
    for name in tracks:
        parent.store(name).add(block(0, 0), now=world.now)
        client.subscribe(Parameters(location_filter=LocationFilter.next_object()), track=name)
    parent.link.max_request_streams = LEAST_ASKED
    parent.silent.add(ev.FetchReceived)
    requests = [client.fetch(ALL, track=name) for name in tracks]
    asked = parent.asked(ev.FetchReceived)
    assert len(asked) == LEAST_ASKED

    parent.silent.clear()
    for event in asked:
        parent.responder.answer_fetch(event, parent.store(event.track), now=world.now)
    world.pass_time(1.0)

    for request_id in requests:
        assert client.objects(request_id) == [(0, 0)]


@pytest.mark.parametrize("streams", [1024, STREAMS])
def test_large_retrieval_of_one_client_is_whole(world, streams):
    """32 layers in a Track each for keys and values, with the manifest, all at once."""
    parent, client = Parent(world), world.client()
    parent.link.max_request_streams = streams
    tracks = [track(number, b"large") for number in range(TRACKS)]
    for name in tracks:
        store = parent.store(name)
        for group_id in range(GROUPS):
            store.add(block(group_id, 0), now=world.now)
            store.finish_subgroup(group_id, 0, end_of_group=True, now=world.now)
    requests = [client.subscribe(track=name) for name in tracks]
    asked = len(parent.active(ev.SubscribeReceived))
    assert asked == (TRACKS if streams == 1024 else SHARE)
    for _ in range(10):
        world.pass_time(1.0)
        for name in tracks:
            parent.responder.end(parent.store(name), PublishDoneCode.TRACK_ENDED, now=world.now)

    for request_id in requests:
        assert client.of(request_id, ev.RequestRejected) == []
        assert len(client.objects(request_id)) == GROUPS
