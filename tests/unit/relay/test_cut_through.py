"""Large Objects go on to subscribers while they arrive."""

from dataclasses import replace

import pytest
from tests.unit.relay.world import World, block, payload

from kvcs.errors import PublishDoneCode
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
    assert site.world.statistics.cache_bytes < SIZE
    site.give(500)
    assert site.subscriber.objects(site.subscription) == [(0, 0)]
    assert site.world.statistics.cache_bytes > SIZE


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
    assert site.world.statistics.cache_bytes < SIZE


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
    assert site.world.statistics.cache_bytes < SIZE


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
        site.request_id, replace(HEADER, publisher_priority=9), priority=4, now=site.now
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
