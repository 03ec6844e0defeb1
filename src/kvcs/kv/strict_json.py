"""JSON of untrusted origin: strict, bounded reading, and the canonical form.

Reading costs time and memory in proportion to limits that are checked before the parser
runs: octets first, then depth and number of values by a linear scan over the brackets and
commas outside strings. Refused besides: anything but UTF-8, duplicate members, floats,
``NaN``, integers that do not survive a double (RFC 7493, Section 2.2), lone surrogates.

A call into C keeps the interpreter lock until it returns, and all other threads wait. A large
text, which somebody reads in a thread, is therefore scanned in slices, and only arrays and objects
that hold no others are parsed in one call.

Source: RFC 8259, RFC 7493 (I-JSON), RFC 8785 (JCS).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn, cast

__all__ = (
    "MAX_SAFE_INTEGER",
    "JsonLimits",
    "JsonValue",
    "Members",
    "canonical_json",
    "decode_json",
    "encode_json",
)

type JsonValue = bool | int | str | list[JsonValue] | dict[str, JsonValue] | None

MAX_SAFE_INTEGER: Final = 2**53 - 1

# Texts below this size are read by one call; larger ones in slices of it, a millisecond each.
_SLICE_BYTES: Final = 2**18
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_SPACE: Final = re.compile(r"[ \t\n\r]*+")
_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b'[]{},"'))
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLimits:
    """Bounds on one JSON text.

    Attributes:
        max_bytes: Octets of the text.
        max_depth: Arrays and objects inside each other.
        max_values: Elements, members, arrays and objects together.
    """

    max_bytes: int
    max_depth: int
    max_values: int


class Members:
    """Typed access to the members of one JSON object.

    Attributes:
        where: Place of the object, for messages.

    Raises:
        ValueError: Not an object; from the methods: a member is missing or of another type.
    """

    __slots__ = ("_members", "where")

    def __init__(self, value: JsonValue, where: str) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{where} is not an object")  # noqa: TRY004 - input, not a bug
        self._members = value
        self.where = where

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def take[T](self, name: str, kind: type[T]) -> T:
        """Return a member of exactly the type `kind`: a boolean is no integer."""
        value = self._members.get(name)
        if type(value) is not kind:
            raise ValueError(f"{self.where}: {name} is missing or not of type {kind.__name__}")
        return value

    def take_array(self, name: str) -> list[JsonValue]:
        """Return a member that is an array."""
        return cast("list[JsonValue]", self.take(name, list))

    def take_object(self, name: str) -> dict[str, JsonValue]:
        """Return a member that is an object."""
        return cast("dict[str, JsonValue]", self.take(name, dict))

    def others(self, known: frozenset[str]) -> dict[str, JsonValue]:
        """Return the members that are not `known`."""
        return {name: value for name, value in self._members.items() if name not in known}


def decode_json(data: bytes | bytearray | memoryview, limits: JsonLimits) -> JsonValue:
    """Decode one JSON text strictly.

    Raises:
        ValueError: Not JSON, not in the strict subset, or beyond a limit; the text says which.
    """
    size_bytes = memoryview(data).nbytes
    if size_bytes > limits.max_bytes:
        raise ValueError(f"{size_bytes} octets of JSON, at most {limits.max_bytes}")
    data = bytes(data)
    _check_structure(data, limits)
    text = data.decode()
    value = _DECODER.decode(text) if size_bytes < _SLICE_BYTES else _decode_in_parts(text)
    if b"\\" in data and _SURROGATE.search(data):
        # A lone surrogate, written as an escape, is found by the attempt to encode it.
        json.dumps(value, ensure_ascii=False).encode()
    return value


def encode_json(value: JsonValue) -> str:
    """Encode without white space, members in the order given, ASCII only."""
    return _ENCODER.encode(value)


def canonical_json(members: Mapping[str, JsonValue]) -> bytes:
    """Encode an object without nested objects in the canonical form of RFC 8785.

    Only the order of members needs care: without floats, ``json`` already writes integers
    and escapes as ECMAScript does.

    Raises:
        UnicodeEncodeError: A string holds a lone surrogate.
    """
    ordered = dict(sorted(members.items(), key=lambda member: member[0].encode("utf-16-be")))
    return json.dumps(ordered, ensure_ascii=False, separators=(",", ":")).encode()


def _check_structure(data: bytes, limits: JsonLimits) -> None:
    outside = _outside_strings(data)
    brackets = outside.translate(None, _NOT_BRACKETS)
    values = outside.count(b",") + len(brackets) // 2
    if values > limits.max_values:
        raise ValueError(f"{values} JSON values, at most {limits.max_values}")
    for _ in range(limits.max_depth):
        # Exactly one level goes: the dot keeps "{[]}" from closing up within one round.
        brackets = brackets.replace(b"[]", b".").replace(b"{}", b"").replace(b".", b"")
        if not brackets:
            return
    raise ValueError(f"JSON nested deeper than {limits.max_depth}, or brackets that do not match")


def _outside_strings(data: bytes) -> bytes:
    """Return the brackets and commas outside strings."""
    if b"\\" in data:
        # Outside strings a backslash is no JSON: up to there, this leaves no escaped quote.
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside: list[bytes] = []
    is_inside = 0
    for at in range(0, len(data), _SLICE_BYTES):
        # Every second quote ends a string.
        pieces = data[at : at + _SLICE_BYTES].translate(None, _NOT_STRUCTURE).split(b'"')
        outside.append(b"".join(pieces[is_inside::2]))
        is_inside ^= (len(pieces) - 1) & 1
    return b"".join(outside)


def _decode_in_parts(text: str) -> JsonValue:
    """Decode a text whose depth was checked as `_DECODER` does, in many short calls."""
    value, at = _read(text, _skip(text, 0))
    at = _skip(text, at)
    if at < len(text):
        raise json.JSONDecodeError("Extra data", text, at)
    return value


def _read(text: str, at: int) -> tuple[JsonValue, int]:
    """Return the value at `at`, and where it ends."""
    first = text[at : at + 1]
    if first == "[" and _holds_others(text, at, "]"):
        return _read_array(text, at)
    if first == "{" and _holds_others(text, at, "}"):
        return _read_object(text, at)
    return _DECODER.raw_decode(text, at)


def _holds_others(text: str, at: int, closing: str) -> bool:
    """Tell whether another bracket opens before one closes; one in a string does no harm."""
    end = text.find(closing, at)
    return text.find("[", at + 1, end) >= 0 or text.find("{", at + 1, end) >= 0


def _read_array(text: str, at: int) -> tuple[JsonValue, int]:
    values: list[JsonValue] = []
    mark = ","
    while mark == ",":
        value, at = _read(text, _skip(text, at + 1))
        values.append(value)
        mark, at = _next_mark(text, at, ",]")
    return values, at + 1


def _read_object(text: str, at: int) -> tuple[JsonValue, int]:
    pairs: list[tuple[str, JsonValue]] = []
    mark = ","
    while mark == ",":
        _, at = _next_mark(text, at + 1, '"')
        name, at = _DECODER.raw_decode(text, at)
        _, at = _next_mark(text, at, ":")
        value, at = _read(text, _skip(text, at + 1))
        pairs.append((name, value))
        mark, at = _next_mark(text, at, ",}")
    return _unique_members(pairs), at + 1


def _next_mark(text: str, at: int, allowed: str) -> tuple[str, int]:
    """Return the character after white space, which must be one of `allowed`, and its place."""
    at = _skip(text, at)
    mark = text[at : at + 1]
    if not mark or mark not in allowed:
        raise json.JSONDecodeError(f"Expecting one of {allowed}", text, at)
    return mark, at


def _skip(text: str, at: int) -> int:
    """Return where white space ends that begins at `at`."""
    space = _SPACE.match(text, at)
    assert space is not None
    return space.end()


def _unique_members(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object names a member twice")
    return members


def _safe_integer(text: str) -> int:
    # The length comes first: int() is quadratic in the number of digits.
    if len(text) > 17 or abs(value := int(text)) > MAX_SAFE_INTEGER:
        raise ValueError(f"integer {text[:20]} is beyond 2^53-1")
    return value


def _refuse_float(text: str) -> NoReturn:
    raise ValueError(f"{text[:20]} is not an integer")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique_members,
    parse_int=_safe_integer,
    parse_float=_refuse_float,
    parse_constant=_refuse_float,
)
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
