import pytest

from kvcs.errors import PublishDoneCode, StreamResetCode
from kvcs.moqt.codepoints import GroupOrder, ObjectStatus, ParameterType, PropertyType
from kvcs.moqt.session.events import PublishDoneReceived, SubscribeAccepted, SubscriptionDrained
from kvcs.moqt.track.datagrams import MAX_DATAGRAM_BACKLOG
from kvcs.moqt.wire.filters import LocationFilter, Range, RangeFilter
from kvcs.moqt.wire.parameters import FillParameters
from kvcs.moqt.wire.properties import Properties
from kvcs.names import Location

NEXT = LocationFilter.next_object()


def header_type(site, stream_id):
    return site.headers[stream_id].encode()[0]


def test_a_kv_track_is_delivered_on_one_stream_for_each_group(new_site):
    site = new_site()
    site.subscribe(location_filter=NEXT)

    site.publish(layers=2, blocks=2)
    site.settle()

    assert site.received() == ["0/0 0/1 0/2! FIN", "1/0 1/1 1/2! FIN", "2/0!! FIN"]


def test_the_header_carries_priority_first_object_and_end_of_group(new_site):
    site = new_site()
    site.subscribe()

    site.publish(layers=1, blocks=1)
    site.settle()

    assert [header_type(site, stream_id) for stream_id in site.streams] == [0x58, 0x58]
    assert [header.publisher_priority for header in site.headers.values()] == [0, 1]


def test_the_header_of_objects_with_properties(new_site):
    site = new_site()
    site.subscribe()

    site.add(0, 0, properties=Properties.of((0x3800, 7)))
    site.settle()

    assert [header_type(site, stream_id) for stream_id in site.streams] == [0x59]


def test_objects_are_sent_as_they_are_published(new_site):
    site = new_site()
    site.subscribe()

    site.add(0, 0)
    site.settle()
    first = site.received()
    site.add(0, 1)
    site.end_group(0, 2)
    site.settle()

    assert first == ["0/0"]
    assert site.received() == ["0/0 0/1 0/2! FIN"]


def test_what_was_published_before_is_not_sent(new_site):
    site = new_site()
    site.add(0, 0, 1)

    site.subscribe(location_filter=NEXT)
    site.add(0, 2)
    site.settle()

    assert site.told(SubscribeAccepted)[0].parameters.largest_object == Location(0, 1)
    assert site.received() == ["0/2"]
    assert not next(iter(site.headers.values())).first_object


def test_an_unfiltered_subscription_begins_with_what_comes(new_site):
    site = new_site(authoritative=False)
    site.add(0, 0, 1)
    site.add(1, 0)

    site.subscribe()
    site.add(0, 2)
    site.add(1, 1)
    site.settle()

    assert sorted(site.received()) == ["0/2", "1/1"]


def test_a_late_object_below_largest_passes_no_next_object_filter(new_site):
    site = new_site(authoritative=False)
    site.add(1, 0)

    site.subscribe(location_filter=NEXT)
    site.add(0, 5)
    site.add(1, 1)
    site.settle()

    assert site.received() == ["1/1"]


def test_what_a_fetch_brought_from_beyond_largest_is_sent(new_site):
    site = new_site(authoritative=False)
    site.add(1, 0)
    site.fetched(1, 1)
    site.fetched(2, 0)

    site.subscribe(location_filter=NEXT)
    site.add(1, 1)
    site.add(2, 0)
    site.settle()

    assert site.received() == ["1/1", "2/0"]


def test_groups_that_overtake_each_other_are_sent_lowest_first(new_site):
    site = new_site(authoritative=False)
    site.subscribe(location_filter=NEXT)

    for group_id in (3, 1, 2, 0):
        site.add(group_id, 0)
        site.finish(group_id)
    site.settle()

    assert site.received() == ["0/0 FIN", "1/0 FIN", "2/0 FIN", "3/0 FIN"]


