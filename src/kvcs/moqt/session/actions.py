"""Actions: what the transport must do for a session.

Actions are applied in the order in which they were taken. The session numbers QUIC
streams itself, exactly as QUIC does, so the first `SendStream` on a new local stream id
opens that stream. Header and payload of an Object are two `SendStream` actions: a payload
is handed on as the very `bytes` that the caller gave and is never joined to a header.
"""

from dataclasses import dataclass
from typing import NamedTuple, NewType

__all__ = (
    "Action",
    "CloseSession",
    "RequestId",
    "ResetStream",
    "SendDatagram",
    "SendStream",
    "SetPriority",
    "StopSending",
    "StreamId",
    "TrackAlias",
)

RequestId = NewType("RequestId", int)
TrackAlias = NewType("TrackAlias", int)
StreamId = NewType("StreamId", int)


class SendStream(NamedTuple):
    """Append `data` to a stream, and end our direction of it after that if `fin`.

    There are two for each Object, and a tuple is made in half the time of a frozen dataclass.
    """

    stream_id: StreamId
    data: bytes
    fin: bool = False


@dataclass(frozen=True, slots=True)
class SetPriority:
    """Rank a stream for sending: 0 first; 0 control, 2 requests, even values from 4 data."""

    stream_id: StreamId
    priority: int


@dataclass(frozen=True, slots=True)
class ResetStream:
    """End our direction of a stream abruptly; what is queued on it may be dropped."""

    stream_id: StreamId
    code: int


@dataclass(frozen=True, slots=True)
class StopSending:
    """Ask the peer to end its direction of a stream."""

    stream_id: StreamId
    code: int


@dataclass(frozen=True, slots=True)
class SendDatagram:
    """Send one datagram; it may be lost."""

    data: bytes


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Close the connection with a code of Section 12.2; always the last action."""

    code: int
    reason: str


type Action = SendStream | SetPriority | ResetStream | StopSending | SendDatagram | CloseSession
