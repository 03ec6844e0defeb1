import pytest

from kvcs.errors import StreamResetCode
from kvcs.moqt.codepoints import GroupOrder, ParameterType, PropertyType, RangeMarker
from kvcs.moqt.session.events import RequestCancelled
from kvcs.moqt.track.delivery import DeliveryTerms
from kvcs.moqt.track.fetch_delivery import WALKED_RUNS, FetchDelivery
from kvcs.moqt.track.walks import STEPS_PER_SLOT, WALK_INTERVAL, Walks
from kvcs.moqt.wire.filters import LocationFilter, LocationRange, Range, RangeFilter
from kvcs.moqt.wire.parameters import FillParameters
from kvcs.moqt.wire.properties import Properties
from kvcs.names import Location
from kvcs.varint import MAX_VI64

DESCENDING = GroupOrder.DESCENDING
NOTE = 0x3802
EVEN = RangeFilter(kind=ParameterType.OBJECTID_FILTER, ranges=(Range(0, 0), Range(2, 2)))


def cached_site(new_site, *locations, **options):
    """A cache that knows of two Groups of 2^64 Objects and holds a few."""
    site = new_site(authoritative=False, **options)
    for group_id, object_id in locations:
        site.add(group_id, object_id)
    site.store.raise_largest(Location(9, MAX_VI64))
    return site


def everything(last_group, last_object=MAX_VI64):
    return LocationFilter.absolute_range(0, 0, last_group, last_object)


# Without gaps.


def test_a_complete_track_needs_no_markers(new_site):
    site = new_site()
    site.publish(layers=3, blocks=2)

    site.fetch()
    site.settle()

    assert site.received() == ["0/0 0/1 1/0 1/1 2/0 2/1 FIN"]


def test_from_group_to_group_of_a_complete_track_nothing_is_searched(new_site, monkeypatch):
    site = new_site()
    site.publish(layers=20, blocks=1)
    searched, lookup = [], site.store.lookup

    def counted(location, *, now):
        searched.append(location)
        return lookup(location, now=now)

    monkeypatch.setattr(site.store, "lookup", counted)
    site.fetch()
    site.settle()

    assert site.received() == [" ".join([*(f"{group}/0" for group in range(20)), "FIN"])]
    assert len(searched) <= 3


def test_a_group_that_may_go_on_is_not_left_for_the_next_one(new_site):
    site = cached_site(new_site, (0, 0), (1, 0))

    site.fetch(location_filter=everything(1, 0))
    site.settle()

    assert site.received() == ["0/0 unknown<=0/* 1/0 FIN"]


def test_a_range_ends_before_a_group_that_follows_at_once(new_site):
    site = new_site()
    site.publish(layers=3, blocks=1)

    site.fetch(location_filter=everything(1))
    site.settle()

    assert site.received() == ["0/0 1/0 FIN"]


def test_descending_groups_have_ascending_objects(new_site):
    site = new_site()
    site.publish(layers=3, blocks=2)

    site.fetch(group_order=DESCENDING)
    site.settle()

    assert site.received() == ["2/0 2/1 1/0 1/1 0/0 0/1 FIN"]


def test_a_range_is_cut_at_both_ends(new_site):
    site = new_site()
    site.publish(layers=4, blocks=3)
    location_filter = LocationFilter.absolute_range(1, 2, 1, 1)

    site.fetch(location_filter=location_filter)
    site.fetch(location_filter=location_filter, group_order=DESCENDING)
    site.settle()

    assert site.received() == ["1/2 2/0 2/1 FIN", "2/0 2/1 1/2 FIN"]


def test_a_filter_leaves_out_objects(new_site):
    site = new_site()
    site.publish(layers=2, blocks=4)

    site.fetch(range_filters=(EVEN,))
    site.settle()

    assert site.received() == ["0/0 0/2 1/0 1/2 FIN"]


def test_a_range_without_objects_is_an_empty_stream(new_site):
    site = new_site()
    site.publish(layers=2, blocks=1)

    site.fetch(location_filter=LocationFilter.absolute_range(0, 1, 0, 5))
    site.settle()

    assert site.received() == ["FIN"]


