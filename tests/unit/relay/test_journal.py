"""What a relay writes down: a line for each event, with fields, and nothing that is secret."""

import logging
from dataclasses import replace

import pytest
from tests.unit.relay.world import NAMESPACE, TRACK, WHOLE, block

from kvcs.cli._output import JsonFormatter
from kvcs.errors import MalformedTrack, RequestErrorCode
from kvcs.moqt.session.events import RequestRejected
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.token import Token
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.journal import MAX_LINES, Journal
from kvcs.relay.refusal import Refusal

SECRET = b"let-me-in-5c5c"


@pytest.fixture
def lines(caplog):
    """The fields of all lines about an event."""
    caplog.set_level(logging.DEBUG, "kvcs")

    def found(event):
        records = [r for r in caplog.records if getattr(r, "event", None) == event]
        return [
            {name: getattr(r, name) for name in JsonFormatter.FIELDS if hasattr(r, name)}
            for r in records
        ]

    return found


def test_session_is_noted_when_its_setup_arrives(world, lines):
    world.client()

    assert lines("session-opened") == [
        {"event": "session-opened", "session": 1, "peer": "192.0.2.1:1"}
    ]


def test_refused_request_is_noted_with_what_was_asked(make_world, lines):
    world = make_world(authorize=lambda _: RequestErrorCode.UNAUTHORIZED)
    world.client().subscribe()

    (line,) = lines("request-refused")
    assert line == {
        "event": "request-refused",
        "session": 1,
        "peer": "192.0.2.1:1",
        "code": "UNAUTHORIZED",
        "track": TRACK.format(),
    }


def test_answer_that_something_is_not_there_is_no_refusal(world, lines, caplog):
    caplog.set_level(logging.DEBUG)
    world.client().subscribe()

    assert not lines("request-refused")
    (line,) = lines("request-answered")
    assert (line["code"], line["track"]) == ("DOES_NOT_EXIST", TRACK.format())
    (record,) = [r for r in caplog.records if getattr(r, "event", "") == "request-answered"]
    assert record.levelno == logging.DEBUG
    assert world.statistics.requests_not_found == 1
    assert not world.statistics.requests_refused


def test_refusal_of_a_policy_is_noted_without_its_token(make_world, lines, caplog):
    world = make_world(authorize=lambda _: RequestErrorCode.UNAUTHORIZED)
    token = Token(value=SECRET)

    world.client().subscribe(replace(WHOLE, authorization_tokens=(token,)))
    world.client().announce()

    assert [(line["code"], line["track"]) for line in lines("request-refused")] == [
        ("UNAUTHORIZED", TRACK.format()),
        ("UNAUTHORIZED", NAMESPACE.format()),
    ]
    shown = [JsonFormatter().format(record) for record in caplog.records]
    assert shown
    assert not [line for line in shown if SECRET.decode() in line]
    assert not [line for line in shown if SECRET.hex() in line]


def refusing(text):
    """A policy that says why it refuses."""

    def policy(access):
        if access.reasons is not None:
            access.reasons.add(text)
        return RequestErrorCode.UNAUTHORIZED

    return policy


def test_the_log_says_why_and_the_peer_is_not_told(make_world, lines, caplog):
    client = make_world(authorize=refusing("a token has expired")).client()

    request_id = client.subscribe()

    (line,) = lines("request-refused")
    assert line["reason"] == "a token has expired"
    (record,) = [r for r in caplog.records if getattr(r, "event", "") == "request-refused"]
    assert record.getMessage().endswith("refused: UNAUTHORIZED (a token has expired)")
    rejected = client.one(request_id, RequestRejected)
    assert (rejected.code, rejected.reason) == (RequestErrorCode.UNAUTHORIZED, "")


def test_what_a_policy_says_stays_one_line(make_world, lines):
    make_world(authorize=refusing("a\n\x1b[31mb" + "c" * 1000)).client().subscribe()

    (line,) = lines("request-refused")
    assert line["reason"] == "a??[31mb" + "c" * 492


def test_the_log_says_why_a_grant_has_ended(make_world, lines):
    allowed = []

    def policy(access):
        return None if allowed else refusing("a token has expired")(access)

    allowed.append(True)
    world = make_world(authorize=policy)
    world.client().announce()
    allowed.clear()
    world.core.admission.review.everything(now=world.now)

    (line,) = lines("grant-ended")
    assert (line["code"], line["reason"]) == ("UNAUTHORIZED", "a token has expired")


@pytest.mark.parametrize(
    "change",
    [
        {"authorization_tokens": (Token(value=SECRET),)},
        {"track_namespace_prefix": TrackNamespace((b"elsewhere",))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_log_says_why_an_update_is_refused(make_world, lines, change):
    allowed = [True]

    def policy(access):
        return None if allowed else refusing("a token is for other scopes")(access)

    client = make_world(authorize=policy).client()
    request_id = client.send(client.session.subscribe_namespace, NAMESPACE)
    allowed.clear()
    client.send(client.session.update, request_id, Parameters(**change))

    (line,) = lines("request-refused")
    assert (line["code"], line["reason"]) == ("UNAUTHORIZED", "a token is for other scopes")


def test_track_is_noted_when_it_has_ended(world, lines):
    publisher, subscriber = world.client(), world.client()
    publisher.announce()
    publisher.add_groups(0)
    subscriber.subscribe()
    publisher.end_track(1)

    (line,) = lines("track-ended")
    assert (line["session"], line["code"]) == (publisher.peer.id, "TRACK_ENDED")
    assert line["track"] == TRACK.format()


def test_track_that_contradicts_itself_is_a_warning(world, lines, caplog):
    publisher, subscriber = world.client(), world.client()
    publisher.announce()
    subscriber.subscribe()
    publisher.add(block(0, 0))
    world.core._tracks[TRACK].supply.malformed(
        publisher.peer, MalformedTrack("an Object twice"), now=world.now
    )

    (line,) = lines("track-malformed")
    assert (line["code"], line["track"]) == ("MALFORMED_TRACK", TRACK.format())
    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "an Object twice" in record.getMessage()


def test_flood_of_refusals_is_cut_and_counted(world, lines, caplog):
    peer, journal = world.client().peer, Journal()
    refusal = Refusal(RequestErrorCode.EXCESSIVE_LOAD, "")
    for _ in range(MAX_LINES + 50):
        journal.request_refused(peer, None, refusal, now=100.0)
    assert len(lines("request-refused")) == MAX_LINES

    journal.request_refused(peer, None, refusal, now=111.0)

    assert len(lines("request-refused")) == MAX_LINES + 1
    assert "(50 more lines left out)" in caplog.records[-1].getMessage()
    journal.request_refused(peer, None, refusal, now=111.0)
    assert "left out" not in caplog.records[-1].getMessage()


def test_unknown_code_is_shown_as_a_number(world, lines):
    journal, peer = Journal(), world.client().peer

    journal.track_ended(peer, FullTrackName(NAMESPACE, b""), 0x7F, 0)

    assert lines("track-ended")[0]["code"] == "0x7f"


def test_quiet_log_costs_no_text(world, monkeypatch):
    logger = logging.getLogger("kvcs.relay")
    monkeypatch.setattr(logger, "level", logging.ERROR)
    journal = Journal()

    journal.request_refused(
        world.client().peer, None, Refusal(RequestErrorCode.TIMEOUT, ""), now=0.0
    )

    assert journal._lines == 0