def test_descending_order_sends_the_newest_group_first(new_site):
    site = new_site()
    site.subscribe(group_order=GroupOrder.DESCENDING)

    for group_id in range(3):
        site.add(group_id, 0, publisher_priority=9)
    site.settle()

    assert site.received() == ["2/0", "1/0", "0/0"]


def test_at_most_eight_streams_are_sent_on_at_a_time(new_site):
    site = new_site(authoritative=False)
    site.subscribe(location_filter=NEXT)

    for group_id in range(12):
        site.add(group_id, 0, 1, payload=bytes(100))
    site.settle(room=8 * 2 * 100)
    opened = len(site.streams)
    for group_id in range(12):
        site.finish(group_id)
    site.settle()

    assert opened == 8
    assert site.received() == [f"{group_id}/0 {group_id}/1 FIN" for group_id in range(12)]


def test_idle_streams_do_not_hold_up_other_groups(new_site):
    site = new_site(authoritative=False)
    site.subscribe(location_filter=NEXT)

    for group_id in range(40):
        site.add(group_id, 0)
        site.settle()

    assert len(site.streams) == 40
    assert len(site.publisher.open_streams(0)) == 8
    given_up = f" RESET {StreamResetCode.CANCELLED}"
    assert site.received() == [f"{g}/0{given_up if g < 32 else ''}" for g in range(40)]


def test_idle_stream_is_not_given_up_before_the_transport_has_sent_it(new_site):
    site = new_site(authoritative=False)
    waiting = set()
    site.outbox.is_drained = lambda stream_id: stream_id not in waiting
    request_id = site.subscribe(location_filter=NEXT)
    for group_id in range(8):
        site.add(group_id, 0)
        site.settle()
    waiting |= set(site.publisher.open_streams(request_id))
    site.add(8, 0)
    site.settle()
    before = len(site.streams)
    soon = site.outbox.next_deadline()

    waiting.discard(max(waiting))
    site.now = soon
    site.settle()

    assert (before, len(site.streams)) == (8, 9)
    assert site.received()[7] == f"7/0 RESET {StreamResetCode.CANCELLED}"
    assert site.received()[:7] == [f"{group_id}/0" for group_id in range(7)]
    assert 0 < soon < 0.1


def test_given_up_subgroup_goes_on_on_another_stream(new_site):
    site = new_site(authoritative=False)
    site.subscribe(location_filter=NEXT)
    for group_id in range(9):
        site.add(group_id, 0)
        site.settle()

    site.add(0, 1)
    site.finish(0)
    site.settle()

    assert site.received()[0] == f"0/0 RESET {StreamResetCode.CANCELLED}"
    assert site.received()[9].startswith("0/1")


def test_a_range_ends_the_sending_and_not_the_subscription(new_site):
    site = new_site()
    request_id = site.subscribe(location_filter=LocationFilter.absolute_range(0, 1, 1, 0))

    site.publish(layers=3, blocks=2)
    site.settle()
    before_the_end = site.received()
    site.responder.end(site.store, PublishDoneCode.TRACK_ENDED, now=0.0)
    site.settle()

    assert before_the_end == ["0/1 0/2! FIN", "1/0"]
    assert site.received()[1] == f"1/0 RESET {StreamResetCode.CANCELLED}"
    assert site.told(PublishDoneReceived)[0].request_id == request_id


def test_range_filters_leave_out_objects_and_streams_still_end(new_site):
    site = new_site()
    even = RangeFilter(kind=ParameterType.OBJECTID_FILTER, ranges=(Range(0, 0), Range(2, 2)))
    site.subscribe(range_filters=(even,))

    site.add(0, 0, 1, 2, 3)
    site.finish(0)
    site.settle()

    assert site.received() == ["0/0 0/2 FIN"]


def test_datagram_objects_go_out_as_datagrams(new_site):
    site = new_site(authoritative=False)
    site.subscribe()

    site.add(0, 4, subgroup_id=None)
    site.add(0, 9, subgroup_id=None)
    site.settle()

    assert site.streams == {"datagrams": ["0/4", "0/9"]}


