"""A peer whose bytes stop at any octet: with a stall, FIN, reset, STOP_SENDING, or for good.

A publisher and a reader that are cut stand beside honest ones, around one relay core. Whatever
was begun ends, by a deadline at the latest; nobody else notices.
"""

import random

import pytest
from tests.seeds import seeded
from tests.unit.relay.world import TRACK, World, apply, status, whole

from kvcs.errors import ConnectionLost
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.session import events as ev
from kvcs.moqt.session.actions import ResetStream, SendStream, StopSending
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.object import Object
from kvcs.names import FullTrackName, TrackNamespace

CUT_TRACK = FullTrackName(TrackNamespace((b"cut",)), b"t")
WAYS = ("stall", "fin", "reset", "stop", "lose")
LONG = 200.0


class Cut:
    """Lets so many octets of a client pass, and ends its stream there in one of the ways."""

    def __init__(self, client, octets, way):
        self.left = octets
        self.is_done = False
        self._client = client
        self._way = way
        client.held = self

    def __call__(self, action):
        if self.is_done:
            return True
        if not isinstance(action, SendStream):
            return False
        if len(action.data) <= self.left:
            self.left -= len(action.data)
            return False
        self.is_done = True
        self._strike(action.stream_id, action.data[: self.left])
        return True

    def _strike(self, stream_id, data):
        session, now = self._client.link.session, self._client.world.now
        apply(SendStream(stream_id, data, self._way == "fin"), session, now)
        match self._way:
            case "reset":
                apply(ResetStream(stream_id, 1), session, now)
            case "stop":
                for other in range(12):
                    apply(StopSending(other, 1), session, now)
            case "lose":
                self._client.session.connection_lost(ConnectionLost(0, ""), now=now)
                if not session.is_closed:
                    session.connection_lost(ConnectionLost(0, ""), now=now)


def small(group_id, object_id):
    return Object(
        group_id=group_id,
        object_id=object_id,
        subgroup_id=0,
        publisher_priority=0,
        payload=bytes([group_id, object_id] * 4),
    )


def is_over(client, request_id):
    """Tell whether the last word of a request was heard."""
    ends = (
        ev.RequestRejected,
        ev.RequestCancelled,
        ev.PublishDoneReceived,
        ev.StreamFinished,
        ev.StreamAborted,
    )
    return client.session.is_closed or any(isinstance(e, ends) for e in client.of(request_id))


def cut_publisher(octets, way):
    """A publisher that is cut while it announces, answers, and sends."""
    world = World()
    publisher = world.publisher()
    publisher.add_groups(0, 1)
    attacker = world.client()
    cut = Cut(attacker, octets, way)
    attacker.announce(CUT_TRACK.namespace)
    attacker.store(CUT_TRACK)
    attacker.add(small(0, 0), track=CUT_TRACK)
    reader = world.client()
    asked = [reader.subscribe(track=CUT_TRACK), reader.subscribe()]
    asked += [reader.fetch(LocationFilter.absolute_start(0, 0), track=CUT_TRACK)]
    attacker.add(small(0, 1), status(0, 2), track=CUT_TRACK)
    attacker.add(small(1, 0), status(1, 1), track=CUT_TRACK)
    attacker.add(status(2, 0, ObjectStatus.END_OF_TRACK, 128), track=CUT_TRACK)
    asked += [reader.fetch(LocationFilter.none(), track=CUT_TRACK)]
    world.pass_time(LONG)
    if not attacker.link.session.is_closed:
        attacker.lose()
    world.pass_time(LONG)

    assert reader.objects(asked[1]) == whole(2)
    assert all(is_over(reader, request_id) for request_id in (asked[0], *asked[2:]))
    assert not reader.session.is_closed
    assert not publisher.session.is_closed
    statistics = world.statistics
    assert (statistics.subscriptions, statistics.fetches) == (1, 0)
    return cut.is_done


def cut_reader(octets, way):
    """A reader that is cut while it asks."""
    world = World()
    publisher = world.publisher()
    publisher.add_groups(0)
    attacker = world.client()
    cut = Cut(attacker, octets, way)
    session = attacker.session
    commands = [
        lambda: session.subscribe_namespace(TRACK.namespace, now=world.now),
        lambda: session.subscribe(TRACK, now=world.now),
        lambda: session.fetch(TRACK, now=world.now),
        lambda: session.track_status(TRACK, now=world.now),
        lambda: session.subscribe_tracks(TRACK.namespace, now=world.now),
    ]
    for command in commands:
        if not session.is_closed:
            command()
            world.settle()
    publisher.add_groups(1)
    reader = world.client()
    request_id = reader.subscribe()
    world.pass_time(LONG)
    if not attacker.link.session.is_closed:
        attacker.lose()
    world.pass_time(LONG)

    assert reader.objects(request_id) == whole(2)
    statistics = world.statistics
    assert (statistics.subscriptions, statistics.fetches) == (1, 0)
    assert not publisher.session.is_closed
    return cut.is_done


SCENARIOS = {"publisher": cut_publisher, "reader": cut_reader}
STEP = 7


@seeded("first", (0, 3), soak=(1, 2, 4, 5, 6))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_cut_anywhere_ends(scenario, first):
    chance = random.Random(first)
    octets = first
    while SCENARIOS[scenario](octets, chance.choice(WAYS)):
        octets += STEP


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_cut_anywhere_ends_in_every_way(scenario, way):
    octets = 0
    while SCENARIOS[scenario](octets, way):
        octets += 1
