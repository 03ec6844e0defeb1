"""Tokens that are large, deep, many or endless cost a relay nothing to speak of."""

import time

import cbor2
import pytest
from tests.attacks.guarded import MALFORMED, UNAUTHORIZED, Guarded, raw

from kvcs.c4m import Role, TokenVerifier
from kvcs.cose import encode_mac0
from kvcs.errors import RequestErrorCode
from kvcs.moqt.session.limits import SessionLimits
from kvcs.moqt.wire.parameters import Parameters
from kvcs.relay.token_policy import MAX_TOKENS

EXCESSIVE_LOAD = RequestErrorCode.EXCESSIVE_LOAD
MOST = SessionLimits().max_request_tokens
NESTED = b"\x81" * 4000
BOMBS = {
    "size": b"\xd1" + b"\x84" * 6000,
    "nested": b"\xd1" + NESTED,
    "nested headers": b"\xd1\x84" + b"\x40" + NESTED,
    "array": b"\xd1\x9b" + b"\xff" * 8,
    "payload": b"\xd1\x84\x43\xa1\x01\x05\xa0\x5b" + b"\xff" * 8,
    "indefinite": b"\xd1\x9f\x43\xa1\x01\x05\xa0",
    "tags": b"\xd8\x3d" * 2000,
    "map": b"\xd2\x84\x43\xa1\x01\x26\xbb" + b"\xff" * 8,
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused_at_once_and_the_session_lives(bomb):
    guarded = Guarded()
    began = time.process_time()

    for _ in range(20):
        assert guarded.code("fetch", raw(bomb)) == MALFORMED

    assert time.process_time() - began < 2.0
    assert guarded.refused == {"MALFORMED_AUTH_TOKEN": 20}
    guarded.assert_untouched()


@pytest.mark.parametrize(
    "claims",
    [
        {4: 4e9, 327: [[[4]]] * 1000},
        {4: 4e9, 327: [[list(range(1000))]]},
        {4: 4e9, 327: [[[4], [b""] * 1000]]},
        {4: 4e9, 327: [[[4]]], **{1000 + number: 0 for number in range(200)}},
        {4: 4e9, 327: [[[4], [[[[[[[[[b"a"]]]]]]]]]]]},
    ],
    ids=["scopes", "actions", "fields", "claims", "depth"],
)
def test_claims_without_bounds_are_refused_although_a_key_of_ours_signed_them(claims):
    guarded = Guarded()
    token = raw(encode_mac0(cbor2.dumps(claims), guarded.mac))

    assert guarded.code("fetch", token) in (MALFORMED, UNAUTHORIZED)
    guarded.assert_untouched()


def test_many_tokens_cost_few_looks(monkeypatch):
    guarded = Guarded()
    opened = []
    verify = TokenVerifier.open

    def counted(verifier, token):
        opened.append(token)
        return verify(verifier, token)

    monkeypatch.setattr(TokenVerifier, "open", counted)
    tokens = tuple(raw(b"\xd1" + number.to_bytes(2)) for number in range(MOST))

    assert guarded.code("fetch", *tokens) == MALFORMED
    assert len(opened) == MAX_TOKENS < MOST


def test_a_request_with_many_tokens_is_refused_like_any_other():
    guarded = Guarded()
    tokens = tuple(raw(b"\xd1" + number.to_bytes(2)) for number in range(MOST))

    assert guarded.code("fetch", *tokens) == MALFORMED
    assert guarded.code("fetch", *tokens[:-1], guarded.token(Role.CONSUMER)) == MALFORMED
    # One more is over the limit of the session, which refuses it before the relay decides.
    request_id = guarded.ask("fetch", *tokens, guarded.token(Role.CONSUMER))
    assert guarded.refusal(request_id)[0] == EXCESSIVE_LOAD
    guarded.assert_untouched()


def test_updates_with_bombs_end_the_request_and_nothing_else():
    guarded = Guarded()
    request_id = guarded.ask("subscribe", guarded.token(Role.CONSUMER))
    session = guarded.stranger.session

    bomb = Parameters(authorization_tokens=(raw(BOMBS["nested"]),))
    guarded.stranger.send(session.update, request_id, bomb)

    assert not guarded.stranger.peer.session.is_active(request_id)
    guarded.assert_untouched()
