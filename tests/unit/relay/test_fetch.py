import pytest
from tests.unit.relay.world import BLOCKS, NAMESPACE, TRACK, apply, block, status, whole

from kvcs.errors import RequestErrorCode
from kvcs.moqt.codepoints import GroupOrder, ParameterType, PropertyType, RangeMarker
from kvcs.moqt.session import events as ev
from kvcs.moqt.session.actions import SendStream
from kvcs.moqt.wire.filters import LocationFilter, Range, RangeFilter
from kvcs.moqt.wire.parameters import FillParameters, Parameters
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.names import FullTrackName, Location

ALL = LocationFilter.absolute_start(0, 0)
NEXT = LocationFilter.next_object()
LAST = 2**64 - 1


def layers(first, last):
    return LocationFilter.absolute_start_group_end(first, 0, last - first)


def warmed(world, groups=3, *, end=True):
    """A relay that received a whole Track for a subscriber."""
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    consumer.subscribe()
    publisher.add_groups(*range(groups))
    if end:
        publisher.end_track(groups)
    return publisher, consumer


def test_fetch_of_what_is_held_asks_nobody(world):
    publisher, consumer = warmed(world)

    request_id = consumer.fetch(layers(0, 1))

    assert consumer.objects(request_id) == whole(2)
    accepted = consumer.one(request_id, ev.FetchAccepted)
    assert (accepted.end_location, accepted.end_of_track) == (Location(1, BLOCKS), False)
    consumer.one(request_id, ev.StreamFinished)
    assert publisher.asked(ev.FetchReceived) == []


def test_fetch_of_an_unknown_track_goes_upstream_and_is_kept(world):
    publisher, one, other = world.publisher(), world.client(), world.client()
    publisher.add_groups(0, 1, 2, 3)

    first = one.fetch(layers(1, 2))
    second = other.fetch(layers(1, 2))

    for client, request_id in ((one, first), (other, second)):
        assert client.objects(request_id) == whole(3)[BLOCKS:]
        accepted = client.one(request_id, ev.FetchAccepted)
        assert accepted.end_location == Location(2, BLOCKS)
        assert client.markers(request_id) == []
    assert publisher.asked(ev.SubscribeReceived) == []
    fetched = [f.parameters.location_filter for f in publisher.asked(ev.FetchReceived)]
    assert fetched[0] == layers(1, 2)
    assert world.statistics.objects_in == 2 * BLOCKS


def test_concurrent_fetches_of_one_range_share_one_upstream_fetch(world):
    publisher = world.publisher()
    publisher.add_groups(0, 1, 2)
    publisher.silent.add(ev.FetchReceived)
    consumers = [world.client() for _ in range(4)]

    requests = [consumer.fetch(layers(0, 1)) for consumer in consumers]
    (upstream,) = publisher.asked(ev.FetchReceived)
    publisher.responder.answer_fetch(upstream, publisher.store(), now=world.now)
    world.settle()

    for consumer, request_id in zip(consumers, requests, strict=True):
        assert consumer.objects(request_id) == whole(2)
        accepted = consumer.one(request_id, ev.FetchAccepted)
        assert accepted.end_location == Location(1, BLOCKS)
    assert world.statistics.objects_in == 2 * BLOCKS


def test_only_missing_ranges_are_fetched(world):
    publisher, one, other = world.publisher(), world.client(), world.client()
    publisher.add_groups(0, 1, 2, 3, 4)
    one.fetch(layers(1, 1))
    one.fetch(layers(3, 3))

    request_id = other.fetch(layers(0, 4))

    assert other.objects(request_id) == whole(5)
    assert world.statistics.objects_in == 5 * BLOCKS


def test_fetch_after_the_publisher_has_gone_is_served_from_the_cache(world):
    publisher, consumer = warmed(world)
    publisher.lose()

    request_id = consumer.fetch(layers(0, 2))
    beyond = consumer.fetch(ALL)

    assert consumer.objects(request_id) == whole(3)
    assert consumer.one(request_id, ev.FetchAccepted).end_location == Location(2, BLOCKS)
    assert consumer.objects(beyond) == whole(3)
    accepted = consumer.one(beyond, ev.FetchAccepted)
    assert (accepted.end_location, accepted.end_of_track) == (Location(3, 0), True)
    assert consumer.markers(beyond) == []


