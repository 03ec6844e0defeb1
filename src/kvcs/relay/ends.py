"""Where a Group or the Track ends, when nobody said so.

End of Group and End of Track travel on subscriptions only. A relay that began to receive in
the middle of a Group, or that only fetched, may hold every Object and still not know it; then
it could not go on listing the Track when the publisher has left. `Ends` asks the publisher
for what little is missing: the rest of the Group in which a subscription began, and what
comes behind the last Object of a Track that was fetched from its beginning.

Source: MOQT draft 22, Sections 3.2, 9.12 and 11.1.1.
"""

from collections.abc import Callable

from kvcs.moqt.track.contents import Absent, Found, Unknown
from kvcs.moqt.track.interval import IntervalSet, to_location, to_position
from kvcs.moqt.track.store import TrackStore
from kvcs.names import Location
from kvcs.relay.disk.track import DiskTrack
from kvcs.relay.gaps import Gaps
from kvcs.relay.upstream import UpstreamSubscription
from kvcs.relay.upstream_status import UpstreamStatus
from kvcs.varint import MAX_VI64

__all__ = ("Ends",)


class Ends:
    """What is still to be learned about the ends of one Track."""

    def __init__(
        self,
        store: TrackStore,
        gaps: Gaps,
        disk: DiskTrack,
        *,
        ask: Callable[[int, int, float], bool],
        ask_status: Callable[[float], UpstreamStatus | None],
    ) -> None:
        """Know nothing yet.

        Args:
            store: What is known.
            gaps: What is being fetched.
            disk: What the disk has.
            ask: Sends a FETCH for positions from the first to the second, inclusive.
            ask_status: Asks a publisher how far the Track goes.
        """
        self._store = store
        self._gaps = gaps
        self._disk = disk
        self._ask = ask
        self._ask_status = ask_status
        self._status: UpstreamStatus | None = None
        self._asked_in = self._asked_behind = -1
        self._place = 0
        self._filtered = IntervalSet()

    def close_join_group(self, subscription: UpstreamSubscription, *, now: float) -> bool:
        """Learn where the Group ended in the middle of which a subscription began.

        Returns:
            Whether there is no more to do.
        """
        start, largest = subscription.live_from, self._store.largest
        if start is None or largest is None:
            return False
        group_id = start >> 64
        if not start & MAX_VI64 or self._store.group_end(group_id) is not None:
            return True
        if self._ended_at_join(start - 1, now):
            self._store.mark_absent(to_location(start), to_location(start | MAX_VI64))
            return True
        if largest.group_id <= group_id or subscription.is_open(group_id):
            return False
        last = max((s.largest_id for s in self._store.subgroups(group_id)), default=-1)
        start = max(start, group_id << 64 | (last + 1))
        if not any(fetch.covers(start) for fetch in self._gaps.fetches):
            self._ask(start, start | MAX_VI64, now)
        return True

    def seek_track_end(self, *, now: float) -> None:
        """Ask for the ends that are missing of a Track that is held from its beginning."""
        held = self._store.groups()
        if self._store.end is not None or not held or self._gaps.fetches:
            return
        start = self._first_unknown(now)
        group_id = start >> 64
        if group_id >= held[-1]:
            if held[-1] > self._asked_behind:
                self._asked_behind = held[-1]
                self._status = self._ask_status(now)
            return
        if group_id not in held or group_id <= self._asked_in or group_id in self._filtered:
            return
        through = start | MAX_VI64
        run = self._store.lookup(to_location(start), now=now)
        # Only behind the Objects of a Group: a hole between them is somebody's to ask for.
        if isinstance(run, Unknown) and to_position(run.through) == through:
            self._asked_in = group_id
            self._ask(start, through, now)

    def note_filtered(self, first_group: int, last_group: int) -> None:
        """Note that not all was wanted of these Groups, inclusive: no end is sought in them."""
        self._filtered.add(first_group, last_group)

    def status_answered(self, status: UpstreamStatus, *, now: float) -> None:
        """Fetch what lies between the last Object and Largest, if that is nothing but an end."""
        held, largest = self._store.groups(), self._store.largest
        if status is not self._status:
            return
        self._status = None
        if not held or largest is None or self._store.end is not None:
            return
        start = self._first_unknown(now)
        if largest == Location(held[-1] + 1, 0) and start <= to_position(largest):
            self._ask(start, to_position(largest), now)

    def _ended_at_join(self, largest: int, now: float) -> bool:
        """Tell whether the Object that was Largest when a subscription began ended its Group.

        It does exist, so that an unfiltered FETCH that leaves its place empty says that it
        is a status Object, the only kind that no FETCH carries (Section 3.2).
        """
        return isinstance(self._store.lookup(to_location(largest), now=now), Absent)

    def _first_unknown(self, now: float) -> int:
        """Go on to the first position of which nothing is known.

        What was dropped since it was passed does not matter: whether a Track is complete is
        not decided here.
        """
        while True:
            match self._store.lookup(to_location(self._place), now=now):
                case Found():
                    self._place += 1
                case Absent(through=through):
                    self._place = to_position(through) + 1
                case Unknown():
                    run = self._disk.held.find(self._place)
                    if run is None:
                        return self._place
                    self._place = run[1] + 1
