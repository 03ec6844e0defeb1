"""Announcing and discovering Track Namespaces and the Tracks below them.

Source: MOQT draft 22, Sections 9.14 to 9.19.
"""

from dataclasses import dataclass
from typing import Self

from kvcs.moqt.codepoints import MessageType
from kvcs.moqt.wire.buffer import Reader, encode_prefixed
from kvcs.moqt.wire.frame import encode_frame
from kvcs.moqt.wire.parameters import NO_PARAMETERS, Parameters
from kvcs.moqt.wire.scope import Scope
from kvcs.names import TrackNamespace
from kvcs.varint import encode_vi64

__all__ = (
    "Namespace",
    "NamespaceDone",
    "PublishNamespace",
    "PublishSkipped",
    "SubscribeNamespace",
    "SubscribeTracks",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishNamespace:
    """PUBLISH_NAMESPACE: Tracks below this prefix can be asked for here."""

    request_id: int
    track_namespace_prefix: TrackNamespace
    parameters: Parameters = NO_PARAMETERS

    def encode(self) -> bytes:
        """Encode the whole message."""
        return encode_frame(
            MessageType.PUBLISH_NAMESPACE,
            encode_vi64(self.request_id),
            self.track_namespace_prefix.encode(),
            self.parameters.encode(),
        )

    @classmethod
    def decode_body(cls, reader: Reader) -> Self:
        """Decode the body."""
        return cls(
            request_id=reader.vi64(),
            track_namespace_prefix=reader.namespace(),
            parameters=Parameters.decode(reader, Scope.PUBLISH_NAMESPACE),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeNamespace:
    """SUBSCRIBE_NAMESPACE: tell me the namespaces below this prefix."""

    request_id: int
    track_namespace_prefix: TrackNamespace
    parameters: Parameters = NO_PARAMETERS

    def encode(self) -> bytes:
        """Encode the whole message."""
        return encode_frame(
            MessageType.SUBSCRIBE_NAMESPACE,
            encode_vi64(self.request_id),
            self.track_namespace_prefix.encode(),
            self.parameters.encode(),
        )

    @classmethod
    def decode_body(cls, reader: Reader) -> Self:
        """Decode the body."""
        return cls(
            request_id=reader.vi64(),
            track_namespace_prefix=reader.namespace(),
            parameters=Parameters.decode(reader, Scope.SUBSCRIBE_NAMESPACE),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeTracks:
    """SUBSCRIBE_TRACKS: send PUBLISH for the Tracks below this prefix."""

    request_id: int
    track_namespace_prefix: TrackNamespace
    parameters: Parameters = NO_PARAMETERS

    def encode(self) -> bytes:
        """Encode the whole message."""
        return encode_frame(
            MessageType.SUBSCRIBE_TRACKS,
            encode_vi64(self.request_id),
            self.track_namespace_prefix.encode(),
            self.parameters.encode(),
        )

    @classmethod
    def decode_body(cls, reader: Reader) -> Self:
        """Decode the body."""
        return cls(
            request_id=reader.vi64(),
            track_namespace_prefix=reader.namespace(),
            parameters=Parameters.decode(reader, Scope.SUBSCRIBE_TRACKS),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """NAMESPACE: a namespace below the prefix is there.

    Attributes:
        track_namespace_suffix: Fields after the prefix asked for, none for the prefix itself.
    """

    track_namespace_suffix: TrackNamespace

    def encode(self) -> bytes:
        """Encode the whole message."""
        return encode_frame(MessageType.NAMESPACE, self.track_namespace_suffix.encode())

    @classmethod
    def decode_body(cls, reader: Reader) -> Self:
        """Decode the body."""
        return cls(track_namespace_suffix=reader.namespace())


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceDone:
    """NAMESPACE_DONE: a namespace below the prefix is gone.

    Attributes:
        track_namespace_suffix: Fields after the prefix asked for, none for the prefix itself.
    """

    track_namespace_suffix: TrackNamespace

    def encode(self) -> bytes:
        """Encode the whole message."""
        return encode_frame(MessageType.NAMESPACE_DONE, self.track_namespace_suffix.encode())

    @classmethod
    def decode_body(cls, reader: Reader) -> Self:
        """Decode the body."""
        return cls(track_namespace_suffix=reader.namespace())


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishSkipped:
    """PUBLISH_SKIPPED: a Track below the prefix for which no PUBLISH will come.

    Attributes:
        track_namespace_suffix: Fields after the prefix asked for.
        track_name: Track Name.
    """

    track_namespace_suffix: TrackNamespace
    track_name: bytes

    def encode(self) -> bytes:
        """Encode the whole message."""
        return encode_frame(
            MessageType.PUBLISH_SKIPPED,
            self.track_namespace_suffix.encode(),
            encode_prefixed(self.track_name),
        )

    @classmethod
    def decode_body(cls, reader: Reader) -> Self:
        """Decode the body."""
        skipped = reader.track()
        return cls(track_namespace_suffix=skipped.namespace, track_name=skipped.name)
