import pytest
from tests.unit.relay.world import NAMESPACE, whole

from kvcs.errors import PublishDoneCode, RequestErrorCode, StreamResetCode, TerminationCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import FullTrackName, TrackNamespace

ALL = LocationFilter.absolute_start(0, 0)
ELSEWHERE = "moqt://other.example/"


def drain(world, timeout=10.0, uri=ELSEWHERE):
    world.core.drain.begin(timeout, uri, now=world.now)
    world.settle()


def goaways(client):
    return [event for event in client.events if isinstance(event, ev.GoawayReceived)]


def closed_with(client):
    return next(event.error.code for event in client.events if isinstance(event, ev.SessionClosed))


def test_everybody_is_asked_to_leave_once_and_late_ones_too(world):
    clients = [world.publisher(), world.client()]
    drain(world)
    drain(world)

    late = world.client()

    for client in (*clients, late):
        (goaway,) = goaways(client)
        assert (goaway.uri, goaway.request_id) == (ELSEWHERE, None)
        assert goaway.timeout == pytest.approx(10.0)


def test_new_requests_are_refused_and_running_ones_go_on(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    running = consumer.subscribe()
    drain(world)

    refused = [
        consumer.subscribe(),
        consumer.fetch(ALL),
        consumer.send(consumer.session.subscribe_namespace, TrackNamespace()),
        consumer.send(consumer.session.publish_namespace, TrackNamespace((b"x",))),
    ]
    publisher.add_groups(0, 1)
    publisher.end_track(2)

    assert {consumer.rejection(request_id) for request_id in refused} == {
        RequestErrorCode.GOING_AWAY
    }
    assert consumer.objects(running) == whole(2)


def test_running_subscription_is_finished_before_the_session_is(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    running = consumer.subscribe()
    drain(world)

    world.pass_time(3.0)
    publisher.add_groups(0, 1)
    publisher.end_track(2)
    world.pass_time(1.0)

    assert consumer.objects(running) == whole(2)
    done = consumer.one(running, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.TRACK_ENDED
    assert closed_with(consumer) == TerminationCode.NO_ERROR


def test_session_with_nothing_to_do_is_closed_after_a_grace(world):
    idle = world.client()
    drain(world)

    assert not idle.session.is_closed
    world.pass_time(1.5)

    assert closed_with(idle) == TerminationCode.NO_ERROR
    assert world.core.drain.is_over


def test_what_is_left_is_told_before_the_deadline_and_closed_at_it(world):
    publisher, consumer, waiting = world.publisher(), world.client(), world.client()
    publisher.add_groups(0)
    running = consumer.subscribe()
    publisher.silent.add(ev.FetchReceived)
    unanswered = waiting.fetch(ALL, track=FullTrackName(NAMESPACE, b"other"))
    rendezvous = waiting.subscribe(
        Parameters(rendezvous_timeout_ms=60_000),
        track=FullTrackName(TrackNamespace((b"nobody",)), b"t"),
    )
    drain(world)

    world.pass_time(9.25)

    done = consumer.one(running, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.GOING_AWAY
    assert waiting.rejection(unanswered) is RequestErrorCode.GOING_AWAY
    assert waiting.rejection(rendezvous) is RequestErrorCode.GOING_AWAY
    assert not publisher.session.is_closed
    world.pass_time(1.0)

    assert closed_with(publisher) == TerminationCode.GOAWAY_TIMEOUT
    assert closed_with(consumer) == TerminationCode.NO_ERROR
    assert world.core.drain.is_over
    assert world.statistics.sessions == 0


def test_fetch_under_way_is_reset_with_going_away(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(*range(4))
    consumer.fetch(ALL)
    slow = world.client()
    slow.room = 150
    request_id = slow.fetch(ALL)
    drain(world)

    world.pass_time(9.5)

    assert slow.one(request_id, ev.StreamAborted).code == StreamResetCode.GOING_AWAY


def test_publisher_that_moved_to_a_new_session_is_used_and_the_old_one_left_alone(world):
    old, consumer = world.publisher(), world.client()
    old.store()
    request_id = consumer.subscribe()
    old.add_groups(0)
    old.send(old.session.goaway)

    new = world.client()
    new.add_groups(0)
    new.announce(NAMESPACE)
    new.add_groups(1)
    old.lose()
    new.add_groups(2)
    new.end_track(3)

    assert consumer.objects(request_id) == whole(3)
    assert consumer.one(request_id, ev.PublishDoneReceived).status_code == (
        PublishDoneCode.TRACK_ENDED
    )


def test_nobody_waits_for_those_who_only_advertise_and_listen(world):
    publisher, listener, reader = world.publisher(), world.client(), world.client()
    listener.send(listener.session.subscribe_namespace, TrackNamespace())
    publisher.store()
    reader.subscribe()
    drain(world)

    world.pass_time(2.0)

    assert closed_with(listener) == TerminationCode.NO_ERROR
    # What the reader is served comes from the publisher: both stay.
    assert [client.session.is_closed for client in (publisher, reader)] == [False, False]
