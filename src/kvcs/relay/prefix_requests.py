"""Which prefixes one relay asks another one for: all that is wanted, in as few requests as may be.

No two prefixes of one session may overlap (Section 6.1), and a relay may ask for many. So what
is wanted is covered by a request for itself or for a shorter prefix; where many differ in their
last field only, what they share is asked for; and what was refused is not asked for again.

Source: MOQT draft 22, Sections 6.1 and 9.16.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final, Protocol

from kvcs.errors import RequestErrorCode
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import RequestCancelled, RequestRejected
from kvcs.names import TrackNamespace
from kvcs.relay.namespaces import PeerId
from kvcs.relay.peer import Peer

__all__ = ("PrefixRequests", "retry_wait")

# Prefixes that differ in their last field only, above which what they share is asked for.
_MAX_SIBLINGS: Final = 16
# The first two fields of a namespace are the least that is asked for when prefixes are merged:
# who may see what is decided by them (KVCS, "Relay Considerations").
_MIN_MERGED_FIELDS: Final = 2
# A prefix that replaced others can reach the other relay before their cancellation.
_OVERLAP_RETRY: Final = 0.25


class _Request(Protocol):
    """A request for a prefix."""

    request_id: RequestId


class PrefixRequests[Request: _Request]:
    """The requests that run on one session, by prefix.

    Attributes:
        running: Requests by their prefix; none is a prefix of another.
        refused: Prefixes that were refused.
    """

    __slots__ = ("refused", "running")

    def __init__(self) -> None:
        self.running: dict[TrackNamespace, Request] = {}
        self.refused: set[TrackNamespace] = set()

    def __repr__(self) -> str:
        return f"<PrefixRequests running={len(self.running)} refused={len(self.refused)}>"

    def covering(self, prefix: TrackNamespace) -> Request | None:
        """Return the request that brings what is below a prefix."""
        for covering in _prefixes(prefix):
            request = self.running.get(covering)
            if request is not None:
                return request
        return None

    def to_ask_for(
        self,
        prefix: TrackNamespace,
        may_share: Callable[[TrackNamespace], bool] = lambda _: True,
    ) -> TrackNamespace | None:
        """Return what to ask for so that a prefix is covered that is not; None if it was refused.

        Args:
            prefix: What is wanted.
            may_share: Tells whether a shorter prefix may be asked for in its place.
        """
        shared = TrackNamespace(prefix.fields[:-1])
        if len(shared) >= _MIN_MERGED_FIELDS and shared not in self.refused:
            siblings = sum(other.fields[:-1] == shared.fields for other in self.running)
            if siblings >= _MAX_SIBLINGS and may_share(shared):
                return shared
        return None if prefix in self.refused else prefix

    def below(self, prefix: TrackNamespace) -> list[TrackNamespace]:
        """Return the prefixes of the requests that one for `prefix` replaces."""
        return [other for other in self.running if prefix.is_prefix_of(other)]

    def forget_unwanted(self, wanted: Iterable[TrackNamespace]) -> Collection[TrackNamespace]:
        """Forget refusals of what nobody wants; return the prefixes of requests for nobody."""
        needed = {covering for prefix in wanted for covering in _prefixes(prefix)}
        self.refused &= needed
        return [prefix for prefix in self.running if prefix not in needed]

    def charge(self, peer: Peer, wishes: Iterable[tuple[TrackNamespace, Peer]]) -> None:
        """Have each request be charged to somebody who wants what it brings, the first of them.

        Args:
            peer: The relay that has the requests.
            wishes: Prefixes that are wanted, and who wants them.
        """
        wanting: dict[RequestId, dict[PeerId, None]] = {}
        for prefix, asker in wishes:
            request = self.covering(prefix)
            if request is not None:
                wanting.setdefault(request.request_id, {})[asker.id] = None
        for request_id, askers in wanting.items():
            peer.shares.pass_on(request_id, askers)


def retry_wait(event: RequestRejected | RequestCancelled) -> float | None:
    """Return the seconds after which a prefix is asked for again; None if that does not help."""
    if not isinstance(event, RequestRejected):
        return None
    if event.retry_after is None and event.code != RequestErrorCode.PREFIX_OVERLAP:
        return None
    return max(event.retry_after or 0.0, _OVERLAP_RETRY)


def _prefixes(namespace: TrackNamespace) -> Iterable[TrackNamespace]:
    """Return all prefixes, itself among them; the shortest first."""
    return (TrackNamespace(namespace.fields[:length]) for length in range(len(namespace) + 1))
