import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest
from tests.unit.cli.relay.test_check import certificate, faults_of, settings_of, tls_of

from kvcs.c4m import TOKEN_TYPE, Claims, Scope, mint
from kvcs.cli._tokens import encode_token
from kvcs.cli.relay.assembly import relay_config
from kvcs.cli.relay.authorization import following_files, policy, token_keys
from kvcs.cli.relay.faults import check
from kvcs.errors import ConfigError, RequestErrorCode
from kvcs.keyring import (
    KeyKind,
    KeyRing,
    Purpose,
    change_ring,
    encode_ring,
    encode_set,
    mac_key,
    new_object_key,
    new_pair,
    new_secret,
)
from kvcs.kv.sealing import CipherSuite
from kvcs.moqt.wire.token import Token
from kvcs.names import TrackNamespace
from kvcs.relay import Access, AccessAction, Grant, TokenPolicy

__all__ = ("certificate", "settings_of")


def write(path, content):
    path.touch(mode=0o600)
    path.write_bytes(content)


@pytest.fixture
def key():
    return new_secret("one")


@pytest.fixture
def ring_of(tmp_path):
    """Write keys as each kind of file that can be named."""

    def make(form, *keys):
        ring = KeyRing()
        for each in keys:
            ring = ring.added(Purpose.VERIFIER, each)
        path = tmp_path / "keys"
        match form:
            case "directory":
                change_ring(path, lambda _: ring)
            case "ring":
                write(path, encode_ring(ring))
            case "set":
                write(path, encode_set(Purpose.VERIFIER, ring.sets[Purpose.VERIFIER]))
        return path

    return make


def asking(key, expires_at=4e9, **more):
    claims = Claims(scopes=(Scope(actions=frozenset({4})),), expires_at=expires_at, **more)
    token = Token.use_value(mint(claims, mac_key(key)), token_type=TOKEN_TYPE)
    return Access(
        action=AccessAction.SUBSCRIBE,
        namespace=TrackNamespace((b"n",)),
        track_name=b"t",
        tokens=(token,),
    )


@pytest.mark.parametrize("form", ["directory", "ring", "set"])
def test_keys_make_a_policy_by_tokens(settings_of, certificate, ring_of, key, form):
    ring_of(form, key, new_secret("two"))
    text = f'{tls_of(certificate)}[authorization]\npolicy = "c4m"\nkeys = "keys"\nleeway = "3s"'

    check(settings_of(text))
    made = relay_config(settings_of(text), certificate.tls).authorize

    assert isinstance(made, TokenPolicy)
    assert isinstance(made(asking(key)), Grant)
    assert made(asking(new_secret("one"))) == RequestErrorCode.UNAUTHORIZED
    assert made(asking(key, 1000.0)) == RequestErrorCode.EXPIRED_AUTH_TOKEN


def test_a_relay_can_require_that_tokens_are_for_it(settings_of, certificate, ring_of, key):
    ring_of("set", key)
    text = (
        f'{tls_of(certificate)}[authorization]\npolicy = "c4m"\nkeys = "keys"\n'
        'audience = "here"\nrequire_audience = true'
    )

    made = relay_config(settings_of(text), certificate.tls).authorize

    assert isinstance(made(asking(key, audience=("here",))), Grant)
    for audience in ((), ("there",)):
        assert made(asking(key, audience=audience)) == RequestErrorCode.UNAUTHORIZED


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('policy = "c4m"', "authorization.keys (--token-keys)"),
        ('policy = "c4m"\nkeys = "gone"', "authorization.keys (--token-keys)"),
        ('policy = "deny"\nkeys = "keys"', "authorization.keys (--token-keys)"),
        ('policy = "c4m"\nkeys = "keys"\nmoqt_claim = 4', "authorization.moqt_claim"),
        (
            'policy = "c4m"\nkeys = "keys"\nrevalidation_claim = 327',
            "authorization.revalidation_claim",
        ),
        ('policy = "c4m"\nkeys = "keys"\nmax_token_bytes = 0', "authorization.max_token_bytes"),
        (
            'policy = "c4m"\nkeys = "keys"\nrequire_audience = true',
            "authorization.require_audience",
        ),
    ],
)
def test_what_is_no_policy_is_named(settings_of, certificate, ring_of, key, text, place):
    ring_of("set", key)
    settings = settings_of(f"{tls_of(certificate)}[authorization]\n{text}")

    assert list(faults_of(settings)) == [place]


