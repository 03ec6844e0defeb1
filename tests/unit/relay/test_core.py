import gc

import pytest
from tests.unit.relay.world import BLOCKS, NAMESPACE, TRACK, block, status, whole

from kvcs.errors import PublishDoneCode, RequestErrorCode, StreamResetCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.moqt.wire.token import Token
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.auth import AccessAction

ANCHOR = TrackNamespace(NAMESPACE.fields[:4])
SUFFIX = TrackNamespace(NAMESPACE.fields[4:])
ALL = LocationFilter.absolute_start(0, 0)


# Namespaces.


def test_namespace_subscription_gets_ok_first_then_all_then_changes(world):
    world.publisher()
    consumer = world.client()

    request_id = consumer.send(consumer.session.subscribe_namespace, ANCHOR)
    late = world.client()
    second = TrackNamespace((*ANCHOR.fields, b"pub-2"))
    announced = late.announce(second)
    late.send(late.session.cancel, announced)

    kinds = [type(event) for event in consumer.of(request_id)]
    assert kinds == [
        ev.RequestAccepted,
        ev.NamespaceReceived,
        ev.NamespaceReceived,
        ev.NamespaceDoneReceived,
    ]
    suffixes = [event.suffix.fields for event in consumer.of(request_id)[1:]]
    assert suffixes == [(b"pub-1",), (b"pub-2",), (b"pub-2",)]


def test_namespace_of_a_complete_track_stays_listed_until_it_is_evicted(make_world):
    world = make_world(cache_bytes=30_000)
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    consumer.subscribe()
    publisher.add_groups(0)
    publisher.end_track(1)
    publisher.lose()

    request_id = consumer.send(consumer.session.subscribe_namespace, ANCHOR)
    assert [event.suffix for event in consumer.of(request_id, ev.NamespaceReceived)] == [SUFFIX]
    assert consumer.of(request_id, ev.NamespaceDoneReceived) == []

    other_namespace = TrackNamespace((b"other",))
    other = world.publisher(other_namespace)
    track = FullTrackName(other_namespace, b"k")
    other.store(track)
    consumer.subscribe(track=track)
    other.add_groups(*range(5), track=track)

    consumer.one(request_id, ev.NamespaceDoneReceived)
    assert world.statistics.namespaces == 1


