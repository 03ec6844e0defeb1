"""PUBLISH, PUBLISH_DONE and PUBLISH_STATE_NOTIFY.

Source: MOQT draft 22, Sections 9.8 to 9.10.
"""

from dataclasses import dataclass
from typing import Final, Self

from kvcs.moqt.codepoints import MessageType
from kvcs.moqt.wire.buffer import MAX_REASON_BYTES, Reader, encode_text
from kvcs.moqt.wire.frame import encode_frame
from kvcs.moqt.wire.parameters import NO_PARAMETERS, Parameters
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.moqt.wire.scope import Scope
from kvcs.names import FullTrackName
from kvcs.varint import MAX_VI64, encode_vi64

__all__ = ("UNKNOWN_STREAM_COUNT", "Publish", "PublishDone", "PublishStateNotify")

UNKNOWN_STREAM_COUNT: Final = MAX_VI64


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """PUBLISH: a subscription that the publisher starts.

    Attributes:
        request_id: Request ID.
        track: The Track.
        track_alias: Names the Track on Subgroup streams and in datagrams.
        parameters: Initial parameters of the subscription.
        properties: Track Properties.
    """

    request_id: int
    track: FullTrackName
    track_alias: int
    parameters: Parameters = NO_PARAMETERS
    properties: Properties = EMPTY_PROPERTIES

    def encode(self) -> bytes:
        """Encode the whole message."""
        return encode_frame(
            MessageType.PUBLISH,
            encode_vi64(self.request_id),
            self.track.encode(),
            encode_vi64(self.track_alias),
            self.parameters.encode(),
            self.properties.raw,
        )

    @classmethod
    def decode_body(cls, reader: Reader) -> Self:
        """Decode the body."""
        return cls(
            request_id=reader.vi64(),
            track=reader.track(),
            track_alias=reader.vi64(),
            parameters=Parameters.decode(reader, Scope.PUBLISH),
            properties=Properties.decode_track(reader.rest()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishDone:
    """PUBLISH_DONE: nothing more will start in this subscription.

    Attributes:
        status_code: Why, kept as sent; unknown codes mean INTERNAL_ERROR.
        stream_count: Data streams that were opened, fills included, or `UNKNOWN_STREAM_COUNT`.
        reason: Text for people, at most 1,024 octets.
    """

    status_code: int
    stream_count: int
    reason: str = ""

    def encode(self) -> bytes:
        """Encode the whole message."""
        return encode_frame(
            MessageType.PUBLISH_DONE,
            encode_vi64(self.status_code),
            encode_vi64(self.stream_count),
            encode_text(self.reason, MAX_REASON_BYTES, "Reason Phrase"),
        )

    @classmethod
    def decode_body(cls, reader: Reader) -> Self:
        """Decode the body."""
        return cls(
            status_code=reader.vi64(),
            stream_count=reader.vi64(),
            reason=reader.text(MAX_REASON_BYTES, "Reason Phrase"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishStateNotify:
    """PUBLISH_STATE_NOTIFY: parameters that changed at the publisher."""

    parameters: Parameters = NO_PARAMETERS

    def encode(self) -> bytes:
        """Encode the whole message."""
        return encode_frame(MessageType.PUBLISH_STATE_NOTIFY, self.parameters.encode())

    @classmethod
    def decode_body(cls, reader: Reader) -> Self:
        """Decode the body."""
        return cls(parameters=Parameters.decode(reader, Scope.STATE_NOTIFY))
