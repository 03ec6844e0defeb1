"""A relay between a parent and those below: who is asked for what, and who is told what."""

import pytest
from tests.unit.relay.kin import Child, Parent, place
from tests.unit.relay.world import BLOCKS, NAMESPACE, TRACK, whole

from kvcs.errors import PublishDoneCode, RequestErrorCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.auth import deny_all

ALL = LocationFilter.absolute_start(0, 0)
ANCHOR = TrackNamespace(NAMESPACE.fields[:4])
SUFFIX = TrackNamespace(NAMESPACE.fields[4:])


def layers(first, last):
    return LocationFilter.absolute_start_group_end(first, 0, last - first)


def namespace(*fields):
    return TrackNamespace(tuple(field.encode() for field in fields))


def listed(consumer, request_id):
    """The suffixes that a subscriber of a prefix knows of."""
    known = []
    for event in consumer.of(request_id):
        if isinstance(event, ev.NamespaceReceived):
            known.append(event.suffix)
        elif isinstance(event, ev.NamespaceDoneReceived):
            known.remove(event.suffix)
    return known


# Announcements.


def test_namespaces_of_publishers_are_announced_and_withdrawn(world):
    publisher = world.publisher()
    parent = Parent(world)
    late = world.client()
    announced = late.announce(namespace("late"))

    assert parent.namespaces() == [NAMESPACE, namespace("late")]

    late.send(late.session.cancel, announced)
    publisher.lose()
    assert parent.namespaces() == []


@pytest.mark.parametrize(("limit", "streams"), [(2, 1024), (256, 11)])
def test_no_more_namespaces_are_announced_than_limit_and_streams(make_world, limit, streams):
    world = make_world(max_upstream_namespaces=limit)
    parent, publisher = Parent(world), world.client()
    parent.link.max_request_streams = streams
    requests = [publisher.announce(namespace(f"n{number}")) for number in range(4)]

    assert parent.namespaces() == [namespace("n0"), namespace("n1")]

    publisher.send(publisher.session.cancel, requests[0])
    assert parent.namespaces() == [namespace("n1"), namespace("n2")]


def test_announcement_that_is_refused_for_now_is_repeated(world):
    parent = Parent(world)
    parent.silent.add(ev.PublishNamespaceReceived)
    world.publisher()
    (asked,) = parent.asked(ev.PublishNamespaceReceived)
    code = RequestErrorCode.EXCESSIVE_LOAD
    parent.send(parent.session.reject, asked.request_id, code, retry_interval_ms=1000)
    parent.silent.clear()

    world.pass_time(1.5)

    assert parent.namespaces() == [NAMESPACE]


def test_what_the_cache_goes_on_serving_is_announced_until_it_is_lost(make_world):
    world = make_world(cache_bytes=30_000)
    parent, publisher, consumer = Parent(world), world.publisher(), world.client()
    request_id = consumer.send(consumer.session.subscribe_namespace, ANCHOR)
    publisher.store()
    consumer.subscribe()
    publisher.add_groups(0)
    publisher.end_track(1)
    # The parent lists what was announced to it: an echo, which changes nothing.
    parent.list(SUFFIX)
    publisher.lose()

    assert parent.namespaces() == [NAMESPACE]
    assert listed(consumer, request_id) == [SUFFIX]

    other = world.publisher(namespace("other"))
    track = FullTrackName(namespace("other"), b"k")
    other.store(track)
    consumer.subscribe(track=track)
    other.add_groups(*range(5), track=track)

    assert parent.namespaces() == [namespace("other")]


def test_what_only_the_parent_lists_is_not_announced_to_it_unless_it_is_lost_there(world):
    parent, consumer = Parent(world), world.client()
    request_id = consumer.send(consumer.session.subscribe_namespace, ANCHOR)
    parent.add_groups(0)
    parent.end_track(1)
    parent.list(SUFFIX)
    consumer.fetch(ALL)
    world.pass_time(1.0)
    assert parent.namespaces() == []

    parent.lose()
    assert listed(consumer, request_id) == [SUFFIX]
    assert Parent(world).namespaces() == [NAMESPACE]


# Interest.


