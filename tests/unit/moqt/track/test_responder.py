from kvcs.errors import PublishDoneCode, RequestErrorCode, StreamResetCode
from kvcs.moqt.codepoints import GroupOrder, ParameterType, PropertyType
from kvcs.moqt.session.events import (
    FetchAccepted,
    PublishDoneReceived,
    RequestAccepted,
    RequestRejected,
    SubscribeAccepted,
    UpdateAccepted,
)
from kvcs.moqt.wire.filters import LocationFilter, Range, RangeFilter
from kvcs.moqt.wire.parameters import FillParameters, Parameters
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.names import Location
from kvcs.varint import MAX_VI64

NEXT = LocationFilter.next_object()
ALL = LocationFilter.absolute_start(0, 0)
PROPERTIES = Properties.of((PropertyType.MAX_CACHE_DURATION, 60_000))
FILL_ALL = FillParameters(location_filter=ALL)


# SUBSCRIBE.


def test_subscribe_ok_has_largest_and_properties(new_site):
    site = new_site(properties=PROPERTIES)
    site.add(3, 4)

    site.subscribe()
    site.subscribe(include_properties=False)

    full, bare = site.told(SubscribeAccepted)
    assert full.parameters.largest_object == Location(3, 4)
    assert (full.properties, bare.properties) == (PROPERTIES, EMPTY_PROPERTIES)


def test_subscribe_ok_of_an_empty_track_has_no_largest(new_site):
    site = new_site()

    site.subscribe(location_filter=NEXT, fill=FILL_ALL)
    site.add(0, 0)
    site.settle()

    assert site.told(SubscribeAccepted)[0].parameters.largest_object is None
    assert site.received() == ["0/0"]


def test_fill_and_subscription_meet_at_largest(new_site):
    site = new_site()
    site.add(0, 0, 1)
    site.end_group(0, 2)
    site.add(1, 0)

    request_id = site.subscribe(location_filter=NEXT, fill=FILL_ALL)
    site.add(1, 1)
    site.end_group(1, 2)
    site.settle()

    assert sorted(site.received(request_id)) == ["0/0 0/1 1/0 FIN", "1/1 1/2! FIN"]


def test_what_was_under_way_goes_to_the_fill(new_site):
    site = new_site(authoritative=False, fill_gaps=True)
    site.add(0, 0)
    site.add(1, 0)

    site.subscribe(location_filter=NEXT, fill=FILL_ALL)
    site.settle()
    site.add(0, 1)
    site.add(1, 1)
    site.end_group(0, 2)
    site.settle()

    fill, *live = site.received()
    assert (fill, live) == ("0/0 0/1 1/0 FIN", ["1/1"])


def test_a_fill_behind_largest_opens_no_stream(new_site):
    site = new_site()
    site.add(0, 0)

    site.subscribe(location_filter=NEXT, fill=FillParameters())
    site.subscribe(location_filter=NEXT, forward=False, fill=FILL_ALL)
    site.settle()

    assert site.received() == []


def test_a_fill_inherits_what_it_does_not_override(new_site):
    site = new_site()
    site.publish(layers=3, blocks=3)
    first = RangeFilter(kind=ParameterType.OBJECTID_FILTER, ranges=(Range(0, 0),))
    second = RangeFilter(kind=ParameterType.OBJECTID_FILTER, ranges=(Range(1, 1),))

    inherits = site.subscribe(
        location_filter=LocationFilter.absolute_start(1, 0),
        group_order=GroupOrder.DESCENDING,
        range_filters=(first,),
        fill=FillParameters(),
    )
    overrides = site.subscribe(
        range_filters=(first,),
        fill=FillParameters(
            location_filter=LocationFilter.relative_start(3), range_filters=(second,)
        ),
    )
    site.settle()

    assert site.received(inherits) == ["2/0 1/0 FIN"]
    assert site.received(overrides) == ["1/1 2/1 FIN"]


def test_a_fill_goes_before_its_subscription_in_ascending_order(new_site):
    site = new_site()
    site.add(0, 0, payload=bytes(1000), publisher_priority=7)

    site.subscribe(location_filter=NEXT, fill=FILL_ALL)
    site.add(1, 0, payload=bytes(1000), publisher_priority=7)
    site.settle(room=1000)

    assert site.received() == ["0/0 FIN"]


