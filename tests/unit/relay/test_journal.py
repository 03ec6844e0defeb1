"""What a relay writes down: a line for each event, with fields, and nothing that is secret."""

import logging
from dataclasses import replace

import pytest
from tests.unit.relay.world import NAMESPACE, TRACK, WHOLE, block

from kvcs.cli._output import JsonFormatter
from kvcs.errors import MalformedTrack, RequestErrorCode
from kvcs.moqt.wire.token import Token
from kvcs.names import FullTrackName
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
