"""FETCH and FETCH_OK.

Source: MOQT draft 22, Sections 9.11 and 9.12.
"""

from dataclasses import dataclass
from typing import Self

from kvcs.moqt.codepoints import MessageType
from kvcs.moqt.wire.buffer import Reader, encode_u8, violation
from kvcs.moqt.wire.frame import encode_frame
from kvcs.moqt.wire.parameters import NO_PARAMETERS, Parameters
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.moqt.wire.scope import Scope
from kvcs.names import FullTrackName, Location
from kvcs.varint import encode_vi64

__all__ = ("Fetch", "FetchOk")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """FETCH: send me this part of a Track, on one stream."""

    request_id: int
    track: FullTrackName
    parameters: Parameters = NO_PARAMETERS

    def encode(self) -> bytes:
        """Encode the whole message."""
        return encode_frame(
            MessageType.FETCH,
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
            parameters=Parameters.decode(reader, Scope.FETCH),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOk:
    """FETCH_OK: what the fetch stream covers.

    Attributes:
        end_of_track: Whether `end_location` is the last Object of a finished Track.
        end_location: End of the range that is covered, inclusive.
        parameters: None are defined.
        properties: Track Properties.
    """

    end_of_track: bool
    end_location: Location
    parameters: Parameters = NO_PARAMETERS
    properties: Properties = EMPTY_PROPERTIES

    def encode(self) -> bytes:
        """Encode the whole message."""
        return encode_frame(
            MessageType.FETCH_OK,
            encode_u8(self.end_of_track, "EndOfTrack"),
            self.end_location.encode(),
            self.parameters.encode(),
            self.properties.raw,
        )

    @classmethod
    def decode_body(cls, reader: Reader) -> Self:
        """Decode the body."""
        end_of_track = reader.u8()
        if end_of_track > 1:
            raise violation(f"EndOfTrack {end_of_track}, allowed are 0 and 1")
        return cls(
            end_of_track=end_of_track == 1,
            end_location=reader.location(),
            parameters=Parameters.decode(reader, Scope.FETCH_OK),
            properties=Properties.decode_track(reader.rest()),
        )
