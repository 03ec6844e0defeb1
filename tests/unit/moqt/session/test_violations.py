"""The receiver's check-list of MOQT: what a peer may not do, and the code it gets."""

import pytest

from kvcs.errors import RemoteProtocolError, TerminationCode
from kvcs.moqt.session.actions import CloseSession
from kvcs.moqt.session.events import SessionClosed
from kvcs.moqt.wire.fetch import FetchOk
from kvcs.moqt.wire.publish import PublishDone, PublishStateNotify
from kvcs.moqt.wire.request import RequestOk, RequestUpdate
from kvcs.moqt.wire.setup import Setup, SetupOptions
from kvcs.moqt.wire.subscribe import Subscribe, SubscribeOk
from kvcs.moqt.wire.track_status import TrackStatus
from kvcs.names import FullTrackName, Location, TrackNamespace

PV = TerminationCode.PROTOCOL_VIOLATION
TRACK = FullTrackName(TrackNamespace((b"kvcs",)), b"t")
NAME = TRACK.encode()


def frame(message_type, *parts):
    body = b"".join(parts)
    return message_type.to_bytes() + len(body).to_bytes(2) + body


def subscribe_with(parameters):
    """SUBSCRIBE with hand-written parameters."""
    return frame(0x03, b"\x00", NAME, bytes.fromhex(parameters))


# Stream of a raw client, and what it says on it in front of a server.
FROM_CLIENT = {
    "message longer than its fields": (0, frame(0x03, b"\x00", NAME, b"\x00", b"x")),
    "message shorter than its fields": (0, frame(0x03, b"\x00", NAME)),
    "unknown message type": (0, frame(0x01)),
    "message on a new stream that is no request": (0, PublishDone(status_code=0, stream_count=0)),
    "SETUP on a request stream": (0, Setup(SetupOptions())),
    "unknown stream type": (6, b"\x01"),
    "reserved subgroup type": (6, b"\x16\x00\x00\x00"),
    "unknown parameter": (0, subscribe_with("01 7f")),
    "parameter of another message": (0, subscribe_with("01 09 00 00")),
    "repeated parameter": (0, subscribe_with("02 20 01 00 01")),
    "parameter type above 2^64-1": (0, subscribe_with("02 20 01 ffffffffffffffffff")),
    "FORWARD 2": (0, subscribe_with("01 10 02")),
    "GROUP_ORDER 0": (0, subscribe_with("01 22 00")),
    "GROUP_ORDER 3": (0, subscribe_with("01 22 03")),
    "INCLUDE_PROPERTIES 2": (0, subscribe_with("01 35 02")),
    "LOCATION_FILTER type 6": (0, subscribe_with("01 21 06")),
    "end Group above 2^64-1": (0, subscribe_with("01 21 03 ffffffffffffffffff 00 01")),
    "range filter that is cut off": (0, subscribe_with("01 26 02 00 80")),
    "namespace of 33 fields": (0, frame(0x03, b"\x00", b"\x21", b"\x01a" * 33, b"\x00\x00")),
    "empty namespace field": (0, frame(0x03, b"\x00", b"\x01\x00", b"\x00\x00")),
    "namespace above 4,096 octets": (0, frame(0x03, b"\x00", b"\x01\x90\x01", bytes(4097))),
    "reason above 1,024 octets": (0, frame(0x05, b"\x00\x00\x84\x01", bytes(1025))),
    "GOAWAY URI above 8,192 octets": (2, frame(0x10, b"\xa0\x01", bytes(8193), b"\x00")),
}

SUBSCRIBE = Subscribe(request_id=0, track=TRACK)

# What a raw client says on stream 0 behind a legal beginning.
AFTER = {
    "second request on one stream": (SUBSCRIBE, SUBSCRIBE),
    "answer from the requester": (SUBSCRIBE, SubscribeOk(track_alias=1)),
    "PUBLISH_STATE_NOTIFY from a subscriber": (SUBSCRIBE, PublishStateNotify()),
    "PUBLISH_DONE from a subscriber": (SUBSCRIBE, PublishDone(status_code=0, stream_count=0)),
    "REQUEST_UPDATE on TRACK_STATUS": (
        TrackStatus(request_id=0, track=TRACK),
        RequestUpdate(request_id=2),
    ),
}