def test_subscriber_of_a_prefix_is_answered_when_the_parent_has_answered(world):
    parent, consumer = Parent(world), world.client()
    parent.silent.add(ev.SubscribeNamespaceReceived)
    request_id = consumer.send(consumer.session.subscribe_namespace, ANCHOR)
    assert consumer.of(request_id) == []

    (asked,) = parent.asked(ev.SubscribeNamespaceReceived)
    parent.send(parent.session.accept, asked.request_id)
    parent.list(SUFFIX)

    assert asked.prefix == ANCHOR
    kinds = [type(event) for event in consumer.of(request_id)]
    assert kinds == [ev.RequestAccepted, ev.NamespaceReceived]


def test_subscriber_of_a_prefix_does_not_wait_for_a_silent_parent_for_long(world):
    parent, consumer = Parent(world), world.client()
    parent.silent.add(ev.SubscribeNamespaceReceived)
    request_id = consumer.send(consumer.session.subscribe_namespace, ANCHOR)

    world.pass_time(world.core.limits.namespace_wait - 0.5)
    assert consumer.of(request_id) == []
    world.pass_time(0.5)

    consumer.one(request_id, ev.RequestAccepted)


def test_subscriber_that_leaves_before_the_answer_leaves_nothing_behind(world):
    parent, consumer = Parent(world), world.client()
    parent.silent.add(ev.SubscribeNamespaceReceived)
    request_id = consumer.send(consumer.session.subscribe_namespace, ANCHOR)

    consumer.send(consumer.session.cancel, request_id)
    world.pass_time(10.0)

    assert parent.prefixes() == []


def test_one_request_above_covers_all_below_that_want_the_same_or_less(world):
    parent = Parent(world)
    for prefix in (ANCHOR, ANCHOR, NAMESPACE):
        consumer = world.client()
        consumer.send(consumer.session.subscribe_namespace, prefix)

    assert parent.prefixes() == [ANCHOR]


def test_wider_prefix_replaces_narrower_ones_and_keeps_what_they_listed(world):
    parent, one, other = Parent(world), world.client(), world.client()
    narrow = one.send(one.session.subscribe_namespace, ANCHOR)
    parent.list(SUFFIX)

    wide = other.send(other.session.subscribe_namespace, TrackNamespace(NAMESPACE.fields[:2]))

    assert parent.prefixes() == [TrackNamespace(NAMESPACE.fields[:2])]
    assert listed(one, narrow) == [SUFFIX]
    # The wider request has not listed it in time: it is gone.
    world.pass_time(world.core.limits.namespace_wait)
    assert listed(one, narrow) == listed(other, wide) == []


def test_many_prefixes_with_the_same_beginning_become_one(world):
    parent, consumer = Parent(world), world.client()
    for number in range(17):
        consumer.send(
            consumer.session.subscribe_namespace, namespace("kvcs-1", "s", "c", f"a{number}")
        )

    assert parent.prefixes() == [namespace("kvcs-1", "s", "c")]


def test_parent_that_refuses_the_shared_prefix_is_asked_for_each(world):
    parent, consumer = Parent(world), world.client()
    prefixes = [namespace("kvcs-1", "s", "c", f"a{number}") for number in range(17)]
    for prefix in prefixes[:16]:
        consumer.send(consumer.session.subscribe_namespace, prefix)
    parent.silent.add(ev.SubscribeNamespaceReceived)
    consumer.send(consumer.session.subscribe_namespace, prefixes[16])
    refused = parent.asked(ev.SubscribeNamespaceReceived)[-1]
    parent.silent.clear()
    code = RequestErrorCode.UNAUTHORIZED
    parent.send(parent.session.reject, refused.request_id, code)

    assert refused.prefix == namespace("kvcs-1", "s", "c")
    assert parent.prefixes() == prefixes


def test_interest_ends_a_while_after_the_last_subscriber(world):
    parent, consumer = Parent(world), world.client()
    request_id = consumer.send(consumer.session.subscribe_namespace, ANCHOR)

    consumer.send(consumer.session.cancel, request_id)
    assert parent.prefixes() == [ANCHOR]
    world.pass_time(world.core.limits.subscription_linger)

    assert parent.prefixes() == []


def test_many_prefixes_that_are_let_go_at_once_are_looked_at_once(world):
    parent, consumer = Parent(world), world.client()
    prefixes = [namespace("kvcs-1", f"scope-{number}", "c") for number in range(8)]
    asked = [consumer.send(consumer.session.subscribe_namespace, prefix) for prefix in prefixes]
    alarms = len(world.core._alarms)

    for request_id in asked[1:]:
        consumer.send(consumer.session.cancel, request_id)
    assert len(world.core._alarms) == alarms + 1
    world.pass_time(world.core.limits.subscription_linger)
    assert parent.prefixes() == prefixes[:1]

    consumer.send(consumer.session.cancel, asked[0])
    world.pass_time(world.core.limits.subscription_linger)
    assert parent.prefixes() == []


