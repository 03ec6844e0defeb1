"""Names and places of MOQT: Track Namespace, Full Track Name, Location.

Names are opaque bytes and are compared bytewise. The text form is the one that MOQT
recommends for logs: fields joined with ``-``, then ``--`` and the Track Name, octets
outside ``[A-Za-z0-9_]`` as ``.xx``.

Source: MOQT draft 22, Sections 2.4, 8.2, 8.7 and 8.8.
"""

import re
from dataclasses import dataclass
from typing import Final, Self

from kvcs.errors import RemoteProtocolError, TerminationCode
from kvcs.varint import NeedMore, decode_vi64, encode_vi64

__all__ = (
    "MAX_FIELDS",
    "MAX_NAME_BYTES",
    "FullTrackName",
    "Location",
    "TrackNamespace",
)

MAX_FIELDS: Final = 32
MAX_NAME_BYTES: Final = 4096

_LITERAL: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
_TEXT_TOKEN: Final = re.compile(r"[A-Za-z0-9_]|\.[0-9a-f]{2}")


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """Place of an Object in its Track, ordered by Group, then Object.

    Attributes:
        group_id: Group ID, 0..2^64-1.
        object_id: Object ID inside the Group, 0..2^64-1.
    """

    group_id: int
    object_id: int

    def __str__(self) -> str:
        return f"{{{self.group_id}, {self.object_id}}}"

    def encode(self) -> bytes:
        """Encode as two vi64 (MOQT, Section 8.2)."""
        return encode_vi64(self.group_id) + encode_vi64(self.object_id)


@dataclass(frozen=True, slots=True)
class TrackNamespace:
    """Track Namespace, or a prefix or suffix of one.

    Attributes:
        fields: 0 to 32 non-empty fields, at most 4,096 octets together.

    Raises:
        ValueError: A field is empty, or there are too many fields or octets.
    """

    fields: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if len(self.fields) > MAX_FIELDS:
            raise ValueError(f"a Track Namespace has at most {MAX_FIELDS} fields")
        if not all(self.fields):
            raise ValueError("a Track Namespace Field is never empty")
        if self.size_bytes > MAX_NAME_BYTES:
            raise ValueError(f"a Track Namespace has at most {MAX_NAME_BYTES} octets")

    def __len__(self) -> int:
        return len(self.fields)

    def __str__(self) -> str:
        return self.format()

    @property
    def size_bytes(self) -> int:
        """Octets of all fields together, without their lengths."""
        return sum(map(len, self.fields))

    def is_prefix_of(self, other: "TrackNamespace") -> bool:
        """Tell whether `other` starts with all fields of this namespace."""
        return other.fields[: len(self.fields)] == self.fields

    def suffix_of(self, prefix: "TrackNamespace") -> "TrackNamespace":
        """Return the fields after `prefix`, which must be a prefix of this namespace."""
        if not prefix.is_prefix_of(self):
            raise ValueError(f"{prefix} is not a prefix of {self}")
        return TrackNamespace(self.fields[len(prefix.fields) :])

    def joined(self, suffix: "TrackNamespace") -> "TrackNamespace":
        """Return this namespace followed by the fields of `suffix`."""
        return TrackNamespace(self.fields + suffix.fields)

    def encode(self) -> bytes:
        """Encode as a field count and length-prefixed fields."""
        parts = [encode_vi64(len(self.fields))]
        for field in self.fields:
            parts += (encode_vi64(len(field)), field)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, offset: int = 0) -> tuple[Self, int]:
        """Decode at `offset`; return the namespace and the offset after it.

        Raises:
            NeedMore: `data` ends inside the namespace.
            RemoteProtocolError: More than 32 fields, an empty field, or too many octets.
        """
        count, offset = decode_vi64(data, offset)
        if count > MAX_FIELDS:
            raise _violation(f"Track Namespace with {count} fields, at most {MAX_FIELDS}")
        fields: list[bytes] = []
        size_bytes = 0
        for _ in range(count):
            field, offset = _decode_bytes(data, offset, "Track Namespace")
            if not field:
                raise _violation("Track Namespace with an empty field")
            size_bytes += len(field)
            if size_bytes > MAX_NAME_BYTES:
                raise _violation(f"Track Namespace above {MAX_NAME_BYTES} octets")
            fields.append(field)
        return cls(tuple(fields)), offset

    def format(self) -> str:
        """Return the text form, for example ``example.2enet-team2``."""
        return "-".join(map(_format_field, self.fields))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text form.

        Raises:
            ValueError: `text` is not canonical: stray characters, upper-case or needless hex.
        """
        return cls(tuple(map(_parse_field, text.split("-"))) if text else ())


@dataclass(frozen=True, slots=True)
class FullTrackName:
    """A Track Namespace and a Track Name: the cache key of a Track.

    Attributes:
        namespace: Track Namespace.
        name: Track Name, may be empty.

    Raises:
        ValueError: Namespace and name have more than 4,096 octets together.
    """

    namespace: TrackNamespace
    name: bytes

    def __post_init__(self) -> None:
        if self.namespace.size_bytes + len(self.name) > MAX_NAME_BYTES:
            raise ValueError(f"a Full Track Name has at most {MAX_NAME_BYTES} octets")

    def __str__(self) -> str:
        return self.format()

    def encode(self) -> bytes:
        """Encode the namespace, then the length-prefixed name."""
        return self.namespace.encode() + encode_vi64(len(self.name)) + self.name

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, offset: int = 0) -> tuple[Self, int]:
        """Decode at `offset`; return the name and the offset after it.

        Raises:
            NeedMore: `data` ends inside the name.
            RemoteProtocolError: A limit of the names is broken.
        """
        namespace, offset = TrackNamespace.decode(data, offset)
        name, offset = _decode_bytes(data, offset, "Track Name")
        if namespace.size_bytes + len(name) > MAX_NAME_BYTES:
            raise _violation(f"Full Track Name above {MAX_NAME_BYTES} octets")
        return cls(namespace, name), offset

    def format(self) -> str:
        """Return the text form, for example ``example.2enet-team2--report``."""
        return f"{self.namespace.format()}--{_format_field(self.name)}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text form.

        Raises:
            ValueError: `text` is not canonical or has no ``--``.
        """
        namespace, separator, name = text.partition("--")
        if not separator:
            raise ValueError("a Full Track Name needs '--' before the Track Name")
        return cls(TrackNamespace.parse(namespace), _parse_field(name) if name else b"")


def _violation(reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(TerminationCode.PROTOCOL_VIOLATION, reason)


def _decode_bytes(
    data: bytes | bytearray | memoryview, offset: int, what: str
) -> tuple[bytes, int]:
    length, offset = decode_vi64(data, offset)
    if length > MAX_NAME_BYTES:
        raise _violation(f"{what} with {length} octets, at most {MAX_NAME_BYTES}")
    end = offset + length
    if end > len(data):
        raise NeedMore
    return bytes(data[offset:end]), end


def _format_field(field: bytes) -> str:
    return "".join(chr(octet) if octet in _LITERAL else f".{octet:02x}" for octet in field)


def _parse_field(text: str) -> bytes:
    octets = bytearray()
    position = 0
    while position < len(text):
        match = _TEXT_TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"not the text form of a name at {text[position : position + 3]!r}")
        token = match.group()
        octet = ord(token) if len(token) == 1 else int(token[1:], 16)
        if len(token) == 3 and octet in _LITERAL:
            raise ValueError(f"{token!r} stands for a character that is written as itself")
        octets.append(octet)
        position = match.end()
    return bytes(octets)
