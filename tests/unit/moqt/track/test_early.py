"""Objects that go on while they arrive."""

import pytest

from kvcs.errors import MalformedTrack, PublishDoneCode, StreamResetCode
from kvcs.moqt.codepoints import GroupOrder, ParameterType, PropertyType
from kvcs.moqt.session.events import PublishDoneReceived
from kvcs.moqt.track.arriving import Arriving
from kvcs.moqt.track.subscription_delivery import MAX_OPEN_SUBGROUPS
from kvcs.moqt.wire.filters import LocationFilter, Range, RangeFilter
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import FillParameters
from kvcs.moqt.wire.properties import Properties
from kvcs.names import Location

PAYLOAD = b"0123456789"


def begin(site, object_id=0, group_id=0, length=10, **fields):
    """Let an Object begin to arrive."""
    site.store.open_subgroup(group_id, 0, first_object_id=0, has_properties="properties" in fields)
    obj = Object(
        group_id=group_id,
        object_id=object_id,
        subgroup_id=0,
        publisher_priority=group_id,
        **fields,
    )
    arriving = Arriving(obj, length)
    site.store.begin(arriving, now=site.now)
    return arriving


def grow(site, arriving, octets):
    arriving.add(memoryview(octets))
    site.store.arrivals.grew(arriving)
    site.settle()


def finish(site, arriving):
    site.store.add(arriving.whole(), now=site.now)
    site.store.arrivals.end(arriving, lost=False)
    site.settle()


def under_way(site):
    """Return the octets of unfinished Objects at the subscriber."""
    return site.subscriber._context.partial_bytes


@pytest.fixture
def site(new_site):
    site = new_site(authoritative=False)
    site.subscribe()
    return site


def test_an_object_goes_on_while_it_arrives(site):
    arriving = begin(site)
    grow(site, arriving, PAYLOAD[:4])
    early = under_way(site)
    grow(site, arriving, PAYLOAD[4:9])

    assert (early, under_way(site), site.received()) == (4, 9, [""])
    grow(site, arriving, PAYLOAD[9:])
    finish(site, arriving)

    assert site.received() == ["0/0"]
    assert under_way(site) == 0


def test_the_stream_goes_on_behind_an_object_that_went_out_early(site):
    site.add(0, 0)
    arriving = begin(site, 1)
    grow(site, arriving, PAYLOAD)
    finish(site, arriving)
    site.add(0, 2)
    site.end_group(0, 3)
    site.settle()

    assert site.received() == ["0/0 0/1 0/2 0/3! FIN"]


def test_a_subscriber_that_is_behind_gets_it_whole_from_the_store(site):
    arriving = begin(site)
    arriving.add(memoryview(PAYLOAD))
    finish(site, arriving)

    assert site.received() == ["0/0"]


def test_a_subscriber_that_is_slow_gets_the_rest_after_it_is_whole(site):
    arriving = begin(site)
    grow(site, arriving, PAYLOAD[:4])
    arriving.add(memoryview(PAYLOAD[4:]))
    site.store.add(arriving.whole(), now=site.now)
    site.store.arrivals.end(arriving, lost=False)
    site.settle(room=0)

    assert under_way(site) == 4
    site.settle()
    assert site.received() == ["0/0"]


def test_streams_that_carry_a_lost_object_are_reset_and_it_is_not_kept(site):
    site.add(0, 0)
    arriving = begin(site, 1)
    grow(site, arriving, PAYLOAD[:4])

    site.store.arrivals.end(arriving, lost=True)
    site.settle()

    assert site.received() == ["0/0 RESET 0"]
    assert site.store.held(0, 1, now=site.now) is None
    assert under_way(site) == 0


def test_a_lost_object_that_comes_again_is_sent_whole(site):
    arriving = begin(site)
    grow(site, arriving, PAYLOAD[:4])
    site.store.arrivals.end(arriving, lost=True)
    site.settle()

    site.add(0, 0, 1)
    site.settle()

    assert site.received() == ["RESET 0", "0/0 0/1"]


def test_the_end_of_a_subscription_waits_for_an_object_on_its_way(site):
    arriving = begin(site)
    grow(site, arriving, PAYLOAD[:4])
    (delivery,) = site.deliveries.values()
    delivery.end(PublishDoneCode.TRACK_ENDED)
    site.settle()
    before = site.told(PublishDoneReceived)

    arriving.add(memoryview(PAYLOAD[4:]))
    finish(site, arriving)

    assert before == []
    assert site.received()[0].startswith("0/0")
    assert len(site.told(PublishDoneReceived)) == 1


