"""Authorization tokens of MOQT: CWTs that say who may do what under which names (C4M).

Pure: octets, keys and wall-clock seconds in, claims out.

Source: draft-ietf-moq-c4m-01.
"""

from kvcs.c4m.claims import MAX_AUDIENCES, ClaimNumbers, Claims, decode_claims, encode_claims
from kvcs.c4m.role import Role, role_scopes
from kvcs.c4m.scope import MAX_ACTIONS, MAX_SCOPES, Action, Match, MatchKind, Scope
from kvcs.c4m.token import (
    TOKEN_TYPE,
    TokenConfig,
    TokenKey,
    TokenVerifier,
    Unverified,
    mint,
    peek,
)

__all__ = (
    "MAX_ACTIONS",
    "MAX_AUDIENCES",
    "MAX_SCOPES",
    "TOKEN_TYPE",
    "Action",
    "ClaimNumbers",
    "Claims",
    "Match",
    "MatchKind",
    "Role",
    "Scope",
    "TokenConfig",
    "TokenKey",
    "TokenVerifier",
    "Unverified",
    "decode_claims",
    "encode_claims",
    "mint",
    "peek",
    "role_scopes",
)
