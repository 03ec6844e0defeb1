"""What Track Aliases mean that the peer has chosen, and what they meant.

An alias names one Track. Several subscriptions to that Track may share it; their
streams cannot be told apart, so they all go to the oldest of these subscriptions.

Source: MOQT draft 22, Section 3.1.3.
"""

from kvcs.errors import RemoteProtocolError, TerminationCode
from kvcs.moqt.session.actions import TrackAlias
from kvcs.moqt.session.state import Request, State

__all__ = ("Aliases",)


class Aliases:
    """Track Aliases of the peer, in use or retired."""

    __slots__ = ("_in_use", "_max_retired", "_retired")

    def __init__(self, max_retired: int) -> None:
        self._in_use: dict[TrackAlias, list[Request]] = {}
        self._retired: dict[TrackAlias, None] = {}
        self._max_retired = max_retired

    def __repr__(self) -> str:
        return f"Aliases({len(self._in_use)} in use, {len(self._retired)} retired)"

    def bind(self, alias: TrackAlias, request: Request) -> None:
        """Let `alias` mean the Track of `request`.

        Raises:
            RemoteProtocolError: It means another Track at the same time.
        """
        holders = self._in_use.get(alias, [])
        if any(holder.track != request.track for holder in holders):
            if any(holder.state is not State.DRAINING for holder in holders):
                raise RemoteProtocolError(
                    TerminationCode.DUPLICATE_TRACK_ALIAS, f"Track Alias {alias} for two Tracks"
                )
            # The old Track is finished; what is still missing of it is given up.
            holders = []
        self._in_use[alias] = [*holders, request]
        self._retired.pop(alias, None)
        request.track_alias = alias

    def release(self, request: Request) -> None:
        """Forget `request`; the last one leaves a tombstone for late streams."""
        alias = request.track_alias
        if alias is None or request not in self._in_use.get(alias, ()):
            return
        self._in_use[alias].remove(request)
        if not self._in_use[alias]:
            del self._in_use[alias]
            self._retired[alias] = None
            if len(self._retired) > self._max_retired:
                del self._retired[next(iter(self._retired))]

    def find(self, alias: TrackAlias) -> Request | None:
        """Return the subscription that a stream with `alias` belongs to."""
        holders = self._in_use.get(alias)
        return holders[0] if holders else None

    def is_retired(self, alias: TrackAlias) -> bool:
        """Tell whether `alias` was in use and is no more."""
        return alias in self._retired
