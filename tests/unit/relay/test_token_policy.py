from dataclasses import replace

import pytest

from kvcs.c4m import (
    TOKEN_TYPE,
    Action,
    Claims,
    Match,
    Role,
    Scope,
    TokenConfig,
    TokenVerifier,
    mint,
    role_scopes,
)
from kvcs.cose import MacKey, SigningKey
from kvcs.errors import RequestErrorCode
from kvcs.moqt.wire.token import Token
from kvcs.names import TrackNamespace
from kvcs.relay import Access, AccessAction, Grant, RefusalReasons, TokenPolicy
from kvcs.relay.token_policy import (
    MAX_KNOWN_TOKENS,
    MAX_REFUSED_TOKENS,
    MAX_TOKENS,
    RECHECK_INTERVAL,
)

KEY = MacKey(b"issuer", bytes(32))
STRANGER = MacKey(b"issuer", bytes([1]) * 32)
NOW = 1_700_000_000.0
SCOPE = TrackNamespace((b"kvcs-1", b"scope"))
OTHER = TrackNamespace((b"kvcs-1", b"other"))
PUBLICATION = TrackNamespace((*SCOPE.fields, b"compat", b"anchor", b"pub"))
TRACKLESS = {
    AccessAction.PUBLISH_NAMESPACE,
    AccessAction.SUBSCRIBE_NAMESPACE,
    AccessAction.SUBSCRIBE_TRACKS,
}
OF_PRODUCERS = {AccessAction.PUBLISH_NAMESPACE, AccessAction.PUBLISH}
UNAUTHORIZED = RequestErrorCode.UNAUTHORIZED
EXPIRED = RequestErrorCode.EXPIRED_AUTH_TOKEN
MALFORMED = RequestErrorCode.MALFORMED_AUTH_TOKEN


def token(role=Role.CONSUMER, *, key=KEY, scope=SCOPE, ttl=30.0, **claims):
    scopes = claims.pop("scopes", None) or role_scopes(role, [scope])
    made = mint(Claims(scopes=scopes, expires_at=NOW + ttl, **claims), key)
    return Token.use_value(made, token_type=TOKEN_TYPE)


def access(action=AccessAction.FETCH, *tokens, namespace=PUBLICATION):
    name = None if action in TRACKLESS else b"k"
    return Access(action=action, namespace=namespace, track_name=name, tokens=tokens)


@pytest.fixture
def policy():
    return TokenPolicy([KEY], TokenConfig(leeway=10.0), clock=lambda: NOW)


@pytest.mark.parametrize("action", AccessAction)
@pytest.mark.parametrize("role", Role)
def test_roles_may_do_what_they_need_in_their_scope(policy, role, action):
    allowed = role is Role.RELAY or (action in OF_PRODUCERS) is (role is Role.PRODUCER)

    decision = policy(access(action, token(role)))
    elsewhere = policy(access(action, token(role), namespace=OTHER))

    assert decision == (Grant(40.0) if allowed else UNAUTHORIZED)
    assert elsewhere == UNAUTHORIZED


@pytest.mark.parametrize("action", AccessAction)
def test_without_a_token_nothing_is_allowed(policy, action):
    assert policy(access(action)) == UNAUTHORIZED


def test_subscribe_tracks_needs_to_list_and_to_subscribe(policy):
    def scope(*actions):
        return (Scope(actions=frozenset(actions)),)

    asked = AccessAction.SUBSCRIBE_TRACKS
    both = token(scopes=scope(Action.SUBSCRIBE_NAMESPACE, Action.SUBSCRIBE))
    one = token(scopes=scope(Action.SUBSCRIBE_NAMESPACE))
    other = token(scopes=scope(Action.SUBSCRIBE))

    assert isinstance(policy(access(asked, both)), Grant)
    assert policy(access(asked, one)) == UNAUTHORIZED
    assert policy(access(asked, other)) == UNAUTHORIZED


def test_a_prefix_beyond_the_scope_is_refused(policy):
    asked = AccessAction.SUBSCRIBE_NAMESPACE

    assert policy(access(asked, token(), namespace=TrackNamespace((b"kvcs-1",)))) == UNAUTHORIZED
    assert policy(access(asked, token(), namespace=TrackNamespace())) == UNAUTHORIZED
    assert isinstance(policy(access(asked, token(), namespace=SCOPE)), Grant)


def test_a_grant_lasts_as_long_as_its_token_and_is_looked_at_every_minute(policy):
    assert policy(access(AccessAction.FETCH, token(ttl=20.0))) == Grant(30.0)
    assert policy(access(AccessAction.FETCH, token(ttl=-5.0))) == Grant(5.0)
    assert policy(access(AccessAction.FETCH, token(ttl=9e5))) == Grant(RECHECK_INTERVAL)


