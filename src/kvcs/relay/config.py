"""Settings and limits of a relay."""

from dataclasses import dataclass, field
from typing import Final

from kvcs.endpoint.reconnect import Backoff
from kvcs.endpoint.url import parse_url
from kvcs.errors import ConfigError
from kvcs.moqt.session.limits import SessionLimits
from kvcs.moqt.wire.token import Token
from kvcs.relay.auth import Authorize, deny_all
from kvcs.relay.disk.config import DiskConfig
from kvcs.transport.interface import ClientTls, ServerTls, TransportConfig, is_loopback

__all__ = ("RelayConfig", "RelayLimits")

_GIB: Final = 2**30
_MIB: Final = 2**20
# Of the memory, one part in so many may be read from the disk at a time.
_READ_AHEAD_SHARE: Final = 8
# A relay asks one parent at a time; more than a few to choose from only delay the search.
_MAX_UPSTREAM: Final = 8

# Small rings: what a slow subscriber does not take waits in the cache, once for all. Each stream
# has one as long as it lives, and is looked at again before a busy one is empty.
# Every request is a stream, and another relay asks and announces for all that are behind it.
_TRANSPORT: Final = TransportConfig(
    stream_ring_bytes=_MIB // 4, max_data=8 * _MIB, max_bidi_streams=1024
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayLimits:
    """Bounds on what peers can make a relay hold, and on how long it waits.

    Sizes are octets, durations seconds.

    Attributes:
        max_sessions: Open sessions; more are closed at once.
        max_sessions_per_address: The same from one address, so that one machine cannot shut
            out all others. Set it higher where many clients share an address.
        max_request_rate: Requests, REQUEST_UPDATEs, PUBLISH_STATE_NOTIFYs and
            PUBLISH_SKIPPEDs a second of one session; more are refused with EXCESSIVE_LOAD, or
            not heard where they have no answer. A relay asks another one for all its clients
            together, and publishes to it for all of them, each at most half as fast: what goes
            beyond is refused with EXCESSIVE_LOAD or waits. One client has half of that in the long
            run.
        max_request_burst: The same at once: what a publisher with many publications
            announces when it connects again. A session with as many refusals more is closed.
        max_listing_rate: Namespaces and Tracks a second that are listed to one session by
            SUBSCRIBE_NAMESPACE, SUBSCRIBE_TRACKS and their changes, after as many as
            `SessionLimits.max_namespaces`; requests for more are refused with EXCESSIVE_LOAD.
            Each is decided by the policy, so that a few octets that ask for thousands cost the
            relay much.
        max_useless_token_rate: Tokens a second of one session that are verified and cannot be used,
            or are known and only written in another way. Where more come, tokens that the policy
            does not know are not looked at, and requests that need them are refused with
            EXCESSIVE_LOAD: verifying one costs this relay a signature check, making such a one
            costs nothing.
        max_useless_token_burst: The same at once.
        max_withdrawal_rate: Namespaces a second that one session may take back, or say twice, after
            as many as it may have announced. A publisher that goes on is refused new ones with
            EXCESSIVE_LOAD; a parent that goes on below one prefix is left, after twice as many as
            it may list there. A relay tells no faster below one prefix, whatever its publishers
            do, and announces no faster to its own parent.
        max_receive_rate: Octets a second that one session may send, after a burst of one
            second's worth; a publisher that is faster is closed, since it would push out what
            others published.
        max_window_bytes: Octets that the transport keeps for the streams that one session has
            open, at most `TransportConfig.max_stream_data` for each; a session that opens all
            its streams, fills their windows and ends none is closed.
        max_total_window_bytes: The same for all sessions together. When it is used up, one session
            of the address that has most of it is closed, the one that has most.
        max_partial_bytes: What has come of unfinished Objects, and of streams that nothing has
            explained yet, in all sessions together. At this bound the session that has cost the
            most, octets times the seconds that they are held, loses its least urgent stream
            (EXCESSIVE_LOAD); what was on it is asked for again. At least
            `SessionLimits.max_object_bytes`.
        max_queued_bytes: Octets that wait for subscribers in all sessions together. One
            session has `TransportConfig.high_water_bytes`; when all together have this much,
            each gets no more than `relay.egress.MIN_SHARE_BYTES` until there is room again.
            Messages count, and where they make it twice as much, the session with most waiting
            is closed.
        reader_timeout: Seconds that a subscriber may take nothing of what waits for it; then
            its session is closed. Long, since a consumer may compute before it reads on.
        max_namespaces: Advertised namespaces of all sessions together.
        max_namespaces_per_session: PUBLISH_NAMESPACEs of one session; a publisher of KV
            caches advertises one for each publication that it still serves.
        max_prefixes_per_session: SUBSCRIBE_NAMESPACEs, and as many SUBSCRIBE_TRACKS, of
            one session; a consumer probes at most 32 prefixes at once.
        max_published_tracks: Tracks that are published at a time to one session by its
            SUBSCRIBE_TRACKS, and fewer than half of the streams that it lets begin, a quarter of
            them where it is a relay; the others are told of with PUBLISH_SKIPPED, and can be
            subscribed to one by one.
        max_tracks: Tracks with any state. Each counts 9 KiB, its name and its Properties towards
            `RelayConfig.cache_bytes`, which may be full before.
        max_tracks_per_session: Those of them that one session asked for or published before
            anybody else, so that others have room. At this bound its own that nobody uses make
            room, or it is refused with EXCESSIVE_LOAD.
        max_fetches_per_session: FETCHes that one session may have under way; fills do not
            count. Subscriptions are bounded by `SessionLimits.max_requests`.
        max_rendezvous_timeout: Longest wait for a publisher that a subscriber may ask for.
        fill_timeout: Wait for a publisher that makes no progress with a FETCH of ours; what
            it still owes has then timed out.
        live_wait: Wait for an Object that is under way on the upstream subscription before
            it is fetched; streams overtake each other, and a fetch would carry it twice.
        cut_through_bytes: Objects of at least so many octets go on to subscriptions, fills and
            FETCHes while they arrive; smaller ones when they are whole.
        subscription_linger: Time that an upstream subscription outlives its last
            subscriber, so that a consumer that reconnects finds it running.
        namespace_wait: Wait for the parent's answer to SUBSCRIBE_NAMESPACE before a subscriber
            here is answered without it; twice the round trip to a parent far away is plenty.
        max_upstream_namespaces: PUBLISH_NAMESPACEs to the parent; each is an open request
            there, and at most a quarter of those that it lets a session open are used for them.
            Publications beyond it are found behind this relay only, until others end.
        publisher_wait: Time that running subscriptions wait for another publisher, or for the
            same one to return, when the last one is lost; then they end.
        session: Bounds of each session.
    """

    max_sessions: int = 1024
    max_sessions_per_address: int = 256
    max_request_rate: float = 1000.0
    max_request_burst: int = 4096
    max_listing_rate: float = 5000.0
    max_useless_token_rate: float = 5.0
    max_useless_token_burst: int = 32
    max_withdrawal_rate: float = 500.0
    max_receive_rate: int = _GIB
    max_window_bytes: int = 512 * _MIB
    max_total_window_bytes: int = 2 * _GIB
    max_partial_bytes: int = 512 * _MIB
    max_queued_bytes: int = 512 * _MIB
    reader_timeout: float = 300.0
    max_namespaces: int = 50_000
    max_namespaces_per_session: int = 16_384
    max_prefixes_per_session: int = 256
    max_published_tracks: int = 512
    max_tracks: int = 100_000
    max_tracks_per_session: int = 25_000
    max_fetches_per_session: int = 64
    max_rendezvous_timeout: float = 60.0
    fill_timeout: float = 30.0
    live_wait: float = 1.0
    cut_through_bytes: int = 256 * 2**10
    subscription_linger: float = 5.0
    namespace_wait: float = 2.0
    max_upstream_namespaces: int = 256
    publisher_wait: float = 10.0
    session: SessionLimits = field(default_factory=SessionLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayConfig:
    """Settings of a relay.

    Attributes:
        tls: Certificate and key that clients see.
        host: Address to listen on. A loopback address takes clients of this machine only;
            any other takes all, on all interfaces.
        port: UDP port; 0 picks a free one.
        cache_bytes: Octets of Objects that are kept, and of what is known of their Tracks. At least
            two of the largest Objects that are accepted must fit; sensible sizes are what the
            machine can spare.
        disk: Where Objects are kept on disk as well; None keeps them in memory only.
        authorize: Decides every request; refuses all unless another policy is chosen.
        limits: Bounds on what peers can make the relay hold.
        transport: Settings of the QUIC connections.
        max_filter_ranges: Ranges of range filters that a subscriber may send per request.
        upstream: Parents in order of preference, each ``moqt://host[:port]/path``; one is used
            at a time. Empty for a relay without parents.
        upstream_tls: How the parents are checked.
        upstream_tokens: Authorization tokens for the parents, sent in SETUP.
        upstream_backoff: Waits between attempts to reach one of them.

    Raises:
        ConfigError: `cache_bytes` or `limits.max_partial_bytes` is too small, or `upstream`
            names no parents, the same one twice, or too many.
    """

    tls: ServerTls
    host: str = "127.0.0.1"
    port: int = 4433
    cache_bytes: int = _GIB
    disk: DiskConfig | None = None
    authorize: Authorize = deny_all
    limits: RelayLimits = field(default_factory=RelayLimits)
    transport: TransportConfig = _TRANSPORT
    max_filter_ranges: int = 16
    upstream: tuple[str, ...] = ()
    upstream_tls: ClientTls = field(default_factory=ClientTls)
    upstream_tokens: tuple[Token, ...] = ()
    upstream_backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        least = 2 * self.limits.session.max_object_bytes
        if self.cache_bytes < least:
            raise ConfigError("cache_bytes", f"at least {least}", str(self.cache_bytes))
        largest, partial = self.limits.session.max_object_bytes, self.limits.max_partial_bytes
        if partial < largest:
            raise ConfigError("limits.max_partial_bytes", f"at least {largest}", str(partial))
        # What is read for one subscriber may not push out what others are about to take.
        most = self.cache_bytes // _READ_AHEAD_SHARE
        if self.disk is not None and self.disk.read_ahead_bytes > most:
            got = str(self.disk.read_ahead_bytes)
            raise ConfigError("disk.read_ahead_bytes", f"at most {most}", got)
        self._check_upstream()

    def _check_upstream(self) -> None:
        if len(self.upstream) > _MAX_UPSTREAM:
            raise ConfigError("upstream", f"at most {_MAX_UPSTREAM}", str(len(self.upstream)))
        if len(set(self.upstream)) < len(self.upstream):
            raise ConfigError("upstream", "every parent once", ", ".join(self.upstream))
        for url in self.upstream:
            try:
                host = parse_url(url).host
            except ConfigError as error:
                raise ConfigError("upstream", error.expected, error.got) from error
            if not (self.upstream_tls.verify or is_loopback(host)):
                raise ConfigError("upstream_tls.verify", "true, except towards this machine", host)
