"""``kvcs token``: make authorization tokens, and show what one says."""

import os
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from kvcs.c4m import (
    Action,
    ClaimNumbers,
    Claims,
    Match,
    MatchKind,
    Role,
    Scope,
    TokenConfig,
    TokenVerifier,
    mint,
    peek,
    role_scopes,
)
from kvcs.cli._errors import ExitCode
from kvcs.cli._keys import keys_option
from kvcs.cli._options import OUTPUT_FILE, Command, Decorator, Group, option, pass_output
from kvcs.cli._output import Output
from kvcs.cli._tokens import decode_token, encode_token
from kvcs.cli._units import DURATION
from kvcs.cli.relay.authorization import token_keys
from kvcs.cose import Algorithm, MacKey, SigningKey
from kvcs.errors import ConfigError, NotAuthentic, TokenRefused
from kvcs.keyring import KeyRing, Purpose, decode_keys, find_ring
from kvcs.keyring.files import read_file, write_file
from kvcs.keyring.jwk import JwkLimits
from kvcs.kv.identity import KVSP_PROVISIONAL
from kvcs.names import TrackNamespace

__all__ = ("token",)

_FIRST_FIELD: Final = b"kvcs-1"
_SCOPE_ID_BYTES: Final = 16
_TOKEN_ID_BYTES: Final = 16
_EVERY_SCOPE: Final = "all"
_MAX_TOKEN_BYTES: Final = 2**14
_CLAIM_NUMBER: Final = click.IntRange(min=0)
_MARKS: Final = {MatchKind.EXACT: "", MatchKind.PREFIX: "begins ", MatchKind.SUFFIX: "ends "}


@click.group(cls=Group)
def token() -> None:
    """Make authorization tokens, and show what one says."""