def test_datagram_that_is_not_held_any_more_is_left_out_and_nobody_is_asked(new_site):
    site = new_site(authoritative=False, fill_gaps=True)
    site.subscribe()
    site.add(0, 0, 1, subgroup_id=None)
    site.settle(room=1)
    site.store.drop_group(0)
    site.add(0, 2, subgroup_id=None)
    site.settle()

    assert site.streams == {"datagrams": ["0/0", "0/2"]}
    assert site.gaps == []
    assert site.told(PublishDoneReceived) == []


def test_late_datagrams_are_dropped_one_by_one(new_site):
    site = new_site(authoritative=False)
    site.subscribe(object_delivery_timeout_ms=500)
    site.add(0, 0, 1, subgroup_id=None)
    site.settle(room=1)

    site.now = 1.0
    site.add(0, 2, subgroup_id=None)
    site.settle()

    assert site.streams == {"datagrams": ["0/0", "0/2"]}


def test_subgroup_timeout_is_an_object_timeout_for_datagrams(new_site):
    site = new_site(authoritative=False)
    site.subscribe(subgroup_delivery_timeout_ms=500)
    site.add(0, 0, subgroup_id=None)

    site.now = 1.0
    site.settle()

    assert site.streams == {}


def test_backlog_of_datagrams_is_bounded_and_the_oldest_go_first(new_site):
    site = new_site(authoritative=False)
    site.subscribe()
    site.add(0, *range(MAX_DATAGRAM_BACKLOG + 10), subgroup_id=None)
    site.settle()

    received = site.streams["datagrams"]
    assert len(received) == MAX_DATAGRAM_BACKLOG
    assert received[0] == "0/10"


def test_last_datagram_of_a_group_says_so(new_site):
    site = new_site(authoritative=False)
    site.subscribe()
    site.add(0, 0, 1, subgroup_id=None)
    site.finish(0, None)
    site.settle()

    assert [event.end_of_group for event in site.datagrams] == [False, True]


# Pausing.


def test_a_pause_resets_the_open_streams_and_sends_nothing(new_site):
    site = new_site()
    request_id = site.subscribe()
    site.add(0, 0)
    site.settle()

    site.update(request_id, forward=False)
    site.add(0, 1)
    site.settle()

    assert site.received() == [f"0/0 RESET {StreamResetCode.CANCELLED}"]


def test_a_resumed_subscription_goes_on_behind_largest(new_site):
    site = new_site()
    request_id = site.subscribe(forward=False)
    site.add(0, 0, 1)
    site.settle()

    site.update(request_id, forward=True)
    site.add(0, 2)
    site.settle()

    assert site.received() == ["0/2"]


def test_a_pause_that_is_over_before_anything_could_be_sent_still_cuts(new_site):
    site = new_site()
    request_id = site.subscribe()
    site.add(0, 0)
    site.settle()
    site.add(0, 1)

    site.update(request_id, forward=False)
    site.add(0, 2)
    site.update(request_id, forward=True)
    site.add(0, 3)
    site.settle()

    assert site.received() == [f"0/0 RESET {StreamResetCode.CANCELLED}", "0/3"]


def test_streams_that_are_not_sent_on_can_be_refused_too(new_site):
    site = new_site(authoritative=False)
    request_id = site.subscribe()
    site.add(0, 0, 4)
    site.settle()
    retired, current = site.streams

    site.subscriber.stop_stream(retired, StreamResetCode.CANCELLED, now=0.0)
    site.settle()
    site.update(request_id, forward=False)
    site.subscriber.stop_stream(current, StreamResetCode.CANCELLED, now=0.0)
    site.settle()

    assert site.publisher.open_streams(request_id) == frozenset()


def test_every_object_goes_out_although_idle_streams_are_given_up(new_site):
    site = new_site(authoritative=False)
    request_id = site.subscribe(location_filter=NEXT)

    for group_id in range(60):
        site.add(group_id, 0)
        site.settle()

    assert len(site.publisher.open_streams(request_id)) == 8
    assert [stream.split()[0] for stream in site.received()] == [f"{n}/0" for n in range(60)]


