"""The claims of a token: who may do what, from when until when.

A claim restricts what its token is good for, so a claim that is not known here makes the token
worthless here: it is refused, never ignored. The same holds for a token that never expires, and
for one that is meant for somebody else.

Source: draft-ietf-moq-c4m-01, Section 2; RFC 8392, Section 3; CTA-5007-B.
"""

import math
from dataclasses import dataclass
from typing import Final

import cbor2

from kvcs.c4m.scope import MAX_SCOPES, Scope, ScopeError
from kvcs.cose.cbor import CborLimits, CborValue, decode_cbor
from kvcs.errors import ConfigError, TokenRefused

__all__ = ("MAX_AUDIENCES", "ClaimNumbers", "Claims", "decode_claims", "encode_claims")

_ISSUER: Final = 1
_SUBJECT: Final = 2
_AUDIENCE: Final = 3
_EXPIRES: Final = 4
_NOT_BEFORE: Final = 5
_ISSUED: Final = 6
_TOKEN_ID: Final = 7
# Catreplay: the token may be used again, or not. It may also ask for a count, which is not kept.
_REPLAY: Final = 308
_PERMITTED, _PROHIBITED = 0, 1
# Those of RFC 8392, cnf of RFC 8747, and catreplay.
_REGISTERED: Final = frozenset({*range(1, 9), _REPLAY})
# Beyond it a number of seconds has no fraction, and no clock gets there.
_LAST_SECOND: Final = float(2**53)
MAX_AUDIENCES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimNumbers:
    """The numbers of the two claims of C4M, which have none in the registry yet.

    Attributes:
        moqt: Claim with the scopes; 327 in the vectors of the draft.
        revalidation: Claim moqt-reval; 328 there.

    Raises:
        ConfigError: They are the same, or one is a number of RFC 8392, of RFC 8747, or that of
            catreplay.
    """

    moqt: int = 327
    revalidation: int = 328

    def __post_init__(self) -> None:
        if self.moqt in _REGISTERED:
            raise ConfigError("moqt_claim", "a number that no other claim has", str(self.moqt))
        if self.revalidation in {*_REGISTERED, self.moqt}:
            got = str(self.revalidation)
            raise ConfigError("revalidation_claim", "a number that no other claim has", got)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a token says. Instants are wall-clock seconds since 1970.

    Attributes:
        scopes: What is allowed, each by itself; at least one.
        expires_at: End of the token.
        not_before: Begin of the token; None for no such claim.
        revalidation: Seconds after which what runs is to be decided anew; None for no such
            claim, 0 for never.
        issuer: Who made it.
        subject: Whom it was made for.
        audience: Who may take it; empty for everybody.
        issued_at: When it was made.
        token_id: Identifier of the token.
        is_for_one_session: It is good for the first session that uses it and for no other (claim
            catreplay); a relay knows it by its identifier.

    Raises:
        ConfigError: There are no scopes or too many, too many audiences or one without a name, a
            time is no time, or a token for one session has no identifier.
    """

    scopes: tuple[Scope, ...]
    expires_at: float
    not_before: float | None = None
    revalidation: float | None = None
    issuer: str | None = None
    subject: str | None = None
    audience: tuple[str, ...] = ()
    issued_at: float | None = None
    token_id: bytes | None = None
    is_for_one_session: bool = False

    def __post_init__(self) -> None:
        if not 0 < len(self.scopes) <= MAX_SCOPES:
            raise ConfigError("scopes", f"1..{MAX_SCOPES} of them", str(len(self.scopes)))
        if len(self.audience) > MAX_AUDIENCES:
            got = str(len(self.audience))
            raise ConfigError("audience", f"at most {MAX_AUDIENCES} names", got)
        if not all(self.audience):
            # Without a name it would be for everybody.
            raise ConfigError("audience", "a name", "an empty one")
        if self.is_for_one_session and not self.token_id:
            raise ConfigError("token_id", "octets, in a token for one session")
        times = (self.expires_at, self.not_before, self.revalidation, self.issued_at)
        for seconds in times:
            if seconds is not None and not 0 <= seconds <= _LAST_SECOND:
                raise ConfigError("claims", "times that are no less than 0", str(seconds))


def encode_claims(claims: Claims, numbers: ClaimNumbers | None = None) -> bytes:
    """Encode claims as the payload of a CWT; map keys in canonical order.

    Args:
        claims: The claims.
        numbers: Numbers of the claims of C4M.
    """
    numbers = numbers or ClaimNumbers()
    audience = claims.audience[0] if len(claims.audience) == 1 else list(claims.audience)
    found: dict[int, object] = {
        _ISSUER: claims.issuer,
        _SUBJECT: claims.subject,
        _AUDIENCE: audience or None,
        _EXPIRES: _plain(claims.expires_at),
        _NOT_BEFORE: _plain(claims.not_before),
        _ISSUED: _plain(claims.issued_at),
        _TOKEN_ID: claims.token_id,
        _REPLAY: _PROHIBITED if claims.is_for_one_session else None,
        numbers.moqt: [scope.to_claim() for scope in claims.scopes],
        numbers.revalidation: _plain(claims.revalidation),
    }
    present = {number: value for number, value in found.items() if value is not None}
    return cbor2.dumps(present, canonical=True)


def decode_claims(
    payload: bytes, numbers: ClaimNumbers | None = None, *, limits: CborLimits | None = None
) -> Claims:
    """Decode the payload of a CWT whose signature was verified.

    Args:
        payload: The octets that were signed.
        numbers: Numbers of the claims of C4M.
        limits: Bounds on the CBOR.

    Raises:
        TokenRefused: ``"form"``: not such claims; ``"claim"``: a claim that is not known here;
            ``"endless"``: it never expires.
    """
    numbers = numbers or ClaimNumbers()
    try:
        value = decode_cbor(payload, limits)
    except ValueError as error:
        raise TokenRefused("form", f"the claims of the token cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise TokenRefused("form", "the claims of the token are no map")
    reader = _Reader(value)
    if _EXPIRES not in value:
        raise TokenRefused("endless", "the token has no time at which it expires")
    is_for_one_session, token_id = reader.is_for_one_session(), reader.octets(_TOKEN_ID)
    if is_for_one_session and not token_id:
        raise TokenRefused("form", "a token for one session has no identifier")
    claims = Claims(
        scopes=reader.scopes(numbers.moqt),
        expires_at=reader.instant(_EXPIRES) or 0.0,
        not_before=reader.instant(_NOT_BEFORE),
        revalidation=reader.instant(numbers.revalidation),
        issuer=reader.text(_ISSUER),
        subject=reader.text(_SUBJECT),
        audience=reader.audience(),
        issued_at=reader.instant(_ISSUED),
        token_id=token_id,
        is_for_one_session=is_for_one_session,
    )
    reader.finish()
    return claims


class _Reader:
    """Takes claims out of a map, so that those which nobody took are left."""

    def __init__(self, claims: dict[int | str | bytes, CborValue]) -> None:
        self._left = dict(claims)

    def finish(self) -> None:
        """Refuse what is left.

        Raises:
            TokenRefused: Something is.
        """
        if self._left:
            unknown = ", ".join(sorted(_name(key) for key in self._left))
            raise TokenRefused("claim", f"claims that are not understood here: {unknown}")

    def scopes(self, number: int) -> tuple[Scope, ...]:
        """Take the scopes."""
        value = self._left.pop(number, None)
        if not isinstance(value, list) or not 0 < len(value) <= MAX_SCOPES:
            raise TokenRefused("form", f"claim {number} is no list of 1..{MAX_SCOPES} scopes")
        try:
            return tuple(map(Scope.from_claim, value))
        except ScopeError as error:
            raise TokenRefused("form", f"claim {number}: {error}") from None

    def instant(self, number: int) -> float | None:
        """Take a time in seconds."""
        if number not in self._left:
            return None
        value = self._left.pop(number)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TokenRefused("form", f"claim {number} is no number of seconds")
        if not math.isfinite(value) or not 0 <= value <= _LAST_SECOND:
            raise TokenRefused("form", f"claim {number} is no number of seconds")
        return float(value)

    def text(self, number: int) -> str | None:
        """Take a text."""
        if number not in self._left:
            return None
        value = self._left.pop(number)
        if not isinstance(value, str):
            raise TokenRefused("form", f"claim {number} is no text")
        return value

    def octets(self, number: int) -> bytes | None:
        """Take octets."""
        if number not in self._left:
            return None
        value = self._left.pop(number)
        if not isinstance(value, bytes):
            raise TokenRefused("form", f"claim {number} is not made of octets")
        return value

    def is_for_one_session(self) -> bool:
        """Take whether the token may not be used again."""
        value = self._left.pop(_REPLAY, _PERMITTED)
        if type(value) is not int or value not in (_PERMITTED, _PROHIBITED):
            raise TokenRefused("claim", f"claim {_REPLAY} asks for what is not known here")
        return value == _PROHIBITED

    def audience(self) -> tuple[str, ...]:
        """Take the audience, one text or several."""
        if _AUDIENCE not in self._left:
            return ()
        value = self._left.pop(_AUDIENCE)
        texts = value if isinstance(value, list) else [value]
        names = tuple(text for text in texts if isinstance(text, str))
        if not 0 < len(texts) <= MAX_AUDIENCES or len(names) < len(texts) or not all(names):
            raise TokenRefused("form", f"claim {_AUDIENCE} is no name, nor a list of some")
        return names


def _name(key: int | str | bytes) -> str:
    """Return what a claim that is unknown is called; the issuer's word is not repeated."""
    return str(key) if isinstance(key, int) else "one that has a name"


def _plain(seconds: float | None) -> float | None:
    """Return seconds as an integer where they are one."""
    return int(seconds) if seconds is not None and float(seconds).is_integer() else seconds
