"""Plain counters of a relay; `RelayStatistics` is a copy that does not move.

Counting never fails and never waits, so that telemetry cannot hurt a transfer.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

__all__ = ("Metrics", "RelayStatistics")


@dataclass(slots=True)
class Metrics:
    """Counters since the relay started; they only grow.

    Attributes:
        sessions_opened: Sessions that were accepted.
        sessions_closed: Sessions that ended.
        sessions_flooded: Sessions that were closed for a flood of requests.
        requests_refused: REQUEST_ERRORs sent, by code name.
        objects_in: Objects received from publishers.
        bytes_in: Payload octets received from publishers.
        bytes_out: Octets of Objects handed to sessions for sending.
        objects_rejected: Objects received and not kept, by reason.
        upstream_subscriptions: Upstream subscriptions that were established.
        upstream_fetches: FETCHes sent to publishers.
        fetches_served: FETCHes and fills that were begun.
        cache_misses: FETCHes and fills for which a publisher was asked.
        evicted_bytes: Payload octets dropped from the cache, by reason.
        malformed_tracks: Tracks that contradicted themselves.
    """

    sessions_opened: int = 0
    sessions_closed: int = 0
    sessions_flooded: int = 0
    requests_refused: Counter[str] = field(default_factory=Counter[str])
    objects_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    objects_rejected: Counter[str] = field(default_factory=Counter[str])
    upstream_subscriptions: int = 0
    upstream_fetches: int = 0
    fetches_served: int = 0
    cache_misses: int = 0
    evicted_bytes: Counter[str] = field(default_factory=Counter[str])
    malformed_tracks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayStatistics:
    """What a relay did and holds at one moment.

    Attributes:
        sessions: Open sessions.
        sessions_opened: Sessions accepted since the start.
        namespaces: Track Namespaces listed.
        tracks: Tracks with any state.
        subscriptions: Subscriptions that the relay serves.
        fetches: FETCHes and fills that the relay serves.
        objects_in: Objects received from publishers.
        bytes_in: Payload octets received from publishers.
        bytes_out: Octets of Objects handed to sessions for sending.
        objects_rejected: Objects received and not kept, by reason.
        upstream_subscriptions: Upstream subscriptions established since the start.
        upstream_fetches: FETCHes sent to publishers.
        cache_bytes: Octets held by the cache.
        cache_capacity_bytes: Octets that the cache may hold.
        cache_hits: FETCHes and fills answered without asking a publisher.
        cache_misses: FETCHes and fills for which a publisher was asked.
        evicted_bytes: Octets dropped from the cache, by reason.
        requests_refused: REQUEST_ERRORs sent, by code name.
        malformed_tracks: Tracks that contradicted themselves.
    """

    sessions: int
    sessions_opened: int
    namespaces: int
    tracks: int
    subscriptions: int
    fetches: int
    objects_in: int
    bytes_in: int
    bytes_out: int
    objects_rejected: Mapping[str, int]
    upstream_subscriptions: int
    upstream_fetches: int
    cache_bytes: int
    cache_capacity_bytes: int
    cache_hits: int
    cache_misses: int
    evicted_bytes: Mapping[str, int]
    requests_refused: Mapping[str, int]
    malformed_tracks: int


def frozen_counts(counts: Counter[str]) -> Mapping[str, int]:
    """Return a read-only copy of counters."""
    return MappingProxyType(dict(counts))