def test_gaps_of_a_publisher_do_not_exist(new_site):
    site = new_site()
    site.add(0, 3)
    site.add(2**63, 7)

    site.fetch()
    site.fetch(group_order=DESCENDING)
    site.settle()

    assert site.received() == [f"0/3 {2**63}/7 FIN", f"{2**63}/7 0/3 FIN"]


# Gaps that nobody can fill.


def test_what_the_publisher_dropped_is_unknown(new_site):
    site = new_site()
    site.publish(layers=4, blocks=2)
    site.store.drop_group(1)
    site.store.drop_group(2)

    site.fetch()
    site.settle()

    assert site.received() == [
        "0/0 0/1 absent<=0/* unknown<=1/1 absent<=1/* unknown<=2/1 3/0 3/1 FIN"
    ]


def test_unknown_runs_of_any_length_are_one_marker(new_site):
    site = cached_site(new_site, (0, 0), (5, 5))

    site.fetch(location_filter=everything(8))
    site.settle()

    assert site.received() == ["0/0 unknown<=5/4 5/5 unknown<=8/* FIN"]


def test_unknown_runs_in_descending_order(new_site):
    site = cached_site(new_site, (0, 0), (5, 5))

    site.fetch(location_filter=everything(8, 7), group_order=DESCENDING)
    site.settle()

    assert site.received() == ["unknown<=5/4 5/5 unknown<=1/* 0/0 unknown<=0/* FIN"]


@pytest.mark.timeout(5)
@pytest.mark.parametrize("order", GroupOrder)
@pytest.mark.parametrize("ids", [(0, 0), (2, 2), (2, None), (MAX_VI64, MAX_VI64)])
@pytest.mark.parametrize("fill_timeout_ms", [None, 0])
def test_a_filtered_run_of_any_length_is_a_few_records(new_site, order, ids, fill_timeout_ms):
    site = cached_site(new_site, (2**62, ids[0]))
    wanted = RangeFilter(kind=ParameterType.OBJECTID_FILTER, ranges=(Range(*ids),))

    site.fetch(
        location_filter=everything(2**62),
        group_order=order,
        range_filters=(wanted,),
        fill_timeout_ms=fill_timeout_ms,
    )
    site.settle()

    (received,) = site.received()
    assert f"{2**62}/" in received
    assert received.endswith("FIN")
    assert len(received.split()) <= 6


def site_with_runs(new_site, runs):
    """A cache that knows every second Group of `runs` to be empty, and nothing of the others."""
    site = cached_site(new_site, (runs, 0))
    for group_id in range(0, runs, 2):
        site.store.mark_absent(Location(group_id, 0), Location(group_id, MAX_VI64))
    return site


def walk_on(site):
    """Let time go on until nothing waits for a slot; return how many slots that were."""
    slots = 0
    while (due_at := site.outbox.next_deadline()) is not None:
        slots += 1
        site.now = max(site.now, due_at)
        site.settle()
    return slots


@pytest.mark.parametrize("order", GroupOrder)
def test_a_walk_through_many_runs_lets_others_have_their_turn(new_site, order):
    runs = 20 * WALKED_RUNS
    site = site_with_runs(new_site, runs)
    walk = site.fetch(location_filter=everything(runs - 1), group_order=order)
    other = site.fetch(location_filter=everything(runs, 0))

    site.settle()

    (begun,) = site.received(walk)
    assert len(begun.split()) <= WALKED_RUNS * (1 + STEPS_PER_SLOT)
    assert not site.outbox.is_idle
    # The other one begins with as many runs, and the two take turns from then on.
    slots = walk_on(site)
    walked = [site.received(request)[0] for request in (walk, other)]
    assert [len(text.split()) in {runs, runs + 1, runs + 2} for text in walked] == [True, True]
    assert all(text.endswith("FIN") for text in walked)
    assert slots == pytest.approx(2 * 20 / STEPS_PER_SLOT, abs=2)
    assert site.now >= (slots - 2) * WALK_INTERVAL
    assert site.outbox.is_idle


def test_walks_of_all_sessions_share_the_slots(new_site):
    sites = [site_with_runs(new_site, 40 * WALKED_RUNS) for _ in range(3)]
    walks = Walks()
    for site in sites:
        site.outbox.walking.walks = walks
        site.fetch(location_filter=everything(40 * WALKED_RUNS - 1))
        site.settle()

    due = sorted(site.outbox.next_deadline() for site in sites)

    # The first slot was free at once.
    assert due == pytest.approx([n * WALK_INTERVAL for n in (1, 2, 3)])