def test_a_fill_of_another_order_goes_after_its_subscription(new_site):
    site = new_site()
    site.add(0, 0, payload=bytes(1000), publisher_priority=7)

    fill = FillParameters(location_filter=ALL, group_order=GroupOrder.DESCENDING)
    site.subscribe(location_filter=NEXT, fill=fill)
    site.add(1, 0, payload=bytes(1000), publisher_priority=7)
    site.settle(room=1000)

    assert [stream for stream in site.received() if stream] == ["1/0"]


def test_done_waits_for_the_fill(new_site):
    site = new_site(authoritative=False, fill_gaps=True)
    site.add(0, 0, 2)

    site.subscribe(location_filter=NEXT, fill=FILL_ALL)
    site.responder.end(site.store, PublishDoneCode.TRACK_ENDED, now=0.0)
    site.settle()
    early = site.told(PublishDoneReceived)
    site.add(0, 1)
    site.settle()

    assert early == []
    assert site.told(PublishDoneReceived)[0].stream_count == 1
    assert site.received() == ["0/0 0/1 0/2 FIN"]


def test_a_refused_fill_leaves_the_subscription(new_site):
    site = new_site(authoritative=False, fill_gaps=True)
    site.add(0, 0, 2)
    site.subscribe(location_filter=NEXT, fill=FILL_ALL)
    site.settle()
    (stream_id,) = site.streams

    site.subscriber.stop_stream(stream_id, StreamResetCode.CANCELLED, now=0.0)
    site.settle()
    site.add(0, 3)
    site.settle()

    assert site.received()[1:] == ["0/3"]
    assert len(list(site.responder.deliveries(site.store))) == 1


def test_one_of_two_fills_can_be_refused(new_site):
    site = new_site(authoritative=False, fill_gaps=True)
    site.add(0, 0, 2)
    request_id = site.subscribe(location_filter=NEXT, fill=FILL_ALL)
    site.update(request_id, fill=FILL_ALL)
    site.settle()
    _, second = site.streams

    site.subscriber.stop_stream(second, StreamResetCode.CANCELLED, now=0.0)
    site.settle()
    site.add(0, 1)
    site.settle()

    assert site.received()[0] == "0/0 0/1 0/2 FIN"
    assert "FIN" not in site.received()[1]


def test_the_same_track_can_be_subscribed_twice(new_site):
    site = new_site()
    one, other = site.subscribe(), site.subscribe()

    site.publish(layers=1, blocks=1)
    site.settle()

    assert site.received(one) == site.received(other) == ["0/0 0/1! FIN", "1/0!! FIN"]


# REQUEST_UPDATE.


def test_an_update_is_answered_with_largest(new_site):
    site = new_site()
    request_id = site.subscribe()
    site.add(1, 1)

    update_id = site.update(request_id, subscriber_priority=3)

    (answer,) = site.told(UpdateAccepted)
    assert (answer.request_id, answer.update_id) == (request_id, update_id)
    assert answer.parameters.largest_object == Location(1, 1)


def test_a_fill_of_an_update_names_the_update(new_site):
    site = new_site()
    request_id = site.subscribe(forward=False)
    site.add(0, 0, 1)

    update_id = site.update(request_id, forward=True, fill=FILL_ALL)
    site.add(0, 2)
    site.settle()

    assert site.received(update_id) == ["0/0 0/1 FIN"]
    assert site.received(request_id) == ["0/2"]


def test_an_update_keeps_what_it_does_not_name(new_site):
    site = new_site()
    first = RangeFilter(kind=ParameterType.OBJECTID_FILTER, ranges=(Range(0, 0),))
    request_id = site.subscribe(range_filters=(first,), subscriber_priority=9)
    before = site.deliveries[request_id].terms

    site.update(request_id)

    assert site.deliveries[request_id].terms == before


def test_an_update_of_a_fetch_changes_its_priority(new_site):
    site = new_site()
    site.publish(layers=1, blocks=1)
    request_id = site.fetch()

    site.update(request_id, subscriber_priority=3)

    assert site.told(UpdateAccepted)
    assert site.deliveries[request_id].rank()[0] == 3


# FETCH.


def fetch_ok(site):
    return [(event.end_location, event.end_of_track) for event in site.told(FetchAccepted)]


def test_fetch_ok_of_a_whole_track_is_the_end_of_the_track(new_site):
    site = new_site(properties=PROPERTIES)
    site.publish(layers=2, blocks=3)

    site.fetch()

    assert fetch_ok(site) == [(Location(2, 0), True)]
    assert site.told(FetchAccepted)[0].properties == PROPERTIES


