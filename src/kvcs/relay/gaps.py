"""What the deliveries of one Track still wait for, and who is asked for it.

Theory of operation. A delivery that meets a Location of which nothing is known stops there
and reports the run of unknown Locations, once. `Gaps` decides for each such run, again
after every change and from time to time:

* it is under way on an upstream FETCH: wait, however many deliveries want it;
* it is under way on the upstream subscription, since a stream of its Group is open, or the
  Group is so young that its stream may have been overtaken: wait, for a bounded time;
* else a publisher is asked for it, a few times at most, and once it has room for a FETCH;
* where no publisher can say what is there, the deliveries are told to mark it.

So nothing crosses the link upstream twice, and nobody waits for what does not come. A gap
is over when its delivery has passed it: what arrived may be dropped or expire before that.

Source: MOQT draft 22, Sections 3.2.3 and 3.4.
"""

from collections.abc import Callable
from typing import Final

from kvcs.moqt.codepoints import RangeMarker
from kvcs.moqt.track.delivery import Delivery
from kvcs.moqt.track.fetch_delivery import FetchDelivery
from kvcs.moqt.track.interval import to_location, to_position
from kvcs.moqt.track.store import Absent, Found, TrackStore, Unknown
from kvcs.names import Location
from kvcs.relay.upstream import UpstreamSubscription
from kvcs.relay.upstream_fetch import UpstreamFetch
from kvcs.varint import MAX_VI64

__all__ = ("Gaps",)

# Times that a delivery asks for the same Location: what it needs may be dropped before it
# is sent, where the cache is too small for what is being read.
_MAX_TRIES: Final = 8
# Gaps of one subscription that are filled at a time: it reports all that it has lost at
# once, and the cache, which had no room for that before, has none now.
_MAX_REFILLS: Final = 4


class _Gap:
    """A run of unknown positions that one delivery stopped at.

    Attributes:
        owner: The delivery.
        start: Everything before was passed by the delivery.
        through: Last position.
        position: First position that was unknown when last looked at.
        since: When the delivery stopped.
        asked_at: Position for which a publisher was asked last.
        tries: How often in a row for that position.
        is_fetch: The delivery goes through its range in order, and so has passed all
            that it does not need.
        is_filled: Nothing is unknown any more; the subscription has yet to take it.
    """

    __slots__ = (
        "asked_at",
        "is_fetch",
        "is_filled",
        "owner",
        "position",
        "since",
        "start",
        "through",
        "tries",
    )

    def __init__(self, owner: Delivery, start: int, through: int, since: float) -> None:
        self.owner = owner
        self.start = self.position = start
        self.through = through
        self.since = since
        self.asked_at = -1
        self.tries = 0
        self.is_fetch = isinstance(owner, FetchDelivery)
        self.is_filled = False


