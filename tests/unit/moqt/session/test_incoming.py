import pytest

from kvcs.errors import StreamResetCode, TerminationCode
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.session.actions import CloseSession, StopSending
from kvcs.moqt.session.events import (
    FetchOpened,
    ObjectBegun,
    ObjectPayload,
    ObjectReceived,
    StreamAborted,
    StreamFinished,
    SubgroupOpened,
    SubscriptionDrained,
)
from kvcs.moqt.wire.fetch import FetchOk
from kvcs.moqt.wire.fetch_stream import FetchHeader
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import Properties
from kvcs.moqt.wire.publish import PublishDone
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.moqt.wire.subscribe import SubscribeOk
from kvcs.names import FullTrackName, Location, TrackNamespace
from kvcs.varint import encode_vi64

TRACK = FullTrackName(TrackNamespace((b"kvcs",)), b"t")
# Track Alias 7, Group 1, Subgroup 0, priority 5.
HEADER = bytes.fromhex("50070105")


@pytest.fixture
def make_subscriber(to_client):
    """A subscription with Request ID 0 and Track Alias 7, in front of a raw publisher."""

    def make(*, properties=(), taken_from=None, **settings):
        peer = to_client(**settings)
        request_id = peer.session.subscribe(TRACK, now=0)
        if taken_from is not None:
            peer.session.take_payloads(request_id, taken_from)
        peer.say(0, SubscribeOk(track_alias=7, properties=Properties.of(*properties)))
        peer.session.take_actions()
        return peer

    return make


def obj(object_id, payload, **fields):
    values = {"group_id": 1, "subgroup_id": 0, "publisher_priority": 5, **fields}
    return Object(object_id=object_id, payload=payload, **values)


def record(delta, payload):
    return encode_vi64(delta) + encode_vi64(len(payload)) + payload


def closing_code(session):
    (action,) = session.take_actions()
    assert isinstance(action, CloseSession)
    return action.code


def test_stream_is_reported_from_its_header_to_its_end(make_subscriber):
    peer = make_subscriber()

    events = peer.say(7, HEADER, record(0, b"ab"), record(2, b"c"), fin=True)

    header = SubgroupHeader(track_alias=7, group_id=1, subgroup_id=0, publisher_priority=5)
    opened = events[0]
    assert (opened.request_id, opened.stream_id) == (0, 7)
    assert opened.header == header._replace(first_object=True)
    assert events[1:] == [
        ObjectReceived(0, 7, obj(0, b"ab"), is_fetch=False),
        ObjectReceived(0, 7, obj(3, b"c"), is_fetch=False),
        StreamFinished(0, 7),
    ]


def test_one_octet_at_a_time_gives_the_same_objects(make_subscriber):
    peer = make_subscriber()
    data = HEADER + record(0, b"x" * 300) + record(0, b"") + b"\x03" + record(1, b"y")

    events = [event for octet in data for event in peer.say(7, bytes((octet,)))]

    assert [event.obj for event in events[1:]] == [
        obj(0, b"x" * 300),
        obj(1, b"", status=ObjectStatus.END_OF_GROUP),
        obj(3, b"y"),
    ]
    assert peer.session._context.partial_bytes == 0
    assert peer.session.next_deadline() is None


@pytest.mark.parametrize("wrap", [bytes, memoryview])
def test_payload_is_always_bytes(make_subscriber, wrap):
    peer = make_subscriber()
    data = HEADER + record(0, b"a" * 10) + record(0, b"b" * 1000)

    peer.session.receive_stream(7, wrap(data[:60]), False, now=0)
    peer.session.receive_stream(7, wrap(data[60:900]), False, now=0)
    peer.session.receive_stream(7, wrap(data[900:]), True, now=0)

    payloads = [e.obj.payload for e in peer.session.take_events() if isinstance(e, ObjectReceived)]
    assert payloads == [b"a" * 10, b"b" * 1000]
    assert all(type(payload) is bytes for payload in payloads)