def test_list_of_the_parent_is_void_when_it_is_lost(world):
    parent, consumer = Parent(world), world.client()
    request_id = consumer.send(consumer.session.subscribe_namespace, ANCHOR)
    parent.list(SUFFIX)

    parent.lose()
    assert listed(consumer, request_id) == []

    again = Parent(world)
    assert again.prefixes() == [ANCHOR]


# Who is asked.


def test_parent_is_asked_for_what_nobody_below_publishes(world):
    parent, consumer = Parent(world), world.client()
    parent.add_groups(0, 1)

    request_id = consumer.subscribe()

    assert consumer.objects(request_id) == whole(2)
    assert len(parent.asked(ev.SubscribeReceived)) == 1


def test_parent_is_not_asked_for_what_somebody_below_publishes(world):
    parent, publisher, consumer = Parent(world), world.publisher(), world.client()
    publisher.add_groups(0, 1)

    request_id = consumer.subscribe()

    assert consumer.objects(request_id) == whole(2)
    assert parent.asked(ev.SubscribeReceived) == parent.asked(ev.FetchReceived) == []


def test_parent_is_asked_when_those_below_refuse(world):
    parent, consumer = Parent(world), world.client()
    world.publisher()  # Announces the namespace, and does not know the Track.
    parent.add_groups(0, 1)

    subscribed, fetched = consumer.subscribe(), consumer.fetch(layers(0, 1))

    assert consumer.objects(subscribed) == whole(2)
    assert consumer.objects(fetched) == whole(2)


def test_parent_is_not_asked_for_its_own_sake(world):
    parent = Parent(world, place(9))

    subscribed = parent.send(parent.session.subscribe, TRACK)
    fetched = parent.fetch(ALL)
    status = parent.send(parent.session.track_status, TRACK)

    assert {parent.rejection(r) for r in (subscribed, fetched, status)} == {
        RequestErrorCode.DOES_NOT_EXIST
    }
    assert parent.received == []


def test_parent_and_child_that_want_the_same_do_not_wait_for_each_other(world):
    parent, consumer, publisher = Parent(world), world.client(), world.client()
    parent.store()
    parent.silent |= {ev.FetchReceived, ev.SubscribeReceived}
    mine = consumer.subscribe()
    wanted = consumer.fetch(layers(0, 0))

    theirs = parent.fetch(layers(0, 0))
    subscribed = parent.send(parent.session.subscribe, TRACK)

    assert parent.rejection(theirs) is RequestErrorCode.DOES_NOT_EXIST
    assert parent.rejection(subscribed) is RequestErrorCode.DOES_NOT_EXIST
    # A publisher that appears below serves both.
    publisher.add_groups(0)
    publisher.announce()
    assert publisher.asked(ev.SubscribeReceived)
    assert consumer.of(wanted, ev.RequestRejected) == []
    assert consumer.of(mine, ev.RequestRejected) == []


def test_client_that_is_no_relay_may_subscribe_to_what_it_publishes(world):
    publisher = world.publisher()
    publisher.add_groups(0)

    request_id = publisher.subscribe()

    assert publisher.objects(request_id) == whole(1)


