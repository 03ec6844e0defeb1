"""SUBSCRIBE and SUBSCRIBE_OK.

Source: MOQT draft 22, Sections 9.6 and 9.7.
"""

from dataclasses import dataclass
from typing import Self

from kvcs.moqt.codepoints import MessageType
from kvcs.moqt.wire.buffer import Reader
from kvcs.moqt.wire.frame import encode_frame
from kvcs.moqt.wire.parameters import NO_PARAMETERS, Parameters
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.moqt.wire.scope import Scope
from kvcs.names import FullTrackName
from kvcs.varint import encode_vi64

__all__ = ("Subscribe", "SubscribeOk")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """SUBSCRIBE: send me this Track from now on, and perhaps a fill of its past."""

    request_id: int
    track: FullTrackName
    parameters: Parameters = NO_PARAMETERS

    def encode(self) -> bytes:
        """Encode the whole message."""
        return encode_frame(
            MessageType.SUBSCRIBE,
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
            parameters=Parameters.decode(reader, Scope.SUBSCRIBE),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeOk:
    """SUBSCRIBE_OK: the subscription is established.

    Attributes:
        track_alias: Names the Track on Subgroup streams and in datagrams.
        parameters: EXPIRES and LARGEST_OBJECT.
        properties: Track Properties.
    """

    track_alias: int
    parameters: Parameters = NO_PARAMETERS
    properties: Properties = EMPTY_PROPERTIES

    def encode(self) -> bytes:
        """Encode the whole message."""
        return encode_frame(
            MessageType.SUBSCRIBE_OK,
            encode_vi64(self.track_alias),
            self.parameters.encode(),
            self.properties.raw,
        )

    @classmethod
    def decode_body(cls, reader: Reader) -> Self:
        """Decode the body."""
        return cls(
            track_alias=reader.vi64(),
            parameters=Parameters.decode(reader, Scope.SUBSCRIBE_OK),
            properties=Properties.decode_track(reader.rest()),
        )
