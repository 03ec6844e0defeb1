import pytest

from kvcs.errors import LocalProtocolError, TerminationCode
from kvcs.moqt.codepoints import GroupOrder, ObjectStatus, RangeMarker
from kvcs.moqt.session.actions import CloseSession, ResetStream, StopSending
from kvcs.moqt.session.events import (
    FetchAccepted,
    FetchOpened,
    FetchReceived,
    ObjectReceived,
    RangeEnded,
    RequestCancelled,
    RequestRejected,
    StreamAborted,
    StreamFinished,
    StreamStopped,
    SubscriberFinished,
)
from kvcs.moqt.wire.fetch import Fetch, FetchOk
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.properties import Properties
from kvcs.moqt.wire.request import RequestError
from kvcs.names import FullTrackName, Location, TrackNamespace

TRACK = FullTrackName(TrackNamespace((b"kvcs",)), b"t")
END = Location(9, 9)


def obj(group_id, object_id, payload=b"data"):
    return Object(
        group_id=group_id,
        object_id=object_id,
        subgroup_id=0,
        publisher_priority=5,
        payload=payload,
    )


@pytest.fixture
def fetching(pair):
    """A FETCH with Request ID 0 that nobody has answered."""
    pair.client.fetch(TRACK, now=0)
    pair.run()
    return pair


def accept(session, request_id=0):
    session.accept_fetch(request_id, end_of_track=False, end_location=END, now=0)


def closing_code(session):
    (action,) = session.take_actions()
    assert isinstance(action, CloseSession)
    return action.code


def test_a_whole_fetch_with_the_answer_first(pair):
    asked = Parameters(location_filter=LocationFilter.absolute_start(0, 0))
    properties = Properties.of((0x04, 60_000))
    pair.client.fetch(TRACK, asked, now=0)
    _, received = pair.run()

    pair.server.accept_fetch(0, end_of_track=True, end_location=END, properties=properties, now=0)
    stream_id = pair.server.open_fetch_stream(0, priority=4, now=0)
    pair.server.send_object(stream_id, obj(0, 0), now=0)
    pair.server.send_marker(stream_id, RangeMarker.UNKNOWN, Location(3, 4), now=0)
    pair.server.send_object(stream_id, obj(4, 0, b""), now=0)
    pair.server.finish_stream(stream_id, now=0)
    events, taken = pair.run()

    assert received == [FetchReceived(0, TRACK, asked)]
    assert events == [
        FetchAccepted(0, True, END, properties),
        FetchOpened(0, stream_id, 0),
        ObjectReceived(0, stream_id, obj(0, 0), is_fetch=True),
        RangeEnded(0, stream_id, RangeMarker.UNKNOWN, Location(3, 4)),
        ObjectReceived(0, stream_id, obj(4, 0, b""), is_fetch=True),
        StreamFinished(0, stream_id),
    ]
    assert taken == [SubscriberFinished(0, in_order=True)]
    assert not pair.client._registry.by_stream
    assert not pair.server._registry.by_stream
    assert pair.client.next_deadline() is None


def send_all(session):
    accept(session)
    session.finish_stream(session.open_fetch_stream(0, priority=4, now=0), now=0)


def test_fetch_is_taken_when_the_subscriber_ends_its_side_and_not_when_all_is_sent(to_server):
    peer = to_server()
    peer.say(0, Fetch(request_id=0, track=TRACK))
    send_all(peer.session)

    assert peer.session.take_events() == []
    peer.session.receive_stream(0, b"", fin=True, now=0)
    assert peer.session.take_events() == [SubscriberFinished(0, in_order=True)]


def test_reset_after_all_of_a_fetch_is_no_sign_that_it_was_taken(to_server):
    peer = to_server()
    peer.say(0, Fetch(request_id=0, track=TRACK))
    send_all(peer.session)

    peer.session.receive_reset(0, 1, now=0)

    assert peer.session.take_events() == [SubscriberFinished(0, in_order=False)]


