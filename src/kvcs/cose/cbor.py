"""CBOR of untrusted origin: a strict and bounded subset.

Read are integers, octet and text strings, arrays, maps, booleans, null and doubles, all of
definite length. Refused are tags (the envelope takes its own), members named twice, keys other
than integers and strings, and whatever is beyond a limit. Strings are taken out of the input
only after their length was found to be there, so that a length alone costs nothing.

Source: RFC 8949, Section 3.
"""

import struct
from dataclasses import dataclass
from typing import Final

__all__ = ("CborLimits", "CborReader", "CborValue", "decode_cbor")

type CborValue = (
    bool | int | float | bytes | str | list[CborValue] | dict[int | str | bytes, CborValue] | None
)

UNSIGNED: Final = 0
NEGATIVE: Final = 1
BYTES: Final = 2
TEXT: Final = 3
ARRAY: Final = 4
MAP: Final = 5
TAG: Final = 6

_SIMPLE: Final[dict[int, bool | None]] = {20: False, 21: True, 22: None}
_FLOATS: Final = {25: ">e", 26: ">f", 27: ">d"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CborLimits:
    """Bounds on CBOR of untrusted origin.

    Attributes:
        max_bytes: Octets of one item.
        max_depth: Arrays and maps inside each other.
        max_items: Items of all kinds together.
    """

    max_bytes: int = 4096
    max_depth: int = 8
    max_items: int = 512


class CborReader:
    """Reads items one after the other, from octets that are not trusted.

    Attributes:
        offset: Where the next item starts.

    Raises:
        ValueError: From all methods: not of the subset, cut short, or beyond a limit.
    """

    __slots__ = ("_data", "_items", "_limits", "offset")

    def __init__(self, data: bytes | bytearray | memoryview, limits: CborLimits) -> None:
        self._data = memoryview(data).cast("B")
        self._limits = limits
        self._items = 0
        self.offset = 0

    @property
    def remaining(self) -> int:
        """Octets that were not read."""
        return len(self._data) - self.offset

    def take_tag(self) -> int | None:
        """Return the number of the tag that stands here, or None where there is none."""
        if not self.remaining or self._data[self.offset] >> 5 != TAG:
            return None
        return self._head()[2]

    def take_length(self, kind: int) -> int:
        """Return the argument of an item of exactly `kind`: its octets, elements or members."""
        found, _, argument = self._head()
        if found != kind:
            raise ValueError("CBOR of another type than belongs there")
        return argument

    def take_bytes(self) -> memoryview:
        """Return an octet string, as a view."""
        return self._take(self.take_length(BYTES))

    def take_map(self) -> dict[int | str | bytes, CborValue]:
        """Return a map, with all that is in it."""
        return self._members(self.take_length(MAP), self._limits.max_depth)

    def take_value(self) -> CborValue:
        """Return whatever item stands here."""
        return self._value(self._limits.max_depth)

    def _value(self, depth: int) -> CborValue:
        kind, info, argument = self._head()
        match kind:
            case 0:
                return argument
            case 1:
                return -1 - argument
            case 2:
                return bytes(self._take(argument))
            case 3:
                return str(self._take(argument), "utf-8")
            case 4:
                self._check_nesting(argument, depth)
                return [self._value(depth - 1) for _ in range(argument)]
            case 5:
                return self._members(argument, depth)
            case 6:
                raise ValueError("CBOR with a tag where none belongs")
            case _:
                return self._simple(info, argument)

    def _members(self, members: int, depth: int) -> dict[int | str | bytes, CborValue]:
        self._check_nesting(members, depth)
        result: dict[int | str | bytes, CborValue] = {}
        for _ in range(members):
            key = self._value(0)
            # Neither True nor 1.0 is a key: Python takes both for 1.
            if isinstance(key, bool) or not isinstance(key, int | str | bytes) or key in result:
                raise ValueError("a CBOR map names a member twice, or not by integer or string")
            result[key] = self._value(depth - 1)
        return result

    def _simple(self, info: int, argument: int) -> CborValue:
        if info in _FLOATS:
            data = argument.to_bytes(2 << (info - 25))
            value: float = struct.unpack(_FLOATS[info], data)[0]
            return value
        if info in _SIMPLE:
            return _SIMPLE[info]
        raise ValueError("a CBOR simple value that means nothing here")

    def _check_nesting(self, elements: int, depth: int) -> None:
        if depth <= 0:
            raise ValueError(f"CBOR nested deeper than {self._limits.max_depth}")
        if elements > self.remaining:
            raise ValueError("CBOR ends too early")

    def _head(self) -> tuple[int, int, int]:
        """Read major type, additional information, and the argument (0 without one)."""
        self._items += 1
        if self._items > self._limits.max_items:
            raise ValueError(f"more than {self._limits.max_items} CBOR items")
        first = self._take(1)[0]
        info = first & 0x1F
        if info < 24:
            return first >> 5, info, info
        if info > 27:
            raise ValueError("CBOR of indefinite length, or a reserved form")
        return first >> 5, info, int.from_bytes(self._take(1 << (info - 24)))

    def _take(self, length: int) -> memoryview:
        if length > self.remaining:
            raise ValueError("CBOR ends too early")
        start = self.offset
        self.offset += length
        return self._data[start : self.offset]


def decode_cbor(
    data: bytes | bytearray | memoryview, limits: CborLimits | None = None
) -> CborValue:
    """Decode exactly one item of the subset.

    Raises:
        ValueError: Not of the subset, cut short, followed by something, or beyond a limit.
    """
    limits = limits or CborLimits()
    size_bytes = memoryview(data).nbytes
    if size_bytes > limits.max_bytes:
        raise ValueError(f"{size_bytes} octets of CBOR, at most {limits.max_bytes}")
    reader = CborReader(data, limits)
    value = reader.take_value()
    if reader.remaining:
        raise ValueError(f"{reader.remaining} octets after a CBOR item")
    return value
