"""What becomes of a gap that was filled, and lost again before its delivery took it."""

from types import SimpleNamespace

import pytest

from kvcs.moqt.track.interval import IntervalSet, to_position
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.track.subscription_delivery import SubscriptionDelivery
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES
from kvcs.names import FullTrackName, Location, TrackNamespace
from kvcs.relay.gaps import Gaps

TRACK = FullTrackName(TrackNamespace((b"ns",)), b"t")
BEGIN, END = to_position(Location(0, 0)), to_position(Location(0, 3))


class Slow(SubscriptionDelivery):
    """A subscription that takes nothing, and needs all."""

    def __init__(self):
        self.finished = False
        self.given_up = []

    def needs(self, _group_id):
        return True

    def give_up(self, start, through, _marker=None):
        self.given_up.append((start, through))


class Publisher:
    """Somebody who can be asked, and who answers at once, or never."""

    may_ask_later = False
    answers = True

    def __init__(self, store):
        self.fetches = []
        self.asked = []
        self._store = store

    def ask_for(self, gap, through, **_):
        self.asked.append((gap.position, through))
        if not self.answers:
            return True
        for object_id in range(gap.position & 0xFF, (through & 0xFF) + 1):
            add(self._store, object_id)
        return True

    def is_busy(self, _asker, **_):
        return False


def add(store, object_id):
    obj = Object(group_id=0, object_id=object_id, subgroup_id=0, publisher_priority=0, payload=b"x")
    store.add(obj, now=0.0, fetched=True)


@pytest.fixture
def filled():
    """A gap that a slow subscription waited for, and that has been filled."""
    store = TrackStore(TRACK, properties=EMPTY_PROPERTIES, authoritative=False)
    publisher = Publisher(store)
    disk = SimpleNamespace(held=IntervalSet(), is_reading=lambda _position: False)
    gaps = Gaps(store, [], publisher, disk, live_wait=1.0, stall_wait=30.0)
    owner = Slow()
    gaps.wait(owner, BEGIN, END, now=0.0)
    gaps.reconsider(now=0.0)
    return SimpleNamespace(store=store, publisher=publisher, gaps=gaps, owner=owner)


def test_what_was_filled_and_lost_again_is_asked_for_again(filled):
    filled.store.drop_group(0)
    add(filled.store, 1)

    filled.gaps.stopped(filled.owner, BEGIN, asker=None, now=1.0)

    assert filled.publisher.asked == [(BEGIN, END), (BEGIN, END)]
    assert filled.owner.given_up == []


def test_what_is_lost_again_and_again_is_given_up(filled):
    for _ in range(20):
        filled.store.drop_group(0)
        filled.gaps.stopped(filled.owner, BEGIN, asker=None, now=1.0)
        filled.gaps.reconsider(now=1.0)

    assert filled.owner.given_up
    assert len(filled.publisher.asked) < 10


def test_a_delivery_that_stops_while_it_is_being_filled_asks_nobody_again(filled):
    other = Slow()
    filled.store.drop_group(0)
    filled.publisher.answers = False
    filled.gaps.wait(other, BEGIN, END, now=1.0)

    filled.gaps.stopped(other, BEGIN, asker=None, now=1.0)

    assert filled.publisher.asked[1:] == [(BEGIN, END)]


def test_what_came_before_a_range_that_was_given_up_is_not_forgotten():
    store = TrackStore(TRACK, properties=EMPTY_PROPERTIES, authoritative=False)
    publisher = Publisher(store)
    disk = SimpleNamespace(held=IntervalSet(), is_reading=lambda _position: False)
    gaps = Gaps(store, [], publisher, disk, live_wait=1.0, stall_wait=30.0)
    owner = Slow()
    publisher.answers = False
    gaps.wait(owner, BEGIN, END, now=0.0)
    add(store, 0)
    add(store, 1)
    publisher.ask_for = lambda *_, **__: False
    gaps.reconsider(now=1.0)
    given_up = list(owner.given_up)
    del publisher.ask_for
    store.drop_group(0)

    gaps.stopped(owner, BEGIN, asker=None, now=2.0)

    assert given_up == [(Location(0, 2), Location(0, 3))]
    assert publisher.asked[1:] == [(BEGIN, to_position(Location(0, 1)))]
