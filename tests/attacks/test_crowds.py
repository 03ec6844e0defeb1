"""Thousands wait for one Track: each that comes or goes costs as much as the first."""

import pytest
from tests.unit.relay.world import NAMESPACE, TRACK, WHOLE, World, whole

from kvcs.errors import RequestErrorCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.parameters import Parameters
from kvcs.relay.demand import Demand
from kvcs.relay.questions import Questions
from kvcs.relay.upstream_subscriptions import UpstreamSubscriptions

CROWD = 300
PATIENT = Parameters(rendezvous_timeout_ms=5_000)


@pytest.fixture
def counted(monkeypatch):
    """Count how often a method is called, and by how many that wait it would be multiplied."""

    def count(owner, name):
        calls = []
        really = getattr(owner, name)

        def call(self, *args, **kwargs):
            calls.append(name)
            return really(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, call)
        return calls

    return count


@pytest.fixture
def world():
    world = World()
    publisher = world.publisher(NAMESPACE)
    publisher.store()
    publisher.silent = {ev.SubscribeReceived, ev.TrackStatusReceived}
    return world


def test_subscribers_that_wait_for_a_slow_publisher_are_looked_at_once(world, counted):
    asked, looked = counted(UpstreamSubscriptions, "subscribe"), counted(Demand, "_rendezvous_ms")
    consumers = [world.client() for _ in range(3)]
    requests = [
        (consumer, consumer.subscribe(WHOLE)) for consumer in consumers for _ in range(CROWD // 3)
    ]
    assert (len(asked), len(looked)) == (CROWD, 1)

    (publisher, *_) = world.clients
    (subscribe,) = publisher.asked(ev.SubscribeReceived)
    publisher.responder.answer_subscribe(subscribe, publisher.store(), now=world.now)
    publisher.add_groups(0)

    assert all(consumer.objects(request_id) == whole(1) for consumer, request_id in requests)


def test_subscribers_that_wait_for_any_publisher_end_one_by_one(counted):
    world = World()
    asked = counted(UpstreamSubscriptions, "subscribe")
    consumer = world.client()
    requests = []
    for _ in range(CROWD):
        requests.append(consumer.subscribe(PATIENT))
        world.now += 0.01
    assert len(asked) == CROWD

    world.pass_time(6.0)

    assert len(asked) == CROWD
    codes = {consumer.rejection(request_id) for request_id in requests}
    assert codes == {RequestErrorCode.TIMEOUT}


def test_questions_that_wait_for_a_slow_publisher_are_looked_at_once(world, counted):
    settled = counted(Questions, "_settle")
    consumer = world.client()
    for _ in range(CROWD):
        consumer.send(consumer.session.track_status, TRACK)

    assert len(settled) == CROWD
