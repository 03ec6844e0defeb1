"""The counters of a relay as Prometheus metrics.

Everything is made from one `RelayStatistics`, which does not move, whenever somebody asks.
Names follow Prometheus' conventions: ``kvcs_relay_<what>_<unit>``, counters end in ``_total``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from kvcs.errors import RequestErrorCode
from kvcs.relay import RelayStatistics

__all__ = ("COUNTS", "STATES", "Count", "Kind", "State", "exposition")


class Kind(StrEnum):
    """How a metric behaves."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True)
class Count:
    """A metric that is a field of `RelayStatistics`.

    Attributes:
        field: The field.
        name: Name of the metric.
        kind: Whether it only grows.
        unit: What it counts.
        text: What it means.
        label: What its parts are called; empty for a metric without parts.
        values: What that label may say, and what each value means; for a code, its name in
            the protocol.
    """

    field: str
    name: str
    kind: Kind
    unit: str
    text: str
    label: str = ""
    values: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class State:
    """A metric that is not counted by the relay itself.

    Attributes:
        name: Name of the metric.
        unit: What it counts.
        text: What it means.
    """

    name: str
    unit: str
    text: str


_CODES: Final = {
    code.name: f"REQUEST_ERROR with code {code:#x}"
    for code in RequestErrorCode
    if code is not RequestErrorCode.DOES_NOT_EXIST
}
_REJECTED: Final = {
    "duplicate": "it was here already, the same",
    "malformed": "it contradicts the Track",
}
_EVICTED: Final = {
    "idle": "room was needed, and nobody used it",
    "passed": "room was needed, and every subscriber had it",
    "needed": "room was needed, and nothing else was left: subscribers fetch it again or end",
    "oversized": "its publication exceeds the cache by itself, and is served without being kept",
    "expired": "MAX_CACHE_DURATION was over",
    "removed": "its Track was malformed, or is forgotten",
}
_NOT_WRITTEN: Final = {
    "queue": "the disk is too slow",
    "budget": "all that could make room is in use",
    "oversized": "its publication exceeds the disk budget by itself",
    "tracks": "max_tracks are there, all in use",
    "expired": "MAX_CACHE_DURATION was over before its turn",
    "contradicted": "its Track contradicts what is on disk",
    "failed": "the disk was full or failed shortly before, or with it",
}
_DELETED: Final = {
    "idle": "room was needed, and nobody used it",
    "oversized": "its publication exceeds the budget by itself",
    "expired": "MAX_CACHE_DURATION was over",
    "damaged": "its digest did not match",
    "contradicted": "what came contradicts it",
    "clock": "the wall clock went back while the relay was down",
    "index": "the index was unreadable, and everything with it",
}
_FAILURES: Final = {"full": "no room on the file system", "error": "anything else"}

_GAUGE: Final = Kind.GAUGE
_COUNTER: Final = Kind.COUNTER