def test_fetch_ok_of_layers_ends_with_the_last_object_of_the_last(new_site):
    site = new_site()
    site.publish(layers=4, blocks=3)

    site.fetch(location_filter=LocationFilter.absolute_start_group_end(1, 0, 2))

    assert fetch_ok(site) == [(Location(3, 3), False)]


def test_fetch_ok_of_a_group_that_is_still_open_is_largest(new_site):
    site = new_site()
    site.add(0, 0, 1)

    site.fetch(location_filter=LocationFilter.absolute_start_group_end(0, 0, 5))

    assert fetch_ok(site) == [(Location(0, 1), False)]


def test_fetch_ok_of_an_empty_group_is_what_was_asked(new_site):
    site = new_site()
    site.add(0, 0)
    site.add(5, 0)

    site.fetch(location_filter=LocationFilter.absolute_start_group_end(3, 7, 0))
    site.fetch(location_filter=LocationFilter.absolute_start_group_end(0, 7, 0))
    site.settle()

    assert fetch_ok(site) == [(Location(3, MAX_VI64), False), (Location(0, 7), False)]
    assert site.received() == ["FIN", "FIN"]


def test_fetch_ok_is_withheld_until_the_end_is_known(new_site):
    site = new_site(authoritative=False, fill_gaps=True)
    site.add(0, 0)
    site.add(1, 0)

    site.fetch(location_filter=LocationFilter.absolute_start_group_end(0, 0, 0))
    site.settle()
    early = fetch_ok(site)
    site.add(0, 1)
    site.end_group(0, 2)
    site.settle()

    assert early == []
    assert fetch_ok(site) == [(Location(0, 2), False)]
    assert site.received() == ["0/0 0/1 FIN"]


def test_fetch_ok_comes_at_the_latest_with_the_end_of_the_data(new_site):
    site = new_site(authoritative=False, fill_gaps=True)
    site.add(0, 0)
    site.add(1, 0)
    site.fetch(location_filter=LocationFilter.absolute_start_group_end(0, 0, 0))
    site.settle()

    delivery, start, through = site.gaps[0]
    delivery.give_up(start, through)
    site.settle()

    assert site.received() == ["0/0 unknown<=0/* FIN"]
    assert fetch_ok(site) == [(Location(0, MAX_VI64), False)]


def test_fetch_from_a_cache_alone_is_answered_at_once(new_site):
    site = new_site(authoritative=False)
    site.add(0, 0)
    site.add(1, 0)

    site.fetch(location_filter=LocationFilter.absolute_start_group_end(0, 0, 0))
    site.settle()

    assert fetch_ok(site) == [(Location(0, MAX_VI64), False)]
    assert site.received() == ["0/0 unknown<=0/* FIN"]


def test_fetch_of_nothing_is_an_invalid_range(new_site):
    site = new_site()
    empty = site.fetch()
    site.add(2, 2)

    beyond = site.fetch(location_filter=LocationFilter.absolute_start(2, 3))
    inverted = site.fetch(location_filter=LocationFilter.absolute_range(1, 5, 0, 4))
    after = site.fetch(location_filter=NEXT)

    refused = {event.request_id: event.code for event in site.told(RequestRejected)}
    assert refused == dict.fromkeys(
        (empty, beyond, inverted, after), RequestErrorCode.INVALID_RANGE
    )


def test_deliveries_of_a_store_are_those_under_way(new_site):
    site = new_site()
    site.publish(layers=1, blocks=1)
    site.subscribe(fill=FILL_ALL)
    site.fetch()

    under_way = len(list(site.responder.deliveries(site.store)))
    site.settle()

    assert under_way == 3
    assert len(list(site.responder.deliveries(site.store))) == 1


def test_too_many_fetches_are_refused_for_a_while(new_site):
    site = new_site()
    site.publish(layers=2, blocks=2)
    site.fetch()
    site.fetch()

    third = site.fetch()
    (refused,) = site.told(RequestRejected)
    site.settle()
    site.fetch()
    site.settle()

    assert (refused.request_id, refused.code) == (third, RequestErrorCode.EXCESSIVE_LOAD)
    assert refused.retry_after is not None
    assert len(site.told(FetchAccepted)) == 3


def test_fills_do_not_count_as_fetches(new_site):
    site = new_site()
    site.publish(layers=1, blocks=1)

    for _ in range(4):
        site.subscribe(fill=FILL_ALL)
    site.settle()

    assert site.received() == ["0/0 FIN"] * 4