def test_a_walk_waits_for_room(new_site):
    site = site_with_runs(new_site, 20 * WALKED_RUNS)
    site.fetch(location_filter=everything(20 * WALKED_RUNS - 1))
    site.settle()

    for _ in range(9):
        site.outbox.send(site.publisher, room=0, now=1.0)

    # The connection calls again when there is some; a timer before that would be for nothing.
    assert site.outbox.next_deadline() is None
    assert not site.outbox.is_idle
    # It keeps the slot that it has, however often it is asked without room.
    assert site.outbox.walking.walks.reserve(now=0.0) == pytest.approx(2 * WALK_INTERVAL)
    site.now = 2.0
    site.settle()
    walk_on(site)
    assert site.received()[0].endswith("FIN")


@pytest.mark.parametrize("others", [0, 40])
def test_time_that_others_walk_is_not_taken_from_who_fills_a_gap(new_site, others):
    walks = Walks()
    site = cached_site(new_site, fill_gaps=True)
    for group_id in range(9):
        site.add(group_id, *range(20), publisher_priority=1)
        site.finish(group_id)
    strangers = [site_with_runs(new_site, 500 * WALKED_RUNS) for _ in range(others)]
    for one in (*strangers, site):
        one.outbox.walking.walks = walks
    for one in strangers:
        one.fetch(location_filter=everything(500 * WALKED_RUNS - 1))
        one.settle()
    nothing = RangeFilter(kind=ParameterType.PRIORITY_FILTER, ranges=(Range(200, 255),))
    site.fetch(location_filter=everything(9, 5), range_filters=(nothing,), fill_timeout_ms=100)
    site.settle()

    while not site.gaps:
        due = [one for one in (*strangers, site) if one.outbox.next_deadline() is not None]
        first = min(due, key=lambda one: one.outbox.next_deadline())
        now = max(first.now, first.outbox.next_deadline())
        first.now = site.now = now
        first.settle()

    # The gap is asked for however late, and waited for as long as was said.
    assert not site.received()[0].endswith("FIN")
    asked_at = site.now
    assert asked_at > 0.1 or not others
    walk_on(site)
    assert site.received()[0].endswith("late<=9/5 FIN")
    assert 0.09 < site.now - asked_at < 0.11


def test_a_walk_whose_request_is_over_is_forgotten(new_site):
    site = site_with_runs(new_site, 50 * WALKED_RUNS)
    request_id = site.fetch(location_filter=everything(50 * WALKED_RUNS - 1))
    site.settle()

    # The session knows, and nobody has told the outbox yet.
    site.answering = False
    site.subscriber.cancel(request_id, now=site.now)
    site.carry_to_publisher()
    site.outbox.send(site.publisher, room=1 << 20, now=site.now + 1)

    assert len(site.outbox.walking) == 0
    assert site.outbox.is_idle


def test_a_walk_ends_when_the_peer_refuses_its_stream(new_site):
    runs = 20 * WALKED_RUNS
    site = site_with_runs(new_site, runs)
    site.subscribe(fill=FillParameters(location_filter=everything(runs - 1)))
    site.settle()
    (stream_id,) = site.streams

    site.subscriber.stop_stream(stream_id, code=0, now=site.now)
    site.settle()

    assert walk_on(site) <= 2
    assert site.outbox.is_idle
    assert len(site.received()[0].split()) < runs


def test_what_a_filter_leaves_out_is_walked_in_turns_too(new_site):
    site = new_site()
    blocks = 20 * WALKED_RUNS
    site.add(0, *range(blocks), publisher_priority=7)
    site.add(0, blocks, publisher_priority=7, properties=Properties.of((NOTE, 1)))
    wanted = RangeFilter(
        kind=ParameterType.OBJECT_PROPERTY_FILTER, property_type=NOTE, ranges=(Range(1, 1),)
    )
    site.fetch(range_filters=(wanted,))
    site.settle()

    assert not site.outbox.is_idle
    assert walk_on(site) == pytest.approx(20 / STEPS_PER_SLOT, abs=2)
    assert site.received() == [f"0/{blocks} FIN"]


