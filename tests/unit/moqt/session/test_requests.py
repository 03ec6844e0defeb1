import pytest

from kvcs.errors import LocalProtocolError, RequestErrorCode, TerminationCode
from kvcs.moqt.codepoints import ParameterType
from kvcs.moqt.session.actions import CloseSession, ResetStream, SendStream, StopSending
from kvcs.moqt.session.events import (
    GoawayReceived,
    RequestAccepted,
    RequestCancelled,
    RequestRejected,
    SubscribeReceived,
    TrackStatusReceived,
)
from kvcs.moqt.session.limits import Side
from kvcs.moqt.session.registry import Registry
from kvcs.moqt.session.request_ids import PeerRequestIds
from kvcs.moqt.wire.filters import Range, RangeFilter
from kvcs.moqt.wire.goaway import Goaway
from kvcs.moqt.wire.message import decode_message
from kvcs.moqt.wire.parameters import FillParameters, Parameters
from kvcs.moqt.wire.properties import Properties
from kvcs.moqt.wire.request import Redirect, RequestError, RequestOk
from kvcs.moqt.wire.setup import SetupOptions
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.moqt.wire.subscribe import Subscribe, SubscribeOk
from kvcs.moqt.wire.token import Token
from kvcs.moqt.wire.track_status import TrackStatus
from kvcs.names import FullTrackName, Location, TrackNamespace

NAMESPACE = TrackNamespace((b"kvcs",))
TRACK = FullTrackName(NAMESPACE, b"t")


def subscribe(request_id, **parameters):
    return Subscribe(request_id=request_id, track=TRACK, parameters=Parameters(**parameters))


def object_ids(*ranges):
    return RangeFilter(
        kind=ParameterType.OBJECTID_FILTER, ranges=tuple(Range(a, b) for a, b in ranges)
    )


def closing_code(session):
    (action,) = session.take_actions()
    assert isinstance(action, CloseSession)
    return action.code


def answer(session):
    """Return the one message that the session has sent."""
    data = b"".join(a.data for a in session.take_actions() if isinstance(a, SendStream))
    message, end = decode_message(data)
    assert end == len(data)
    return message


def test_ids_are_even_for_clients_and_odd_for_servers(pair):
    assert [pair.client.subscribe(TRACK, now=0) for _ in range(3)] == [0, 2, 4]
    assert [pair.server.publish_namespace(NAMESPACE, now=0) for _ in range(2)] == [1, 3]


def test_streams_are_numbered_as_quic_does(pair):
    pair.client.subscribe(TRACK, now=0)
    pair.client.subscribe(TRACK, now=0)
    pair.server.publish_namespace(NAMESPACE, now=0)

    sent = [a.stream_id for a in pair.client.take_actions() if isinstance(a, SendStream)]
    back = [a.stream_id for a in pair.server.take_actions() if isinstance(a, SendStream)]
    assert (sent, back) == ([0, 4], [1])


def test_ids_may_come_out_of_order(to_server):
    peer = to_server()

    events = peer.say(4, subscribe(2)) + peer.say(0, subscribe(0)) + peer.say(8, subscribe(8))

    assert [event.request_id for event in events] == [2, 0, 8]


@pytest.mark.parametrize("request_id", [1, 0, 4])
def test_wrong_parity_or_repeated_id_closes_the_session(to_server, request_id):
    peer = to_server()
    peer.say(0, subscribe(0))
    peer.say(4, subscribe(4))
    peer.session.take_actions()

    peer.say(8, subscribe(request_id))

    assert closing_code(peer.session) == TerminationCode.INVALID_REQUEST_ID


def test_memory_of_left_out_ids_is_bounded():
    ids = PeerRequestIds(Side.SERVER, max_ahead=2)

    for number in (10, 20, 30):
        ids.claim(number)

    assert repr(ids) == "PeerRequestIds(all below 12, 2 above)"
    with pytest.raises(Exception, match="used twice"):
        ids.claim(2)
    assert ids.claim(12) == 12


@pytest.mark.parametrize("namespace", [b".", b".session"])
def test_reserved_namespaces_never_reach_the_application(to_server, namespace):
    peer = to_server()
    track = FullTrackName(TrackNamespace((namespace, b"x")), b"t")

    events = peer.say(0, Subscribe(request_id=0, track=track))

    assert events == []
    assert answer(peer.session).code == 0x10


def test_other_reserved_names_are_passed_on(to_server):
    peer = to_server()
    track = FullTrackName(TrackNamespace((b".other",)), b"t")

    assert len(peer.say(0, Subscribe(request_id=0, track=track))) == 1


