"""The seam between MOQT and whatever carries its streams; QUIC is in `kvcs.transport.picoquic`."""

from kvcs.transport.interface import (
    Address,
    ClientTls,
    Closed,
    Datagram,
    Listener,
    ServerTls,
    StopSending,
    StreamData,
    StreamReset,
    Transport,
    TransportConfig,
    TransportEvent,
    TransportFactory,
    is_loopback,
    is_unidirectional,
)

__all__ = (
    "Address",
    "ClientTls",
    "Closed",
    "Datagram",
    "Listener",
    "ServerTls",
    "StopSending",
    "StreamData",
    "StreamReset",
    "Transport",
    "TransportConfig",
    "TransportEvent",
    "TransportFactory",
    "is_loopback",
    "is_unidirectional",
)
