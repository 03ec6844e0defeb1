"""Bounds on what a peer can make a session hold, and how long a session waits.

Sizes are octets, durations seconds. Every default is enough for KV Objects of 1 MiB at
a few Gbit/s and keeps one session below about 100 MiB.
"""

from dataclasses import dataclass, field
from enum import Enum

from kvcs.moqt.wire.setup import SetupOptions

__all__ = ("SessionConfig", "SessionLimits", "Side")


class Side(Enum):
    """Which end of the connection a session is; matters only for ids and SETUP."""

    CLIENT = 0
    SERVER = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Bounds of one session.

    Attributes:
        max_object_bytes: Payload of one Object. A larger one ends its stream with
            EXCESSIVE_LOAD: a KV Object is 16 KiB to 1 MiB, 16 MiB leaves room.
        max_partial_bytes: What has come of unfinished Objects on all streams together; a stream
            that would exceed it is ended with EXCESSIVE_LOAD.
        max_early_bytes: Data on request and data streams before the peer's SETUP, which
            may be overtaken; more ends the stream with EXCESSIVE_LOAD.
        max_pending_streams: Data streams that wait for the message that explains them (a
            Track Alias overtakes its SUBSCRIBE_OK).
        max_pending_bytes: Data that those streams hold together.
        pending_timeout: Seconds that such a stream waits before it is refused.
        max_requests: Open requests of the peer; more are refused with EXCESSIVE_LOAD.
        max_data_streams: Open data streams of the peer; more are refused with
            EXCESSIVE_LOAD. QUIC's stream credit normally keeps the peer below it.
        max_request_updates: Unanswered REQUEST_UPDATEs on one request, where SETUP
            advertises no smaller number.
        max_namespaces: Namespaces announced on one SUBSCRIBE_NAMESPACE; more cancels it.
        max_token_cache_bytes: Authorization tokens that a client may store in the session of
            a server under aliases (MAX_AUTH_TOKEN_CACHE_SIZE), 16 octets more for each.
        max_request_tokens: Authorization tokens of one request, update or SETUP, also those by
            alias; a request with more is refused with EXCESSIVE_LOAD, a session ended. Each has to
            be verified.
        max_request_token_bytes: Octets that they have together. They are kept as long as the
            request runs, to decide it again.
        max_tombstones: Ended Track Aliases and requests that are remembered, so that what
            was under way when they ended is dropped quietly; and as many streams that were
            refused before it was known what they belong to.
        setup_timeout: Seconds for the peer's SETUP.
        control_message_timeout: Seconds for the rest of a begun control message.
        data_stream_timeout: Seconds without progress inside an Object, which ends its stream with
            EXCESSIVE_LOAD, and for the header of a data stream, which ends the session. Long,
            since a peer with strict priorities rightly starves its lesser streams.
        max_object_time: Seconds from the first octet of an Object to its last, whatever comes
            meanwhile; more ends its stream likewise. An octet now and then would keep it, and who
            waits for it, for ever. 16 MiB take so long at 230 kbit/s, 1 MiB at 14 kbit/s.
        request_timeout: Seconds for the answer to a request of ours, besides the time that
            RENDEZVOUS_TIMEOUT or FILL_TIMEOUT grants the peer.
        drain_timeout: Seconds for the missing streams of a subscription after PUBLISH_DONE:
            a stream reset before its header arrived never shows up.
        goaway_timeout: Seconds to wait for requests to end after a GOAWAY of ours that names
            no time.
    """

    max_object_bytes: int = 16 * 2**20
    max_partial_bytes: int = 64 * 2**20
    max_early_bytes: int = 2**20
    max_pending_streams: int = 64
    max_pending_bytes: int = 8 * 2**20
    pending_timeout: float = 10.0
    max_requests: int = 1024
    max_data_streams: int = 1024
    max_request_updates: int = 64
    max_namespaces: int = 65_536
    max_token_cache_bytes: int = 16 * 2**10
    max_request_tokens: int = 16
    max_request_token_bytes: int = 16 * 2**10
    max_tombstones: int = 4096
    setup_timeout: float = 10.0
    control_message_timeout: float = 10.0
    data_stream_timeout: float = 60.0
    max_object_time: float = 600.0
    request_timeout: float = 30.0
    drain_timeout: float = 10.0
    goaway_timeout: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """Settings of one session.

    Attributes:
        options: What our SETUP says.
        limits: Bounds on what the peer can make the session hold.
    """

    options: SetupOptions = field(default_factory=SetupOptions)
    limits: SessionLimits = field(default_factory=SessionLimits)