def test_what_is_not_held_after_the_publisher_has_gone_is_marked_unknown(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1, 2)
    consumer.fetch(layers(2, 2))
    publisher.lose()

    request_id = consumer.fetch(layers(0, 5))

    assert consumer.objects(request_id) == whole(3)[2 * BLOCKS :]
    assert consumer.markers(request_id) == [(RangeMarker.UNKNOWN, 1, LAST)]
    accepted = consumer.one(request_id, ev.FetchAccepted)
    assert accepted.end_location == Location(2, BLOCKS)


def test_fetch_of_nothing_known_without_publisher_does_not_exist(world):
    consumer = world.client()

    request_id = consumer.fetch(ALL)

    assert consumer.rejection(request_id) is RequestErrorCode.DOES_NOT_EXIST


def test_refusal_of_the_publisher_is_passed_on(world):
    world.publisher()
    consumer = world.client()

    assert consumer.rejection(consumer.fetch(ALL)) is RequestErrorCode.DOES_NOT_EXIST


def test_fetch_beyond_largest_is_an_invalid_range(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0)

    assert consumer.rejection(consumer.fetch(layers(5, 6))) is RequestErrorCode.INVALID_RANGE


def test_fetch_that_reaches_beyond_largest_ends_there(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1)

    request_id = consumer.fetch(layers(0, 9))

    assert consumer.objects(request_id) == whole(2)
    assert consumer.one(request_id, ev.FetchAccepted).end_location == Location(1, BLOCKS)


def test_fetch_grows_with_the_track_when_nothing_is_subscribed(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0)
    consumer.fetch(ALL)
    publisher.add_groups(1)

    request_id = consumer.fetch(ALL)

    assert consumer.objects(request_id) == whole(2)
    assert world.statistics.objects_in == 2 * BLOCKS


def test_relative_fetch_learns_the_largest_object_first(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1, 2)

    request_id = consumer.fetch(LocationFilter.relative_start(1))

    assert consumer.objects(request_id) == whole(3)[2 * BLOCKS :]
    assert len(publisher.asked(ev.TrackStatusReceived)) == 1


def refuse(client, request, code):
    client.session.reject(request.request_id, code, now=client.world.now)
    client.world.settle()


def test_relative_fetch_from_a_publisher_without_track_status(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1, 2)
    publisher.silent.add(ev.TrackStatusReceived)

    request_id = consumer.fetch(LocationFilter.relative_start(1))
    (question,) = publisher.asked(ev.TrackStatusReceived)
    refuse(publisher, question, RequestErrorCode.NOT_SUPPORTED)

    assert consumer.objects(request_id) == whole(3)[2 * BLOCKS :]
    (asked,) = publisher.asked(ev.SubscribeReceived)
    assert asked.parameters.forward is False
    assert publisher.of(asked.request_id, ev.RequestCancelled)