def test_an_object_that_does_not_follow_waits_until_it_is_whole(site):
    site.add(0, 0)
    site.settle()
    arriving = begin(site, 2)
    grow(site, arriving, PAYLOAD[:4])

    assert under_way(site) == 0
    grow(site, arriving, PAYLOAD[4:])
    finish(site, arriving)
    assert "0/2" in " ".join(site.received())


def test_an_object_that_the_subscriber_does_not_want_does_not_go_out(new_site):
    site = new_site(authoritative=False)
    filters = (RangeFilter(kind=ParameterType.OBJECTID_FILTER, ranges=(Range(5, 9),)),)
    site.subscribe(range_filters=filters)
    outside = new_site(authoritative=False)
    outside.subscribe(location_filter=LocationFilter.absolute_start(3, 0))

    for place in (site, outside):
        arriving = begin(place)
        grow(place, arriving, PAYLOAD[:4])
        assert under_way(place) == 0
        assert place.received() == []


def test_an_object_with_delivery_timeouts_goes_out_whole(new_site):
    site = new_site(authoritative=False, properties=Properties.of((0x02, 5000)))
    site.subscribe()
    arriving = begin(site)
    grow(site, arriving, PAYLOAD[:4])

    assert under_way(site) == 0


def test_an_object_with_properties_needs_a_stream_that_has_room_for_them(site):
    site.add(0, 0)
    site.settle()
    arriving = begin(site, 1, properties=Properties.of((0x3800, 7)))
    grow(site, arriving, PAYLOAD)

    assert under_way(site) == 0
    finish(site, arriving)
    assert site.received() == ["0/0", "0/1"]


def test_a_stream_that_the_subscriber_refuses_inside_an_object_ends_it(site):
    arriving = begin(site)
    grow(site, arriving, PAYLOAD[:4])
    (stream_id,) = site.streams
    site.subscriber.stop_stream(stream_id, 1, now=site.now)
    site.settle()

    grow(site, arriving, PAYLOAD[4:])
    finish(site, arriving)

    assert under_way(site) == 0
    assert not any("0/0" in text for text in site.received())


def test_what_is_held_already_does_not_arrive_again(site):
    site.add(0, 0)
    site.settle()
    arriving = begin(site)

    assert len(site.store.arrivals) == 0
    site.store.arrivals.end(arriving, lost=True)
    assert site.received() == ["0/0"]


def test_an_object_that_contradicts_the_track_does_not_begin(site):
    site.end_group(0, 2)

    with pytest.raises(MalformedTrack, match="beyond the end"):
        begin(site, 5)
    assert site.store.largest == Location(0, 2)


def test_an_object_that_is_overtaken_within_its_subgroup_is_sent_once(site):
    arriving = begin(site)
    grow(site, arriving, PAYLOAD[:4])
    site.add(0, 1)
    site.settle()

    arriving.add(memoryview(PAYLOAD[4:]))
    finish(site, arriving)

    assert site.received() == ["0/0 0/1"]


def test_an_object_that_is_held_from_elsewhere_is_not_waited_for(site):
    arriving = begin(site)
    grow(site, arriving, PAYLOAD[:4])

    site.add(0, 0, 1)
    site.settle()

    assert site.received() == ["RESET 0", "0/0 0/1"]
    assert under_way(site) == 0


def test_objects_on_their_way_take_no_stream_from_each_other(site):
    arriving = [begin(site, group_id=group_id) for group_id in range(MAX_OPEN_SUBGROUPS + 2)]
    for octet in range(9):
        for each in arriving:
            grow(site, each, PAYLOAD[octet : octet + 1])

    assert site.received() == [""] * MAX_OPEN_SUBGROUPS


def test_an_object_that_was_left_half_way_is_not_begun_again(site):
    arriving = [begin(site, group_id=group_id) for group_id in range(MAX_OPEN_SUBGROUPS)]
    for each in arriving:
        grow(site, each, PAYLOAD[:4])
    for group_id in range(100, 103):
        site.add(group_id, 0)
        site.end_group(group_id, 1)
        site.settle()
        for each in arriving:
            grow(site, each, b"x")

    assert sum(stream.startswith("RESET") for stream in site.received()) == 1


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_subscriber_that_stands_still_keeps_no_octets_that_nobody_counts(site, is_whole):
    arriving = begin(site)
    grow(site, arriving, PAYLOAD[:4])
    arriving.add(memoryview(PAYLOAD[4:] if is_whole else PAYLOAD[4:9]))
    if is_whole:
        site.store.add(arriving.whole(), now=site.now)
        site.store.arrivals.end(arriving, lost=False)
        site.store.drop_group(0)
    else:
        site.store.arrivals.end(arriving, lost=True)

    assert arriving.read(4) == b""
    site.settle()
    assert site.received() == ["RESET 0"]


