"""``kvcs scope``: scope keys."""

from dataclasses import replace
from pathlib import Path

import click

from kvcs.cli._keys import (
    differing_ring,
    keys_option,
    load_member,
    load_scope_key,
    member_options,
    ring_directory,
    write_scope_key,
)
from kvcs.cli._options import OUTPUT_FILE, Command, Group, pass_output
from kvcs.cli._output import Output
from kvcs.keyring import Purpose, change_ring, new_secret
from kvcs.kv.identity import KVSP_PROVISIONAL, ScopeKey

__all__ = ("scope",)


@click.group(cls=Group)
def scope() -> None:
    """Make scope keys: who has the key can find and name the caches of the scope."""


@scope.command(cls=Command)
@click.argument("path", type=OUTPUT_FILE, required=False)
@keys_option()
@pass_output
def new(output: Output, path: Path | None, keys: Path | None) -> None:
    """Make a scope key in the key ring, or in the file PATH, and show its Scope ID.

    Only you can read it; give it only to members of the scope.

    \b
    Examples:
      kvcs scope new
      kvcs scope new scope.key
    """  # noqa: D301 - click reads the backslash
    if path is not None:
        key, where = write_scope_key(path), path
        if differing_ring(key, keys):
            output.note(
                "note: the key ring here has the key of another scope, and no command takes the "
                "two together; for a second scope make a second ring: kvcs scope new --keys "
                "DIRECTORY"
            )
    else:
        made = new_secret()
        where = ring_directory(keys)
        change_ring(where, lambda ring: ring.added(Purpose.SCOPE, replace(made, kid="")))
        key = ScopeKey(made.secret)
    scope_id = KVSP_PROVISIONAL.scope_id(key).hex()
    output.result({"path": str(where), "scope_id": scope_id})
    output.text(
        f"Scope ID {scope_id}\nThe key is in {where}; give it only to members of the scope."
    )


@scope.command(cls=Command)
@member_options
@pass_output
def show(output: Output, keys: Path | None, scope_key_file: Path | None) -> None:
    """Show the Scope ID: relays and tokens name the scope by it. It is no secret.

    \b
    Examples:
      kvcs scope show
    """  # noqa: D301 - click reads the backslash
    if scope_key_file is None:
        scope_key = load_member(keys, None).scope_key
    else:  # Whatever ring is there: nothing is done with the two together.
        scope_key = load_scope_key(scope_key_file)
    scope_id = KVSP_PROVISIONAL.scope_id(scope_key).hex()
    output.result({"scope_id": scope_id})
    output.text(scope_id)
