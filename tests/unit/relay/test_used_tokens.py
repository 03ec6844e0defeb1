"""Tokens for one session are remembered until they expire, so many of them at a time."""

from kvcs.c4m import Action, Claims, Scope
from kvcs.errors import TokenRefused
from kvcs.relay.used_tokens import MAX_USED_TOKENS, UsedTokens

OWNER, THIEF = object(), object()


def claims(token_id, issuer=None):
    return Claims(
        scopes=(Scope(actions=frozenset({Action.FETCH})),),
        expires_at=0.0,
        issuer=issuer,
        token_id=token_id,
        is_for_one_session=True,
    )


def use(used, token_id, session, *, end=100.0, wall=0.0, issuer=None):
    """Return why it is refused; None if it is not."""
    try:
        used.use(claims(token_id, issuer), session, end=end, wall=wall)
    except TokenRefused as error:
        return error.reason
    return None


def test_the_first_session_has_it():
    used = UsedTokens()

    assert use(used, b"1", OWNER) is None
    assert use(used, b"1", OWNER, wall=50.0) is None
    assert use(used, b"1", THIEF) == "used"
    assert use(used, b"2", THIEF) is None
    assert use(used, b"1", OWNER) is None


def test_it_opens_nothing_where_sessions_are_not_told_apart():
    used = UsedTokens()

    assert use(used, b"1", None) == "used"
    assert use(used, b"1", OWNER) is None
    assert use(used, b"1", None) == "used"


def test_identifiers_are_those_of_an_issuer():
    used = UsedTokens()

    assert use(used, b"1", OWNER, issuer="a") is None
    assert use(used, b"1", THIEF, issuer="b") is None
    assert use(used, b"1", THIEF, issuer="a") == "used"
    assert use(used, b"1", THIEF) is None


def test_more_than_are_remembered_are_refused_until_some_have_expired(monkeypatch):
    monkeypatch.setattr("kvcs.relay.used_tokens.MAX_USED_TOKENS", 2)
    used = UsedTokens()
    assert use(used, b"1", OWNER, end=30.0) is None
    assert use(used, b"2", OWNER, end=20.0) is None

    assert use(used, b"3", OWNER, wall=19.0) == "load"
    assert use(used, b"1", THIEF, wall=19.0) == "used"
    assert use(used, b"3", OWNER, wall=20.0) is None

    assert repr(used) == "<UsedTokens 2>"
    assert MAX_USED_TOKENS == 65536


def test_a_clock_that_was_ahead_for_a_moment_makes_no_token_new():
    used = UsedTokens()
    assert use(used, b"1", OWNER, end=100.0) is None
    assert use(used, b"2", OWNER, end=9000.0, wall=7200.0) is None

    assert use(used, b"1", THIEF, end=100.0, wall=1.0) == "used"
    assert use(used, b"3", THIEF, end=200.0, wall=1.0) is None
    assert use(used, b"2", THIEF, end=9000.0, wall=1.0) == "used"


def test_an_identifier_is_remembered_as_long_as_the_last_token_that_has_it():
    used = UsedTokens()
    assert use(used, b"1", OWNER, end=10.0) is None
    assert use(used, b"1", OWNER, end=50.0) is None

    assert use(used, b"3", OWNER, end=15.0, wall=11.0) is None
    assert use(used, b"1", THIEF, end=50.0, wall=20.0) == "used"
    assert use(used, b"1", OWNER, end=50.0, wall=20.0) is None
    assert use(used, b"2", OWNER, end=90.0, wall=50.0) is None
    assert repr(used) == "<UsedTokens 1>"
