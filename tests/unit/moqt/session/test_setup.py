import pytest

from kvcs.errors import ConnectionLost, LocalProtocolError, RemoteProtocolError, TerminationCode
from kvcs.moqt.session.actions import CloseSession, ResetStream, SendStream, SetPriority
from kvcs.moqt.session.events import (
    GoawayReceived,
    RequestCancelled,
    RequestRejected,
    SessionClosed,
    SetupComplete,
    SubscribeReceived,
)
from kvcs.moqt.session.limits import SessionConfig, Side
from kvcs.moqt.session.session import Session
from kvcs.moqt.session.setup import CONTROL_STREAM, ControlInput, ControlState
from kvcs.moqt.wire.goaway import Goaway
from kvcs.moqt.wire.setup import Setup, SetupOptions
from kvcs.moqt.wire.subscribe import Subscribe
from kvcs.moqt.wire.token import Token
from kvcs.names import FullTrackName, TrackNamespace

TRACK = FullTrackName(TrackNamespace((b"kvcs",)), b"t")
SUBSCRIBE = Subscribe(request_id=0, track=TRACK)


def closed_with(session, code):
    """Tell whether the session has ended with one action and one event for `code`."""
    (action,), (event,) = session.take_actions(), session.take_events()
    assert isinstance(action, CloseSession)
    assert isinstance(event, SessionClosed)
    assert isinstance(event.error, RemoteProtocolError)
    assert session.is_closed
    assert session.next_deadline() is None
    return action.code == event.error.code == code


@pytest.mark.parametrize(("side", "stream_id"), [(Side.CLIENT, 2), (Side.SERVER, 3)])
def test_start_opens_the_control_stream_with_setup_and_first_priority(side, stream_id):
    options = SetupOptions(max_filter_ranges=3, implementation="kvcs/0")
    session = Session(side, SessionConfig(options=options))

    session.start(now=0)

    assert session.take_actions() == [
        SendStream(stream_id, Setup(options).encode()),
        SetPriority(stream_id, 0),
    ]


def test_setup_of_both_sides_completes_with_the_options_of_the_other(make_pair):
    pair = make_pair().connect()

    assert pair.client_events == [SetupComplete(SetupOptions(max_filter_ranges=8))]
    assert pair.server.peer_options == SetupOptions(max_filter_ranges=8)
    assert pair.client.next_deadline() is None


def test_requests_may_follow_our_setup_at_once(make_pair):
    pair = make_pair()
    pair.client.start(now=0)
    pair.server.start(now=0)

    request_id = pair.client.subscribe(TRACK, now=0)
    _, events = pair.run()

    assert [type(event) for event in events] == [SetupComplete, SubscribeReceived]
    assert events[1].request_id == request_id == 0


def test_streams_before_setup_are_held_until_it_comes():
    session = Session(Side.SERVER, SessionConfig())
    session.start(now=0)

    session.receive_stream(0, SUBSCRIBE.encode()[:5], False, now=0)
    session.receive_stream(6, b"\xf0\x13\x2b", False, now=0)
    session.receive_stream(6, b"\x3e\x28" + bytes(9), False, now=0)
    session.receive_stream(6, bytes(9), True, now=0)
    session.receive_stream(0, SUBSCRIBE.encode()[5:], True, now=0)
    held = session.take_events()
    setup = Setup(SetupOptions()).encode()
    session.receive_stream(2, setup[:1], False, now=0)
    session.receive_stream(2, setup[1:], False, now=0)

    assert held == []
    assert [type(event) for event in session.take_events()] == [SetupComplete, SubscribeReceived]


def test_stream_reset_before_setup_is_forgotten():
    session = Session(Side.SERVER, SessionConfig())
    session.start(now=0)

    session.receive_stream(0, SUBSCRIBE.encode(), False, now=0)
    session.receive_reset(0, 1, now=0)
    session.receive_stream(2, Setup(SetupOptions()).encode(), False, now=0)

    assert [type(event) for event in session.take_events()] == [SetupComplete]


def test_request_of_ours_that_is_reset_before_setup_is_cancelled():
    session = Session(Side.CLIENT, SessionConfig())
    session.start(now=0)
    session.subscribe(TRACK, now=0)
    session.take_actions()

    session.receive_stream(0, b"\x04", False, now=0)
    session.receive_reset(0, 9, now=0)

    assert session.take_events() == [RequestCancelled(0, 9)]
    assert session.take_actions() == [ResetStream(0, 9)]


def test_request_of_the_peer_that_is_reset_before_setup_leaves_no_open_stream():
    session = Session(Side.SERVER, SessionConfig())
    session.start(now=0)
    session.take_actions()

    session.receive_stream(0, b"\x03", False, now=0)
    session.receive_reset(0, 9, now=0)

    assert session.take_events() == []
    assert session.take_actions() == [ResetStream(0, 1)]


def test_datagram_before_setup_is_dropped():
    session = Session(Side.SERVER, SessionConfig())
    session.start(now=0)

    session.receive_datagram(b"\xff\xff", now=0)

    assert not session.is_closed


