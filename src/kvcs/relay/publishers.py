"""Whom a relay may ask for one Track, and what it holds against each of them.

Theory of operation. Publishers are the peers that advertise the namespace of the Track, and
those that push it. A `Publishers` belongs to one `Supply`, which reports what went wrong:

* a publisher whose Track contradicts itself is asked nothing more for this Track;
* one on which a FETCH stalled is asked for no other until some time has passed;
* one that has no room for another FETCH says so for all Tracks (`Peer.busy_until`). It may
  be asked nevertheless: this is for those who can wait;
* one that was asked about too many Tracks just before, for all who want some, is asked later
  (`Peer.questions`), and who wants another one is told so;
* a relay that has its share of requests of one client (`kvcs.relay.asker_shares`) is asked
  for others, and for this one once some of them are over;
* one that refused a SUBSCRIBE is not the first to be asked when a publisher is lost.

The parent is asked for what nobody below can give, and nobody is asked for his own sake
(`Peer.may_serve`): requests go up a tree and down it, and never turn round.

What is held against a peer goes with it: a Track may outlive any number of sessions.

Source: MOQT draft 22, Sections 7.6 and 12.1.
"""

from collections.abc import Collection, Sequence
from typing import Final
from weakref import WeakKeyDictionary, WeakSet

from kvcs.errors import RequestErrorCode
from kvcs.names import TrackNamespace
from kvcs.relay.asker_shares import Stay
from kvcs.relay.host import Host
from kvcs.relay.peer import Peer
from kvcs.relay.refusal import NOT_FOUND, Refusal
from kvcs.relay.upstream import UpstreamState, UpstreamSubscription

__all__ = ("Publishers",)

# Long enough that everybody else was asked, too short to miss a publisher that just appeared.
_REFUSAL_PAUSE: Final = 1.5


class Publishers:
    """The publishers of one Track."""

    __slots__ = (
        "_distrusted",
        "_distrusts",
        "_host",
        "_namespace",
        "_refused_until",
        "_stalled_until",
        "_subscriptions",
    )

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
        self._distrusts = False
        self._stalled_until: WeakKeyDictionary[Peer, float] = WeakKeyDictionary()
        self._refused_until: WeakKeyDictionary[Peer, float] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<Publishers {[peer.id for peer in self.available(None)]}>"

    def available(self, asker: Peer | None) -> list[Peer]:
        """Return the peers that may be asked for this Track, each once, the parent last.

        Args:
            asker: For whose sake; None for nobody in particular.
        """
        subscriptions = self._subscriptions
        pushing = [s.peer for s in subscriptions if s.state is UpstreamState.ESTABLISHED]
        parents = [self._host.parent] if self._host.parent is not None else []
        candidates = (*self._host.publishers(self._namespace), *pushing)
        below = [peer for peer in candidates if not peer.is_parent]
        peers = {peer.id: peer for peer in (*below, *parents) if peer.is_available}
        return [
            peer
            for peer in peers.values()
            if peer not in self._distrusted and peer.may_serve(asker)
        ]

    def for_subscribe(self, asker: Peer | None, denied: Collection[Peer]) -> list[Peer]:
        """Return the peers to which a SUBSCRIBE is to go: all below, else the parent.

        Args:
            asker: For whose sake; None for nobody in particular.
            denied: Peers that refused it.
        """
        peers = [peer for peer in self.available(asker) if peer not in denied]
        return [peer for peer in peers if not peer.is_parent] or peers

    def for_fetch(self, asker: Peer | None, now: float) -> list[Peer]:
        """Return the peers of which a FETCH may be asked."""
        stalled_until = self._stalled_until
        return [peer for peer in self.available(asker) if stalled_until.get(peer, now) <= now]

    def are_busy(self, asker: Peer | None, now: float) -> bool:
        """Tell whether a FETCH has a chance, but not before a publisher serves fewer of them."""
        publishers = self.for_fetch(asker, now)
        return bool(publishers) and all(
            peer.busy_until > now
            or not peer.takes_question(asker, now=now)
            or not peer.has_room_for(asker, Stay.PASSING)
            for peer in publishers
        )

    def are_asked_much(self, asker: Peer | None, denied: Collection[Peer], now: float) -> bool:
        """Tell whether all that are left to be asked were asked too much just before."""
        publishers = [peer for peer in self.available(asker) if peer not in denied]
        return bool(publishers) and not any(p.takes_question(asker, now=now) for p in publishers)

    def lack_room(self, asker: Peer, denied: Collection[Peer], stay: Stay) -> bool:
        """Tell whether all that are left to be asked have their share of requests of `asker`."""
        publishers = self.for_subscribe(asker, denied)
        return bool(publishers) and not any(p.has_room_for(asker, stay) for p in publishers)

    def unanswered(self, peer: Peer) -> Refusal:
        """Return the refusal of a request that a publisher left without an answer."""
        if peer in self.available(None):
            return Refusal(RequestErrorCode.INTERNAL_ERROR, "the publisher gave no answer")
        # For the subscriber it is as if there had been no publisher.
        return NOT_FOUND

    def stall(self, peer: Peer, *, until: float) -> None:
        """Ask for no FETCH of `peer` before this time, in monotonic seconds."""
        self._stalled_until[peer] = until

    def refuse(self, peer: Peer, *, now: float) -> None:
        """Note that `peer` refused a SUBSCRIBE."""
        self._refused_until[peer] = now + _REFUSAL_PAUSE

    def refusing(self, now: float) -> list[Peer]:
        """Return the peers that refused a SUBSCRIBE a moment ago."""
        return [peer for peer, until in self._refused_until.items() if until > now]

    def return_to(self, peer: Peer) -> None:
        """Ask a peer again that refused a SUBSCRIBE: it may know the Track now."""
        self._refused_until.pop(peer, None)

    def distrust(self, peer: Peer) -> None:
        """Ask `peer` nothing more: its Track contradicts itself."""
        self._distrusts = True
        self._distrusted.add(peer)

    def is_distrusted(self, peer: Peer) -> bool:
        """Tell whether the Track of `peer` contradicts itself."""
        # Asked for every Object, and a weak set makes a reference to look something up.
        return self._distrusts and peer in self._distrusted
