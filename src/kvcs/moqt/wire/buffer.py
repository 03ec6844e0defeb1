"""Reading and writing of the primitive fields that all wire modules share.

`Reader` walks over bytes and raises `NeedMore` where they end. Who knows that nothing
more can come (a message body, a length-prefixed block) turns that into a violation.

Source: MOQT draft 22, Sections 8.1 to 8.8.
"""

from typing import Final, cast

from kvcs.errors import LocalProtocolError, RemoteProtocolError, TerminationCode
from kvcs.names import FullTrackName, Location, TrackNamespace
from kvcs.varint import NeedMore, decode_vi64, encode_vi64

__all__ = (
    "MAX_REASON_BYTES",
    "MAX_URI_BYTES",
    "Reader",
    "encode_prefixed",
    "encode_text",
    "encode_u8",
    "violation",
)

MAX_REASON_BYTES: Final = 1024
MAX_URI_BYTES: Final = 8192


def violation(reason: str) -> RemoteProtocolError:
    """Return the error that closes the session with PROTOCOL_VIOLATION."""
    return RemoteProtocolError(TerminationCode.PROTOCOL_VIOLATION, reason)


class Reader:
    """Cursor over bytes that may end too early.

    Every method moves `offset` behind what it returns, and raises `NeedMore` without
    moving when the bytes end first.

    Args:
        data: The bytes to read. A bytearray must not shrink while the reader lives.
        offset: Index of the first octet to read.
        end: Index behind the last octet to read; None is the end of `data`.

    Attributes:
        data: The bytes read from; nothing beyond its end is ever looked at.
        offset: Index in `data` of the next octet.
    """

    __slots__ = ("data", "offset")

    def __init__(
        self, data: bytes | bytearray | memoryview, offset: int = 0, end: int | None = None
    ) -> None:
        self.data = data if end is None else memoryview(data)[:end]
        self.offset = offset

    def __repr__(self) -> str:
        return f"Reader(offset={self.offset}, remaining={self.remaining})"

    @property
    def remaining(self) -> int:
        """Octets not yet read."""
        return len(self.data) - self.offset

    def vi64(self) -> int:
        """Read a vi64."""
        value, self.offset = decode_vi64(self.data, self.offset)
        return value

    def u8(self) -> int:
        """Read one octet as an integer."""
        if self.offset >= len(self.data):
            raise NeedMore
        value = self.data[self.offset]
        self.offset += 1
        return value

    def u16(self) -> int:
        """Read two octets as a big-endian integer."""
        return int.from_bytes(self.take(2))

    def take(self, length: int) -> bytes:
        """Read `length` octets."""
        end = self.offset + length
        if end > len(self.data):
            raise NeedMore
        taken = bytes(self.data[self.offset : end])
        self.offset = end
        return taken

    def rest(self) -> bytes:
        """Read all octets that are left."""
        return self.take(self.remaining)

    def prefixed(self, limit: int, what: str) -> bytes:
        """Read a vi64 length and as many octets.

        Raises:
            RemoteProtocolError: The length is above `limit`; `what` names the field.
        """
        length, offset = decode_vi64(self.data, self.offset)
        if length > limit:
            raise violation(f"{what} with {length} octets, at most {limit}")
        if offset + length > len(self.data):
            raise NeedMore
        self.offset = offset
        return self.take(length)

    def text(self, limit: int, what: str) -> str:
        """Read a vi64 length and as many octets of UTF-8.

        Raises:
            RemoteProtocolError: The length is above `limit`, or the octets are not UTF-8.
        """
        octets = self.prefixed(limit, what)
        try:
            return octets.decode()
        except UnicodeDecodeError:
            raise violation(f"{what} is not UTF-8") from None

    def location(self) -> Location:
        """Read a Location (Section 8.2)."""
        group_id, offset = decode_vi64(self.data, self.offset)
        object_id, self.offset = decode_vi64(self.data, offset)
        return Location(group_id, object_id)

    def namespace(self) -> TrackNamespace:
        """Read a Track Namespace (Section 8.7)."""
        namespace, self.offset = TrackNamespace.decode(cast("bytes", self.data), self.offset)
        return namespace

    def track(self) -> FullTrackName:
        """Read a Track Namespace and a Track Name (Section 8.7)."""
        track, self.offset = FullTrackName.decode(cast("bytes", self.data), self.offset)
        return track


def encode_u8(value: int, what: str) -> bytes:
    """Encode one octet; `what` names the field.

    Raises:
        ValueError: `value` is not in 0..255.
    """
    if not 0 <= value <= 0xFF:
        raise ValueError(f"{what} is 0..255, got {value}")
    return value.to_bytes()


def encode_prefixed(octets: bytes) -> bytes:
    """Encode a vi64 length and the octets."""
    return encode_vi64(len(octets)) + octets


def encode_text(text: str, limit: int, what: str) -> bytes:
    """Encode a vi64 length and `text` as UTF-8.

    Raises:
        LocalProtocolError: The encoded text is above `limit`; `what` names the field.
    """
    octets = text.encode()
    if len(octets) > limit:
        raise LocalProtocolError(f"{what} with {len(octets)} octets, at most {limit}")
    return encode_prefixed(octets)
