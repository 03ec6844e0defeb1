"""NEW_GROUP_REQUEST: subscribers that want the publisher to begin a Group.

Theory of operation. What subscribers ask for before there is an upstream subscription goes with
the SUBSCRIBE; later it goes in a REQUEST_UPDATE, to publishers of Tracks with dynamic Groups. A
Group that exists already, or that was asked for and has not come, is not asked for again.

Source: MOQT draft 22, Sections 3.5.1 and 9.20.19.
"""

from collections.abc import Sequence

from kvcs.moqt.track.store import TrackStore
from kvcs.relay.upstream import UpstreamState, UpstreamSubscription

__all__ = ("NewGroups",)


class NewGroups:
    """What subscribers of one Track asked for."""

    __slots__ = ("_asked_at", "_outstanding", "_store", "_subscriptions", "_wanted")

    def __init__(self, store: TrackStore, subscriptions: Sequence[UpstreamSubscription]) -> None:
        """Want nothing yet.

        Args:
            store: What is known of the Track.
            subscriptions: Upstream subscriptions; the list is the caller's and changes.
        """
        self._store = store
        self._subscriptions = subscriptions
        self._wanted: int | None = None
        self._outstanding: int | None = None
        self._asked_at = -1

    def ask(self, group_id: int, *, now: float) -> None:
        """Take the NEW_GROUP_REQUEST of a subscriber; 0 is one that knows no Group."""
        established = [s for s in self._subscriptions if s.state is UpstreamState.ESTABLISHED]
        if not established:
            self._wanted = max(self._wanted or 0, group_id)
            return
        if not self._store.properties.dynamic_groups or self._is_idle(group_id):
            return
        self._note(group_id)
        for subscription in established:
            subscription.request_new_group(group_id, now=now)

    def take(self) -> int | None:
        """Return what a new upstream subscription is to ask for, None for nothing."""
        wanted = self._wanted
        if wanted is not None:
            self._wanted = None
            self._note(wanted)
        return wanted

    @property
    def _largest_group(self) -> int:
        largest = self._store.largest
        return -1 if largest is None else largest.group_id

    def _is_idle(self, group_id: int) -> bool:
        """Tell whether a Group is there, or was asked for and has not come yet."""
        if 0 < group_id <= self._largest_group:
            return True
        is_outstanding = self._outstanding is not None and self._largest_group <= self._asked_at
        return is_outstanding and (self._outstanding or 0) >= group_id

    def _note(self, group_id: int) -> None:
        self._outstanding, self._asked_at = group_id, self._largest_group