def test_a_token_asks_to_be_looked_at_more_often(policy):
    assert policy(access(AccessAction.FETCH, token(revalidation=5.0))) == Grant(5.0)
    assert policy(access(AccessAction.FETCH, token(revalidation=0.0))) == Grant(40.0)
    assert policy(access(AccessAction.FETCH, token(revalidation=0.1))) == UNAUTHORIZED


def test_one_good_token_is_enough_and_the_longest_counts(policy):
    bad = Token.use_value(b"\xd1", token_type=TOKEN_TYPE)
    tokens = (bad, token(ttl=-100.0), token(ttl=1.0), token(ttl=20.0), token(scope=OTHER))

    assert policy(access(AccessAction.FETCH, *tokens)) == Grant(30.0)


def test_the_refusal_tells_what_helps(policy):
    bad = Token.use_value(b"\xd1", token_type=TOKEN_TYPE)
    large = Token.use_value(b"\xd1" * 5000, token_type=TOKEN_TYPE)
    old, foreign = token(ttl=-100.0), token(key=STRANGER)

    assert policy(access(AccessAction.FETCH, bad)) == MALFORMED
    assert policy(access(AccessAction.FETCH, large)) == MALFORMED
    assert policy(access(AccessAction.FETCH, bad, old)) == EXPIRED
    assert policy(access(AccessAction.FETCH, old, token(scope=OTHER))) == UNAUTHORIZED
    assert policy(access(AccessAction.FETCH, foreign)) == UNAUTHORIZED
    assert policy(access(AccessAction.FETCH, token(not_before=NOW + 20))) == UNAUTHORIZED


def test_an_expired_token_of_a_stranger_is_no_token(policy):
    assert policy(access(AccessAction.FETCH, token(key=STRANGER, ttl=-100.0))) == UNAUTHORIZED


def test_tokens_of_other_types_are_ignored(policy):
    good = token()
    other = Token.use_value(good.value, token_type=0)

    assert policy(access(AccessAction.FETCH, other)) == UNAUTHORIZED
    assert isinstance(policy(access(AccessAction.FETCH, other, good)), Grant)


def test_only_so_many_tokens_are_looked_at(policy):
    bombs = tuple(
        Token.use_value(bytes([0xD1, number]), token_type=TOKEN_TYPE)
        for number in range(MAX_TOKENS)
    )

    assert isinstance(policy(access(AccessAction.FETCH, *bombs[1:], token())), Grant)
    assert policy(access(AccessAction.FETCH, *bombs, token())) == MALFORMED


def test_what_is_known_of_tokens_is_bounded_and_does_not_outlive_them(policy, monkeypatch):
    monkeypatch.setattr("kvcs.relay.token_policy.MAX_KNOWN_TOKENS", 2)
    tokens = [token(ttl=float(seconds)) for seconds in range(4)]

    for each in tokens * 2:
        assert isinstance(policy(access(AccessAction.FETCH, each)), Grant)

    assert len(policy._known) == 2
    assert MAX_KNOWN_TOKENS == 4096


def test_a_token_that_was_good_expires_although_it_is_known():
    wall = [NOW]
    policy = TokenPolicy([KEY], TokenConfig(leeway=0.0), clock=lambda: wall[0])
    good = access(AccessAction.FETCH, token())

    assert isinstance(policy(good), Grant)
    wall[0] += 30.0

    assert policy(good) == EXPIRED


def test_keys_are_replaced_at_once(policy):
    good = access(AccessAction.FETCH, token())
    assert isinstance(policy(good), Grant)

    policy.replace_keys([STRANGER])

    assert policy(good) == UNAUTHORIZED
    assert isinstance(policy(access(AccessAction.FETCH, token(key=STRANGER))), Grant)


def test_without_keys_everything_is_refused():
    policy = TokenPolicy([])

    assert policy(access(AccessAction.FETCH, token())) == UNAUTHORIZED


def test_a_signed_token_is_as_good_as_a_mac():
    signer = SigningKey.generate(b"issuer")
    policy = TokenPolicy([signer.public, KEY], clock=lambda: NOW)

    assert isinstance(policy(access(AccessAction.FETCH, token(key=signer))), Grant)
    assert isinstance(policy(access(AccessAction.FETCH, token())), Grant)


def test_a_track_match_holds_for_each_track(policy):
    scopes = (
        Scope(actions=frozenset({4, 7}), track=Match.exact(b"k")),
        Scope(actions=frozenset({8})),
    )
    asked = access(AccessAction.FETCH, token(scopes=scopes))

    assert isinstance(policy(asked), Grant)
    assert policy(replace(asked, track_name=b"v")) == UNAUTHORIZED


