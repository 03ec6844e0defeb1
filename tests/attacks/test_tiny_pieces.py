"""Bytes that come one at a time: memory follows what is accounted, not how it was cut."""

import tracemalloc

import pytest
from tests.unit.relay.world import World

from kvcs.moqt.session import events as ev
from kvcs.moqt.session.limits import SessionLimits
from kvcs.moqt.wire.subgroup import SubgroupHeader

PIECES = 20_000


@pytest.fixture
def publisher():
    """A publisher whose Track a relay has subscribed to."""
    world = World()
    publisher = world.publisher()
    publisher.store()
    world.client().subscribe()
    return publisher


def header_of(publisher, *, is_known=True):
    (asked,) = publisher.asked(ev.SubscribeReceived)
    alias = publisher.session._registry.by_id[asked.request_id].track_alias
    return SubgroupHeader(
        track_alias=alias + (not is_known) * 1000, group_id=0, subgroup_id=0, publisher_priority=0
    ).encode()


def grown(action):
    """Return the octets of memory that an action leaves in use."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [1, 10, 100, 3000])
@pytest.mark.parametrize("is_known", [True, False], ids=["Object", "unknown Track"])
def test_memory_is_about_what_is_accounted(publisher, is_known, size):
    session, now = publisher.link.session, publisher.world.now
    length = SessionLimits().max_object_bytes
    start = header_of(publisher, is_known=is_known) + b"\x00\xff" + length.to_bytes(8)
    session.receive_stream(402, start, False, now=now)
    pieces = PIECES if size < 100 else 1000

    def trickle():
        for _ in range(pieces):
            session.receive_stream(402, bytes(size), False, now=now)
            for event in session.take_events():
                publisher.world.core.receive(publisher.peer, event, now=now)

    assert grown(trickle) <= 2 * pieces * size + 4096
    assert not session.is_closed


def test_deadlines_that_are_cleared_are_forgotten(publisher):
    """Streams that open and end at once, each with a deadline that is never needed."""
    session, now = publisher.link.session, publisher.world.now
    header = header_of(publisher)

    for number in range(5000):
        session.receive_stream(4 * number + 402, header[:2], False, now=now)
        session.receive_reset(4 * number + 402, 0, now=now)

    deadlines = session._context.deadlines
    assert len(deadlines._heap) < 200
    assert len(deadlines._queued) < 200
