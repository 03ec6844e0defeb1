"""A Track of several publishers, and publishers that are subscribers too."""

from tests.unit.relay.test_publish import push
from tests.unit.relay.world import NAMESPACE, WHOLE, whole

from kvcs.errors import RequestErrorCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import TrackNamespace

NEXT = LocationFilter.next_object()
PAUSED = Parameters(location_filter=NEXT, forward=False)


def updates(publisher):
    return [event.parameters for event in publisher.events if isinstance(event, ev.UpdateReceived)]


def three_publishers(world):
    """Publishers of the namespace and of two prefixes of it."""
    publishers = [
        world.publisher(TrackNamespace(NAMESPACE.fields[:length])) for length in (0, 2, 5)
    ]
    for publisher in publishers:
        publisher.store()
    return publishers


def test_every_matching_publisher_is_subscribed_to_at_once_whatever_its_prefix(world):
    publishers = three_publishers(world)
    consumer = world.client()

    consumer.subscribe()

    assert [len(p.asked(ev.SubscribeReceived)) for p in publishers] == [1, 1, 1]
    forwards = {p.asked(ev.SubscribeReceived)[0].parameters.forward for p in publishers}
    assert False not in forwards


def test_one_that_accepts_is_enough(world):
    publishers = three_publishers(world)
    for publisher in publishers[:2]:
        publisher.refusing[ev.SubscribeReceived] = {"code": RequestErrorCode.DOES_NOT_EXIST}
    consumer = world.client()

    request_id = consumer.subscribe()
    publishers[2].add_groups(0)

    assert consumer.objects(request_id) == whole(1)


def test_all_paused_publishers_are_resumed_by_the_first_who_wants_objects(world):
    publishers = three_publishers(world)
    world.client().subscribe(PAUSED)
    assert all(p.asked(ev.SubscribeReceived)[0].parameters.forward is False for p in publishers)

    world.client().subscribe()

    assert [updates(publisher) for publisher in publishers] == [[Parameters(forward=True)]] * 3


def test_push_of_a_track_that_is_wanted_is_accepted_resumed_and_forwarded(world):
    one, other, consumer = world.publisher(), world.client(), world.client()
    one.store()
    request_id = consumer.subscribe()

    pushed = push(other, forward=False)
    other.add_groups(0)

    other.one(pushed, ev.RequestAccepted)
    assert updates(other) == [Parameters(forward=True)]
    assert consumer.objects(request_id) == whole(1)


def test_endpoint_may_subscribe_to_its_own_track(world):
    client = world.publisher()
    client.add_groups(0)

    request_id = client.subscribe(WHOLE)
    client.add_groups(1)
    client.end_track(2)

    assert client.objects(request_id) == whole(2)
    client.one(request_id, ev.PublishDoneReceived)


def test_subscription_whose_range_has_passed_stays_until_it_is_ended(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    until_group_0 = LocationFilter.absolute_start_group_end(0, 0, 0)
    request_id = consumer.subscribe(Parameters(location_filter=until_group_0))

    publisher.add_groups(0, 1)
    assert consumer.objects(request_id) == whole(1)
    assert consumer.of(request_id, ev.PublishDoneReceived) == []
    wider = Parameters(location_filter=LocationFilter.absolute_start(0, 0))
    consumer.send(consumer.session.update, request_id, wider)
    publisher.add_groups(2)

    # What the wider range adds of the past is for a fill or a FETCH.
    assert consumer.objects(request_id) == [place for place in whole(3) if place[0] != 1]


def test_fetch_of_a_range_in_which_nothing_exists_is_an_empty_stream(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0)
    publisher.add_groups(1)

    request_id = consumer.fetch(LocationFilter.absolute_range(0, 7, 0, 9))

    assert consumer.objects(request_id) == []
    consumer.one(request_id, ev.FetchOpened)
    consumer.one(request_id, ev.StreamFinished)
    assert consumer.markers(request_id) == []
    assert consumer.one(request_id, ev.FetchAccepted).end_location.object_id >= 7