def _claim_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the numbers of the claims that the registry has none for; `_numbers` takes the values."""
    decorators: tuple[Decorator, ...] = (
        option(
            "--revalidation-claim",
            type=_CLAIM_NUMBER,
            default=ClaimNumbers().revalidation,
            help="Number of the claim moqt-reval (authorization.revalidation_claim of the relay).",
        ),
        option(
            "--moqt-claim",
            type=_CLAIM_NUMBER,
            default=ClaimNumbers().moqt,
            help="Number of the claim with what a token allows (authorization.moqt_claim of the "
            "relay).",
        ),
    )
    for decorator in decorators:
        function = decorator(function)
    return function


@token.command("mint", cls=Command)
@option(
    "--scope",
    "scopes",
    multiple=True,
    help="Scope ID, 32 hex digits, or all for every scope; by default that of the key ring. May "
    "be given several times.",
)
@option(
    "--role",
    "roles",
    type=click.Choice([str(role) for role in Role]),
    multiple=True,
    required=True,
    help="Who presents it: a producer publishes, a consumer finds and takes, a relay does both "
    "for all that are behind it. May be given several times.",
)
@option(
    "--ttl",
    type=DURATION,
    default="1h",
    help="How long it is good; relays take it for some seconds "
    "more (authorization.leeway), since clocks differ.",
)
@option(
    "--revalidate",
    type=DURATION,
    help="How often relays look again whether it is good; some cannot, and refuse it.",
)
@option("--issuer", help="Who makes it (claim iss).")
@option(
    "--audience",
    "audiences",
    multiple=True,
    help="Which relay may take it (claim aud), by the name in its settings; by default every one. "
    "May be given several times.",
)
@option(
    "--once",
    is_flag=True,
    help="It opens one session: the first that uses it. In every other one it is refused, so that "
    "a reconnect needs another token.",
)
@option(
    "--key-file",
    type=OUTPUT_FILE,
    help="File with the private JWK that signs, instead of the token key of the key ring.",
)
@option(
    "-o",
    "--output",
    "destination",
    type=OUTPUT_FILE,
    help="File to write, readable by you only; it is replaced as a whole. By default the token "
    "is shown.",
)
@_claim_options
@keys_option()
@pass_output
def mint_token(output: Output, **settings: Any) -> None:
    """Make a token for a relay whose policy is c4m.

    It is signed with the token key of the ring (kvcs keys new token); relays verify it with the
    public part (kvcs keys export relay). A token is a secret until it expires.

    \b
    Examples:
      kvcs token mint --role producer --ttl 12h -o producer.token
      kvcs token mint --scope 6d1c6481cd428737da312c089db3832a --role consumer
    """  # noqa: D301 - click reads the backslash
    numbers = _numbers(settings["moqt_claim"], settings["revalidation_claim"])
    key_file, ring = settings["key_file"], find_ring(settings["keys"], os.environ)
    key = _key_of(ring) if key_file is None else _key_in(key_file)
    now = time.time()
    namespaces = _namespaces(settings["scopes"], ring)
    claims = Claims(
        scopes=tuple(
            scope for role in settings["roles"] for scope in role_scopes(Role(role), namespaces)
        ),
        expires_at=float(int(now + settings["ttl"])),
        issued_at=float(int(now)),
        revalidation=settings["revalidate"],
        issuer=settings["issuer"],
        audience=settings["audiences"],
        token_id=secrets.token_bytes(_TOKEN_ID_BYTES) if settings["once"] else None,
        is_for_one_session=settings["once"],
    )
    octets = mint(claims, key, numbers=numbers)
    most = TokenConfig().max_token_bytes
    if len(octets) > most:
        output.note(
            f"note: a token of {len(octets)} octets; relays take at most {most}, unless "
            "authorization.max_token_bytes says more"
        )
    made = encode_token(octets)
    destination: Path | None = settings["destination"]
    shown = _describe(claims)
    if destination is None:
        output.result({"token": made, **shown})
        output.text(made)
    else:
        write_file(destination, made.encode() + b"\n", key="--output")
        output.result({"file": str(destination), **shown})
        output.text(f"{destination}: {', '.join(settings['roles'])}, until {_time(claims)}")


@token.command(cls=Command)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@option(
    "--token-keys",
    type=click.Path(path_type=Path),
    help="Key ring, or file with a JWK or a JWK Set, that a relay would verify it with.",
)
@option("--audience", help="What that relay is called, for tokens that are for one.")
@option(
    "--require-audience",
    is_flag=True,
    help="That relay refuses tokens that are for no relay in particular.",
)
@_claim_options
@pass_output
def inspect(output: Output, file: Path, token_keys: Path | None, **settings: Any) -> int:
    """Show what the token in FILE says (- is standard input), and whether it is good.

    Without --token-keys nothing of it is verified. The exit code is 4 if it is not good. The
    token itself is not shown.

    \b
    Examples:
      kvcs token inspect producer.token --token-keys relay.json
    """  # noqa: D301 - click reads the backslash
    numbers = _numbers(settings.pop("moqt_claim"), settings.pop("revalidation_claim"))
    config = TokenConfig(numbers=numbers, **settings)
    made = _read(file)
    try:
        found = peek(made, config)
    except NotAuthentic as error:
        # What can be done about a manifest that nobody signed is of no use here.
        raise TokenRefused(error.reason, error.text) from error
    fault = _fault(made, token_keys, config)
    is_expired = time.time() >= found.claims.expires_at
    kid = None if found.kid is None else found.kid.decode("ascii", "backslashreplace")
    verified = None if token_keys is None else fault is None
    output.result(
        {
            "good": verified and not is_expired,
            "fault": fault,
            "expired": is_expired,
            "algorithm": _algorithm(found.algorithm),
            "kid": kid,
            **_describe(found.claims),
        }
    )
    if token_keys is None:
        verdict = "not verified: no --token-keys"
    elif fault is None and is_expired:
        verdict = "expired; relays take it for some seconds more"
    else:
        verdict = fault or "good"
    lines = [
        f"verdict    {verdict}",
        f"signed     {_algorithm(found.algorithm)}, key {kid or 'not named'}",
        f"expires    {_time(found.claims)}{' (over)' if is_expired else ''}",
        *(["opens      one session, the first that uses it"] * found.claims.is_for_one_session),
        *(f"{name:10} {value}" for name, value in _parties(found.claims).items()),
        *(f"allows     {_scope_text(scope)}" for scope in found.claims.scopes),
    ]
    output.text("\n".join(lines))
    return ExitCode.REFUSED if fault or is_expired else ExitCode.DONE


def _fault(made: bytes, keys: Path | None, config: TokenConfig) -> str | None:
    """Return why a relay would refuse a token; None if it would not, or nobody asked."""
    if keys is None:
        return None
    verifier = TokenVerifier(token_keys(keys), config)
    try:
        verifier.verify(made, wall=time.time())
    except (NotAuthentic, TokenRefused) as error:
        return str(error)
    return None


def _numbers(moqt: int, revalidation: int) -> ClaimNumbers:
    """Return the numbers of the claims.

    Raises:
        ConfigError: They are the same, or one is that of another claim.
    """
    try:
        return ClaimNumbers(moqt=moqt, revalidation=revalidation)
    except ConfigError as error:
        flag = f"--{error.key.replace('_', '-')}"
        raise ConfigError(flag, error.expected, error.got) from error


def _key_of(ring: KeyRing) -> SigningKey | MacKey:
    key = ring.token_key
    if key is None:
        raise ConfigError("key ring", "a token key: kvcs keys new token makes one")
    return key


def _key_in(path: Path) -> SigningKey | MacKey:
    content = read_file(path, max_bytes=JwkLimits().max_bytes)
    if content is None:
        raise ConfigError("--key-file", "a readable file", f"{path}: not there")
    return _key_of(decode_keys(content, str(path), Purpose.TOKEN))


def _namespaces(scopes: tuple[str, ...], ring: KeyRing) -> list[TrackNamespace]:
    """Return the namespaces that begin a scope each.

    Raises:
        ConfigError: One is no Scope ID, or none is named and the ring has none.
    """
    if not scopes:
        if ring.scope_key is None:
            raise ConfigError(
                "--scope", "a Scope ID, or a key ring with a scope key: kvcs scope new makes one"
            )
        return [TrackNamespace((_FIRST_FIELD, KVSP_PROVISIONAL.scope_id(ring.scope_key)))]
    return [_namespace(scope) for scope in scopes]


def _namespace(scope: str) -> TrackNamespace:
    if scope == _EVERY_SCOPE:
        return TrackNamespace((_FIRST_FIELD,))
    try:
        scope_id = bytes.fromhex(scope)
    except ValueError:
        scope_id = b""
    if len(scope_id) != _SCOPE_ID_BYTES:
        raise ConfigError("--scope", f"{2 * _SCOPE_ID_BYTES} hex digits, or {_EVERY_SCOPE}", scope)
    return TrackNamespace((_FIRST_FIELD, scope_id))


def _read(file: Path) -> bytes:
    """Read a token.

    Raises:
        ConfigError: The file cannot be read, or holds no token.
    """
    try:
        with click.open_file(str(file), "rb") as stream:
            content = stream.read(_MAX_TOKEN_BYTES + 1)
    except OSError as error:
        raise ConfigError("FILE", "a readable file", f"{file}: {error.strerror}") from error
    made = decode_token(content) if len(content) <= _MAX_TOKEN_BYTES else None
    if made is None:
        raise ConfigError("FILE", "a CWT, in base64url or as octets", str(file))
    return made


def _describe(claims: Claims) -> dict[str, Any]:
    return {
        "expires_at": claims.expires_at,
        "revalidation": claims.revalidation,
        "one_session": claims.is_for_one_session,
        **_parties(claims),
        "scopes": [
            {
                "actions": [_action(number) for number in sorted(scope.actions)],
                "namespace": [_match_text(match) for match in scope.namespace],
                "exact": scope.is_exact,
                "track": None if scope.track is None else _match_text(scope.track),
            }
            for scope in claims.scopes
        ],
    }


def _parties(claims: Claims) -> dict[str, str]:
    parties = {
        "issuer": claims.issuer,
        "subject": claims.subject,
        "audience": ", ".join(claims.audience) or None,
    }
    return {name: value for name, value in parties.items() if value is not None}


def _scope_text(scope: Scope) -> str:
    actions = ", ".join(_action(number) for number in sorted(scope.actions))
    where = " / ".join(map(_match_text, scope.namespace)) or "everything"
    end = "" if scope.is_exact or not scope.namespace else " and below"
    track = "" if scope.track is None else f", Track {_match_text(scope.track)}"
    return f"{actions} in {where}{end}{track}"


def _action(number: int) -> str:
    try:
        return Action(number).name
    except ValueError:
        return str(number)


def _match_text(match: Match) -> str:
    octets = match.octets
    is_text = octets.isascii() and octets.decode("ascii").isprintable()
    return _MARKS[match.kind] + (octets.decode("ascii") if is_text else octets.hex())


def _algorithm(number: int) -> str:
    try:
        return Algorithm(number).name
    except ValueError:
        return str(number)


def _time(claims: Claims) -> str:
    try:
        return datetime.fromtimestamp(claims.expires_at, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return "a time that no calendar has"
