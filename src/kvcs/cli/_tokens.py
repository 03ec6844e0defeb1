"""Authorization tokens in files: read, and read again when somebody has written a new one.

A file holds one token: a CWT in base64url, as ``kvcs token mint`` writes it, or as plain octets.
Anything else is presented as it is, as a token of the type that is agreed out of band. Secret
managers that write no files hand the same over in a pipe or in the environment; then it is read
once and cannot change.
"""

import asyncio
import base64
import binascii
import logging
import os
import re
import stat
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from kvcs.c4m import TOKEN_TYPE
from kvcs.errors import ConfigError
from kvcs.moqt.wire.token import Token

__all__ = (
    "ENVIRONMENT_VARIABLE",
    "Stamp",
    "check_read_again",
    "decode_token",
    "encode_token",
    "find_tokens",
    "following_tokens",
    "read_tokens",
    "stamp",
)

#: Environment variable with a token, as a file would hold it.
ENVIRONMENT_VARIABLE: Final = "KVCS_TOKEN"

_MAX_TOKEN_BYTES: Final = 2**14
_LOOK_INTERVAL: Final = 1.0
_BASE64URL: Final = re.compile(rb"[A-Za-z0-9_-]+")
# The tags of a CWT, of COSE_Mac0 and of COSE_Sign1.
_TAGS: Final = (b"\xd8\x3d", b"\xd1", b"\xd2")

_logger = logging.getLogger("kvcs.cli")

type Stamp = tuple[tuple[str, int, int, int], ...]
"""What a file or the files of a directory looked like."""


def encode_token(token: bytes) -> str:
    """Return a token as text: base64url without padding."""
    return base64.urlsafe_b64encode(token).rstrip(b"=").decode()


def decode_token(content: bytes) -> bytes | None:
    """Return the CWT that a file holds, as octets or as text; None if it holds something else."""
    if content.startswith(_TAGS):
        return content
    text = content.strip()
    if not _BASE64URL.fullmatch(text):
        return None
    try:
        octets = base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    except binascii.Error:
        return None
    return octets if octets.startswith(_TAGS) else None


def find_tokens(path: Path | None, key: str, environment: Mapping[str, str]) -> tuple[Token, ...]:
    """Return what is presented: the token in a file or in `ENVIRONMENT_VARIABLE`, or nothing.

    Args:
        path: The file, if one was named.
        key: Name of the setting, for errors.
        environment: The environment of the process.

    Raises:
        ConfigError: As in `read_tokens`; or a token was named twice.
    """
    text = environment.get(ENVIRONMENT_VARIABLE)
    if text is None:
        return read_tokens(path, key)
    if path is not None:
        raise ConfigError(ENVIRONMENT_VARIABLE, f"no {key} beside it")
    return _tokens_in(
        text.encode(errors="surrogateescape"), ENVIRONMENT_VARIABLE, "nothing or too much"
    )


def read_tokens(path: Path | None, key: str) -> tuple[Token, ...]:
    """Return what is presented: the token in a file, or nothing without a file.

    Args:
        path: The file, or a pipe, such as ``/dev/fd/3``, which can be read once.
        key: Name of the setting, for errors.

    Raises:
        ConfigError: The file cannot be read, is empty or too large. What it holds is not shown.
    """
    if path is None:
        return ()
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_TOKEN_BYTES + 1)
            mode = os.fstat(file.fileno()).st_mode
    except OSError as error:
        got = f"{path}: {error.strerror}"
        raise ConfigError(key, "a readable file", got) from error
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        _logger.warning("everybody on this machine can read the token in %s: chmod 600", path)
    return _tokens_in(content, key, str(path))


def _tokens_in(content: bytes, key: str, place: str) -> tuple[Token, ...]:
    """Return the token that something holds.

    Raises:
        ConfigError: It is empty or too large. What it holds is not shown.
    """
    if not 0 < len(content.strip()) <= _MAX_TOKEN_BYTES:
        raise ConfigError(key, f"a token of 1..{_MAX_TOKEN_BYTES} octets", place)
    cwt = decode_token(content)
    if cwt is None:
        return (Token.use_value(content.strip()),)
    return (Token.use_value(cwt, token_type=TOKEN_TYPE),)


def stamp(path: Path) -> Stamp:
    """Return what a file, or a directory with the files right in it, looks like now.

    Empty for what is not there, and for what cannot be read a second time without waiting for
    somebody, as a pipe.
    """
    try:
        files = [path, *(sorted(path.iterdir()) if path.is_dir() else ())]
        found = [(file.name, file.stat()) for file in files]
    except OSError:
        return ()
    if not all(stat.S_ISREG(it.st_mode) or stat.S_ISDIR(it.st_mode) for _, it in found):
        return ()
    return tuple((name, it.st_mtime_ns, it.st_size, it.st_ino) for name, it in found)


def check_read_again(path: Path | None, key: str) -> None:
    """Refuse what can be read once only, as a pipe, where it is read again and again.

    Args:
        path: What was named; what is not there is left to who reads it.
        key: Name of the setting, for errors.

    Raises:
        ConfigError: It is neither a file nor a directory.
    """
    if path is not None and path.exists() and not (path.is_file() or path.is_dir()):
        expected = "a file, since it is read again whenever it changes: a pipe is read once"
        raise ConfigError(key, expected, str(path))


def _is_read_once(path: Path) -> bool:
    return path.exists() and not stamp(path)


@asynccontextmanager
async def following_tokens(
    path: Path | None, key: str, present: Callable[[tuple[Token, ...]], None]
) -> AsyncGenerator[None]:
    """Present the token in a file whenever it was written anew, until the end of the block.

    Of what cannot be read a second time nothing is expected.

    Args:
        path: The file; None for no token.
        key: Name of the setting, for errors.
        present: Takes the tokens.

    Raises:
        ConfigError: The file cannot be read when the block begins.
    """
    if path is None or _is_read_once(path):
        yield
        return
    seen, shown = stamp(path), read_tokens(path, key)

    async def follow() -> None:
        nonlocal seen, shown
        while True:
            await asyncio.sleep(_LOOK_INTERVAL)
            found = stamp(path)
            if found in (seen, ()):
                continue
            seen = found
            try:
                tokens = read_tokens(path, key)
            except ConfigError as error:
                _logger.warning("the token stays as it was: %s", error)
                continue
            if tokens != shown:
                shown = tokens
                _logger.info("a new token is in %s", path)
                present(tokens)

    follower = asyncio.create_task(follow(), name=f"follow {path}")
    try:
        yield
    finally:
        follower.cancel()
        await asyncio.wait([follower])
