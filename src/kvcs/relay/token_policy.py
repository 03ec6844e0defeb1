"""A policy that goes by tokens: what the C4M claims of one of them allow, for as long as it lasts.

Theory of operation. Of the tokens of a request those of type 0x01 are looked at. One that allows
what is asked is enough, and the one that lasts longest counts; tokens that cannot be used do no
harm beside it. Otherwise the refusal says as much as the peer knows itself: that its token has
expired, or cannot be read. What came of a token is remembered by its digest, since every request
of a session brings the same one: its claims, or in a memory of its own, which strangers fill, why
it cannot be used. The token itself is not kept. A session that brings ever new useless ones has
them verified only as fast as its budget lets it; tokens that are known do not need it. Much of a
token is not signed, so that who has a good one can write it in as many ways as it likes: each of
them is as good, costs a verification, and counts as useless too. What is decided again, without
having been asked for, goes by the tokens that a key of ours made, and by no others that came
beside them: no budget bounds what those would cost. A token for one session opens no other
(`kvcs.relay.used_tokens`).

Source: draft-ietf-moq-c4m-01, Sections 2 and 7; MOQT draft 22, Section 8.9.
"""

import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from kvcs.c4m import TOKEN_TYPE, Action, Claims, TokenConfig, TokenKey, TokenVerifier
from kvcs.errors import NotAuthentic, RequestErrorCode, TokenRefused
from kvcs.moqt.wire.token import Token
from kvcs.relay.auth import (
    Access,
    AccessAction,
    Decision,
    Grant,
    RefusalReasons,
    VerificationBudget,
)
from kvcs.relay.used_tokens import UsedTokens

__all__ = (
    "MAX_KNOWN_TOKENS",
    "MAX_REFUSED_TOKENS",
    "MAX_TOKENS",
    "RECHECK_INTERVAL",
    "TokenPolicy",
)

MAX_TOKENS: Final = 8
"""Tokens that are looked at for one request, those of the SETUP included."""
MAX_KNOWN_TOKENS: Final = 4096
"""Tokens whose claims are remembered."""
MAX_REFUSED_TOKENS: Final = 4096
"""Tokens that are remembered as useless."""
RECHECK_INTERVAL: Final = 60.0
"""Seconds after which a grant is decided again at the latest: wall clocks can be set."""

# What each request needs to be allowed; SUBSCRIBE_TRACKS lists, and then subscribes.
_NEEDS: Final = {
    AccessAction.PUBLISH_NAMESPACE: (Action.PUBLISH_NAMESPACE,),
    AccessAction.SUBSCRIBE_NAMESPACE: (Action.SUBSCRIBE_NAMESPACE,),
    AccessAction.SUBSCRIBE_TRACKS: (Action.SUBSCRIBE_NAMESPACE, Action.SUBSCRIBE),
    AccessAction.PUBLISH: (Action.PUBLISH,),
    AccessAction.SUBSCRIBE: (Action.SUBSCRIBE,),
    AccessAction.FETCH: (Action.FETCH,),
    AccessAction.TRACK_STATUS: (Action.TRACK_STATUS,),
}
# Reasons of tokens that nobody could read, whoever has which key.
_MALFORMED: Final = frozenset({"size", "envelope", "form"})
# What the log says of a token that is refused, by the reason; nothing of the token itself. Of those
# whose form is wrong it is enough to know that.
_TEXTS: Final = {
    "size": "a token is larger than max_token_bytes",
    "key": "a token names a key that this relay does not have",
    "algorithm": "a token is not of the algorithm of its key",
    "signature": "a token was not made with a key of this relay",
    "endless": "a token has no time at which it expires",
    "claim": "a token has claims that are not understood here",
    "audience": "a token is for another audience than this relay",
    "issuer": "a token is by another issuer",
    "revalidation": "a token asks to be looked at too often",
    "expired": "a token has expired",
    "early": "a token is not good yet",
    "action": "a token allows other actions",
    "scope": "a token is for other scopes",
    "used": "a token for one session was used by another session",
    "load": "too many useless tokens came from this session",
}
_UNREADABLE: Final = "a token cannot be read"
_NOTHING_SHOWN: Final = "no token was shown"
_UNKNOWN_SHOWN: Final = "what was shown is no CWT"
_FULL: Final = "too many tokens for one session are in use"
# Of several refusals the one that helps the most is sent.
_WORTH: Final = (
    RequestErrorCode.MALFORMED_AUTH_TOKEN,
    RequestErrorCode.EXPIRED_AUTH_TOKEN,
    RequestErrorCode.UNAUTHORIZED,
    RequestErrorCode.EXCESSIVE_LOAD,
)
# Octets at the end of every good token, after which nothing may come: its authentication tag, or
# half of its signature, in place of which without the key there is one other.
_PROOF_BYTES: Final = 32
# Reason of a token that was not looked at, which may be a good one.
_UNVERIFIED: Final = "load"


