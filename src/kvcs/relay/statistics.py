"""Plain counters of a relay; `RelayStatistics` is a copy that does not move.

Counting never fails and never waits, so that telemetry cannot hurt a transfer.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kvcs.errors import RequestErrorCode

__all__ = ("DiskMetrics", "DiskUsage", "Metrics", "RelayStatistics", "frozen_counts")


@dataclass(slots=True)
class DiskMetrics:
    """Counters of the disk tier since the relay started; they only grow.

    Attributes:
        objects_written: Objects written.
        bytes_written: Their octets.
        objects_read: Objects read, and found undamaged.
        bytes_read: Their octets.
        objects_dropped: Objects that were not written, by reason: ``queue`` (the disk is too
            slow), ``budget`` (all that could make room is in use), ``oversized`` (their
            publication exceeds the budget by itself), ``tracks``, ``failed`` (the disk was
            full or failed shortly before, or with them).
        evicted_bytes: Octets deleted, by reason: ``idle``, ``oversized``, ``expired``,
            ``damaged``, ``contradicted``, ``clock`` (the wall clock went back while the
            relay was down), ``index`` (it was unreadable, and everything with it).
        failures: Operations that failed, by kind: ``full`` or ``error``.
    """

    objects_written: int = 0
    bytes_written: int = 0
    objects_read: int = 0
    bytes_read: int = 0
    objects_dropped: Counter[str] = field(default_factory=Counter[str])
    evicted_bytes: Counter[str] = field(default_factory=Counter[str])
    failures: Counter[str] = field(default_factory=Counter[str])


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUsage:
    """What the disk tier holds at one moment; nothing without one.

    Attributes:
        size_bytes: Octets of the files.
        capacity_bytes: Octets that they may have.
        tracks: Tracks on disk.
        complete_tracks: Those of which every Object is there.
        queued_bytes: Octets that wait to be written.
        writable: Whether Objects are written now.
    """

    size_bytes: int = 0
    capacity_bytes: int = 0
    tracks: int = 0
    complete_tracks: int = 0
    queued_bytes: int = 0
    writable: bool = False


@dataclass(slots=True)
class Metrics:
    """Counters since the relay started; they only grow.

    Attributes:
        sessions_opened: Sessions that were accepted.
        sessions_closed: Sessions that ended.
        sessions_flooded: Sessions that were closed for a flood of requests.
        requests_not_found: REQUEST_ERRORs that say that there is no such Track or publisher: an
            answer like others, since consumers ask for Tracks that a publication may lack.
        requests_refused: All other REQUEST_ERRORs sent, by code name.
        grants_ended: Requests that ran and may not go on, by code name: their token expired,
            or its key was withdrawn.
        objects_in: Objects received from publishers.
        bytes_in: Payload octets received from publishers.
        bytes_out: Octets of Objects handed to sessions for sending.
        objects_rejected: Objects received and not kept, by reason.
        upstream_subscriptions: Upstream subscriptions that were established.
        upstream_fetches: FETCHes sent to publishers.
        upstream_refused: Requests that parents refused for want of a token, by code name.
        fetches_served: FETCHes and fills that were begun.
        cache_misses: FETCHes and fills for which a publisher was asked.
        disk_hits: FETCHes and fills for which the disk was read, and no publisher asked.
        evicted_bytes: Payload octets dropped from the cache, by reason.
        malformed_tracks: Tracks that contradicted themselves.
        disk: What happened on disk.
    """

    sessions_opened: int = 0
    sessions_closed: int = 0
    sessions_flooded: int = 0
    requests_not_found: int = 0
    requests_refused: Counter[str] = field(default_factory=Counter[str])
    grants_ended: Counter[str] = field(default_factory=Counter[str])
    objects_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    objects_rejected: Counter[str] = field(default_factory=Counter[str])
    upstream_subscriptions: int = 0
    upstream_fetches: int = 0
    upstream_refused: Counter[str] = field(default_factory=Counter[str])
    fetches_served: int = 0
    cache_misses: int = 0
    disk_hits: int = 0
    evicted_bytes: Counter[str] = field(default_factory=Counter[str])
    malformed_tracks: int = 0
    disk: DiskMetrics = field(default_factory=DiskMetrics)

    def note_refusal(self, code: RequestErrorCode) -> None:
        """Count a REQUEST_ERROR."""
        if code is RequestErrorCode.DOES_NOT_EXIST:
            self.requests_not_found += 1
        else:
            self.requests_refused[code.name] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayStatistics:
    """What a relay did and holds at one moment.

    Attributes:
        sessions: Open sessions.
        sessions_opened: Sessions accepted since the start.
        sessions_flooded: Sessions closed for a flood of requests.
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
        upstream_refused: Requests that parents refused for want of a token, by code name.
        cache_bytes: Octets held by the cache.
        cache_capacity_bytes: Octets that the cache may hold.
        cache_hits: FETCHes and fills answered without asking a publisher.
        cache_misses: FETCHes and fills for which a publisher was asked.
        disk_hits: Those of the hits for which the disk was read.
        evicted_bytes: Octets dropped from the cache, by reason.
        requests_not_found: REQUEST_ERRORs that say that there is no such Track or publisher: an
            answer like others, since consumers ask for Tracks that a publication may lack.
        requests_refused: All other REQUEST_ERRORs sent, by code name.
        grants_ended: Requests that ran and may not go on, by code name.
        malformed_tracks: Tracks that contradicted themselves.
        disk_bytes: Octets of the files on disk.
        disk_capacity_bytes: Octets that they may have; 0 without a disk tier.
        disk_tracks: Tracks on disk.
        disk_complete_tracks: Those of which every Object is there.
        disk_queued_bytes: Octets that wait to be written.
        disk_writable: Whether Objects are written now; not for a while after a failure.
        disk_objects_written: Objects written since the start.
        disk_bytes_written: Their octets.
        disk_objects_read: Objects read since the start, and found undamaged.
        disk_bytes_read: Their octets.
        disk_objects_dropped: Objects that were not written, by reason.
        disk_evicted_bytes: Octets deleted from the disk, by reason.
        disk_failures: Operations that failed, by kind.
        partial_bytes: Octets of Objects that are not whole, in all sessions together.
        partial_streams_refused: Streams that were ended since all sessions together had too much
            of that.
        queued_bytes: Octets that wait for subscribers, in all sessions together.
        window_bytes: Octets that the transport keeps for streams that clients have open.
    """

    sessions: int
    sessions_opened: int
    sessions_flooded: int
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
    upstream_refused: Mapping[str, int]
    cache_bytes: int
    cache_capacity_bytes: int
    cache_hits: int
    cache_misses: int
    disk_hits: int
    evicted_bytes: Mapping[str, int]
    requests_not_found: int
    requests_refused: Mapping[str, int]
    grants_ended: Mapping[str, int]
    malformed_tracks: int
    disk_bytes: int
    disk_capacity_bytes: int
    disk_tracks: int
    disk_complete_tracks: int
    disk_queued_bytes: int
    disk_writable: bool
    disk_objects_written: int
    disk_bytes_written: int
    disk_objects_read: int
    disk_bytes_read: int
    disk_objects_dropped: Mapping[str, int]
    disk_evicted_bytes: Mapping[str, int]
    disk_failures: Mapping[str, int]
    partial_bytes: int
    partial_streams_refused: int
    queued_bytes: int = 0
    window_bytes: int = 0


def frozen_counts(counts: Counter[str]) -> Mapping[str, int]:
    """Return a read-only copy of counters."""
    return MappingProxyType(dict(counts))