def test_object_ids_that_are_not_wanted_are_passed_at_once(new_site):
    site = new_site()
    last = 20 * WALKED_RUNS
    site.publish(layers=4, blocks=last + 1)
    wanted = RangeFilter(kind=ParameterType.OBJECTID_FILTER, ranges=(Range(last, last),))

    site.fetch(range_filters=(wanted,))
    site.settle()

    assert site.received() == [" ".join(f"{layer}/{last}" for layer in range(4)) + " FIN"]


def test_absent_and_unknown_parts_of_a_gap_are_told_apart(new_site):
    site = cached_site(new_site, (0, 0))
    site.store.mark_absent(Location(0, 1), Location(1, 4))

    site.fetch(location_filter=everything(2))
    site.fetch(location_filter=everything(2), group_order=DESCENDING)
    site.settle()

    assert site.received() == [
        "0/0 absent<=1/4 unknown<=2/* FIN",
        "unknown<=2/* absent<=1/4 unknown<=1/* 0/0 FIN",
    ]


def test_a_filtered_fetch_marks_only_what_is_unknown(new_site):
    site = cached_site(new_site, (0, 0), (0, 1), (0, 2))
    site.store.mark_absent(Location(0, 3), Location(1, 4))

    site.fetch(location_filter=everything(2), range_filters=(EVEN,))
    site.settle()

    assert site.received() == ["0/0 0/2 unknown<=2/* FIN"]


# Gaps that somebody may fill.


def test_a_gap_is_waited_for(new_site):
    site = cached_site(new_site, (0, 0), (0, 3), fill_gaps=True)
    request_id = site.fetch(location_filter=everything(0, 3))
    site.settle()

    waiting = site.received()
    site.add(0, 1)
    site.settle()
    site.store.mark_absent(Location(0, 2), Location(0, 2))
    site.settle()

    assert waiting == ["0/0"]
    assert site.gaps == [(site.deliveries[request_id], Location(0, 1), Location(0, 2))]
    assert site.received() == ["0/0 0/1 0/3 FIN"]


def test_a_gap_over_groups_is_reported_as_it_can_be_fetched(new_site):
    site = cached_site(new_site, (0, 0), (4, 0), fill_gaps=True)

    site.fetch(location_filter=LocationFilter.absolute_range(0, 1, 5, 6), group_order=DESCENDING)
    site.settle()
    for _, start, through in list(site.gaps):
        site.store.mark_absent(start, through)
    site.settle()
    site.store.mark_absent(*site.gaps[1][1:])
    site.settle()

    assert [gap[1:] for gap in site.gaps] == [
        (Location(5, 0), Location(5, 6)),
        (Location(4, 1), Location(4, MAX_VI64)),
        (Location(0, 1), Location(3, MAX_VI64)),
    ]


def test_a_gap_that_is_given_up_is_marked(new_site):
    site = cached_site(new_site, (0, 0), (0, 5), fill_gaps=True)
    site.fetch(location_filter=everything(0, 5))
    site.settle()

    delivery = site.gaps[0][0]
    delivery.give_up(Location(0, 1), Location(0, 2))
    site.settle()
    delivery.give_up(Location(0, 3), Location(0, 4), RangeMarker.TIMED_OUT)
    site.settle()

    assert site.received() == ["0/0 unknown<=0/2 late<=0/4 0/5 FIN"]


def test_a_deadline_ends_the_waiting(new_site):
    site = cached_site(new_site, (0, 0), (0, 5), fill_gaps=True)
    site.fetch(location_filter=everything(0, 6), fill_timeout_ms=3000)
    site.settle()

    assert site.outbox.next_deadline() == 3.0
    site.now = 3.0
    site.settle()
    assert site.received() == ["0/0 late<=0/4 0/5 late<=0/6 FIN"]
    assert site.outbox.next_deadline() is None


def test_no_time_to_wait_gives_only_what_is_there(new_site):
    site = cached_site(new_site, (0, 1), fill_gaps=True)

    site.fetch(location_filter=everything(0, 5), fill_timeout_ms=0)
    site.settle()

    assert site.gaps == []
    assert site.received() == ["late<=0/0 0/1 late<=0/5 FIN"]