def test_only_open_streams_go_on_when_the_limit_is_reached(new_site):
    site = new_site(authoritative=False)
    site.subscribe(location_filter=NEXT)
    for group_id in range(1, 9):
        site.add(group_id, 0)
    site.settle()

    site.add(8, 1)
    site.add(0, 0)
    site.settle()

    assert site.received()[-2:] == ["8/0 8/1", "0/0"]


def test_an_object_timeout_before_the_first_object_opens_no_stream(new_site):
    site = new_site()
    site.subscribe(object_delivery_timeout_ms=500)
    site.add(0, 0)

    site.now = 1.0
    site.settle()

    assert site.received() == []


def test_an_object_in_time_is_sent(new_site):
    site = new_site()
    site.subscribe(object_delivery_timeout_ms=500)
    site.add(0, 0)

    site.now = 0.4
    site.settle()

    assert site.received() == ["0/0"]


def test_groups_outside_the_range_are_not_needed(new_site):
    site = new_site()
    request_id = site.subscribe(location_filter=LocationFilter.absolute_range(1, 0, 1, 0))
    site.add(0, 0)
    site.add(1, 0)
    site.add(2, 0, 1)
    site.add(3, 0)

    needed = [site.deliveries[request_id].needs(group_id) for group_id in range(5)]
    site.settle()

    assert needed == [False, True, True, False, False]
    assert site.received() == ["1/0", "2/0"]


def test_a_range_that_begins_behind_the_objects_opens_nothing(new_site):
    site = new_site()
    site.subscribe(location_filter=LocationFilter.absolute_range(0, 0, 0, 1))

    site.add(0, 2)
    site.settle()

    assert site.received() == []


def test_a_dropped_group_beyond_the_range_is_no_matter(new_site):
    site = new_site()
    site.subscribe(location_filter=LocationFilter.absolute_range(0, 0, 0, 1))
    site.add(0, 0, 1, 2, 3)
    site.settle()

    site.store.drop_group(0)
    site.settle()

    assert site.received() == ["0/0 0/1"]
    assert site.told(PublishDoneReceived) == []


def test_a_subgroup_of_which_a_pause_cost_something_ends_with_a_reset(new_site):
    site = new_site()
    request_id = site.subscribe(forward=False)
    site.add(0, 0)

    site.update(request_id, forward=True)
    site.add(0, 1)
    site.end_group(0, 2)
    site.add(1, 0)
    site.finish(1)
    site.responder.end(site.store, PublishDoneCode.TRACK_ENDED, now=0.0)
    site.settle()

    assert site.received() == ["0/1 0/2! RESET 1", "1/0 FIN"]


def test_a_paused_subscription_ends_at_once(new_site):
    site = new_site()
    site.subscribe(forward=False)
    site.publish(layers=1, blocks=1)

    site.responder.end(site.store, PublishDoneCode.TRACK_ENDED, now=0.0)
    site.settle()

    assert site.received() == []
    assert site.told(PublishDoneReceived)[0].status_code == PublishDoneCode.TRACK_ENDED


# Ending.


def test_done_comes_after_everything_owed(new_site):
    site = new_site()
    site.subscribe()
    site.publish(layers=3, blocks=2)

    site.responder.end(site.store, PublishDoneCode.TRACK_ENDED, "all", now=0.0)
    site.settle(room=1)
    early = site.told(PublishDoneReceived)
    site.settle()

    (done,) = site.told(PublishDoneReceived)
    assert early == []
    assert (done.status_code, done.stream_count, done.reason) == (2, 4, "all")
    assert site.told(SubscriptionDrained)[0].complete
    assert len(site.outbox) == 0


def test_an_unfinished_subgroup_is_reset_at_the_end(new_site):
    site = new_site(authoritative=False)
    site.subscribe()
    site.add(0, 0)

    site.responder.end(site.store, PublishDoneCode.INTERNAL_ERROR, now=0.0)
    site.settle()

    assert site.received() == [f"0/0 RESET {StreamResetCode.CANCELLED}"]