def test_nothing_secret_is_shown(policy):
    asked = access(AccessAction.FETCH, token())
    policy(asked)

    for text in (repr(policy), repr(asked), str(asked)):
        assert asked.tokens[0].value.hex()[:8] not in text
        assert repr(asked.tokens[0].value)[2:12] not in text


def test_a_token_that_nobody_here_made_is_verified_once(monkeypatch):
    policy = TokenPolicy([KEY], clock=lambda: NOW)
    opened = []
    really = TokenVerifier.open
    monkeypatch.setattr(
        TokenVerifier, "open", lambda self, value: opened.append(value) or really(self, value)
    )
    strange, broken = token(key=STRANGER), Token.use_value(b"\xd1", token_type=TOKEN_TYPE)

    answers = [policy(access(AccessAction.FETCH, it)) for it in (strange, broken) * 3]

    assert answers == [UNAUTHORIZED, MALFORMED] * 3
    assert opened == [strange.value, broken.value]


def test_tokens_of_strangers_push_out_no_others_and_are_bounded(monkeypatch):
    policy = TokenPolicy([KEY], clock=lambda: NOW)
    good = token()
    policy(access(AccessAction.FETCH, good))
    for number in range(MAX_REFUSED_TOKENS + 10):
        strange = Token.use_value(b"\xd1%d" % number, token_type=TOKEN_TYPE)
        policy(access(AccessAction.FETCH, strange))

    assert repr(policy).endswith(f"known=1 refused={MAX_REFUSED_TOKENS}>")
    monkeypatch.setattr(TokenVerifier, "open", None)
    assert isinstance(policy(access(AccessAction.FETCH, good)), Grant)


def test_a_token_that_was_refused_is_tried_again_with_other_keys():
    policy = TokenPolicy([KEY], clock=lambda: NOW)
    strange = token(key=STRANGER)
    assert policy(access(AccessAction.FETCH, strange)) is UNAUTHORIZED

    policy.replace_keys([STRANGER])

    assert isinstance(policy(access(AccessAction.FETCH, strange)), Grant)


def reasons(policy, *tokens, action=AccessAction.FETCH, **changes):
    """What the log says of a refusal."""
    asked = replace(access(action, *tokens), reasons=RefusalReasons(), **changes)
    decision = policy(asked)
    assert not isinstance(decision, Grant)
    return decision, str(asked.reasons)


def strange(claims=b"\xa0"):
    return Token.use_value(b"\xd1" + claims, token_type=TOKEN_TYPE)


REASONS = {
    "no token was shown": (UNAUTHORIZED, ()),
    "what was shown is no CWT": (UNAUTHORIZED, (Token.use_value(b"garbage", token_type=0),)),
    "a token names a key that this relay does not have": (
        UNAUTHORIZED,
        (token(key=MacKey(b"elsewhere", bytes(32))),),
    ),
    "a token was not made with a key of this relay": (UNAUTHORIZED, (token(key=STRANGER),)),
    "a token has expired": (EXPIRED, (token(ttl=-60.0),)),
    "a token is not good yet": (UNAUTHORIZED, (token(not_before=NOW + 60.0),)),
    "a token is for another audience than this relay": (UNAUTHORIZED, (token(audience=("b",)),)),
    "a token allows other actions": (UNAUTHORIZED, (token(Role.PRODUCER),)),
    "a token is for other scopes": (UNAUTHORIZED, (token(scope=OTHER),)),
    "a token cannot be read": (MALFORMED, (strange(),)),
    "a token is larger than max_token_bytes": (MALFORMED, (strange(bytes(5000)),)),
    "a token has expired; a token is for other scopes": (
        UNAUTHORIZED,
        (token(ttl=-60.0), token(scope=OTHER), token(scope=OTHER, ttl=20.0)),
    ),
}


@pytest.mark.parametrize("text", REASONS)
def test_the_log_is_told_why(policy, text):
    code, tokens = REASONS[text]

    assert reasons(policy, *tokens) == (code, text)
    # It is remembered with the token.
    assert reasons(policy, *tokens) == (code, text)


def test_the_log_is_told_that_a_token_was_used(policy):
    once = token(token_id=b"1", is_for_one_session=True)
    assert isinstance(policy(replace(access(AccessAction.FETCH, once), session=object())), Grant)

    told = reasons(policy, once, session=object())

    # The peer is told the same as where a token does not allow it.
    assert told == (UNAUTHORIZED, "a token for one session was used by another session")


def test_no_reason_holds_anything_of_the_token(policy):
    name = b"\n\x1b[31mhello"
    told = reasons(policy, token(key=MacKey(name, bytes(32)), issuer="hello"))

    assert "hello" not in told[1]
