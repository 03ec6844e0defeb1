from tests.unit.relay.world import TRACK, payload

from kvcs.errors import PublishDoneCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.properties import Properties

NEXT = Parameters(location_filter=LocationFilter.next_object())
ALL = LocationFilter.absolute_start(0, 0)


def datagram(group_id, object_id, **fields):
    return Object(
        group_id=group_id,
        object_id=object_id,
        subgroup_id=None,
        publisher_priority=fields.pop("publisher_priority", 0),
        payload=payload(group_id, object_id),
        **fields,
    )


def came(client, request_id):
    events = client.of(request_id, ev.DatagramReceived)
    return [(event.obj.group_id, event.obj.object_id) for event in events]


def joined(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    return publisher, consumer, consumer.subscribe(NEXT)


def test_datagrams_are_relayed_with_all_their_fields(world):
    publisher, consumer, request_id = joined(world)
    sent = datagram(0, 3, publisher_priority=9, properties=Properties.of((0x3800, 7)))

    publisher.add(sent)

    (event,) = consumer.of(request_id, ev.DatagramReceived)
    assert event.obj == sent


def test_end_of_a_group_is_relayed_and_beyond_it_the_track_is_malformed(world):
    publisher, consumer, request_id = joined(world)
    publisher.add(datagram(0, 0), datagram(0, 1))
    asked = publisher.asked(ev.SubscribeReceived)[0].request_id
    last = datagram(0, 2)
    publisher.session.send_datagram(asked, last, end_of_group=True, now=world.now)
    world.settle()

    assert consumer.of(request_id, ev.DatagramReceived)[-1].end_of_group
    assert came(consumer, request_id) == [(0, 0), (0, 1), (0, 2)]
    publisher.session.send_datagram(asked, datagram(0, 3), now=world.now)
    world.settle()
    done = consumer.one(request_id, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.MALFORMED_TRACK


def test_datagrams_are_cached_and_a_fetch_brings_them(world):
    publisher, consumer, _ = joined(world)
    publisher.add(datagram(0, 0), datagram(0, 1))

    request_id = consumer.fetch(ALL)

    objects = [event.obj for event in consumer.of(request_id, ev.ObjectReceived)]
    assert [(obj.object_id, obj.subgroup_id) for obj in objects] == [(0, None), (1, None)]


def test_datagram_that_was_fetched_is_of_the_same_delivery_mode(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add(datagram(0, 0))
    consumer.fetch(ALL)
    request_id = consumer.subscribe(NEXT)
    asked = publisher.asked(ev.SubscribeReceived)[0].request_id

    publisher.session.send_datagram(asked, datagram(0, 0), now=world.now)
    world.settle()

    assert consumer.of(request_id, ev.PublishDoneReceived) == []
    assert world.statistics.malformed_tracks == 0


def test_lost_datagram_of_an_evicted_group_ends_nothing(world):
    publisher, consumer, request_id = joined(world)
    consumer.room = 0
    publisher.add(datagram(0, 0))
    world.core._tracks[TRACK].supply.store.drop_group(0)
    consumer.room = 2**30
    publisher.add(datagram(0, 1))

    assert came(consumer, request_id) == [(0, 1)]
    assert consumer.of(request_id, ev.PublishDoneReceived) == []
    assert publisher.asked(ev.FetchReceived) == []