def test_a_subgroup_whose_group_ended_needs_no_reset(new_site):
    site = new_site(authoritative=False)
    site.subscribe()
    site.add(0, 0)
    site.add(0, 1, payload=b"", status=ObjectStatus.END_OF_GROUP)

    site.responder.end(site.store, PublishDoneCode.TRACK_ENDED, now=0.0)
    site.settle()

    assert site.received() == ["0/0 0/1! FIN"]


def test_an_abort_gives_up_what_is_owed(new_site):
    site = new_site()
    site.subscribe()
    site.add(0, 0)
    site.settle()
    site.add(0, 1)

    site.responder.end(site.store, PublishDoneCode.INTERNAL_ERROR, drain=False, now=0.0)
    site.settle()

    assert site.received() == [f"0/0 RESET {StreamResetCode.CANCELLED}"]
    assert site.told(PublishDoneReceived)[0].status_code == PublishDoneCode.INTERNAL_ERROR


def test_a_dropped_group_that_is_still_owed_is_too_far_behind(new_site):
    site = new_site()
    site.subscribe()
    site.publish(layers=3, blocks=2)
    site.settle(room=1)

    site.store.drop_group(1)
    site.settle()

    (done,) = site.told(PublishDoneReceived)
    assert done.status_code == PublishDoneCode.TOO_FAR_BEHIND
    assert site.received()[0].startswith("0/0")


def test_a_dropped_group_that_was_passed_is_no_matter(new_site):
    site = new_site()
    request_id = site.subscribe()
    site.add(0, 0)
    site.end_group(0, 1)
    site.settle()

    needed = site.deliveries[request_id].needs(0)
    site.store.drop_group(0)
    site.add(1, 0)
    site.settle()

    assert not needed
    assert site.received() == ["0/0 0/1! FIN", "1/0"]


def test_a_group_fetched_again_after_it_was_dropped_is_not_sent_again(new_site):
    site = new_site(authoritative=False)
    site.subscribe()
    site.add(0, 0, 1)
    site.settle()

    site.store.drop_group(0)
    site.add(0, 0, 1)
    site.add(0, 2)
    site.settle()

    assert site.received() == ["0/0 0/1 0/2"]


def test_nothing_is_needed_once_too_far_behind(new_site):
    site = new_site()
    site.add(0, 0)
    site.add(1, 0)
    request_id = site.subscribe(fill=FillParameters(location_filter=LocationFilter.none()))
    site.add(2, 0)
    site.add(3, 0)
    site.store.drop_group(2)

    site.deliveries[request_id].step(site.publisher, now=0.0)

    assert not site.deliveries[request_id].needs(3)
    assert site.deliveries[request_id].fills[0].needs(1)
    site.settle()
    assert site.received()[-1] == "0/0 1/0 FIN"


def test_a_second_end_changes_nothing(new_site):
    site = new_site()
    request_id = site.subscribe()
    delivery = site.deliveries[request_id]

    delivery.end(PublishDoneCode.TRACK_ENDED, "first")
    delivery.end(PublishDoneCode.INTERNAL_ERROR, "second")
    site.settle()
    delivery.step(site.publisher, now=0.0)

    assert [done.reason for done in site.told(PublishDoneReceived)] == ["first"]


def test_cancelling_resets_the_streams(new_site):
    site = new_site()
    request_id = site.subscribe()
    site.add(0, 0)
    site.settle()

    site.deliveries[request_id].cancel(site.publisher, now=0.0, code=StreamResetCode.GOING_AWAY)
    site.settle()

    assert site.received() == [f"0/0 RESET {StreamResetCode.GOING_AWAY}"]
    assert "open=0" in repr(site.deliveries[request_id])


def test_expired_objects_are_not_begun(new_site):
    site = new_site(
        authoritative=False, properties=Properties.of((PropertyType.MAX_CACHE_DURATION, 1000))
    )
    site.subscribe()
    site.add(0, 0)

    site.now = 2.0
    site.settle()

    assert site.received() == []
    assert site.told(PublishDoneReceived)[0].status_code == PublishDoneCode.TOO_FAR_BEHIND


# Streams that the subscriber refuses, and timeouts.