def test_fetch_whose_subscriber_ended_its_side_first_is_finished_when_all_is_sent(to_server):
    peer = to_server()
    peer.say(0, Fetch(request_id=0, track=TRACK), fin=True)

    send_all(peer.session)

    assert peer.session.take_events() == [SubscriberFinished(0, in_order=True)]


def test_data_may_come_before_the_answer(fetching):
    stream_id = fetching.server.open_fetch_stream(0, priority=4, now=0)
    fetching.server.finish_stream(stream_id, now=0)
    data, _ = fetching.run()

    assert [type(event) for event in data] == [FetchOpened, StreamFinished]
    assert fetching.client.is_active(0)
    accept(fetching.server)
    events, _ = fetching.run()

    assert [type(event) for event in events] == [FetchAccepted]
    assert not fetching.client.is_active(0)
    assert not fetching.server.is_active(0)
    assert not fetching.client._registry.by_stream


def test_answer_that_never_follows_the_data_times_out(fetching):
    stream_id = fetching.server.open_fetch_stream(0, priority=4, now=0)
    fetching.run()
    assert fetching.client.next_deadline() is None

    fetching.server.finish_stream(stream_id, now=0)
    fetching.run()
    events, _ = fetching.pass_time(30)

    assert events == [RequestRejected(0, 2, "no answer in time")]


def test_stream_that_never_follows_the_answer_times_out(fetching):
    accept(fetching.server)
    fetching.run()

    events, told = fetching.pass_time(30)

    assert events == told == [RequestCancelled(0, 1)]


def test_fetch_waits_as_long_as_it_grants_the_relay(pair):
    pair.client.fetch(TRACK, Parameters(fill_timeout_ms=5000), now=0)

    assert pair.client.next_deadline() == 35


def test_descending_groups_are_read_in_the_order_asked_for(pair):
    pair.client.fetch(TRACK, Parameters(group_order=GroupOrder.DESCENDING), now=0)
    pair.run()

    stream_id = pair.server.open_fetch_stream(0, order=GroupOrder.DESCENDING, priority=4, now=0)
    pair.server.send_object(stream_id, obj(5, 0), now=0)
    pair.server.send_object(stream_id, obj(2, 1), now=0)
    events, _ = pair.run()

    assert [e.obj.location for e in events if isinstance(e, ObjectReceived)] == [
        Location(5, 0),
        Location(2, 1),
    ]


def test_cancel_resets_both_streams(fetching):
    stream_id = fetching.server.open_fetch_stream(0, priority=4, now=0)
    fetching.run()

    fetching.client.cancel(0, now=0)
    fetching.run()

    assert StopSending(stream_id, 1) in fetching.client_actions
    assert {ResetStream(0, 1), ResetStream(stream_id, 1)} <= set(fetching.server_actions)
    assert RequestCancelled(0, 1) in fetching.server_events
    assert not fetching.server._registry.by_stream
    assert not fetching.client._registry.by_stream


def test_stop_of_the_data_stream_leaves_the_fetch_to_be_answered(fetching):
    stream_id = fetching.server.open_fetch_stream(0, priority=4, now=0)
    fetching.run()

    fetching.client.stop_stream(stream_id, 9, now=0)
    fetching.client.stop_stream(stream_id, 9, now=0)
    _, told = fetching.run()
    accept(fetching.server)
    events, _ = fetching.run()

    assert told == [StreamStopped(0, stream_id, 9)]
    assert [type(event) for event in events] == [FetchAccepted]
    assert not fetching.client.is_active(0)


def test_reset_of_the_data_stream_is_reported_and_ends_the_fetch(fetching):
    accept(fetching.server)
    stream_id = fetching.server.open_fetch_stream(0, priority=4, now=0)
    fetching.server.reset_stream(stream_id, 6, now=0)

    events, _ = fetching.run()

    # The header may be lost with the reset; here it was not.
    assert StreamAborted(0, stream_id, 6) in events
    assert not fetching.client.is_active(0)


