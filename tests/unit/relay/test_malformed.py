"""Every way in which a Track can contradict itself, and that nothing else suffers from it."""

import pytest
from tests.unit.relay.test_publish import push
from tests.unit.relay.world import NAMESPACE, TRACK, status, whole

from kvcs.errors import PublishDoneCode, RequestErrorCode, StreamResetCode
from kvcs.moqt.codepoints import ObjectStatus, PropertyType
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.kvp import encode_pairs
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.properties import Properties
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.names import FullTrackName, Location

NEXT = Parameters(location_filter=LocationFilter.next_object())
ALL = LocationFilter.absolute_start(0, 0)
OTHER = FullTrackName(NAMESPACE, b"v.raw.s0")
IMMUTABLE = PropertyType.IMMUTABLE_PROPERTIES


class Raw:
    """A publisher that says what it likes on one subscription of the relay."""

    def __init__(self, publisher, request_id=None):
        self.publisher = publisher
        self.session = publisher.session
        asked = publisher.asked(ev.SubscribeReceived)
        self.request_id = asked[0].request_id if request_id is None else request_id

    @property
    def now(self):
        return self.publisher.world.now

    def stream(self, *objects, end="fin", end_of_group=False):
        """Send Objects on one Subgroup stream, and end it: "fin", "reset" or "open"."""
        first = objects[0]
        header = SubgroupHeader(
            track_alias=0,
            group_id=first.group_id,
            subgroup_id=first.subgroup_id,
            publisher_priority=first.publisher_priority,
            has_properties=any(obj.properties for obj in objects),
            end_of_group=end_of_group,
        )
        stream_id = self.session.open_subgroup(self.request_id, header, priority=4, now=self.now)
        for obj in objects:
            self.session.send_object(stream_id, obj, now=self.now)
        if end == "fin":
            self.session.finish_stream(stream_id, now=self.now)
        self.publisher.world.settle()
        if end == "reset":
            self.session.reset_stream(stream_id, StreamResetCode.INTERNAL_ERROR, now=self.now)
            self.publisher.world.settle()

    def datagram(self, obj, *, end_of_group=False):
        self.session.send_datagram(self.request_id, obj, end_of_group=end_of_group, now=self.now)
        self.publisher.world.settle()


def thing(group_id, object_id, payload=b"payload", *, subgroup_id=0, priority=0, properties=()):
    return Object(
        group_id=group_id,
        object_id=object_id,
        subgroup_id=subgroup_id,
        publisher_priority=priority,
        payload=payload,
        properties=properties if isinstance(properties, Properties) else Properties.of(*properties),
    )


def other_priority_in_a_subgroup(raw):
    raw.stream(thing(0, 0, priority=1), end="reset")
    raw.stream(thing(0, 1, priority=2))


def object_beyond_the_end_of_its_subgroup(raw):
    raw.stream(thing(0, 0), thing(0, 1))
    raw.stream(thing(0, 2))


def two_ends_of_a_subgroup(raw):
    raw.stream(thing(0, 0), thing(0, 1))
    raw.stream(thing(0, 0))


def object_beyond_end_of_group(raw):
    raw.stream(thing(0, 0), status(0, 1))
    raw.stream(thing(0, 2, subgroup_id=5))


def object_beyond_the_last_of_a_group(raw):
    raw.stream(thing(0, 0), end_of_group=True)
    raw.stream(thing(0, 2, subgroup_id=5))


def datagram_beyond_the_last_of_a_group(raw):
    raw.datagram(thing(0, 1, subgroup_id=None), end_of_group=True)
    raw.datagram(thing(0, 2, subgroup_id=None))


def end_of_group_before_objects(raw):
    raw.stream(thing(0, 0), thing(0, 4))
    raw.stream(status(0, 2, priority=0), end="open")


def object_beyond_end_of_track(raw):
    raw.stream(thing(0, 0), status(0, 1))
    raw.stream(status(1, 0, ObjectStatus.END_OF_TRACK))
    raw.stream(thing(2, 0))


def end_of_track_before_objects(raw):
    raw.stream(thing(5, 0))
    raw.stream(status(1, 0, ObjectStatus.END_OF_TRACK))


def other_payload(raw):
    raw.stream(thing(0, 0), end="open")
    raw.stream(thing(0, 0, b"another"), end="open")


