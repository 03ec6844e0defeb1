"""Tells subscribers of namespaces what is listed below their prefixes, and what no longer is.

Theory of operation. A child relay leaves a parent that takes back too many namespaces of a prefix.
Each publisher here is bounded, but all of them together are not: what they announce and take back
would add up, and cost the child a parent that does nothing wrong. So once as much was taken back
below one prefix as may be listed there, new namespaces wait until that has leaked away. What is
withdrawn while it waits was never told. Each prefix of each session is bounded by itself, since who
may publish below one could otherwise keep the others from being told.

Source: MOQT draft 22, Section 6.1.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from kvcs.endpoint.rate import LeakyBucket
from kvcs.names import TrackNamespace
from kvcs.relay.admission import Admission
from kvcs.relay.config import RelayLimits
from kvcs.relay.namespaces import Change, PeerId, Route
from kvcs.relay.peer import Peer

__all__ = ("Lister",)

# Seconds without new namespaces below a prefix once too much was taken back.
_PAUSE: Final = 1.0


class _Host(Protocol):
    """The relay, as telling of namespaces needs it."""

    @property
    def limits(self) -> RelayLimits:
        """Bounds on what peers can make the relay hold."""
        ...

    @property
    def admission(self) -> Admission:
        """Decides what a peer may see."""
        ...

    def peer(self, peer_id: PeerId) -> Peer | None:
        """Return an open session."""
        ...

    def schedule(self, deadline: float, alarm: Callable[[float], None]) -> None:
        """Call `alarm` with the time when `deadline` has passed."""
        ...


@dataclass(slots=True, eq=False)
class _Telling:
    """What one prefix of one session was told, since something of it was taken back.

    Attributes:
        withdrawals: How fast namespaces are taken back.
        owed: Suffixes that wait until more may be told, the earliest first.
        is_pausing: Nothing new is told now.
    """

    withdrawals: LeakyBucket
    owed: dict[TrackNamespace, None] = field(default_factory=dict[TrackNamespace, None])
    is_pausing: bool = False


class Lister:
    """Sends NAMESPACE and NAMESPACE_DONE."""

    __slots__ = ("_host", "_tellings")

    def __init__(self, host: _Host) -> None:
        self._host = host
        self._tellings: dict[Route, _Telling] = {}

    def __repr__(self) -> str:
        return f"<Lister {len(self._tellings)} prefixes>"

    def announce(self, changes: list[Change], *, now: float) -> None:
        """Send what subscribers of namespaces are to know, soon or when more may be told."""
        for change in changes:
            peer = self._host.peer(change.route.peer)
            if peer is None or not peer.session.is_active(change.route.request_id):
                continue
            if change.listed:
                self._tell(peer, change, now)
            else:
                self._take_back(peer, change, now)
            peer.wake()

    def move(self, route: Route) -> None:
        """Owe nothing of the prefix that a request had before."""
        telling = self._tellings.get(route)
        if telling is not None:
            telling.owed.clear()

    def forget(self, route: Route) -> None:
        """Note that a request is over."""
        self._tellings.pop(route, None)

    def _tell(self, peer: Peer, change: Change, now: float) -> None:
        route, suffix = change.route, change.suffix
        telling = self._tellings.get(route)
        if telling is not None and self._pauses(route, telling, now):
            telling.owed[suffix] = None
        elif self._host.admission.may_see_namespace(peer, route.request_id, suffix):
            peer.session.announce(route.request_id, suffix, now=now)

    def _take_back(self, peer: Peer, change: Change, now: float) -> None:
        route, suffix = change.route, change.suffix
        telling = self._tellings.get(route)
        if telling is not None:
            telling.owed.pop(suffix, None)
        if not peer.session.is_announced(route.request_id, suffix):
            return
        peer.session.withdraw(route.request_id, suffix, now=now)
        if telling is None:
            limits = self._host.limits
            bucket = LeakyBucket(limits.max_withdrawal_rate, burst=limits.session.max_namespaces)
            telling = self._tellings[route] = _Telling(bucket)
        telling.withdrawals.admit(1, now=now)

    def _pauses(self, route: Route, telling: _Telling, now: float) -> bool:
        """Tell whether nothing new is told now, since so much was taken back just before."""
        if not telling.is_pausing and not telling.withdrawals.admit(0, now=now):
            telling.is_pausing = True
            self._host.schedule(now + _PAUSE, partial(self._go_on, route))
        return telling.is_pausing

    def _go_on(self, route: Route, now: float) -> None:
        """Tell what is owed, if that may be now."""
        telling = self._tellings.get(route)
        if telling is not None:
            telling.is_pausing = False
            owed, telling.owed = telling.owed, {}
            self.announce([Change(route, suffix, listed=True) for suffix in owed], now=now)