def test_a_refused_subgroup_is_not_opened_again(new_site):
    site = new_site()
    site.subscribe()
    site.add(0, 0)
    site.settle()
    (stream_id,) = site.streams

    site.subscriber.stop_stream(stream_id, StreamResetCode.CANCELLED, now=0.0)
    site.settle()
    site.add(0, 1)
    site.add(1, 0)
    site.settle()

    assert [stream for stream in site.received() if stream.startswith("0/1")] == []
    assert site.received()[-1] == "1/0"


def test_a_cancelled_subscription_is_forgotten(new_site):
    site = new_site()
    request_id = site.subscribe()
    site.add(0, 0)
    site.settle()

    site.subscriber.cancel(request_id, now=0.0)
    site.settle()
    site.add(0, 1)
    site.settle()

    assert site.received() == ["0/0"]
    assert list(site.responder.deliveries(site.store)) == []
    assert site.store._followers == {}


def test_an_object_delivery_timeout_resets_its_stream(new_site):
    site = new_site()
    site.subscribe(object_delivery_timeout_ms=500)
    site.add(0, 0)
    site.settle()
    site.add(0, 1)

    site.now = 1.0
    site.settle()
    site.add(0, 2)
    site.add(1, 0)
    site.settle()

    assert site.received() == [f"0/0 RESET {StreamResetCode.DELIVERY_TIMEOUT}", "1/0"]


OWN_TIMEOUT = Properties.of((PropertyType.OBJECT_DELIVERY_TIMEOUT, 500))


@pytest.mark.parametrize("timeout_ms", [None, 60_000])
def test_first_object_of_a_subgroup_sets_its_timeout(new_site, timeout_ms):
    site = new_site(authoritative=False)
    site.subscribe(object_delivery_timeout_ms=timeout_ms)
    site.add(0, 0, properties=OWN_TIMEOUT)
    site.add(1, 0)
    site.settle()
    site.add(0, 1)
    site.add(1, 1)

    site.now = 1.0
    site.settle()

    assert site.received() == [f"0/0 RESET {StreamResetCode.DELIVERY_TIMEOUT}", "1/0 1/1"]


def test_timeout_on_another_object_than_the_first_is_ignored(new_site):
    site = new_site()
    site.subscribe()
    site.add(0, 0, properties=Properties.of((0x3800, 1)))
    site.settle()
    site.add(0, 1, properties=OWN_TIMEOUT)

    site.now = 1.0
    site.settle()

    assert site.received() == ["0/0 0/1"]


def test_shorter_timeout_of_the_subscriber_holds(new_site):
    site = new_site()
    site.subscribe(object_delivery_timeout_ms=100)
    site.add(0, 0, properties=OWN_TIMEOUT)
    site.settle()
    site.add(0, 1)

    site.now = 0.2
    site.settle()

    assert site.received() == [f"0/0 RESET {StreamResetCode.DELIVERY_TIMEOUT}"]


def test_timeout_that_is_taken_back_by_an_update_holds_no_longer(new_site):
    site = new_site()
    request_id = site.subscribe(object_delivery_timeout_ms=100)
    site.add(0, 0)
    site.settle()
    site.update(request_id, object_delivery_timeout_ms=0)
    site.add(0, 1)

    site.now = 1.0
    site.settle()

    assert site.received() == ["0/0 0/1"]


def test_a_subgroup_delivery_timeout_counts_from_its_end(new_site):
    site = new_site(properties=Properties.of((PropertyType.SUBGROUP_DELIVERY_TIMEOUT, 500)))
    site.subscribe()
    site.add(0, 0, 1)
    site.settle(room=1)
    site.finish(0)

    site.now = 1.0
    site.settle()

    assert site.received() == [f"0/0 RESET {StreamResetCode.DELIVERY_TIMEOUT}"]


def waiting_transport(site):
    """Have the transport of a site send nothing; return what waits by stream."""
    unsent = {}
    site.outbox.late._unsent_bytes = lambda stream_id: unsent.get(stream_id, 0)
    return unsent


