"""Tokens that are good for one session: which session each of them has opened.

Whoever presents such a token first, with a request that it allows, has it for as long as its
session lasts; in any other session it is refused, also when that one is over. So a token that was
seen on the way, or left in a file, opens nothing once its owner has used it. It is remembered until
it expires, and no longer than the relay lives. Where the clock was ahead for a moment, tokens that
ended before then can open nothing any more: which of them were used is forgotten.

Source: CTA-5007-B, claim catreplay.
"""

import hashlib
import heapq
import math
from typing import Final

from kvcs.c4m import Claims
from kvcs.errors import TokenRefused

__all__ = ("MAX_USED_TOKENS", "UsedTokens")

MAX_USED_TOKENS: Final = 65536
"""Tokens for one session that are remembered; more are refused until some have expired."""


class UsedTokens:
    """Remembers them."""

    __slots__ = ("_ends", "_forgotten_until", "_sessions")

    def __init__(self) -> None:
        # By the identifier: who has it, and until when it is remembered.
        self._sessions: dict[bytes, tuple[object, float]] = {}
        self._ends: list[tuple[float, bytes]] = []
        self._forgotten_until = -math.inf

    def __repr__(self) -> str:
        return f"<UsedTokens {len(self._sessions)}>"

    def use(self, claims: Claims, session: object, *, end: float, wall: float) -> None:
        """Let a session have a token that allows what it asks.

        Args:
            claims: What the token says.
            session: Who presents it; compared by identity.
            end: When the token is over, in wall-clock seconds.
            wall: Wall-clock seconds.

        Raises:
            TokenRefused: ``"used"``: another session has it, or nobody knows which one asks;
                ``"load"``: too many are remembered.
        """
        self._forget(wall)
        identifier = _identifier(claims)
        opened, known_end = self._sessions.get(identifier, (None, -math.inf))
        if opened is None:
            opened = session if end > self._forgotten_until else None
            if len(self._sessions) >= MAX_USED_TOKENS:
                raise TokenRefused("load", "too many tokens for one session are in use")
        if opened is None or opened is not session:
            raise TokenRefused("used", "the token was for one session, and has opened another one")
        # An issuer may give one identifier to several tokens; they are one.
        if end > known_end:
            self._sessions[identifier] = session, end
            heapq.heappush(self._ends, (end, identifier))

    def _forget(self, wall: float) -> None:
        """Forget those that nobody can use any more."""
        while self._ends and self._ends[0][0] <= wall:
            end, identifier = heapq.heappop(self._ends)
            if self._sessions[identifier][1] == end:
                del self._sessions[identifier]
            self._forgotten_until = max(end, self._forgotten_until)


def _identifier(claims: Claims) -> bytes:
    """Return what tells a token from all others: its issuer and the identifier that it gave."""
    issuer = hashlib.sha256((claims.issuer or "").encode()).digest()
    return hashlib.sha256(issuer + (claims.token_id or b"")).digest()
