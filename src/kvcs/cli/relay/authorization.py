"""The policy of a relay, made of its settings, and kept up to date with the files that they name.

Keys and the token for the parents are read again when SIGHUP arrives, and when their files have
changed. What cannot be read then changes nothing, and is a line in the log: a relay neither
forgets its keys nor ends because a file is being written. Where no key is left in what can be read,
somebody has withdrawn the last one, and everything is refused.
"""

import asyncio
import logging
import signal
import stat
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from kvcs.c4m import ClaimNumbers, TokenConfig, TokenKey
from kvcs.cli._tokens import check_read_again, following_tokens, stamp
from kvcs.cli.relay.schema import Authorization, Settings
from kvcs.errors import ConfigError
from kvcs.keyring import KeyRing, Purpose, decode_keys, decode_ring, load_ring
from kvcs.keyring.files import check_file, read_file
from kvcs.keyring.jwk import JwkLimits, decode_document
from kvcs.relay import Authorize, Relay, TokenPolicy, allow_all, deny_all

__all__ = ("following_files", "policy", "token_keys")

_KEY: Final = "authorization.keys (--token-keys)"
_FIXED: Final[dict[str, Authorize]] = {
    "this-machine": allow_all,
    "allow-anyone": allow_all,
    "deny": deny_all,
}

_logger = logging.getLogger("kvcs.cli")


def policy(settings: Settings) -> Authorize:
    """Return the policy.

    Raises:
        ConfigError: It has no keys, or they cannot be used or are in a pipe; or keys are named for
            another policy.
    """
    authorization = settings.authorization
    if authorization.policy != "c4m":
        if authorization.keys is not None:
            expected = f'no keys beside policy = "{authorization.policy}"'
            raise ConfigError(_KEY, expected)
        return _FIXED[authorization.policy]
    check_read_again(authorization.keys, _KEY)
    return TokenPolicy(token_keys(authorization.keys), _token_config(authorization))


def token_keys(path: Path | None) -> tuple[TokenKey, ...]:
    """Return the keys that verify tokens.

    Args:
        path: Directory of a key ring, a file with one, or a file with a JWK or a JWK Set.

    Raises:
        ConfigError: None was named, it cannot be used, or no key in it verifies tokens.
    """
    if path is None:
        raise ConfigError(_KEY, "a key ring, or a file with JSON Web Keys, that verifies tokens")
    keys = _keys_in(path)
    if not keys:
        raise ConfigError(_KEY, "at least one key that verifies tokens", str(path))
    return keys


@asynccontextmanager
async def following_files(relay: Relay, settings: Settings) -> AsyncGenerator[None]:
    """Keep a relay up to date with the files of its settings, until the end of the block."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(
            following_tokens(
                settings.upstream_token_file, "upstream_token_file", relay.authorize_upstream
            )
        )
        found = relay.policy
        if isinstance(found, TokenPolicy) and settings.authorization.keys is not None:
            follower = _Follower(relay, found, settings.authorization)
            await stack.enter_async_context(follower.following())
        yield


class _Follower:
    """Gives a policy its keys anew when they have changed."""

    def __init__(self, relay: Relay, used: TokenPolicy, authorization: Authorization) -> None:
        assert authorization.keys is not None
        self._relay = relay
        self._policy = used
        self._path = authorization.keys
        self._interval = authorization.reload_interval
        self._seen = stamp(self._path)
        self._keys = token_keys(self._path)
        self._asked = asyncio.Event()

    @asynccontextmanager
    async def following(self) -> AsyncGenerator[None]:
        """Look until the end of the block."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._asked.set)
        task = asyncio.create_task(self._follow(), name="follow token keys")
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            task.cancel()
            await asyncio.wait([task])

    async def _follow(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._interval):
                    await self._asked.wait()
            except TimeoutError:
                if stamp(self._path) == self._seen:
                    continue
            self._asked.clear()
            self._look()

    def _look(self) -> None:
        self._seen = stamp(self._path)
        if not self._seen:
            # To open a pipe that nobody writes to would hold up the relay.
            _logger.warning("the keys stay as they were: no file to read again: %s", self._path)
            return
        try:
            keys = _keys_in(self._path)
        except ConfigError as error:
            _logger.warning("the keys stay as they were: %s", error)
            return
        if keys:
            _logger.info("keys that verify tokens: %d", len(keys))
        else:
            _logger.error("no key in %s verifies tokens: everything is refused", self._path)
        if keys != self._keys:
            self._keys = keys
            self._policy.replace_keys(keys)
            self._relay.review()


def _keys_in(path: Path) -> tuple[TokenKey, ...]:
    """Return the keys that verify tokens, if there are any.

    Raises:
        ConfigError: What was named cannot be used.
    """
    try:
        return _ring(path).token_verifiers
    except ConfigError as error:
        raise ConfigError(_KEY, error.expected, error.got or _place(path, error.key)) from error


def _place(path: Path, key: str) -> str:
    return key if key.startswith(str(path)) else f"{path}: {key}"


def _ring(path: Path) -> KeyRing:
    try:
        is_directory = stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        expected = "a directory or a file that can be read"
        raise ConfigError(_KEY, expected, f"{path}: {error.strerror}") from error
    if is_directory:
        ring = load_ring(path)
        if ring is None:
            raise ConfigError(_KEY, "a directory or a file", f"{path}: not there")
        return ring
    content = read_file(path, max_bytes=JwkLimits().max_bytes, is_public=True)
    if content is None:
        raise ConfigError(_KEY, "a directory or a file", f"{path}: not there")
    ring = _decode(content, path)
    keys = [key for found in ring.sets.values() for key in found.keys]
    check_file(path, is_public=not any(key.is_secret for key in keys))
    return ring


def _decode(content: bytes, path: Path) -> KeyRing:
    if decode_document(content, str(path), JwkLimits()) == {"keys": []}:
        return KeyRing()
    try:
        return decode_keys(content, str(path), Purpose.VERIFIER)
    except ConfigError as error:
        try:
            return decode_ring(content, str(path))
        except ConfigError:
            raise error from None


def _token_config(authorization: Authorization) -> TokenConfig:
    try:
        return TokenConfig(
            numbers=ClaimNumbers(
                moqt=authorization.moqt_claim, revalidation=authorization.revalidation_claim
            ),
            leeway=authorization.leeway,
            max_token_bytes=authorization.max_token_bytes,
            issuer=authorization.issuer,
            audience=authorization.audience,
            require_audience=authorization.require_audience,
        )
    except ConfigError as error:
        raise ConfigError(f"authorization.{error.key}", error.expected, error.got) from error
