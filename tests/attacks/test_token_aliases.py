"""Aliases keep no token alive, hide none, and stay inside the size that was granted."""

import pytest
from tests.attacks.guarded import EXPIRED, NAMESPACE, UNAUTHORIZED, Guarded
from tests.unit.relay.world import TOKEN_CACHE_BYTES, TRACK

from kvcs.c4m import TOKEN_TYPE, Role
from kvcs.errors import TerminationCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.subscribe import Subscribe
from kvcs.moqt.wire.token import Token


class Liar:
    """Speaks bytes to the relay, since our own sessions send tokens by value only."""

    def __init__(self, guarded):
        self.guarded = guarded
        self.client = guarded.stranger
        self.requests = 0

    def subscribe(self, *tokens):
        message = Subscribe(
            request_id=2 * self.requests,
            track=TRACK,
            parameters=Parameters(authorization_tokens=tokens),
        )
        world, session = self.guarded.world, self.client.link.session
        stream_id = 4 * self.requests
        session.receive_stream(stream_id, message.encode(), False, now=world.now)
        self.requests += 1
        before = dict(self.guarded.refused)
        world.settle()
        after = self.guarded.refused
        return {name for name in after if after[name] != before.get(name, 0)}

    @property
    def closed(self):
        found = [event for event in self.client.events if isinstance(event, ev.SessionClosed)]
        return found[0].error.code if found else None


@pytest.fixture
def guarded():
    return Guarded()


@pytest.fixture
def liar(guarded):
    return Liar(guarded)


def register(alias, token):
    return Token.register(alias, token.value, token_type=TOKEN_TYPE)


def test_a_token_under_an_alias_expires_like_any_other(guarded, liar):
    token = guarded.token(Role.CONSUMER, 5.0)

    assert liar.subscribe(register(1, token)) == set()
    assert liar.subscribe(Token.use_alias(1)) == set()
    guarded.world.pass_time(6.0)

    assert liar.subscribe(Token.use_alias(1)) == {EXPIRED.name}
    assert liar.closed is None


def test_an_alias_is_not_given_another_token(guarded, liar):
    bad = guarded.token(Role.PRODUCER)
    assert liar.subscribe(register(1, bad)) == {UNAUTHORIZED.name}

    liar.subscribe(register(1, guarded.token(Role.CONSUMER)))

    assert liar.closed == TerminationCode.DUPLICATE_AUTH_TOKEN_ALIAS


def test_a_token_that_was_deleted_is_gone(guarded, liar):
    liar.subscribe(register(1, guarded.token(Role.CONSUMER)))
    assert liar.subscribe(Token.delete(1)) == {UNAUTHORIZED.name}

    liar.subscribe(Token.use_alias(1))

    assert liar.closed == TerminationCode.UNKNOWN_AUTH_TOKEN_ALIAS


def test_an_alias_of_another_session_is_unknown(guarded, liar):
    member = Liar(guarded)
    member.client = guarded.world.client()
    member.subscribe(register(1, guarded.token(Role.CONSUMER)))

    liar.subscribe(Token.use_alias(1))

    assert liar.closed == TerminationCode.UNKNOWN_AUTH_TOKEN_ALIAS
    assert member.closed is None


def test_tokens_are_stored_within_the_size_that_was_granted(guarded, liar):
    size = len(guarded.token(Role.CONSUMER).value) + 16
    fitting = TOKEN_CACHE_BYTES // size

    for alias in range(fitting):
        token = guarded.token(Role.CONSUMER, 1000.0 + alias)
        assert liar.subscribe(register(alias, token)) == set()
    assert liar.closed is None
    liar.subscribe(register(fitting, guarded.token(Role.CONSUMER, 2000.0)))

    assert liar.closed == TerminationCode.AUTH_TOKEN_CACHE_OVERFLOW
    assert guarded.world.core.discovery.publishers(NAMESPACE)


def test_storing_and_deleting_all_day_stores_nothing(guarded, liar):
    for turn in range(200):
        liar.subscribe(register(turn, guarded.token(Role.CONSUMER, 1000.0 + turn)))
        liar.subscribe(Token.delete(turn))

    assert liar.closed is None