def test_small_part_of_a_large_piece_does_not_keep_the_piece_alive(make_subscriber):
    peer = make_subscriber()
    piece = HEADER + record(0, bytes(1000)) + record(0, bytes(100))[:50]

    peer.session.receive_stream(7, piece, False, now=0)

    (part,) = peer.session._incoming._streams[7]._parts
    assert type(part) is bytearray
    assert peer.session._context.partial_bytes == len(part) == 48


def test_subgroup_id_can_be_that_of_the_first_object(make_subscriber):
    peer = make_subscriber()

    events = peer.say(7, bytes.fromhex("52070105"), record(4, b"a"), record(0, b"b"))

    assert [event.obj.subgroup_id for event in events[1:]] == [4, 4]


def test_priority_is_that_of_the_track_where_the_header_has_none(make_subscriber):
    peer = make_subscriber(properties=[(0x0E, 64)])

    events = peer.say(7, bytes.fromhex("700701"), record(0, b"a"))

    assert events[1].obj.publisher_priority == 64


def test_properties_of_objects_are_kept(make_subscriber):
    peer = make_subscriber()

    (_, event) = peer.say(7, bytes.fromhex("51070105 00 03 b80001 01 61"))

    assert event.obj.properties == Properties.of((0x3800, 1))


def begun(events):
    """Tell what is said of Objects that are taken while they arrive."""
    return [
        (event.obj.object_id, event.payload_length, bytes(event.data))
        if isinstance(event, ObjectBegun)
        else bytes(event.data)
        for event in events
        if isinstance(event, ObjectBegun | ObjectPayload)
    ]


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_object_that_took_a_while_tells_when_it_began(make_subscriber, cut):
    peer = make_subscriber()
    data = record(0, b"abcd")
    peer.say(7, HEADER)

    peer.now = 5.0
    peer.say(7, data[:cut])
    peer.now = 9.0
    events = peer.say(7, data[cut:], record(0, b"e"))

    assert [event.began_at for event in events] == [5.0, None]


def test_payload_is_taken_while_it_arrives(make_subscriber):
    peer = make_subscriber(taken_from=4)
    data = HEADER + record(0, b"abc") + record(0, b"defgh") + record(0, b"ijkl")

    events = peer.say(7, data[:14]) + peer.say(7, data[14:15]) + peer.say(7, data[15:])

    assert events[1] == ObjectReceived(0, 7, obj(0, b"abc"), is_fetch=False)
    assert events[2] == ObjectBegun(0, 7, obj(1, b""), 5, memoryview(b"def"), is_fetch=False)
    assert begun(events) == [(1, 5, b"def"), b"g", b"h", (2, 4, b"ijkl")]
    assert peer.session._context.partial_bytes == 0


def test_payload_taken_one_octet_at_a_time_is_the_same(make_subscriber):
    peer = make_subscriber(taken_from=1)
    data = HEADER + record(0, b"abcd")

    events = [event for octet in data for event in peer.say(7, bytes((octet,)))]

    assert begun(events) == [(0, 4, b""), b"a", b"b", b"c", b"d"]


def test_object_without_payload_comes_whole_where_payloads_are_taken(make_subscriber):
    peer = make_subscriber(taken_from=1)

    events = peer.say(7, HEADER, bytes.fromhex("00 00 03"))

    assert [type(event) for event in events[1:]] == [ObjectReceived]
    assert events[1].obj.status is ObjectStatus.END_OF_GROUP


def test_payload_that_is_taken_has_the_same_limit(make_subscriber):
    peer = make_subscriber(taken_from=1, max_object_bytes=4)

    events = peer.say(7, HEADER, record(0, b"abcd"), record(0, b"abcde"))

    assert begun(events) == [(0, 4, b"abcd")]
    assert isinstance(events[-1], StreamAborted)


