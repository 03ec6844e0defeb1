"""FETCHes for the first blocks of every layer: only these cross the link upstream."""

import pytest
from tests.unit.relay.world import BLOCKS, block, status, whole

from kvcs.moqt.codepoints import GroupOrder, ParameterType, RangeMarker
from kvcs.moqt.session import events as ev
from kvcs.moqt.session.limits import SessionConfig, Side
from kvcs.moqt.session.session import Session
from kvcs.moqt.wire.filters import LocationFilter, Range, RangeFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.names import Location

GROUPS = 5
NOTE = 0x3800


def layers(first, last):
    return LocationFilter.absolute_start_group_end(first, 0, last - first)


def blocks(first, last):
    kind = ParameterType.OBJECTID_FILTER
    return (RangeFilter(kind=kind, ranges=(Range(first, last),)),)


def fetched(publisher):
    return [fetch.parameters for fetch in publisher.asked(ev.FetchReceived)]


def first_blocks(count, groups=GROUPS):
    return [(g, o) for g, o in whole(groups) if o < count]


@pytest.fixture
def publisher(world):
    it = world.publisher()
    it.add_groups(*range(GROUPS))
    return it


@pytest.mark.timeout(5)
@pytest.mark.parametrize("order", GroupOrder)
@pytest.mark.parametrize("is_there", [False, True])
def test_blocks_of_endless_groups_cost_a_few_records(world, order, is_there):
    publisher, consumer = world.publisher(), world.client()
    publisher.add(block(2**62, 0))
    held = consumer.fetch(LocationFilter.relative_start(1))
    if not is_there:
        publisher.lose()
        world.pass_time(6)

    request_id = consumer.fetch(layers(0, 2**62), group_order=order, range_filters=blocks(2, 2))
    world.pass_time(6)

    assert consumer.objects(held) == [(2**62, 0)]
    assert consumer.objects(request_id) == []
    assert len(consumer.markers(request_id)) <= 3
    assert consumer.of(request_id, ev.StreamFinished)


def test_cold_relay_fetches_the_blocks_that_are_wanted_and_no_others(world, publisher):
    consumer = world.client()

    request_id = consumer.fetch(layers(0, 3), range_filters=blocks(0, 1))

    assert consumer.objects(request_id) == first_blocks(2, 4)
    assert consumer.markers(request_id) == []
    assert consumer.one(request_id, ev.FetchAccepted).end_location == Location(3, BLOCKS)
    (asked,) = fetched(publisher)
    assert (asked.location_filter, asked.range_filters) == (layers(0, 3), blocks(0, 1))
    assert world.statistics.objects_in == 2 * 4


@pytest.mark.usefixtures("publisher")
def test_same_blocks_are_served_from_the_cache(world):
    one, other = world.client(), world.client()
    one.fetch(layers(0, 3), range_filters=blocks(0, 1))

    request_id = other.fetch(layers(0, 3), range_filters=blocks(0, 1))

    assert other.objects(request_id) == first_blocks(2, 4)
    assert world.statistics.objects_in == 2 * 4


@pytest.mark.usefixtures("publisher")
def test_what_a_filter_left_out_is_not_taken_for_absent(world):
    one, other = world.client(), world.client()
    one.fetch(layers(0, 3), range_filters=blocks(0, 1))

    request_id = other.fetch(layers(0, 3))

    assert other.objects(request_id) == whole(4)
    assert other.markers(request_id) == []
    assert world.statistics.objects_in == 4 * BLOCKS


def test_block_that_did_not_come_stays_unknown(world, publisher):
    consumer = world.client()

    request_id = consumer.fetch(layers(0, 1), range_filters=blocks(2, BLOCKS + 3))
    publisher.lose()
    later = consumer.fetch(layers(0, 1))

    assert consumer.objects(request_id) == [(0, 2), (0, 3), (1, 2), (1, 3)]
    consumer.one(request_id, ev.StreamFinished)
    assert {kind for kind, *_ in consumer.markers(later)} == {RangeMarker.UNKNOWN}
    assert consumer.objects(later) == [(0, 2), (0, 3), (1, 2), (1, 3)]


