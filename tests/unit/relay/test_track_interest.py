"""SUBSCRIBE_TRACKS between relays: who is asked for what, and what becomes of what comes."""

import pytest
from tests.unit.relay.kin import Child, Parent, place
from tests.unit.relay.test_publish import push
from tests.unit.relay.world import BLOCKS, NAMESPACE, TRACK, whole

from kvcs.errors import RequestErrorCode
from kvcs.moqt.codepoints import ParameterType
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter, Range, RangeFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.properties import Properties
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.auth import AccessAction

SCOPE = TrackNamespace(NAMESPACE.fields[:2])
NARROW = TrackNamespace(NAMESPACE.fields[:3])
NEXT = Parameters(location_filter=LocationFilter.next_object())


def below(*numbers):
    return [SCOPE.joined(TrackNamespace((b"%d" % number,))) for number in numbers]


def want(client, prefix=SCOPE, **parameters):
    return client.send(client.session.subscribe_tracks, prefix, Parameters(**parameters))


def offers(client):
    return [event.track for event in client.asked(ev.PublishReceived)]


def accept(client):
    (offer,) = client.asked(ev.PublishReceived)
    client.send(client.session.accept, offer.request_id)
    return offer.request_id


# What is asked.


def test_one_request_covers_all_that_want_the_same_or_less(world):
    parent = Parent(world)
    for prefix in (SCOPE, SCOPE, NARROW):
        want(world.client(), prefix)

    assert parent.track_prefixes() == [SCOPE]
    (asked,) = parent.asked(ev.SubscribeTracksReceived)
    assert asked.parameters == NEXT


def test_wider_prefix_replaces_narrower_ones(world):
    parent = Parent(world)
    for prefix in (*below(1, 2), SCOPE):
        want(world.client(), prefix)

    assert parent.track_prefixes() == [SCOPE]


def test_prefix_that_overlaps_on_its_way_is_asked_for_again(world):
    parent = Parent(world)
    parent.silent.add(ev.SubscribeTracksReceived)
    want(world.client())
    (asked,) = parent.asked(ev.SubscribeTracksReceived)
    parent.silent.clear()
    parent.send(parent.session.reject, asked.request_id, RequestErrorCode.PREFIX_OVERLAP)

    assert parent.track_prefixes() == []
    world.pass_time(1.0)
    assert parent.track_prefixes() == [SCOPE]


def test_prefix_that_is_refused_for_good_is_not_asked_for_again(world):
    parent = Parent(world)
    parent.silent.add(ev.SubscribeTracksReceived)
    client = world.client()
    want(client)
    (asked,) = parent.asked(ev.SubscribeTracksReceived)
    parent.send(parent.session.reject, asked.request_id, RequestErrorCode.UNAUTHORIZED)
    world.pass_time(10.0)

    assert len(parent.asked(ev.SubscribeTracksReceived)) == 1


def test_many_prefixes_with_the_same_beginning_become_one(world):
    parent = Parent(world)
    for prefix in below(*range(20)):
        want(world.client(), prefix)

    assert parent.track_prefixes() == [SCOPE]


def test_shared_prefix_that_is_refused_is_asked_for_one_by_one(world):
    parent = Parent(world)
    prefixes = below(*range(18))
    for prefix in prefixes[:16]:
        want(world.client(), prefix)
    parent.silent.add(ev.SubscribeTracksReceived)
    want(world.client(), prefixes[16])
    asked = parent.asked(ev.SubscribeTracksReceived)[-1]
    assert asked.prefix == SCOPE
    parent.silent.clear()
    parent.send(parent.session.reject, asked.request_id, RequestErrorCode.UNAUTHORIZED)
    want(world.client(), prefixes[17])

    assert sorted(p.fields for p in parent.track_prefixes()) == sorted(p.fields for p in prefixes)


def test_no_more_prefixes_are_asked_for_than_a_session_may_have(make_world):
    world = make_world(max_prefixes_per_session=3)
    parent = Parent(world)
    for number in range(5):
        want(world.client(), TrackNamespace((b"%d" % number,)))

    assert len(parent.track_prefixes()) == 3


def test_interest_ends_a_while_after_the_last_who_wanted_it(world):
    parent, first, second = Parent(world), world.client(), world.client()
    request_id = want(first)
    want(second, NARROW)
    first.send(first.session.cancel, request_id)
    world.pass_time(6.0)
    # What is left is still covered.
    assert parent.track_prefixes() == [SCOPE]

    second.lose()
    before = parent.track_prefixes()
    world.pass_time(6.0)
    assert (before, parent.track_prefixes()) == ([SCOPE], [])


