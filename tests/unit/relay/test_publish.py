import pytest
from tests.unit.relay.kin import Parent
from tests.unit.relay.world import BLOCKS, NAMESPACE, TRACK, block, whole

from kvcs.errors import PublishDoneCode, RequestErrorCode
from kvcs.moqt.codepoints import ParameterType
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter, Range, RangeFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.names import FullTrackName, Location, TrackNamespace

SCOPE = TrackNamespace(NAMESPACE.fields[:2])


def push(publisher, track=TRACK, properties=EMPTY_PROPERTIES, **parameters):
    """Send PUBLISH and serve it."""
    parameters = Parameters(largest_object=publisher.store(track).largest, **parameters)
    request_id = publisher.session.publish(
        track, parameters, properties=properties, now=publisher.world.now
    )
    publisher.responder.serve_publish(
        request_id, publisher.store(track), parameters, now=publisher.world.now
    )
    publisher.world.settle()
    return request_id


def test_publish_warms_the_cache_without_subscribers(world):
    publisher, consumer = world.client(), world.client()
    request_id = push(publisher)
    publisher.add_groups(0, 1)
    publisher.end_track(2)
    publisher.lose()

    fetched = consumer.fetch(LocationFilter.absolute_start(0, 0))

    publisher.one(request_id, ev.RequestAccepted)
    assert consumer.objects(fetched) == whole(2)
    assert consumer.one(fetched, ev.FetchAccepted).end_of_track


def test_paused_publish_is_resumed(world):
    publisher = world.client()

    push(publisher, forward=False)
    publisher.add_groups(0)

    assert world.statistics.objects_in == BLOCKS + 1


def test_update_of_a_publish_by_its_publisher_is_answered(world):
    publisher = world.client()
    request_id = push(publisher)

    update_id = publisher.send(publisher.session.update, request_id, Parameters())

    assert publisher.one(request_id, ev.UpdateAccepted).update_id == update_id


def test_publish_completes_a_waiting_subscribe_and_is_not_published_to_it(world):
    publisher, consumer = world.client(), world.client()
    consumer.send(consumer.session.subscribe_tracks, SCOPE)
    request_id = consumer.subscribe(
        Parameters(location_filter=LocationFilter.next_object(), rendezvous_timeout_ms=5000)
    )

    push(publisher)
    publisher.add_groups(0)

    assert consumer.objects(request_id) == whole(1)
    assert consumer.asked(ev.PublishReceived) == []


def test_subscribe_to_a_published_track_needs_no_namespace(world):
    publisher, consumer = world.client(), world.client()
    push(publisher)
    publisher.add_groups(0)

    request_id = consumer.subscribe()
    publisher.add_groups(1)

    assert sorted(consumer.objects(request_id)) == whole(2)
    assert publisher.asked(ev.SubscribeReceived) == []


