"""The types that users of `kvcs.c4m` see; pyright checks this file, nobody runs it."""

from typing import assert_type

from kvcs.c4m import (
    Action,
    Claims,
    Role,
    Scope,
    TokenConfig,
    TokenVerifier,
    mint,
    role_scopes,
)
from kvcs.cose import MacKey, SigningKey
from kvcs.names import TrackNamespace


def make(key: SigningKey, scope_id: bytes, wall: float) -> bytes:
    scopes = role_scopes(Role.CONSUMER, [TrackNamespace((b"kvcs-1", scope_id))])
    assert_type(scopes, tuple[Scope, ...])
    token = mint(Claims(scopes=scopes, expires_at=wall + 3600), key)
    assert_type(token, bytes)
    return token


def verify(token: bytes, key: SigningKey, secret: MacKey, wall: float) -> None:
    verifier = TokenVerifier([key.public, secret], TokenConfig(leeway=5.0))
    claims = verifier.verify(token, wall=wall)
    assert_type(claims, Claims)
    assert_type(claims.scopes[0].allows(Action.FETCH, TrackNamespace(), b"k"), bool)
    assert_type(verifier.end(claims), float)
