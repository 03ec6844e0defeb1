"""A good token is used where, when or for what it is not good."""

import pytest
from tests.attacks.guarded import EXPIRED, OTHER_SCOPE, READS, UNAUTHORIZED, WRITES, Guarded

from kvcs.c4m import Role
from kvcs.moqt.session import events as ev


@pytest.mark.parametrize("kind", [*READS, *WRITES])
def test_a_token_of_another_scope_opens_nothing(kind):
    guarded = Guarded()

    assert guarded.code(kind, guarded.token(Role.RELAY, scope=OTHER_SCOPE)) == UNAUTHORIZED
    guarded.assert_untouched()


@pytest.mark.parametrize("kind", [*READS, *WRITES])
def test_an_expired_token_opens_nothing(kind):
    guarded = Guarded()
    token = guarded.token(Role.RELAY, 5.0)
    guarded.world.pass_time(5.0)

    assert guarded.code(kind, token) == EXPIRED
    assert guarded.refused == {"EXPIRED_AUTH_TOKEN": 1}
    guarded.assert_untouched()


@pytest.mark.parametrize("kind", READS)
def test_a_token_that_was_used_before_expires_all_the_same(kind):
    guarded = Guarded()
    token = guarded.token(Role.RELAY, 5.0)
    first = guarded.ask(kind, token)
    assert guarded.stranger.of(first, ev.RequestRejected) == []

    guarded.world.pass_time(5.5)

    assert guarded.code(kind, token, client=guarded.stranger) == EXPIRED


def test_a_token_is_not_good_before_its_time():
    guarded = Guarded()
    token = guarded.token(Role.CONSUMER, not_before=guarded.wall() + 100)

    assert guarded.code("fetch", token) == UNAUTHORIZED


def test_a_token_for_another_relay_opens_nothing():
    guarded = Guarded()

    assert guarded.code("fetch", guarded.token(Role.CONSUMER, audience=("b",))) == UNAUTHORIZED


@pytest.mark.parametrize(("role", "kinds"), [(Role.PRODUCER, READS), (Role.CONSUMER, WRITES)])
def test_a_token_of_one_role_is_none_of_the_other(role, kinds):
    guarded = Guarded()

    assert {guarded.code(kind, guarded.token(role)) for kind in kinds} == {UNAUTHORIZED}
    guarded.assert_untouched()
