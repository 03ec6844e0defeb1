"""The relay with a disk, from sessions to files and back."""

import pytest
from tests.unit.relay.disk_world import MIB, DiskWorld
from tests.unit.relay.world import BLOCKS, NAMESPACE, TRACK, block, status, whole

from kvcs.errors import RequestErrorCode
from kvcs.moqt.codepoints import GroupOrder, PropertyType, RangeMarker
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.properties import Properties
from kvcs.names import FullTrackName, Location, TrackNamespace

ALL = LocationFilter.absolute_start(0, 0)
LIFETIME = Properties.of((PropertyType.MAX_CACHE_DURATION, 60_000))
PREFIX = TrackNamespace(NAMESPACE.fields[:4])
LAST = 2**64 - 1


@pytest.fixture
def make_world(tmp_path):
    opened = []

    def make(**settings):
        opened.append(DiskWorld(tmp_path / "cache", **settings))
        return opened[-1]

    yield make
    for world in opened:
        world.kill()


@pytest.fixture
def world(make_world):
    return make_world()


def publish(world, groups=3, *, properties=None, end=True, namespace=NAMESPACE, size=100):
    """A whole Track goes through the relay; then its publisher and subscriber leave."""
    track = FullTrackName(namespace, TRACK.name)
    publisher, consumer = world.publisher(namespace), world.client()
    publisher.store(track, *([] if properties is None else [properties]))
    consumer.subscribe(track=track)
    for group_id in range(groups):
        publisher.add(*(block(group_id, number, size) for number in range(BLOCKS)), track=track)
        publisher.add(status(group_id, BLOCKS), track=track)
    if end:
        publisher.end_track(groups, track=track)
    world.flush()
    consumer.lose()
    publisher.lose()
    world.pass_time(6)
    return track


def fetch(world, location_filter=ALL, track=TRACK, **parameters):
    consumer = world.client()
    request_id = consumer.fetch(location_filter, track=track, **parameters)
    world.settle()
    return consumer, request_id


def listed(world):
    client = world.client()
    request_id = client.send(client.session.subscribe_namespace, PREFIX)
    return [event.suffix for event in client.of(request_id, ev.NamespaceReceived)]


def test_complete_track_is_listed_and_served_after_a_kill(world):
    publish(world, properties=LIFETIME)

    world.restart(seconds=10)

    assert len(listed(world)) == 1
    consumer, request_id = fetch(world)
    answer = consumer.one(request_id, ev.FetchAccepted)
    assert consumer.objects(request_id) == whole(3)
    assert (answer.end_location, answer.end_of_track) == (Location(3, 0), True)
    assert answer.properties == LIFETIME
    assert consumer.markers(request_id) == []
    assert world.statistics.disk_hits == 1
    assert world.statistics.cache_misses == 0
    assert world.statistics.disk_objects_read == 3 * BLOCKS + 4


