"""TRACK_STATUS, answered by REQUEST_OK.

Source: MOQT draft 22, Section 9.13.
"""

from dataclasses import dataclass
from typing import Self

from kvcs.moqt.codepoints import MessageType
from kvcs.moqt.wire.buffer import Reader
from kvcs.moqt.wire.frame import encode_frame
from kvcs.moqt.wire.parameters import NO_PARAMETERS, Parameters
from kvcs.moqt.wire.scope import Scope
from kvcs.names import FullTrackName
from kvcs.varint import encode_vi64

__all__ = ("TrackStatus",)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackStatus:
    """TRACK_STATUS: what is known of this Track, without subscribing."""

    request_id: int
    track: FullTrackName
    parameters: Parameters = NO_PARAMETERS

    def encode(self) -> bytes:
        """Encode the whole message."""
        return encode_frame(
            MessageType.TRACK_STATUS,
            encode_vi64(self.request_id),
            self.track.encode(),
            self.parameters.encode(),
        )

    @classmethod
    def decode_body(cls, reader: Reader) -> Self:
        """Decode the body."""
        return cls(
            request_id=reader.vi64(),
            track=reader.track(),
            parameters=Parameters.decode(reader, Scope.TRACK_STATUS),
        )
