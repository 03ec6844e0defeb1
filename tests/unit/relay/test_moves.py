from tests.unit.relay.world import NAMESPACE, block, whole

from kvcs.errors import PublishDoneCode, RequestErrorCode
from kvcs.moqt.session import events as ev
from kvcs.relay.moves import MAX_MOVES


def ask_to_move(publisher, *, index=-1):
    """Send GOAWAY for a subscription of the relay."""
    asked = publisher.asked(ev.SubscribeReceived)[index]
    publisher.send(publisher.session.goaway, "", 10.0, request_id=asked.request_id)
    return asked.request_id


def test_subscription_is_made_anew_in_the_session_and_the_old_one_cancelled(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe()
    publisher.add_groups(0)

    old = ask_to_move(publisher)
    publisher.add_groups(1)
    world.pass_time(3.0)
    publisher.add_groups(2)
    publisher.end_track(3)

    assert len(publisher.asked(ev.SubscribeReceived)) == 2
    publisher.one(old, ev.RequestCancelled)
    assert consumer.objects(request_id) == whole(3)
    done = consumer.one(request_id, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.TRACK_ENDED
    assert publisher.asked(ev.FetchReceived) == []


def test_open_streams_of_the_old_subscription_are_waited_for(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe()
    publisher.add(block(0, 0))

    old = ask_to_move(publisher)
    world.pass_time(3.0)
    assert publisher.of(old, ev.RequestCancelled) == []
    publisher.add_groups(1)
    world.pass_time(11.0)

    # The publisher's own time for it is over.
    assert publisher.of(old, ev.RequestCancelled)
    assert consumer.objects(request_id) == [(0, 0), *whole(2)[4:]]


def test_another_publisher_takes_over(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe()
    publisher.add_groups(0)
    other = world.client()
    other.add_groups(0)
    other.refusing[ev.SubscribeReceived] = {"code": RequestErrorCode.EXCESSIVE_LOAD}
    other.announce(NAMESPACE)
    other.refusing.clear()

    old = ask_to_move(publisher)
    world.pass_time(3.0)
    other.add_groups(1)
    other.end_track(2)

    publisher.one(old, ev.RequestCancelled)
    assert len(publisher.asked(ev.SubscribeReceived)) == 1
    assert consumer.objects(request_id) == whole(2)


def test_refused_move_leaves_the_subscription_as_it_is(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe()
    publisher.refusing[ev.SubscribeReceived] = {"code": RequestErrorCode.EXCESSIVE_LOAD}

    old = ask_to_move(publisher)
    world.pass_time(3.0)
    publisher.add_groups(0)

    assert publisher.of(old, ev.RequestCancelled) == []
    assert consumer.objects(request_id) == whole(1)


def test_subscriber_that_asks_to_move_one_gets_what_it_is_owed_and_the_end(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe()
    other_id = consumer.subscribe()
    consumer.room = 0
    publisher.add_groups(0)

    consumer.send(consumer.session.goaway, "", 10.0, request_id=request_id)
    consumer.room = 2**30
    publisher.add_groups(1)

    assert consumer.objects(request_id)[:4] == whole(1)
    done = consumer.one(request_id, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.GOING_AWAY
    assert consumer.of(other_id, ev.PublishDoneReceived) == []
    assert consumer.objects(other_id) == whole(2)


def test_publisher_that_asks_again_and_again_is_not_obeyed_for_ever(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    consumer.subscribe()

    for _ in range(MAX_MOVES + 1):
        ask_to_move(publisher)
        world.pass_time(2.0)

    assert len(publisher.asked(ev.SubscribeReceived)) == 1 + MAX_MOVES
