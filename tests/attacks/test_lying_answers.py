"""Peers that answer wrongly, half, or never: every retrieval ends in its deadline.

Each liar keeps to the draft but for one point. A consumer owes its caller a verdict that says
what is missing, or one error; and all genuine bytes, when there is an honest way to get them.
"""

import asyncio

import pytest
from tests.attacks.liar import BLOCKS, LAYERS, TRACKS, Copy, K, Liar, LiveLiar, V, payload, retrieve

from kvcs.client import ConsumerConfig, MissingReason
from kvcs.errors import (
    ManifestError,
    NotAuthentic,
    PublishDoneCode,
    RequestErrorCode,
    RequestFailed,
    RequestTimedOut,
    StreamResetCode,
    TerminationCode,
)
from kvcs.kv import MANIFEST, SIGNED_MANIFEST
from kvcs.moqt.codepoints import RangeMarker
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.request import Redirect
from kvcs.names import FullTrackName, Location, TrackNamespace
from kvcs.testing import run

HUGE = 2**64 - 1
END = Location(LAYERS - 1, BLOCKS)
FETCH, SUBSCRIBE = ev.FetchReceived, ev.SubscribeReceived


def attack(liar, **options):
    return run(retrieve(liar, **options))


def reasons(outcome):
    return {gap.reason for gap in outcome.verdict.missing}


# FETCH.


def test_empty_fetch_says_that_nothing_exists():
    def nothing(liar, connection, event, _):
        liar.accept_fetch(connection, event, END)
        liar.fetch_stream(connection, event.request_id, [])

    outcome = attack(Liar(Copy.genuine()).lying(FETCH, nothing))

    assert reasons(outcome) == {MissingReason.NON_EXISTENT}
    assert outcome.seconds < 10


@pytest.mark.parametrize("end", [Location(0, 0), Location(HUGE, HUGE)])
@pytest.mark.parametrize("end_of_track", [True, False])
def test_wrong_end_of_a_fetch_is_survived(end, end_of_track):
    def lie(liar, connection, event, objects):
        liar.accept_fetch(connection, event, end, end_of_track=end_of_track)
        liar.fetch_stream(connection, event.request_id, objects[: BLOCKS + 1])

    outcome = attack(Liar(Copy.genuine()).lying(FETCH, lie))

    assert outcome.layers == 1
    assert outcome.seconds < 15


def test_objects_outside_of_the_range_are_no_harm():
    """All Objects, whatever was asked for, and some beyond every layer."""
    copy = Copy.genuine()
    for track in TRACKS:
        copy.add(track, LAYERS + 7, 0, b"x")
        copy.add(track, HUGE, HUGE, b"x")

    def everything(liar, connection, event, objects):
        liar.accept_fetch(connection, event, END)
        liar.fetch_stream(connection, event.request_id, objects)

    outcome = attack(Liar(copy).lying(FETCH, everything), layers=None)

    assert outcome.is_whole
    assert outcome.verdict.rejected == {"location": 4}


@pytest.mark.parametrize("marker", RangeMarker)
@pytest.mark.parametrize("location", [END, Location(HUGE, HUGE)])
def test_markers_for_ever_are_asked_a_few_times_only(marker, location):
    def mark(liar, connection, event, _):
        liar.accept_fetch(connection, event, END)
        liar.marker_stream(connection, event.request_id, marker, location)

    liar = Liar(Copy.genuine()).lying(FETCH, mark)
    outcome = attack(liar)

    assert reasons(outcome) == {
        {
            RangeMarker.NON_EXISTENT: MissingReason.NON_EXISTENT,
            RangeMarker.UNKNOWN: MissingReason.UNKNOWN,
            RangeMarker.TIMED_OUT: MissingReason.TIMED_OUT,
        }[marker]
    }
    assert len(liar.asked) < 40


def test_unmarked_gaps_are_asked_for_again():
    """The first answer leaves every second Object out."""

    def skip(liar, connection, event, objects):
        for track in TRACKS:
            liar.lies.pop((FETCH, track), None)
        liar.accept_fetch(connection, event, END)
        liar.fetch_stream(connection, event.request_id, objects[::2])

    outcome = attack(Liar(Copy.genuine()).lying(FETCH, skip))

    assert outcome.verdict is not None
    assert outcome.seconds < 15


