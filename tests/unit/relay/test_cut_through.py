"""Large Objects go on to subscribers while they arrive."""

import pytest
from tests.unit.relay.world import TRACK, WHOLE, World, block, payload

from kvcs.errors import PublishDoneCode, StreamResetCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.session.limits import SessionLimits
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.names import Location

NEXT = Parameters(location_filter=LocationFilter.next_object())
LIMIT = 1000
SIZE = 3000


def held_bytes(world):
    """What the Objects in the cache count for."""
    return sum(track.supply.store.object_bytes for track in world.core.tracks())


HEADER = SubgroupHeader(
    track_alias=0, group_id=0, subgroup_id=0, publisher_priority=0, first_object=True
)


class Site:
    """A relay, a publisher that is played by hand, and a subscriber."""

    def __init__(self, **limits):
        self.world = World(cut_through_bytes=LIMIT, **limits)
        self.publisher = self.world.publisher()
        self.publisher.silent = {ev.SubscribeReceived}
        self.subscriber = self.world.client()
        self.subscription = self.subscriber.subscribe(NEXT)
        self.accept()
        self.stream_id = self.open()

    @property
    def now(self):
        return self.world.now

    def accept(self):
        """Accept the subscription of the relay."""
        self.request_id = self.publisher.asked(ev.SubscribeReceived)[-1].request_id
        self.publisher.session.accept_subscribe(self.request_id, now=self.now)
        self.world.settle()

    def open(self):
        session = self.publisher.session
        return session.open_subgroup(self.request_id, HEADER, priority=4, now=self.now)

    def begin(self, object_id=0, size=SIZE):
        obj = Object(group_id=0, object_id=object_id, subgroup_id=0, publisher_priority=0)
        self.publisher.session.begin_object(self.stream_id, obj, size, now=self.now)
        self.octets = payload(0, object_id, size)

    def give(self, size):
        part, self.octets = self.octets[:size], self.octets[size:]
        self.publisher.session.send_payload(self.stream_id, part, now=self.now)
        self.world.settle()


def under_way(client):
    """Return the octets of Objects that a client has in part."""
    return client.session._context.partial_bytes


@pytest.fixture
def site():
    return Site()


def test_a_large_object_goes_on_while_it_arrives(site):
    site.begin()
    site.give(1000)
    first = under_way(site.subscriber)
    site.give(1500)

    assert (first, under_way(site.subscriber)) == (1000, 2500)
    assert held_bytes(site.world) < SIZE
    site.give(500)
    assert site.subscriber.objects(site.subscription) == [(0, 0)]
    assert held_bytes(site.world) > SIZE


def test_a_small_object_goes_on_when_it_is_whole(site):
    site.begin(size=LIMIT - 10)
    site.give(500)
    early = under_way(site.subscriber)
    site.give(490)

    assert early == 0
    assert site.subscriber.objects(site.subscription) == [(0, 0)]


def test_a_subscriber_that_comes_while_it_arrives_gets_it_once(site):
    site.begin()
    site.give(1000)
    late = site.world.client()
    subscription = late.subscribe(NEXT)

    site.give(1000)
    early = under_way(late)
    site.give(1000)

    assert early == 2000
    assert late.objects(subscription) == [(0, 0)]


def test_a_subscriber_that_stands_still_gets_it_later(site):
    slow = site.world.client()
    subscription = slow.subscribe(NEXT)
    slow.room = 0
    site.begin()
    for _ in range(3):
        site.give(1000)

    assert site.subscriber.objects(site.subscription) == [(0, 0)]
    assert slow.objects(subscription) == []
    slow.room = 10**6
    site.world.settle()
    assert slow.objects(subscription) == [(0, 0)]


def test_a_truncated_object_is_not_kept_and_the_streams_that_carry_it_are_reset(site):
    site.begin()
    site.give(1000)
    site.publisher.session.reset_stream(site.stream_id, 0, now=site.now)
    site.world.settle()

    assert len(site.subscriber.of(site.subscription, ev.StreamAborted)) == 1
    assert site.subscriber.objects(site.subscription) == []
    assert under_way(site.subscriber) == 0
    assert held_bytes(site.world) < SIZE


