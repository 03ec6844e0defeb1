"""``kvcs scope``: scope keys."""

import os
import secrets
from pathlib import Path
from typing import Final

import click

from kvcs.cli._options import OUTPUT_FILE, Command, Decorator, Group, option, pass_output
from kvcs.cli._output import Output
from kvcs.errors import ConfigError
from kvcs.kv.identity import KVSP_PROVISIONAL, ScopeKey, parse_scope_key

__all__ = ("load_scope_key", "scope", "scope_key_option", "write_scope_key")

# A key file has at most 64 digits and a line end; more is read only to tell that it is too long.
_MAX_KEY_FILE_BYTES: Final = 128


def scope_key_option(*, required: bool = True) -> Decorator:
    """Add ``--scope-key-file``."""
    return option(
        "--scope-key-file",
        type=OUTPUT_FILE,
        required=required,
        help="File with the scope key: 32 octets, or 64 hex digits; kvcs scope new makes one.",
    )


def load_scope_key(path: Path) -> ScopeKey:
    """Read a scope key file.

    Raises:
        ConfigError: The file cannot be read or holds no scope key.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_KEY_FILE_BYTES)
    except OSError as error:
        got = f"{path}: {error.strerror}"
        raise ConfigError("--scope-key-file", "a readable file", got) from error
    return parse_scope_key(content)


def write_scope_key(path: Path) -> ScopeKey:
    """Write a new random scope key to a new file, which only its owner can read.

    Raises:
        ConfigError: The file exists, or cannot be written.
    """
    key = ScopeKey(secrets.token_bytes(32))
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigError("PATH", "a new file", f"{path}: {error.strerror}") from error
    with os.fdopen(descriptor, "w") as file:
        file.write(key.octets.hex() + "\n")
    return key


@click.group(cls=Group)
def scope() -> None:
    """Make scope keys: who has the key can find and name the caches of the scope."""


@scope.command(cls=Command)
@click.argument("path", type=OUTPUT_FILE)
@pass_output
def new(output: Output, path: Path) -> None:
    """Write a new scope key to PATH (readable by you only) and show its Scope ID."""
    scope_id = KVSP_PROVISIONAL.scope_id(write_scope_key(path)).hex()
    output.result({"path": str(path), "scope_id": scope_id})
    output.text(f"Scope ID {scope_id}\nThe key is in {path}; give it only to members of the scope.")