@pytest.mark.parametrize("code", [*RequestErrorCode, 0x7777, HUGE])
@pytest.mark.parametrize("kind", [FETCH, SUBSCRIBE])
def test_refusals_of_every_code_end(kind, code):
    def refuse(_liar, connection, event, _):
        elsewhere = Redirect(uri="moqt://elsewhere.example/", track=event.track)
        connection.session.reject(
            event.request_id,
            code,
            reason="x" * 1024,
            retry_interval_ms=HUGE - 1,
            redirect=elsewhere if code == RequestErrorCode.REDIRECT else None,
            now=connection.now,
        )

    outcome = attack((Liar if kind is FETCH else LiveLiar)(Copy.genuine()).lying(kind, refuse))

    assert outcome.verdict is not None or isinstance(outcome.error, RequestFailed)


@pytest.mark.parametrize("objects_sent", range(4))
@pytest.mark.parametrize("code", [StreamResetCode.INTERNAL_ERROR, HUGE])
@pytest.mark.parametrize("is_seen", [True, False])
def test_reset_fetch_streams_are_asked_a_few_times_only(is_seen, code, objects_sent):
    def reset(liar, connection, event, objects):
        liar.accept_fetch(connection, event, END)
        sent = objects[:objects_sent]
        stream_id = liar.fetch_stream(connection, event.request_id, sent, finish=False)
        if is_seen:
            liar.reset_later(connection, stream_id, code)
        else:
            connection.session.reset_stream(stream_id, code, now=connection.now)

    liar = Liar(Copy.genuine()).lying(FETCH, reset)
    outcome = attack(liar, timeout=300.0)

    expected = {MissingReason.RESET, MissingReason.UNKNOWN, MissingReason.STALLED}
    assert reasons(outcome) <= expected
    assert len(liar.asked) < 80


@pytest.mark.parametrize("objects_sent", range(3))
def test_fetch_that_stands_still_ends_with_the_deadline(objects_sent):
    def stand_still(liar, connection, event, objects):
        liar.accept_fetch(connection, event, END)
        sent = objects[:objects_sent]
        liar.fetch_stream(connection, event.request_id, sent, finish=False)

    liar = Liar(Copy.genuine()).lying(FETCH, stand_still)

    assert reasons(attack(liar)) == {MissingReason.DEADLINE}
    assert reasons(attack(liar, idle_timeout=1.0)) == {MissingReason.STALLED}


@pytest.mark.parametrize("kind", [FETCH, SUBSCRIBE])
@pytest.mark.parametrize("tracks", [TRACKS, (MANIFEST,), (SIGNED_MANIFEST,)])
def test_request_that_nobody_answers_ends_with_the_deadline(kind, tracks):
    liar = (Liar if kind is FETCH else LiveLiar)(Copy.genuine())

    outcome = attack(liar.lying(kind, lambda *_: None, tracks))

    assert outcome.is_whole or outcome.verdict is None or reasons(outcome)
    assert outcome.seconds <= 21


# SUBSCRIBE.


def test_fill_that_is_never_opened_is_fetched():
    class NoFill(LiveLiar):
        def fill(self, connection, event, objects):
            pass

    assert attack(NoFill(Copy.genuine())).is_whole


def test_fill_that_is_reset_is_fetched():
    class BrokenFill(LiveLiar):
        def fill(self, connection, event, objects):
            stream_id = self.fetch_stream(connection, event.request_id, objects[:1], finish=False)
            self.reset_later(connection, stream_id)

    assert attack(BrokenFill(Copy.genuine())).is_whole


def test_fill_that_stands_still_is_fetched_in_time():
    class StalledFill(LiveLiar):
        def fill(self, connection, event, objects):
            self.fetch_stream(connection, event.request_id, objects[:1], finish=False)

    outcome = attack(StalledFill(Copy.genuine()))

    assert outcome.is_whole
    assert outcome.seconds <= ConsumerConfig().max_silence + 2


def test_data_without_a_largest_is_taken():
    class Silent(LiveLiar):
        def accept_subscribe(self, connection, event, largest):
            del largest
            super().accept_subscribe(connection, event, None)

    assert attack(Silent(Copy.genuine())).is_whole


@pytest.mark.parametrize(
    "largest", [Location(HUGE, HUGE), Location(HUGE, 0), Location(0, HUGE), Location(2**40, 1)]
)
@pytest.mark.parametrize("ends", ["fill", "nothing", "reset", "refused"])
def test_huge_largest_does_not_make_work(largest, ends):
    """LARGEST_OBJECT far beyond the model, and no fill or FETCH that would bring it."""

    def exaggerate(liar, connection, event, objects):
        liar.accept_subscribe(connection, event, largest)
        if ends == "fill":
            liar.fill(connection, event, objects)

    def fail(liar, connection, event, _):
        if ends == "refused":
            liar.reject(connection, event)
            return
        liar.accept_fetch(connection, event, largest)
        stream_id = liar.fetch_stream(connection, event.request_id, [], finish=ends == "nothing")
        if ends == "reset":
            liar.reset_later(connection, stream_id)

    liar = LiveLiar(Copy.genuine(layers=2)).lying(SUBSCRIBE, exaggerate).lying(FETCH, fail)
    outcome = attack(liar)

    assert outcome.verdict is not None
    assert outcome.layers == (2 if ends == "fill" else 0)