def test_payloads_that_are_taken_count_until_they_are_whole(make_subscriber):
    peer = make_subscriber(taken_from=1, max_partial_bytes=3)

    peer.say(7, HEADER, record(0, b"abcde")[:-2])
    held = peer.session._context.partial_bytes
    peer.say(7, b"de", record(0, b"abcdef")[:-2])

    assert held == 3
    assert any(isinstance(a, StopSending) for a in peer.session.take_actions())
    assert peer.session._context.partial_bytes == 0


def test_taking_payloads_of_an_unknown_request_changes_nothing(make_subscriber):
    peer = make_subscriber()

    peer.session.take_payloads(40)

    assert peer.say(7, HEADER, record(0, b"a"))[1] == ObjectReceived(0, 7, obj(0, b"a"), False)


def test_reset_aborts_the_stream_and_frees_what_it_held(make_subscriber):
    peer = make_subscriber()
    peer.say(7, HEADER, record(0, b"abc")[:3])

    peer.session.receive_reset(7, 5, now=0)

    assert peer.session.take_events() == [StreamAborted(0, 7, 5)]
    assert peer.session._context.partial_bytes == 0
    assert peer.session.open_streams(0) == frozenset()
    assert peer.session.next_deadline() is None


def test_reset_inside_the_header_is_not_reported(make_subscriber):
    peer = make_subscriber()
    peer.say(7, HEADER[:2])

    peer.session.receive_reset(7, 5, now=0)

    assert peer.session.take_events() == []
    assert peer.session.next_deadline() is None


def test_stopped_stream_is_silent_until_it_ends(make_subscriber):
    peer = make_subscriber()
    peer.say(7, HEADER, record(0, b"abc")[:3])

    peer.session.stop_stream(7, 9, now=0)
    events = peer.say(7, b"more") + peer.say(7, b"", fin=True)
    peer.session.stop_stream(11, 9, now=0)
    peer.say(11, HEADER)
    peer.session.stop_stream(11, 9, now=0)
    peer.session.receive_reset(11, 9, now=0)

    assert events == []
    assert peer.session.take_actions() == [StopSending(7, 9), StopSending(11, 9)]
    assert not peer.session._incoming._discarded
    assert peer.session._context.partial_bytes == 0


@pytest.mark.parametrize("cut", [3, 5, 7])
def test_fin_inside_a_header_or_an_object_is_a_violation(make_subscriber, cut):
    peer = make_subscriber()

    peer.say(7, (HEADER + record(0, b"abc"))[:cut], fin=True)

    assert closing_code(peer.session) == TerminationCode.PROTOCOL_VIOLATION


def test_object_beyond_the_limit_ends_its_stream_only(make_subscriber):
    peer = make_subscriber(max_object_bytes=1000)

    events = peer.say(7, HEADER, record(0, b"a"), b"\x00" + encode_vi64(1001))
    later = peer.say(7, b"x" * 100)

    assert events[-1] == StreamAborted(0, 7, 9)
    assert later == []
    assert peer.session.take_actions() == [StopSending(7, 9)]
    assert not peer.session.is_closed


def test_limit_of_an_object_holds_where_it_comes_in_one_piece(make_subscriber):
    peer = make_subscriber(max_object_bytes=10)

    events = peer.say(7, HEADER, record(0, b"a" * 11))

    assert events[-1] == StreamAborted(0, 7, 9)


def test_unfinished_objects_share_a_budget(make_subscriber):
    peer = make_subscriber(max_partial_bytes=100)

    peer.say(7, HEADER, record(0, bytes(200))[:63])
    events = peer.say(11, HEADER, record(0, bytes(200))[:63])
    rest = peer.say(7, bytes(41))

    assert events[-1] == StreamAborted(0, 11, 9)
    assert rest == [StreamAborted(0, 7, 9)]
    assert peer.session._context.partial_bytes == 0


# As HEADER, in Groups 2 and 3, with priorities 200 and 100.
LESS_URGENT = bytes.fromhex("500702c8")
IN_BETWEEN = bytes.fromhex("50070364")