class TokenPolicy:
    """Decides by tokens; a policy of `RelayConfig.authorize`."""

    def __init__(
        self,
        keys: Iterable[TokenKey],
        config: TokenConfig | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Take keys.

        Args:
            keys: Keys of those who may make tokens; without any, everything is refused.
            config: What a token must be.
            clock: Returns wall-clock seconds since 1970.
        """
        self._config = config or TokenConfig()
        self._clock = clock
        self._verifier = TokenVerifier(keys, self._config)
        # By the digest of the token: its claims, and its proof.
        self._known: OrderedDict[bytes, tuple[Claims, bytes]] = OrderedDict()
        self._written: Counter[bytes] = Counter()
        self._refused: OrderedDict[bytes, str] = OrderedDict()
        # Not forgotten with the keys: a token that was used stays used.
        self._used = UsedTokens()

    def __repr__(self) -> str:
        return (
            f"<TokenPolicy {self._verifier} known={len(self._known)} refused={len(self._refused)}>"
        )

    def replace_keys(self, keys: Iterable[TokenKey]) -> None:
        """Use other keys from now on; `Relay.review` decides again what was granted before."""
        self._verifier = TokenVerifier(keys, self._config)
        self._known.clear()
        self._written.clear()
        self._refused.clear()

    def __call__(self, access: Access) -> Decision:
        """Decide by the tokens of a request."""
        wall = self._clock()
        allowing: list[Claims] = []
        authentic: dict[bytes, Token] = {}
        refusals: set[RequestErrorCode] = set()
        reasons = access.reasons or RefusalReasons()
        tokens = [token for token in access.tokens if token.token_type == TOKEN_TYPE]
        if not tokens:
            reasons.add(_UNKNOWN_SHOWN if access.tokens else _NOTHING_SHOWN)
        for token in tokens[:MAX_TOKENS]:
            try:
                claims = self._claims(token.value, access.budget)
                authentic.setdefault(token.value[-_PROOF_BYTES:], token)
                self._check(claims, access, wall)
            except (NotAuthentic, TokenRefused) as error:
                refusals.add(_code(error.reason))
                reasons.add(_TEXTS.get(error.reason, _UNREADABLE))
            else:
                allowing.append(claims)
        # A token for one session is used where no other one will do, and then it is enough.
        lasting = [claims for claims in allowing if not claims.is_for_one_session]
        if lasting:
            seconds = max(self._lasts(claims, wall) for claims in lasting)
            return Grant(seconds, tuple(authentic.values()))
        for claims in allowing:
            reason = self._use(claims, access.session, wall)
            if reason is None:
                return Grant(self._lasts(claims, wall), tuple(authentic.values()))
            refusals.add(_code(reason))
            reasons.add(_FULL if reason == _UNVERIFIED else _TEXTS[reason])
        return max(refusals, key=_WORTH.index, default=RequestErrorCode.UNAUTHORIZED)

    def _use(self, claims: Claims, session: object, wall: float) -> str | None:
        """Let a session have a token for one; return the reason why it may not."""
        try:
            self._used.use(claims, session, end=self._verifier.end(claims), wall=wall)
        except TokenRefused as error:
            return error.reason
        return None

    def _check(self, claims: Claims, access: Access, wall: float) -> None:
        """Check that a token allows what is asked.

        Raises:
            TokenRefused: It is not good now, or does not allow this.
        """
        self._verifier.check(claims, wall=wall)
        for action in _NEEDS[access.action]:
            able = [scope for scope in claims.scopes if action in scope.actions]
            if not able:
                raise TokenRefused("action", "the token does not allow to do this")
            if not any(scope.allows(action, access.namespace, access.track_name) for scope in able):
                raise TokenRefused("scope", "the token does not allow this here")

    def _lasts(self, claims: Claims, wall: float) -> float:
        """Return the seconds for which a token is good, until it is to be looked at again."""
        left = self._verifier.end(claims) - wall
        return min(left, claims.revalidation or RECHECK_INTERVAL, RECHECK_INTERVAL)

    def _claims(self, token: bytes, budget: VerificationBudget | None) -> Claims:
        """Return the claims of a token, which is verified once.

        Raises:
            NotAuthentic: No key of ours made it.
            TokenRefused: It cannot be used.
        """
        digest = hashlib.sha256(token).digest()
        known = self._known.get(digest)
        if known is not None:
            self._known.move_to_end(digest)
            return known[0]
        reason = self._refused.get(digest)
        if reason is not None:
            self._refused.move_to_end(digest)
            raise TokenRefused(reason, "the token was refused before")
        if budget is not None and not budget.is_left:
            raise TokenRefused(_UNVERIFIED, "too many useless tokens came before")
        try:
            claims = self._verifier.open(token)
        except (NotAuthentic, TokenRefused) as error:
            if budget is not None:
                budget.note_useless()
            self._refused[digest] = error.reason
            if len(self._refused) > MAX_REFUSED_TOKENS:
                self._refused.popitem(last=False)
            raise
        proof = token[-_PROOF_BYTES:]
        if budget is not None and proof in self._written:
            budget.note_useless()
        self._remember(digest, claims, proof)
        return claims

    def _remember(self, digest: bytes, claims: Claims, proof: bytes) -> None:
        """Keep the claims of one token more, and of all of them the latest."""
        self._known[digest] = claims, proof
        self._written[proof] += 1
        if len(self._known) > MAX_KNOWN_TOKENS:
            _, oldest = self._known.popitem(last=False)[1]
            self._written[oldest] -= 1
            if not self._written[oldest]:
                del self._written[oldest]


def _code(reason: str) -> RequestErrorCode:
    if reason == "expired":
        return RequestErrorCode.EXPIRED_AUTH_TOKEN
    if reason == _UNVERIFIED:
        return RequestErrorCode.EXCESSIVE_LOAD
    if reason in _MALFORMED:
        return RequestErrorCode.MALFORMED_AUTH_TOKEN
    return RequestErrorCode.UNAUTHORIZED