def test_keys_that_others_can_change_are_refused(ring_of, key):
    path = ring_of("set", key)
    path.chmod(0o644)

    with pytest.raises(ConfigError, match="chmod 600"):
        token_keys(path)


@pytest.mark.parametrize("form", ["ring", "set"])
def test_public_keys_may_be_read_by_others_and_not_changed(ring_of, form):
    made = KeyRing().added(Purpose.TOKEN, new_pair(KeyKind.P256, "one"))
    path = ring_of(form, *made.public(Purpose.TOKEN).keys)
    path.chmod(0o644)

    (found,) = token_keys(path)
    assert found.kid == b"one"
    path.chmod(0o664)
    with pytest.raises(ConfigError, match=r"nobody else can change it \(chmod 644"):
        token_keys(path)


def test_a_secret_beside_public_keys_makes_the_file_secret(tmp_path):
    made = KeyRing().added(Purpose.TOKEN, new_pair(KeyKind.P256, "one"))
    write(tmp_path / "ring", encode_ring(made))
    (tmp_path / "ring").chmod(0o644)

    with pytest.raises(ConfigError, match="chmod 600"):
        token_keys(tmp_path / "ring")


def test_a_ring_comes_through_a_pipe(key):
    reading, writing = os.pipe()
    os.write(writing, encode_ring(KeyRing().added(Purpose.VERIFIER, key)))
    os.close(writing)

    (found,) = token_keys(Path(f"/dev/fd/{reading}"))
    os.close(reading)
    assert found.kid == b"one"


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ('upstream_token_file = "pipe"', "upstream_token_file"),
        ('[authorization]\npolicy = "c4m"\nkeys = "pipe"', "authorization.keys (--token-keys)"),
    ],
)
def test_a_relay_takes_no_pipe_for_what_it_reads_again_and_opens_none(
    settings_of, certificate, tmp_path, setting, key
):
    # To open it would wait for somebody who writes.
    os.mkfifo(tmp_path / "pipe", 0o600)
    settings = settings_of(f"{setting}\n{tls_of(certificate)}")

    assert "a file, since it is read again" in faults_of(settings)[key]


def test_a_broken_file_is_named_once(tmp_path):
    write(tmp_path / "keys", b"{")

    with pytest.raises(ConfigError) as error:
        token_keys(tmp_path / "keys")
    assert str(error.value).count(str(tmp_path)) == 1


def test_keys_without_one_for_tokens_are_refused(tmp_path):
    object_key = new_object_key(CipherSuite.AES_128_GCM_SHA256_128, "")
    change_ring(tmp_path / "ring", lambda ring: ring.added(Purpose.OBJECT, object_key))
    write(tmp_path / "junk", b'{"kty": "oct", "k": "secret"}')

    with pytest.raises(ConfigError, match="at least one key that verifies tokens"):
        token_keys(tmp_path / "ring")
    with pytest.raises(ConfigError) as error:
        token_keys(tmp_path / "junk")
    assert "secret" not in str(error.value)


def test_public_address_takes_a_policy_by_tokens(settings_of, ring_of, key):
    ring_of("set", key)
    text = '[listen]\nhost = "0.0.0.0"\n[tls]\ndevelopment_directory = "dev"\n'

    check(settings_of(f'{text}[authorization]\npolicy = "c4m"\nkeys = "keys"'))
    assert '"c4m" (--token-keys)' in faults_of(settings_of(text))["authorization.policy"]


class FakeRelay:
    """What following files needs of a relay."""

    def __init__(self, made):
        self.policy = made
        self.reviews = 0
        self.presented = []

    def review(self):
        self.reviews += 1

    def authorize_upstream(self, tokens):
        self.presented.append(tokens)


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.01)


async def test_keys_are_read_again_when_they_change(settings_of, ring_of, key, caplog):
    path, new = ring_of("set", key), new_secret("two")
    settings = settings_of(
        '[authorization]\npolicy = "c4m"\nkeys = "keys"\nreload_interval = "20ms"'
    )
    relay = FakeRelay(policy(settings))
    with caplog.at_level(logging.INFO, logger="kvcs.cli"):
        async with following_files(relay, settings):
            write(path, b"{")
            await until(lambda: "the keys stay as they were" in caplog.text)
            still = relay.policy(asking(key))
            ring_of("set", new)
            await until(lambda: relay.reviews)

    assert isinstance(still, Grant)
    assert isinstance(relay.policy(asking(new)), Grant)
    assert relay.policy(asking(key)) == RequestErrorCode.UNAUTHORIZED
    assert relay.reviews == 1