def test_a_prefix_that_moves_takes_the_interest_along(world):
    parent, client = Parent(world), world.client()
    request_id = want(client, *below(1))
    (moved,) = below(2)
    client.send(client.session.update, request_id, Parameters(track_namespace_prefix=moved))
    world.pass_time(6.0)

    assert parent.track_prefixes() == [moved]


def test_paused_interest_is_asked_for_paused_and_resumed_by_the_first_who_is_not(world):
    parent = Parent(world)
    want(world.client(), forward=False)
    (asked,) = parent.asked(ev.SubscribeTracksReceived)
    want(world.client())

    assert asked.parameters.forward is False
    (update,) = parent.of(asked.request_id, ev.UpdateReceived)
    assert update.parameters.forward is True


def test_a_parent_that_comes_later_is_asked_and_one_that_was_lost_is_forgotten(world):
    want(world.client())
    first = Parent(world)
    assert first.track_prefixes() == [SCOPE]

    first.lose()
    assert Parent(world).track_prefixes() == [SCOPE]


def test_relays_above_and_below_are_asked_but_not_for_their_own_sake(world):
    parent, one, other = Parent(world), Child(world, place(7, 0)), Child(world, place(8, 0))
    world.pass_time(0.25)
    want(one)

    assert [kin.track_prefixes() for kin in (parent, one, other)] == [[SCOPE], [], [SCOPE]]
    want(parent, NARROW)
    # The parent is asked for the child's sake, the first child for the parent's.
    assert [kin.track_prefixes() for kin in (parent, one, other)] == [[SCOPE], [NARROW], [SCOPE]]


def test_clients_that_are_no_relays_are_not_asked(world):
    other, client = world.client(), world.client()
    want(client)

    assert other.of(None) == other.events
    assert not [e for e in other.events if isinstance(e, ev.SubscribeTracksReceived)]


# What comes.


def test_track_that_the_parent_publishes_goes_to_those_who_want_it(world):
    parent, consumer = Parent(world), world.client()
    want(consumer)
    request_id = push(parent)
    served = accept(consumer)
    parent.add_groups(0)
    parent.end_track(1)

    parent.one(request_id, ev.RequestAccepted)
    assert consumer.objects(served) == whole(1)
    assert len(consumer.of(served, ev.PublishDoneReceived)) == 1
    assert parent.asked(ev.SubscribeReceived) == []


def test_track_that_a_child_publishes_goes_up_and_to_other_children_and_not_back(world):
    parent, one, other = Parent(world), Child(world, place(7, 0)), Child(world, place(8, 0))
    for kin in (parent, one, other):
        want(kin)
    push(one)
    served = [accept(kin) for kin in (parent, other)]
    one.add_groups(0)

    assert offers(one) == []
    assert [parent.objects(served[0]), other.objects(served[1])] == [whole(1)] * 2


def test_track_that_nobody_may_see_or_wants_is_refused(make_world):
    def authorize(access):
        hidden = access.action is AccessAction.SUBSCRIBE
        return RequestErrorCode.DOES_NOT_EXIST if hidden else None

    world = make_world(authorize=authorize)
    parent, consumer = Parent(world), world.client()
    want(consumer)
    request_id = push(parent)
    parent.add_groups(0)

    assert parent.rejection(request_id) is RequestErrorCode.UNINTERESTED
    assert offers(consumer) == []
    assert world.statistics.objects_in == 0


def test_track_that_a_filter_leaves_out_is_refused(world):
    parent, consumer = Parent(world), world.client()
    only = RangeFilter(
        kind=ParameterType.TRACK_PROPERTY_FILTER, ranges=(Range(5, 9),), property_type=0x3800
    )
    want(consumer, range_filters=(only,))
    request_id = push(parent, properties=Properties.of((0x3800, 1)))
    wanted = FullTrackName(NAMESPACE, b"other")
    other_id = push(parent, wanted, properties=Properties.of((0x3800, 7)))

    assert parent.rejection(request_id) is RequestErrorCode.UNINTERESTED
    assert len(parent.of(other_id, ev.RequestAccepted)) == 1
    assert offers(consumer) == [wanted]