def test_requests_beyond_the_limit_are_told_to_come_back(to_server):
    peer = to_server(max_requests=1)
    peer.say(0, subscribe(0))

    events = peer.say(4, subscribe(2), fin=True)

    assert events == []
    assert answer(peer.session) == RequestError(
        code=9, retry_interval=1001, reason="more than 1 open requests"
    )
    peer.session.reject(0, 0, now=0)
    assert len(peer.say(8, subscribe(4))) == 1


def test_filters_beyond_our_limit_are_refused(to_server):
    peer = to_server(options=SetupOptions(max_filter_ranges=2))

    taken = peer.say(0, subscribe(0, range_filters=(object_ids((0, 1), (3, 4)),)))
    refused = peer.say(4, subscribe(2, range_filters=(object_ids((0, 1), (3, 4), (6, 7)),)))

    assert len(taken) == 1
    assert refused == []
    assert answer(peer.session).code == 0x36


def test_filter_that_makes_no_sense_is_refused(to_server):
    peer = to_server()
    body = Subscribe(request_id=0, track=TRACK).encode()[3:-1]
    twice = body + bytes.fromhex("02 26 03 00 00 07 00 03 00 00 07")

    events = peer.say(0, b"\x03" + len(twice).to_bytes(2) + twice)

    assert events == []
    assert answer(peer.session).code == 0x36


def test_sender_keeps_to_the_limits_of_the_peer(make_pair):
    pair = make_pair()
    pair.client.start(now=0)
    filters = (object_ids((0, 1)),)
    with pytest.raises(LocalProtocolError, match="the peer takes 0"):
        pair.client.fetch(TRACK, Parameters(range_filters=filters), now=0)
    pair.server.start(now=0)
    pair.run()

    nested = Parameters(
        fill=FillParameters(range_filters=(object_ids(*[(i, i) for i in range(9)]),))
    )
    with pytest.raises(LocalProtocolError, match="9 filter ranges"):
        pair.client.subscribe(TRACK, nested, now=0)
    assert pair.client.fetch(TRACK, Parameters(range_filters=filters), now=0) == 0


def test_parameters_that_do_not_belong_are_not_sent(pair):
    with pytest.raises(LocalProtocolError, match="RENDEZVOUS_TIMEOUT not allowed in FETCH"):
        pair.client.fetch(TRACK, Parameters(rendezvous_timeout_ms=1), now=0)
    tokens = (Token.use_alias(1),)
    with pytest.raises(LocalProtocolError, match="by value only"):
        pair.client.subscribe(TRACK, Parameters(authorization_tokens=tokens), now=0)


def test_track_status_is_asked_and_answered_with_both_ends_closed(pair):
    properties = Properties.of((0x04, 60_000))
    parameters = Parameters(largest_object=Location(4, 1))

    request_id = pair.client.track_status(TRACK, now=0)
    _, asked = pair.run()
    pair.server.accept(request_id, parameters, properties=properties, now=0)
    told, _ = pair.run()

    assert [type(event) for event in asked] == [TrackStatusReceived]
    assert told == [RequestAccepted(request_id, parameters, properties)]
    assert not pair.client._registry.by_stream
    assert not pair.server._registry.by_stream


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        (Properties.of((0x4000, 1)), RequestErrorCode.UNSUPPORTED_EXTENSION),
        (Properties.decode(bytes.fromhex("0b000000")), RequestErrorCode.MALFORMED_TRACK),
    ],
    ids=["unknown mandatory property", "IMMUTABLE_PROPERTIES twice"],
)
def test_status_of_a_track_that_cannot_be_taken_counts_as_refused(to_client, properties, code):
    peer = to_client()
    peer.session.track_status(TRACK, now=0)

    (event,) = peer.say(0, RequestOk(properties=properties), fin=True)

    assert isinstance(event, RequestRejected)
    assert event.code == code
    assert not peer.session.is_active(0)


def test_reserved_track_status_is_refused(to_server):
    peer = to_server()
    track = FullTrackName(TrackNamespace((b".session",)), b"")

    assert peer.say(0, TrackStatus(request_id=0, track=track)) == []


def test_only_track_status_is_answered_with_properties(pair):
    request_id = pair.client.publish_namespace(NAMESPACE, now=0)
    pair.run()

    with pytest.raises(LocalProtocolError):
        pair.server.accept(request_id, properties=Properties.of((4, 1)), now=0)