def test_held_streams_beyond_the_limit_are_refused(make_pair):
    pair = make_pair()
    pair.server.start(now=0)
    pair.server.take_actions()
    big = bytes(2**20)

    pair.server.receive_stream(0, big, False, now=0)
    pair.server.receive_stream(4, b"x", False, now=0)
    pair.server.receive_stream(4, b"x", False, now=0)
    pair.server.receive_stream(4, b"x", True, now=0)
    pair.server.receive_stream(6, b"x", True, now=0)

    codes = [(type(a).__name__, a.stream_id, a.code) for a in pair.server.take_actions()]
    assert codes == [("StopSending", 4, 9), ("ResetStream", 4, 9)]


@pytest.mark.parametrize("state", [ControlState.OPEN, ControlState.GOING_AWAY])
@pytest.mark.parametrize("step", ControlInput)
def test_control_stream_accepts_what_its_table_says(to_client, state, step):
    peer = to_client()
    if state is ControlState.GOING_AWAY:
        peer.say(3, Goaway())
    message = {ControlInput.SETUP: Setup(SetupOptions()), ControlInput.GOAWAY: Goaway()}.get(step)

    peer.session.receive_stream(3, message.encode() if message else b"", message is None, now=0)

    assert peer.session.is_closed is ((state, step) not in CONTROL_STREAM)


def test_stream_that_does_not_begin_with_setup_is_no_control_stream():
    session = Session(Side.CLIENT, SessionConfig())
    session.start(now=0)

    session.receive_stream(3, b"\x01", False, now=0)
    session.receive_stream(7, Setup(SetupOptions()).encode(), False, now=0)

    assert closed_with(session, TerminationCode.PROTOCOL_VIOLATION)


@pytest.mark.parametrize("end", ["fin", "reset", "stop", "stop ours"])
def test_end_of_a_control_stream_is_a_violation(to_client, end):
    session = to_client().session

    if end == "fin":
        session.receive_stream(3, b"", True, now=0)
    elif end == "reset":
        session.receive_reset(3, 0, now=0)
    else:
        session.receive_stop_sending(3 if end == "stop" else 2, 0, now=0)

    assert closed_with(session, TerminationCode.PROTOCOL_VIOLATION)


@pytest.mark.parametrize(
    "message", [SUBSCRIBE, Setup(SetupOptions())], ids=["request", "second SETUP"]
)
def test_control_stream_takes_only_goaway_after_setup(to_client, message):
    peer = to_client()

    peer.session.receive_stream(3, message.encode(), False, now=0)

    assert closed_with(peer.session, TerminationCode.PROTOCOL_VIOLATION)


def test_second_control_stream_is_a_violation(to_client):
    session = to_client().session

    session.receive_stream(7, Setup(SetupOptions()).encode(), False, now=0)

    assert closed_with(session, TerminationCode.PROTOCOL_VIOLATION)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (SetupOptions(path=b"/kv"), TerminationCode.INVALID_PATH),
        (SetupOptions(authority=b"a"), TerminationCode.INVALID_AUTHORITY),
    ],
)
def test_client_refuses_options_that_only_clients_send(options, code):
    session = Session(Side.CLIENT, SessionConfig())
    session.start(now=0)

    session.receive_stream(3, Setup(options).encode(), False, now=0)

    assert closed_with(session, code)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (SetupOptions(path=b"kv"), TerminationCode.MALFORMED_PATH),
        (SetupOptions(path=b"/k v"), TerminationCode.MALFORMED_PATH),
        (SetupOptions(authority=b""), TerminationCode.MALFORMED_AUTHORITY),
        (SetupOptions(authority=b"a\n"), TerminationCode.MALFORMED_AUTHORITY),
    ],
)
def test_server_refuses_malformed_options(options, code):
    session = Session(Side.SERVER, SessionConfig())
    session.start(now=0)

    session.receive_stream(2, Setup(options).encode(), False, now=0)

    assert closed_with(session, code)


@pytest.mark.parametrize("path", [b"", b"/kv", b"?q=1", None])
def test_server_accepts_every_legal_path(path):
    session = Session(Side.SERVER, SessionConfig())
    session.start(now=0)

    session.receive_stream(
        2, Setup(SetupOptions(path=path, authority=b"host:4433")).encode(), False, now=0
    )

    (event,) = session.take_events()
    assert event.options.path == path


@pytest.mark.parametrize("token", [Token.use_alias(1), Token.delete(1)])
def test_setup_with_a_token_by_alias_is_a_violation(token):
    session = Session(Side.SERVER, SessionConfig())
    session.start(now=0)

    options = SetupOptions(authorization_tokens=(token,))
    session.receive_stream(2, Setup(options).encode(), False, now=0)

    assert closed_with(session, TerminationCode.PROTOCOL_VIOLATION)