def test_an_object_that_waits_in_the_transport_for_too_long_resets_its_stream(new_site):
    site = new_site(authoritative=False)
    unsent = waiting_transport(site)
    site.subscribe(object_delivery_timeout_ms=500)
    site.add(0, 0)
    site.settle()
    site.add(1, 0)
    site.settle()
    first, _ = site.streams
    unsent[first] = 1

    site.now = site.outbox.next_deadline()
    site.settle()
    site.add(0, 1)
    site.add(1, 1)
    site.settle()

    assert site.now == 0.5
    assert site.received() == [f"0/0 RESET {StreamResetCode.DELIVERY_TIMEOUT}", "1/0 1/1"]


def test_a_subgroup_timeout_resets_a_stream_that_has_ended_and_was_not_sent(new_site):
    site = new_site()
    unsent = waiting_transport(site)
    site.subscribe(subgroup_delivery_timeout_ms=500)
    for group_id in range(2):
        site.add(group_id, 0)
        site.finish(group_id)
    site.settle()
    first, _ = site.streams
    unsent[first] = 1
    site.responder.end(site.store, PublishDoneCode.TRACK_ENDED, now=0.0)
    site.settle()
    site.publisher.take_actions()

    site.now = 0.5
    site.outbox.send(site.publisher, room=0, now=site.now)

    (reset,) = site.publisher.take_actions()
    assert (reset.stream_id, reset.code) == (first, StreamResetCode.DELIVERY_TIMEOUT)


def test_timeout_that_is_taken_back_does_not_hold_for_what_waits(new_site):
    site = new_site()
    unsent = waiting_transport(site)
    request_id = site.subscribe(object_delivery_timeout_ms=500)
    site.add(0, 0)
    site.settle()
    (first,) = site.streams
    unsent[first] = 1
    site.update(request_id, object_delivery_timeout_ms=0)

    site.now = 1.0
    site.settle()

    assert site.received() == ["0/0"]


# Gaps in a Subgroup.


def test_an_object_that_may_not_be_the_next_gets_a_new_stream(new_site):
    site = new_site(authoritative=False)
    site.subscribe()

    site.add(0, 0, 4)
    site.finish(0)
    site.settle()
    site.responder.end(site.store, PublishDoneCode.TRACK_ENDED, now=0.0)
    site.settle()

    assert site.received() == ["0/0 RESET 1", "0/4 RESET 1"]


def test_an_object_that_followed_on_its_stream_is_the_next(new_site):
    site = new_site(authoritative=False)
    site.subscribe()
    site.add(0, 0)

    obj = next(site.store.objects())
    site.store.add(
        type(obj)(group_id=0, object_id=4, subgroup_id=0, publisher_priority=0),
        now=0.0,
        follows=0,
    )
    site.finish(0)
    site.settle()

    assert site.received() == ["0/0 0/4 FIN"]


def test_a_gap_is_waited_for_and_delivered_in_order(new_site):
    site = new_site(authoritative=False, fill_gaps=True)
    site.subscribe()
    site.add(0, 0, 3)
    site.settle()

    waiting = site.received()
    site.add(0, 1)
    site.settle()
    site.add(0, 2)
    site.finish(0)
    site.settle()

    assert waiting == ["0/0"]
    assert [gap[1:] for gap in site.gaps] == [(Location(0, 1), Location(0, 2))]
    assert site.received() == ["0/0 0/1 0/2 0/3 FIN"]


def test_a_gap_that_nobody_can_fill_is_passed_on_a_new_stream(new_site):
    site = new_site(authoritative=False, fill_gaps=True)
    site.subscribe()
    site.add(0, 0, 3)
    site.settle()

    delivery, start, through = site.gaps[0]
    delivery.give_up(start, through)
    site.settle()

    assert site.received() == ["0/0", "0/3"]


def test_a_gap_that_turns_out_absent_is_passed_on_the_same_stream(new_site):
    site = new_site(authoritative=False, fill_gaps=True)
    site.subscribe()
    site.add(0, 0, 3)
    site.settle()

    site.store.mark_absent(Location(0, 1), Location(0, 2))
    site.settle()

    assert site.received() == ["0/0 0/3"]


