import pytest

from kvcs.errors import StreamResetCode
from kvcs.moqt.session.actions import ResetStream
from kvcs.moqt.track.cursor import Cursor
from kvcs.moqt.track.group import Subgroup
from kvcs.moqt.track.subgroup_streams import SubgroupStreams
from kvcs.moqt.wire.subgroup import SubgroupHeader

from .pair import Site


@pytest.fixture
def site():
    site = Site()
    site.request_id = site.subscribe()
    return site


def opened(site, streams, group_id):
    cursor = Cursor(Subgroup(group_id, 0), (0, group_id, 0), -1, 0)
    header = SubgroupHeader(track_alias=0, group_id=group_id, subgroup_id=0, publisher_priority=0)
    streams.open(cursor, site.publisher, header=header, priority=8, now=0.0)
    return cursor


def resets(site):
    """Return the streams that were reset since, in order."""
    actions = site.publisher.take_actions()
    return [action.stream_id for action in actions if isinstance(action, ResetStream)]


def test_retired_streams_keep_their_place_until_another_needs_it(site):
    streams = SubgroupStreams(site.request_id, max_open=2, is_drained=lambda _: True)
    cursors = [opened(site, streams, group_id) for group_id in range(2)]
    ids = [cursor.stream_id for cursor in cursors]
    for cursor in reversed(cursors):
        streams.retire(cursor, site.publisher, now=0.0)
        streams.retire(cursor, site.publisher, now=0.0)

    assert not streams.has_room
    assert resets(site) == []
    assert streams.make_room(site.publisher, now=0.0)

    assert streams.has_room
    assert resets(site) == ids[1:]
    assert [stream_id in streams for stream_id in ids] == [True, False]
    assert [cursor.stream_id for cursor in cursors] == [None, None]


def test_streams_that_are_cut_wait_for_the_next_step(site):
    streams = SubgroupStreams(site.request_id, max_open=2, is_drained=lambda _: True)
    retired, still_open = opened(site, streams, 0), opened(site, streams, 1)
    ids = {retired.stream_id, still_open.stream_id}
    streams.retire(retired, site.publisher, now=0.0)

    streams.cut()

    assert resets(site) == []
    assert "open=0 retired=0 cut=2" in repr(streams)
    assert still_open.stream_id is None
    streams.reset_cut(site.publisher, now=0.0)
    assert set(resets(site)) == ids


def test_a_stream_that_the_peer_stopped_is_forgotten_in_every_state(site):
    streams = SubgroupStreams(site.request_id, max_open=2, is_drained=lambda _: True)
    cut = opened(site, streams, 0).stream_id
    streams.cut()
    retired, still_open = opened(site, streams, 1), opened(site, streams, 2)
    ids = [cut, retired.stream_id, still_open.stream_id]
    streams.retire(retired, site.publisher, now=0.0)

    assert [streams.stopped(stream_id) for stream_id in ids] == [None, None, still_open]

    assert not any(stream_id in streams for stream_id in ids)
    streams.reset_all(site.publisher, code=StreamResetCode.CANCELLED, now=0.0)
    assert resets(site) == []


def test_room_is_made_on_the_lowest_of_which_the_transport_has_nothing_left(site):
    waiting = set()
    streams = SubgroupStreams(
        site.request_id, max_open=4, is_drained=lambda stream_id: stream_id not in waiting
    )
    cursors = [opened(site, streams, group_id) for group_id in range(4)]
    waiting |= {cursors[0].stream_id, cursors[2].stream_id}

    assert not streams.has_room
    assert streams.make_room(site.publisher, now=0.0)
    assert [cursor.stream_id is None for cursor in cursors] == [False, True, False, False]
    waiting |= {cursors[3].stream_id}
    assert not streams.make_room(site.publisher, now=0.0)
    waiting.clear()
    assert streams.make_room(site.publisher, now=0.0)
    assert [cursor.stream_id is None for cursor in cursors] == [True, True, False, False]
