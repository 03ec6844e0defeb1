"""What a relay says to its parent about namespaces: announcements and interest.

Theory of operation. `Upward` belongs to one relay. While there is a parent, every local
namespace is advertised there with PUBLISH_NAMESPACE, and the prefixes that subscribers here
asked for are covered by few SUBSCRIBE_NAMESPACEs, which must not overlap: one that another
covers is not sent, one that covers others replaces them, and when many differ in their last
field only, what they have in common is asked for instead. What a client wants beyond its share of
requests is asked for later (`kvcs.relay.asker_shares`). What the parent lists is put into
the list of this relay. A subscriber is answered when the parent has answered, or after a
bounded time: the NAMESPACEs of the parent come right behind its REQUEST_OK, and a subscriber
that saw REQUEST_OK long before would take the silence for an empty list.

Source: MOQT draft 22, Sections 4.1, 4.2 and 9.14 to 9.17.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from kvcs.endpoint.rate import LeakyBucket
from kvcs.errors import LocalProtocolError
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import (
    Event,
    NamespaceDoneReceived,
    NamespaceReceived,
    RequestAccepted,
    RequestCancelled,
    RequestRejected,
)
from kvcs.names import TrackNamespace
from kvcs.relay.asker_shares import Stay
from kvcs.relay.config import RelayLimits
from kvcs.relay.namespaces import Change, Namespaces
from kvcs.relay.peer import Peer
from kvcs.relay.prefix_requests import PrefixRequests, retry_wait

__all__ = ("Upward",)

# Seconds without announcements once too much was taken back, without questions once too many were
# asked, and at least before an announcement that was refused is repeated.
_PAUSE: Final = 1.0

type Then = Callable[[float], None]


class _Host(Protocol):
    """What this part needs of the relay around it."""

    @property
    def limits(self) -> RelayLimits:
        """Bounds."""
        ...

    def schedule(self, deadline: float, alarm: Callable[[float], None]) -> None:
        """Call `alarm` with the time when `deadline` has passed."""
        ...

    def close_flood(self, peer: Peer, what: str, *, now: float) -> None:
        """Close the session of a peer that goes on far beyond what it may do."""
        ...


@dataclass(slots=True, eq=False)
class _Interest:
    """One SUBSCRIBE_NAMESPACE to the parent.

    Attributes:
        request_id: The request.
        answered: The parent said yes or no, or took too long.
        listed: Namespaces that it lists.
        inherited: Those of them that requests listed which this one replaced, and it has not
            yet.
        withdrawals: How fast the parent takes namespaces back that it listed.
        waiting: Called when it is answered.
    """

    request_id: RequestId
    withdrawals: LeakyBucket
    answered: bool = False
    listed: set[TrackNamespace] = field(default_factory=set[TrackNamespace])
    inherited: set[TrackNamespace] = field(default_factory=set[TrackNamespace])
    waiting: list[Then] = field(default_factory=list[Then])


class Upward:
    """The namespace requests of a relay to its parent.

    Attributes:
        parent: The parent, None while there is none.
    """

    def __init__(
        self,
        host: _Host,
        namespaces: Namespaces,
        announce: Callable[[list[Change], float], None],
    ) -> None:
        """Have no parent yet.

        Args:
            host: The relay.
            namespaces: Its list.
            announce: Sends what subscribers of namespaces are to know.
        """
        self.parent: Peer | None = None
        self._host = host
        self._namespaces = namespaces
        self._announce = announce
        self._wanted: dict[TrackNamespace, Counter[Peer]] = {}
        self._interests = PrefixRequests[_Interest]()
        self._announced: dict[TrackNamespace, RequestId] = {}
        self._is_pruning = False
        limits = host.limits
        self._withdrawals = LeakyBucket(
            limits.max_withdrawal_rate, burst=limits.max_upstream_namespaces
        )
        self._is_pausing = self._asks_later = False

    def __repr__(self) -> str:
        return (
            f"<Upward parent={self.parent} announced={len(self._announced)}"
            f" interests={len(self._interests.running)}>"
        )

    # The parent.

    def attach(self, parent: Peer, *, now: float) -> None:
        """Say everything to a new parent."""
        self.parent = parent
        for namespace in self._namespaces.local():
            self._publish(namespace, now)
        for prefix in tuple(self._wanted):
            self._cover(prefix, now)

    def detach(self, *, now: float) -> None:
        """Note that there is no parent any more; its list is void."""
        self.parent = None
        self._announced.clear()
        self._interests.refused.clear()
        for prefix in tuple(self._interests.running):
            self._drop(prefix, now)

    def renew(self, *, now: float) -> None:
        """Ask and tell again what the parent refused or ended, with another token now."""
        self._interests.refused.clear()
        self._cover_all(TrackNamespace(), now)
        self._publish_waiting(now)

    # Announcements.

    def localized(self, namespace: TrackNamespace, *, listed: bool, now: float) -> None:
        """Announce what this relay can serve, or take that back."""
        if listed:
            self._publish(namespace, now)
        else:
            self._withdraw(namespace, now)

    def _publish(self, namespace: TrackNamespace, now: float) -> None:
        parent = self.parent
        if parent is None or namespace in self._announced or not parent.is_available:
            return
        if not self._has_room(parent) or self._pauses(now):
            return
        try:
            request_id = parent.session.publish_namespace(namespace, now=now)
        except LocalProtocolError:
            return
        self._announced[namespace] = request_id
        parent.follow(request_id, partial(self._receive_announced, parent, namespace))
        parent.wake()

    def _withdraw(self, namespace: TrackNamespace, now: float) -> None:
        request_id, parent = self._announced.pop(namespace, None), self.parent
        if request_id is None or parent is None:
            return
        parent.forget(request_id)
        if parent.session.is_active(request_id):
            parent.session.cancel(request_id, now=now)
            parent.wake()
        self._withdrawals.admit(1, now=now)
        self._publish_waiting(now)

    def _publish_waiting(self, now: float) -> None:
        """Announce what had no room or came too fast; the earliest first."""
        for namespace in self._namespaces.local():
            if self.parent is None or not self._has_room(self.parent) or self._is_pausing:
                return
            self._publish(namespace, now)

    def _has_room(self, parent: Peer) -> bool:
        """Tell whether one more namespace may be announced."""
        most = min(self._host.limits.max_upstream_namespaces, parent.max_announced)
        return len(self._announced) < most

    def _pauses(self, now: float) -> bool:
        """Tell whether nothing is announced now, since so much was taken back just before.

        The parent counts how fast its sessions do that, and all publishers here share this one.
        """
        if not self._is_pausing and not self._withdrawals.admit(0, now=now):
            self._is_pausing = True
            self._host.schedule(now + _PAUSE, self._go_on)
        return self._is_pausing

    def _go_on(self, now: float) -> None:
        self._is_pausing = False
        self._publish_waiting(now)

    def _receive_announced(
        self, parent: Peer, namespace: TrackNamespace, event: Event, now: float
    ) -> None:
        match event:
            case RequestRejected() | RequestCancelled():
                self._announced.pop(namespace, None)
                retry_after = getattr(event, "retry_after", None)
                if retry_after is not None:
                    wait = max(retry_after, _PAUSE)
                    self._host.schedule(now + wait, partial(self._retry, parent, namespace))
            case _:
                pass

    def _retry(self, parent: Peer, namespace: TrackNamespace, now: float) -> None:
        if parent is self.parent and namespace in self._namespaces.local():
            self._publish(namespace, now)

    # Interest.

    def express(self, prefix: TrackNamespace, asker: Peer, then: Then, *, now: float) -> None:
        """Ask the parent for a prefix; call `then` when it has answered, or cannot now.

        `release` takes back what was expressed, as often.
        """
        self._wanted.setdefault(prefix, Counter())[asker] += 1
        self._interests.refused.discard(prefix)
        interest = self._cover(prefix, now)
        if interest is None or interest.answered:
            then(now)
        else:
            interest.waiting.append(then)

    def release(self, prefix: TrackNamespace, asker: Peer, *, now: float) -> None:
        """Take back one `express`; the parent is asked no longer a little later."""
        askers = self._wanted[prefix]
        askers[asker] -= 1
        if askers[asker]:
            return
        del askers[asker]
        if not askers:
            del self._wanted[prefix]
        if not self._is_pruning:
            self._is_pruning = True
            self._host.schedule(now + self._host.limits.subscription_linger, self._prune)

    def _prune(self, now: float) -> None:
        """Ask for nothing that nobody wants any more, and for the rest on behalf of who does."""
        self._is_pruning = False
        for prefix in self._interests.forget_unwanted(self._wanted):
            self._drop(prefix, now)
        if self.parent is not None:
            wishes = ((prefix, asker) for prefix, its in self._wanted.items() for asker in its)
            self._interests.charge(self.parent, wishes)

    def _cover(self, prefix: TrackNamespace, now: float) -> _Interest | None:
        """Return the request that covers a prefix, a new one if need be."""
        interest = self._interests.covering(prefix)
        if interest is not None or self.parent is None or not self.parent.is_available:
            return interest
        asked = self._interests.to_ask_for(prefix)
        if asked is None:
            return None
        asker = self._asker(prefix, asked, self.parent, now)
        if asker is None:
            self._ask_later(now)
            return None
        return self._subscribe(asked, asker, now)

    def _asker(
        self, prefix: TrackNamespace, asked: TrackNamespace, parent: Peer, now: float
    ) -> Peer | None:
        """Return for whose sake to ask for a prefix; None if nobody may have more now."""
        # What ends other requests takes no room.
        ends_others = bool(self._interests.below(asked))
        for asker in self._wanted[prefix]:
            has_room = ends_others or parent.has_room_for(asker, Stay.STANDING)
            if has_room and parent.takes_question(asker, now=now):
                return asker
        return None

    def _subscribe(self, prefix: TrackNamespace, asker: Peer, now: float) -> _Interest | None:
        parent = self.parent
        if parent is None or not parent.is_available:
            return None
        running = self._interests.running
        replaced = [running.pop(narrower) for narrower in self._interests.below(prefix)]
        for narrower in replaced:
            self._cancel(narrower, now)
        try:
            request_id = parent.session.subscribe_namespace(prefix, now=now)
        except LocalProtocolError:
            # The session is over, and so is everything that was asked for on it.
            return None
        parent.note_question(asker, now=now)
        parent.charge(request_id, asker, Stay.STANDING)
        interest = running[prefix] = _Interest(request_id, self._allowed_withdrawals())
        for narrower in replaced:
            # What they listed stays until it is clear that this request does not list it.
            interest.inherited |= narrower.listed
            interest.listed |= narrower.listed
            interest.waiting += narrower.waiting
        parent.follow(request_id, partial(self._receive, parent, prefix))
        parent.wake()
        deadline = now + self._host.limits.namespace_wait
        self._host.schedule(deadline, partial(self._wait_no_more, interest))
        return interest

    def _wait_no_more(self, interest: _Interest, now: float) -> None:
        gone, interest.inherited = interest.inherited, set()
        interest.listed -= gone
        self._unlist(gone, now)
        self._answer(interest, now)

    def _receive(self, parent: Peer, prefix: TrackNamespace, event: Event, now: float) -> None:
        interest = self._interests.running.get(prefix)
        if interest is None or parent is not self.parent:
            return
        match event:
            case RequestAccepted():
                self._answer(interest, now)
            case NamespaceReceived():
                self._receive_namespace(parent, interest, prefix.joined(event.suffix), now)
            case NamespaceDoneReceived():
                namespace = prefix.joined(event.suffix)
                interest.listed.discard(namespace)
                self._unlist({namespace}, now)
                self._count_withdrawal(parent, interest, now)
            case RequestRejected() | RequestCancelled():
                self._receive_refusal(prefix, event, now)
            case _:
                # The end of the session, above all: `detach` forgets all of them.
                pass

    def _receive_refusal(
        self, prefix: TrackNamespace, event: RequestRejected | RequestCancelled, now: float
    ) -> None:
        """Ask again later where that helps; else for the rest of what is wanted."""
        wait = retry_wait(event)
        if wait is not None:
            self._host.schedule(now + wait, partial(self._ask_again, prefix))
        self._interests.refused.add(prefix)
        self._drop(prefix, now)
        self._cover_all(prefix, now)

    def _ask_again(self, prefix: TrackNamespace, now: float) -> None:
        self._interests.refused.discard(prefix)
        self._cover_all(prefix, now)

    def _ask_later(self, now: float) -> None:
        """Ask for what is wanted once the parent takes more questions, or more of one client."""
        if not self._asks_later:
            self._asks_later = True
            self._host.schedule(now + _PAUSE, self._ask_postponed)

    def _ask_postponed(self, now: float) -> None:
        self._asks_later = False
        self._cover_all(TrackNamespace(), now)

    def _cover_all(self, below: TrackNamespace, now: float) -> None:
        """Ask for what is wanted below a prefix: for the rest nothing has changed."""
        for prefix in tuple(self._wanted):
            if below.is_prefix_of(prefix) and prefix not in self._interests.refused:
                self._cover(prefix, now)

    def _answer(self, interest: _Interest, now: float) -> None:
        """Answer those who wait, once."""
        interest.answered = True
        waiting, interest.waiting = interest.waiting, []
        for then in waiting:
            then(now)

    def _drop(self, prefix: TrackNamespace, now: float) -> None:
        """End a request, forget what it listed, and answer those who wait for it."""
        interest = self._interests.running.pop(prefix)
        self._cancel(interest, now)
        self._unlist(interest.listed, now)
        self._answer(interest, now)

    def _cancel(self, interest: _Interest, now: float) -> None:
        request_id, parent = interest.request_id, self.parent
        if parent is None:
            return
        parent.forget(request_id)
        if parent.session.is_active(request_id):
            parent.session.cancel(request_id, now=now)
            parent.wake()

    # The parent's list.

    def _receive_namespace(
        self, parent: Peer, interest: _Interest, namespace: TrackNamespace, now: float
    ) -> None:
        if namespace in interest.listed and namespace not in interest.inherited:
            self._count_withdrawal(parent, interest, now)
        interest.listed.add(namespace)
        interest.inherited.discard(namespace)
        self._announce(self._namespaces.list_remote(namespace), now)

    def _allowed_withdrawals(self) -> LeakyBucket:
        """Return what a parent may take back below one prefix.

        A parent that is as this relay lists nothing new once it has taken back as many as it may
        list; then all that are listed can still go (`kvcs.relay.lister`).
        """
        limits = self._host.limits
        return LeakyBucket(limits.max_withdrawal_rate, burst=2 * limits.session.max_namespaces)

    def _count_withdrawal(self, parent: Peer, interest: _Interest, now: float) -> None:
        """Leave a parent whose namespaces below a prefix come and go without end."""
        if not interest.withdrawals.admit(1, now=now):
            self._host.close_flood(parent, "namespaces", now=now)

    def _unlist(self, namespaces: set[TrackNamespace], now: float) -> None:
        for namespace in sorted(namespaces, key=lambda namespace: namespace.fields):
            if not any(
                namespace in interest.listed for interest in self._interests.running.values()
            ):
                self._announce(self._namespaces.unlist_remote(namespace), now)
