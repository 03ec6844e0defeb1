import pytest

from kvcs.errors import LocalProtocolError
from kvcs.moqt.codepoints import GroupOrder, RangeMarker
from kvcs.moqt.session.actions import ResetStream, SendStream, SetPriority
from kvcs.moqt.session.events import ObjectReceived, StreamAborted, StreamStopped
from kvcs.moqt.session.limits import SessionConfig, SessionLimits
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.names import FullTrackName, Location, TrackNamespace

TRACK = FullTrackName(TrackNamespace((b"kvcs",)), b"t")
HEADER = SubgroupHeader(track_alias=99, group_id=1, subgroup_id=0, publisher_priority=5)


def obj(object_id, payload=b"data", group_id=1):
    return Object(
        group_id=group_id,
        object_id=object_id,
        subgroup_id=0,
        publisher_priority=5,
        payload=payload,
    )


@pytest.fixture
def subscribed(pair):
    pair.client.subscribe(TRACK, now=0)
    pair.run()
    pair.server.accept_subscribe(0, now=0)
    pair.run()
    return pair


def test_stream_begins_with_its_header_then_its_priority(subscribed):
    stream_id = subscribed.server.open_subgroup(0, HEADER, priority=6, now=0)

    actions = subscribed.server.take_actions()

    # The Track Alias is that of the subscription, whatever the caller put there.
    assert actions == [
        SendStream(7, bytes.fromhex("10010105")),
        SetPriority(7, 6),
    ]
    assert subscribed.server.is_open(stream_id)


def test_objects_of_another_group_or_out_of_order_are_refused(subscribed):
    server = subscribed.server
    stream_id = server.open_subgroup(0, HEADER, priority=6, now=0)
    server.send_object(stream_id, obj(3), now=0)

    with pytest.raises(LocalProtocolError):
        server.send_object(stream_id, obj(3), now=0)
    with pytest.raises(LocalProtocolError):
        server.send_object(stream_id, obj(4, group_id=2), now=0)
    with pytest.raises(LocalProtocolError):
        server.send_marker(stream_id, RangeMarker.UNKNOWN, Location(1, 4), now=0)


def test_finished_stream_takes_nothing_more(subscribed):
    server = subscribed.server
    stream_id = server.open_subgroup(0, HEADER, priority=6, now=0)

    server.finish_stream(stream_id, now=0)

    assert server.take_actions()[-1] == SendStream(stream_id, b"", fin=True)
    with pytest.raises(LocalProtocolError):
        server.finish_stream(stream_id, now=0)
    with pytest.raises(LocalProtocolError):
        server.send_object(stream_id, obj(0), now=0)


def test_payload_that_follows_its_header_in_parts_arrives_like_a_whole_one(subscribed):
    server = subscribed.server
    stream_id = server.open_subgroup(0, HEADER, priority=6, now=0)
    server.begin_object(stream_id, obj(3, b""), 5, now=0)
    for part in (b"ab", b"c", b"de"):
        server.send_payload(stream_id, part, now=0)
    server.send_object(stream_id, obj(4), now=0)

    events, _ = subscribed.run()

    received = [event.obj for event in events if isinstance(event, ObjectReceived)]
    assert received == [obj(3, b"abcde"), obj(4)]


def test_inside_an_object_nothing_but_its_payload_can_be_written(subscribed):
    server = subscribed.server
    stream_id = server.open_subgroup(0, HEADER, priority=6, now=0)
    server.begin_object(stream_id, obj(3, b""), 5, now=0)

    for command in (
        lambda: server.send_object(stream_id, obj(4), now=0),
        lambda: server.begin_object(stream_id, obj(4, b""), 5, now=0),
        lambda: server.finish_stream(stream_id, now=0),
        lambda: server.send_payload(stream_id, b"abcdef", now=0),
    ):
        with pytest.raises(LocalProtocolError):
            command()
    server.reset_stream(stream_id, 0, now=0)

    events, _ = subscribed.run()
    assert StreamAborted(0, stream_id, 0) in events