def test_request_ok_with_properties_is_a_violation_unless_they_belong(to_client):
    properties = Properties.of((4, 1))
    strict, lenient = to_client(), to_client()
    strict.session.publish_namespace(NAMESPACE, now=0)
    lenient.session.subscribe_tracks(NAMESPACE, now=0)
    strict.session.take_actions()

    strict.say(0, RequestOk(properties=properties))
    lenient.say(0, RequestOk(properties=properties))

    assert closing_code(strict.session) == TerminationCode.PROTOCOL_VIOLATION
    assert not lenient.session.is_closed


def test_redirect_reaches_the_requester(pair):
    redirect = Redirect("moqt://r2/", TRACK)
    request_id = pair.client.subscribe(TRACK, now=0)
    pair.run()

    with pytest.raises(LocalProtocolError):
        pair.server.reject(request_id, 0x34, now=0)
    pair.server.reject(request_id, 0x34, redirect=redirect, now=0)
    events, _ = pair.run()

    assert events == [RequestRejected(request_id, 0x34, "", None, redirect)]


def test_redirect_of_a_client_with_a_uri_is_a_violation(to_server):
    peer = to_server()
    peer.session.subscribe(TRACK, now=0)
    peer.session.take_actions()

    peer.say(1, RequestError(code=0x34, redirect=Redirect("moqt://r2/", TRACK)))

    assert closing_code(peer.session) == TerminationCode.PROTOCOL_VIOLATION


def test_redirect_of_a_namespace_with_a_track_name_is_a_violation(to_client):
    peer = to_client()
    peer.session.publish_namespace(NAMESPACE, now=0)
    peer.session.take_actions()

    peer.say(0, RequestError(code=0x34, redirect=Redirect("", TRACK)))

    assert closing_code(peer.session) == TerminationCode.PROTOCOL_VIOLATION


def test_goaway_for_one_request_is_reported_once(to_client):
    peer = to_client()
    peer.session.subscribe(TRACK, now=0)
    peer.session.take_actions()

    events = peer.say(0, Goaway(uri="moqt://r2/", timeout_ms=1500))
    peer.say(0, Goaway())

    assert events == [GoawayReceived("moqt://r2/", 1.5, 0)]
    assert closing_code(peer.session) == TerminationCode.PROTOCOL_VIOLATION


def test_goaway_of_ours_for_one_request_is_sent_once_and_resets_it_in_the_end(pair):
    request_id = pair.client.subscribe(TRACK, now=0)
    pair.run()
    pair.server.accept_subscribe(request_id, now=0)
    header = SubgroupHeader(track_alias=0, group_id=0, subgroup_id=0, publisher_priority=0)
    stream_id = pair.server.open_subgroup(request_id, header, priority=4, now=0)
    pair.server.goaway("moqt://r2/", 5.0, request_id=request_id, now=0)
    with pytest.raises(LocalProtocolError):
        pair.server.goaway(request_id=request_id, now=0)

    events, _ = pair.run()
    assert GoawayReceived("moqt://r2/", 5.0, request_id) in events
    other = pair.client.subscribe(TRACK, now=0)
    _, asked = pair.run()
    assert [event.request_id for event in asked] == [other]

    assert pair.pass_time(4.9) == ([], [])
    events, others = pair.pass_time(0.2)

    assert RequestCancelled(request_id, 4) in events
    assert others == [RequestCancelled(request_id, 4)]
    assert ResetStream(stream_id, 4) in pair.server_actions
    assert not pair.server.is_closed


def test_goaway_for_a_request_that_moves_in_time_resets_nothing(pair):
    request_id = pair.client.subscribe(TRACK, now=0)
    pair.run()
    pair.server.goaway(timeout=5.0, request_id=request_id, now=0)
    pair.run()

    pair.client.cancel(request_id, now=0)
    pair.run()

    assert pair.pass_time(6) == ([], [])


def test_goaway_of_a_client_for_one_request_names_no_uri(pair):
    request_id = pair.client.subscribe(TRACK, now=0)

    with pytest.raises(LocalProtocolError):
        pair.client.goaway("moqt://r2/", request_id=request_id, now=0)


def test_stop_sending_cancels_a_request_of_the_peer(to_server):
    peer = to_server()
    peer.say(0, subscribe(0), fin=True)

    peer.session.receive_stop_sending(0, 1, now=0)

    assert peer.session.take_events() == [RequestCancelled(0, 1)]
    assert peer.session.take_actions() == [ResetStream(0, 1)]
    assert not peer.session._registry.by_stream


