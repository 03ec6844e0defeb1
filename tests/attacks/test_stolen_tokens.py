"""A stranger replays a token that it has seen: what it was not made for stays shut.

One that is for one session opens nothing more once its owner has used it. Any other is good for
whoever shows it: the drafts do not say how a proof of possession would travel in MOQT. So a stolen
one serves the thief as it served its owner, until it expires; nothing else may open with it.
"""

import pytest
from tests.attacks.guarded import EXPIRED, OTHER_SCOPE, READS, UNAUTHORIZED, WRITES, Guarded

from kvcs.c4m import TOKEN_TYPE, Role, mint
from kvcs.errors import PublishDoneCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.token import Token

KINDS = (*READS, *WRITES)
ONCE = {"token_id": b"one", "is_for_one_session": True}


def stolen(guarded, role=Role.RELAY, ttl=1000.0, **more):
    """A token that a member has used at this relay."""
    if role is Role.PRODUCER:
        return guarded.publisher.peer.tokens[0]
    token, member = guarded.token(role, ttl, **more), guarded.world.client()
    request_id = guarded.ask("fetch", token, client=member)
    assert member.of(request_id, ev.FetchAccepted)
    return token


def is_served(guarded, kind, token):
    return not guarded.stranger.of(guarded.ask(kind, token), ev.RequestRejected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stolen_token_serves_the_thief_until_it_expires(kind):
    """The limit of tokens, which the documentation names."""
    guarded = Guarded()
    token = stolen(guarded, ttl=5.0)
    assert is_served(guarded, kind, token)
    assert guarded.refused == {}

    guarded.world.pass_time(5.5)

    assert guarded.code(kind, token, client=guarded.world.client()) == EXPIRED
    assert guarded.refused == {"EXPIRED_AUTH_TOKEN": 1}
    assert guarded.stranger.peer.granted == {}
    guarded.assert_untouched()


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_for_one_session_that_was_used_opens_nothing_in_another_one(kind):
    guarded = Guarded()
    token, owner = guarded.token(Role.RELAY, **ONCE), guarded.world.client()
    running = guarded.ask("subscribe", token, client=owner)

    assert guarded.code(kind, token) == UNAUTHORIZED
    assert guarded.refused == {"UNAUTHORIZED": 1}
    guarded.assert_untouched()
    # Its owner goes on with it, and nobody can when the owner is gone.
    assert not owner.of(guarded.ask("fetch", token, client=owner), ev.RequestRejected)
    assert not owner.of(running, ev.PublishDoneReceived)
    owner.lose()
    assert guarded.code(kind, token, client=guarded.world.client()) == UNAUTHORIZED
    guarded.assert_untouched()


def test_a_token_for_one_session_stays_used_when_keys_change_and_when_it_is_wrapped_anew():
    guarded = Guarded()
    claims = guarded.claims(Role.RELAY, **ONCE)
    made = [Token.use_value(mint(claims, key), token_type=TOKEN_TYPE) for key in guarded.keys]
    owner = guarded.world.client()
    assert not owner.of(guarded.ask("fetch", made[0], client=owner), ev.RequestRejected)

    guarded.withdraw(None)

    assert {guarded.code("fetch", token) for token in made} == {UNAUTHORIZED}
    assert not owner.of(guarded.ask("fetch", made[0], client=owner), ev.RequestRejected)


def test_a_token_for_one_session_is_not_used_up_by_what_it_does_not_allow():
    guarded = Guarded()
    token, owner = guarded.token(Role.CONSUMER, **ONCE), guarded.world.client()

    assert guarded.code("publish", token) == UNAUTHORIZED

    assert not owner.of(guarded.ask("fetch", token, client=owner), ev.RequestRejected)


def test_a_token_for_one_session_is_kept_for_another_where_any_other_token_will_do():
    guarded = Guarded()
    lasting = guarded.token(Role.CONSUMER)
    first, second = (
        guarded.token(Role.CONSUMER, **{**ONCE, "token_id": name}) for name in (b"1", b"2")
    )
    one, two, three = (guarded.world.client() for _ in range(3))

    assert not one.of(guarded.ask("fetch", first, lasting, client=one), ev.RequestRejected)
    assert not two.of(guarded.ask("fetch", first, second, client=two), ev.RequestRejected)
    assert not three.of(guarded.ask("fetch", second, client=three), ev.RequestRejected)

    assert guarded.code("fetch", first) == UNAUTHORIZED
    assert guarded.code("fetch", second) == UNAUTHORIZED


@pytest.mark.parametrize("kind", KINDS)
def test_a_stolen_token_of_a_key_that_is_withdrawn_opens_nothing_and_ends_what_runs(kind):
    guarded = Guarded()
    token = stolen(guarded, key=guarded.signer)
    running = guarded.ask("subscribe", token)

    guarded.withdraw(guarded.signer.public)

    done = guarded.stranger.one(running, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.UNAUTHORIZED
    assert guarded.code(kind, token) == UNAUTHORIZED
    assert guarded.refused == guarded.ended == {"UNAUTHORIZED": 1}
    guarded.assert_untouched()


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_that_was_stolen_at_another_relay_opens_nothing(kind):
    guarded = Guarded(audience="relay-b", require_audience=True)

    for audience in [("relay-a",), ("relay-a", "relay-c"), ()]:
        assert guarded.code(kind, guarded.token(Role.RELAY, audience=audience)) == UNAUTHORIZED

    assert guarded.refused == {"UNAUTHORIZED": 3}
    guarded.assert_untouched()
    assert is_served(guarded, kind, stolen(guarded, audience=("relay-a", "relay-b")))


def test_a_token_for_no_relay_in_particular_is_good_at_each_that_requires_no_audience():
    """What `require_audience` is for."""
    token = stolen(Guarded())

    for guarded in (Guarded(), Guarded(audience="relay-b")):
        assert is_served(guarded, "fetch", token)
    assert not is_served(Guarded(audience="relay-b", require_audience=True), "fetch", token)


@pytest.mark.parametrize("rules", [{}, {"audience": "relay-b"}], ids=["nameless", "named"])
def test_a_token_for_another_relay_opens_nothing_where_none_is_required(rules):
    guarded = Guarded(**rules)

    assert guarded.code("fetch", guarded.token(Role.CONSUMER, audience=("a",))) == UNAUTHORIZED
    assert guarded.refused == {"UNAUTHORIZED": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_of_another_scope_opens_nothing(kind):
    guarded = Guarded()

    assert guarded.code(kind, guarded.token(Role.RELAY, scope=OTHER_SCOPE)) == UNAUTHORIZED
    assert guarded.refused == {"UNAUTHORIZED": 1}
    guarded.assert_untouched()


@pytest.mark.parametrize(("role", "kinds"), [(Role.PRODUCER, READS), (Role.CONSUMER, WRITES)])
def test_a_stolen_token_of_one_role_is_none_of_the_other(role, kinds):
    guarded = Guarded()
    token = stolen(guarded, role)

    assert {guarded.code(kind, token) for kind in kinds} == {UNAUTHORIZED}
    assert guarded.refused == {"UNAUTHORIZED": len(kinds)}
    guarded.assert_untouched()


@pytest.mark.parametrize("kind", KINDS)
def test_an_expired_token_opens_nothing(kind):
    guarded = Guarded()
    token = guarded.token(Role.RELAY, 5.0)
    guarded.world.pass_time(5.0)

    assert guarded.code(kind, token) == EXPIRED
    assert guarded.refused == {"EXPIRED_AUTH_TOKEN": 1}
    guarded.assert_untouched()


def test_a_token_is_not_good_before_its_time():
    guarded = Guarded()
    token = guarded.token(Role.CONSUMER, not_before=guarded.wall() + 100)

    assert guarded.code("fetch", token) == UNAUTHORIZED
    assert guarded.refused == {"UNAUTHORIZED": 1}