def test_a_delivery_timeout_that_the_first_object_brings_holds_while_it_arrives(site):
    properties = Properties.of((PropertyType.OBJECT_DELIVERY_TIMEOUT, 1000))
    arriving = begin(site, properties=properties)
    grow(site, arriving, PAYLOAD[:4])
    early = under_way(site)
    grow(site, arriving, PAYLOAD[4:])
    finish(site, arriving)
    site.add(0, 1)
    site.now += 2

    site.settle()

    assert early == 0
    assert site.received() == ["0/0 RESET 2"]


# On fetch streams.


def cache(new_site, *held):
    """A cache that waits for what it lacks of the first ten Objects."""
    site = new_site(authoritative=False, fill_gaps=True)
    site.add(0, *held)
    site.store.raise_largest(Location(0, 9))
    return site


def begin_fetched(site, object_id, length=10, **fields):
    """Let an Object begin to arrive on a fetch stream: nobody said more of its Subgroup."""
    obj = Object(0, object_id, 0, 0, **fields)
    arriving = Arriving(obj, length)
    site.store.begin(arriving, now=site.now)
    return arriving


def finish_fetched(site, arriving):
    site.store.add(arriving.whole(), now=site.now, fetched=True)
    site.store.arrivals.end(arriving, lost=False)
    site.settle()


def test_a_fetch_sends_an_object_while_it_arrives(new_site):
    site = cache(new_site, 0, 2)
    site.fetch(location_filter=LocationFilter.absolute_range(0, 0, 0, 2))
    site.settle()
    arriving = begin_fetched(site, 1)
    grow(site, arriving, PAYLOAD[:4])
    first = under_way(site)
    grow(site, arriving, PAYLOAD[4:9])

    assert (first, under_way(site), site.received()) == (4, 9, ["0/0"])
    arriving.add(memoryview(PAYLOAD[9:]))
    finish_fetched(site, arriving)

    assert site.received() == ["0/0 0/1 0/2 FIN"]
    # It is waited for like any other, so that somebody owes its end.
    assert [gap[1:] for gap in site.gaps] == [(Location(0, 1), Location(0, 1))]


def test_a_fetch_that_comes_while_an_object_arrives_begins_with_what_is_here(new_site):
    site = cache(new_site)
    arriving = begin_fetched(site, 0)
    grow(site, arriving, PAYLOAD[:4])
    site.fetch(location_filter=LocationFilter.absolute_range(0, 0, 0, 0))
    site.settle()
    early = under_way(site)
    arriving.add(memoryview(PAYLOAD[4:]))
    finish_fetched(site, arriving)

    assert early == 4
    assert site.received() == ["0/0 FIN"]


def test_a_fill_sends_an_object_that_arrives_on_a_subscription(new_site):
    site = cache(new_site, 0)
    site.store.raise_largest(Location(0, 1))
    arriving = begin(site, 1)
    fill = FillParameters(location_filter=LocationFilter.absolute_range(0, 0, 0, 1))
    site.subscribe(location_filter=LocationFilter.next_object(), fill=fill)
    site.settle()
    grow(site, arriving, PAYLOAD[:4])
    early = under_way(site)
    arriving.add(memoryview(PAYLOAD[4:]))
    finish(site, arriving)

    assert early == 4
    assert site.received() == ["0/0 0/1 FIN"]


def test_a_descending_fetch_sends_an_object_while_it_arrives(new_site):
    site = cache(new_site, 0)
    site.store.raise_largest(Location(1, 0))
    site.fetch(
        location_filter=LocationFilter.absolute_range(0, 0, 1, 0),
        group_order=GroupOrder.DESCENDING,
    )
    site.settle()
    arriving = begin(site, 0, group_id=1)
    grow(site, arriving, PAYLOAD[:4])
    early = under_way(site)
    arriving.add(memoryview(PAYLOAD[4:]))
    finish(site, arriving)

    assert early == 4
    assert site.received()[0].startswith("1/0 0/0")


