"""GOAWAY, the wish that a session or one request moves elsewhere.

Source: MOQT draft 22, Sections 6.6.1 and 9.2.
"""

from dataclasses import dataclass
from typing import Self

from kvcs.errors import LocalProtocolError
from kvcs.moqt.codepoints import MessageType
from kvcs.moqt.wire.buffer import MAX_URI_BYTES, Reader, encode_text
from kvcs.moqt.wire.frame import encode_frame
from kvcs.varint import encode_vi64

__all__ = ("Goaway",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goaway:
    """GOAWAY: move, soon.

    Attributes:
        uri: Where to go; empty is the URI of this session, and all that a client may say.
        timeout_ms: Time until the sender closes; 0 is unspecified.
    """

    uri: str = ""
    timeout_ms: int = 0

    @classmethod
    def of(cls, uri: str, timeout: float, *, is_client: bool) -> Self:
        """Return the GOAWAY of one side.

        Args:
            uri: Where to go.
            timeout: Seconds until the sender closes; 0 is unspecified.
            is_client: A client sends it, which names no URI.

        Raises:
            LocalProtocolError: A client names a URI.
        """
        if uri and is_client:
            raise LocalProtocolError("the GOAWAY of a client names no URI")
        return cls(uri=uri, timeout_ms=round(timeout * 1000))

    def encode(self) -> bytes:
        """Encode the whole message."""
        uri = encode_text(self.uri, MAX_URI_BYTES, "GOAWAY URI")
        return encode_frame(MessageType.GOAWAY, uri, encode_vi64(self.timeout_ms))

    @classmethod
    def decode_body(cls, reader: Reader) -> Self:
        """Decode the body."""
        return cls(uri=reader.text(MAX_URI_BYTES, "GOAWAY URI"), timeout_ms=reader.vi64())