def test_namespace_of_an_incomplete_track_ends_with_its_publisher(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    consumer.subscribe()
    publisher.add_groups(0)
    request_id = consumer.send(consumer.session.subscribe_namespace, ANCHOR)

    publisher.lose()

    consumer.one(request_id, ev.NamespaceDoneReceived)


def test_namespace_that_is_withdrawn_before_the_last_objects_arrive_is_listed_again(world):
    publisher, consumer, watcher = world.client(), world.client(), world.client()
    announced = publisher.announce()
    publisher.store()
    consumer.subscribe()
    publisher.add_groups(0)
    request_id = watcher.send(watcher.session.subscribe_namespace, ANCHOR)

    publisher.send(publisher.session.cancel, announced)
    publisher.end_track(1)

    kinds = [type(event) for event in watcher.of(request_id)]
    assert kinds == [
        ev.RequestAccepted,
        ev.NamespaceReceived,
        ev.NamespaceDoneReceived,
        ev.NamespaceReceived,
    ]


def test_track_joined_in_the_middle_is_complete_too(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1)
    consumer.subscribe()
    publisher.add_groups(2)
    publisher.end_track(3)
    publisher.lose()

    request_id = consumer.send(consumer.session.subscribe_namespace, ANCHOR)

    assert [event.suffix for event in consumer.of(request_id, ev.NamespaceReceived)] == [SUFFIX]


def test_overlapping_namespace_prefix_is_refused(world):
    consumer = world.client()
    consumer.send(consumer.session.subscribe_namespace, ANCHOR)

    request_id = consumer.send(consumer.session.subscribe_namespace, TrackNamespace())

    assert consumer.rejection(request_id) is RequestErrorCode.PREFIX_OVERLAP


def test_moved_namespace_prefix_lists_relative_to_the_new_one(world):
    world.publisher()
    consumer = world.client()
    request_id = consumer.send(
        consumer.session.subscribe_namespace, TrackNamespace((b"elsewhere",))
    )

    consumer.send(consumer.session.update, request_id, Parameters(track_namespace_prefix=ANCHOR))

    assert [event.suffix for event in consumer.of(request_id, ev.NamespaceReceived)] == [SUFFIX]


def test_update_of_an_advertisement_is_accepted(world):
    publisher = world.client()
    request_id = publisher.announce()

    publisher.send(publisher.session.update, request_id, Parameters())

    publisher.one(request_id, ev.UpdateAccepted)


@pytest.mark.parametrize("field", [b".", b".session"])
def test_reserved_namespaces_are_refused(world, field):
    client = world.client()
    namespace = TrackNamespace((field,))

    requests = [
        client.announce(namespace),
        client.subscribe(track=FullTrackName(namespace, b"x")),
        client.fetch(ALL, track=FullTrackName(namespace, b"x")),
    ]

    codes = {client.rejection(request_id) for request_id in requests}
    assert codes == {RequestErrorCode.DOES_NOT_EXIST}


# Authorization and limits.


def test_every_request_is_decided_before_any_look_up(make_world):
    asked = []

    def refuse(access):
        asked.append((access.action, access.namespace, access.track_name))
        return RequestErrorCode.UNAUTHORIZED

    world = make_world(authorize=refuse)
    client = world.client()
    session = client.session

    requests = [
        client.announce(),
        client.send(session.subscribe_namespace, ANCHOR),
        client.send(session.subscribe_tracks, ANCHOR),
        client.send(session.publish, TRACK),
        client.subscribe(),
        client.fetch(ALL),
        client.send(session.track_status, TRACK),
    ]

    assert {client.rejection(r) for r in requests} == {RequestErrorCode.UNAUTHORIZED}
    assert asked == [
        (AccessAction.PUBLISH_NAMESPACE, NAMESPACE, None),
        (AccessAction.SUBSCRIBE_NAMESPACE, ANCHOR, None),
        (AccessAction.SUBSCRIBE_TRACKS, ANCHOR, None),
        (AccessAction.PUBLISH, NAMESPACE, TRACK.name),
        (AccessAction.SUBSCRIBE, NAMESPACE, TRACK.name),
        (AccessAction.FETCH, NAMESPACE, TRACK.name),
        (AccessAction.TRACK_STATUS, NAMESPACE, TRACK.name),
    ]
    assert world.statistics.tracks == 0
    assert world.statistics.requests_refused == {"UNAUTHORIZED": 7}


def test_each_subscriber_is_authorized_on_its_own(make_world):
    def by_token(access):
        if access.action is not AccessAction.SUBSCRIBE:
            return None
        allowed = any(token.value == b"secret" for token in access.tokens)
        return None if allowed else RequestErrorCode.UNAUTHORIZED

    world = make_world(authorize=by_token)
    publisher, member, stranger = world.publisher(), world.client(), world.client()
    publisher.store()
    tokens = (Token.use_value(b"secret"),)

    allowed = member.subscribe(Parameters(authorization_tokens=tokens))
    refused = stranger.subscribe()

    member.one(allowed, ev.SubscribeAccepted)
    assert stranger.rejection(refused) is RequestErrorCode.UNAUTHORIZED


def test_moving_a_prefix_is_authorized_too(make_world):
    def only_anchor(access):
        is_prefix = access.action is AccessAction.SUBSCRIBE_NAMESPACE
        forbidden = is_prefix and access.namespace != ANCHOR
        return RequestErrorCode.UNAUTHORIZED if forbidden else None

    world = make_world(authorize=only_anchor)
    consumer = world.client()
    request_id = consumer.send(consumer.session.subscribe_namespace, ANCHOR)

    consumer.send(
        consumer.session.update, request_id, Parameters(track_namespace_prefix=TrackNamespace())
    )

    assert consumer.one(request_id, ev.UpdateRejected).code == RequestErrorCode.UNAUTHORIZED


@pytest.mark.parametrize("limit", ["max_namespaces", "max_namespaces_per_session"])
def test_too_many_namespaces_are_refused(make_world, limit):
    world = make_world(**{limit: 2})
    publisher = world.client()

    requests = [publisher.announce(TrackNamespace((bytes([n + 65]),))) for n in range(3)]

    assert publisher.rejection(requests[2]) is RequestErrorCode.EXCESSIVE_LOAD
    assert world.statistics.namespaces == 2


@pytest.mark.parametrize("command", ["subscribe_namespace", "subscribe_tracks"])
def test_too_many_prefixes_of_one_session_are_refused(make_world, command):
    world = make_world(max_prefixes_per_session=2)
    client = world.client()

    requests = [
        client.send(getattr(client.session, command), TrackNamespace((bytes([n + 65]),)))
        for n in range(3)
    ]

    assert client.rejection(requests[2]) is RequestErrorCode.EXCESSIVE_LOAD


def test_too_many_tracks_are_refused_and_unused_ones_make_room(make_world):
    world = make_world(max_tracks=2)
    publisher, consumer = world.publisher(), world.client()
    tracks = [FullTrackName(NAMESPACE, bytes([n + 65])) for n in range(4)]
    for track in tracks:
        publisher.store(track)
    # Refused, so it leaves nothing behind.
    consumer.subscribe(track=FullTrackName(NAMESPACE, b"missing"))

    requests = [consumer.subscribe(track=track) for track in tracks]

    consumer.one(requests[1], ev.SubscribeAccepted)
    assert consumer.rejection(requests[2]) is RequestErrorCode.EXCESSIVE_LOAD


def test_lost_sessions_leave_nothing_behind(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    consumer.send(consumer.session.subscribe_namespace, ANCHOR)
    consumer.send(consumer.session.subscribe_tracks, ANCHOR)
    consumer.subscribe()
    consumer.fetch(ALL)
    consumer.subscribe(Parameters(rendezvous_timeout_ms=60_000), track=_other("late"))

    consumer.lose()
    publisher.lose()
    world.pass_time(130.0)

    statistics = world.statistics
    assert (statistics.sessions, statistics.namespaces, statistics.tracks) == (0, 0, 0)
    assert (statistics.subscriptions, statistics.fetches) == (0, 0)
    assert world.core.next_deadline() is None


def _other(name):
    return FullTrackName(NAMESPACE, name.encode())


# Malformed Tracks.


def contradict(publisher, request_id, obj):
    """Send an Object that is not in the store, on a stream of its own."""
    session, now = publisher.session, publisher.world.now
    header = SubgroupHeader(
        track_alias=0, group_id=obj.group_id, subgroup_id=0, publisher_priority=0
    )
    stream_id = session.open_subgroup(request_id, header, priority=4, now=now)
    session.send_object(stream_id, obj, now=now)
    publisher.world.settle()


def test_malformed_track_ends_subscriptions_and_is_contained(world):
    publisher, consumer, other = world.publisher(), world.client(), world.client()
    publisher.store()
    publisher.store(_other("v.raw.s0"))
    request_id = consumer.subscribe()
    unharmed = other.subscribe(track=_other("v.raw.s0"))
    publisher.add_groups(0)
    (upstream, _) = publisher.asked(ev.SubscribeReceived)

    contradict(publisher, upstream.request_id, block(0, 0, size=50))

    done = consumer.one(request_id, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.MALFORMED_TRACK
    assert publisher.one(upstream.request_id, ev.RequestCancelled).code in (
        StreamResetCode.MALFORMED_TRACK,
        StreamResetCode.CANCELLED,
    )
    assert world.statistics.malformed_tracks == 1
    assert not publisher.session.is_closed
    publisher.add_groups(0, track=_other("v.raw.s0"))
    assert other.objects(unharmed) == whole(1)


def test_what_is_held_against_a_publisher_goes_with_it(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    consumer.subscribe()
    publisher.add_groups(0)
    (upstream,) = publisher.asked(ev.SubscribeReceived)
    publishers = world.core._tracks[TRACK].supply.publishers
    contradict(publisher, upstream.request_id, block(0, 0, size=50))
    publishers.stall(publisher.peer, until=world.now + 9)
    assert publishers.is_distrusted(publisher.peer)

    publisher.lose()
    world.pass_time(60.0)
    del publisher
    gc.collect()

    assert not publishers._distrusted
    assert not publishers._stalled_until


def test_malformed_track_resets_fetches_under_way(world):
    publisher, live, slow = world.publisher(), world.client(), world.client()
    publisher.store()
    live.subscribe()
    publisher.add_groups(0, 1)
    slow.room = 0
    request_id = slow.fetch(ALL)
    slow.room = 300
    world.settle()
    slow.room = 0
    (upstream,) = publisher.asked(ev.SubscribeReceived)

    contradict(publisher, upstream.request_id, block(0, 0, size=50))

    assert slow.one(request_id, ev.StreamAborted).code == StreamResetCode.MALFORMED_TRACK


def test_offending_object_is_not_cached_and_the_publisher_is_not_asked_again(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    consumer.subscribe()
    publisher.add_groups(0)
    (upstream,) = publisher.asked(ev.SubscribeReceived)
    contradict(publisher, upstream.request_id, block(0, 0, size=50))

    again = consumer.subscribe()
    fetched = consumer.fetch(LocationFilter.absolute_start_group_end(0, 0, 0))

    assert consumer.rejection(again) is RequestErrorCode.DOES_NOT_EXIST
    assert consumer.objects(fetched) == whole(1)
    sizes = {len(e.obj.payload) for e in consumer.of(fetched, ev.ObjectReceived)}
    assert sizes == {100}


def test_object_beyond_the_end_of_its_group_is_malformed(world):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe()
    publisher.add_groups(0)
    (upstream,) = publisher.asked(ev.SubscribeReceived)

    contradict(publisher, upstream.request_id, block(0, BLOCKS + 1))

    done = consumer.one(request_id, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.MALFORMED_TRACK


def test_other_publisher_of_a_malformed_track_can_still_be_subscribed_to(world):
    liar, honest, consumer = world.publisher(), world.client(), world.client()
    liar.store()
    consumer.subscribe()
    liar.add_groups(0)
    (upstream,) = liar.asked(ev.SubscribeReceived)
    contradict(liar, upstream.request_id, block(0, 0, size=50))
    honest.add_groups(0)
    honest.announce()

    request_id = consumer.subscribe()
    honest.add_groups(1)

    assert sorted(consumer.objects(request_id)) == whole(2)


# Budgets.


def big(group_id, object_id=0, size=100_000):
    pattern = bytes([group_id, object_id]) * (size // 2)
    return Object(
        group_id=group_id,
        object_id=object_id,
        subgroup_id=0,
        publisher_priority=0,
        payload=pattern,
    )


def test_stalled_subscriber_costs_its_own_subscription_only(make_world):
    world = make_world(cache_bytes=2_000_000)
    publisher, normal, stalled = world.publisher(), world.client(), world.client()
    publisher.store()
    served, lost = normal.subscribe(), stalled.subscribe()
    stalled.room = 0
    for group_id in range(60):
        publisher.add(big(group_id), status(group_id, 1))
        assert world.core.cache.size_bytes <= 2_000_000
        # The original publisher does not keep it either.
        publisher.store().drop_group(group_id)
    publisher.end_track(60)

    assert normal.objects(served) == [(group_id, 0) for group_id in range(60)]
    assert normal.one(served, ev.PublishDoneReceived).status_code == PublishDoneCode.TRACK_ENDED
    stalled.room = 2**30
    world.settle()
    done = stalled.one(lost, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.TOO_FAR_BEHIND
    assert world.statistics.evicted_bytes["needed"] > 0


def test_slow_subscriber_of_a_track_above_the_budget_can_fetch_the_rest(make_world):
    world = make_world(cache_bytes=2_000_000)
    publisher, slow = world.publisher(), world.client()
    publisher.store()
    request_id = slow.subscribe()
    slow.room = 0
    for group_id in range(40):
        publisher.add(big(group_id), status(group_id, 1))
    publisher.end_track(40)

    for _ in range(100):
        slow.room = 300_000
        world.pass_time(0.25)
        if slow.of(request_id, ev.PublishDoneReceived):
            break
    got = slow.objects(request_id)
    slow.room = 2**30
    rest = slow.fetch(LocationFilter.absolute_start_group_end(len(got), 0, 39 - len(got)))
    world.pass_time(20.0)

    done = slow.one(request_id, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.TOO_FAR_BEHIND
    assert len(got) >= 10
    assert [*got, *slow.objects(rest)] == [(group_id, 0) for group_id in range(40)]
    assert world.core.cache.size_bytes <= 2_000_000


def test_publication_larger_than_the_budget_is_served_by_fetch(make_world):
    world = make_world(cache_bytes=2_000_000)
    publisher, one, other = world.publisher(), world.client(), world.client()
    for group_id in range(60):
        publisher.add(big(group_id), status(group_id, 1))
    everything = [(group_id, 0) for group_id in range(60)]

    for client in (one, other):
        request_id = client.fetch(LocationFilter.absolute_start_group_end(0, 0, 59))
        world.pass_time(30.0)
        assert client.objects(request_id) == everything
        assert client.markers(request_id) == []

    assert world.core.cache.size_bytes <= 2_000_000
    assert world.statistics.objects_in <= 3 * 60


def test_slow_fetch_of_a_publication_larger_than_the_budget(make_world):
    world = make_world(cache_bytes=2_000_000)
    publisher, slow = world.publisher(), world.client()
    for group_id in range(60):
        publisher.add(big(group_id), status(group_id, 1))
    slow.room = 0
    request_id = slow.fetch(LocationFilter.absolute_start_group_end(0, 0, 59))

    for _ in range(400):
        slow.room = 250_000
        world.settle()
        world.pass_time(0.5)
        if slow.of(request_id, ev.StreamFinished):
            break

    assert slow.objects(request_id) == [(group_id, 0) for group_id in range(60)]
    assert slow.markers(request_id) == []
    assert world.core.cache.size_bytes <= 2_000_000


def test_slow_and_fast_fetch_of_a_publication_larger_than_the_budget(make_world):
    world = make_world(cache_bytes=2_000_000)
    publisher, slow, fast = world.publisher(), world.client(), world.client()
    for group_id in range(60):
        publisher.add(big(group_id), status(group_id, 1))
    slow.room = 0
    whole_track = LocationFilter.absolute_start_group_end(0, 0, 59)
    stuck = slow.fetch(whole_track)

    request_id = fast.fetch(whole_track)
    world.pass_time(20.0)

    assert fast.objects(request_id) == [(group_id, 0) for group_id in range(60)]
    assert slow.objects(stuck) == []


def test_idle_publications_make_room_for_new_ones(make_world):
    world = make_world(cache_bytes=2_000_000)
    consumer = world.client()
    for number in range(6):
        namespace = TrackNamespace((b"publication", bytes([number + 65])))
        track = FullTrackName(namespace, b"k")
        publisher = world.publisher(namespace)
        publisher.store(track)
        request_id = consumer.subscribe(track=track)
        publisher.add(*(big(0, object_id) for object_id in range(4)), track=track)
        publisher.end_track(1, track=track)
        publisher.lose()
        assert len(consumer.objects(request_id)) == 4

    assert world.core.cache.size_bytes <= 2_000_000
    assert set(world.statistics.evicted_bytes) == {"idle"}
    assert world.statistics.namespaces == 4


def test_publication_that_lost_a_track_is_not_listed(make_world):
    world = make_world(cache_bytes=2_000_000)
    scope = TrackNamespace((b"scope",))
    names = [TrackNamespace((b"scope", b"%d" % number)) for number in range(3)]
    for namespace in names:
        publisher, consumer = world.publisher(namespace), world.client()
        tracks = [FullTrackName(namespace, name) for name in (b"k", b"v", b"manifest")]
        for track in tracks:
            publisher.store(track)
            consumer.subscribe(track=track)
        for track in tracks:
            size = 100 if track.name == b"manifest" else 100_000
            publisher.add(*(block(0, object_id, size) for object_id in range(BLOCKS)), track=track)
            publisher.add(status(0, BLOCKS), track=track)
            publisher.end_track(1, track=track)
        publisher.lose()
        consumer.lose()
        world.pass_time(6)  # subscription_linger

    consumer = world.client()
    request_id = consumer.send(consumer.session.subscribe_namespace, scope)

    # Half of the first one was enough to make room.
    listed = [event.suffix.fields for event in consumer.of(request_id, ev.NamespaceReceived)]
    assert sorted(listed) == [(b"1",), (b"2",)]
    assert world.statistics.evicted_bytes.keys() == {"idle"}
    assert world.statistics.tracks == 6
    for namespace in names[1:]:
        for name in (b"k", b"v", b"manifest"):
            fetched = consumer.fetch(
                LocationFilter.absolute_start(0, 0), track=FullTrackName(namespace, name)
            )
            assert consumer.objects(fetched) == whole(1)


def test_tracks_that_are_forgotten_leave_and_one_that_is_used_again_stays(make_world):
    world = make_world(cache_bytes=2_000_000)
    publisher = world.publisher()
    publisher.add_groups(0)
    consumer = world.client()
    consumer.fetch(LocationFilter.absolute_start(0, 0))
    used = world.core.cache.size_bytes
    world.core.cache.drop_idle(1)
    assert world.statistics.cache_bytes == 0

    request_id = consumer.subscribe()
    world.pass_time(1)

    assert consumer.objects(request_id) == whole(1)
    assert world.statistics.cache_bytes >= used
    consumer.lose()
    world.pass_time(6)
    world.core.cache.drop_idle(1)
    world.pass_time(1)
    assert (world.statistics.tracks, world.statistics.cache_bytes) == (0, 0)


def test_track_of_more_groups_than_the_cache_can_remember_is_refused(make_world):
    world = make_world(cache_bytes=2**16)
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe()

    for group_id in range(100):
        publisher.add(block(group_id, 0, size=2))

    done = consumer.one(request_id, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.MALFORMED_TRACK
    assert world.core.cache.size_bytes <= 2**16 + 2000


# Time.


def test_exception_in_one_alarm_loses_no_other(world):
    rung = []

    def fail(now):
        raise ZeroDivisionError(now)

    for name in "ab":
        world.core.schedule(world.now + 1, lambda _, name=name: rung.append(name))
        world.core.schedule(world.now + 1, fail)
    world.core.schedule(world.now + 1, lambda _: rung.append("c"))

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            world.core.advance(now=world.now + 1)
    assert world.core.next_deadline() == world.now + 1
    world.core.advance(now=world.now + 1)

    assert rung == ["a", "b", "c"]


def test_alarm_that_is_set_again_for_now_waits_for_the_next_time(world):
    rung = []

    def again(now):
        rung.append(now)
        world.core.schedule(now, again)

    world.core.schedule(world.now, again)

    world.core.advance(now=world.now)
    world.core.advance(now=world.now)

    assert rung == [world.now] * 2