async def test_keys_are_read_again_at_once_on_a_signal(settings_of, ring_of, key):
    ring_of("set", key)
    settings = settings_of('[authorization]\npolicy = "c4m"\nkeys = "keys"\nreload_interval="1h"')
    relay = FakeRelay(policy(settings))
    async with following_files(relay, settings):
        ring_of("set", key, new_secret("two"))
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: relay.reviews)
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.05)

    assert relay.reviews == 1  # the second time nothing had changed


@pytest.mark.parametrize("form", ["directory", "ring", "set"])
async def test_the_last_key_can_be_withdrawn(settings_of, ring_of, key, caplog, form):
    path = ring_of(form, key)
    settings = settings_of('[authorization]\npolicy = "c4m"\nkeys = "keys"\nreload_interval="20ms"')
    relay = FakeRelay(policy(settings))
    async with following_files(relay, settings):
        match form:
            case "directory":
                change_ring(path, lambda ring: ring.removed(Purpose.VERIFIER, key.kid))
            case "ring":
                write(path, encode_ring(KeyRing()))
            case "set":
                write(path, b'{"keys": []}')
        await until(lambda: relay.reviews)
        still = relay.policy(asking(key))
        ring_of(form, key)
        await until(lambda: relay.reviews == 2)

    assert still == RequestErrorCode.UNAUTHORIZED
    assert "everything is refused" in caplog.text
    assert isinstance(relay.policy(asking(key)), Grant)


async def test_keys_that_are_gone_altogether_stay_as_they_were(settings_of, ring_of, key, caplog):
    path = ring_of("directory", key)
    settings = settings_of('[authorization]\npolicy = "c4m"\nkeys = "keys"\nreload_interval="20ms"')
    relay = FakeRelay(policy(settings))
    async with following_files(relay, settings):
        path.rename(path.with_name("elsewhere"))
        await until(lambda: "the keys stay as they were" in caplog.text)

    assert isinstance(relay.policy(asking(key)), Grant)


async def test_token_for_the_parents_is_read_again(settings_of, tmp_path, monkeypatch):
    monkeypatch.setattr("kvcs.cli._tokens._LOOK_INTERVAL", 0.01)
    file = tmp_path / "parent.token"
    file.write_text(encode_token(asking(new_secret("a")).tokens[0].value))
    settings = settings_of('upstream_token_file = "parent.token"')
    relay = FakeRelay(policy(settings))
    async with following_files(relay, settings):
        found = asking(new_secret("b")).tokens
        file.write_text(encode_token(found[0].value))
        await until(lambda: relay.presented)

    assert relay.presented == [found]


async def test_without_files_nothing_is_followed(settings_of):
    settings = settings_of("")
    async with following_files(FakeRelay(policy(settings)), settings):
        assert len(asyncio.all_tasks()) == 1


async def test_a_pipe_in_place_of_the_keys_does_not_hold_up_the_relay(
    settings_of, ring_of, key, caplog
):
    path = ring_of("set", key)
    settings = settings_of('[authorization]\npolicy = "c4m"\nkeys = "keys"\nreload_interval="20ms"')
    relay = FakeRelay(policy(settings))
    async with following_files(relay, settings):
        path.unlink()
        os.mkfifo(path, 0o600)
        await asyncio.sleep(0.05)
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: "the keys stay as they were" in caplog.text)
        still = relay.policy(asking(key))
        path.unlink()
        ring_of("set", key, new_secret("two"))
        await until(lambda: relay.reviews)

    assert isinstance(still, Grant)


def test_keys_that_cannot_even_be_looked_for_are_an_error_in_the_settings(tmp_path):
    with pytest.raises(ConfigError) as error:
        token_keys(tmp_path / ("x" * 300))

    assert error.value.key == "authorization.keys (--token-keys)"


async def test_keys_that_are_gone_stay_and_are_warned_of_once(settings_of, ring_of, key, caplog):
    path = ring_of("set", key)
    settings = settings_of('[authorization]\npolicy = "c4m"\nkeys = "keys"\nreload_interval="20ms"')
    relay = FakeRelay(policy(settings))
    async with following_files(relay, settings):
        path.unlink()
        await until(lambda: "the keys stay as they were" in caplog.text)
        await asyncio.sleep(0.1)

    assert caplog.text.count("the keys stay as they were") == 1
    assert not relay.reviews
