"""Authorization tokens that the peer stores here under aliases.

Source: MOQT draft 22, Section 8.9.
"""

from typing import Final

from kvcs.errors import RemoteProtocolError, TerminationCode
from kvcs.moqt.codepoints import TokenAliasType
from kvcs.moqt.session.limits import SessionLimits
from kvcs.moqt.wire.buffer import violation
from kvcs.moqt.wire.token import Token

__all__ = ("TokenCache", "token_surplus")

# What one stored token costs besides its value.
_ENTRY_BYTES: Final = 16


class TokenCache:
    """The peer's registered tokens, within the size that our SETUP grants."""

    __slots__ = ("_free_bytes", "_tokens")

    def __init__(self, max_bytes: int) -> None:
        self._free_bytes = max_bytes
        self._tokens: dict[int, Token] = {}

    def __repr__(self) -> str:
        return f"TokenCache({len(self._tokens)} tokens, {self._free_bytes} octets free)"

    def resolve(self, tokens: tuple[Token, ...]) -> tuple[Token, ...]:
        """Apply the forms in order; return what the message presents, by value.

        Raises:
            RemoteProtocolError: An alias is unknown, taken or beyond the size, or two
                tokens of one message are the same.
        """
        # A message has room for ten thousand, so each is looked for by its hash.
        presented: dict[Token, None] = {}
        for token in tokens:
            resolved = self._resolve(token)
            if resolved in presented:
                raise violation("the same authorization token twice in one message")
            if resolved is not None:
                presented[resolved] = None
        return tuple(presented)

    def resolve_setup(self, tokens: tuple[Token, ...]) -> tuple[Token, ...]:
        """Apply the tokens of a SETUP, whose sender does not know our size yet.

        Raises:
            RemoteProtocolError: A token refers to an alias that cannot exist.
        """
        presented: list[Token] = []
        for token in tokens:
            if token.alias_type in {TokenAliasType.DELETE, TokenAliasType.USE_ALIAS}:
                raise violation(f"{token.alias_type.name} token in SETUP")
            is_stored = token.alias is not None and _cost(token) <= self._free_bytes
            value = self._resolve(token) if is_stored else _by_value(token)
            presented += [value] if value else []
        return tuple(presented)

    def _resolve(self, token: Token) -> Token | None:
        if token.alias is None:
            return token
        if token.alias_type is TokenAliasType.REGISTER:
            return self._register(token.alias, token)
        stored = self._tokens.get(token.alias)
        if stored is None:
            raise RemoteProtocolError(
                TerminationCode.UNKNOWN_AUTH_TOKEN_ALIAS, f"no token has the alias {token.alias}"
            )
        if token.alias_type is TokenAliasType.USE_ALIAS:
            return stored
        del self._tokens[token.alias]
        self._free_bytes += _cost(stored)
        return None

    def _register(self, alias: int, token: Token) -> Token:
        if alias in self._tokens:
            raise RemoteProtocolError(
                TerminationCode.DUPLICATE_AUTH_TOKEN_ALIAS, f"a token has the alias {alias} already"
            )
        if _cost(token) > self._free_bytes:
            raise RemoteProtocolError(
                TerminationCode.AUTH_TOKEN_CACHE_OVERFLOW,
                f"a token of {_cost(token)} octets where {self._free_bytes} are free",
            )
        self._free_bytes -= _cost(token)
        self._tokens[alias] = _by_value(token)
        return self._tokens[alias]


def token_surplus(tokens: tuple[Token, ...], limits: SessionLimits) -> str | None:
    """Return why the tokens of one message are too many or too large, None if they are not."""
    if len(tokens) > limits.max_request_tokens:
        return f"{len(tokens)} authorization tokens, at most {limits.max_request_tokens}"
    octets, most = sum(len(token.value) for token in tokens), limits.max_request_token_bytes
    if octets > most:
        return f"authorization tokens of {octets} octets, at most {most}"
    return None


def _cost(token: Token) -> int:
    return _ENTRY_BYTES + len(token.value)


def _by_value(token: Token) -> Token:
    return Token(token_type=token.token_type, value=token.value)