def test_stop_sending_that_overtakes_its_request_cancels_it(to_server):
    peer = to_server()

    peer.session.receive_stop_sending(0, 5, now=0)
    events = peer.say(0, subscribe(0), fin=True)

    assert [type(event) for event in events] == [SubscribeReceived, RequestCancelled]
    assert peer.session.take_actions() == [ResetStream(0, 5), StopSending(0, 5)]
    assert not peer.session._registry.by_stream


def test_memory_of_early_stop_sending_is_bounded(to_server):
    peer = to_server(max_tombstones=1)

    peer.session.receive_stop_sending(0, 5, now=0)
    peer.session.receive_stop_sending(4, 5, now=0)

    assert len(peer.say(0, subscribe(0))) == 1
    assert len(peer.say(4, subscribe(2))) == 2


def test_reset_and_stop_sending_of_one_request_are_one_cancellation(to_server):
    peer = to_server()
    peer.say(0, subscribe(0))

    peer.session.receive_stop_sending(0, 1, now=0)
    peer.session.receive_reset(0, 1, now=0)

    assert peer.session.take_events() == [RequestCancelled(0, 1)]
    assert peer.session.take_actions() == [ResetStream(0, 1), StopSending(0, 1)]


def test_what_was_under_way_when_we_cancelled_is_dropped(to_client):
    peer = to_client()
    peer.session.subscribe(TRACK, now=0)
    peer.session.cancel(0, now=0)
    peer.session.take_actions()

    events = peer.say(0, b"\x04\x00") + peer.say(0, b"anything", fin=True)

    assert events == []
    assert not peer.session.is_closed
    assert not peer.session._registry.by_stream


def test_messages_after_a_cancelling_one_are_dropped(to_client):
    peer = to_client()
    peer.session.subscribe(TRACK, now=0)
    bad = Properties.of((0x4000, 1))
    (event,) = peer.say(0, SubscribeOk(track_alias=1, properties=bad), RequestOk(), RequestOk())

    assert isinstance(event, RequestRejected)
    assert not peer.session.is_closed


def test_late_input_on_forgotten_streams_is_ignored(pair):
    request_id = pair.client.track_status(TRACK, now=0)
    pair.run()
    pair.server.accept(request_id, now=0)
    pair.run()

    pair.client.receive_stream(0, b"late", True, now=0)
    pair.client.receive_reset(0, 0, now=0)
    pair.client.receive_stop_sending(0, 0, now=0)
    pair.client.receive_stop_sending(2 + 4 * 9, 0, now=0)
    pair.client.receive_reset(3 + 4 * 9, 0, now=0)

    assert pair.run() == ([], [])
    assert not pair.client.is_closed


def test_stream_reset_before_its_first_message_is_closed_on_our_side(to_server):
    peer = to_server()
    peer.say(0, subscribe(0).encode()[:4])

    peer.session.receive_reset(0, 1, now=0)

    assert peer.session.take_actions() == [ResetStream(0, 1)]
    assert peer.session.next_deadline() is None


def test_unfinished_message_times_out_from_its_first_octet(to_server):
    peer = to_server()
    encoded = subscribe(0).encode()
    peer.say(0, encoded[:2])
    peer.now = 9
    peer.say(0, encoded[2:4])

    peer.session.advance(now=10)

    assert closing_code(peer.session) == TerminationCode.CONTROL_MESSAGE_TIMEOUT


def test_message_that_is_finished_in_time_does_not_time_out(to_server):
    peer = to_server()
    encoded = subscribe(0).encode()
    peer.say(0, encoded[:2])

    events = peer.say(0, encoded[2:])

    assert isinstance(events[0], SubscribeReceived)
    assert peer.session.next_deadline() is None


def test_unknown_requests_are_refused_here(pair):
    with pytest.raises(LocalProtocolError, match="no open request 7"):
        pair.client.cancel(7, now=0)
    with pytest.raises(LocalProtocolError):
        pair.client.open_fetch_stream(7, priority=4, now=0)
    assert pair.client.open_streams(7) == frozenset()
    assert pair.client.streams_seen(7) == 0


def test_memory_of_ended_requests_is_bounded(make_pair):
    registry = Registry(max_ended=1)
    pair = make_pair().connect()
    for _ in range(2):
        pair.client.subscribe(TRACK, now=0)
    for request in list(pair.client._registry.by_id.values()):
        registry.add(request)
        registry.retire(request)

    with pytest.raises(LocalProtocolError):
        registry.find(0, or_ended=True)
    with pytest.raises(LocalProtocolError):
        registry.find(2)
    assert registry.find(2, or_ended=True) is None
