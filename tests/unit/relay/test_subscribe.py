import pytest
from tests.unit.relay.test_malformed import Raw, thing
from tests.unit.relay.world import BLOCKS, TRACK, WHOLE, block, status, whole

from kvcs.errors import PublishDoneCode, RequestErrorCode
from kvcs.moqt.codepoints import ObjectStatus, PropertyType
from kvcs.moqt.session import events as ev
from kvcs.moqt.session.actions import SendStream
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import FillParameters, Parameters
from kvcs.moqt.wire.properties import Properties
from kvcs.names import Location

NEXT = LocationFilter.next_object()


def test_live_subscriber_gets_every_object_once_and_the_end(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe()

    publisher.add_groups(0, 1, 2)
    publisher.end_track(3)

    assert consumer.one(request_id, ev.SubscribeAccepted).parameters.largest_object is None
    assert consumer.objects(request_id, fetched=False) == whole(3)
    done = consumer.one(request_id, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.TRACK_ENDED
    assert done.stream_count == 4
    assert consumer.one(request_id, ev.SubscriptionDrained).complete


def test_join_in_the_middle_of_a_group_is_exactly_once(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1)
    publisher.add(block(2, 0), block(2, 1))

    request_id = consumer.subscribe()
    publisher.add(block(2, 2), block(2, 3), status(2, BLOCKS))
    publisher.add_groups(3)
    publisher.end_track(4)

    accepted = consumer.one(request_id, ev.SubscribeAccepted)
    assert accepted.parameters.largest_object == Location(2, 1)
    assert consumer.objects(request_id, fetched=True) == [*whole(2), (2, 0), (2, 1)]
    assert consumer.objects(request_id, fetched=False) == [(2, 2), (2, 3), *whole(4)[3 * BLOCKS :]]


@pytest.mark.parametrize(
    "location_filter",
    [None, LocationFilter.absolute_start(0, 0), LocationFilter.relative_start(2)],
)
def test_ranges_of_subscription_and_fill_that_overlap_bring_nothing_twice(world, location_filter):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1)
    publisher.add(block(2, 0), block(2, 1))

    request_id = consumer.subscribe(
        Parameters(location_filter=location_filter, fill=FillParameters())
    )
    publisher.add(block(2, 2), block(2, 3))

    first = 1 if location_filter == LocationFilter.relative_start(2) else 0
    assert consumer.objects(request_id) == [place for place in whole(3) if place[0] >= first]
    assert consumer.objects(request_id, fetched=False) == [(2, 2), (2, 3)]


ODD = thing(
    0, 3, b"odd", subgroup_id=7, priority=9, properties=[(0x3800, 5), (0x3801, b"an Object's")]
)


@pytest.mark.parametrize("live", [True, False])
def test_all_fields_of_an_object_go_through_on_streams_and_in_fetches(world, live):
    publisher, consumer, late = world.publisher(), world.client(), world.client()
    publisher.store()
    if live:
        request_id = consumer.subscribe(Parameters(location_filter=NEXT))
        Raw(publisher).stream(ODD)
    else:
        publisher.add(ODD)
        request_id = consumer.fetch(LocationFilter.absolute_start(0, 0))
    fetched = late.fetch(LocationFilter.absolute_range(0, 3, 0, 3))

    assert [event.obj for event in consumer.of(request_id, ev.ObjectReceived)] == [ODD]
    assert [event.obj for event in late.of(fetched, ev.ObjectReceived)] == [ODD]


def test_many_subscribers_share_one_upstream_subscription_and_one_fetch(world):
    publisher = world.publisher()
    publisher.add_groups(0, 1, 2)
    consumers = [world.client() for _ in range(4)]

    requests = [consumer.subscribe() for consumer in consumers]
    publisher.add_groups(3)
    publisher.end_track(4)

    for consumer, request_id in zip(consumers, requests, strict=True):
        assert sorted(consumer.objects(request_id)) == whole(4)
        assert len(consumer.objects(request_id)) == 4 * BLOCKS
    assert len(publisher.asked(ev.SubscribeReceived)) == 1
    filters = [fetch.parameters.location_filter for fetch in publisher.asked(ev.FetchReceived)]
    assert filters == [LocationFilter.absolute_range(0, 0, 2, BLOCKS)]
    assert world.statistics.upstream_subscriptions == 1
    assert world.statistics.objects_in == 4 * BLOCKS + 2
    assert world.statistics.objects_rejected == {}


def test_fill_waits_for_nothing_behind_the_end_of_a_group_that_was_largest_at_the_join(world):
    publisher, first, second = world.publisher(), world.client(), world.client()
    publisher.add_groups(0, 1)
    first.subscribe()
    publisher.add_groups(2)

    request_id = second.subscribe()

    assert second.objects(request_id, fetched=True) == whole(3)
    assert len(publisher.asked(ev.FetchReceived)) == 1


def test_join_that_finds_everything_in_the_cache_asks_nobody(world):
    publisher, first, second = world.publisher(), world.client(), world.client()
    publisher.store()
    first.subscribe()
    publisher.add_groups(0, 1)

    request_id = second.subscribe()

    assert second.objects(request_id, fetched=True) == whole(2)
    assert publisher.asked(ev.FetchReceived) == []
    statistics = world.statistics
    assert (statistics.cache_hits, statistics.cache_misses) == (1, 0)


def test_subscribe_ok_waits_for_an_established_upstream_subscription(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.silent.add(ev.SubscribeReceived)

    request_id = consumer.subscribe()
    assert consumer.of(request_id) == []

    (upstream,) = publisher.asked(ev.SubscribeReceived)
    publisher.responder.answer_subscribe(upstream, publisher.store(), now=world.now)
    world.settle()
    consumer.one(request_id, ev.SubscribeAccepted)


def test_group_that_is_overtaken_goes_to_the_fill_and_is_not_fetched(world):
    publisher, first, second = world.publisher(), world.client(), world.client()
    publisher.store()
    first.subscribe()
    publisher.add_groups(0)
    # Group 1 waits on its way while Group 2 arrives.
    streams = []

    def is_group_one(action):
        if isinstance(action, SendStream) and not streams:
            streams.append(action.stream_id)
        return action.stream_id in streams if hasattr(action, "stream_id") else False

    publisher.held = is_group_one
    publisher.add_groups(1, 2)

    request_id = second.subscribe()
    assert second.one(request_id, ev.SubscribeAccepted).parameters.largest_object == Location(
        2, BLOCKS
    )
    assert second.objects(request_id) == whole(1)
    publisher.held = None
    world.settle()

    assert second.objects(request_id, fetched=True) == whole(3)
    assert publisher.asked(ev.FetchReceived) == []
    assert world.statistics.objects_rejected == {}


def test_group_that_never_arrives_is_fetched_after_a_while(world):
    publisher, first, second = world.publisher(), world.client(), world.client()
    publisher.store()
    first.subscribe()
    publisher.add_groups(0)
    streams = []

    def is_group_one(action):
        if isinstance(action, SendStream) and not streams:
            streams.append(action.stream_id)
        return getattr(action, "stream_id", None) in streams

    publisher.held = is_group_one
    publisher.add_groups(1)
    publisher.held = lambda action: getattr(action, "stream_id", None) in streams
    publisher.add_groups(2)
    request_id = second.subscribe()

    world.pass_time(2.0)

    assert second.objects(request_id, fetched=True) == whole(3)
    (fetch,) = publisher.asked(ev.FetchReceived)
    assert fetch.parameters.location_filter.start_group == 1


def test_subscribe_to_a_finished_track_whose_publisher_is_there_gets_its_fill(world):
    publisher, first, late = world.publisher(), world.client(), world.client()
    publisher.store()
    first.subscribe()
    publisher.add_groups(0, 1)
    publisher.end_track(2)

    request_id = late.subscribe()
    (_, upstream) = publisher.asked(ev.SubscribeReceived)
    publisher.responder.end(publisher.store(), PublishDoneCode.TRACK_ENDED, now=world.now)
    world.settle()

    assert late.objects(request_id, fetched=True) == whole(2)
    assert late.objects(request_id, fetched=False) == []
    done = late.one(request_id, ev.PublishDoneReceived)
    assert (done.status_code, done.stream_count) == (PublishDoneCode.TRACK_ENDED, 1)
    assert upstream.parameters.location_filter == NEXT


def test_publish_done_waits_for_a_slow_subscriber(world):
    publisher, slow = world.publisher(), world.client()
    publisher.store()
    request_id = slow.subscribe()
    slow.room = 0
    publisher.add_groups(0, 1, 2)
    publisher.end_track(3)
    publisher.lose()

    assert slow.of(request_id, ev.PublishDoneReceived) == []
    slow.room = 2**20
    world.settle()

    assert slow.objects(request_id) == whole(3)
    assert slow.one(request_id, ev.PublishDoneReceived).status_code == PublishDoneCode.TRACK_ENDED


def test_lost_publisher_ends_subscriptions_after_what_had_arrived(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe()
    consumer.room = 0
    publisher.add_groups(0)
    publisher.lose()
    consumer.room = 2**20
    world.settle()

    assert consumer.objects(request_id) == whole(1)
    assert consumer.of(request_id, ev.PublishDoneReceived) == []
    world.pass_time(world.core.limits.publisher_wait)
    done = consumer.one(request_id, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.INTERNAL_ERROR


def test_subscribe_without_publisher_does_not_exist(world):
    consumer = world.client()

    request_id = consumer.subscribe()

    assert consumer.rejection(request_id) is RequestErrorCode.DOES_NOT_EXIST


def test_subscribe_after_the_publisher_has_gone_does_not_exist(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    consumer.subscribe()
    publisher.add_groups(0)
    publisher.end_track(1)
    publisher.lose()

    request_id = consumer.subscribe()

    assert consumer.rejection(request_id) is RequestErrorCode.DOES_NOT_EXIST


def test_refusal_of_the_publisher_is_passed_on(world):
    world.publisher()
    consumer = world.client()

    request_id = consumer.subscribe()

    assert consumer.rejection(request_id) is RequestErrorCode.DOES_NOT_EXIST


def test_rendezvous_completes_when_a_publisher_appears(world):
    consumer = world.client()
    parameters = Parameters(location_filter=NEXT, rendezvous_timeout_ms=5000)
    request_id = consumer.subscribe(parameters)
    world.pass_time(2.0)
    assert consumer.of(request_id) == []

    publisher = world.client()
    publisher.store()
    publisher.announce()
    publisher.add_groups(0)

    assert consumer.objects(request_id) == whole(1)


def test_rendezvous_times_out_without_publisher(world):
    consumer = world.client()
    request_id = consumer.subscribe(Parameters(rendezvous_timeout_ms=5000))

    world.pass_time(4.5)
    assert consumer.of(request_id) == []
    world.pass_time(1.0)

    assert consumer.rejection(request_id) is RequestErrorCode.TIMEOUT


def test_rendezvous_is_capped_by_the_relay(make_world):
    world = make_world(max_rendezvous_timeout=1.0)
    consumer = world.client()
    request_id = consumer.subscribe(Parameters(rendezvous_timeout_ms=3_600_000))

    world.pass_time(1.5)

    assert consumer.rejection(request_id) is RequestErrorCode.TIMEOUT


def test_paused_subscriber_keeps_upstream_paused_until_it_resumes(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe(Parameters(location_filter=NEXT, forward=False))
    (upstream,) = publisher.asked(ev.SubscribeReceived)
    assert upstream.parameters.forward is False
    publisher.add_groups(0)
    assert world.statistics.objects_in == 0

    consumer.send(consumer.session.update, request_id, Parameters(forward=True))
    publisher.add_groups(1)

    assert consumer.objects(request_id) == whole(2)[BLOCKS:]


def test_second_subscriber_resumes_a_paused_upstream_and_gets_its_fill(world):
    publisher, paused, other = world.publisher(), world.client(), world.client()
    publisher.store()
    paused.subscribe(Parameters(location_filter=NEXT, forward=False))
    publisher.add_groups(0)

    request_id = other.subscribe()
    publisher.add_groups(1)

    assert sorted(other.objects(request_id)) == whole(2)
    accepted = other.one(request_id, ev.SubscribeAccepted)
    assert accepted.parameters.largest_object == Location(0, BLOCKS)
    assert len(publisher.asked(ev.SubscribeReceived)) == 1


def test_update_with_fill_delivers_what_was_left_out(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1)
    request_id = consumer.subscribe(Parameters(location_filter=NEXT))
    assert consumer.objects(request_id) == []

    fill = FillParameters(location_filter=LocationFilter.absolute_start(0, 0))
    consumer.send(consumer.session.update, request_id, Parameters(fill=fill))

    assert consumer.objects(request_id, fetched=True) == whole(2)
    accepted = consumer.one(request_id, ev.UpdateAccepted)
    assert accepted.parameters.largest_object == Location(1, BLOCKS)


def test_last_subscriber_leaves_and_upstream_is_cancelled_after_a_while(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe()
    (upstream,) = publisher.asked(ev.SubscribeReceived)

    consumer.send(consumer.session.cancel, request_id)
    world.pass_time(4.0)
    assert publisher.of(upstream.request_id, ev.RequestCancelled) == []
    world.pass_time(2.0)

    publisher.one(upstream.request_id, ev.RequestCancelled)


def test_subscriber_that_returns_in_time_finds_the_subscription_running(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    consumer.send(consumer.session.cancel, consumer.subscribe())
    publisher.add_groups(0)

    request_id = consumer.subscribe()
    world.pass_time(10.0)
    publisher.add_groups(1)

    assert consumer.objects(request_id) == whole(2)
    assert len(publisher.asked(ev.SubscribeReceived)) == 1


def test_end_of_track_that_overtakes_data_ends_nothing_early(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe()
    streams = []

    def is_first(action):
        if isinstance(action, SendStream) and not streams:
            streams.append(action.stream_id)
        return getattr(action, "stream_id", None) in streams

    publisher.held = is_first
    publisher.add_groups(0)
    publisher.held = lambda action: getattr(action, "stream_id", None) in streams
    publisher.add_groups(1)
    publisher.end_track(2)
    assert consumer.of(request_id, ev.PublishDoneReceived) == []

    publisher.held = None
    world.settle()

    assert sorted(consumer.objects(request_id)) == whole(2)
    ends = [
        event.obj.location
        for event in consumer.of(request_id, ev.ObjectReceived)
        if event.obj.status is ObjectStatus.END_OF_TRACK
    ]
    assert ends == [Location(2, 0)]
    assert consumer.one(request_id, ev.PublishDoneReceived).stream_count == 3


def test_second_publisher_is_subscribed_to_and_duplicates_are_dropped(world):
    one, consumer = world.publisher(), world.client()
    one.store()
    request_id = consumer.subscribe()
    other = world.client()
    other.store()

    other.announce()
    one.add_groups(0)
    other.add_groups(0)

    assert len(other.asked(ev.SubscribeReceived)) == 1
    assert consumer.objects(request_id) == whole(1)
    assert world.statistics.objects_rejected == {"duplicate": BLOCKS + 1}
    one.lose()
    assert consumer.of(request_id, ev.PublishDoneReceived) == []
    other.add_groups(1)
    assert consumer.objects(request_id) == whole(2)


def test_stream_headers_and_priorities_arrive_as_published(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe()
    publisher.add(block(0, 0, priority=7), status(0, 1, priority=7))

    header = consumer.one(request_id, ev.SubgroupOpened).header
    assert (header.subgroup_id, header.publisher_priority) == (0, 7)
    assert header.end_of_group
    assert header.first_object
    events = consumer.of(request_id, ev.ObjectReceived)
    assert [event.obj.publisher_priority for event in events] == [7, 7]


def test_track_properties_reach_the_subscriber_unchanged(world):
    properties = Properties.of((PropertyType.MAX_CACHE_DURATION, 60_000), (0x3801, b"opaque"))
    publisher, consumer = world.publisher(), world.client()
    publisher.store(properties=properties)

    with_properties = consumer.subscribe()
    without = consumer.subscribe(Parameters(location_filter=NEXT, include_properties=False))

    assert consumer.one(with_properties, ev.SubscribeAccepted).properties == properties
    assert not consumer.one(without, ev.SubscribeAccepted).properties


def test_unknown_mandatory_track_property_is_refused(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store(properties=Properties.of((0x4000, 1)))

    request_id = consumer.subscribe()

    assert consumer.rejection(request_id) is RequestErrorCode.UNSUPPORTED_EXTENSION
    (upstream,) = publisher.asked(ev.SubscribeReceived)
    publisher.one(upstream.request_id, ev.RequestCancelled)


def test_goaway_of_a_publisher_stops_new_requests_to_it_only(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    running = consumer.subscribe()
    publisher.send(publisher.session.goaway, "", 0.0)

    refused = consumer.subscribe(track=type(TRACK)(TRACK.namespace, b"v.raw.s0"))
    publisher.add_groups(0)

    assert consumer.rejection(refused) is RequestErrorCode.DOES_NOT_EXIST
    assert consumer.objects(running) == whole(1)


def test_whole_parameters_are_what_kvcs_consumers_send():
    assert WHOLE.location_filter == NEXT


def test_subscriber_that_is_still_being_served_does_not_reopen_an_ended_subscription(world):
    publisher, slow = world.publisher(), world.client()
    publisher.store()
    request_id = slow.subscribe()
    slow.room = 0
    publisher.add_groups(0, 1)
    publisher.end_track(2)

    slow.send(slow.session.update, request_id, Parameters(subscriber_priority=7))
    slow.room = 2**20
    world.settle()

    assert len(publisher.asked(ev.SubscribeReceived)) == 1
    assert slow.objects(request_id) == whole(2)


def test_finished_subscription_leaves_nothing_behind(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe()
    publisher.add_groups(0)
    publisher.end_track(1)

    consumer.one(request_id, ev.SubscriptionDrained)
    assert world.statistics.subscriptions == 0
    assert consumer.peer.followed() == []


def test_update_before_the_answer_is_applied_after_it(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    publisher.silent.add(ev.SubscribeReceived)
    request_id = consumer.subscribe()
    consumer.send(consumer.session.update, request_id, Parameters(subscriber_priority=3))

    (upstream,) = publisher.asked(ev.SubscribeReceived)
    publisher.responder.answer_subscribe(upstream, publisher.store(), now=world.now)
    world.settle()

    assert [type(event) for event in consumer.of(request_id)] == [
        ev.SubscribeAccepted,
        ev.UpdateAccepted,
    ]


def test_subscriber_that_leaves_before_the_answer_is_forgotten(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    publisher.silent.add(ev.SubscribeReceived)
    request_id = consumer.subscribe()
    (upstream,) = publisher.asked(ev.SubscribeReceived)

    consumer.send(consumer.session.cancel, request_id)
    world.pass_time(6.0)

    publisher.one(upstream.request_id, ev.RequestCancelled)
    assert consumer.peer.followed() == []


def test_publisher_that_revokes_a_subscription_ends_it_downstream(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe()
    publisher.add_groups(0)
    (upstream,) = publisher.asked(ev.SubscribeReceived)

    publisher.send(publisher.session.revoke, upstream.request_id)

    done = consumer.one(request_id, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.INTERNAL_ERROR
    assert consumer.objects(request_id) == whole(1)


def test_state_notification_of_a_publisher_moves_the_largest_object(world):
    publisher, consumer, other = world.publisher(), world.client(), world.client()
    publisher.store()
    consumer.subscribe()
    (upstream,) = publisher.asked(ev.SubscribeReceived)

    publisher.send(
        publisher.session.notify_state,
        upstream.request_id,
        Parameters(largest_object=Location(7, 0)),
    )
    request_id = other.subscribe(Parameters(location_filter=NEXT))

    accepted = other.one(request_id, ev.SubscribeAccepted)
    assert accepted.parameters.largest_object == Location(7, 0)


def test_publisher_lost_before_its_answer_is_no_publisher(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.silent.add(ev.SubscribeReceived)
    publisher.store()
    request_id = consumer.subscribe()

    publisher.lose()

    assert consumer.rejection(request_id) is RequestErrorCode.DOES_NOT_EXIST