def test_objects_come_back_with_properties_subgroup_and_priority(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    consumer.subscribe()
    properties = Properties.of((0x3800, 5), (0x3801, b"an Object's"))
    changes = {"subgroup_id": 3, "properties": properties}
    objects = [block(0, number, priority=7)._replace(**changes) for number in range(2)]
    publisher.add(*objects)
    world.flush()
    world.restart()

    consumer, request_id = fetch(world)

    received = [event.obj for event in consumer.of(request_id, ev.ObjectReceived)]
    assert received == objects


def test_one_group_ends_where_it_ended_after_a_kill(world):
    publish(world)
    world.restart()

    consumer, request_id = fetch(world, LocationFilter.absolute_start_group_end(1, 0, 0))

    assert consumer.objects(request_id) == whole(3)[BLOCKS : 2 * BLOCKS]
    assert consumer.one(request_id, ev.FetchAccepted).end_location == Location(1, BLOCKS)


def test_incomplete_track_is_not_listed_and_served_with_honest_gaps(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    consumer.subscribe()
    publisher.add_groups(0)
    publisher.add(block(2, 0))
    world.flush()
    world.restart()

    assert listed(world) == []
    consumer, request_id = fetch(world)
    assert consumer.objects(request_id) == [*whole(1), (2, 0)]
    assert consumer.markers(request_id) == [
        (RangeMarker.NON_EXISTENT, 0, LAST),
        (RangeMarker.UNKNOWN, 1, LAST),
    ]


def test_damaged_object_is_marked_unknown_and_the_namespace_is_no_longer_listed(world, caplog):
    publish(world)

    def damage():
        for path in (world.directory / "objects").rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                path.write_bytes(data.replace(b"\x01\x02" * 50, b"\x01\x03" * 50))

    world.restart(change=damage)
    assert len(listed(world)) == 1

    consumer, request_id = fetch(world)

    assert consumer.objects(request_id) == [place for place in whole(3) if place != (1, 2)]
    assert consumer.markers(request_id) == [(RangeMarker.UNKNOWN, 1, 2)]
    assert listed(world) == []
    assert world.statistics.disk_evicted_bytes["damaged"] > 100
    assert caplog.text.count("did not match their digests and are forgotten") == 1


def test_damaged_object_is_fetched_from_a_publisher_that_has_it(world):
    publish(world)

    def damage():
        for path in (world.directory / "objects").rglob("*"):
            if path.is_file():
                path.write_bytes(path.read_bytes().replace(b"\x01\x02" * 50, b"\x01\x03" * 50))

    world.restart(change=damage)
    publisher = world.publisher()
    publisher.store()
    publisher.add_groups(0, 1, 2)
    publisher.end_track(3)

    consumer, request_id = fetch(world)

    assert consumer.objects(request_id) == whole(3)
    (asked,) = publisher.asked(ev.FetchReceived)
    location_filter = asked.parameters.location_filter
    assert (location_filter.start_group, location_filter.start_object) == (1, 2)
    assert world.statistics.cache_misses == 1


def test_expired_track_is_gone_after_a_restart_with_its_files(world):
    publish(world, properties=LIFETIME)

    world.restart(seconds=60)

    assert listed(world) == []
    _, request_id = (consumer := world.client()), consumer.fetch(ALL)
    assert consumer.rejection(request_id) is RequestErrorCode.DOES_NOT_EXIST
    assert [path for path in (world.directory / "objects").rglob("*") if path.is_file()] == []
    assert world.statistics.disk_bytes == 0


def test_objects_expire_on_disk_while_the_relay_runs(world):
    publish(world, properties=LIFETIME)
    world.restart(seconds=10)

    world.pass_time(40)
    watcher = world.client()
    request_id = watcher.send(watcher.session.subscribe_namespace, PREFIX)
    assert watcher.one(request_id, ev.NamespaceReceived)
    world.pass_time(5)

    assert watcher.one(request_id, ev.NamespaceDoneReceived)
    assert world.statistics.disk_bytes == world.statistics.disk_tracks == 0
    assert world.statistics.disk_evicted_bytes["expired"] > 0
    assert [path for path in (world.directory / "objects").rglob("*") if path.is_file()] == []


def test_object_read_from_disk_expires_when_it_would_have(world):
    publish(world, properties=LIFETIME)
    world.restart(seconds=40)
    consumer, request_id = fetch(world)
    assert consumer.objects(request_id) == whole(3)

    world.pass_time(15)
    consumer = world.client()
    request_id = consumer.fetch(ALL)

    assert consumer.of(request_id, ev.ObjectReceived) == []


def test_track_with_a_lifetime_of_nothing_never_touches_the_disk(world):
    publish(world, properties=Properties.of((PropertyType.MAX_CACHE_DURATION, 0)))

    assert world.statistics.disk_objects_written == 0
    assert world.statistics.disk_bytes == 0


def test_publication_larger_than_memory_is_served_from_disk_piece_by_piece(make_world):
    world = make_world(cache_bytes=300_000, read_ahead_bytes=50_000)
    publish(world, groups=20, size=10_000)
    assert world.statistics.cache_bytes <= 300_000
    assert len(listed(world)) == 1

    consumer, request_id = fetch(world)

    assert consumer.objects(request_id) == whole(20)
    assert consumer.markers(request_id) == []
    assert world.statistics.cache_bytes <= 300_000
    assert world.statistics.disk_objects_read >= 15 * BLOCKS


@pytest.mark.parametrize("order", GroupOrder)
def test_reading_goes_no_further_ahead_than_the_subscriber_takes(make_world, order):
    world = make_world(read_ahead_bytes=50_000)
    publish(world, groups=20, size=10_000)
    world.restart()
    consumer = world.client()
    consumer.room = 30_000

    request_id = consumer.fetch(ALL, group_order=order)
    world.settle()
    read = world.statistics.disk_bytes_read
    assert 30_000 <= read <= 100_000
    world.pass_time(2)
    assert world.statistics.disk_bytes_read == read

    consumer.room = 2**30
    world.settle()
    groups = range(20) if order is GroupOrder.ASCENDING else range(19, -1, -1)
    expected = [(group_id, number) for group_id in groups for number in range(BLOCKS)]
    assert consumer.objects(request_id) == expected
    assert consumer.markers(request_id) == []


def test_what_was_read_from_the_disk_is_not_written_to_it(world):
    publish(world)
    world.restart()

    consumer, request_id = fetch(world)
    world.flush()

    assert consumer.objects(request_id) == whole(3)
    assert "read" in world.jobs.done
    assert "write" not in world.jobs.done


def test_many_subscribers_of_one_range_read_it_once(world):
    publish(world)
    world.restart()
    world.blocked = True
    consumers = [world.client() for _ in range(5)]
    requests = [consumer.fetch(ALL) for consumer in consumers]

    world.blocked = False
    world.settle()

    for consumer, request_id in zip(consumers, requests, strict=True):
        assert consumer.objects(request_id) == whole(3)
    assert world.statistics.disk_objects_read == 3 * BLOCKS + 4
    assert world.jobs.done.count("recall") == 1


def test_only_what_the_disk_lacks_is_fetched_from_a_publisher(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe()
    publisher.add_groups(0)
    world.flush()
    consumer.lose()
    publisher.lose()
    world.restart()
    publisher = world.publisher()
    publisher.store()
    publisher.add_groups(0, 1)
    publisher.end_track(2)

    consumer, request_id = fetch(world)

    assert consumer.objects(request_id) == whole(2)
    starts = [
        event.parameters.location_filter.start_group for event in publisher.asked(ev.FetchReceived)
    ]
    assert 0 not in starts


def test_live_subscriber_that_fell_behind_is_filled_from_the_disk(make_world):
    world = make_world(cache_bytes=300_000, read_ahead_bytes=50_000)
    publisher, slow = world.publisher(), world.client()
    publisher.store()
    publisher.silent = {ev.FetchReceived}
    request_id = slow.subscribe()
    slow.room = 20_000
    for group_id in range(20):
        publisher.add(*(block(group_id, number, 10_000) for number in range(BLOCKS)))
        publisher.add(status(group_id, BLOCKS))
        world.pass_time(0.25)
    publisher.end_track(20)
    world.flush()
    assert sum(world.statistics.evicted_bytes.values()) > 0

    slow.room = 2**30
    world.settle()
    world.pass_time(5)

    assert sorted(slow.objects(request_id)) == whole(20)
    assert publisher.asked(ev.FetchReceived) == []


def test_slow_disk_loses_objects_and_not_subscribers(make_world):
    world = make_world(queue_bytes=5_000)
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe()
    world.blocked = True
    for group_id in range(20):
        publisher.add(*(block(group_id, number, 1_000) for number in range(BLOCKS)))
        world.pass_time(0.25)

    assert consumer.objects(request_id) == whole(20)
    assert world.statistics.disk_objects_dropped["queue"] > 70
    assert world.statistics.disk_queued_bytes <= 5_000

    world.blocked = False
    world.flush()
    assert world.statistics.disk_queued_bytes == 0
    assert (
        world.statistics.disk_objects_written == 80 - world.statistics.disk_objects_dropped["queue"]
    )


@pytest.mark.parametrize("kind", ["full", "error"])
def test_disk_that_fails_is_left_alone_for_a_while(world, kind, caplog):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe()
    world.fail(kind, "No space left on device")
    publisher.add_groups(0)
    world.flush()
    assert not world.statistics.disk_writable
    writes = world.jobs.done.count("write")
    publisher.add_groups(1)
    world.flush()

    statistics = world.statistics
    assert consumer.objects(request_id) == whole(2)
    assert statistics.disk_failures[kind] == 1
    assert statistics.disk_objects_dropped == {"failed": 2 * (BLOCKS + 1)}
    assert statistics.disk_queued_bytes == 0
    assert world.jobs.done.count("write") == writes
    assert "No space left on device; nothing is written for 10 s" in caplog.text

    world.jobs.failing = None
    world.pass_time(10)
    publisher.add_groups(2)
    world.flush()
    assert world.statistics.disk_writable
    assert world.statistics.disk_objects_written == BLOCKS + 1


def test_read_that_fails_is_as_if_the_disk_had_nothing(world):
    publish(world)
    world.restart()
    fetch(world, LocationFilter.absolute_start_group_end(0, 0, 0))
    world.fail()

    consumer, request_id = fetch(world)

    assert consumer.objects(request_id) == whole(1)
    assert consumer.markers(request_id) == [
        (RangeMarker.NON_EXISTENT, 0, LAST),
        (RangeMarker.UNKNOWN, 1, BLOCKS - 1),
        (RangeMarker.NON_EXISTENT, 1, LAST),
        (RangeMarker.UNKNOWN, 2, BLOCKS - 1),
    ]


def namespaces(count):
    return [TrackNamespace((*PREFIX.fields, b"pub-%d" % number)) for number in range(count)]


def test_least_recently_used_publication_leaves_the_disk_as_a_whole(make_world):
    world = make_world(cache_bytes=40 * MIB, capacity_bytes=64 * MIB)
    tracks = [
        publish(world, groups=5, size=MIB, namespace=namespace) for namespace in namespaces(3)
    ]
    fetch(world, track=tracks[0])

    tracks.append(publish(world, groups=5, size=MIB, namespace=namespaces(4)[3]))
    world.flush()

    world.restart()
    assert world.statistics.disk_bytes <= 64 * MIB
    suffixes = [suffix.fields[-1] for suffix in listed(world)]
    assert suffixes == [b"pub-2", b"pub-0", b"pub-3"]
    consumer = world.client()
    request_id = consumer.fetch(ALL, track=tracks[1])
    world.settle()
    assert consumer.rejection(request_id) is RequestErrorCode.DOES_NOT_EXIST


def test_publication_in_the_making_is_not_evicted_and_idle_ones_go(make_world):
    world = make_world(cache_bytes=40 * MIB, capacity_bytes=64 * MIB)
    one = publish(world, groups=5, size=MIB, namespace=namespaces(1)[0])
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    consumer.subscribe()
    for group_id in range(15):
        publisher.add(*(block(group_id, number, MIB) for number in range(BLOCKS)))
        world.pass_time(0.25)

    assert world.statistics.disk_evicted_bytes["idle"] > 5 * BLOCKS * MIB
    assert world.statistics.disk_objects_dropped == {}
    assert world.statistics.disk_bytes <= 64 * MIB
    assert world.core.disk.is_stored(TRACK)
    assert not world.core.disk.is_stored(one)


def test_publication_larger_than_the_disk_is_served_and_not_kept(make_world):
    world = make_world(cache_bytes=40 * MIB, capacity_bytes=64 * MIB)
    one = publish(world, groups=3, size=MIB, namespace=namespaces(1)[0])
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe()
    for group_id in range(20):
        publisher.add(*(block(group_id, number, MIB) for number in range(BLOCKS)))
        world.pass_time(0.25)

    statistics = world.statistics
    assert consumer.objects(request_id) == whole(20)
    assert not world.core.disk.is_stored(TRACK)
    assert statistics.disk_evicted_bytes["oversized"] > 40 * MIB
    assert statistics.disk_objects_dropped["oversized"] >= 15
    written = statistics.disk_objects_written
    publisher.add(block(20, 0, MIB))
    world.flush()
    assert world.statistics.disk_objects_written == written
    assert not world.core.disk.is_stored(one)


def test_disk_full_of_publications_in_use_takes_no_more(make_world):
    world = make_world(cache_bytes=40 * MIB, capacity_bytes=64 * MIB)
    for namespace in namespaces(2):
        track = FullTrackName(namespace, TRACK.name)
        publisher, consumer = world.publisher(namespace), world.client()
        publisher.store(track)
        consumer.subscribe(track=track)
        for group_id in range(10):
            objects = (block(group_id, number, MIB) for number in range(BLOCKS))
            publisher.add(*objects, track=track)
            world.pass_time(0.25)

    assert world.statistics.disk_objects_dropped["budget"] > 10
    assert world.statistics.disk_bytes <= 64 * MIB


def test_tracks_beyond_the_limit_replace_idle_ones(make_world):
    world = make_world(max_tracks=2)
    for namespace in namespaces(3):
        publish(world, namespace=namespace)

    assert world.statistics.disk_tracks == 2
    assert not world.core.disk.is_stored(FullTrackName(namespaces(1)[0], TRACK.name))


def test_smaller_disk_after_a_restart_is_kept_to(make_world):
    world = make_world(cache_bytes=40 * MIB, capacity_bytes=128 * MIB)
    for namespace in namespaces(5):
        publish(world, groups=5, size=MIB, namespace=namespace)
    assert world.statistics.disk_bytes > 64 * MIB

    def shrink():
        world.config = type(world.config)(directory=world.directory, capacity_bytes=64 * MIB)

    world.restart(change=shrink)

    assert world.statistics.disk_bytes <= 64 * MIB
    assert len(listed(world)) == 3


def test_wall_clock_set_back_while_running_changes_no_lifetime(world):
    publish(world, properties=Properties.of((PropertyType.MAX_CACHE_DURATION, 100_000)))

    world.epoch -= 5_000
    world.pass_time(60)
    assert len(listed(world)) == 1
    world.restart()
    assert len(listed(world)) == 1
    world.pass_time(25)
    assert len(listed(world)) == 1
    world.pass_time(15)

    assert listed(world) == []
    assert world.statistics.disk_bytes == 0


def test_wall_clock_set_forward_while_running_expires(world):
    publish(world, properties=LIFETIME)

    world.epoch += 5_000
    world.pass_time(54)
    world.pass_time(60)

    assert world.statistics.disk_bytes == 0


def test_wall_clock_set_back_while_down_deletes_what_ever_expires(world):
    publish(world, properties=LIFETIME)
    publish(world, namespace=namespaces(1)[0])

    def back():
        world.epoch -= 5_000

    world.restart(change=back)

    assert [suffix.fields[-1] for suffix in listed(world)] == [b"pub-0"]
    assert world.statistics.disk_evicted_bytes["clock"] > 0


def test_forgotten_track_is_recalled_and_goes_on_where_it_was(make_world):
    world = make_world(cache_bytes=300_000)
    track = publish(world, groups=3, size=10_000)
    for namespace in namespaces(3):
        publish(world, groups=3, size=10_000, namespace=namespace)
    assert world.statistics.evicted_bytes["idle"] > 0

    publisher = world.publisher()
    publisher.store()
    publisher.add_groups(0, 1, 2)
    publisher.end_track(3)
    consumer, request_id = fetch(world, track=track)

    assert [
        (event.obj.group_id, event.obj.object_id)
        for event in consumer.of(request_id, ev.ObjectReceived)
    ] == whole(3)
    assert publisher.asked(ev.FetchReceived) == []


def test_what_contradicts_a_publisher_leaves_the_disk(world, caplog):
    publish(world)
    world.restart()
    world.blocked = True
    publisher = world.client()
    parameters = Parameters()
    request_id = publisher.send(publisher.session.publish, TRACK, parameters)
    publisher.responder.serve_publish(request_id, publisher.store(), parameters, now=world.now)
    publisher.add(*(block(0, number) for number in range(BLOCKS + 1)))

    world.blocked = False
    world.settle()

    assert world.statistics.disk_evicted_bytes["contradicted"] > 0
    assert "Group 0 ended at 4" in caplog.text
    assert listed(world) == []
    consumer, request_id = fetch(world, LocationFilter.absolute_range(0, 0, 0, BLOCKS))
    assert consumer.objects(request_id) == [(0, number) for number in range(BLOCKS + 1)]


def test_objects_that_came_before_the_recall_are_kept_too(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    consumer.subscribe()
    publisher.add_groups(0)
    world.flush()
    world.restart()
    world.blocked = True
    publisher = world.publisher()
    publisher.add_groups(0)
    parameters = Parameters(largest_object=Location(0, BLOCKS))
    request_id = publisher.send(publisher.session.publish, TRACK, parameters)
    publisher.responder.serve_publish(request_id, publisher.store(), parameters, now=world.now)
    publisher.add_groups(1)
    publisher.end_track(2)
    world.blocked = False
    world.flush()
    publisher.lose()
    assert len(listed(world)) == 1

    world.restart()

    assert len(listed(world)) == 1
    consumer, request_id = fetch(world)
    assert consumer.objects(request_id) == whole(2)