def test_token_registered_in_setup_is_given_by_value():
    session = Session(Side.SERVER, SessionConfig())
    session.start(now=0)

    options = SetupOptions(authorization_tokens=(Token.register(1, b"secret"),))
    session.receive_stream(2, Setup(options).encode(), False, now=0)

    (event,) = session.take_events()
    assert event.options.authorization_tokens == (Token.use_value(b"secret"),)


def test_goaway_of_a_server_names_the_way(pair):
    pair.server.goaway("moqt://r2/", 5.0, now=0)

    events, _ = pair.run()

    assert events == [GoawayReceived("moqt://r2/", 5.0, None)]


def test_goaway_of_a_client_names_no_uri(pair, to_server):
    peer = to_server()

    with pytest.raises(LocalProtocolError):
        pair.client.goaway("moqt://r2/", 5.0, now=0)
    peer.session.receive_stream(2, Goaway(uri="moqt://r2/").encode(), False, now=0)

    assert closed_with(peer.session, TerminationCode.PROTOCOL_VIOLATION)


def test_goaway_is_sent_once_and_after_setup(pair):
    early = Session(Side.CLIENT, SessionConfig())
    pair.server.goaway(now=0)

    with pytest.raises(LocalProtocolError):
        pair.server.goaway(now=0)
    with pytest.raises(LocalProtocolError):
        early.goaway(now=0)


def test_new_requests_after_our_goaway_are_refused(pair):
    pair.server.goaway(now=0)
    request_id = pair.client.subscribe(TRACK, now=0)

    events, others = pair.run()

    assert RequestRejected(request_id, 6, "this session is going away") in events
    assert others == []


def test_goaway_timeout_closes_the_session_while_requests_are_open(pair):
    pair.client.subscribe(TRACK, now=0)
    pair.run()
    pair.server.goaway(timeout=5.0, now=0)
    pair.run()

    pair.server.advance(now=4.9)
    assert not pair.server.is_closed
    pair.server.advance(now=5.0)

    assert closed_with(pair.server, TerminationCode.GOAWAY_TIMEOUT)


def test_goaway_timeout_without_requests_changes_nothing(pair):
    pair.server.goaway(now=0)

    assert pair.server.next_deadline() == 30.0
    pair.pass_time(31)

    assert not pair.server.is_closed


def test_setup_timeout_closes_the_session():
    session = Session(Side.CLIENT, SessionConfig())
    session.start(now=1)

    assert session.next_deadline() == 11
    session.advance(now=11)

    assert closed_with(session, TerminationCode.CONTROL_MESSAGE_TIMEOUT)


def test_unfinished_goaway_times_out(to_client):
    peer = to_client()
    peer.session.receive_stream(3, Goaway().encode()[:2], False, now=0)
    peer.session.receive_stream(3, Goaway().encode()[2:3], False, now=5)

    peer.session.advance(now=10)

    assert closed_with(peer.session, TerminationCode.CONTROL_MESSAGE_TIMEOUT)


def test_close_keeps_what_is_pending_and_ends_everything(pair):
    request_id = pair.client.subscribe(TRACK, now=0)
    pair.run()
    pair.server.reject(request_id, 0x10, now=0)

    pair.server.close(0, "done", now=0)
    pair.server.close(0, "again", now=0)

    actions = pair.server.take_actions()
    assert [type(action) for action in actions] == [SendStream, CloseSession]
    (event,) = pair.server.take_events()
    assert isinstance(event.error, ConnectionLost)


def test_command_in_a_session_that_is_over_is_ignored_unless_it_opens_something(pair):
    request_id = pair.client.subscribe(TRACK, now=0)
    pair.run()
    pair.server.connection_lost(ConnectionLost(0, "gone"), now=0)

    pair.server.accept_subscribe(request_id, now=0)
    pair.server.reject(request_id, 0x10, now=0)
    pair.server.goaway(now=0)

    assert not pair.server.is_active(request_id)
    assert pair.server.take_actions() == []
    with pytest.raises(LocalProtocolError, match="closed"):
        pair.server.fetch(TRACK, now=0)
    with pytest.raises(LocalProtocolError, match="closed"):
        pair.server.open_fetch_stream(request_id, priority=4, now=0)


def test_connection_lost_is_the_last_event_and_asks_for_nothing(pair):
    pair.client.subscribe(TRACK, now=0)
    error = ConnectionLost(0, "gone")

    pair.client.connection_lost(error, now=0)
    pair.client.connection_lost(error, now=0)
    pair.client.receive_stream(3, b"\x00", False, now=0)

    assert pair.client.take_actions() == []
    assert pair.client.take_events() == [SessionClosed(error)]


def test_start_is_legal_once_and_needs_the_options_of_its_side(pair):
    server = Session(Side.SERVER, SessionConfig(options=SetupOptions(path=b"/")))

    with pytest.raises(LocalProtocolError):
        pair.client.start(now=0)
    with pytest.raises(LocalProtocolError):
        server.start(now=0)
    with pytest.raises(LocalProtocolError):
        Session(Side.CLIENT, SessionConfig()).subscribe(TRACK, now=0)
