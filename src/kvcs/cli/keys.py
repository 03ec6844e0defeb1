"""``kvcs keys``: make, share, take in, rotate and list keys."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from kvcs.cli._keys import NEW_FILE, keys_option, ring_directory
from kvcs.cli._options import (
    INPUT_FILE,
    OUTPUT_FILE,
    Command,
    Decorator,
    Group,
    option,
    pass_output,
)
from kvcs.cli._output import Output
from kvcs.errors import ConfigError
from kvcs.keyring import (
    Jwk,
    KeyKind,
    KeyRing,
    Purpose,
    Role,
    change_ring,
    decode_keys,
    decode_ring,
    encode_ring,
    encode_set,
    find_ring,
    new_object_key,
    new_pair,
    new_secret,
)
from kvcs.keyring.files import check_file, read_file, write_file
from kvcs.keyring.jwk import JwkLimits, decode_document
from kvcs.kv.identity import KVSP_PROVISIONAL
from kvcs.kv.sealing import CipherSuite

__all__ = ("keys",)

_ROTATED: Final = [str(purpose) for purpose in Purpose if purpose.has_current]
_PAIRS: Final = {"es256": KeyKind.P256, "eddsa": KeyKind.ED25519}
_HS256: Final = "hs256"
_SUITES: Final = {
    "aes-128-gcm": CipherSuite.AES_128_GCM_SHA256_128,
    "aes-256-gcm": CipherSuite.AES_256_GCM_SHA512_128,
}
_NAMES: Final = {int(suite): name for name, suite in _SUITES.items()}
_WHAT: Final = {
    Purpose.SCOPE: "finds and names the caches of the scope",
    Purpose.PRODUCER: "signs manifests",
    Purpose.TRUSTED: "is believed when it signs manifests",
    Purpose.OBJECT: "seals and opens Objects",
    Purpose.TOKEN: "signs authorization tokens",
    Purpose.VERIFIER: "verifies authorization tokens",
}


@click.group(cls=Group)
def keys() -> None:
    """Make, share, take in, rotate and list the keys of a ring."""


def _making_options(function: Callable[..., Any]) -> Callable[..., Any]:
    decorators: list[Decorator] = [
        click.argument("purpose", type=click.Choice(_ROTATED)),
        option(
            "--algorithm",
            type=click.Choice([*_PAIRS, _HS256]),
            show_default="es256",
            help="What a producer key (es256, eddsa) or a token key (es256, hs256) signs with. "
            "With hs256 whoever verifies tokens can make them.",
        ),
        option(
            "--suite",
            type=click.Choice([*_SUITES]),
            show_default="aes-128-gcm",
            help="Cipher suite of an object key.",
        ),
        option("--kid", help="Name of the key; by default one that is made."),
        keys_option(),
    ]
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


@keys.command(cls=Command)
@_making_options
@pass_output
def new(output: Output, purpose: str, **settings: Any) -> None:
    """Make a key: the first one is used at once, another one after the next rotation.

    A producer key signs manifests, an object key seals Objects, a token key signs
    authorization tokens.

    \b
    Examples:
      kvcs keys new producer
      kvcs keys new object
    """  # noqa: D301 - click reads the backslash
    directory = ring_directory(settings.pop("keys"))
    key = _make(Purpose(purpose), **settings)
    ring = change_ring(directory, lambda ring: ring.added(Purpose(purpose), key))
    described = _describe(ring, Purpose(purpose), key)
    output.result(described)
    output.text(f"{purpose} key {key.kid}, {described['state']}, in {directory}")


@keys.command(cls=Command)
@_making_options
@pass_output
def rotate(output: Output, purpose: str, **settings: Any) -> None:
    """Use the next key from now on; where none waits, one is made.

    The key that was used stays: what it signed is still verified, what it sealed still opened.
    Others need the next key first: make it with kvcs keys new, hand it over, then rotate.

    \b
    Examples:
      kvcs keys rotate object
    """  # noqa: D301 - click reads the backslash
    directory = ring_directory(settings.pop("keys"))
    kind = Purpose(purpose)
    ring = change_ring(directory, lambda ring: ring.rotated(kind, lambda: _make(kind, **settings)))
    key = ring.current(kind)
    assert key is not None
    output.result(_describe(ring, kind, key))
    output.text(f"{purpose} key {key.kid} is current")


def _make(purpose: Purpose, algorithm: str | None, suite: str | None, kid: str | None) -> Jwk:
    """Make a key.

    Raises:
        ConfigError: Something is named that the purpose has no use for.
    """
    if purpose is Purpose.OBJECT:
        if algorithm is not None:
            raise ConfigError("--algorithm", "a producer or token key; object keys have --suite")
        return new_object_key(_SUITES[suite or "aes-128-gcm"], kid=kid or "")
    if suite is not None:
        raise ConfigError("--suite", "an object key; other keys have --algorithm")
    if algorithm == _HS256 and purpose is Purpose.TOKEN:
        return new_secret(kid or "")
    if algorithm == _HS256 or (algorithm == "eddsa" and purpose is Purpose.TOKEN):
        allowed = "es256 or hs256" if purpose is Purpose.TOKEN else "es256 or eddsa"
        raise ConfigError("--algorithm", f"{allowed} for a {purpose} key", algorithm)
    return new_pair(_PAIRS[algorithm or "es256"], kid or "")


@keys.command(cls=Command)
@click.argument("purpose", type=click.Choice(["producer", "token"]))
@option("-o", "--output", "destination", type=OUTPUT_FILE, help="File to write, a new one.")
@keys_option()
@pass_output
def public(output: Output, purpose: str, destination: Path | None, **settings: Any) -> None:
    """Show the public keys of the ring, as a JWK Set: they may be shared with everybody.

    Those of the producer keys are for the members of the scope, who trust what is signed with
    them; those of the token keys are for relays.

    \b
    Examples:
      kvcs keys public producer -o site-a.jwks
    """  # noqa: D301 - click reads the backslash
    ring = find_ring(settings["keys"], os.environ)
    kind = Purpose(purpose)
    found = ring.public(kind)
    if not found.keys:
        expected = f"a {purpose} key that has a public part (kvcs keys new {purpose})"
        raise ConfigError("key ring", expected)
    if destination is not None:
        _write_new(destination, encode_set(kind, found), is_public=True)
    output.result(found.to_json())
    output.text(json.dumps(found.to_json(), indent=2) if destination is None else str(destination))


@keys.command("import", cls=Command)
@click.argument("file", type=INPUT_FILE)
@option(
    "--as",
    "purpose",
    type=click.Choice([str(purpose) for purpose in Purpose]),
    help="What a JWK or a JWK Set is for: trusted for the public keys of producers, verifier for "
    "what relays verify tokens with. Without it, FILE is what kvcs keys export wrote.",
)
@keys_option()
@pass_output
def take(output: Output, file: Path, purpose: str | None, **settings: Any) -> None:
    """Take the keys in FILE into the ring; what is used now stays in use.

    \b
    Examples:
      kvcs keys import site-a.jwks --as trusted
      kvcs keys import member.json
    """  # noqa: D301 - click reads the backslash
    directory = ring_directory(settings["keys"])
    limit = JwkLimits().max_bytes
    kind = None if purpose is None else Purpose(purpose)
    content = read_file(file, max_bytes=limit, is_public=True)
    if content is None:
        raise ConfigError("FILE", "a readable file", f"{file}: not there")
    where = str(file)
    other = _ring_in(content, where) if kind is None else decode_keys(content, where, kind)
    if kind is None or not kind.is_public:
        check_file(file, is_public=False)
    ring = change_ring(directory, lambda ring: ring.merged(other))
    taken = [_describe(ring, kind, key) for kind in other.sets for key in other.keys(kind)]
    output.result({"keys": taken})
    output.text("\n".join(f"{_name_of(key)} {key['what']}" for key in taken))


@keys.command(cls=Command)
@click.argument("role", type=click.Choice([str(role) for role in Role]))
@click.argument("file", type=OUTPUT_FILE)
@keys_option()
@pass_output
def export(output: Output, role: str, file: Path, **settings: Any) -> None:
    """Write what a ROLE needs of this ring to a new FILE, for kvcs keys import or --keys.

    A member gets the scope key, the object keys and the public keys of the producers: it reads
    everything, and makes a producer key of its own to publish. The file is a secret, and only you
    can read it. A relay gets the public keys that tokens are verified with, and can neither make a
    token nor read anything: everybody may read that file. Private keys stay here. A FILE that is
    there is not replaced: write beside it, and move the new one in its place.

    \b
    Examples:
      kvcs keys export member site-b.json
      kvcs keys export relay relay.json
    """  # noqa: D301 - click reads the backslash
    ring = find_ring(settings["keys"], os.environ)
    shared = ring.shared(Role(role))
    if not shared.sets:
        expected = "keys for a relay: kvcs keys new token makes one"
        raise ConfigError("key ring", expected if role == Role.RELAY else "keys to hand over")
    if role == Role.RELAY and any(
        key.kind is KeyKind.OCTETS for key in ring.believed(Purpose.VERIFIER)
    ):
        output.note("note: left out the hs256 keys: who verifies with one can make tokens")
    _write_new(file, encode_ring(shared), is_public=role == Role.RELAY)
    counts = {str(purpose): len(found.keys) for purpose, found in shared.sets.items()}
    output.result({"file": str(file), "keys": counts})
    secrecy = "; it holds no secret" if role == Role.RELAY else "; it is a secret"
    output.text(f"{file}: {', '.join(f'{name} {n}' for name, n in counts.items())}{secrecy}")


@keys.command(cls=Command)
@click.argument("purpose", type=click.Choice([str(purpose) for purpose in Purpose]))
@click.argument("kid")
@keys_option()
@pass_output
def remove(output: Output, purpose: str, kid: str, **settings: Any) -> None:
    """Take the key KID out of the ring: a producer is no longer trusted, an older key is forgotten.

    What was sealed with a forgotten object key cannot be opened any more.

    \b
    Examples:
      kvcs keys remove trusted 0cebf1bc9880748a
    """  # noqa: D301 - click reads the backslash
    directory = ring_directory(settings["keys"])
    kind = Purpose(purpose)
    ring = change_ring(directory, lambda ring: ring.removed(kind, kid))
    output.result({"purpose": purpose, "kid": kid})
    output.text(f"{purpose} key {kid} is removed")
    if kind in (Purpose.TRUSTED, Purpose.PRODUCER) and not ring.believed(Purpose.TRUSTED):
        output.note("note: nobody is left to trust: kvcs fetch takes what anybody published")
    if kind is Purpose.OBJECT and not ring.keys(kind):
        output.note("note: no object key is left: Objects are published and taken in clear")


@keys.command("list", cls=Command)
@keys_option()
@pass_output
def show(output: Output, **settings: Any) -> None:
    """List the keys of the ring; no secret is shown.

    \b
    Examples:
      kvcs keys list
    """  # noqa: D301 - click reads the backslash
    ring = find_ring(settings["keys"], os.environ)
    found = [_describe(ring, kind, key) for kind in ring.sets for key in ring.keys(kind)]
    scope_key = ring.scope_key
    scope_id = None if scope_key is None else KVSP_PROVISIONAL.scope_id(scope_key).hex()
    output.result({"scope_id": scope_id, "keys": found})
    if scope_id is not None:
        output.text(f"Scope ID {scope_id}")
    if not found:
        output.text("no keys; kvcs scope new makes a scope key")
        return
    columns = ("purpose", "kid", "algorithm", "state", "what")
    output.text(
        "\n".join(
            f"{key['purpose']:<8}  {key['kid'] or '-':<16}  {key['algorithm']:<11}  "
            f"{key['state']:<7}  {key['what']}"
            for key in [dict(zip(columns, columns, strict=True)), *found]
        )
    )


def _describe(ring: KeyRing, purpose: Purpose, key: Jwk) -> dict[str, str]:
    """Return what may be shown of a key."""
    match key.kind:
        case KeyKind.P256:
            algorithm = "es256"
        case KeyKind.ED25519:
            algorithm = "eddsa"
        case KeyKind.OCTETS if purpose is Purpose.OBJECT:
            algorithm = _NAMES.get(key.suite or 0, f"suite {key.suite}")
        case KeyKind.OCTETS:
            algorithm = "-" if purpose is Purpose.SCOPE else _HS256
    return {
        "purpose": str(purpose),
        "kid": key.kid,
        "algorithm": algorithm,
        "state": str(ring.state(purpose, key)),
        "what": _WHAT[purpose],
    }


def _ring_in(content: bytes, where: str) -> KeyRing:
    """Decode what kvcs keys export wrote.

    Raises:
        ConfigError: It is something else; for what keys public wrote, what is missing.
    """
    if not {"keys", "kty"}.isdisjoint(decode_document(content, where)):
        expected = "what the keys in FILE are for: --as trusted for a producer's public keys"
        raise ConfigError("--as", expected)
    return decode_ring(content, where)


def _name_of(described: dict[str, str]) -> str:
    return " ".join(filter(None, (described["purpose"], "key", described["kid"])))


def _write_new(path: Path, content: bytes, *, is_public: bool) -> None:
    if path.exists():
        raise ConfigError("FILE", NEW_FILE, f"{path}: it is there")
    write_file(path, content, key="FILE", is_public=is_public)