def test_after_a_truncated_object_the_whole_one_comes_on_a_new_stream(site):
    site.begin()
    site.give(1000)
    site.publisher.session.reset_stream(site.stream_id, 0, now=site.now)
    site.world.settle()

    site.stream_id = site.open()
    site.publisher.session.send_object(site.stream_id, block(0, 0, SIZE), now=site.now)
    site.publisher.session.send_object(site.stream_id, block(0, 1, SIZE), now=site.now)
    site.world.settle()

    assert site.subscriber.objects(site.subscription) == [(0, 0), (0, 1)]


def test_a_publisher_that_is_lost_inside_an_object_leaves_nothing_of_it(site):
    site.begin()
    site.give(1000)
    site.publisher.lose()

    assert len(site.subscriber.of(site.subscription, ev.StreamAborted)) == 1
    assert under_way(site.subscriber) == 0
    assert held_bytes(site.world) < SIZE


@pytest.mark.parametrize("size", [SIZE, LIMIT - 1], ids=["forwarded", "held"])
@pytest.mark.parametrize("pace", [None, 50.0], ids=["stands still", "trickles"])
def test_an_object_that_is_not_finished_costs_its_stream_and_nothing_else(site, size, pace):
    world, subscriber = site.world, site.subscriber
    site.publisher.session.send_object(site.stream_id, block(0, 0, 10), now=site.now)
    began = site.now
    site.begin(1, size)
    site.give(500)
    while under_way(site.publisher.link) and site.now < began + 1000:
        world.pass_time(pace or 1.0)
        if pace is not None and under_way(site.publisher.link):
            site.give(1)

    assert site.now - began == (60 if pace is None else 600)
    # Of one that was not forwarded the subscriber has seen nothing.
    assert len(subscriber.of(site.subscription, ev.StreamAborted)) == (size == SIZE)
    assert subscriber.objects(site.subscription) == [(0, 0)]
    assert under_way(subscriber) == 0
    assert held_bytes(world) < size

    # What the publisher does finish goes on, also what it sends anew.
    site.stream_id = site.open()
    for object_id in (1, 2):
        site.publisher.session.send_object(site.stream_id, block(0, object_id, SIZE), now=site.now)
    world.settle()
    assert subscriber.objects(site.subscription) == [(0, 0), (0, 1), (0, 2)]
    assert not any(client.session.is_closed for client in world.clients)


def test_octets_on_their_way_count_against_the_session_that_sends_them():
    site = Site()
    context = site.publisher.link.session._context
    context.limits = SessionLimits(max_partial_bytes=1500)
    site.begin()
    site.give(1000)
    held = context.partial_bytes
    site.give(1000)

    assert (held, context.partial_bytes) == (1000, 0)
    assert len(site.publisher.of(site.request_id, ev.StreamStopped)) == 1
    assert len(site.subscriber.of(site.subscription, ev.StreamAborted)) == 1


