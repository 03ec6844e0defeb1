"""SETUP, the first message on each control stream, and its options.

Source: MOQT draft 22, Section 9.1.
"""

from dataclasses import dataclass
from typing import Any, Final, Self

from kvcs.errors import RemoteProtocolError, TerminationCode
from kvcs.moqt.codepoints import MessageType, SetupOption
from kvcs.moqt.wire.buffer import Reader, violation
from kvcs.moqt.wire.frame import encode_frame
from kvcs.moqt.wire.kvp import KeyValuePair, decode_pairs, encode_pairs
from kvcs.moqt.wire.token import Token

__all__ = ("Setup", "SetupOptions")

_KNOWN: Final = frozenset(SetupOption)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupOptions:
    """What one side says about itself.

    Attributes:
        path: PATH with the query, of a client on native QUIC; None is absent.
        authorization_tokens: AUTHORIZATION_TOKEN, in the order given.
        max_auth_token_cache_size: Octets of tokens that may be stored here; 0 forbids aliases.
        authority: AUTHORITY, of a client on native QUIC; None is absent.
        max_filter_ranges: Ranges that one request may carry to here; 0 forbids range filters.
        implementation: MOQT_IMPLEMENTATION, name and version; None is absent.
        max_request_updates: Unanswered updates per request tolerated here; 0 is unlimited.
        unknown: Types and values of all other options, to be ignored.
    """

    path: bytes | None = None
    authorization_tokens: tuple[Token, ...] = ()
    max_auth_token_cache_size: int = 0
    authority: bytes | None = None
    max_filter_ranges: int = 0
    implementation: str | None = None
    max_request_updates: int = 0
    unknown: tuple[KeyValuePair, ...] = ()

    def encode(self) -> bytes:
        """Encode as Key-Value-Pairs, leaving out what is absent or 0."""
        pairs: list[KeyValuePair] = [*self.unknown]
        if self.path is not None:
            pairs.append((SetupOption.PATH, self.path))
        pairs += [
            (SetupOption.AUTHORIZATION_TOKEN, token.encode()) for token in self.authorization_tokens
        ]
        if self.authority is not None:
            pairs.append((SetupOption.AUTHORITY, self.authority))
        if self.implementation is not None:
            pairs.append((SetupOption.MOQT_IMPLEMENTATION, self.implementation.encode()))
        numbers = (
            (SetupOption.MAX_AUTH_TOKEN_CACHE_SIZE, self.max_auth_token_cache_size),
            (SetupOption.MAX_FILTER_RANGES, self.max_filter_ranges),
            (SetupOption.MAX_REQUEST_UPDATES, self.max_request_updates),
        )
        pairs += [(number, value) for number, value in numbers if value]
        return encode_pairs(pairs)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode the options that fill `data`.

        Raises:
            RemoteProtocolError: An option cannot be parsed, or a known one is repeated.
        """
        values: dict[str, Any] = {}
        tokens: list[Token] = []
        unknown: list[KeyValuePair] = []
        for number, value in decode_pairs(data):
            if number not in _KNOWN:
                unknown.append((number, value))
                continue
            option = SetupOption(number)
            if isinstance(value, bytes) and option == SetupOption.AUTHORIZATION_TOKEN:
                tokens.append(Token.decode(value))
                continue
            field = _FIELDS[option]
            if field in values:
                raise violation(f"Setup Option {option.name} is repeated")
            if isinstance(value, bytes) and option == SetupOption.MOQT_IMPLEMENTATION:
                values[field] = _decode_implementation(value)
            else:
                values[field] = value
        return cls(**values, authorization_tokens=tuple(tokens), unknown=tuple(unknown))


_FIELDS: Final = {
    SetupOption.PATH: "path",
    SetupOption.MAX_AUTH_TOKEN_CACHE_SIZE: "max_auth_token_cache_size",
    SetupOption.AUTHORITY: "authority",
    SetupOption.MAX_FILTER_RANGES: "max_filter_ranges",
    SetupOption.MOQT_IMPLEMENTATION: "implementation",
    SetupOption.MAX_REQUEST_UPDATES: "max_request_updates",
}


def _decode_implementation(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError(
            TerminationCode.KEY_VALUE_FORMATTING_ERROR, "MOQT_IMPLEMENTATION is not UTF-8"
        ) from None


@dataclass(frozen=True, slots=True)
class Setup:
    """SETUP: the options of its sender."""

    options: SetupOptions

    def encode(self) -> bytes:
        """Encode the whole message, which is also the start of the control stream."""
        return encode_frame(MessageType.SETUP, self.options.encode())

    @classmethod
    def decode_body(cls, reader: Reader) -> Self:
        """Decode the body."""
        return cls(SetupOptions.decode(reader.rest()))
