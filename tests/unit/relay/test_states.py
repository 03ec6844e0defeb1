"""What subscribers and publishers tell each other through the relay besides Objects."""

import pytest
from tests.unit.relay.world import TRACK, block, whole

from kvcs.moqt.codepoints import PropertyType
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.properties import Properties
from kvcs.names import Location

NEXT = LocationFilter.next_object()
DYNAMIC = Properties.of((PropertyType.DYNAMIC_GROUPS, 1))


def updates(publisher):
    """REQUEST_UPDATEs of the relay, as the parameters that they carry."""
    return [event.parameters for event in publisher.events if isinstance(event, ev.UpdateReceived)]


def new_groups(publisher):
    requests = [parameters.new_group_request for parameters in updates(publisher)]
    return [group_id for group_id in requests if group_id is not None]


def notify(publisher, **parameters):
    upstream = publisher.asked(ev.SubscribeReceived)[0]
    publisher.send(publisher.session.notify_state, upstream.request_id, Parameters(**parameters))


# New Groups.


def test_new_group_request_goes_with_the_first_subscribe(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store(properties=DYNAMIC)

    consumer.subscribe(Parameters(location_filter=NEXT, new_group_request=4))

    assert publisher.asked(ev.SubscribeReceived)[0].parameters.new_group_request == 4
    assert updates(publisher) == []


@pytest.mark.parametrize("group_id", [0, 3])
def test_later_one_goes_in_an_update_once_for_all_until_the_group_comes(world, group_id):
    publisher = world.publisher()
    publisher.store(properties=DYNAMIC)
    publisher.add_groups(0, 1)
    world.client().subscribe(Parameters(location_filter=NEXT))
    publisher.add_groups(2)

    asking = Parameters(location_filter=NEXT, new_group_request=group_id)
    world.client().subscribe(asking)
    world.client().subscribe(asking)
    assert new_groups(publisher) == [group_id]
    publisher.add(block(3, 0))
    world.client().subscribe(asking)

    # Group 3 is there; only who knows no Group asks for another one.
    assert new_groups(publisher) == ([0, 0] if group_id == 0 else [3])


def test_request_in_an_update_of_a_subscriber_is_passed_on(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store(properties=DYNAMIC)
    publisher.add_groups(0)
    request_id = consumer.subscribe(Parameters(location_filter=NEXT))

    consumer.send(consumer.session.update, request_id, Parameters(new_group_request=1))

    assert new_groups(publisher) == [1]
    consumer.one(request_id, ev.UpdateAccepted)


def test_larger_request_is_passed_on_while_a_smaller_one_is_outstanding(world):
    publisher = world.publisher()
    publisher.store(properties=DYNAMIC)
    publisher.add_groups(0)
    world.client().subscribe(Parameters(location_filter=NEXT))

    for group_id in (2, 1, 5):
        world.client().subscribe(Parameters(location_filter=NEXT, new_group_request=group_id))

    assert new_groups(publisher) == [2, 5]


def test_publisher_of_fixed_groups_is_not_asked(world):
    publisher = world.publisher()
    publisher.add_groups(0)
    world.client().subscribe(Parameters(location_filter=NEXT))

    world.client().subscribe(Parameters(location_filter=NEXT, new_group_request=0))

    assert updates(publisher) == []


def test_group_that_exists_is_not_asked_for(world):
    publisher = world.publisher()
    publisher.store(properties=DYNAMIC)
    publisher.add_groups(0, 1, 2)
    world.client().subscribe(Parameters(location_filter=NEXT))

    world.client().subscribe(Parameters(location_filter=NEXT, new_group_request=2))

    assert updates(publisher) == []


# Subscriptions that expire.


def test_subscription_that_would_expire_is_renewed(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.silent.add(ev.SubscribeReceived)
    consumer.subscribe(Parameters(location_filter=NEXT))
    (asked,) = publisher.asked(ev.SubscribeReceived)
    publisher.send(
        publisher.session.accept_subscribe, asked.request_id, Parameters(expires_ms=10_000)
    )

    world.pass_time(4.5)
    assert updates(publisher) == []
    world.pass_time(1.0)
    assert updates(publisher) == [Parameters()]

    # It was not said how long the renewed one lasts, so that it is left at that.
    publisher.send(publisher.session.accept_update, asked.request_id)
    world.pass_time(20.0)
    assert updates(publisher) == [Parameters()]


def test_push_that_would_expire_is_renewed_again_and_again_but_not_all_the_time(world):
    publisher = world.client()
    request_id = publisher.send(publisher.session.publish, TRACK, Parameters(expires_ms=10))

    world.pass_time(0.75)
    assert updates(publisher) == []
    for _ in range(3):
        world.pass_time(0.5)
        publisher.send(publisher.session.accept_update, request_id, Parameters(expires_ms=10))
        world.pass_time(0.5)

    assert updates(publisher) == [Parameters()] * 3


# PUBLISH_STATE_NOTIFY.


def paused(world):
    consumer = world.client()
    return consumer, consumer.subscribe(Parameters(location_filter=NEXT, forward=False))


def test_paused_subscribers_learn_how_far_the_track_is(world):
    publisher = world.publisher()
    publisher.add_groups(0)
    one, request_id = paused(world)
    other, other_id = paused(world)

    notify(publisher, largest_object=Location(4, 2))
    world.pass_time(0.25)

    for consumer, subscribed in ((one, request_id), (other, other_id)):
        (state,) = consumer.of(subscribed, ev.StateNotified)
        assert state.parameters == Parameters(largest_object=Location(4, 2))


def test_many_notifications_are_passed_on_together(world):
    publisher = world.publisher()
    publisher.store()
    consumer, request_id = paused(world)

    for group_id in range(20):
        notify(publisher, largest_object=Location(group_id, 0))
    world.pass_time(1.5)

    states = [event.parameters for event in consumer.of(request_id, ev.StateNotified)]
    assert len(states) <= 2
    assert states[-1] == Parameters(largest_object=Location(19, 0))


def test_who_gets_the_objects_is_not_notified(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe(Parameters(location_filter=NEXT))

    notify(publisher, largest_object=Location(4, 2))
    world.pass_time(1.5)

    assert consumer.of(request_id, ev.StateNotified) == []


def test_publisher_that_pauses_by_itself_is_asked_to_go_on_if_anybody_wants_objects(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe(Parameters(location_filter=NEXT))

    notify(publisher, forward=False)
    publisher.add_groups(0)

    assert updates(publisher) == [Parameters(forward=True)]
    assert consumer.objects(request_id) == whole(1)


def test_publisher_that_resumes_by_itself_needs_no_update(world):
    publisher = world.publisher()
    publisher.add_groups(0)
    paused(world)
    assert not world.core._tracks[TRACK].supply.subscriptions[0].is_forwarding

    notify(publisher, forward=True, largest_object=Location(0, 4))

    assert world.core._tracks[TRACK].supply.subscriptions[0].is_forwarding
    other = world.client()
    other.subscribe(Parameters(location_filter=NEXT))
    assert updates(publisher) == []