def test_track_that_comes_already_is_not_taken_twice_and_still_offered(world):
    parent, reader, consumer = Parent(world), world.client(), world.client()
    parent.store()
    reader.subscribe()
    want(consumer)
    request_id = push(parent)
    served = accept(consumer)
    late = world.client()
    want(late)
    parent.add_groups(0)

    assert parent.rejection(request_id) is RequestErrorCode.UNINTERESTED
    assert consumer.objects(served) == whole(1)
    assert offers(late) == [TRACK]
    assert world.statistics.objects_in == BLOCKS + 1


def test_track_of_a_relay_ends_a_while_after_the_last_who_took_it(world):
    parent, consumer = Parent(world), world.client()
    want(consumer)
    request_id = push(parent)
    served = accept(consumer)
    consumer.send(consumer.session.revoke, served)
    before = parent.of(request_id, ev.RequestCancelled)
    world.pass_time(6.0)

    assert before == []
    assert len(parent.of(request_id, ev.RequestCancelled)) == 1


def test_paused_track_is_resumed_when_somebody_wants_its_objects(world):
    parent, paused, consumer = Parent(world), world.client(), world.client()
    want(paused, forward=False)
    request_id = push(parent, forward=False)
    parent.add_groups(0)
    before = world.statistics.objects_in
    want(consumer)
    served = accept(consumer)
    parent.add_groups(1)

    assert before == 0
    assert consumer.objects(served) == [(1, object_id) for object_id in range(BLOCKS)]
    assert len(parent.of(request_id, ev.UpdateReceived)) == 1


# PUBLISH_SKIPPED.


def test_track_that_a_relay_skips_is_skipped_for_all_who_want_it(world):
    parent, consumer, narrow, stranger = Parent(world), *(world.client() for _ in range(3))
    asked = [want(consumer), want(narrow, NARROW), want(stranger, TrackNamespace((b"other",)))]
    (above, _) = parent.active(ev.SubscribeTracksReceived)
    suffix = NAMESPACE.suffix_of(SCOPE)
    parent.send(parent.session.skip_publish, above.request_id, suffix, TRACK.name)

    skipped = consumer.one(asked[0], ev.PublishSkippedReceived)
    assert (skipped.suffix, skipped.track_name) == (suffix, TRACK.name)
    assert narrow.one(asked[1], ev.PublishSkippedReceived).suffix == NAMESPACE.suffix_of(NARROW)
    assert stranger.of(asked[2], ev.PublishSkippedReceived) == []


def test_track_that_is_published_from_elsewhere_is_not_skipped(world):
    parent, publisher, consumer = Parent(world), world.client(), world.client()
    request_id = want(consumer)
    push(publisher)
    (above,) = parent.active(ev.SubscribeTracksReceived)
    suffix = NAMESPACE.suffix_of(SCOPE)
    parent.send(parent.session.skip_publish, above.request_id, suffix, TRACK.name)

    assert offers(consumer) == [TRACK]
    assert consumer.of(request_id, ev.PublishSkippedReceived) == []


@pytest.mark.parametrize("hides", [True, False])
def test_skipped_track_is_named_only_to_those_who_may_see_it(make_world, hides):
    def authorize(access):
        hidden = hides and access.action is AccessAction.SUBSCRIBE
        return RequestErrorCode.DOES_NOT_EXIST if hidden else None

    world = make_world(authorize=authorize)
    parent, consumer = Parent(world), world.client()
    request_id = want(consumer)
    (above,) = parent.active(ev.SubscribeTracksReceived)
    suffix = NAMESPACE.suffix_of(SCOPE)
    parent.send(parent.session.skip_publish, above.request_id, suffix, TRACK.name)

    assert len(consumer.of(request_id, ev.PublishSkippedReceived)) == (not hides)


def test_name_that_is_too_long_is_ignored(world):
    parent, consumer = Parent(world), world.client()
    request_id = want(consumer)
    (above,) = parent.active(ev.SubscribeTracksReceived)
    suffix = TrackNamespace((b"x" * 4000,))
    parent.send(parent.session.skip_publish, above.request_id, suffix, b"y" * 90)

    assert consumer.of(request_id, ev.PublishSkippedReceived) == []
    assert not parent.session.is_closed


def test_nothing_is_kept_of_sessions_that_are_over(world):
    parent, child, client = Parent(world), Child(world, place(7, 0)), world.client()
    for who in (parent, child, client):
        want(who)
    for who in (client, child, parent):
        who.lose()
    world.pass_time(6.0)
    interest = world.core.discovery.interest

    assert repr(interest) == "<TrackInterest wanted=0 relays=0>"
    assert not interest._wishes