# What a raw server says on stream 0 in answer to the SUBSCRIBE of a client.
ANSWERS = {
    "second SUBSCRIBE_OK": (SubscribeOk(track_alias=1), SubscribeOk(track_alias=1)),
    "REQUEST_OK to SUBSCRIBE": (RequestOk(),),
    "FETCH_OK to SUBSCRIBE": (FetchOk(end_of_track=False, end_location=Location(0, 0)),),
    "REQUEST_UPDATE of the answering side": (RequestUpdate(request_id=1),),
    "PUBLISH_DONE before SUBSCRIBE_OK": (PublishDone(status_code=0, stream_count=0),),
    "DYNAMIC_GROUPS 2": (frame(0x04, b"\x01\x00", bytes.fromhex("30 02")),),
    "DEFAULT_PUBLISHER_GROUP_ORDER 3": (frame(0x04, b"\x01\x00", bytes.fromhex("22 03")),),
    "property above 65,535 octets": (
        frame(0x04, b"\x01\x00", bytes.fromhex("0b c10000"), bytes(60_000)),
    ),
}

# Fetch streams and Subgroup streams of a raw server, behind FETCH 0 and Track Alias 1.
DATA = {
    "unknown status": "500101 05 00 00 07",
    "status with properties": "510101 05 00 02 3c01 00 03",
    "Object ID above 2^64-1": "500101 05 ffffffffffffffffff 01 61 00 01 61",
    "fetch record without a Group": "0502 00 01 61",
    "fetch record without a priority": "0502 0c 00 00 01 61",
    "fetch flags 128": "0502 8080 00 00",
    "second fetch record at the same Location": "0502 1c 00 00 05 01 61 04 00 01 61",
}

DATAGRAMS = {
    "unknown type": "10 01 00 00 05",
    "status with end of Group": "22 01 00 00 05 03",
    "cut off": "00 01 00",
    "empty properties": "01 01 00 00 05 00 61",
}


def check(session, code):
    (action,) = session.take_actions()
    (event,) = session.take_events()
    assert isinstance(action, CloseSession)
    assert action.code == code
    assert isinstance(event, SessionClosed)
    assert isinstance(event.error, RemoteProtocolError)
    assert session.is_closed


@pytest.mark.parametrize(("stream_id", "data"), FROM_CLIENT.values(), ids=FROM_CLIENT)
def test_violation_closes_the_session(to_server, stream_id, data):
    session = to_server().session
    encoded = data if isinstance(data, bytes) else data.encode()

    session.receive_stream(stream_id, encoded, False, now=0)

    check(session, PV)


@pytest.mark.parametrize("messages", AFTER.values(), ids=AFTER)
def test_message_out_of_place_closes_the_session(to_server, messages):
    session = to_server().session

    encoded = b"".join(message.encode() for message in messages)
    session.receive_stream(0, encoded, False, now=0)

    check(session, PV)


@pytest.mark.parametrize("messages", ANSWERS.values(), ids=ANSWERS)
def test_illegal_answer_closes_the_session(to_client, messages):
    session = to_client().session
    session.subscribe(TRACK, now=0)

    encoded = b"".join(m if isinstance(m, bytes) else m.encode() for m in messages)
    session.receive_stream(0, encoded, False, now=0)

    check(session, PV)


def test_subscribe_ok_to_a_fetch_closes_the_session(to_client):
    session = to_client().session
    session.fetch(TRACK, now=0)

    session.receive_stream(0, SubscribeOk(track_alias=1).encode(), False, now=0)

    check(session, PV)


@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
def test_illegal_data_closes_the_session(to_client, data):
    peer = to_client()
    peer.session.subscribe(TRACK, now=0)
    peer.session.fetch(TRACK, now=0)
    peer.say(0, SubscribeOk(track_alias=1))

    peer.session.receive_stream(7, bytes.fromhex(data), False, now=0)

    check(peer.session, PV)


@pytest.mark.parametrize("data", DATAGRAMS.values(), ids=DATAGRAMS)
def test_illegal_datagram_closes_the_session(to_client, data):
    session = to_client().session

    session.receive_datagram(bytes.fromhex(data), now=0)

    check(session, PV)


@pytest.mark.parametrize("data", [b"", b"\x03\x00"])
def test_request_stream_that_ends_too_early_closes_the_session(to_server, data):
    session = to_server().session

    session.receive_stream(0, data, True, now=0)

    check(session, PV)


def test_violation_discards_what_came_before_it_and_what_was_to_be_sent(to_server):
    peer = to_server()
    peer.session.publish_namespace(TRACK.namespace, now=0)

    encoded = Subscribe(request_id=0, track=TRACK).encode() + frame(0x01)
    peer.session.receive_stream(0, encoded, False, now=0)

    check(peer.session, PV)
    peer.session.receive_stream(4, encoded, False, now=0)
    assert peer.session.take_events() == []