def test_an_object_that_contradicts_the_track_ends_it_before_it_goes_on(site):
    session = site.publisher.session
    session.send_object(site.stream_id, block(0, 0), now=site.now)
    site.world.settle()
    site.stream_id = session.open_subgroup(
        site.request_id, HEADER._replace(publisher_priority=9), priority=4, now=site.now
    )
    obj = Object(group_id=0, object_id=1, subgroup_id=0, publisher_priority=9)
    session.begin_object(site.stream_id, obj, SIZE, now=site.now)
    site.world.settle()

    assert under_way(site.subscriber) == 0
    done = site.subscriber.one(site.subscription, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.MALFORMED_TRACK


def test_a_publisher_that_stops_inside_an_object_does_not_hold_up_what_another_one_gives(site):
    site.begin()
    site.give(1000)
    first, stream_id, octets = site.publisher, site.stream_id, site.octets
    site.publisher = site.world.client()
    site.publisher.silent = {ev.SubscribeReceived}
    site.publisher.announce()
    site.accept()
    session = site.publisher.session
    other = site.open()
    session.send_object(other, block(0, 0, SIZE), now=site.now)
    session.send_object(other, block(0, 1, SIZE), now=site.now)
    site.world.settle()

    assert site.subscriber.objects(site.subscription) == [(0, 0), (0, 1)]
    first.session.send_payload(stream_id, octets, now=site.now)
    site.world.settle()
    assert site.subscriber.objects(site.subscription) == [(0, 0), (0, 1)]


def test_an_object_that_turns_out_not_to_exist_is_not_ended_as_if_it_did(site):
    site.begin()
    site.give(1000)
    (track,) = site.world.core._tracks.values()
    track.supply.store.mark_absent(Location(0, 0), Location(0, 0))
    site.give(2000)

    assert site.subscriber.objects(site.subscription) == []
    assert len(site.subscriber.of(site.subscription, ev.StreamAborted)) == 1


# On fetch streams.


class FetchSite:
    """A relay, and a publisher that answers FETCH by hand."""

    def __init__(self, groups=1, **limits):
        self.world = World(cut_through_bytes=LIMIT, **limits)
        self.publisher = self.world.publisher()
        self.publisher.silent = {ev.SubscribeReceived, ev.FetchReceived}
        self.subscriber = self.world.client()
        self.end = Location(groups - 1, 1)

    @property
    def now(self):
        return self.world.now

    def fetch(self, client=None):
        """Have a client fetch the first two Objects."""
        return (client or self.subscriber).fetch(LocationFilter.absolute_range(0, 0, 0, 1))

    def answer(self):
        """Accept the last FETCH of the relay, and open its stream."""
        session = self.publisher.session
        request_id = self.publisher.asked(ev.FetchReceived)[-1].request_id
        session.accept_fetch(request_id, end_of_track=False, end_location=self.end, now=self.now)
        self.stream_id = session.open_fetch_stream(request_id, priority=4, now=self.now)
        self.world.settle()
        return request_id

    def begin(self, object_id=0, size=SIZE):
        obj = Object(group_id=0, object_id=object_id, subgroup_id=0, publisher_priority=0)
        self.publisher.session.begin_object(self.stream_id, obj, size, now=self.now)
        self.octets = payload(0, object_id, size)

    give = Site.give


@pytest.fixture
def fetching():
    site = FetchSite()
    site.request_id = site.fetch()
    site.upstream_id = site.answer()
    return site


def test_a_fetched_object_goes_on_while_it_arrives(fetching):
    fetching.begin()
    fetching.give(1000)
    first = under_way(fetching.subscriber)
    fetching.give(1500)

    assert (first, under_way(fetching.subscriber)) == (1000, 2500)
    assert held_bytes(fetching.world) < SIZE
    fetching.give(500)
    fetching.begin(1)
    fetching.give(SIZE)
    fetching.publisher.session.finish_stream(fetching.stream_id, now=fetching.now)
    fetching.world.settle()

    assert fetching.subscriber.objects(fetching.request_id) == [(0, 0), (0, 1)]
    assert len(fetching.subscriber.of(fetching.request_id, ev.StreamFinished)) == 1
    assert held_bytes(fetching.world) > 2 * SIZE


def test_all_who_wait_for_a_fetched_object_get_it_while_it_arrives_from_one_fetch(fetching):
    other = fetching.world.client()
    request_id = fetching.fetch(other)
    fetching.begin()
    fetching.give(1000)
    late = fetching.world.client()
    late_id = fetching.fetch(late)

    assert [under_way(client) for client in (fetching.subscriber, other, late)] == [1000] * 3
    fetching.give(2000)
    assert other.objects(request_id) == late.objects(late_id) == [(0, 0)]
    assert len(fetching.publisher.asked(ev.FetchReceived)) == 1


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_truncated_fetched_object_is_not_kept_and_streams_that_carry_it_are_reset(
    fetching, is_lost
):
    fetching.begin()
    fetching.give(1000)
    if is_lost:
        fetching.publisher.lose()
    else:
        fetching.publisher.session.reset_stream(fetching.stream_id, 0, now=fetching.now)
        fetching.world.settle()

    assert len(fetching.subscriber.of(fetching.request_id, ev.StreamAborted)) == 1
    assert fetching.subscriber.objects(fetching.request_id) == []
    assert under_way(fetching.subscriber) == 0
    assert held_bytes(fetching.world) < SIZE
    (track,) = fetching.world.core._tracks.values()
    assert not track.supply.inquiries.fetches
    assert len(track.supply.store.arrivals) == 0


def test_a_fetch_that_was_reset_can_be_asked_again(fetching):
    fetching.begin()
    fetching.give(1000)
    fetching.publisher.session.reset_stream(fetching.stream_id, 0, now=fetching.now)
    fetching.world.settle()

    again = fetching.fetch()
    fetching.answer()
    for object_id in (0, 1):
        fetching.publisher.session.send_object(
            fetching.stream_id, block(0, object_id, SIZE), now=fetching.now
        )
    fetching.publisher.session.finish_stream(fetching.stream_id, now=fetching.now)
    fetching.world.settle()

    assert fetching.subscriber.objects(again) == [(0, 0), (0, 1)]


def test_a_fetch_that_nothing_of_was_sent_goes_on_elsewhere_when_an_object_is_truncated():
    site = FetchSite()
    site.subscriber.room = 0
    request_id = site.fetch()
    site.answer()
    site.begin()
    site.give(1000)
    site.publisher.session.reset_stream(site.stream_id, 0, now=site.now)
    site.world.settle()
    site.subscriber.room = 2**30
    site.world.settle()
    site.answer()
    for object_id in (0, 1):
        site.publisher.session.send_object(site.stream_id, block(0, object_id, SIZE), now=site.now)
    site.publisher.session.finish_stream(site.stream_id, now=site.now)
    site.world.settle()

    assert site.subscriber.objects(request_id) == [(0, 0), (0, 1)]


def test_a_publisher_that_stalls_inside_a_fetched_object_is_given_up_in_time():
    site = FetchSite(fill_timeout=2.0)
    request_id = site.fetch()
    upstream_id = site.answer()
    site.begin()
    for _ in range(3):
        # It is slow, which is no reason.
        site.give(500)
        site.world.pass_time(1.5)
    before = site.publisher.of(upstream_id, ev.RequestCancelled)
    site.world.pass_time(5.0)

    assert before == []
    assert len(site.publisher.of(upstream_id, ev.RequestCancelled)) == 1
    assert len(site.subscriber.of(request_id, ev.StreamAborted)) == 1
    assert under_way(site.subscriber) == 0


def test_a_fetched_object_that_contradicts_the_track_does_not_go_on(fetching):
    session = fetching.publisher.session
    session.send_object(fetching.stream_id, block(0, 0, SIZE), now=fetching.now)
    obj = Object(group_id=0, object_id=1, subgroup_id=0, publisher_priority=9)
    session.begin_object(fetching.stream_id, obj, SIZE, now=fetching.now)
    fetching.world.settle()

    assert under_way(fetching.subscriber) == 0
    (end,) = fetching.subscriber.of(fetching.request_id, ev.StreamAborted)
    assert end.code == StreamResetCode.MALFORMED_TRACK
    assert fetching.world.statistics.malformed_tracks == 1


def test_a_fill_gets_an_object_that_arrives_on_the_subscription(site):
    site.begin()
    site.give(1000)
    late = site.world.client()
    site.world.core._tracks[TRACK].supply.store.raise_largest(Location(0, 0))
    subscription = late.subscribe(WHOLE)
    early = under_way(late)
    site.give(2000)

    assert early == 1000
    assert late.objects(subscription, fetched=True) == [(0, 0)]
    assert late.objects(subscription, fetched=False) == []


def test_octets_of_fetched_objects_count_against_the_session_that_sends_them(fetching):
    context = fetching.publisher.link.session._context
    context.limits = SessionLimits(max_partial_bytes=1500)
    fetching.begin()
    fetching.give(1000)
    held = context.partial_bytes
    fetching.give(1000)

    assert (held, context.partial_bytes) == (1000, 0)
    assert len(fetching.subscriber.of(fetching.request_id, ev.StreamAborted)) == 1