def test_least_urgent_objects_are_given_up_for_more_urgent_ones(make_subscriber):
    peer = make_subscriber(max_partial_bytes=100)
    big = record(0, bytes(80))
    peer.say(7, LESS_URGENT, big[:42])
    peer.say(11, IN_BETWEEN, big[:42])

    events = peer.say(15, HEADER, big[:62])

    assert [type(event) for event in events] == [SubgroupOpened, StreamAborted]
    assert (events[1].stream_id, events[1].code) == (7, StreamResetCode.EXCESSIVE_LOAD)
    assert peer.session.take_actions() == [StopSending(7, 9)]
    (whole,) = peer.say(15, big[62:])
    assert whole.obj.payload == bytes(80)
    (other,) = peer.say(11, big[42:])
    assert other.obj.group_id == 3
    assert peer.session._context.partial_bytes == 0


def test_object_that_is_no_more_urgent_than_the_others_is_given_up_itself(make_subscriber):
    peer = make_subscriber(max_partial_bytes=100)
    big = record(0, bytes(80))
    peer.say(7, IN_BETWEEN, big[:62])

    events = peer.say(11, LESS_URGENT, big[:62]) + peer.say(15, IN_BETWEEN, big[:62])

    aborted = [event.stream_id for event in events if isinstance(event, StreamAborted)]
    assert aborted == [11, 15]
    (whole,) = peer.say(7, big[62:])
    assert whole.obj.payload == bytes(80)


def test_streams_beyond_the_limit_are_refused_and_their_request_learns_of_it(make_subscriber):
    peer = make_subscriber(max_data_streams=1)

    peer.say(7, HEADER)
    refused = peer.say(11, HEADER, fin=True) + peer.say(15, HEADER)
    peer.say(7, b"", fin=True)
    taken = peer.say(19, HEADER)

    assert [type(event) for event in refused] == [SubgroupOpened, StreamAborted] * 2
    assert {event.code for event in refused[1::2]} == {StreamResetCode.EXCESSIVE_LOAD}
    assert peer.session.streams_seen(0) == 4
    assert [type(event) for event in taken] == [SubgroupOpened]
    assert peer.session.take_actions() == [StopSending(15, 9)]


def test_subscription_with_refused_streams_ends_with_its_publish_done(make_subscriber):
    peer = make_subscriber(max_data_streams=1)
    peer.say(7, HEADER)
    peer.say(11, HEADER)
    peer.say(7, b"", fin=True)

    events = peer.say(0, PublishDone(status_code=2, stream_count=2))

    assert SubscriptionDrained(0, True) in events


def test_refused_stream_of_a_fetch_ends_its_data(to_client):
    peer = to_client(max_data_streams=1)
    peer.session.fetch(TRACK, now=0)
    peer.session.fetch(TRACK, now=0)
    peer.session.take_actions()
    peer.say(7, FetchHeader(0).encode())

    events = peer.say(11, FetchHeader(2).encode())
    answer = FetchOk(end_of_track=False, end_location=Location(0, 0))
    peer.say(4, answer)

    assert [type(event) for event in events] == [FetchOpened, StreamAborted]
    assert not peer.session.is_active(2)


def test_headers_that_never_end_are_bounded_beside_the_streams(make_subscriber):
    peer = make_subscriber(max_data_streams=1, max_pending_streams=2)
    peer.say(7, HEADER)

    for stream_id in (11, 15, 19):
        peer.say(stream_id, HEADER[:1])

    assert peer.session.take_actions() == [StopSending(19, 9)]


def test_streams_inside_their_header_count(make_subscriber):
    peer = make_subscriber(max_data_streams=1)

    peer.say(7, HEADER[:1])
    peer.say(11, HEADER)
    opened = peer.say(7, HEADER[1:])

    assert [type(event) for event in opened] == [SubgroupOpened]
    assert peer.session.take_actions() == [StopSending(11, 9)]