def other_immutable_properties(raw):
    one, other = ([(IMMUTABLE, encode_pairs(((0x3800, value),)))] for value in (1, 2))
    raw.stream(thing(0, 0, properties=one), end="open")
    raw.stream(thing(0, 0, properties=other), end="open")


def other_subgroup(raw):
    raw.stream(thing(0, 0), end="open")
    raw.stream(thing(0, 0, subgroup_id=1), end="open")


def other_delivery_mode(raw):
    raw.stream(thing(0, 0), end="open")
    raw.datagram(thing(0, 0, subgroup_id=None))


def gap_over_an_object(raw):
    raw.stream(thing(0, 0), thing(0, 1), end="open")
    raw.stream(thing(0, 2, properties=[(PropertyType.PRIOR_OBJECT_ID_GAP, 1)]), end="open")


def gap_over_a_group(raw):
    raw.stream(thing(0, 0))
    raw.stream(thing(1, 0, properties=[(PropertyType.PRIOR_GROUP_ID_GAP, 1)]))


def two_gaps_before_a_group(raw):
    raw.stream(
        thing(5, 0, properties=[(PropertyType.PRIOR_GROUP_ID_GAP, 1)]),
        thing(5, 1, properties=[(PropertyType.PRIOR_GROUP_ID_GAP, 2)]),
    )


def gap_below_zero(raw):
    raw.stream(thing(1, 0, properties=[(PropertyType.PRIOR_GROUP_ID_GAP, 2)]))


def repeated_gap(raw):
    gap = (PropertyType.PRIOR_OBJECT_ID_GAP, 1)
    raw.stream(thing(0, 4, properties=Properties.decode(encode_pairs((gap, gap)))))


def repeated_immutable_properties(raw):
    pair = (IMMUTABLE, encode_pairs(((0x3800, 1),)))
    raw.stream(thing(0, 0, properties=Properties.decode(encode_pairs((pair, pair)))))


def nested_immutable_properties(raw):
    inner = encode_pairs(((IMMUTABLE, b""),))
    raw.stream(thing(0, 0, properties=[(IMMUTABLE, inner)]))


def broken_immutable_properties(raw):
    raw.stream(thing(0, 0, properties=[(IMMUTABLE, b"\x01\x09")]))


def mandatory_track_property_on_an_object(raw):
    raw.stream(thing(0, 0, properties=[(0x4002, 1)]))


WAYS = [
    other_priority_in_a_subgroup,
    object_beyond_the_end_of_its_subgroup,
    two_ends_of_a_subgroup,
    object_beyond_end_of_group,
    object_beyond_the_last_of_a_group,
    datagram_beyond_the_last_of_a_group,
    end_of_group_before_objects,
    object_beyond_end_of_track,
    end_of_track_before_objects,
    other_payload,
    other_immutable_properties,
    other_subgroup,
    other_delivery_mode,
    gap_over_an_object,
    gap_over_a_group,
    two_gaps_before_a_group,
    gap_below_zero,
    repeated_gap,
    repeated_immutable_properties,
    nested_immutable_properties,
    broken_immutable_properties,
    mandatory_track_property_on_an_object,
]


