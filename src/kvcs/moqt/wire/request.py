"""The messages that all kinds of requests share.

Source: MOQT draft 22, Sections 9.3 to 9.5.
"""

from dataclasses import dataclass
from typing import Self

from kvcs.errors import RequestErrorCode
from kvcs.moqt.codepoints import MessageType
from kvcs.moqt.wire.buffer import MAX_REASON_BYTES, MAX_URI_BYTES, Reader, encode_text
from kvcs.moqt.wire.frame import encode_frame
from kvcs.moqt.wire.parameters import NO_PARAMETERS, Parameters
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.moqt.wire.scope import Scope
from kvcs.names import FullTrackName
from kvcs.varint import encode_vi64

__all__ = ("Redirect", "RequestError", "RequestOk", "RequestUpdate")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestUpdate:
    """REQUEST_UPDATE: change the parameters of the request on this stream.

    Attributes:
        request_id: A new Request ID, of the update itself.
        parameters: What changes; what is absent stays.
    """

    request_id: int
    parameters: Parameters = NO_PARAMETERS

    def encode(self) -> bytes:
        """Encode the whole message."""
        return encode_frame(
            MessageType.REQUEST_UPDATE, encode_vi64(self.request_id), self.parameters.encode()
        )

    @classmethod
    def decode_body(cls, reader: Reader) -> Self:
        """Decode the body; which request is updated narrows the scope later."""
        return cls(request_id=reader.vi64(), parameters=Parameters.decode(reader, Scope.UPDATE))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOk:
    """REQUEST_OK: yes, to everything but SUBSCRIBE and FETCH.

    Attributes:
        parameters: EXPIRES or LARGEST_OBJECT, depending on the request.
        properties: Track Properties, in the answer to TRACK_STATUS only.
    """

    parameters: Parameters = NO_PARAMETERS
    properties: Properties = EMPTY_PROPERTIES

    def encode(self) -> bytes:
        """Encode the whole message."""
        return encode_frame(MessageType.REQUEST_OK, self.parameters.encode(), self.properties.raw)

    @classmethod
    def decode_body(cls, reader: Reader) -> Self:
        """Decode the body; which request is answered narrows the scope later."""
        return cls(
            parameters=Parameters.decode(reader, Scope.REQUEST_OK),
            properties=Properties.decode_track(reader.rest()),
        )


@dataclass(frozen=True, slots=True)
class Redirect:
    """Where else a request may be answered.

    Attributes:
        uri: Another session; empty is this one.
        track: The Track, or the namespace with an empty Track Name.
    """

    uri: str
    track: FullTrackName

    def __str__(self) -> str:
        return f"{self.track} at {self.uri or 'the same address'}"

    def encode(self) -> bytes:
        """Encode the structure."""
        return encode_text(self.uri, MAX_URI_BYTES, "Redirect URI") + self.track.encode()

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """Decode the structure."""
        return cls(reader.text(MAX_URI_BYTES, "Redirect URI"), reader.track())


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestError:
    """REQUEST_ERROR: no.

    Attributes:
        code: Why, kept as sent; unknown codes mean INTERNAL_ERROR.
        retry_interval: Milliseconds to wait before trying again, plus one; 0 is never.
        reason: Text for people, at most 1,024 octets.
        redirect: Present exactly with REDIRECT.

    Raises:
        ValueError: `redirect` and `code` disagree.
    """

    code: int
    retry_interval: int = 0
    reason: str = ""
    redirect: Redirect | None = None

    def __post_init__(self) -> None:
        if (self.redirect is not None) != (self.code == RequestErrorCode.REDIRECT):
            raise ValueError("a Redirect goes with the code REDIRECT, and only with it")

    def encode(self) -> bytes:
        """Encode the whole message."""
        return encode_frame(
            MessageType.REQUEST_ERROR,
            encode_vi64(self.code),
            encode_vi64(self.retry_interval),
            encode_text(self.reason, MAX_REASON_BYTES, "Reason Phrase"),
            self.redirect.encode() if self.redirect else b"",
        )

    @classmethod
    def decode_body(cls, reader: Reader) -> Self:
        """Decode the body."""
        code = reader.vi64()
        return cls(
            code=code,
            retry_interval=reader.vi64(),
            reason=reader.text(MAX_REASON_BYTES, "Reason Phrase"),
            redirect=Redirect.decode(reader) if code == RequestErrorCode.REDIRECT else None,
        )
