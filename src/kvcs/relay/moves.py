"""Upstream subscriptions that a publisher asked to move.

Theory of operation. GOAWAY on one request asks for that request to be made anew, elsewhere or
in the same session. The new subscription comes first: at a publisher of the Track that is not
subscribed to yet, else at the same one. Once it is Established the old one is let go of as
soon as none of its streams is open, or after a bounded time, so that little has to be fetched.
What arrives twice meanwhile is dropped by the store. Where the new one is refused the old one
stays until the publisher ends it. A publisher that asks again and again is not obeyed for ever.

Source: MOQT draft 22, Sections 6.6.1, 7.6.1 and 9.2.
"""

from collections.abc import Callable
from typing import Final

from kvcs.errors import StreamResetCode
from kvcs.relay.host import Host
from kvcs.relay.peer import Peer
from kvcs.relay.publishers import Publishers
from kvcs.relay.upstream import UpstreamState, UpstreamSubscription

__all__ = ("MAX_MOVES", "Moves")

# How often one subscription is moved on request.
MAX_MOVES: Final = 4


class Moves:
    """The subscriptions of one Track that are on their way elsewhere."""

    __slots__ = ("_host", "_moves", "_publishers", "_replaced", "_subscribe", "_subscriptions")

    def __init__(
        self,
        host: Host,
        publishers: Publishers,
        subscriptions: list[UpstreamSubscription],
        subscribe: Callable[[Peer, UpstreamSubscription, float], UpstreamSubscription | None],
    ) -> None:
        """Have nothing to move yet.

        Args:
            host: The relay.
            publishers: Who can be subscribed to.
            subscriptions: Upstream subscriptions; the list is the caller's and changes.
            subscribe: Subscribes at a peer, in place of a subscription, at a time.
        """
        self._host = host
        self._publishers = publishers
        self._subscriptions = subscriptions
        self._subscribe = subscribe
        self._replaced: dict[UpstreamSubscription, UpstreamSubscription] = {}
        self._moves = 0

    def begin(self, subscription: UpstreamSubscription, *, now: float) -> None:
        """Subscribe anew in place of `subscription`."""
        if self._moves >= MAX_MOVES or subscription not in self._subscriptions:
            return
        known = {s.peer.id for s in self._subscriptions}
        available = self._publishers.available(None)
        others = [peer for peer in available if peer.id not in known]
        same = [subscription.peer] if subscription.peer in available else []
        for peer in (others or same)[:1]:
            self._moves += 1
            successor = self._subscribe(peer, subscription, now)
            if successor is not None:
                self._replaced[successor] = subscription

    def established(self, successor: UpstreamSubscription, *, now: float) -> None:
        """Note that a subscription is Established; let go of the one that it replaces."""
        old = self._replaced.pop(successor, None)
        if old is not None:
            self._let_go(old, now + self._host.limits.fill_timeout, now)

    def ended(self, subscription: UpstreamSubscription) -> None:
        """Note that a subscription is over, or was refused."""
        self._replaced.pop(subscription, None)

    def _let_go(self, old: UpstreamSubscription, deadline: float, now: float) -> None:
        """Cancel a subscription once nothing comes on it, looking from time to time."""

        def look(now: float) -> None:
            if old not in self._subscriptions:
                return
            if old.has_streams and now < deadline:
                self._let_go(old, deadline, now)
            elif any(
                s.state is UpstreamState.ESTABLISHED and s is not old for s in self._subscriptions
            ):
                self._subscriptions.remove(old)
                old.cancel(StreamResetCode.CANCELLED, now=now)

        self._host.schedule(now + self._host.limits.live_wait, look)
