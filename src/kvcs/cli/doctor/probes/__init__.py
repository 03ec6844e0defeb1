"""The probes, in the order in which they are made."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from kvcs.cli.doctor.finding import Report
from kvcs.cli.doctor.probes.delivery import (
    probe_cold_join,
    probe_join,
    probe_large_objects,
    probe_live,
    probe_many_groups,
)
from kvcs.cli.doctor.probes.fetching import probe_fetch, probe_filters, probe_gap_filling
from kvcs.cli.doctor.probes.publication import probe_publication
from kvcs.cli.doctor.probes.retention import probe_expiry, probe_kept
from kvcs.cli.doctor.probes.session import (
    probe_connection,
    probe_namespaces,
    probe_refusal,
    probe_round_trip,
)
from kvcs.cli.doctor.probes.speed import probe_speed
from kvcs.cli.doctor.site import Site

__all__ = ("PROBES", "Probe")


@dataclass(frozen=True, slots=True)
class Probe:
    """One visit to the relay.

    Attributes:
        title: What is being done, for people.
        rows: Rows that it finds out about.
        run: Does it; what it raises stands in all of its rows that it has not noted.
        needs: Rows that must not be bad for it to make sense.
    """

    title: str
    rows: tuple[str, ...]
    run: Callable[[Site, Report], Awaitable[None]]
    needs: tuple[str, ...] = ("connection", "certificate", "draft", "announce")


_SESSION: Final = ("connection", "certificate", "draft")

PROBES: Final = (
    Probe(
        "connecting",
        ("connection", "certificate", "draft", "filter-ranges", "limits"),
        probe_connection,
        needs=(),
    ),
    Probe("round trip", ("round-trip",), probe_round_trip, needs=_SESSION),
    Probe(
        "namespaces",
        ("announce", "discovery", "scope-listing", "later-namespace", "withdrawal"),
        probe_namespaces,
        needs=_SESSION,
    ),
    Probe("a Track that does not exist", ("refusal",), probe_refusal),
    Probe(
        "live delivery",
        (
            "live",
            "aggregation",
            "payload",
            "priority",
            "track-properties",
            "object-properties",
            "end-of-group",
            "end-of-track",
            "publish-done",
        ),
        probe_live,
    ),
    Probe("many Groups", ("many-groups",), probe_many_groups),
    Probe("large Objects", ("large-objects",), probe_large_objects),
    Probe("join in mid-production", ("join",), probe_join),
    Probe("first join in mid-production", ("cold-join",), probe_cold_join),
    Probe("ranges", ("fetch", "open-fetch"), probe_fetch),
    Probe("filters", ("range-filter", "filtered-cache"), probe_filters),
    Probe("gaps while the publisher is there", ("gap-filling",), probe_gap_filling),
    Probe(
        "after the publisher left",
        ("kept-listing", "kept-fetch", "gap-markers", "late-subscribe"),
        probe_kept,
    ),
    Probe("expiry", ("expiry",), probe_expiry),
    Probe("a KV cache", ("publication", "kept-publication"), probe_publication),
    Probe("throughput", ("live-rate", "fetch-rate"), probe_speed),
)
