import asyncio
import logging
import os
from pathlib import Path

import pytest

from kvcs.c4m import TOKEN_TYPE, Claims, Scope, mint
from kvcs.cli._connection import connect_config, renewing
from kvcs.cli._options import RelaySettings
from kvcs.cli._tokens import (
    ENVIRONMENT_VARIABLE,
    decode_token,
    encode_token,
    find_tokens,
    following_tokens,
    read_tokens,
    stamp,
)
from kvcs.cose import MacKey
from kvcs.errors import ConfigError
from kvcs.testing import run

KEY = MacKey(b"k", bytes(32))


def token(expires_at=1000.0):
    return mint(Claims(scopes=(Scope(actions=frozenset({4})),), expires_at=expires_at), KEY)


@pytest.mark.parametrize("form", [encode_token(token()).encode(), token(), b"\xd8\x3d" + token()])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_token_is_read_as_text_or_as_octets(tmp_path, form, end):
    path = tmp_path / "token"
    path.write_bytes(form + (b"" if form.startswith((b"\xd1", b"\xd8")) else end))

    (read,) = read_tokens(path, "--token-file")

    assert read.token_type == TOKEN_TYPE
    assert read.value.removeprefix(b"\xd8\x3d") == token()


def test_other_tokens_are_presented_as_they_are(tmp_path):
    path = tmp_path / "token"
    path.write_bytes(b"  words of our own\n")

    (read,) = read_tokens(path, "--token-file")

    assert (read.token_type, read.value) == (0, b"words of our own")


def test_padding_and_rubbish_are_no_base64url():
    text = encode_token(token()).encode()

    assert decode_token(text) == token()
    assert decode_token(text[:1]) is None
    assert decode_token(b"AAAA") is None
    assert decode_token(text + b"*") is None


@pytest.mark.parametrize("content", [None, b"", b" \n", b"x" * 20_000])
def test_file_without_a_token_is_refused_by_name(tmp_path, content):
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError) as error:
        read_tokens(path, "--token-file")

    assert error.value.key == "--token-file"
    assert "xxx" not in str(error.value)


def test_connection_presents_the_token_of_the_file(tmp_path):
    path = tmp_path / "token"
    path.write_text(encode_token(token()))
    settings = RelaySettings(
        url="moqt://localhost/", ca=None, insecure_loopback=False, timeout=1.0, token_file=path
    )

    config = connect_config(settings)

    assert [each.value for each in config.tokens] == [token()]
    assert token().hex()[:12] not in repr(config)
    assert repr(token())[2:12] not in repr(config)


@pytest.fixture
def pipe():
    """Return the path of a pipe with something in it, as a shell makes one for <(...)."""
    descriptors = []

    def make(content):
        reading, writing = os.pipe()
        descriptors.append(reading)
        os.write(writing, content)
        os.close(writing)
        return Path(f"/dev/fd/{reading}")

    yield make
    for descriptor in descriptors:
        os.close(descriptor)


def test_a_token_comes_through_a_pipe_which_is_read_once(pipe):
    path = pipe(encode_token(token()).encode())
    settings = RelaySettings(
        url="moqt://localhost/", ca=None, insecure_loopback=False, timeout=1.0, token_file=path
    )
    presented = []

    async def scenario():
        config = connect_config(settings)
        async with renewing(settings, presented.append):
            await asyncio.sleep(3)
        return config

    assert [each.value for each in run(scenario()).tokens] == [token()]
    assert presented == []


def test_a_token_in_the_environment_is_presented(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, f"{encode_token(token())}\n")
    settings = RelaySettings(url="moqt://localhost/", ca=None, insecure_loopback=False, timeout=1.0)

    config = connect_config(settings)

    assert [(each.token_type, each.value) for each in config.tokens] == [(TOKEN_TYPE, token())]
    assert encode_token(token())[:12] not in repr(config)


@pytest.mark.parametrize("text", ["", " \n", "x" * 20_000])
def test_a_variable_without_a_token_is_refused_by_name(text):
    with pytest.raises(ConfigError) as error:
        find_tokens(None, "--token-file", {ENVIRONMENT_VARIABLE: text})

    assert error.value.key == ENVIRONMENT_VARIABLE
    assert "xxx" not in str(error.value)


def test_a_token_that_is_named_twice_is_refused(tmp_path):
    path = tmp_path / "token"
    path.write_text(encode_token(token()))

    with pytest.raises(ConfigError, match="no --token-file beside it"):
        find_tokens(path, "--token-file", {ENVIRONMENT_VARIABLE: encode_token(token())})

    assert find_tokens(path, "--token-file", {}) == read_tokens(path, "--token-file")


def test_new_token_is_presented_and_a_broken_one_is_not(tmp_path, caplog):
    path = tmp_path / "token"
    path.write_text(encode_token(token(1000.0)))
    presented = []

    async def scenario():
        async with following_tokens(path, "--token-file", presented.append):
            await asyncio.sleep(3)
            before = list(presented)
            path.write_text("")
            await asyncio.sleep(3)
            path.unlink()
            await asyncio.sleep(3)
            path.write_text(encode_token(token(2000.0)))
            await asyncio.sleep(3)
        path.write_text(encode_token(token(3000.0)))
        await asyncio.sleep(3)
        return before

    with caplog.at_level(logging.INFO, logger="kvcs.cli"):
        before = run(scenario())

    assert before == []
    assert [[each.value for each in tokens] for tokens in presented] == [[token(2000.0)]]
    assert "the token stays as it was" in caplog.text
    assert encode_token(token(2000.0)) not in caplog.text


def test_without_a_file_nothing_is_followed():
    async def scenario():
        async with following_tokens(None, "--token-file", lambda _: None):
            return len(asyncio.all_tasks())

    assert run(scenario()) == 1
    assert read_tokens(None, "--token-file") == ()


def test_stamp_of_what_is_gone_is_empty(tmp_path):
    (tmp_path / "a").write_text("x")

    assert len(stamp(tmp_path)) == 2  # the directory, which can be empty, and the file in it
    assert stamp(tmp_path / "a") != stamp(tmp_path / "b") == ()


def test_stamp_of_what_cannot_be_read_twice_is_empty(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    assert stamp(tmp_path / "pipe") == stamp(tmp_path) == ()


def test_a_token_that_everybody_can_read_is_used_and_warned_of(tmp_path, caplog):
    path = tmp_path / "token"
    path.write_bytes(token())
    path.chmod(0o600)
    read_tokens(path, "--token-file")
    assert not caplog.records

    path.chmod(0o644)
    assert read_tokens(path, "--token-file")
    assert "everybody on this machine can read the token" in caplog.text
