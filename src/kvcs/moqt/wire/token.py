"""Authorization tokens, by value or by alias.

The codec knows the four forms; which aliases exist is the session's business.

Source: MOQT draft 22, Section 8.9.
"""

from dataclasses import dataclass, field
from typing import Final, Self

from kvcs.errors import RemoteProtocolError, TerminationCode
from kvcs.moqt.codepoints import TokenAliasType
from kvcs.moqt.wire.buffer import Reader
from kvcs.varint import NeedMore, encode_vi64

__all__ = ("Token",)

_WITH_ALIAS: Final = frozenset(
    {TokenAliasType.DELETE, TokenAliasType.REGISTER, TokenAliasType.USE_ALIAS}
)
_WITH_VALUE: Final = frozenset({TokenAliasType.REGISTER, TokenAliasType.USE_VALUE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One authorization token as it stands in a message.

    Attributes:
        alias_type: Form of the token.
        alias: Alias to delete, register or use; None in USE_VALUE.
        token_type: Type of the value, 0 is agreed out of band; None without a value.
        value: Opaque octets, kept out of every text form.

    Raises:
        ValueError: `alias`, `token_type` or `value` do not belong to `alias_type`.
    """

    alias_type: TokenAliasType = TokenAliasType.USE_VALUE
    alias: int | None = None
    token_type: int | None = 0
    value: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        form = self.alias_type.name
        if (self.alias is not None) != (self.alias_type in _WITH_ALIAS):
            raise ValueError(f"alias is missing or does not belong in {form}")
        has_value = self.alias_type in _WITH_VALUE
        if (self.token_type is not None) != has_value:
            raise ValueError(f"token_type is missing or does not belong in {form}")
        if self.value and not has_value:
            raise ValueError(f"{form} carries no value")

    @classmethod
    def use_value(cls, value: bytes, *, token_type: int = 0) -> Self:
        """Return a token that is used once and not stored."""
        return cls(token_type=token_type, value=value)

    @classmethod
    def register(cls, alias: int, value: bytes, *, token_type: int = 0) -> Self:
        """Return a token that is used and stored under `alias`."""
        return cls(
            alias_type=TokenAliasType.REGISTER, alias=alias, token_type=token_type, value=value
        )

    @classmethod
    def use_alias(cls, alias: int) -> Self:
        """Return the form that uses the token stored under `alias`."""
        return cls(alias_type=TokenAliasType.USE_ALIAS, alias=alias, token_type=None)

    @classmethod
    def delete(cls, alias: int) -> Self:
        """Return the form that retires `alias`."""
        return cls(alias_type=TokenAliasType.DELETE, alias=alias, token_type=None)

    def encode(self) -> bytes:
        """Encode without the enclosing length, which ends the value."""
        numbers = (self.alias_type, self.alias, self.token_type)
        return b"".join(encode_vi64(n) for n in numbers if n is not None) + self.value

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a token that fills `data`.

        Raises:
            RemoteProtocolError: KEY_VALUE_FORMATTING_ERROR, `data` is not a token.
        """
        reader = Reader(data)
        try:
            alias_type = TokenAliasType(reader.vi64())
            alias = reader.vi64() if alias_type in _WITH_ALIAS else None
            token_type = reader.vi64() if alias_type in _WITH_VALUE else None
            return cls(
                alias_type=alias_type, alias=alias, token_type=token_type, value=reader.rest()
            )
        except (NeedMore, ValueError):
            raise RemoteProtocolError(
                TerminationCode.KEY_VALUE_FORMATTING_ERROR, "undecodable authorization token"
            ) from None
