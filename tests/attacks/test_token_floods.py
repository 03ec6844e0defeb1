"""Tokens without number, and tokens without end: each message costs what a message may cost."""

import pytest
from tests.unit.relay.world import TRACK, Client, Link, World

from kvcs.errors import RequestErrorCode, TerminationCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.session.limits import SessionConfig, SessionLimits, Side
from kvcs.moqt.session.session import Session
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.setup import SetupOptions
from kvcs.moqt.wire.token import Token

LIMITS = SessionLimits()
NEXT = LocationFilter.next_object()
EXCESSIVE_LOAD = RequestErrorCode.EXCESSIVE_LOAD


def some(count, size=2):
    return tuple(Token.use_value(number.to_bytes(size)) for number in range(count))


TOO_MANY = some(LIMITS.max_request_tokens + 1)
TOO_LARGE = some(2, LIMITS.max_request_token_bytes // 2 + 1)
ENOUGH = some(LIMITS.max_request_tokens, LIMITS.max_request_token_bytes // 16)


class Presenting(Client):
    """A client whose SETUP has tokens."""

    def __init__(self, world, tokens):
        self.tokens = tokens
        super().__init__(world)
        world.clients.append(self)
        world.settle()

    def make_sessions(self, world):
        options = SetupOptions(max_filter_ranges=16, authorization_tokens=self.tokens)
        self.session = Session(Side.CLIENT, SessionConfig(options=options))
        self.link = Link(world)
        self.peer = world.core.connect(self.link)


@pytest.fixture
def world():
    world = World()
    world.publisher().add_groups(0)
    return world


def ask(client, tokens):
    return client.send(client.session.track_status, TRACK, Parameters(authorization_tokens=tokens))


def test_tokens_of_one_message_are_compared_by_their_hashes(world, monkeypatch):
    compared = []
    really = Token.__eq__
    monkeypatch.setattr(
        Token, "__eq__", lambda self, other: compared.append(1) or really(self, other)
    )
    client = world.client()

    request_id = ask(client, some(2000))

    assert client.rejection(request_id) == EXCESSIVE_LOAD
    assert len(compared) < 200


@pytest.mark.parametrize("tokens", [TOO_MANY, TOO_LARGE])
def test_a_request_with_too_many_tokens_is_refused_undecided(tokens):
    decided = []
    world = World(authorize=decided.append)
    client = world.client()

    request_id = ask(client, tokens)

    assert client.rejection(request_id) == EXCESSIVE_LOAD
    assert decided == []
    assert not client.link.session.is_closed


def test_a_request_with_as_many_as_there_may_be_is_decided(world):
    client = world.client()

    request_id = ask(client, ENOUGH)

    assert client.of(request_id, ev.RequestAccepted)


@pytest.mark.parametrize("tokens", [TOO_MANY, TOO_LARGE])
def test_an_update_with_too_many_tokens_ends_its_subscription(world, tokens):
    client = world.client()
    request_id = client.subscribe(Parameters(location_filter=NEXT))

    client.send(client.session.update, request_id, Parameters(authorization_tokens=tokens))

    assert client.one(request_id, ev.UpdateRejected).code == EXCESSIVE_LOAD
    assert client.of(request_id, ev.PublishDoneReceived)
    assert not client.link.session.is_closed


@pytest.mark.parametrize("tokens", [TOO_MANY, TOO_LARGE])
def test_a_setup_with_too_many_tokens_ends_its_session(world, tokens):
    client = Presenting(world, tokens)

    (closed,) = [event for event in client.events if isinstance(event, ev.SessionClosed)]
    assert closed.error.code == TerminationCode.INTERNAL_ERROR
    assert client.link.session.is_closed
    assert not Presenting(world, ENOUGH).session.is_closed
