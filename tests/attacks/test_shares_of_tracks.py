"""One session asks for ever more Tracks: it has its share of the table, and others have room."""

import pytest
from tests.unit.relay.world import NAMESPACE, TRACK, World, whole

from kvcs.errors import RequestErrorCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import FullTrackName, TrackNamespace

TRACKS, SHARE = 40, 10
WAITING = Parameters(rendezvous_timeout_ms=60_000)


@pytest.fixture
def world():
    return World(max_tracks=TRACKS, max_tracks_per_session=SHARE)


def track(number, namespace=b"greedy"):
    return FullTrackName(TrackNamespace((namespace, b"%d" % number)), b"k.raw.s0")


def codes(client):
    return [e.code for e in client.events if isinstance(e, ev.RequestRejected)]


def served(world, number, *, publisher=None):
    """Publish a Track, have another one read it, and let the publisher go."""
    publisher = publisher or world.client()
    name = track(number, b"honest")
    publisher.store(name)
    publisher.announce(name.namespace)
    reader = world.client()
    request_id = reader.subscribe(track=name)
    publisher.add_groups(0, track=name)
    publisher.end_track(1, track=name)
    reader.lose()
    return reader.objects(request_id)


@pytest.mark.parametrize("kind", ["subscribe", "publish"])
def test_a_session_has_no_more_than_its_share_and_others_are_served(world, kind):
    greedy = world.client()

    for number in range(3 * TRACKS):
        if kind == "subscribe":
            greedy.subscribe(WAITING, track=track(number))
        else:
            greedy.send(greedy.session.publish, track(number))

    assert world.statistics.tracks == SHARE
    assert codes(greedy) == [RequestErrorCode.EXCESSIVE_LOAD] * (3 * TRACKS - SHARE)
    assert not greedy.link.session.is_closed
    assert served(world, 1) == whole(1)


def test_what_others_asked_for_first_is_on_their_account(world):
    publisher = world.publisher()
    publisher.add_groups(0)
    first = world.client()
    first.subscribe()
    greedy = world.client()
    for number in range(SHARE):
        greedy.subscribe(WAITING, track=track(number))

    request_id = greedy.subscribe()
    greedy.subscribe(WAITING, track=track(SHARE))

    assert greedy.objects(request_id) == whole(1)
    assert codes(greedy) == [RequestErrorCode.EXCESSIVE_LOAD]


def test_what_ends_makes_room_for_the_next(world):
    greedy = world.client()

    for number in range(3 * SHARE):
        request_id = greedy.subscribe(WAITING, track=track(number))
        greedy.send(greedy.session.cancel, request_id)
        world.pass_time(1.0)

    assert codes(greedy) == []


def test_at_its_bound_its_own_cached_tracks_make_room_and_no_others(world):
    """A session that reads ever more pushes out what it read itself."""
    publisher = world.publisher()
    publisher.add_groups(0)
    reader = world.client()
    reader.fetch(LocationFilter.absolute_start(0, 0))
    greedy = world.client()
    publisher.announce(TrackNamespace((b"greedy",)))
    for number in range(3 * SHARE):
        publisher.add_groups(0, track=track(number))
        request_id = greedy.fetch(LocationFilter.absolute_start(0, 0), track=track(number))
        assert greedy.objects(request_id) == whole(1)
        world.pass_time(2.0)
    publisher.lose()

    assert codes(greedy) == []
    assert world.statistics.tracks <= SHARE + 1
    assert world.core.cache.tracks_of(NAMESPACE) == (TRACK,)
    late = world.client()
    request_id = late.fetch(LocationFilter.absolute_start(0, 0))
    assert late.objects(request_id) == whole(1)
    assert world.core.track(track(3 * SHARE - 1)) is not None
    assert world.core.track(track(0)) is None


def test_publication_of_which_others_asked_for_a_part_is_not_its_own(world):
    """Whoever asks first for a part of what others read cannot have the whole dropped."""
    publisher = world.publisher()
    part = FullTrackName(NAMESPACE, b"v.raw.s0")
    for name in (TRACK, part):
        publisher.add_groups(0, track=name)
    world.client().fetch(LocationFilter.absolute_start(0, 0))
    greedy = world.client()
    publisher.announce(TrackNamespace((b"greedy",)))
    greedy.fetch(LocationFilter.absolute_start(0, 0), track=part)
    for number in range(3 * SHARE):
        publisher.add_groups(0, track=track(number))
        greedy.fetch(LocationFilter.absolute_start(0, 0), track=track(number))
        world.pass_time(2.0)

    assert codes(greedy) == []
    assert set(world.core.cache.tracks_of(NAMESPACE)) == {TRACK, part}


def test_share_is_gone_with_its_session(world):
    for _ in range(3):
        greedy = world.client()
        for number in range(SHARE):
            greedy.subscribe(WAITING, track=track(number))
        assert codes(greedy) == []
        greedy.lose()

    world.pass_time(70.0)
    assert world.statistics.tracks == 0
    assert repr(world.core._room) == "<TrackRoom tracks=0 sessions=0>"


def test_the_table_is_never_larger_than_its_bound(world):
    for client in range(10):
        greedy = world.client()
        for number in range(SHARE):
            greedy.subscribe(WAITING, track=track(number, b"%d" % client))
        assert world.statistics.tracks <= TRACKS

    assert world.core.track(TRACK) is None
