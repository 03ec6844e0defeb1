"""Manifests that list no segment: whoever can publish nothing more is not waited for.

A publication that runs may list its first segment later, and that is waited for; one that has
ended, or whose publisher is gone, gets its verdict at once.
"""

import asyncio
from dataclasses import replace

import pytest
from tests.attacks.liar import Copy, Liar, LiveLiar, retrieve

from kvcs.client.manifest_track import ManifestTrack
from kvcs.errors import (
    LocalProtocolError,
    ManifestError,
    PublishDoneCode,
    RequestTimedOut,
    TerminationCode,
    TransportError,
)
from kvcs.kv import MANIFEST, parse_manifest
from kvcs.moqt.session import events as ev
from kvcs.testing import run

TIMEOUT = 300.0


def emptied(*, all_versions):
    """A copy whose manifest lists no segment, in any version or in the first one."""
    copy = Copy.genuine()
    versions = copy.tracks[MANIFEST]
    manifest = replace(parse_manifest(versions[0].payload), segments=())
    later = [] if all_versions else versions[1:]
    copy.tracks[MANIFEST] = [versions[0]._replace(payload=manifest.encode()), *later]
    return copy


def running(liar, connection, event, objects):
    """Answer as a publisher that is not done."""
    liar.accept_subscribe(connection, event, max(obj.location for obj in objects))
    liar.fill(connection, event, objects)


def lost(liar, connection, event, objects):
    """Answer so, and break off the session a little later."""
    running(liar, connection, event, objects)
    loop = asyncio.get_running_loop()
    loop.call_later(1.0, connection.abort, TerminationCode.INTERNAL_ERROR, "")


def gone(liar, connection, event, objects):
    """A relay that has a version, and no publisher any more."""
    del objects
    liar.reject(connection, event)


def ended(code):
    """Answer as a publisher that ends its track in some way."""

    def answer(liar, connection, event, objects):
        running(liar, connection, event, objects)
        liar.done(connection, event, code)

    return answer


@pytest.mark.parametrize(
    "answer",
    [ended(code) for code in (PublishDoneCode.TRACK_ENDED, PublishDoneCode.INTERNAL_ERROR)]
    + [gone],
    ids=["ended", "aborted", "gone"],
)
def test_nothing_is_waited_for_that_can_not_come(answer):
    copy = emptied(all_versions=True)
    liar = Liar(copy).lying(ev.SubscribeReceived, answer, (MANIFEST,))

    outcome = run(retrieve(liar, timeout=TIMEOUT))

    assert isinstance(outcome.error, ManifestError)
    assert f"publication {copy.name.short_id} lists no segment" in str(outcome.error)
    assert outcome.seconds < 10
    assert outcome.refused == {"manifest": 1}


def test_a_session_that_ends_is_the_reason():
    copy = emptied(all_versions=True)
    liar = Liar(copy).lying(ev.SubscribeReceived, lost, (MANIFEST,))

    outcome = run(retrieve(liar, timeout=TIMEOUT))

    assert isinstance(outcome.error, TransportError)
    assert 1 <= outcome.seconds < 2


def test_an_error_while_the_first_segment_is_waited_for_comes_as_it_is(monkeypatch):
    async def leave(_):
        await asyncio.sleep(1.0)
        raise LocalProtocolError("the peer asked this session to leave")

    monkeypatch.setattr(ManifestTrack, "follow", leave)
    liar = Liar(emptied(all_versions=True)).lying(ev.SubscribeReceived, running, (MANIFEST,))

    outcome = run(retrieve(liar, timeout=TIMEOUT))

    assert isinstance(outcome.error, LocalProtocolError)
    assert outcome.seconds < 2


def test_an_error_while_a_publication_is_taken_ends_with_what_there_is(monkeypatch):
    async def leave(_):
        await asyncio.sleep(0.0)
        raise LocalProtocolError("the peer asked this session to leave")

    monkeypatch.setattr(ManifestTrack, "follow", leave)

    outcome = run(retrieve(Liar(Copy.genuine()), timeout=TIMEOUT))

    assert outcome.is_whole
    assert outcome.seconds < 2


def test_a_publication_that_runs_is_waited_for_until_the_deadline():
    copy = emptied(all_versions=True)
    liar = Liar(copy).lying(ev.SubscribeReceived, running, (MANIFEST,))

    outcome = run(retrieve(liar, timeout=TIMEOUT))

    assert isinstance(outcome.error, RequestTimedOut)
    reason = f"publication {copy.name.short_id} lists no segment yet, within 300 s"
    assert reason in str(outcome.error)
    assert outcome.seconds == pytest.approx(TIMEOUT, abs=1)


def test_a_segment_that_is_listed_later_is_taken():
    liar = LiveLiar(emptied(all_versions=False), joined=0, pace=30.0)

    outcome = run(retrieve(liar, timeout=TIMEOUT))

    assert outcome.is_whole
    assert 30 <= outcome.seconds < 31


def test_a_version_that_contradicts_the_first_one_ends_the_wait():
    copy = emptied(all_versions=False)
    other = replace(parse_manifest(copy.tracks[MANIFEST][1].payload), deterministic=True)
    copy.manifest(other.encode(), 1)
    liar = LiveLiar(copy, joined=0, pace=30.0)

    outcome = run(retrieve(liar, timeout=TIMEOUT))

    assert isinstance(outcome.error, ManifestError)
    assert outcome.seconds < 31
