"""Tokens: CWTs with the claims of C4M, made and verified.

A token is refused unless everything about it is understood: its envelope, its algorithm, which
its key decides and not the token, each claim, its times. The claims are not read before the
signature was verified.

Source: draft-ietf-moq-c4m-01, Section 7.1; RFC 8392, Sections 6 and 7.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kvcs.c4m.claims import ClaimNumbers, Claims, decode_claims, encode_claims
from kvcs.cose import (
    CborLimits,
    CoseLimits,
    MacKey,
    SigningKey,
    VerifyingKey,
    encode_mac0,
    encode_sign1,
    open_mac0,
    open_sign1,
)
from kvcs.cose.envelope import MAC0_TAG, SIGN1_TAG, parse_envelope
from kvcs.errors import ConfigError, TokenRefused

__all__ = (
    "TOKEN_TYPE",
    "TokenConfig",
    "TokenKey",
    "TokenVerifier",
    "Unverified",
    "mint",
    "peek",
)

TOKEN_TYPE: Final = 0x01
"""Auth Token Type of a CAT in MOQT (draft-ietf-moq-c4m-01, Section 7.1)."""

type TokenKey = VerifyingKey | MacKey
"""A key that verifies tokens."""

_CWT_TAG: Final = b"\xd8\x3d"
_MAC0_TAG: Final = b"\xd1"
_SIGN1_TAG: Final = b"\xd2"
_MAX_HEADER_BYTES: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenConfig:
    """What a token must be to be taken. Times are seconds.

    Attributes:
        numbers: Numbers of the claims of C4M.
        leeway: How far the clock of the issuer may be off: a token is taken so much before it
            begins, and so much after it expires.
        max_token_bytes: Octets of a token.
        max_attempts: Keys that are tried on a token, where several have its key identifier.
        least_revalidation: A token that asks to be decided anew more often is refused, as
            Section 2.1 demands of who cannot do that.
        issuer: Who must have made it; None for whoever has the key.
        audience: What we are called; a token for somebody else is refused, and without a name
            every token that is for somebody.
        require_audience: Refuse tokens that are for nobody in particular as well: those are good
            wherever their key is, for whoever has got hold of one.

    Raises:
        ConfigError: A bound is not positive, the leeway negative, a name empty, or an audience
            required of tokens and not named.
    """

    numbers: ClaimNumbers = field(default_factory=ClaimNumbers)
    leeway: float = 10.0
    max_token_bytes: int = 4096
    max_attempts: int = 4
    least_revalidation: float = 1.0
    issuer: str | None = None
    audience: str | None = None
    require_audience: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.leeway < math.inf:
            raise ConfigError("leeway", "at least 0, and an end", str(self.leeway))
        for name in ("max_token_bytes", "max_attempts", "least_revalidation"):
            value: float = getattr(self, name)
            if value <= 0:
                raise ConfigError(name, "more than 0", str(value))
        for name in ("issuer", "audience"):
            if getattr(self, name) == "":
                raise ConfigError(name, "a name, or none at all", "an empty one")
        if self.require_audience and self.audience is None:
            raise ConfigError("require_audience", "an audience beside it")


class TokenVerifier:
    """Opens tokens with the keys of those who may make some."""

    __slots__ = ("_macs", "_publics", "config")

    def __init__(self, keys: Iterable[TokenKey], config: TokenConfig | None = None) -> None:
        """Take keys.

        Args:
            keys: Keys of the issuers; several of one issuer while it changes its key.
            config: What a token must be.
        """
        keys = tuple(keys)
        self.config = config or TokenConfig()
        self._macs = tuple(key for key in keys if isinstance(key, MacKey))
        self._publics = tuple(key for key in keys if isinstance(key, VerifyingKey))

    def __repr__(self) -> str:
        return f"<TokenVerifier keys={len(self._macs) + len(self._publics)}>"

    def verify(self, token: bytes, *, wall: float) -> Claims:
        """Return the claims of a token that is good now.

        Args:
            token: The CWT: COSE_Mac0 or COSE_Sign1, tagged.
            wall: Wall-clock seconds since 1970.

        Raises:
            NotAuthentic: No key of ours made it.
            TokenRefused: It cannot be used; `reason` says why in one word, as in `open` and
                `check`.
        """
        claims = self.open(token)
        self.check(claims, wall=wall)
        return claims

    def open(self, token: bytes) -> Claims:
        """Return the claims of an authentic token, which may be expired.

        Raises:
            NotAuthentic: No key of ours made it.
            TokenRefused: ``"size"``: larger than `TokenConfig.max_token_bytes`; ``"form"``: no
                such token; ``"claim"``, ``"endless"``: as in `decode_claims`; ``"audience"``:
                for somebody else, or for nobody in particular; ``"issuer"``: by somebody else;
                ``"revalidation"``: it asks for more than we do.
        """
        config = self.config
        if len(token) > config.max_token_bytes:
            text = f"a token of {len(token)} octets, at most {config.max_token_bytes}"
            raise TokenRefused("size", text)
        payload = self._open(token)
        claims = decode_claims(payload, config.numbers, limits=_cbor_limits(config))
        self._check_parties(claims)
        if claims.revalidation and claims.revalidation < config.least_revalidation:
            text = f"the token asks to be looked at every {claims.revalidation:g} s"
            raise TokenRefused("revalidation", text)
        return claims

    def check(self, claims: Claims, *, wall: float) -> None:
        """Check the times of a token.

        Raises:
            TokenRefused: ``"expired"`` or ``"early"``.
        """
        if wall >= self.end(claims):
            raise TokenRefused("expired", "the token has expired")
        if claims.not_before is not None and wall < claims.not_before - self.config.leeway:
            raise TokenRefused("early", "the token is not good yet")

    def end(self, claims: Claims) -> float:
        """Return when a token is over, in wall-clock seconds, with the leeway."""
        return claims.expires_at + self.config.leeway

    def _open(self, token: bytes) -> bytes:
        limits = _cose_limits(self.config)
        # Without a tag the one could be taken for the other.
        tag = token.removeprefix(_CWT_TAG)[:1]
        if tag == _MAC0_TAG:
            return open_mac0(token, self._macs, limits).payload
        if tag == _SIGN1_TAG:
            return open_sign1(token, self._publics, limits).payload
        raise TokenRefused("form", "the token is neither COSE_Mac0 nor COSE_Sign1")

    def _check_parties(self, claims: Claims) -> None:
        config = self.config
        if claims.audience and config.audience not in claims.audience:
            raise TokenRefused("audience", "the token is for somebody else")
        if config.require_audience and not claims.audience:
            raise TokenRefused("audience", "the token is for no relay in particular")
        if config.issuer is not None and claims.issuer != config.issuer:
            raise TokenRefused("issuer", "the token is by somebody else")


def mint(claims: Claims, key: SigningKey | MacKey, *, numbers: ClaimNumbers | None = None) -> bytes:
    """Make a token: a COSE_Sign1, or a COSE_Mac0 where the key is a shared secret.

    Args:
        claims: What it says.
        key: Who says so.
        numbers: Numbers of the claims of C4M.
    """
    payload = encode_claims(claims, numbers)
    return encode_sign1(payload, key) if isinstance(key, SigningKey) else encode_mac0(payload, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unverified:
    """What a token says about itself; anybody may have made it.

    Attributes:
        algorithm: Number of the algorithm.
        kid: Key identifier, or None.
        claims: The claims.
    """

    algorithm: int
    kid: bytes | None
    claims: Claims


def peek(token: bytes, config: TokenConfig | None = None) -> Unverified:
    """Read a token without a key: to show it, and never to decide by it.

    Raises:
        NotAuthentic: No such envelope.
        TokenRefused: As in `TokenVerifier.open`, but for ``"audience"`` and ``"issuer"``.
    """
    config = config or TokenConfig()
    tag = token.removeprefix(_CWT_TAG)[:1]
    if tag not in (_MAC0_TAG, _SIGN1_TAG):
        raise TokenRefused("form", "the token is neither COSE_Mac0 nor COSE_Sign1")
    kind = MAC0_TAG if tag == _MAC0_TAG else SIGN1_TAG
    envelope = parse_envelope(token, tag=kind, limits=_cose_limits(config))
    claims = decode_claims(bytes(envelope.payload), config.numbers, limits=_cbor_limits(config))
    return Unverified(algorithm=envelope.algorithm, kid=envelope.kid, claims=claims)


def _cose_limits(config: TokenConfig) -> CoseLimits:
    return CoseLimits(
        max_bytes=config.max_token_bytes,
        max_header_bytes=_MAX_HEADER_BYTES,
        max_attempts=config.max_attempts,
    )


def _cbor_limits(config: TokenConfig) -> CborLimits:
    return CborLimits(max_bytes=config.max_token_bytes, max_items=config.max_token_bytes)