def test_rejection_after_data_refuses_the_rest(fetching):
    stream_id = fetching.server.open_fetch_stream(0, priority=4, now=0)
    fetching.run()

    fetching.server.reject(0, 0x12, now=0)
    events, _ = fetching.run()

    assert events == [RequestRejected(0, 0x12, "")]
    assert ResetStream(stream_id, 1) in fetching.server_actions
    assert StopSending(stream_id, 1) in fetching.client_actions
    assert not fetching.client._registry.by_stream


def test_fetch_has_one_stream(fetching, to_client):
    fetching.server.open_fetch_stream(0, priority=4, now=0)
    with pytest.raises(LocalProtocolError):
        fetching.server.open_fetch_stream(0, priority=4, now=0)

    peer = to_client()
    peer.session.fetch(TRACK, now=0)
    peer.say(7, b"\x05\x00")
    peer.session.take_actions()
    peer.say(11, b"\x05\x00")

    assert closing_code(peer.session) == TerminationCode.PROTOCOL_VIOLATION


def test_end_before_the_start_asked_for_is_a_violation(to_client):
    peer = to_client()
    asked = Parameters(location_filter=LocationFilter.absolute_start(5, 2))
    peer.session.fetch(TRACK, asked, now=0)
    peer.session.take_actions()

    peer.say(0, FetchOk(end_of_track=False, end_location=Location(5, 1)))

    assert closing_code(peer.session) == TerminationCode.PROTOCOL_VIOLATION


def test_relative_start_says_nothing_about_the_end(to_client):
    peer = to_client()
    asked = Parameters(location_filter=LocationFilter.relative_start(5))
    peer.session.fetch(TRACK, asked, now=0)

    (event,) = peer.say(0, FetchOk(end_of_track=False, end_location=Location(0, 0)))

    assert isinstance(event, FetchAccepted)


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        (Properties.of((0x4000, 1)), 0x33),
        (Properties.decode(bytes.fromhex("0b000000")), 0x12),
    ],
    ids=["unknown mandatory property", "IMMUTABLE_PROPERTIES twice"],
)
def test_track_that_cannot_be_taken_ends_the_fetch(to_client, properties, code):
    peer = to_client()
    peer.session.fetch(TRACK, now=0)

    (event,) = peer.say(0, FetchOk(end_of_track=False, end_location=END, properties=properties))

    assert event.code == code
    assert not peer.session.is_active(0)


def test_second_error_is_a_violation(to_client):
    peer = to_client()
    peer.session.fetch(TRACK, now=0)
    peer.say(0, RequestError(code=0x10))
    peer.session.take_actions()

    peer.say(0, RequestError(code=0x10))

    assert closing_code(peer.session) == TerminationCode.PROTOCOL_VIOLATION


def test_stream_of_an_unknown_fetch_is_refused_without_harm(to_client):
    peer = to_client()

    assert peer.say(7, b"\x05\x00") == []
    assert peer.say(7, b"more", fin=True) == []
    assert peer.say(11, b"\x05\x00", fin=True) == []

    assert peer.session.take_actions() == [StopSending(7, 1)]


def test_stream_for_a_subscription_without_fill_is_refused(to_client):
    peer = to_client()
    peer.session.subscribe(TRACK, now=0)
    peer.session.take_actions()

    peer.say(7, b"\x05\x00")

    assert peer.session.take_actions() == [StopSending(7, 1)]


def test_status_and_marker_stay_where_they_belong(fetching):
    stream_id = fetching.server.open_fetch_stream(0, priority=4, now=0)
    status = Object(
        group_id=0,
        object_id=0,
        subgroup_id=0,
        publisher_priority=5,
        status=ObjectStatus.END_OF_GROUP,
    )

    with pytest.raises(LocalProtocolError):
        fetching.server.send_object(stream_id, status, now=0)
    fetching.server.send_object(stream_id, obj(0, 0), now=0)
    with pytest.raises(LocalProtocolError):
        fetching.server.send_object(stream_id, obj(0, 0), now=0)


def test_reserved_namespace_cannot_be_fetched(to_server):
    peer = to_server()
    track = FullTrackName(TrackNamespace((b".",)), b"t")

    assert peer.say(0, Fetch(request_id=0, track=track)) == []
    assert not peer.session.is_active(0)