def test_a_fetch_that_carries_a_lost_object_is_reset_and_it_is_not_kept(new_site):
    site = cache(new_site, 0, 2)
    request_id = site.fetch(location_filter=LocationFilter.absolute_range(0, 0, 0, 2))
    site.settle()
    arriving = begin_fetched(site, 1)
    grow(site, arriving, PAYLOAD[:4])
    site.store.arrivals.end(arriving, lost=True)
    site.settle()

    assert site.received() == [f"0/0 RESET {int(StreamResetCode.INTERNAL_ERROR)}"]
    assert site.store.held(0, 1, now=site.now) is None
    assert (under_way(site), site.deliveries[request_id].finished) == (0, True)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_fetch_looks_again_at_what_ended_before_it_sent_any_of_it(new_site, is_whole):
    site = cache(new_site, 0)
    arriving = begin_fetched(site, 1)
    arriving.add(memoryview(PAYLOAD[:4]))
    site.fetch(location_filter=LocationFilter.absolute_range(0, 0, 0, 1))
    site.settle(room=10)
    sent = site.received()
    if is_whole:
        arriving.add(memoryview(PAYLOAD[4:]))
        site.store.add(arriving.whole(), now=site.now, fetched=True)
        site.store.arrivals.end(arriving, lost=False)
        site.store.drop_group(0)
    else:
        site.store.arrivals.end(arriving, lost=True)
    site.settle()
    waiting = site.received()
    site.add(0, 1)
    site.settle()

    assert (sent, waiting) == (["0/0"], ["0/0"])
    assert site.received() == ["0/0 0/1 FIN"]


def test_a_fetch_does_not_begin_an_object_when_its_time_is_over(new_site):
    site = cache(new_site, 0)
    arriving = begin_fetched(site, 1)
    grow(site, arriving, PAYLOAD[:4])
    site.fetch(location_filter=LocationFilter.absolute_range(0, 0, 0, 1), fill_timeout_ms=0)
    site.settle()

    assert site.received() == ["0/0 late<=0/1 FIN"]


def test_a_fetch_whose_time_ends_inside_an_object_sends_it_and_marks_the_rest(new_site):
    site = cache(new_site, 0)
    site.fetch(location_filter=LocationFilter.absolute_range(0, 0, 0, 3), fill_timeout_ms=1000)
    site.settle()
    arriving = begin_fetched(site, 1)
    grow(site, arriving, PAYLOAD[:4])
    site.now += 2
    site.settle()
    arriving.add(memoryview(PAYLOAD[4:]))
    finish_fetched(site, arriving)

    assert site.received() == ["0/0 0/1 late<=0/3 FIN"]


def test_a_fetch_sends_no_part_of_what_its_filter_leaves_out(new_site):
    site = cache(new_site, 0)
    filters = (RangeFilter(kind=ParameterType.PRIORITY_FILTER, ranges=(Range(5, 9),)),)
    site.fetch(location_filter=LocationFilter.absolute_range(0, 0, 0, 1), range_filters=filters)
    site.settle()
    arriving = begin_fetched(site, 1)
    grow(site, arriving, PAYLOAD[:4])
    early = under_way(site)
    arriving.add(memoryview(PAYLOAD[4:]))
    finish_fetched(site, arriving)

    assert early == 0
    assert site.received() == ["FIN"]


def test_a_fetch_keeps_no_octets_of_an_object_that_the_store_has_dropped(new_site):
    site = cache(new_site)
    site.fetch(location_filter=LocationFilter.absolute_range(0, 0, 0, 0))
    arriving = begin_fetched(site, 0)
    grow(site, arriving, PAYLOAD[:4])
    arriving.add(memoryview(PAYLOAD[4:]))
    site.store.add(arriving.whole(), now=site.now, fetched=True)
    site.store.arrivals.end(arriving, lost=False)
    site.store.drop_group(0)

    assert arriving.read(4) == b""
    site.settle()
    assert site.received() == [f"RESET {int(StreamResetCode.INTERNAL_ERROR)}"]


def test_a_subscriber_that_refuses_a_fetch_stream_inside_an_object_ends_it(new_site):
    site = cache(new_site)
    request_id = site.fetch(location_filter=LocationFilter.absolute_range(0, 0, 0, 0))
    arriving = begin_fetched(site, 0)
    grow(site, arriving, PAYLOAD[:4])
    (stream_id,) = site.streams
    site.subscriber.stop_stream(stream_id, 1, now=site.now)
    site.settle()
    arriving.add(memoryview(PAYLOAD[4:]))
    finish_fetched(site, arriving)

    assert site.deliveries[request_id].finished
    assert under_way(site) == 0


def test_a_fetched_object_with_properties_waits_for_a_stream_that_has_room_for_them(site):
    site.add(0, 0)
    site.settle()
    site.store.drop_group(0)
    arriving = begin_fetched(site, 1, properties=Properties.of((0x3800, 7)))
    grow(site, arriving, PAYLOAD)
    assert under_way(site) == 0