class Gaps:
    """The gaps of one Track that somebody waits for.

    Attributes:
        fetches: FETCHes under way.
    """

    def __init__(
        self,
        store: TrackStore,
        subscriptions: list[UpstreamSubscription],
        *,
        ask: Callable[[int, int, float], bool],
        is_busy: Callable[[float], bool],
        live_wait: float,
        stall_wait: float,
    ) -> None:
        """Start without gaps.

        Args:
            store: What is known.
            subscriptions: Upstream subscriptions on which Objects may be under way; the
                list is the caller's and changes.
            ask: Sends a FETCH for positions from the first to the second, inclusive, at a
                time, and adds it to `fetches`; returns False if there is nobody to ask.
            is_busy: Tells whether whoever can be asked is to be asked later.
            live_wait: Seconds to wait for a Group that no stream was seen of.
            stall_wait: Seconds to wait for a Group of which a stream is open, and for room
                for a FETCH.
        """
        self.fetches: list[UpstreamFetch] = []
        self._store = store
        self._subscriptions = subscriptions
        self._ask = ask
        self._is_busy = is_busy
        self._live_wait = live_wait
        self._stall_wait = stall_wait
        self._gaps: dict[_Gap, None] = {}
        self._has_lost = False

    def __len__(self) -> int:
        return len(self._gaps)

    def wait(self, owner: Delivery, start: Location, through: Location, *, now: float) -> None:
        """Have a gap filled, or the delivery told that it cannot be."""
        gap = _Gap(owner, to_position(start), to_position(through), now)
        for older in [older for older in self._gaps if older.owner is owner]:
            if gap.start <= older.through and older.start <= gap.through:
                del self._gaps[older]
        self._gaps[gap] = None
        self._settle(gap, now)

    def is_awaited(self, start: int, through: int, *, now: float) -> bool:
        """Tell whether a delivery is stopped at one of these positions."""
        return any(
            self._advance(gap, now) and start <= gap.position <= through
            for gap in tuple(self._gaps)
        )

    def note_loss(self) -> None:
        """Note that Objects were dropped: what was known may no longer be."""
        self._has_lost = True

    def reconsider(self, *, now: float) -> None:
        """Look at all gaps again."""
        for gap in tuple(self._gaps):
            if gap in self._gaps:
                self._settle(gap, now)

    def look_back(self, *, now: float) -> None:
        """Look at all gaps again, and also whether what had arrived is still there."""
        lifetime = self._store.lifetime
        for gap in self._gaps:
            has_expired = lifetime is not None and now >= gap.since + lifetime
            if gap.is_fetch and (self._has_lost or has_expired):
                gap.position = gap.start
        self._has_lost = False
        self.reconsider(now=now)

    def mark_unknown(self, start: int, through: int, marker: RangeMarker, *, now: float) -> None:
        """Tell deliveries that are stopped in a range that nothing can be said about it."""
        for gap in tuple(self._gaps):
            if gap in self._gaps and self._advance(gap, now) and start <= gap.position <= through:
                self._give_up(gap, through, marker)

    def take_back(self, fetch: UpstreamFetch, *, now: float) -> None:
        """Count a FETCH that a publisher had no room for as never sent, for a bounded time."""
        for gap in self._gaps:
            if gap.asked_at == fetch.start and now < gap.since + self._stall_wait:
                gap.tries -= 1

    def next_deadline(self, *, now: float) -> float | None:
        """Return when something that is under way on a subscription will be late."""
        deadlines = (self._live_deadline(gap) for gap in self._gaps)
        coming = (deadline for deadline in deadlines if deadline is not None and deadline > now)
        return min(coming, default=None)

    def _settle(self, gap: _Gap, now: float) -> None:
        if not self._advance(gap, now):
            return
        if any(fetch.covers(gap.position) for fetch in self.fetches) or self._has_to_queue(gap):
            return
        deadline = self._live_deadline(gap)
        if deadline is None:
            starts = (s.live_from for s in self._subscriptions if s.live_from is not None)
            through = min((s - 1 for s in starts if s > gap.position), default=gap.through)
        elif now < deadline:
            return
        else:
            through = gap.position | MAX_VI64
        if self._is_busy(now) and now < gap.since + self._stall_wait:
            return
        through = self._until_covered(gap.position, min(through, gap.through))
        gap.tries = gap.tries + 1 if gap.asked_at == gap.position else 1
        gap.asked_at = gap.position
        if gap.tries > _MAX_TRIES or not self._ask(gap.position, through, now):
            self._give_up(gap, through, RangeMarker.UNKNOWN)

    def _live_deadline(self, gap: _Gap) -> float | None:
        """Return how long to wait for the upstream subscription, None if not at all."""
        group_id = gap.position >> 64
        deadline: float | None = None
        for subscription in self._subscriptions:
            live_from = subscription.live_from
            if live_from is None or gap.position < live_from:
                continue
            if subscription.is_open(group_id):
                return gap.since + self._stall_wait
            if not subscription.has_ended(group_id):
                deadline = gap.since + self._live_wait
        return deadline

    def _give_up(self, gap: _Gap, through: int, marker: RangeMarker) -> None:
        first, last = gap.position, min(through, gap.through)
        gap.start = gap.position = last + 1
        if gap.start > gap.through:
            del self._gaps[gap]
        gap.owner.give_up(to_location(first), to_location(last), marker)

    def _advance(self, gap: _Gap, now: float) -> bool:
        """Move a gap to the first position that is still unknown; tell whether there is one."""
        if gap not in self._gaps or self._is_passed(gap):
            self._gaps.pop(gap, None)
            return False
        while gap.position <= gap.through:
            match self._store.lookup(to_location(gap.position), now=now):
                case Unknown():
                    return True
                case Absent(through=through):
                    gap.position = to_position(through) + 1
                case Found():
                    gap.position += 1
        gap.is_filled = True
        return False

    def _is_passed(self, gap: _Gap) -> bool:
        """Leave behind what a fetch needs no more; tell whether that is all."""
        if gap.owner.finished:
            return True
        if not gap.is_fetch:
            return gap.is_filled and self._is_taken(gap)
        needs = gap.owner.needs
        passed, needed = gap.start >> 64, gap.through >> 64
        if needs(passed):
            return False
        if not needs(needed):
            return True
        while passed + 1 < needed:
            middle = (passed + needed) // 2
            passed, needed = (passed, middle) if needs(middle) else (middle, needed)
        gap.start = needed << 64
        gap.position = max(gap.position, gap.start)
        return False

    def _is_taken(self, gap: _Gap) -> bool:
        """Tell whether a subscription took what was filled in, or lost it once more."""
        if gap.owner.needs(gap.start >> 64):
            return False
        # Nothing happens if it was taken; if not, the subscriber has fallen behind.
        gap.owner.give_up(to_location(gap.start), to_location(gap.through))
        return True

    def _has_to_queue(self, gap: _Gap) -> bool:
        """Tell whether enough other gaps of a subscription come before this one."""
        if gap.is_fetch:
            return False
        before = (g.owner is gap.owner and g.position < gap.position for g in self._gaps)
        return sum(before) >= _MAX_REFILLS

    def _until_covered(self, start: int, through: int) -> int:
        """Cut a range where an upstream FETCH covers it already."""
        starts = (f.position for f in self.fetches if start < f.position <= through)
        return min((position - 1 for position in starts), default=through)
