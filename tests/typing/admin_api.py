"""The types that users of `kvcs.admin` and of a relay's reports see; checked, never run."""

from collections.abc import Iterator
from typing import assert_type

from kvcs.admin import AdminConfig, AdminLimits, AdminServer, NamespaceStatus, Observed, Status
from kvcs.names import TrackNamespace
from kvcs.relay import (
    Arrival,
    NamespacePage,
    NamespaceReport,
    Relay,
    Reporter,
    SessionReport,
    TrackReport,
)
from kvcs.transport import Address


async def operate(relay: Relay, now: float) -> None:
    observed: Observed = relay
    config = AdminConfig(port=0, limits=AdminLimits(max_connections=4))
    async with AdminServer(observed, config) as admin:
        assert_type(admin, AdminServer)
        assert_type(admin.address, Address)

    reporter = relay.reporter
    assert_type(reporter, Reporter)
    assert_type(reporter.sessions(10, now=now), tuple[SessionReport, ...])
    page = reporter.namespaces(10, now=now, offset=0, search="kvcs")
    assert_type(page, NamespacePage)
    assert_type(page.shown, tuple[NamespaceReport, ...])
    tracks = reporter.tracks(TrackNamespace(()), 10)
    assert_type(tracks, Iterator[TrackReport])
    assert_type(next(tracks).arrival, Arrival)


def look(status: Status, namespace: NamespaceStatus) -> None:
    assert_type(status.sessions, tuple[SessionReport, ...])
    assert_type(status.namespaces, NamespacePage)
    assert_type(namespace.tracks, tuple[TrackReport, ...])