def test_a_fetch_that_fails_before_its_answer_is_refused(new_site):
    site = new_site(authoritative=False, fill_gaps=True)
    site.add(0, 0)
    site.add(1, 0)
    request_id = site.fetch(location_filter=LocationFilter.absolute_start_group_end(0, 0, 0))
    site.settle()

    site.responder.fail_fetch(
        request_id,
        RequestErrorCode.MALFORMED_TRACK,
        StreamResetCode.MALFORMED_TRACK,
        now=0.0,
    )
    site.settle()

    assert [event.code for event in site.told(RequestRejected)] == [0x12]
    assert fetch_ok(site) == []
    assert site.store._watchers == {}


def test_an_abort_resets_fetches_and_fills(new_site):
    site = new_site()
    site.publish(layers=2, blocks=2)
    site.fetch()
    site.subscribe(fill=FILL_ALL)
    site.settle(room=3)

    site.responder.end(site.store, PublishDoneCode.MALFORMED_TRACK, drain=False, now=0.0)
    site.settle()

    assert [stream.split()[-2:] for stream in site.received()] == [["RESET", "18"]] * 2
    assert site.told(PublishDoneReceived)[0].status_code == PublishDoneCode.MALFORMED_TRACK
    assert list(site.responder.deliveries(site.store)) == []


# TRACK_STATUS, PUBLISH and the end of the session.


def test_track_status_has_largest_and_properties(new_site):
    site = new_site(properties=PROPERTIES)
    site.add(1, 2)

    site.subscriber.track_status(site.track, now=0.0)
    site.settle()

    (answer,) = site.told(RequestAccepted)
    assert answer.parameters.largest_object == Location(1, 2)
    assert answer.properties == PROPERTIES


def test_a_publish_of_ours_is_served_like_a_subscription(new_site):
    site = new_site()
    site.add(0, 0)
    request_id = site.publisher.publish(site.track, Parameters(), now=0.0)
    delivery = site.responder.serve_publish(request_id, site.store, Parameters(), now=0.0)
    site.settle()
    site.subscriber.accept(request_id, now=0.0)

    site.add(0, 1)
    site.settle()
    delivery.end(PublishDoneCode.TRACK_ENDED)
    site.settle()

    assert site.received() == ["0/1 RESET 1"]
    assert site.told(PublishDoneReceived)[0].request_id == request_id


def test_a_refused_publish_is_forgotten(new_site):
    site = new_site()
    request_id = site.publisher.publish(site.track, Parameters(), now=0.0)
    site.responder.serve_publish(request_id, site.store, Parameters(), now=0.0)
    site.settle()

    site.subscriber.reject(request_id, RequestErrorCode.UNINTERESTED, now=0.0)
    site.settle()

    assert list(site.responder.deliveries(site.store)) == []


def test_close_lets_go_of_the_stores(new_site):
    site = new_site()
    site.subscribe(fill=FILL_ALL)
    site.add(0, 0)
    site.fetch()

    site.responder.close()

    assert (site.store._watchers, site.store._followers) == ({}, {})
    assert len(site.outbox) == 0


def test_the_properties_of_a_fetch_are_those_at_its_answer(new_site):
    site = new_site(authoritative=False, fill_gaps=True)
    site.add(0, 0)
    site.add(1, 0)
    site.fetch(location_filter=LocationFilter.absolute_start_group_end(0, 0, 0))
    site.settle()

    site.store.properties = PROPERTIES
    site.store.mark_absent(Location(0, 1), Location(0, MAX_VI64))
    site.settle()

    assert site.told(FetchAccepted)[0].properties == PROPERTIES


def test_ending_one_track_leaves_the_others(new_site):
    site = new_site()
    other = new_site().store
    site.subscribe()
    site.fetch()

    site.responder.end(other, PublishDoneCode.TRACK_ENDED, drain=False, now=0.0)
    site.settle()

    assert list(site.responder.deliveries(other)) == []
    assert site.told(PublishDoneReceived) == []


def test_failing_a_fetch_that_is_over_does_nothing(new_site):
    site = new_site()
    site.publish(layers=1, blocks=1)
    request_id = site.fetch()
    site.settle()

    for unknown in (request_id, 12345):
        site.responder.fail_fetch(
            unknown, RequestErrorCode.TIMEOUT, StreamResetCode.INTERNAL_ERROR, now=0.0
        )
    site.settle()

    assert site.received() == ["0/0 FIN"]


def test_events_of_other_requests_are_left_to_others(new_site):
    site = new_site()
    site.answering = False

    request_id = site.subscribe()
    site.subscriber.cancel(request_id, now=0.0)
    site.settle()

    assert "subscriptions=0" in repr(site.responder)