def test_more_blocks_come_for_all_layers_together(world, publisher):
    one, other = world.client(), world.client()
    one.fetch(layers(0, 3), range_filters=blocks(0, 1))
    before = len(fetched(publisher))

    request_id = other.fetch(layers(0, 3), range_filters=blocks(0, 2))

    assert other.objects(request_id) == first_blocks(3, 4)
    # One for all layers, and one that also finds out where the range ends.
    assert len(fetched(publisher)) - before <= 2
    assert blocks(2, 2) in [asked.range_filters for asked in fetched(publisher)]
    assert world.statistics.objects_in <= 3 * 4 + 1


@pytest.mark.parametrize("counts", [(2, 2), (1, 3), (3, 1), (2, None), (None, 2)])
def test_concurrent_fetches_for_different_blocks_get_what_they_want(world, publisher, counts):
    publisher.silent.add(ev.FetchReceived)
    consumers = [world.client() for _ in counts]

    requests = [
        it.fetch(layers(0, 3), **({} if n is None else {"range_filters": blocks(0, n - 1)}))
        for it, n in zip(consumers, counts, strict=True)
    ]
    publisher.silent.clear()
    for upstream in publisher.asked(ev.FetchReceived):
        publisher.responder.answer_fetch(upstream, publisher.store(), now=world.now)
    world.settle()

    for it, request_id, count in zip(consumers, requests, counts, strict=True):
        assert it.objects(request_id) == first_blocks(count or BLOCKS, 4)
        assert it.markers(request_id) == []
        it.one(request_id, ev.StreamFinished)
    largest = max(count or BLOCKS for count in counts)
    assert world.statistics.objects_in <= 4 * largest + 4


def test_publisher_that_takes_no_filters_is_asked_for_all(make_world):
    world = make_world()
    publisher = world.client()
    publisher.link.session._context.peer_options = Session(
        Side.CLIENT, SessionConfig()
    )._context.config.options
    publisher.announce()
    publisher.add_groups(*range(GROUPS))
    consumer = world.client()

    request_id = consumer.fetch(layers(0, 3), range_filters=blocks(0, 1))

    assert consumer.objects(request_id) == first_blocks(2, 4)
    assert [asked.range_filters for asked in fetched(publisher)] == [()]


def test_end_of_a_track_is_not_sought_where_blocks_are_left_out(world, publisher):
    publisher.end_track(GROUPS)
    consumer = world.client()

    consumer.fetch(LocationFilter.absolute_start(0, 0), range_filters=blocks(0, 1))
    world.pass_time(5.0)

    assert world.statistics.objects_in == 2 * GROUPS


def noted(value):
    """Return a filter for Objects whose property says at least `value`."""
    kind = ParameterType.OBJECT_PROPERTY_FILTER
    return (RangeFilter(kind=kind, property_type=NOTE, ranges=(Range(value, None),)),)


def with_notes(groups):
    """Return Groups of Objects whose property is their Object ID; the first has none."""
    objects = []
    for group_id in range(groups):
        for object_id in range(BLOCKS):
            properties = Properties.of((NOTE, object_id)) if object_id else EMPTY_PROPERTIES
            objects.append(block(group_id, object_id)._replace(properties=properties))
        objects.append(status(group_id, BLOCKS))
    return objects


def test_objects_are_chosen_by_their_properties_in_subscriptions_and_fetches(world):
    publisher, live, cold, warm = world.publisher(), world.client(), world.client(), world.client()
    publisher.store()
    following = LocationFilter.next_object()
    subscription = live.subscribe(Parameters(location_filter=following, range_filters=noted(2)))
    publisher.add(*with_notes(2))

    first = cold.fetch(layers(0, 1), range_filters=noted(3))
    everything = cold.fetch(layers(0, 1))
    again = warm.fetch(layers(0, 1), range_filters=noted(3))

    assert live.objects(subscription) == [(0, 2), (0, 3), (1, 2), (1, 3)]
    assert cold.objects(first) == warm.objects(again) == [(0, 3), (1, 3)]
    # What a filter left out is known all the same.
    assert cold.objects(everything) == whole(2)
    assert cold.markers(everything) == []
