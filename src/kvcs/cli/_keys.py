"""The key ring as commands take it: ``--keys``, and the scope key in it or in a file of its own."""

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from kvcs.cli._errors import Unwritable
from kvcs.cli._options import OUTPUT_FILE, Decorator, option
from kvcs.client.config import ConsumerConfig, PublisherConfig
from kvcs.errors import ConfigError
from kvcs.keyring import KEYS_JSON_VARIABLE, KeyRing, default_directory, find_ring
from kvcs.keyring.files import read_file
from kvcs.keyring.source import ring_place
from kvcs.kv.identity import ScopeKey, parse_scope_key
from kvcs.kv.signing import TrustedProducers

__all__ = (
    "NEW_FILE",
    "Member",
    "differing_ring",
    "find_scope_key",
    "keys_option",
    "load_member",
    "load_scope_key",
    "member_options",
    "ring_directory",
    "write_scope_key",
)

NEW_FILE: Final = "a file that is not there yet, since none is replaced"
"""What a file with keys must be: move the old one away, or write beside it and move the new one."""

# A key file has at most 64 digits and a line end; more is read only to tell that it is too long.
_MAX_KEY_FILE_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class Member:
    """Who a command acts as: a member of one scope, with the keys that it has.

    Attributes:
        scope_key: Key of the scope.
        ring: The keys; empty where there are none.
        allow_unsigned: Take publications whoever made them, although the ring says whom to trust.
    """

    scope_key: ScopeKey
    ring: KeyRing
    allow_unsigned: bool = False

    def publisher_config(self, **settings: Any) -> PublisherConfig:
        """Return settings with which manifests are signed and Objects sealed, if there are keys.

        Args:
            settings: Further settings.

        Raises:
            ConfigError: One of them cannot be.
        """
        return PublisherConfig(
            signing_key=self.ring.signing_key,
            object_key=self.ring.object_keys.current,
            **settings,
        )

    def consumer_config(self, **settings: Any) -> ConsumerConfig:
        """Return settings that demand what the ring has keys for: signatures, sealed Objects.

        Args:
            settings: Further settings.

        Raises:
            ConfigError: One of them cannot be.
        """
        trusted = () if self.allow_unsigned else self.ring.trusted_producers
        object_keys = self.ring.object_keys
        return ConsumerConfig(
            trusted_producers=TrustedProducers(trusted) if trusted else None,
            allow_unverified=self.allow_unsigned,
            object_keys=object_keys if len(object_keys) else None,
            **settings,
        )


def load_scope_key(path: Path) -> ScopeKey:
    """Read a scope key file.

    Raises:
        ConfigError: The file cannot be read, others could read it, or it holds no scope key.
    """
    try:
        content = read_file(path, max_bytes=_MAX_KEY_FILE_BYTES)
    except ConfigError as error:
        raise ConfigError("--scope-key-file", error.expected, error.got) from error
    if content is None:
        raise ConfigError("--scope-key-file", "a readable file", f"{path}: not there")
    try:
        return parse_scope_key(content)
    except ConfigError as error:
        got = f"{path}: {error.got}"
        raise ConfigError("--scope-key-file", error.expected, got) from error


def write_scope_key(path: Path) -> ScopeKey:
    """Write a new random scope key to a new file, which only its owner can read.

    Raises:
        ConfigError: The file exists: who lost its key would lose the scope.
        Unwritable: It cannot be written.
    """
    key = ScopeKey(secrets.token_bytes(32))
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise ConfigError("PATH", NEW_FILE, f"{path}: it is there") from error
    except OSError as error:
        got = f"{path}: {error.strerror}"
        raise Unwritable("PATH", "a file that can be written", got) from error
    with os.fdopen(descriptor, "w") as file:
        file.write(key.octets.hex() + "\n")
    return key


def differing_ring(scope_key: ScopeKey, keys: Path | None) -> bool:
    """Tell whether the ring that commands use has the key of another scope; they refuse both."""
    try:
        ring = find_ring(keys, os.environ)
    except ConfigError:
        return False  # Commands that need it say what is wrong with it.
    return ring.scope_key not in (None, scope_key)


def keys_option() -> Decorator:
    """Add ``--keys``."""
    return option(
        "--keys",
        type=click.Path(path_type=Path),
        show_default="~/.config/kvcs/keys",
        help="Directory with the key ring, or a file or pipe with one as JSON; so is the text in "
        f"{KEYS_JSON_VARIABLE}.",
    )


def member_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--keys`` and ``--scope-key-file``; `load_member` takes the values."""
    scope_key = option(
        "--scope-key-file",
        type=OUTPUT_FILE,
        help="File with the scope key, 32 octets or 64 hex digits, for who has no key ring.",
    )
    return keys_option()(scope_key(function))


def load_member(keys: Path | None, scope_key_file: Path | None) -> Member:
    """Load the ring and the scope key.

    Raises:
        ConfigError: Neither has a scope key, both have and they differ, or one cannot be used.
    """
    ring, scope_key = _load(keys, scope_key_file)
    if scope_key is None:
        expected = "a scope key: kvcs scope new makes one, --scope-key-file names one"
        raise ConfigError("key ring", expected)
    if keys is not None and not ring.sets:
        # Without keys nothing is demanded of anybody: not what is meant where a ring is named.
        raise ConfigError("--keys", "a key ring with a key in it", str(keys))
    return Member(scope_key, ring)


def find_scope_key(keys: Path | None, scope_key_file: Path | None) -> ScopeKey | None:
    """Return the scope key, or None where nobody named one.

    Raises:
        ConfigError: Two were named and they differ, or one cannot be used.
    """
    return _load(keys, scope_key_file)[1]


def _load(keys: Path | None, scope_key_file: Path | None) -> tuple[KeyRing, ScopeKey | None]:
    ring = find_ring(keys, os.environ)
    if scope_key_file is None:
        return ring, ring.scope_key
    scope_key = load_scope_key(scope_key_file)
    if ring.scope_key not in (None, scope_key):
        # To sign, seal or believe with the keys of another scope would be worse than to stop.
        expected = (
            f"the scope key of the key ring, {ring_place(keys, os.environ)} (leave the option out, "
            "or name the ring of the other scope with --keys)"
        )
        raise ConfigError("--scope-key-file", expected, f"{scope_key_file}, of another scope")
    return ring, scope_key


def ring_directory(keys: Path | None) -> Path:
    """Return the directory whose ring a command changes.

    Raises:
        ConfigError: A file was named, or a ring is in the environment: neither can be changed.
    """
    if keys is None:
        if os.environ.get(KEYS_JSON_VARIABLE):
            raise ConfigError(KEYS_JSON_VARIABLE, "no ring there: this command changes a directory")
        return default_directory(os.environ)
    if keys.exists() and not keys.is_dir():
        raise ConfigError("--keys", "a directory: this command changes it", str(keys))
    return keys
