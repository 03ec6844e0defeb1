"""Keys share an identifier: it proves nothing, and costs no more than a few attempts."""

from tests.attacks.guarded import UNAUTHORIZED, Guarded

from kvcs.c4m import Role
from kvcs.cose import MacKey, SigningKey
from kvcs.cose.keys import VerifyingKey
from kvcs.moqt.session import events as ev


def test_each_key_of_an_identifier_is_tried_and_a_third_is_not_believed():
    second, third = SigningKey.generate(b"signer"), SigningKey.generate(b"signer")
    guarded = Guarded(extra_keys=(second.public,))

    for key in (guarded.signer, second):
        request_id = guarded.ask("fetch", guarded.token(Role.CONSUMER, key=key))
        assert guarded.stranger.of(request_id, ev.FetchAccepted)

    assert guarded.code("fetch", guarded.token(Role.CONSUMER, key=third)) == UNAUTHORIZED


def test_a_secret_and_a_public_key_of_one_identifier_are_not_mixed_up():
    secret = MacKey(b"signer", bytes([7]) * 32)
    guarded = Guarded(extra_keys=(secret,))

    for key in (guarded.signer, secret):
        request_id = guarded.ask("fetch", guarded.token(Role.CONSUMER, key=key))
        assert guarded.stranger.of(request_id, ev.FetchAccepted)

    stranger = MacKey(b"signer", bytes([8]) * 32)
    assert guarded.code("fetch", guarded.token(Role.CONSUMER, key=stranger)) == UNAUTHORIZED


def test_many_keys_of_one_identifier_cost_few_attempts(monkeypatch):
    others = tuple(SigningKey.generate(b"signer").public for _ in range(20))
    guarded = Guarded(extra_keys=others)
    attempts = []
    verifies = VerifyingKey.verifies

    def counted(key, *arguments):
        attempts.append(key)
        return verifies(key, *arguments)

    monkeypatch.setattr(VerifyingKey, "verifies", counted)
    token = guarded.token(Role.CONSUMER, key=SigningKey.generate(b"signer"))

    assert guarded.code("fetch", token) == UNAUTHORIZED
    assert len(attempts) <= 4