# A table is easiest to compare line by line.
# fmt: off
COUNTS: Final = (
    Count("sessions", "kvcs_relay_sessions", _GAUGE, "sessions",
          "Open sessions."),
    Count("sessions_opened", "kvcs_relay_sessions_opened_total", _COUNTER, "sessions",
          "Sessions accepted."),
    Count("sessions_flooded", "kvcs_relay_sessions_flooded_total", _COUNTER, "sessions",
          "Sessions closed since they went on far beyond what one may ask for."),
    Count("namespaces", "kvcs_relay_namespaces", _GAUGE, "namespaces",
          "Track Namespaces listed."),
    Count("tracks", "kvcs_relay_tracks", _GAUGE, "tracks",
          "Tracks with any state."),
    Count("subscriptions", "kvcs_relay_subscriptions", _GAUGE, "subscriptions",
          "Subscriptions served now."),
    Count("fetches", "kvcs_relay_fetches", _GAUGE, "fetches",
          "FETCHes and fills served now."),
    Count("objects_in", "kvcs_relay_objects_received_total", _COUNTER, "objects",
          "Objects received from publishers."),
    Count("bytes_in", "kvcs_relay_received_bytes_total", _COUNTER, "bytes",
          "Payload octets received from publishers."),
    Count("bytes_out", "kvcs_relay_sent_bytes_total", _COUNTER, "bytes",
          "Octets of Objects handed to sessions for sending."),
    Count("objects_rejected", "kvcs_relay_objects_rejected_total", _COUNTER, "objects",
          "Objects received and not kept.", "reason", _REJECTED),
    Count("upstream_subscriptions", "kvcs_relay_upstream_subscriptions_total", _COUNTER,
          "subscriptions", "Subscriptions at publishers and parents that were established."),
    Count("upstream_fetches", "kvcs_relay_upstream_fetches_total", _COUNTER, "fetches",
          "FETCHes sent to publishers and parents."),
    Count("upstream_refused", "kvcs_relay_upstream_refused_total", _COUNTER, "requests",
          "Requests that parents refused for want of a token.", "code", _CODES),
    Count("cache_bytes", "kvcs_relay_cache_bytes", _GAUGE, "bytes",
          "Octets held in memory."),
    Count("cache_capacity_bytes", "kvcs_relay_cache_capacity_bytes", _GAUGE, "bytes",
          "Octets that may be held in memory."),
    Count("cache_hits", "kvcs_relay_cache_hits_total", _COUNTER, "requests",
          "FETCHes and fills answered without asking a publisher."),
    Count("cache_misses", "kvcs_relay_cache_misses_total", _COUNTER, "requests",
          "FETCHes and fills for which a publisher was asked."),
    Count("disk_hits", "kvcs_relay_disk_hits_total", _COUNTER, "requests",
          "Those of the hits for which the disk was read."),
    Count("evicted_bytes", "kvcs_relay_cache_evicted_bytes_total", _COUNTER, "bytes",
          "Octets dropped from memory.", "reason", _EVICTED),
    Count("requests_not_found", "kvcs_relay_requests_not_found_total", _COUNTER, "requests",
          "Requests for what is not there (DOES_NOT_EXIST), which is normal: consumers ask for "
          "Tracks that a publication may lack."),
    Count("requests_refused", "kvcs_relay_requests_refused_total", _COUNTER, "requests",
          "REQUEST_ERRORs sent, but for those of the line above.", "code", _CODES),
    Count("grants_ended", "kvcs_relay_grants_ended_total", _COUNTER, "requests",
          "Requests that ran and were ended: their token expired, or its key was withdrawn.",
          "code", _CODES),
    Count("malformed_tracks", "kvcs_relay_malformed_tracks_total", _COUNTER, "tracks",
          "Tracks that contradicted themselves."),
    Count("disk_bytes", "kvcs_relay_disk_bytes", _GAUGE, "bytes",
          "Octets of the files on disk."),
    Count("disk_capacity_bytes", "kvcs_relay_disk_capacity_bytes", _GAUGE, "bytes",
          "Octets that the files may have; 0 without a disk tier."),
    Count("disk_tracks", "kvcs_relay_disk_tracks", _GAUGE, "tracks",
          "Tracks on disk."),
    Count("disk_complete_tracks", "kvcs_relay_disk_complete_tracks", _GAUGE, "tracks",
          "Tracks of which every Object is on disk."),
    Count("disk_queued_bytes", "kvcs_relay_disk_queued_bytes", _GAUGE, "bytes",
          "Octets that wait to be written."),
    Count("disk_writable", "kvcs_relay_disk_writable", _GAUGE, "0 or 1",
          "Whether Objects are written now; not for a while after a failure, nor without a disk."),
    Count("disk_objects_written", "kvcs_relay_disk_objects_written_total", _COUNTER, "objects",
          "Objects written to disk."),
    Count("disk_bytes_written", "kvcs_relay_disk_written_bytes_total", _COUNTER, "bytes",
          "Octets written to disk."),
    Count("disk_objects_read", "kvcs_relay_disk_objects_read_total", _COUNTER, "objects",
          "Objects read from disk and found undamaged."),
    Count("disk_bytes_read", "kvcs_relay_disk_read_bytes_total", _COUNTER, "bytes",
          "Octets read from disk."),
    Count("disk_objects_dropped", "kvcs_relay_disk_objects_dropped_total", _COUNTER, "objects",
          "Objects that were not written to disk.", "reason", _NOT_WRITTEN),
    Count("disk_evicted_bytes", "kvcs_relay_disk_evicted_bytes_total", _COUNTER, "bytes",
          "Octets deleted from the disk.", "reason", _DELETED),
    Count("disk_failures", "kvcs_relay_disk_failures_total", _COUNTER, "operations",
          "Operations of the disk that failed.", "kind", _FAILURES),
    Count("partial_bytes", "kvcs_relay_partial_bytes", _GAUGE, "bytes",
          "Octets of Objects that are not whole, in all sessions together."),
    Count("partial_streams_refused", "kvcs_relay_partial_streams_refused_total", _COUNTER,
          "streams", "Streams that were ended since there were max_partial_bytes of such octets."),
    Count("queued_bytes", "kvcs_relay_queued_bytes", _GAUGE, "bytes",
          "Octets that wait for subscribers, in all sessions together."),
    Count("window_bytes", "kvcs_relay_window_bytes", _GAUGE, "bytes",
          "Octets that the transport keeps for the streams that clients have open."),
)
# fmt: on

STATES: Final = (
    State("kvcs_relay_ready", "0 or 1", "Whether the relay is ready, as /readyz says."),
    State("kvcs_relay_draining", "0 or 1", "Whether everybody was asked to leave."),
    State("kvcs_relay_upstreams", "upstreams", "Parents in the settings."),
    State("kvcs_relay_upstream_connected", "0 or 1", "Whether there is a session with a parent."),
    State("kvcs_relay_slow_sessions", "sessions", "Subscribers that are behind for a while."),
)


def exposition(
    statistics: RelayStatistics,
    states: Mapping[str, float],
    *,
    version: str,
    accept: str,
) -> tuple[bytes, str]:
    """Return all metrics as text, and its content type.

    Args:
        statistics: What the relay counted.
        states: A value for each of `STATES`, by name.
        version: Version of the package.
        accept: Accept header of the request; Prometheus asks for OpenMetrics with it.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Snapshot(statistics, states, version))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Snapshot(Collector):
    """One moment of a relay."""

    def __init__(
        self, statistics: RelayStatistics, states: Mapping[str, float], version: str
    ) -> None:
        self._statistics = statistics
        self._states = states
        self._version = version

    def collect(self) -> Iterable[Metric]:
        """Yield every metric."""
        for count in COUNTS:
            yield _family(count, getattr(self._statistics, count.field))
        for state in STATES:
            yield GaugeMetricFamily(state.name, state.text, value=self._states[state.name])
        yield InfoMetricFamily("kvcs_relay", "What runs.", value={"version": self._version})


def _family(count: Count, value: float | Mapping[str, int]) -> Metric:
    kind = GaugeMetricFamily if count.kind is Kind.GAUGE else CounterMetricFamily
    if not isinstance(value, Mapping):
        return kind(count.name, count.text, value=float(value))
    family = kind(count.name, count.text, labels=[count.label])
    for part, number in value.items():
        family.add_metric([part], float(number))
    return family