def test_publish_is_forwarded_to_subscribers_of_the_prefix(world):
    publisher, consumer, stranger = world.client(), world.client(), world.client()
    consumer.send(consumer.session.subscribe_tracks, SCOPE)
    stranger.send(stranger.session.subscribe_tracks, TrackNamespace((b"other",)))
    properties = Properties.of((0x3801, b"opaque"))

    push(publisher, properties=properties)
    (offer,) = consumer.asked(ev.PublishReceived)
    consumer.send(consumer.session.accept, offer.request_id)
    publisher.add_groups(0)
    publisher.end_track(1)

    assert offer.track == TRACK
    assert offer.properties == properties
    assert consumer.objects(offer.request_id) == whole(1)
    done = consumer.one(offer.request_id, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.TRACK_ENDED
    assert stranger.asked(ev.PublishReceived) == []


def test_subscribe_tracks_finds_tracks_that_are_already_published(world):
    publisher, consumer = world.client(), world.client()
    push(publisher)
    publisher.add_groups(0)

    consumer.send(consumer.session.subscribe_tracks, SCOPE, Parameters(forward=False))
    (offer,) = consumer.asked(ev.PublishReceived)

    assert offer.parameters.largest_object == Location(0, BLOCKS)
    assert offer.parameters.forward is False


@pytest.mark.parametrize("wanted", [None, True, False])
def test_properties_are_published_unless_the_subscriber_wants_none(world, wanted):
    publisher, consumer = world.client(), world.client()
    consumer.send(consumer.session.subscribe_tracks, SCOPE, Parameters(include_properties=wanted))
    properties = Properties.of((0x3800, 5))

    push(publisher, properties=properties)

    (published,) = consumer.asked(ev.PublishReceived)
    assert published.properties == (EMPTY_PROPERTIES if wanted is False else properties)


def test_track_of_two_publishers_is_published_once_and_its_objects_come_once(world):
    one, other, consumer = world.client(), world.client(), world.client()
    consumer.send(consumer.session.subscribe_tracks, SCOPE)

    push(one)
    push(other)
    one.add_groups(0)
    other.add_groups(0)

    (published,) = consumer.asked(ev.PublishReceived)
    consumer.session.accept(published.request_id, now=world.now)
    world.settle()
    assert consumer.objects(published.request_id) == whole(1)


def test_moved_prefix_publishes_nothing_twice(world):
    publisher, consumer = world.client(), world.client()
    push(publisher)
    request_id = consumer.send(consumer.session.subscribe_tracks, SCOPE)

    prefix = TrackNamespace(NAMESPACE.fields[:3])
    consumer.send(consumer.session.update, request_id, Parameters(track_namespace_prefix=prefix))

    assert len(consumer.asked(ev.PublishReceived)) == 1


def test_track_whose_publish_has_ended_may_be_published_again(world):
    publisher, consumer = world.client(), world.client()
    consumer.send(consumer.session.subscribe_tracks, SCOPE)
    push(publisher)
    (published,) = consumer.asked(ev.PublishReceived)
    consumer.send(consumer.session.reject, published.request_id, RequestErrorCode.UNINTERESTED)

    other = world.client()
    push(other)

    assert len(consumer.asked(ev.PublishReceived)) == 2


def test_publish_announces_the_terms_that_the_subscriber_asked_for(world):
    publisher, consumer = world.client(), world.client()
    terms = {"forward": False, "object_delivery_timeout_ms": 700, "subscriber_priority": 9}
    consumer.send(consumer.session.subscribe_tracks, SCOPE, Parameters(**terms))

    push(publisher)

    (published,) = consumer.asked(ev.PublishReceived)
    assert {name: getattr(published.parameters, name) for name in terms} == terms


def test_own_tracks_are_not_published_back(world):
    publisher = world.client()
    publisher.send(publisher.session.subscribe_tracks, SCOPE)

    push(publisher)

    assert publisher.asked(ev.PublishReceived) == []


def test_track_property_filter_selects_tracks(world):
    publisher, consumer = world.client(), world.client()
    wanted = RangeFilter(
        kind=ParameterType.TRACK_PROPERTY_FILTER, property_type=0x3800, ranges=(Range(5, 9),)
    )
    consumer.send(consumer.session.subscribe_tracks, SCOPE, Parameters(range_filters=(wanted,)))
    other = FullTrackName(NAMESPACE, b"v.raw.s0")

    push(publisher, properties=Properties.of((0x3800, 4)))
    push(publisher, track=other, properties=Properties.of((0x3800, 7)))

    assert [offer.track for offer in consumer.asked(ev.PublishReceived)] == [other]


def test_update_of_the_filter_finds_other_tracks_and_its_terms_hold_from_then_on(world):
    publisher, consumer = world.client(), world.client()
    five, any_value = (
        RangeFilter(kind=ParameterType.TRACK_PROPERTY_FILTER, property_type=0x3800, ranges=ranges)
        for ranges in ((Range(5, 9),), (Range(0, 9),))
    )
    request_id = consumer.send(
        consumer.session.subscribe_tracks, SCOPE, Parameters(range_filters=(five,))
    )
    push(publisher, properties=Properties.of((0x3800, 4)))
    assert consumer.asked(ev.PublishReceived) == []

    consumer.send(
        consumer.session.update,
        request_id,
        Parameters(range_filters=(any_value,), forward=False, subscriber_priority=7),
    )

    (published,) = consumer.asked(ev.PublishReceived)
    assert published.track == TRACK
    assert (published.parameters.forward, published.parameters.subscriber_priority) == (False, 7)


def test_publish_that_is_not_possible_is_skipped(world):
    publisher, consumer = world.client(), world.client()
    request_id = consumer.send(consumer.session.subscribe_tracks, SCOPE)
    consumer.send(consumer.session.goaway, "", 0.0)

    push(publisher)

    skipped = consumer.one(request_id, ev.PublishSkippedReceived)
    assert skipped.suffix == TrackNamespace(NAMESPACE.fields[2:])
    assert skipped.track_name == TRACK.name


def v_track(number):
    return FullTrackName(NAMESPACE, b"v.raw.s%d" % number)


@pytest.mark.parametrize("streams", [9, 1024])
def test_what_exceeds_streams_or_limit_is_skipped_and_not_published_later(make_world, streams):
    world = make_world(max_published_tracks=1024 if streams == 9 else 4)
    publisher, consumer = world.client(), world.client()
    consumer.link.max_request_streams = streams
    for number in range(8):
        push(publisher, v_track(number), properties=Properties.of((0x3800, number)))

    wanted = RangeFilter(
        kind=ParameterType.TRACK_PROPERTY_FILTER, property_type=0x3800, ranges=(Range(0, 6),)
    )
    request_id = consumer.send(
        consumer.session.subscribe_tracks, SCOPE, Parameters(range_filters=(wanted,))
    )

    offers = consumer.asked(ev.PublishReceived)
    skipped = consumer.of(request_id, ev.PublishSkippedReceived)
    assert [offer.track for offer in offers] == [v_track(number) for number in range(4)]
    assert [event.track_name for event in skipped] == [b"v.raw.s4", b"v.raw.s5", b"v.raw.s6"]

    # There is room again, for what was not skipped.
    for offer in offers[:2]:
        consumer.send(consumer.session.reject, offer.request_id, RequestErrorCode.UNINTERESTED)
    any_value = RangeFilter(
        kind=ParameterType.TRACK_PROPERTY_FILTER, property_type=0x3800, ranges=(Range(0, 9),)
    )
    consumer.send(consumer.session.update, request_id, Parameters(range_filters=(any_value,)))
    move = Parameters(track_namespace_prefix=TrackNamespace(NAMESPACE.fields[:1]))
    consumer.send(consumer.session.update, request_id, move)
    push(publisher, v_track(8), properties=Properties.of((0x3800, 8)))

    later = consumer.asked(ev.PublishReceived)[4:]
    assert [offer.track for offer in later] == [v_track(7), v_track(8)]
    assert len(consumer.of(request_id, ev.PublishSkippedReceived)) == 3


def test_a_parent_gets_a_quarter_of_its_streams_for_tracks_since_it_is_asked_too(world):
    parent, publisher = Parent(world), world.client()
    parent.link.max_request_streams = 15
    for number in range(8):
        push(publisher, v_track(number))

    request_id = parent.send(parent.session.subscribe_tracks, SCOPE)

    offers = parent.asked(ev.PublishReceived)
    assert [offer.track for offer in offers] == [v_track(number) for number in range(3)]
    assert len(parent.of(request_id, ev.PublishSkippedReceived)) == 5


def test_track_that_was_skipped_is_published_when_it_is_published_again(make_world):
    world = make_world(max_published_tracks=1)
    publisher, consumer = world.client(), world.client()
    request_id = consumer.send(consumer.session.subscribe_tracks, SCOPE)
    push(publisher, v_track(0))
    push(publisher, v_track(1))
    assert consumer.one(request_id, ev.PublishSkippedReceived).track_name == b"v.raw.s1"
    (first,) = consumer.asked(ev.PublishReceived)
    consumer.send(consumer.session.reject, first.request_id, RequestErrorCode.UNINTERESTED)

    push(world.client(), v_track(1))

    assert [offer.track for offer in consumer.asked(ev.PublishReceived)[1:]] == [v_track(1)]


def test_refused_publish_ends_its_delivery(world):
    publisher, consumer = world.client(), world.client()
    consumer.send(consumer.session.subscribe_tracks, SCOPE)
    push(publisher)
    (offer,) = consumer.asked(ev.PublishReceived)

    consumer.send(consumer.session.reject, offer.request_id, RequestErrorCode.UNINTERESTED)
    publisher.add_groups(0)

    assert world.statistics.subscriptions == 0
    assert consumer.objects(offer.request_id) == []


def test_subscriber_pauses_and_resumes_a_published_track(world):
    publisher, consumer = world.client(), world.client()
    consumer.send(consumer.session.subscribe_tracks, SCOPE)
    push(publisher)
    (offer,) = consumer.asked(ev.PublishReceived)
    consumer.send(consumer.session.accept, offer.request_id)
    publisher.add_groups(0)

    consumer.send(consumer.session.update, offer.request_id, Parameters(forward=False))
    publisher.add_groups(1)
    consumer.send(consumer.session.update, offer.request_id, Parameters(forward=True))
    publisher.add_groups(2)

    assert consumer.objects(offer.request_id) == [*whole(1), *whole(3)[2 * BLOCKS :]]


def test_cancelled_prefix_gets_no_new_tracks_and_keeps_old_ones(world):
    publisher, consumer = world.client(), world.client()
    request_id = consumer.send(consumer.session.subscribe_tracks, SCOPE)
    push(publisher)
    (offer,) = consumer.asked(ev.PublishReceived)
    consumer.send(consumer.session.accept, offer.request_id)

    consumer.send(consumer.session.cancel, request_id)
    push(publisher, track=FullTrackName(NAMESPACE, b"v.raw.s0"))
    publisher.add(block(0, 0))

    assert len(consumer.asked(ev.PublishReceived)) == 1
    assert consumer.objects(offer.request_id) == [(0, 0)]


def test_moved_prefix_finds_other_tracks(world):
    publisher, consumer = world.client(), world.client()
    request_id = consumer.send(consumer.session.subscribe_tracks, TrackNamespace((b"elsewhere",)))
    push(publisher)
    assert consumer.asked(ev.PublishReceived) == []

    consumer.send(consumer.session.update, request_id, Parameters(track_namespace_prefix=SCOPE))

    assert [offer.track for offer in consumer.asked(ev.PublishReceived)] == [TRACK]


def test_publish_with_an_unknown_mandatory_property_is_refused(world):
    publisher = world.client()

    request_id = publisher.send(
        publisher.session.publish, TRACK, properties=Properties.of((0x4000, 1))
    )

    assert publisher.rejection(request_id) is RequestErrorCode.UNSUPPORTED_EXTENSION


def test_overlapping_track_prefixes_are_refused_but_not_across_kinds(world):
    consumer = world.client()
    first = consumer.send(consumer.session.subscribe_tracks, SCOPE)
    other_kind = consumer.send(consumer.session.subscribe_namespace, SCOPE)

    second = consumer.send(consumer.session.subscribe_tracks, NAMESPACE)

    consumer.one(first, ev.RequestAccepted)
    consumer.one(other_kind, ev.RequestAccepted)
    assert consumer.rejection(second) is RequestErrorCode.PREFIX_OVERLAP


def test_update_of_a_prefix_to_one_that_overlaps_is_refused(world):
    consumer = world.client()
    for command in (consumer.session.subscribe_tracks, consumer.session.subscribe_namespace):
        consumer.send(command, SCOPE)
        request_id = consumer.send(command, TrackNamespace((b"elsewhere",)))

        consumer.send(
            consumer.session.update, request_id, Parameters(track_namespace_prefix=NAMESPACE)
        )

        rejected = consumer.one(request_id, ev.UpdateRejected)
        assert rejected.code == RequestErrorCode.PREFIX_OVERLAP


def test_update_of_forward_applies_to_tracks_published_later(world):
    publisher, consumer = world.client(), world.client()
    request_id = consumer.send(consumer.session.subscribe_tracks, SCOPE)
    consumer.send(consumer.session.update, request_id, Parameters(forward=False))

    push(publisher)

    (offer,) = consumer.asked(ev.PublishReceived)
    assert offer.parameters.forward is False


def test_track_pushed_from_its_middle_is_complete_once_the_beginning_was_fetched(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1)
    push(publisher)
    publisher.add_groups(2)
    publisher.end_track(3)
    consumer.fetch(LocationFilter.absolute_start(0, 0))
    world.pass_time(2.0)
    publisher.lose()

    request_id = consumer.send(consumer.session.subscribe_namespace, SCOPE)

    assert len(consumer.of(request_id, ev.NamespaceReceived)) == 1