@pytest.mark.parametrize("code", [*PublishDoneCode, 0x7777])
@pytest.mark.parametrize("tracks", [TRACKS, (MANIFEST,)])
def test_publish_done_at_once_is_survived(code, tracks):
    """PUBLISH_DONE of every code before any data: the rest is fetched, or reported."""

    def end(liar, connection, event, _):
        liar.accept_subscribe(connection, event, None)
        liar.done(connection, event, code)

    outcome = attack(LiveLiar(Copy.genuine()).lying(SUBSCRIBE, end, tracks))

    assert outcome.verdict is not None or isinstance(outcome.error, ManifestError)
    assert outcome.seconds < 21


@pytest.mark.parametrize("stream_count", [0, 1, 7, 2**62, HUGE])
def test_wrong_stream_count_is_survived(stream_count):
    class Miscounting(LiveLiar):
        def done(self, connection, event, code=PublishDoneCode.TRACK_ENDED):
            request = connection.session._registry.by_id[event.request_id]
            request.streams_opened = stream_count
            super().done(connection, event, code)

    outcome = attack(Miscounting(Copy.genuine()))

    assert outcome.verdict is not None
    assert outcome.layers == LAYERS


def test_groups_out_of_order_and_statuses_first_are_taken():
    class Backwards(LiveLiar):
        def go_on(self, connection, event, objects):
            super().go_on(connection, event, objects[::-1])

        def subgroup_stream(self, connection, request_id, objects, **options):
            objects = sorted(objects, key=lambda obj: obj.object_id)
            super().subgroup_stream(connection, request_id, objects, **options)

    assert attack(Backwards(Copy.genuine())).is_whole


def test_other_bytes_for_a_verified_object_discard_the_publication():
    class Contradicting(LiveLiar):
        def go_on(self, connection, event, objects):
            if event.track.name == K:
                made, _ = payload(TRACKS[K], 0, 0, b"\0" * 128)
                first = self.copies[0].find(K, 0, 0)
                other = type(first)(
                    group_id=0, object_id=0, subgroup_id=0, publisher_priority=0, payload=made
                )
                self.subgroup_stream(connection, event.request_id, [other])
            super().go_on(connection, event, objects)

    outcome = attack(Contradicting(Copy.genuine()))

    assert outcome.verdict.error is not None
    assert outcome.verdict.verified_prefix_blocks == 0


# The manifest.


def test_manifest_that_never_comes_is_an_error():
    class NoManifest(LiveLiar):
        def fill(self, connection, event, objects):
            if event.track.name != MANIFEST:
                super().fill(connection, event, objects)

        def go_on(self, connection, event, objects):
            pass

    def stand_still(liar, connection, event, _):
        liar.accept_fetch(connection, event, Location(9, 0))

    outcome = attack(NoManifest(Copy.genuine()).lying(FETCH, stand_still, (MANIFEST,)))

    assert isinstance(outcome.error, RequestTimedOut | ManifestError)
    assert outcome.seconds <= 21


def test_signed_publication_is_refused_with_one_sentence():
    copy = Copy.genuine()
    copy.add(SIGNED_MANIFEST, 0, 0, b"\xd2")

    outcome = attack(Liar(copy), discovering=True)

    assert isinstance(outcome.error, NotAuthentic)
    assert outcome.error.reason == "untrusted"
    assert "\n" not in str(outcome.error)
    assert outcome.refused == {"untrusted": 1}


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[" + b"1," * 2_000_000 + b"1]",
        b'{"kvcs":1,"kvcs":1}',
        b"1" * 1_000_000,
        b'{"kvcs":' + b"9" * 100_000 + b"}",
        b'{"kvcs":1e400}',
        b'"' + b"\\ud800" * 100_000 + b'"',
        b"\xff\xfe" * 1000,
        b"",
        b"null",
        b"0" * (2**24 - 1),
        b" " * (2**24 - 1),
    ],
    ids=lambda text: f"{text[:10]!r}*{len(text)}",
)
def test_hostile_json_is_refused(text):
    copy = Copy.genuine()
    for version in range(len(copy.tracks[MANIFEST])):
        copy.manifest(text, version)

    outcome = attack(Liar(copy))

    assert isinstance(outcome.error, ManifestError)
    assert outcome.refused == {"manifest": 1}