def test_dropped_objects_are_asked_for_where_that_is_possible(new_site):
    site = new_site(authoritative=False, fill_gaps=True)
    site.subscribe()
    site.add(0, 0, 1, 2)
    site.settle(room=1)

    site.store.drop_group(0)
    site.settle()
    asked = [gap[1:] for gap in site.gaps]
    site.add(0, 1, 2)
    site.settle()

    assert asked == [(Location(0, 1), Location(0, 2))]
    assert site.received() == ["0/0 0/1 0/2"]


def test_a_late_object_is_sent_once_on_a_stream_of_its_own(new_site):
    site = new_site(authoritative=False)
    site.subscribe()
    site.add(0, 0, 2)
    site.settle()

    site.add(0, 1)
    site.add(0, 3)
    site.settle()

    assert site.received() == ["0/0", "0/2", "0/1", "0/3"]


# Updates.


def test_a_narrowed_range_leaves_out_what_was_owed(new_site):
    site = new_site()
    request_id = site.subscribe()
    site.add(0, 0)
    site.add(1, 0)
    site.add(2, 0)

    site.update(request_id, location_filter=LocationFilter.absolute_start(1, 0))
    site.settle()

    assert site.received() == ["1/0", "2/0"]


def test_a_widened_range_sends_nothing_that_was_there(new_site):
    site = new_site()
    request_id = site.subscribe(location_filter=LocationFilter.absolute_start(1, 0))
    site.add(0, 0)
    site.settle()

    site.update(request_id, location_filter=LocationFilter.none())
    site.add(0, 1)
    site.add(1, 0)
    site.settle()

    assert site.received() == ["0/1", "1/0"]


def test_a_range_filter_can_be_taken_back(new_site):
    site = new_site()
    only_zero = RangeFilter(kind=ParameterType.OBJECTID_FILTER, ranges=(Range(0, 0),))
    request_id = site.subscribe(range_filters=(only_zero,))
    site.add(0, 0, 1)
    site.settle()

    site.update(request_id, range_filters=(RangeFilter(kind=ParameterType.OBJECTID_FILTER),))
    site.add(0, 2)
    site.settle()

    assert site.received() == ["0/0 0/2"]


def test_subgroups_of_one_group_take_turns_and_keep_to_their_streams(new_site):
    site = new_site()
    site.subscribe()

    for object_id in range(6):
        site.add(0, object_id, subgroup_id=object_id // 2 % 2, publisher_priority=1)
        site.settle()

    assert site.received() == ["0/0 0/1 0/4 0/5", "0/2 0/3"]


def test_properties_that_come_later_need_a_stream_with_room_for_them(new_site):
    site = new_site()
    site.subscribe()
    site.add(0, 0, 1)
    site.settle()

    site.add(0, 2, properties=Properties.of((0x3800, 7)))
    site.settle()

    assert site.received() == ["0/0 0/1", "0/2"]
    assert [header.has_properties for header in site.headers.values()] == [False, True]


def test_a_start_that_moves_ahead_leaves_out_what_an_open_stream_owed(new_site):
    site = new_site()
    request_id = site.subscribe(location_filter=LocationFilter.absolute_start(0, 0))
    site.add(0, 0)
    site.settle()

    site.add(0, 1, 2, 3)
    site.update(request_id, location_filter=LocationFilter.absolute_start(0, 3))
    site.settle()

    assert " ".join(site.received()) == "0/0 0/3"


def test_gaps_of_other_groups_are_not_looked_at_with_every_object(new_site):
    site = new_site(authoritative=False, fill_gaps=True)
    site.subscribe()
    for group_id in range(3):
        site.add(group_id, 5)
    site.settle()
    (delivery,) = site.deliveries.values()
    stops = []
    delivery.on_stopped = lambda _, location: stops.append(location.group_id)

    site.add(7, 0)
    site.settle()
    elsewhere = list(stops)
    site.add(1, 6)
    site.settle()

    assert (elsewhere, stops) == ([], [1])
