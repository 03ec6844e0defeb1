import pytest

from kvcs.errors import RemoteProtocolError, TerminationCode
from kvcs.moqt.session.actions import CloseSession
from kvcs.moqt.session.tokens import TokenCache
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.request import RequestUpdate
from kvcs.moqt.wire.setup import SetupOptions
from kvcs.moqt.wire.subscribe import Subscribe
from kvcs.moqt.wire.token import Token
from kvcs.names import FullTrackName, TrackNamespace

TRACK = FullTrackName(TrackNamespace((b"kvcs",)), b"t")
SECRET = Token.use_value(b"secret", token_type=3)
REGISTER = Token.register(5, b"secret", token_type=3)
CACHE = SetupOptions(max_auth_token_cache_size=22)


def subscribe(request_id, *tokens):
    parameters = Parameters(authorization_tokens=tokens)
    return Subscribe(request_id=request_id, track=TRACK, parameters=parameters)


def closing_code(session):
    (action,) = session.take_actions()
    assert isinstance(action, CloseSession)
    return action.code


def test_application_sees_values_whatever_the_form(to_server):
    peer = to_server(options=CACHE)

    events = [
        *peer.say(0, subscribe(0, SECRET)),
        *peer.say(4, subscribe(2, REGISTER)),
        *peer.say(8, subscribe(4, Token.use_alias(5))),
        *peer.say(12, subscribe(6, Token.delete(5))),
    ]

    tokens = [event.parameters.authorization_tokens for event in events]
    assert tokens == [(SECRET,), (SECRET,), (SECRET,), ()]


def test_tokens_of_updates_are_resolved_too(to_server):
    peer = to_server(options=CACHE)
    peer.say(0, subscribe(0, REGISTER))

    parameters = Parameters(authorization_tokens=(Token.use_alias(5),))
    (event,) = peer.say(0, RequestUpdate(request_id=2, parameters=parameters))

    assert event.parameters.authorization_tokens == (SECRET,)


def test_token_of_a_refused_request_is_registered_nevertheless(to_server):
    peer = to_server(options=CACHE)
    track = FullTrackName(TrackNamespace((b".",)), b"t")
    refused = Subscribe(
        request_id=0, track=track, parameters=Parameters(authorization_tokens=(REGISTER,))
    )

    peer.say(0, refused)
    (event,) = peer.say(4, subscribe(2, Token.use_alias(5)))

    assert event.parameters.authorization_tokens == (SECRET,)


def test_token_of_an_update_that_crossed_the_end_of_its_request_is_stored_and_deleted(to_server):
    peer = to_server(options=CACHE)
    (asked,) = peer.say(0, subscribe(0))
    peer.session.reject(asked.request_id, 0x10, now=0.0)
    peer.session.take_actions()

    for update_id, tokens in enumerate([(REGISTER,), (Token.delete(5), REGISTER)], 1):
        parameters = Parameters(authorization_tokens=tokens)
        peer.say(0, RequestUpdate(request_id=2 * update_id, parameters=parameters))
    (event,) = peer.say(4, subscribe(6, Token.use_alias(5)))

    assert event.parameters.authorization_tokens == (SECRET,)
    assert peer.unheard == 2


@pytest.mark.parametrize(
    ("options", "tokens", "code"),
    [
        (SetupOptions(), [REGISTER], TerminationCode.AUTH_TOKEN_CACHE_OVERFLOW),
        (CACHE, [REGISTER, REGISTER], TerminationCode.DUPLICATE_AUTH_TOKEN_ALIAS),
        (CACHE, [Token.use_alias(5)], TerminationCode.UNKNOWN_AUTH_TOKEN_ALIAS),
        (CACHE, [Token.delete(5)], TerminationCode.UNKNOWN_AUTH_TOKEN_ALIAS),
        (CACHE, [SECRET, SECRET], TerminationCode.PROTOCOL_VIOLATION),
        (CACHE, [REGISTER, Token.use_alias(5)], TerminationCode.PROTOCOL_VIOLATION),
        (CACHE, [Token.register(1, b"x" * 7)], TerminationCode.AUTH_TOKEN_CACHE_OVERFLOW),
    ],
)
def test_fault_of_a_token_closes_the_session(to_server, options, tokens, code):
    peer = to_server(options=options)

    peer.say(0, subscribe(0, *tokens))

    assert closing_code(peer.session) == code


def test_undecodable_token_closes_the_session(to_server):
    peer = to_server()
    good = subscribe(0, Token.use_value(b"")).encode()
    bad = good.replace(b"\x01\x03\x02\x03\x00", b"\x01\x03\x02\x04\x00")
    assert bad != good

    peer.say(0, bad)

    assert closing_code(peer.session) == TerminationCode.KEY_VALUE_FORMATTING_ERROR


def test_deleted_token_makes_room():
    cache = TokenCache(22)

    cache.resolve((REGISTER,))
    cache.resolve((Token.delete(5), Token.register(6, b"secret")))

    assert cache.resolve((Token.use_alias(6),)) == (Token.use_value(b"secret"),)
    assert "0 octets free" in repr(cache)
    assert "secret" not in repr(cache)


def test_setup_registers_what_fits_and_uses_the_rest_once():
    cache = TokenCache(22)

    presented = cache.resolve_setup((REGISTER, Token.register(6, b"another"), SECRET))

    assert presented == (SECRET, Token.use_value(b"another"), SECRET)
    assert cache.resolve((Token.use_alias(5),)) == (SECRET,)
    with pytest.raises(RemoteProtocolError):
        cache.resolve((Token.use_alias(6),))
