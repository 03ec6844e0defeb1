"""Whom a relay may ask for one Track, and what it holds against each of them.

Theory of operation. Publishers are the peers that advertise the namespace of the Track, and
those that push it. A `Publishers` belongs to one `Supply`, which reports what went wrong:

* a publisher whose Track contradicts itself is asked nothing more for this Track;
* one on which a FETCH stalled is asked for no other until some time has passed;
* one that has no room for another FETCH says so for all Tracks (`Peer.busy_until`). It may
  be asked nevertheless: this is for those who can wait.

What is held against a peer goes with it: a Track may outlive any number of sessions.

Source: MOQT draft 22, Sections 7.6 and 12.1.
"""

from collections.abc import Sequence
from weakref import WeakKeyDictionary, WeakSet

from kvcs.names import TrackNamespace
from kvcs.relay.host import Host
from kvcs.relay.peer import Peer
from kvcs.relay.upstream import UpstreamState, UpstreamSubscription

__all__ = ("Publishers",)


class Publishers:
    """The publishers of one Track."""

    __slots__ = ("_distrusted", "_host", "_namespace", "_stalled_until", "_subscriptions")

    def __init__(
        self, namespace: TrackNamespace, host: Host, subscriptions: Sequence[UpstreamSubscription]
    ) -> None:
        """Hold nothing against anybody.

        Args:
            namespace: Namespace of the Track.
            host: Knows who advertises it.
            subscriptions: Upstream subscriptions to the Track; the list is the caller's and
                changes.
        """
        self._namespace = namespace
        self._host = host
        self._subscriptions = subscriptions
        self._distrusted: WeakSet[Peer] = WeakSet()
        self._stalled_until: WeakKeyDictionary[Peer, float] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<Publishers {[peer.id for peer in self.available()]}>"

    def available(self) -> list[Peer]:
        """Return the peers that may be asked for this Track, each once."""
        subscriptions = self._subscriptions
        pushing = [s.peer for s in subscriptions if s.state is UpstreamState.ESTABLISHED]
        advertising = self._host.publishers(self._namespace)
        peers = {peer.id: peer for peer in (*advertising, *pushing) if peer.is_available}
        return [peer for peer in peers.values() if peer not in self._distrusted]

    def for_fetch(self, now: float) -> list[Peer]:
        """Return the peers of which a FETCH may be asked."""
        stalled_until = self._stalled_until
        return [peer for peer in self.available() if stalled_until.get(peer, now) <= now]

    def are_busy(self, now: float) -> bool:
        """Tell whether a FETCH has a chance, but not before a publisher serves fewer of them."""
        publishers = self.for_fetch(now)
        return bool(publishers) and all(peer.busy_until > now for peer in publishers)

    def stall(self, peer: Peer, *, until: float) -> None:
        """Ask for no FETCH of `peer` before this time, in monotonic seconds."""
        self._stalled_until[peer] = until

    def distrust(self, peer: Peer) -> None:
        """Ask `peer` nothing more: its Track contradicts itself."""
        self._distrusted.add(peer)

    def is_distrusted(self, peer: Peer) -> bool:
        """Tell whether the Track of `peer` contradicts itself."""
        return peer in self._distrusted
