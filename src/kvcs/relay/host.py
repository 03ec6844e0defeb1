"""What the two halves of a Track need of the relay around them, and of each other."""

from collections.abc import Callable
from typing import Protocol

from kvcs.errors import (
    PublishDoneCode,
)
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.track.fetch_delivery import FetchDelivery
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.auth import Access
from kvcs.relay.cache import Cache
from kvcs.relay.config import RelayLimits
from kvcs.relay.disk.tier import DiskTier
from kvcs.relay.gaps import Origin
from kvcs.relay.journal import Journal
from kvcs.relay.peer import Peer
from kvcs.relay.refusal import Refusal
from kvcs.relay.statistics import Metrics
from kvcs.relay.turns import Turns
from kvcs.relay.upstream_fetch import UpstreamFetch
from kvcs.relay.upstream_status import UpstreamStatus

__all__ = ("Host", "SupplyListener")


class Host(Protocol):
    """What a Track needs of the relay around it."""

    @property
    def cache(self) -> Cache:
        """The byte budget that the store belongs to."""
        ...

    @property
    def disk(self) -> DiskTier:
        """The second tier of the cache, if there is one."""
        ...

    @property
    def limits(self) -> RelayLimits:
        """Bounds."""
        ...

    @property
    def journal(self) -> Journal:
        """What happens, for the log."""
        ...

    @property
    def metrics(self) -> Metrics:
        """Counters."""
        ...

    @property
    def turns(self) -> Turns:
        """Requests that wait until more may be asked for their clients."""
        ...

    def publishers(self, namespace: TrackNamespace) -> list[Peer]:
        """Return the peers that advertise a namespace and take requests."""
        ...

    @property
    def parent(self) -> Peer | None:
        """The relay above this one, which is asked for what nobody here publishes."""
        ...

    def refuse(self, peer: Peer, request_id: RequestId, refusal: Refusal, *, now: float) -> None:
        """Answer a request with REQUEST_ERROR."""
        ...

    def publish_ended(self, peer: Peer, access: Access, *, now: float) -> None:
        """Note that a PUBLISH of a peer is over that was allowed by `access`."""
        ...

    def track_forgotten(self, name: FullTrackName) -> None:
        """Remove a Track of which nothing is held, soon and if nobody uses it by then."""
        ...

    def schedule(self, deadline: float, alarm: Callable[[float], None]) -> None:
        """Call `alarm` with the time when `deadline` has passed."""
        ...


class SupplyListener(Protocol):
    """Who wants the Track: told of what may change an answer."""

    @property
    def is_idle(self) -> bool:
        """Nobody wants anything."""
        ...

    def note_origin(self, fetch: FetchDelivery, origin: Origin) -> None:
        """Note where what a fetch lacks comes from."""
        ...

    def supply_changed(self, *, now: float) -> None:
        """Look at everything that waits again."""
        ...

    @property
    def wants_objects(self) -> bool:
        """A subscriber is not paused."""
        ...

    def largest_notified(self, *, now: float) -> None:
        """Note that a publisher said that the Track went on, without sending Objects."""
        ...

    def refused_in_haste(self, peer: Peer, *, now: float) -> None:
        """Note that a publisher had no room to wait in for another one."""
        ...

    def supply_refused(self, peer: Peer, refusal: Refusal, *, now: float) -> None:
        """Note that a publisher refused a subscription."""
        ...

    def supply_ended(self, code: PublishDoneCode, *, forced: bool, now: float) -> None:
        """End the subscriptions that no upstream subscription serves, or all, after what came."""
        ...

    @property
    def is_subscribed(self) -> bool:
        """Whether a subscription runs."""
        ...

    def seek_publisher(self, *, now: float) -> bool:
        """Subscribe for the running subscriptions; False if there is nobody for one of them."""
        ...

    def only_subscriber(self) -> Peer | None:
        """Return whose subscriptions run, None if they are of several or of none."""
        ...

    def supply_malformed(self, reason: str, *, now: float) -> None:
        """Note that the Track contradicts itself."""
        ...

    def probe_refused(
        self, probe: UpstreamFetch | UpstreamStatus, refusal: Refusal, *, now: float
    ) -> None:
        """Note that a publisher did not say more about the Track."""
        ...

    def probe_answered(self, probe: UpstreamFetch | UpstreamStatus, *, now: float) -> None:
        """Note that a publisher said how far the Track goes."""
        ...
