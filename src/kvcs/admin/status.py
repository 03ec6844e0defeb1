"""What the page, ``kvcs relay status`` and ``kvcs top`` show, as JSON."""

import asyncio
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import msgspec

from kvcs.admin.config import AdminConfig
from kvcs.names import TrackNamespace
from kvcs.relay import RelayStatistics
from kvcs.relay.report import (
    NamespacePage,
    Reporter,
    SessionReport,
    TrackReport,
    UpstreamReport,
)
from kvcs.transport.interface import Address

__all__ = ("NamespaceStatus", "Observed", "Observer", "Status", "encode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """An overview of a relay.

    Attributes:
        version: Version of the package.
        address: Where clients connect.
        started: When it started, seconds since 1970.
        uptime: Seconds since then.
        is_ready: New clients are welcome, and what they need is there.
        faults: Why it is not ready; nothing when it is.
        is_draining: Everybody was asked to leave.
        slow_after: Seconds behind after which a subscriber counts as slow.
        slow_sessions: Subscribers that are.
        upstreams: Parents in order of preference.
        statistics: All counters.
        sessions: Those furthest behind first, then the newest; not all of them.
        namespaces: Those used last first; not all of them.
    """

    version: str
    address: str
    started: float
    uptime: float
    is_ready: bool
    faults: tuple[str, ...]
    is_draining: bool
    slow_after: float
    slow_sessions: int
    upstreams: tuple[UpstreamReport, ...]
    statistics: RelayStatistics
    sessions: tuple[SessionReport, ...]
    namespaces: NamespacePage


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceStatus:
    """The Tracks of one namespace.

    Attributes:
        namespace: Its text form.
        tracks: Its Tracks, in the order they appeared; not all of many.
    """

    namespace: str
    tracks: tuple[TrackReport, ...]


class Observed(Protocol):
    """What the admin listener sees of a relay: `kvcs.relay.Relay`, or less in tests."""

    @property
    def address(self) -> Address:
        """Where clients connect."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether new clients are welcome."""
        ...

    @property
    def is_draining(self) -> bool:
        """Whether everybody was asked to leave."""
        ...

    @property
    def reporter(self) -> Reporter:
        """What it does and holds in detail."""
        ...

    def upstreams(self) -> tuple[UpstreamReport, ...]:
        """Return what is known of each parent."""
        ...

    def statistics(self) -> RelayStatistics:
        """Return a copy of all counters."""
        ...


class Observer:
    """Looks at one relay, and says what it sees."""

    def __init__(self, relay: Observed, config: AdminConfig, *, version: str) -> None:
        """Observe a relay.

        Args:
            relay: The relay.
            config: Settings.
            version: Version of the package.
        """
        self._relay = relay
        self._config = config
        self._version = version
        self._clock = asyncio.get_running_loop().time
        self._started = time.time()
        self._started_at = self._clock()

    def __repr__(self) -> str:
        return f"<Observer of {self._relay!r}>"

    def faults(self) -> tuple[str, ...]:
        """Return why the relay is not ready; nothing when it is."""
        if self._relay.is_draining:
            return ("draining",)
        if not self._relay.is_open:
            return ("not listening",)
        upstreams = self._relay.upstreams()
        is_cut_off = bool(upstreams) and not any(upstream.is_used for upstream in upstreams)
        if is_cut_off and not self._config.ready_without_upstream:
            return ("no upstream",)
        return ()

    def states(self) -> dict[str, float]:
        """Return the values of `metrics.STATES`."""
        slow = self._relay.reporter.slow_sessions(self._config.slow_after, now=self._clock())
        upstreams = self._relay.upstreams()
        return {
            "kvcs_relay_upstreams": float(len(upstreams)),
            "kvcs_relay_upstream_connected": float(any(u.is_used for u in upstreams)),
            "kvcs_relay_ready": float(not self.faults()),
            "kvcs_relay_draining": float(self._relay.is_draining),
            "kvcs_relay_slow_sessions": float(slow),
        }

    async def status(self, *, limit: int, offset: int = 0, search: str = "") -> Status:
        """Return an overview; gives way to everything else while it looks for namespaces.

        Args:
            limit: Most sessions, and namespaces, that are listed.
            offset: Namespaces before those that are listed.
            search: Only namespaces whose text form contains this.
        """
        relay, now = self._relay, self._clock()
        reporter = relay.reporter
        looking = reporter.look_for_namespaces(limit, now=now, offset=offset, search=search)
        namespaces = await _finish(looking)
        faults = self.faults()
        return Status(
            version=self._version,
            address=str(relay.address),
            started=self._started,
            uptime=now - self._started_at,
            is_ready=not faults,
            faults=faults,
            is_draining=relay.is_draining,
            slow_after=self._config.slow_after,
            slow_sessions=reporter.slow_sessions(self._config.slow_after, now=now),
            upstreams=relay.upstreams(),
            statistics=relay.statistics(),
            sessions=reporter.sessions(limit, now=now),
            namespaces=namespaces,
        )

    async def namespace(self, namespace: TrackNamespace) -> NamespaceStatus:
        """Return the Tracks of a namespace; gives way to everything else after each one."""
        tracks: list[TrackReport] = []
        for track in self._relay.reporter.tracks(namespace, self._config.limits.max_tracks):
            tracks.append(track)
            await asyncio.sleep(0)
        return NamespaceStatus(namespace=namespace.format(), tracks=tuple(tracks))


async def _finish[Result](steps: Generator[None, None, Result]) -> Result:
    """Take all steps, and let everything else happen between them."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value
        await asyncio.sleep(0)


def encode(status: Status | NamespaceStatus) -> bytes:
    """Return the JSON of what an `Observer` says."""
    return msgspec.json.encode(status, enc_hook=_plain)


def _plain(value: object) -> Any:
    """Return what JSON has a form for, of read-only mappings."""
    assert isinstance(value, Mapping), type(value)
    return dict(cast("Mapping[str, int]", value))