@pytest.mark.parametrize("contradict", WAYS, ids=lambda way: way.__name__)
def test_contradiction_ends_the_track_and_nothing_else(world, contradict):
    publisher, victim, bystander = world.publisher(), world.client(), world.client()
    publisher.store()
    publisher.store(OTHER)
    request_id = victim.subscribe(NEXT)
    unharmed = bystander.subscribe(NEXT, track=OTHER)

    raw = Raw(publisher)
    contradict(raw)

    done = victim.one(request_id, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.MALFORMED_TRACK
    assert victim.one(request_id, ev.SubscriptionDrained).complete
    cancelled = publisher.one(raw.request_id, ev.RequestCancelled)
    assert cancelled.code == StreamResetCode.MALFORMED_TRACK
    assert world.statistics.malformed_tracks == 1
    assert not any(client.session.is_closed for client in (publisher, victim, bystander))
    publisher.add_groups(0, track=OTHER)
    assert bystander.objects(unharmed) == whole(1)


def test_push_that_contradicts_itself_is_revoked(world):
    publisher, consumer = world.client(), world.client()
    pushed = push(publisher)
    request_id = consumer.subscribe(NEXT)

    for data in (b"one", b"other"):
        raw = Raw(publisher, request_id=pushed)
        raw.stream(thing(0, 0, data), end="open")

    assert consumer.one(request_id, ev.PublishDoneReceived).status_code == (
        PublishDoneCode.MALFORMED_TRACK
    )
    assert publisher.one(pushed, ev.RequestCancelled).code == StreamResetCode.MALFORMED_TRACK
    assert not publisher.session.is_closed


def test_group_end_that_only_a_fetch_implies_contradicts_nothing(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1)
    consumer.fetch(LocationFilter.absolute_range(0, 0, 0, 9))
    request_id = consumer.subscribe(NEXT)

    # The fetch said that there is nothing behind Object 3 of Group 0. It comes nevertheless.
    Raw(publisher).stream(thing(0, 7, subgroup_id=3))

    assert consumer.of(request_id, ev.PublishDoneReceived) == []
    assert world.statistics.malformed_tracks == 0
    # Nor is it forwarded, or kept.
    assert consumer.of(request_id, ev.ObjectReceived) == []
    again = consumer.fetch(LocationFilter.absolute_range(0, 0, 0, 9))
    assert consumer.objects(again) == whole(1)
    assert consumer.markers(again) == []


def test_object_beyond_the_end_that_a_fetch_stated_is_malformed(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0)
    publisher.end_track(1)
    consumer.fetch(ALL)
    request_id = consumer.subscribe(NEXT)

    Raw(publisher).stream(thing(4, 0))

    done = consumer.one(request_id, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.MALFORMED_TRACK


def test_fetch_that_contradicts_what_is_held_is_contained(world):
    publisher, consumer, other = world.publisher(), world.client(), world.client()
    publisher.store()
    request_id = consumer.subscribe(NEXT)
    publisher.add_groups(0, 1, 2)
    store = world.core._tracks[TRACK].supply.store
    store.drop_group(1)
    publisher.silent.add(ev.FetchReceived)

    fetched = other.fetch(LocationFilter.absolute_start_group_end(1, 0, 0))
    (asked,) = publisher.asked(ev.FetchReceived)
    session, now = publisher.session, world.now
    stream_id = session.open_fetch_stream(asked.request_id, priority=4, now=now)
    # The other Objects of this Subgroup, which are gone, had priority 0.
    session.send_object(stream_id, thing(1, 0, priority=9), now=now)
    world.settle()

    assert other.one(fetched, ev.StreamAborted).code == StreamResetCode.MALFORMED_TRACK
    done = consumer.one(request_id, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.MALFORMED_TRACK
    assert store.held(1, 0, now=now) is None


def test_fetch_without_an_answer_is_refused_with_the_code(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.silent.add(ev.FetchReceived)
    publisher.add_groups(0)
    request_id = consumer.fetch(ALL)
    (asked,) = publisher.asked(ev.FetchReceived)
    session, now = publisher.session, world.now

    stream_id = session.open_fetch_stream(asked.request_id, priority=4, now=now)
    session.send_object(stream_id, thing(0, 0, properties=[(0x4002, 1)]), now=now)
    world.settle()

    assert consumer.rejection(request_id) is RequestErrorCode.MALFORMED_TRACK


@pytest.mark.parametrize(
    "properties",
    [
        Properties.decode(encode_pairs(((IMMUTABLE, encode_pairs(((IMMUTABLE, b""),))),))),
        Properties.decode(encode_pairs(((IMMUTABLE, b""), (IMMUTABLE, b"")))),
    ],
    ids=["nested", "repeated"],
)
def test_track_properties_that_contradict_themselves_refuse_the_subscriber(world, properties):
    publisher, consumer = world.publisher(), world.client()
    publisher.store(properties=properties)

    request_id = consumer.subscribe(NEXT)

    assert consumer.rejection(request_id) is RequestErrorCode.MALFORMED_TRACK
    assert not publisher.session.is_closed


def test_properties_that_are_not_immutable_may_change(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe(NEXT)
    raw = Raw(publisher)

    raw.stream(thing(0, 0, properties=[(0x3800, 1)]), end="open")
    raw.stream(thing(0, 0, properties=[(0x3800, 2)]), end="open")

    assert consumer.of(request_id, ev.PublishDoneReceived) == []
    assert world.statistics.objects_rejected == {"duplicate": 1}
    assert consumer.one(request_id, ev.ObjectReceived).obj.location == Location(0, 0)
