"""A parent that does not trust this relay: what is here is served, and the operator is told."""

import logging
from dataclasses import replace

import pytest
from tests.unit.relay.kin import Parent
from tests.unit.relay.world import BLOCKS, TRACK, WHOLE, whole

from kvcs.errors import RequestErrorCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.names import FullTrackName
from kvcs.relay.parent_refusals import SHOWN_SECONDS
from kvcs.relay.refusal import UNTRUSTED

ALL = LocationFilter.absolute_start(0, 0)
KINDS = (ev.SubscribeReceived, ev.FetchReceived, ev.TrackStatusReceived)
EXPIRED = RequestErrorCode.EXPIRED_AUTH_TOKEN


def refusing_parent(world, code=EXPIRED):
    parent = Parent(world)
    parent.refusing = {kind: {"code": code} for kind in KINDS}
    return parent


def warnings_in(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


@pytest.mark.parametrize("code", sorted(UNTRUSTED))
def test_such_a_parent_is_as_good_as_none_to_clients(world, code):
    refusing_parent(world, code)
    consumer = world.client()
    asked = (
        consumer.subscribe(),
        consumer.fetch(ALL),
        consumer.send(consumer.session.track_status, TRACK),
    )

    rejections = [consumer.one(request_id, ev.RequestRejected) for request_id in asked]

    assert {r.code for r in rejections} == {RequestErrorCode.DOES_NOT_EXIST}
    assert {r.reason for r in rejections} == {"no publisher"}


def test_what_is_kept_here_is_served(world):
    refusing_parent(world)
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0, 1)
    publisher.end_track(2)
    consumer.fetch(ALL)
    publisher.lose()

    late = world.client()
    request_id = late.fetch(ALL)

    assert late.objects(request_id, fetched=True) == whole(2)
    assert late.rejection(late.subscribe()) is RequestErrorCode.DOES_NOT_EXIST


def test_what_a_publisher_here_lacks_does_not_exist(world):
    refusing_parent(world)
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0)
    other = FullTrackName(TRACK.namespace, b"manifest.cose")

    assert consumer.rejection(consumer.subscribe(track=other)) is RequestErrorCode.DOES_NOT_EXIST
    assert len(consumer.objects(consumer.fetch(ALL), fetched=True)) == BLOCKS


def test_the_operator_is_told_once_a_minute_and_each_time_by_a_counter(world, caplog):
    caplog.set_level(logging.INFO, "kvcs.relay")
    refusals = world.core.parent_refusals
    assert refusals.error(now=world.now) == ""
    refusing_parent(world)
    consumer = world.client()

    first = [consumer.subscribe() for _ in range(3)]
    told = len(warnings_in(caplog))
    counted = world.statistics.upstream_refused["EXPIRED_AUTH_TOKEN"]
    error = refusals.error(now=world.now)
    later = refusals.error(now=world.now + SHOWN_SECONDS)
    world.pass_time(SHOWN_SECONDS)
    consumer.subscribe()

    assert len(first) == 3
    assert told == 1
    assert "refuses what this relay asks for: EXPIRED_AUTH_TOKEN" in warnings_in(caplog)[0]
    assert counted >= 1
    assert error == "it refuses requests of this relay: EXPIRED_AUTH_TOKEN"
    assert later == ""
    assert len(warnings_in(caplog)) == 2


def test_refusals_of_other_kinds_and_of_publishers_are_not_that(world, caplog):
    refusing_parent(world, RequestErrorCode.DOES_NOT_EXIST)
    publisher, consumer = world.publisher(), world.client()
    publisher.refusing[ev.SubscribeReceived] = {"code": RequestErrorCode.UNAUTHORIZED}
    consumer.subscribe()

    assert world.statistics.upstream_refused == {}
    assert world.core.parent_refusals.error(now=world.now) == ""
    assert warnings_in(caplog) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "code",
    [RequestErrorCode.EXCESSIVE_LOAD, RequestErrorCode.TIMEOUT, RequestErrorCode.NOT_SUPPORTED],
)
def test_what_a_publisher_said_is_told_and_not_what_such_a_parent_lacks(world, kind, code):
    refusing_parent(world)
    publisher, consumer = world.publisher(), world.client()
    publisher.refusing = {each: {"code": code} for each in KINDS}
    asked = {
        ev.SubscribeReceived: consumer.subscribe,
        ev.FetchReceived: lambda: consumer.fetch(ALL),
        ev.TrackStatusReceived: lambda: consumer.send(consumer.session.track_status, TRACK),
    }

    assert consumer.rejection(asked[kind]()) is code


def test_who_waits_is_served_once_the_parent_is_shown_other_tokens(world):
    parent = refusing_parent(world)
    consumer = world.client()
    waiting = consumer.subscribe(replace(WHOLE, rendezvous_timeout_ms=60_000))
    assert consumer.of(waiting, ev.RequestRejected) == []

    parent.refusing.clear()
    parent.add_groups(0)
    world.core.tokens_replaced(now=world.now)
    world.settle()

    assert consumer.one(waiting, ev.SubscribeAccepted)
    assert len(parent.active(ev.SubscribeReceived)) == 1


def test_a_new_parent_is_not_blamed_for_the_one_before(world):
    parent = refusing_parent(world)
    consumer = world.client()
    consumer.subscribe()
    blamed = world.core.parent_refusals.error(now=world.now)
    parent.lose()
    Parent(world)

    assert (bool(blamed), world.core.parent_refusals.error(now=world.now)) == (True, "")