def test_session_tells_when_bytes_came_on_a_stream_and_on_any(make_subscriber):
    peer = make_subscriber()
    peer.now = 3.0
    peer.say(7, HEADER, record(0, b"abc")[:3])
    peer.now = 5.0
    peer.say(11, HEADER)
    peer.say(11, b"", fin=True)

    assert peer.session.received_at(7) == 3.0
    assert peer.session.received_at(11) == 0.0
    assert peer.session.received_at() == 5.0


def test_padding_is_drained_and_dropped(make_subscriber):
    peer = make_subscriber()

    events = peer.say(7, bytes.fromhex("f0132b3e280000")) + peer.say(7, bytes(9), fin=True)

    assert events == []
    assert peer.session.take_actions() == []
    assert not peer.session._incoming._discarded


def test_stream_that_stands_still_inside_its_header_ends_the_session(make_subscriber):
    peer = make_subscriber()
    peer.say(7, HEADER[:1])

    peer.session.advance(now=59)
    assert not peer.session.is_closed
    peer.session.advance(now=60)

    assert closing_code(peer.session) == TerminationCode.DATA_STREAM_TIMEOUT


@pytest.mark.parametrize("data", [b"\x00", record(0, b"abc")[:4], record(0, bytes(30))[:10]])
def test_stream_that_stands_still_inside_an_object_ends(make_subscriber, data):
    peer = make_subscriber(taken_from=10)
    peer.say(7, HEADER, data)

    peer.session.advance(now=59)
    assert peer.session.take_actions() == []
    peer.session.advance(now=60)

    assert_given_up(peer)
    assert not peer.session.is_closed
    assert peer.say(7, bytes(3)) == []


def assert_given_up(peer):
    """Stream 7 was refused, and its request told."""
    assert peer.session.take_actions() == [StopSending(7, StreamResetCode.EXCESSIVE_LOAD)]
    aborted = [event for event in peer.session.take_events() if isinstance(event, StreamAborted)]
    assert [(event.stream_id, event.code) for event in aborted] == [
        (7, StreamResetCode.EXCESSIVE_LOAD)
    ]
    assert peer.session._context.partial_bytes == 0
    assert peer.session.next_deadline() is None


def trickle(peer, data):
    """Say an octet every 50 seconds; return when something was done about it."""
    for octet in data:
        peer.say(7, bytes((octet,)))
        for _ in range(50):
            peer.now += 1
            peer.session.advance(now=peer.now)
            if peer.session._context.actions:
                return peer.now
    return None


@pytest.mark.parametrize("taken_from", [None, 10])
@pytest.mark.parametrize("begun", [b"", record(0, b"abc") + record(0, bytes(30))[:5]])
def test_object_that_comes_an_octet_at_a_time_has_an_end(make_subscriber, begun, taken_from):
    peer = make_subscriber(taken_from=taken_from)
    peer.say(7, HEADER, begun)
    peer.now = 10

    data = bytes(25) if begun else record(0, bytes(30))
    assert trickle(peer, data) == (600 if begun else 610)
    assert_given_up(peer)


def test_each_object_of_a_stream_has_its_own_time(make_subscriber):
    peer = make_subscriber()
    peer.say(7, HEADER)
    whole = record(0, bytes(6))

    assert trickle(peer, whole * 10) is None
    for _ in range(30):  # the end of one and the beginning of the next together
        peer.say(7, whole[:5])
        peer.now += 50
        peer.session.advance(now=peer.now)
        peer.say(7, whole[5:] + whole[:5])
        peer.say(7, whole[5:])

    assert not peer.session.take_actions()


def test_header_that_comes_an_octet_at_a_time_has_an_end(make_subscriber):
    peer = make_subscriber()

    assert trickle(peer, HEADER) == 60
    assert closing_code(peer.session) == TerminationCode.DATA_STREAM_TIMEOUT


def test_progress_moves_the_deadline_of_a_stream(make_subscriber):
    peer = make_subscriber()
    peer.say(7, HEADER, record(0, b"abc")[:3])
    peer.now = 50
    peer.say(7, b"b")

    assert peer.session.next_deadline() == 110
    peer.say(7, b"c")

    assert peer.session.next_deadline() is None