@pytest.mark.parametrize(("payload", "length"), [(b"", 0), (b"x", 5)])
def test_payload_that_follows_has_octets_and_none_is_there_yet(subscribed, payload, length):
    stream_id = subscribed.server.open_subgroup(0, HEADER, priority=6, now=0)

    with pytest.raises(LocalProtocolError):
        subscribed.server.begin_object(stream_id, obj(3, payload), length, now=0)


def test_stream_can_be_ranked_anew_within_bounds(subscribed):
    server = subscribed.server
    stream_id = server.open_subgroup(0, HEADER, priority=6, now=0)
    server.take_actions()

    server.set_stream_priority(stream_id, 8, now=0)

    assert server.take_actions() == [SetPriority(stream_id, 8)]
    with pytest.raises(LocalProtocolError):
        server.set_stream_priority(stream_id, 256, now=0)


def test_stopped_stream_is_reset_and_later_commands_are_ignored(subscribed):
    server = subscribed.server
    stream_id = server.open_subgroup(0, HEADER, priority=6, now=0)
    server.send_object(stream_id, obj(0), now=0)
    subscribed.run()

    subscribed.client.stop_stream(stream_id, 5, now=0)
    _, told = subscribed.run()
    server.send_object(stream_id, obj(1), now=0)
    server.send_marker(stream_id, RangeMarker.UNKNOWN, Location(1, 4), now=0)
    server.finish_stream(stream_id, now=0)

    assert told == [StreamStopped(0, stream_id, 5)]
    assert ResetStream(stream_id, 5) in subscribed.server_actions
    assert server.take_actions() == []
    assert server.is_active(0)


def test_reset_reaches_the_subscriber_with_its_code(subscribed):
    stream_id = subscribed.server.open_subgroup(0, HEADER, priority=6, now=0)
    subscribed.run()

    subscribed.server.reset_stream(stream_id, 2, now=0)
    events, _ = subscribed.run()

    assert events == [StreamAborted(0, stream_id, 2)]


def test_memory_of_streams_that_ended_early_is_bounded(make_pair):
    pair = make_pair(None, SessionConfig(limits=SessionLimits(max_tombstones=1))).connect()
    pair.client.subscribe(TRACK, now=0)
    pair.run()
    pair.server.accept_subscribe(0, now=0)
    streams = [pair.server.open_subgroup(0, HEADER, priority=4, now=0) for _ in range(2)]

    pair.server.revoke(0, now=0)

    with pytest.raises(LocalProtocolError):
        pair.server.finish_stream(streams[0], now=0)
    pair.server.finish_stream(streams[1], now=0)


def test_subscriber_cannot_send_data(subscribed):
    with pytest.raises(LocalProtocolError):
        subscribed.client.open_subgroup(0, HEADER, priority=4, now=0)
    with pytest.raises(LocalProtocolError):
        subscribed.client.send_datagram(0, obj(0), now=0)


def test_no_marker_can_be_written_inside_an_object(pair):
    pair.client.fetch(TRACK, now=0)
    pair.run()
    stream_id = pair.server.open_fetch_stream(0, order=GroupOrder.ASCENDING, priority=6, now=0)
    pair.server.begin_object(stream_id, obj(3, b""), 5, now=0)

    with pytest.raises(LocalProtocolError, match="inside an Object"):
        pair.server.send_marker(stream_id, RangeMarker.UNKNOWN, Location(1, 4), now=0)


def test_fetch_takes_no_subgroup_stream_and_no_datagram(pair):
    pair.client.fetch(TRACK, now=0)
    pair.run()

    with pytest.raises(LocalProtocolError):
        pair.server.open_subgroup(0, HEADER, priority=4, now=0)
    with pytest.raises(LocalProtocolError):
        pair.server.send_datagram(0, obj(0), now=0)