def test_track_status_refused_in_every_way_is_refused_with_the_last_code(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.silent |= {ev.TrackStatusReceived, ev.SubscribeReceived}

    request_id = consumer.send(consumer.session.track_status, TRACK)
    refuse(publisher, publisher.asked(ev.TrackStatusReceived)[0], RequestErrorCode.NOT_SUPPORTED)
    refuse(publisher, publisher.asked(ev.SubscribeReceived)[0], RequestErrorCode.NOT_SUPPORTED)

    assert consumer.rejection(request_id) is RequestErrorCode.NOT_SUPPORTED
    assert len(publisher.received) == 2


def test_unfiltered_gap_upstream_means_absent_and_is_remembered(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add(block(0, 0), block(0, 3))
    publisher.add(block(4, 0))

    first = consumer.fetch(layers(0, 4))
    second = consumer.fetch(LocationFilter.absolute_range(0, 0, 4, 0))

    for request_id in (first, second):
        assert consumer.objects(request_id) == [(0, 0), (0, 3), (4, 0)]
        assert consumer.markers(request_id) == []
    assert world.statistics.objects_in == 3


def test_object_filter_selects_blocks_and_the_rest_stays_unmarked(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1)
    first_two = RangeFilter(kind=ParameterType.OBJECTID_FILTER, ranges=(Range(0, 1),))

    request_id = consumer.fetch(layers(0, 1), range_filters=(first_two,))

    assert consumer.objects(request_id) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert consumer.markers(request_id) == []


@pytest.mark.parametrize("by_fill", [False, True], ids=["fetch", "fill"])
def test_filtered_request_to_a_cold_relay_leaves_no_wrong_knowledge(world, by_fill):
    publisher, consumer, other = world.publisher(), world.client(), world.client()
    publisher.add_groups(0, 1)
    first = (RangeFilter(kind=ParameterType.OBJECTID_FILTER, ranges=(Range(0, 0),)),)
    if by_fill:
        fill = FillParameters(location_filter=ALL, range_filters=first)
        parameters = Parameters(location_filter=LocationFilter.next_object(), fill=fill)
        filtered = consumer.subscribe(parameters)
    else:
        filtered = consumer.fetch(ALL, range_filters=first)

    everything = other.fetch(ALL)

    assert consumer.objects(filtered) == [(0, 0), (1, 0)]
    assert other.objects(everything) == whole(2)
    assert other.markers(everything) == []


def test_descending_fetch(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1, 2)

    request_id = consumer.fetch(layers(0, 2), group_order=GroupOrder.DESCENDING)

    expected = [(g, o) for g in (2, 1, 0) for o in range(BLOCKS)]
    assert consumer.objects(request_id) == expected
    assert world.statistics.objects_in == 3 * BLOCKS


def test_marker_of_the_publisher_is_passed_on(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1, 2)
    publisher.store().drop_group(1)

    request_id = consumer.fetch(layers(0, 2))

    assert consumer.objects(request_id) == [*whole(1), *whole(3)[2 * BLOCKS :]]
    *_, (marker, group_id, _) = consumer.markers(request_id)
    assert (marker, group_id) == (RangeMarker.UNKNOWN, 1)


def test_publisher_that_does_not_answer_times_the_fetch_out(make_world):
    world = make_world(fill_timeout=5.0)
    publisher, _ = warmed(world, end=False)
    world.core.cache.remove(TRACK)
    publisher.silent.add(ev.FetchReceived)
    other = world.client()
    request_id = other.fetch(layers(0, 1), fill_timeout_ms=2000)

    world.pass_time(3.0)

    assert other.objects(request_id) == []
    assert RangeMarker.TIMED_OUT in [marker for marker, *_ in other.markers(request_id)]
    other.one(request_id, ev.StreamFinished)


def test_stalled_publisher_ends_a_fetch_without_timeout_too(make_world):
    world = make_world(fill_timeout=5.0)
    publisher, _ = warmed(world, end=False)
    world.core.cache.remove(TRACK)
    publisher.silent.add(ev.FetchReceived)
    other = world.client()
    request_id = other.fetch(layers(0, 1))

    world.pass_time(6.0)

    assert RangeMarker.TIMED_OUT in [marker for marker, *_ in other.markers(request_id)]
    other.one(request_id, ev.StreamFinished)


def test_fetch_that_may_not_wait_gets_what_is_held_and_asks_nobody(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1, 2)
    consumer.fetch(layers(0, 1))
    asked = len(publisher.asked(ev.FetchReceived))

    request_id = consumer.fetch(layers(0, 2), fill_timeout_ms=0)

    assert consumer.objects(request_id) == whole(2)
    assert consumer.markers(request_id)[-1] == (RangeMarker.TIMED_OUT, 2, BLOCKS)
    assert consumer.one(request_id, ev.FetchAccepted).end_location == Location(2, BLOCKS)
    assert len(publisher.asked(ev.FetchReceived)) == asked


def test_hole_of_a_fetch_that_may_not_wait_has_timed_out(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1, 2)
    consumer.fetch(layers(0, 0))
    consumer.fetch(layers(2, 2))

    request_id = consumer.fetch(layers(0, 2), fill_timeout_ms=0)

    assert consumer.objects(request_id) == [place for place in whole(3) if place[0] != 1]
    markers = {marker for marker, *_ in consumer.markers(request_id)}
    assert RangeMarker.TIMED_OUT in markers
    assert RangeMarker.UNKNOWN not in markers


@pytest.mark.parametrize("timeout_ms", [0, 2000])
def test_fetch_of_which_nothing_is_known_in_time_times_out(world, timeout_ms):
    publisher, consumer = world.publisher(), world.client()
    publisher.silent.add(ev.FetchReceived)
    publisher.add_groups(0)

    request_id = consumer.fetch(layers(0, 0), fill_timeout_ms=timeout_ms)
    world.pass_time(timeout_ms / 1000)

    assert consumer.rejection(request_id) is RequestErrorCode.TIMEOUT


def test_time_before_the_answer_counts_for_a_fetch(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.silent |= {ev.TrackStatusReceived, ev.FetchReceived}
    publisher.add_groups(0, 1)
    request_id = consumer.fetch(LocationFilter.relative_start(2), fill_timeout_ms=2000)
    world.pass_time(1.0)

    publisher.silent.remove(ev.TrackStatusReceived)
    asked = publisher.asked(ev.TrackStatusReceived)[0]
    publisher.responder.answer_track_status(asked, publisher.store(), now=world.now)
    world.settle()
    world.pass_time(1.25)

    assert {marker for marker, *_ in consumer.markers(request_id)} == {RangeMarker.TIMED_OUT}
    consumer.one(request_id, ev.StreamFinished)


def test_publisher_lost_during_a_fetch_leaves_an_honest_answer(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1, 2)
    sent = []

    def after_some(action):
        if getattr(action, "data", None):
            sent.append(action)
        return len(sent) > 14

    publisher.held = after_some
    request_id = consumer.fetch(layers(0, 2))
    publisher.lose()

    got = consumer.objects(request_id)
    assert 0 < len(got) < 3 * BLOCKS
    assert got == whole(3)[: len(got)]
    assert consumer.of(request_id, ev.StreamFinished) or consumer.of(request_id, ev.StreamAborted)
    if consumer.of(request_id, ev.StreamFinished):
        assert consumer.markers(request_id)[-1][0] is RangeMarker.UNKNOWN


def test_expired_objects_are_fetched_again(world):
    properties = Properties.of((PropertyType.MAX_CACHE_DURATION, 10_000))
    publisher, consumer = world.publisher(), world.client()
    publisher.store(properties=properties)
    consumer.subscribe()
    publisher.add_groups(0)
    assert world.statistics.objects_in == BLOCKS + 1
    world.pass_time(11.0)

    request_id = consumer.fetch(layers(0, 0))

    assert consumer.objects(request_id) == whole(1)
    assert world.statistics.objects_in == 2 * BLOCKS + 1


def test_object_expires_counted_from_its_first_octet(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store(properties=Properties.of((PropertyType.MAX_CACHE_DURATION, 10_000)))
    request_id = consumer.subscribe()
    publisher.held = lambda action: isinstance(action, SendStream)
    publisher.add(block(0, 0))
    actions, publisher.held = list(publisher.waiting), None
    publisher.waiting.clear()
    *before, last = actions
    for action in (*before, SendStream(last.stream_id, bytes(last.data)[:-1], fin=False)):
        apply(action, publisher.link.session, world.now)
    world.pass_time(6)
    apply(
        SendStream(last.stream_id, bytes(last.data)[-1:], fin=last.fin),
        publisher.link.session,
        world.now,
    )
    world.settle()
    publisher.lose()
    assert consumer.objects(request_id) == [(0, 0)]

    world.pass_time(3.75)
    assert consumer.objects(consumer.fetch(ALL)) == [(0, 0)]
    world.pass_time(0.25)
    assert consumer.objects(consumer.fetch(ALL)) == []


def test_expired_objects_are_unknown_without_publisher(world):
    properties = Properties.of((PropertyType.MAX_CACHE_DURATION, 10_000))
    publisher, consumer = world.publisher(), world.client()
    publisher.store(properties=properties)
    consumer.subscribe()
    publisher.add_groups(0)
    publisher.lose()
    world.pass_time(9.0)
    fresh = consumer.fetch(layers(0, 0))
    world.pass_time(2.0)

    stale = consumer.fetch(layers(0, 0))

    assert consumer.objects(fresh) == whole(1)
    assert consumer.rejection(stale) is RequestErrorCode.DOES_NOT_EXIST
    assert world.statistics.cache_bytes == 0


def test_fill_waits_until_a_busy_publisher_has_room_for_a_fetch(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1, 2)
    publisher.busy = True
    fill = FillParameters(location_filter=ALL)

    request_id = consumer.subscribe(Parameters(location_filter=NEXT, fill=fill))
    world.pass_time(20)
    asked = len(publisher.asked(ev.FetchReceived))
    publisher.busy = False
    world.pass_time(2)

    assert 10 <= asked <= 21
    assert consumer.objects(request_id, fetched=True) == whole(3)
    assert consumer.markers(request_id) == []


def test_fill_of_a_publisher_that_stays_busy_ends_with_a_mark(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1, 2)
    publisher.busy = True
    fill = FillParameters(location_filter=ALL)

    request_id = consumer.subscribe(Parameters(location_filter=NEXT, fill=fill))
    world.pass_time(60)

    assert consumer.objects(request_id) == []
    assert consumer.markers(request_id) == [(RangeMarker.UNKNOWN, 2, BLOCKS)]


def test_fetch_that_a_busy_publisher_must_answer_is_to_be_asked_again(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1, 2)
    consumer.fetch(layers(0, 0))
    publisher.busy = True

    request_id = consumer.fetch(layers(1, 2))

    rejected = consumer.one(request_id, ev.RequestRejected)
    assert (rejected.code, rejected.retry_after) == (RequestErrorCode.EXCESSIVE_LOAD, 1.0)


def test_cancelled_fetch_is_forgotten(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0)
    publisher.silent.add(ev.FetchReceived)

    consumer.send(consumer.session.cancel, consumer.fetch(ALL))

    assert world.statistics.fetches == 0


def test_too_many_fetches_of_one_session_are_refused(make_world):
    world = make_world(max_fetches_per_session=2)
    publisher, consumer = warmed(world)
    consumer.room = 0

    requests = [consumer.fetch(layers(0, 1)) for _ in range(3)]

    rejected = consumer.one(requests[2], ev.RequestRejected)
    assert rejected.code == RequestErrorCode.EXCESSIVE_LOAD
    assert rejected.retry_after is not None
    assert publisher.asked(ev.FetchReceived) == []


def test_fill_reports_what_cannot_be_had(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1, 2)
    publisher.store().drop_group(0)
    fill = FillParameters(location_filter=ALL, fill_timeout_ms=1000)

    request_id = consumer.subscribe(
        Parameters(location_filter=LocationFilter.next_object(), fill=fill)
    )

    assert consumer.objects(request_id) == whole(3)[BLOCKS:]
    assert [marker for marker, *_ in consumer.markers(request_id)] == [RangeMarker.UNKNOWN]


def test_fetch_ok_carries_track_properties_even_of_a_cold_track(world):
    properties = Properties.of((PropertyType.MAX_CACHE_DURATION, 60_000))
    publisher, consumer = world.publisher(), world.client()
    publisher.store(properties=properties)
    publisher.add_groups(0)

    request_id = consumer.fetch(ALL)

    assert consumer.one(request_id, ev.FetchAccepted).properties == properties


@pytest.mark.parametrize("wanted", [None, True, False])
@pytest.mark.parametrize("warm", [True, False])
def test_properties_come_unless_the_subscriber_wants_none(world, wanted, warm):
    properties = Properties.of((PropertyType.MAX_CACHE_DURATION, 60_000))
    publisher, consumer = world.publisher(), world.client()
    publisher.store(properties=properties)
    publisher.add_groups(0)
    if warm:
        world.client().subscribe()

    fetch = consumer.fetch(ALL, include_properties=wanted)
    parameters = Parameters(include_properties=wanted)
    asked = consumer.send(consumer.session.track_status, TRACK, parameters)

    expected = EMPTY_PROPERTIES if wanted is False else properties
    assert consumer.one(fetch, ev.FetchAccepted).properties == expected
    assert consumer.one(asked, ev.RequestAccepted).properties == expected
    assert consumer.objects(fetch) == whole(1)


def test_track_status_from_an_established_subscription(world):
    publisher, consumer = warmed(world, end=False)

    request_id = consumer.send(consumer.session.track_status, TRACK)

    accepted = consumer.one(request_id, ev.RequestAccepted)
    assert accepted.parameters.largest_object == Location(2, BLOCKS)
    assert publisher.asked(ev.TrackStatusReceived) == []


def test_track_status_of_what_is_held_when_nobody_else_can_say_more(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1, 2)
    consumer.fetch(LocationFilter.relative_start(1))
    publisher.lose()
    world.pass_time(6)

    request_id = consumer.send(consumer.session.track_status, TRACK)
    fetched = consumer.fetch(LocationFilter.relative_start(1))

    accepted = consumer.one(request_id, ev.RequestAccepted)
    assert accepted.parameters.largest_object == Location(2, BLOCKS)
    assert consumer.objects(fetched) == whole(3)[2 * BLOCKS :]


def test_track_status_of_what_is_held_when_its_publisher_says_that_there_is_nothing(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0)
    consumer.fetch(LocationFilter.relative_start(1))
    publisher.silent |= {ev.TrackStatusReceived}

    request_id = consumer.send(consumer.session.track_status, TRACK)
    asked = publisher.asked(ev.TrackStatusReceived)[-1]
    refuse(publisher, asked, RequestErrorCode.DOES_NOT_EXIST)

    accepted = consumer.one(request_id, ev.RequestAccepted)
    assert accepted.parameters.largest_object == Location(0, BLOCKS)


def test_track_status_asks_the_publisher_once_for_all(world):
    publisher = world.publisher()
    publisher.add_groups(0)
    publisher.silent.add(ev.TrackStatusReceived)
    one, other = world.client(), world.client()

    first = one.send(one.session.track_status, TRACK)
    second = other.send(other.session.track_status, TRACK)
    (upstream,) = publisher.asked(ev.TrackStatusReceived)
    publisher.responder.answer_track_status(upstream, publisher.store(), now=world.now)
    world.settle()

    for client, request_id in ((one, first), (other, second)):
        accepted = client.one(request_id, ev.RequestAccepted)
        assert accepted.parameters.largest_object == Location(0, BLOCKS)


@pytest.mark.parametrize("name", [b"missing", b""])
def test_track_status_of_an_unknown_track(world, name):
    world.publisher()
    consumer = world.client()
    track = FullTrackName(NAMESPACE, name)

    request_id = consumer.send(consumer.session.track_status, track)

    assert consumer.rejection(request_id) is RequestErrorCode.DOES_NOT_EXIST


def test_status_objects_are_not_data(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe()
    publisher.add(block(0, 0), status(0, 1))

    fetched = consumer.fetch(ALL)

    assert len(consumer.of(request_id, ev.ObjectReceived)) == 2
    assert len(consumer.of(fetched, ev.ObjectReceived)) == 1


def test_cold_track_with_an_unknown_mandatory_property_is_refused(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store(properties=Properties.of((0x4000, 1)))
    publisher.add_groups(0)

    request_id = consumer.fetch(ALL)

    assert consumer.rejection(request_id) is RequestErrorCode.UNSUPPORTED_EXTENSION


def test_object_of_a_stream_that_was_reset_is_fetched(world):
    publisher, first, second = world.publisher(), world.client(), world.client()
    publisher.store()
    first.subscribe()
    publisher.add(block(0, 0))
    (upstream,) = publisher.asked(ev.SubscribeReceived)
    (stream_id,) = publisher.session.open_streams(upstream.request_id)
    publisher.held = lambda action: getattr(action, "stream_id", None) == stream_id
    publisher.add(*(block(0, object_id) for object_id in range(1, BLOCKS)))
    publisher.waiting.clear()
    publisher.held = None
    publisher.send(publisher.session.reset_stream, stream_id, 0x0)
    publisher.add(block(1, 0))

    request_id = second.subscribe()
    world.pass_time(2.0)

    assert sorted(second.objects(request_id)) == [*whole(1), (1, 0)]


def test_fetch_that_waits_is_answered_from_the_cache_when_its_publisher_vanishes(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0)
    consumer.fetch(layers(0, 0))
    publisher.silent.add(ev.FetchReceived)
    request_id = consumer.fetch(ALL)
    assert consumer.of(request_id) == []

    publisher.lose()

    assert consumer.objects(request_id) == whole(1)
    consumer.one(request_id, ev.FetchAccepted)


def test_update_of_a_fetch_that_waits_is_applied_when_it_is_answered(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0)
    publisher.silent.add(ev.FetchReceived)
    request_id = consumer.fetch(ALL)
    consumer.send(consumer.session.update, request_id, Parameters(subscriber_priority=3))
    assert consumer.of(request_id) == []

    (upstream,) = publisher.asked(ev.FetchReceived)
    publisher.responder.answer_fetch(upstream, publisher.store(), now=world.now)
    world.settle()

    consumer.one(request_id, ev.UpdateAccepted)
    assert consumer.objects(request_id) == whole(1)


def test_second_stalled_fetch_is_not_sent_to_the_same_publisher(make_world):
    world = make_world(fill_timeout=5.0)
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1)
    consumer.fetch(layers(0, 0))
    publisher.silent.add(ev.FetchReceived)
    consumer.fetch(layers(0, 1))
    world.pass_time(6.0)
    asked = len(publisher.asked(ev.FetchReceived))

    request_id = consumer.fetch(layers(0, 1))
    world.pass_time(0.5)

    assert len(publisher.asked(ev.FetchReceived)) == asked
    assert consumer.objects(request_id) == whole(1)


def test_track_that_was_only_fetched_stays_listed_when_its_publisher_leaves(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1, 2)
    publisher.end_track(3)
    consumer.fetch(layers(0, 1))
    consumer.fetch(layers(2, 2))
    assert world.statistics.objects_in == 3 * BLOCKS
    publisher.lose()

    request_id = consumer.send(consumer.session.subscribe_namespace, NAMESPACE)
    again = consumer.fetch(ALL)

    assert len(consumer.of(request_id, ev.NamespaceReceived)) == 1
    assert consumer.objects(again) == whole(3)
    assert consumer.one(again, ev.FetchAccepted).end_of_track
    assert consumer.markers(again) == []


def test_half_of_a_track_is_not_taken_for_the_whole(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1, 2, 3)
    publisher.end_track(4)
    consumer.fetch(layers(0, 1))
    assert world.statistics.objects_in == 2 * BLOCKS
    publisher.lose()

    request_id = consumer.send(consumer.session.subscribe_namespace, NAMESPACE)

    assert consumer.of(request_id, ev.NamespaceReceived) == []


# A duration that is too short for a cache: nothing is kept for later, everything is passed on.


@pytest.mark.parametrize("duration_ms", [0, 10])
def test_what_expires_at_once_is_passed_on_to_all_who_wait_and_to_nobody_later(world, duration_ms):
    properties = Properties.of((PropertyType.MAX_CACHE_DURATION, duration_ms))
    publisher, consumer, other = world.publisher(), world.client(), world.client()
    publisher.store(properties=properties)
    subscriptions = [consumer.subscribe(), other.subscribe()]
    world.pass_time(5.0)
    publisher.add_groups(0, 1)
    world.pass_time(5.0)
    asked = len(publisher.asked(ev.FetchReceived))
    later = world.client().fetch(layers(0, 1))
    publisher.end_track(2)

    assert [c.objects(s) for c, s in zip((consumer, other), subscriptions, strict=True)] == [
        whole(2)
    ] * 2
    assert asked == 0
    assert len(publisher.asked(ev.FetchReceived)) > 0
    assert world.clients[-1].objects(later) == whole(2)


def test_what_expires_at_once_is_fetched_for_each_who_asks(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store(properties=Properties.of((PropertyType.MAX_CACHE_DURATION, 0)))
    publisher.add_groups(0, 1)
    requests, received = [], []
    for _ in range(3):
        requests.append(consumer.fetch(layers(0, 1)))
        received.append(world.statistics.objects_in)
        world.pass_time(0.5)
    single = consumer.fetch(LocationFilter.absolute_range(0, 0, 0, 0))

    assert [consumer.objects(request_id) for request_id in requests] == [whole(2)] * 3
    assert received == [2 * BLOCKS, 4 * BLOCKS, 6 * BLOCKS]
    assert consumer.objects(single) == [(0, 0)]
    world.pass_time(2.0)
    assert world.statistics.cache_bytes == 0


def test_what_expires_at_once_does_not_wait_for_a_subscriber_that_stands_still(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store(properties=Properties.of((PropertyType.MAX_CACHE_DURATION, 0)))
    request_id = consumer.subscribe()
    publisher.add_groups(0)
    consumer.room = 0
    publisher.add_groups(1)
    publisher.lose()
    world.pass_time(5.0)
    consumer.room = 2**30
    world.settle()

    assert consumer.objects(request_id) == whole(1)