# Names.


@pytest.mark.parametrize(
    "suffix",
    [(), (b"x",), (b"p" * 15,), (b"p" * 17,), (b"p" * 16, b"q"), (b"y",) * 20, (b"z" * 3500,)],
    ids=len,
)
def test_announcements_that_are_no_publication_are_ignored(suffix):
    class Babbling(Liar):
        def list_namespaces(self, connection, event):
            super().list_namespaces(connection, event)
            connection.session.announce(
                event.request_id, TrackNamespace(suffix), now=connection.now
            )

    assert attack(Babbling(Copy.genuine()), discovering=True).is_whole


def test_publications_without_number_are_bounded():
    class Flooding(Liar):
        def list_namespaces(self, connection, event):
            for number in range(3000):
                suffix = TrackNamespace((number.to_bytes(16),))
                connection.session.accept(event.request_id, now=connection.now) if not number else 0
                connection.session.announce(event.request_id, suffix, now=connection.now)

    liar = Flooding(Copy.genuine())
    outcome = attack(liar, discovering=True)

    # Each that is noted may be the one that a trusted producer signed, so each is asked for its
    # manifest: both tracks, by SUBSCRIBE and by FETCH.
    assert isinstance(outcome.error, RequestFailed | ManifestError)
    assert len(liar.asked) <= 4 * ConsumerConfig().max_candidates + 10


def test_publication_of_another_model_is_an_error():
    """The name is right, the manifest is that of another Compatibility Descriptor."""
    copy = Copy.genuine()
    for version, obj in enumerate(copy.tracks[MANIFEST]):
        copy.manifest(obj.payload.replace(b'"head_dim":8', b'"head_dim":9'), version)

    outcome = attack(Liar(copy))

    assert outcome.error is not None


# What nobody asked for.


class Unasked(LiveLiar):
    """Does something of its own as soon as it is asked for all data: the values come second."""

    def __init__(self, *copies, act):
        super().__init__(*copies)
        self.act = act

    def answer(self, connection, event, answer):
        super().answer(connection, event, answer)
        if event.track.name == V:
            self.act(connection, event)


def ask_everything(connection, event):
    session, now, track = connection.session, connection.now, event.track
    for number in range(100):
        namespace = TrackNamespace((b"%d" % number,))
        session.subscribe(track, now=now)
        session.fetch(track, now=now)
        session.track_status(track, now=now)
        session.publish(FullTrackName(namespace, b"x"), now=now)
        session.publish_namespace(namespace, now=now)
        session.subscribe_namespace(namespace, now=now)
        session.subscribe_tracks(namespace, now=now)


def send_datagrams(connection, event):
    for number in range(100):
        obj = Object(
            group_id=number % 4,
            object_id=0,
            subgroup_id=None,
            publisher_priority=0,
            payload=b"\0" * 196,
        )
        connection.session.send_datagram(event.request_id, obj, now=connection.now)


def notify(connection, event):
    for largest in (Location(0, 0), Location(HUGE, HUGE)):
        parameters = Parameters(largest_object=largest)
        connection.session.notify_state(event.request_id, parameters, now=connection.now)


def send_away(connection, _):
    connection.session.goaway("moqt://elsewhere.example/", 300.0, now=connection.now)


@pytest.mark.parametrize("act", [ask_everything, send_datagrams, notify, send_away])
def test_what_nobody_asked_for_does_not_disturb(act):
    outcome = attack(Unasked(Copy.genuine(), act=act), timeout=200.0)

    assert outcome.is_whole


# Sessions.


@pytest.mark.parametrize("when", [0.0, 0.001, 0.002, 0.004, 0.006, 0.1, 0.501, 0.503])
@pytest.mark.parametrize("how", ["close", "kill", "cut", "stall", "fatal"])
def test_peer_that_is_lost_ends_the_retrieval(when, how):
    """At every stage: while connecting, asking for the manifest, joining, receiving."""
    liar = LiveLiar(Copy.genuine())

    def lose(connection):
        transport = connection._transport
        match how:
            case "close":
                connection.abort(0, "")
            case "fatal":
                connection.abort(TerminationCode.INTERNAL_ERROR, "")
            case _:
                getattr(transport, how)()

    attach = liar.attach

    def attach_and_lose(connection):
        attach(connection)
        asyncio.get_running_loop().call_later(when, lose, connection)

    liar.attach = attach_and_lose
    outcome = attack(liar)

    assert outcome.error is not None or outcome.verdict is not None
    # A liar that does not listen any more may go on to talk.
    assert not outcome.is_whole or how == "stall"