def test_subscription_that_only_its_own_subscriber_feeds_ends(world):
    child, publisher = Child(world, place(7)), world.publisher()
    publisher.store()
    request_id = child.subscribe()
    child.store()
    child.announce()
    assert len(child.asked(ev.SubscribeReceived)) <= 1

    publisher.add_groups(0)
    publisher.lose()
    world.pass_time(world.core.limits.publisher_wait + 1)

    done = child.one(request_id, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.INTERNAL_ERROR


def test_requests_of_the_parent_need_no_policy(make_world):
    world = make_world(authorize=deny_all)
    parent, consumer = Parent(world), world.client()
    status = parent.send(parent.session.track_status, TRACK)

    assert consumer.rejection(consumer.fetch(ALL)) is RequestErrorCode.UNAUTHORIZED
    assert parent.rejection(status) is RequestErrorCode.DOES_NOT_EXIST


# Loss.


@pytest.mark.parametrize("returns", [True, False])
def test_running_subscription_goes_on_with_a_publisher_that_returns(world, returns):
    publisher, consumer = world.publisher(), world.client()
    publisher.store()
    request_id = consumer.subscribe()
    publisher.add_groups(0)
    publisher.lose()
    world.pass_time(world.core.limits.publisher_wait - 1)

    if not returns:
        world.pass_time(1.0)
        done = consumer.one(request_id, ev.PublishDoneReceived)
        assert done.status_code == PublishDoneCode.INTERNAL_ERROR
        return
    again = world.client()
    again.add_groups(0, 1, 2)
    again.announce()
    again.add_groups(3)
    again.end_track(4)

    assert consumer.objects(request_id, fetched=False) == whole(4)
    assert consumer.one(request_id, ev.PublishDoneReceived).status_code == (
        PublishDoneCode.TRACK_ENDED
    )
    fetches = [f.parameters.location_filter for f in again.asked(ev.FetchReceived)]
    assert fetches[0] == LocationFilter.absolute_range(1, 0, 1, BLOCKS)
    assert world.statistics.objects_rejected == {}


def test_rest_is_fetched_where_nobody_publishes_live_any_more(world):
    parent, consumer = Parent(world), world.client()
    parent.store()
    request_id = consumer.subscribe()
    parent.add_groups(0)
    parent.lose()

    again = Parent(world)
    again.refusing[ev.SubscribeReceived] = {"code": RequestErrorCode.DOES_NOT_EXIST}
    again.add_groups(0, 1)
    again.end_track(2)
    world.pass_time(4.0)

    assert consumer.objects(request_id, fetched=False) == whole(2)
    assert consumer.one(request_id, ev.PublishDoneReceived).status_code == (
        PublishDoneCode.TRACK_ENDED
    )


def test_only_one_of_two_parents_is_subscribed_to(world):
    first, consumer = Parent(world), world.client()
    first.store()
    request_id = consumer.subscribe()
    first.add_groups(0)

    second = Parent(world)
    assert first.session.is_closed
    second.add_groups(0, 1)
    second.add_groups(2)
    world.pass_time(1.0)

    assert consumer.objects(request_id, fetched=False) == whole(3)
    assert consumer.of(request_id, ev.PublishDoneReceived) == []


# The place in the tree.


@pytest.mark.parametrize("ancestry", [place(0), place(1, 2, 0)])
def test_parent_that_would_close_a_circle_is_let_go(world, ancestry):
    parent = Parent(world, ancestry)

    assert parent.session.is_closed
    assert world.core.parent is None


def test_child_that_is_above_is_let_go(world):
    Parent(world, place(1, 2))

    assert Child(world, place(2)).session.is_closed
    assert not Child(world, place(3)).session.is_closed


def test_children_come_back_when_there_is_an_ancestor_that_they_were_not_told_of(world):
    child, client = Child(world, place(5)), world.client()
    Parent(world, place(1, 2))

    assert child.session.is_closed
    assert not client.session.is_closed
    told = Child(world, place(5))
    assert {place(number).relay_id for number in (1, 2)} < told.peer.told
    assert not told.session.is_closed


def test_children_stay_when_the_ancestors_are_those_they_know(world):
    first = Parent(world, place(1, 2))
    child = Child(world, place(5))
    first.lose()
    Parent(world, place(1, 2))

    assert not child.session.is_closed


# Circles through relays that do not tell where they are.


def test_parent_that_asks_back_for_what_it_cannot_know_is_let_go(make_world):
    world = make_world(authorize=deny_all)
    parent, stranger = Parent(world), world.client()
    (asked,) = parent.asked(ev.TrackStatusReceived)
    assert not parent.session.is_closed

    request_id = stranger.fetch(ALL, track=asked.track)

    assert stranger.rejection(request_id) is RequestErrorCode.DOES_NOT_EXIST
    assert parent.session.is_closed
    assert world.core.parent is None


def test_parent_that_does_not_tell_is_asked_from_time_to_time_and_one_that_tells_is_not(world):
    parent = Parent(world)
    world.pass_time(125.0)
    asked = len(parent.asked(ev.TrackStatusReceived))
    parent.lose()
    told = Parent(world, place(9))
    world.pass_time(125.0)

    assert asked == 3
    assert told.asked(ev.TrackStatusReceived) == []
    assert not told.session.is_closed
