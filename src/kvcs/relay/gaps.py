"""What the deliveries of one Track still wait for, and who is asked for it.

Theory of operation. A delivery that meets a Location of which nothing is known stops there
and reports the run of unknown Locations, once. `Gaps` decides for each such run, again
after every change and from time to time:

* it is under way on an upstream FETCH: wait, however many deliveries want it;
* the disk has it: read a piece of it as soon as the delivery has come there, and wait;
* it is under way on the upstream subscription, since a stream of its Group is open, or the
  Group is so young that its stream may have been overtaken: wait, for a bounded time;
* else a publisher is asked for it, a few times at most, and once it has room for a FETCH;
* where no publisher can say what is there, the deliveries are told to mark it.

So nothing crosses the link upstream twice, and nobody waits for what does not come. A gap
is over when its delivery has passed it: what arrived may be dropped or expire before that.

Source: MOQT draft 22, Sections 3.2.3 and 3.4.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Final, Protocol

from kvcs.moqt.codepoints import GroupOrder, RangeMarker
from kvcs.moqt.track.contents import Absent, Found, Unknown
from kvcs.moqt.track.delivery import Delivery
from kvcs.moqt.track.fetch_delivery import FetchDelivery
from kvcs.moqt.track.interval import to_location, to_position
from kvcs.moqt.track.object_ids import ObjectIds
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.track.subscription_delivery import SubscriptionDelivery
from kvcs.names import Location
from kvcs.relay.disk.track import DiskTrack
from kvcs.relay.peer import Peer
from kvcs.relay.upstream import UpstreamSubscription
from kvcs.relay.upstream_fetch import UpstreamFetch
from kvcs.varint import MAX_VI64

__all__ = ("Gap", "Gaps", "Origin", "Owner", "Sources")

# Times that a delivery asks for the same Location: what it needs may be dropped before it
# is sent, where the cache is too small for what is being read.
_MAX_TRIES: Final = 8
# Gaps of one subscription that are filled at a time: it reports all that it has lost at
# once, and the cache, which had no room for that before, has none now.
_MAX_REFILLS: Final = 4


class Origin(Enum):
    """Where what a delivery lacks comes from."""

    DISK = auto()
    PUBLISHER = auto()


class Owner(Protocol):
    """Whoever waits for a gap: a delivery, mostly."""

    @property
    def finished(self) -> bool:
        """Nobody waits any more."""
        ...

    def needs(self, group_id: int) -> bool:
        """Tell whether Objects of this Group may still have to be sent."""
        ...

    def give_up(self, start: Location, through: Location, marker: RangeMarker = ...) -> None:
        """Stop waiting for Locations, inclusive, that nobody can give."""
        ...


class Gap:
    """A run of unknown positions that one delivery stopped at.

    Attributes:
        owner: The delivery.
        asker: Whom it serves; None for nobody in particular.
        denied: Publishers that do not know what is at `position`.
        ids: Object IDs that the delivery needs; None for all.
        horizon: Last position that the delivery needs.
        start: Everything before was passed by the delivery.
        through: Last position.
        position: First position that was unknown when last looked at.
        stop: Where the owner stood when it was last heard of; None if it never tells.
        since: When the delivery stopped.
        asked_at: Position for which a publisher was asked last.
        tries: How often in a row for that position.
        is_fetch: The delivery goes through its range in order, and so has passed all
            that it does not need.
        is_filled: Nothing is unknown any more; the subscription has yet to take it.
    """

    __slots__ = (
        "asked_at",
        "asker",
        "denied",
        "horizon",
        "ids",
        "is_fetch",
        "is_filled",
        "owner",
        "position",
        "since",
        "start",
        "stop",
        "through",
        "tries",
    )

    def __init__(
        self, owner: Owner, start: int, through: int, *, asker: Peer | None, since: float
    ) -> None:
        self.owner = owner
        self.asker = asker
        self.denied: set[Peer] = set()
        self.start = self.position = start
        tells = isinstance(owner, FetchDelivery | SubscriptionDelivery)
        self.stop = start if tells else None
        self.through = through
        self.since = since
        self.asked_at = -1
        self.tries = 0
        self.is_fetch = isinstance(owner, FetchDelivery)
        self.ids: ObjectIds | None = None
        self.horizon = through
        if isinstance(owner, FetchDelivery):
            self.ids = ObjectIds.of(owner.terms.range_filters)
            self.horizon = _horizon(owner, through)
        self.is_filled = False

    @property
    def reading_end(self) -> int:
        """How far to read from the disk: a fetch goes on behind this gap, in order."""
        if not isinstance(self.owner, FetchDelivery) or _is_descending(self.owner):
            return self.through
        end = self.owner.terms.location_range.end
        return self.through if end is None else max(self.through, to_position(end))


class Sources(Protocol):
    """Who can be asked for what is missing, and what is under way.

    Attributes:
        fetches: FETCHes under way.
    """

    fetches: list[UpstreamFetch]

    def ask_for(self, gap: Gap, through: int, *, now: float) -> bool:
        """Send a FETCH from the position of a gap to another, inclusive, and add it to `fetches`.

        Returns:
            False if there is nobody to ask.
        """
        ...

    def is_busy(self, asker: Peer | None, *, now: float) -> bool:
        """Tell whether whoever can be asked for somebody is to be asked later."""
        ...

    @property
    def may_ask_later(self) -> bool:
        """Whether a publisher may come, if there is none."""
        ...


class Gaps:
    """The gaps of one Track that somebody waits for.

    Attributes:
        fetches: FETCHes under way.
        on_origin: Called with a fetch and where what it lacks comes from; often.
    """

    def __init__(
        self,
        store: TrackStore,
        subscriptions: list[UpstreamSubscription],
        sources: Sources,
        disk: DiskTrack,
        *,
        live_wait: float,
        stall_wait: float,
    ) -> None:
        """Start without gaps.

        Args:
            store: What is known.
            subscriptions: Upstream subscriptions on which Objects may be under way; the
                list is the caller's and changes.
            sources: Who can be asked.
            disk: What the disk has.
            live_wait: Seconds to wait for a Group that no stream was seen of.
            stall_wait: Seconds to wait for a Group of which a stream is open, and for room
                for a FETCH.
        """
        self.fetches = sources.fetches
        self.on_origin: Callable[[FetchDelivery, Origin], None] | None = None
        self._store = store
        self._subscriptions = subscriptions
        self._sources = sources
        self._disk = disk
        self._live_wait = live_wait
        self._stall_wait = stall_wait
        self._gaps: dict[Gap, None] = {}
        self._has_lost = False

    def __len__(self) -> int:
        return len(self._gaps)

    def wait(
        self, owner: Owner, start: int, through: int, *, asker: Peer | None = None, now: float
    ) -> None:
        """Have a gap filled, or the delivery told that it cannot be.

        Args:
            owner: The delivery.
            start: First position.
            through: Last position.
            asker: Whom it serves; None for nobody in particular.
            now: Monotonic seconds.
        """
        if _is_descending(owner) and self._disk.has_any(start, through):
            # The highest Group goes first; `stopped` hears of the others in their turn.
            start = max(start, through >> 64 << 64)
        gap = Gap(owner, start, through, asker=asker, since=now)
        for older in [older for older in self._gaps if older.owner is owner]:
            if gap.start <= older.through and older.start <= gap.through:
                del self._gaps[older]
        self._gaps[gap] = None
        self._settle(gap, now)

    def stopped(self, owner: Delivery, position: int, *, asker: Peer, now: float) -> None:
        """Note where inside a gap that it has reported a delivery stands.

        The disk needs to know. What publishers give comes by itself, and to ask them again each
        time would push out of the cache what is just about to be sent; unless it had come, and was
        dropped before the delivery took it.
        """
        is_on_disk = position in self._disk.held
        for gap in self._gaps:
            if gap.owner is owner and gap.start <= position <= gap.through:
                if not is_on_disk and (gap.is_fetch or not gap.is_filled):
                    return
                gap.is_filled = False
                gap.stop = position
                gap.position = min(gap.position, position)
                if gap.is_fetch and not _is_descending(owner):
                    gap.start = position
                self._settle(gap, now)
                return
        if is_on_disk:
            self.wait(owner, position, position | MAX_VI64, asker=asker, now=now)

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

    def mark_unknown(
        self, fetch: UpstreamFetch, start: int, through: int, marker: RangeMarker, *, now: float
    ) -> None:
        """Note that a FETCH said nothing about a range, and ask another publisher.

        Deliveries that are stopped in it are told so where there is no other.
        """
        for gap in tuple(self._gaps):
            if gap not in self._gaps or not self._advance(gap, now):
                continue
            if start <= gap.position <= through and _answers(fetch, gap):
                gap.denied.add(fetch.peer)
                if not self._is_under_way(gap) and not self._sources.ask_for(
                    gap, min(through, gap.through), now=now
                ):
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

    def _settle(self, gap: Gap, now: float) -> None:
        """Wait for what is under way, or have a gap fetched."""
        if not self._advance(gap, now) or self._is_under_way(gap) or self._has_to_queue(gap):
            return
        if self._is_on_disk(gap):
            return
        deadline = self._live_deadline(gap)
        if deadline is None:
            starts = (s.live_from for s in self._subscriptions if s.live_from is not None)
            through = min((s - 1 for s in starts if s > gap.position), default=gap.through)
        elif now < deadline:
            self._note_origin(gap, Origin.PUBLISHER)
            return
        else:
            through = gap.position | MAX_VI64
        if self._sources.is_busy(gap.asker, now=now) and now < gap.since + self._stall_wait:
            return
        self._fetch(gap, self._until_covered(gap, min(through, gap.through)), now)

    def _fetch(self, gap: Gap, through: int, now: float) -> None:
        """Ask a publisher, or give up if there is none and none is expected."""
        self._count_tries(gap)
        if gap.tries < _MAX_TRIES and self._sources.ask_for(gap, through, now=now):
            gap.tries += 1
            self._note_origin(gap, Origin.PUBLISHER)
        elif gap.tries < _MAX_TRIES and self._sources.may_ask_later:
            gap.denied.clear()
        else:
            self._give_up(gap, through, RangeMarker.UNKNOWN)

    def _count_tries(self, gap: Gap) -> None:
        """Begin to count anew where something else is missing."""
        if gap.asked_at != gap.position:
            gap.tries, gap.asked_at = 0, gap.position
            gap.denied.clear()

    def _is_under_way(self, gap: Gap) -> bool:
        is_coming = any(
            fetch.covers(gap.position) and fetch.peer.may_serve(gap.asker) for fetch in self.fetches
        )
        if is_coming:
            self._note_origin(gap, Origin.PUBLISHER)
        return is_coming

    def _is_on_disk(self, gap: Gap) -> bool:
        """Tell whether the disk has what is missing; read it if the delivery stands there.

        Not before: what is read too early takes the place of what others need, and may be
        gone again when its turn comes.
        """
        disk, position = self._disk, gap.position
        if disk.is_reading(position):
            return True
        if position not in disk.held:
            return False
        if gap.stop in (position, None):
            self._count_tries(gap)
            if gap.tries >= _MAX_TRIES:
                return False
            gap.tries += 1
            self._note_origin(gap, Origin.DISK)
            disk.read(position, gap.reading_end)
        return True

    def _note_origin(self, gap: Gap, origin: Origin) -> None:
        if self.on_origin is not None and isinstance(gap.owner, FetchDelivery):
            self.on_origin(gap.owner, origin)

    def _live_deadline(self, gap: Gap) -> float | None:
        """Return how long to wait for the upstream subscription, None if not at all."""
        group_id = gap.position >> 64
        deadline: float | None = None
        for subscription in self._subscriptions:
            live_from = subscription.live_from
            if live_from is None or gap.position < live_from:
                continue
            if not subscription.peer.may_serve(gap.asker):
                continue
            if subscription.is_open(group_id):
                return gap.since + self._stall_wait
            if not subscription.has_ended(group_id):
                deadline = gap.since + self._live_wait
        return deadline

    def _give_up(self, gap: Gap, through: int, marker: RangeMarker) -> None:
        first, last = gap.position, min(through, gap.through)
        if gap.start < first:
            # What came before it may be dropped again before the delivery takes it.
            before = Gap(gap.owner, gap.start, first - 1, asker=gap.asker, since=gap.since)
            before.is_filled = True
            self._gaps[before] = None
        gap.start = gap.position = last + 1
        if gap.start > gap.through:
            del self._gaps[gap]
        gap.owner.give_up(to_location(first), to_location(last), marker)

    def _advance(self, gap: Gap, now: float) -> bool:
        """Move a gap to the first position that is still unknown; tell whether there is one."""
        if gap not in self._gaps or self._is_passed(gap):
            self._gaps.pop(gap, None)
            return False
        seen_at = self._store.time_of_forwarding(gap.since, now=now)
        while gap.position <= gap.through:
            if gap.ids is not None:
                gap.position = gap.ids.next_position(gap.position)
                if gap.position > gap.through:
                    break
            match self._store.lookup(to_location(gap.position), now=seen_at):
                case Unknown():
                    return True
                case Absent(through=through):
                    gap.position = to_position(through) + 1
                case Found():
                    gap.position += 1
        gap.is_filled = True
        return False

    def _is_passed(self, gap: Gap) -> bool:
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

    def _is_taken(self, gap: Gap) -> bool:
        """Tell whether a subscription took what was filled in, or lost it once more."""
        if not isinstance(gap.owner, SubscriptionDelivery):
            return True
        if gap.owner.needs(gap.start >> 64):
            return False
        # Nothing happens if it was taken; if not, the subscriber has fallen behind.
        gap.owner.give_up(to_location(gap.start), to_location(gap.through))
        return True

    def _has_to_queue(self, gap: Gap) -> bool:
        """Tell whether enough other gaps of a subscription come before this one."""
        if gap.is_fetch:
            return False
        before = (g.owner is gap.owner and g.position < gap.position for g in self._gaps)
        return sum(before) >= _MAX_REFILLS

    def _until_covered(self, gap: Gap, through: int) -> int:
        """Cut a range where an upstream FETCH covers it already, or the disk has it."""
        starts = [
            fetch.position
            for fetch in self.fetches
            if gap.position < fetch.position <= through and fetch.peer.may_serve(gap.asker)
        ]
        on_disk = self._disk.held.next_start(gap.position)
        if on_disk is not None and on_disk <= through:
            starts.append(on_disk)
        return min((position - 1 for position in starts), default=through)


def _answers(fetch: UpstreamFetch, gap: Gap) -> bool:
    """Tell whether a FETCH asked for everything that a gap needs of its range."""
    if not fetch.peer.may_serve(gap.asker):
        return False
    return fetch.ids is None or (gap.ids is not None and gap.ids.is_within(fetch.ids))


def _horizon(owner: FetchDelivery, through: int) -> int:
    """Return how far a delivery will go: of what it needs of one Group others lack the same."""
    end = owner.terms.location_range.end
    if end is None or owner.terms.group_order is not GroupOrder.ASCENDING:
        return through
    return max(through, to_position(end))


def _is_descending(owner: Owner) -> bool:
    return isinstance(owner, FetchDelivery) and owner.terms.group_order is GroupOrder.DESCENDING