def test_a_filtered_fetch_says_timed_out_only_of_what_it_waited_for(new_site):
    site = cached_site(new_site, (0, 0), (0, 1), fill_gaps=True)

    site.fetch(location_filter=everything(0, 5), fill_timeout_ms=0, range_filters=(EVEN,))
    site.settle()

    assert site.received() == ["0/0 unknown<=0/1 late<=0/5 FIN"]


def test_expired_objects_are_unknown(new_site):
    properties = Properties.of((PropertyType.MAX_CACHE_DURATION, 1000))
    site = new_site(authoritative=False, properties=properties)
    site.add(0, 0)
    site.now = 0.5
    site.add(0, 1)

    site.now = 1.2
    site.fetch()
    site.settle()

    assert site.received() == ["unknown<=0/0 0/1 FIN"]


# The end before the end.


def test_cancelling_stops_the_delivery(new_site):
    site = new_site()
    site.publish(layers=2, blocks=2)
    request_id = site.fetch()
    site.settle(room=2)

    site.subscriber.cancel(request_id, now=0.0)
    site.settle()

    assert len(site.outbox) == 0
    assert site.store._watchers == {}
    assert site.told(RequestCancelled) == []


def test_a_refused_stream_stops_the_delivery(new_site):
    site = new_site()
    site.publish(layers=2, blocks=2)
    request_id = site.fetch()
    site.settle(room=2)

    (stream_id,) = site.streams
    site.subscriber.stop_stream(stream_id, StreamResetCode.CANCELLED, now=0.0)
    site.settle()

    assert site.deliveries[request_id].finished
    assert len(site.outbox) == 0


def test_failing_before_any_data_still_opens_the_stream(new_site):
    site = cached_site(new_site, fill_gaps=True)
    request_id = site.fetch(location_filter=everything(0, 5))

    site.deliveries[request_id].fail(site.publisher, now=0.0, code=StreamResetCode.MALFORMED_TRACK)
    site.settle()

    assert site.received() == [f"RESET {StreamResetCode.MALFORMED_TRACK}"]


def test_failing_what_is_over_does_nothing(new_site):
    site = new_site()
    site.publish(layers=1, blocks=1)
    request_id = site.fetch()
    site.settle()

    site.deliveries[request_id].fail(site.publisher, now=0.0, code=StreamResetCode.CANCELLED)
    site.deliveries[request_id].stop()
    site.settle()

    assert site.received() == ["0/0 FIN"]
    assert "end={1, 0}" in repr(site.deliveries[request_id])


def test_a_gap_given_up_in_advance_is_not_waited_for(new_site):
    site = cached_site(new_site, (0, 0), (0, 5), fill_gaps=True)
    request_id = site.fetch(location_filter=everything(0, 5))

    site.deliveries[request_id].give_up(Location(0, 1), Location(0, 4))
    site.settle()

    assert site.gaps == []
    assert site.received() == ["0/0 unknown<=0/4 0/5 FIN"]


def test_a_fetch_can_be_cancelled_before_its_stream_is_open(new_site):
    site = new_site()
    site.publish(layers=1, blocks=1)
    request_id = site.fetch()
    delivery = site.deliveries[request_id]
    site.outbox.remove(delivery)

    delivery.change(delivery.terms)
    delivery.cancel(site.publisher, now=0.0, code=StreamResetCode.CANCELLED)
    site.settle()

    assert delivery.finished
    assert delivery.step(site.publisher, now=0.0) == 0
    assert site.received() == []


def test_needs_what_is_still_ahead(new_site):
    site = new_site()
    site.publish(layers=3, blocks=1)
    upward = site.fetch(location_filter=everything(2, 0))
    downward = site.fetch(location_filter=everything(2, 0), group_order=DESCENDING)
    site.settle(room=4)

    up, down = site.deliveries[upward], site.deliveries[downward]
    before = [[delivery.needs(group_id) for group_id in range(4)] for delivery in (up, down)]
    site.settle()

    assert before[0][2:] == [True, False]
    assert before[1][0]
    assert not before[1][3]
    assert not any(delivery.needs(group_id) for delivery in (up, down) for group_id in range(4))


def test_a_range_needs_an_end(new_site):
    site = new_site()

    for location_range in (
        LocationRange(Location(0, 0)),
        LocationRange(Location(1, 0), Location(0, 0)),
    ):
        with pytest.raises(ValueError, match="range with an end"):
            FetchDelivery(site.store, 0, DeliveryTerms(location_range=location_range))
