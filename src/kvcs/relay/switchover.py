"""What becomes of running subscriptions when their publisher is lost.

Theory of operation. A `Switchover` belongs to one `Supply`. When an upstream subscription
ends before the Track does, what it had begun to deliver may lack something. So the relay
looks for another publisher, or the same one that came back, for a bounded time, and
subscribes there. The Objects between what had arrived and what the new subscription will
bring are fetched; deliveries take them as they come, every Group in its order. Where nobody
publishes the Track live any more but somebody still holds it, the rest is fetched, and if
that reaches the end, the subscriptions end as if the publisher had stayed. Otherwise they
end with INTERNAL_ERROR, and so they do when nobody can give what is missing.

Source: MOQT draft 22, Sections 7.4.1 and 7.6.1.
"""

from collections.abc import Callable
from typing import Final, Protocol

from kvcs.errors import PublishDoneCode
from kvcs.moqt.codepoints import RangeMarker
from kvcs.moqt.track.interval import MAX_POSITION, to_location
from kvcs.moqt.track.store import TrackStore
from kvcs.names import Location
from kvcs.relay.upstream import UpstreamState, UpstreamSubscription

__all__ = ("Backlog", "Switchover", "missing_runs")

# How often a publisher is looked for without news of one.
_RETRY: Final = 1.0


def missing_runs(store: TrackStore, since: int, through: int) -> list[tuple[int, int]]:
    """Return what was never received of a range of positions, inclusive, in order.

    Only ends of Groups and whole Groups: a hole that something follows in its Group is seen by
    the deliveries. What was received and dropped again is not missing.
    """
    runs: list[tuple[int, int]] = []

    def add(start: int, last: int) -> None:
        last = min(last, through)
        if start <= last and not store.is_absent(to_location(start), to_location(last)):
            runs.append((start, last))

    position = since
    for group_id in sorted(store.known_groups()):
        first = group_id << 64
        largest_id = max((s.largest_id for s in store.subgroups(group_id)), default=-1)
        if largest_id < 0 or first > through or group_id < since >> 64:
            continue
        add(position, first - 1)
        end = store.group_end(group_id)
        is_whole = end is not None and end.object_id <= largest_id
        position = max(position, (group_id + 1) << 64 if is_whole else first | (largest_id + 1))
    add(position, through)
    return runs


class _Supply(Protocol):
    """What a switchover needs of the publishers of its Track."""

    store: TrackStore
    subscriptions: list[UpstreamSubscription]

    def is_wanted(self) -> bool:
        """Tell whether a subscription runs."""
        ...

    def seek_publisher(self, *, now: float) -> bool:
        """Subscribe for the running subscriptions; False if there is nobody for one of them."""
        ...

    def fetch_rest(self, start: int, *, now: float) -> bool:
        """Fetch from a position to the end, if that is not under way; False if nobody can."""
        ...

    def wait_for_backlog(self, backlog: "Backlog", start: int, through: int, *, now: float) -> None:
        """Have a range filled for the running subscriptions."""
        ...

    def end_subscriptions(self, code: PublishDoneCode, *, forced: bool = False, now: float) -> None:
        """End the subscriptions that no upstream subscription serves, or all, after what came."""
        ...

    def schedule(self, deadline: float, alarm: Callable[[float], None]) -> None:
        """Call `alarm` with the time when `deadline` has passed."""
        ...


class Backlog:
    """What the running subscriptions of one Track lack together; gaps are filled for it."""

    def __init__(self, is_wanted: Callable[[], bool], on_lost: Callable[[], None]) -> None:
        """Lack nothing yet.

        Args:
            is_wanted: Tells whether anybody still waits.
            on_lost: Called when a part of it cannot be had.
        """
        self._is_wanted = is_wanted
        self._on_lost = on_lost

    @property
    def finished(self) -> bool:
        """Nobody waits any more."""
        return not self._is_wanted()

    def needs(self, group_id: int) -> bool:  # noqa: ARG002 - as deliveries have it
        """Tell that nothing is to be kept for it: its Objects go to deliveries at once."""
        return False

    def give_up(
        self,
        start: Location,  # noqa: ARG002 - as deliveries have it
        through: Location,  # noqa: ARG002
        marker: RangeMarker = RangeMarker.UNKNOWN,  # noqa: ARG002
    ) -> None:
        """Note that a part cannot be had."""
        self._on_lost()


class Switchover:
    """Between the loss of a publisher and the next one."""

    __slots__ = ("_bridge", "_deadline", "_final", "_since", "_supply", "_wait")

    def __init__(self, supply: _Supply, *, wait: float) -> None:
        """Have lost nothing yet.

        Args:
            supply: The publishers of the Track.
            wait: Seconds to wait for a publisher.
        """
        self._supply = supply
        self._wait = wait
        self._since: int | None = None
        self._deadline: float | None = None
        self._bridge: tuple[int, int] | None = None
        self._final: PublishDoneCode | None = None

    def __repr__(self) -> str:
        return f"<Switchover since={self._since} deadline={self._deadline}>"

    @property
    def is_waiting(self) -> bool:
        """Whether a publisher may still come."""
        return self._deadline is not None

    def begin(self, subscription: UpstreamSubscription, *, may_return: bool, now: float) -> None:
        """Note that a subscription ended before the Track did.

        Args:
            subscription: The subscription.
            may_return: The publisher, or its successor, may serve the Track again;
                otherwise only another one helps.
            now: Monotonic seconds.
        """
        if not self._supply.is_wanted():
            return
        starts = [subscription.live_from, self._since, self._bridge[0] if self._bridge else None]
        self._since = min((start for start in starts if start is not None), default=None)
        self._bridge = self._final = None
        has_publisher = self._supply.seek_publisher(now=now)
        if self._span(now):
            if not has_publisher:
                # There is one, but not for everybody (`Peer.may_serve`).
                self._supply.end_subscriptions(PublishDoneCode.INTERNAL_ERROR, now=now)
        elif not has_publisher and not may_return:
            self._fail(now)
        elif self._deadline is None:
            self._deadline = now + self._wait
            self._supply.schedule(self._deadline, self._expire)
            self._look(now)

    def established(self, *, now: float) -> None:
        """Note that a subscription forwards: fetch what lies before it."""
        self._span(now)

    def ended(self, code: PublishDoneCode, *, now: float) -> None:
        """Note that the Track is over: subscriptions end when nothing is missing."""
        if self._is_bridged():
            self._finish(code, now)
        else:
            self._final = code

    def fetched(self, *, now: float) -> None:
        """Note that a FETCH ended: what it brought may be all there is."""
        if self._deadline is not None and self._is_complete():
            self._finish(PublishDoneCode.TRACK_ENDED, now)
        elif self._is_bridged():
            self._bridge = None
            if self._final is not None:
                self._finish(self._final, now)

    def _is_bridged(self) -> bool:
        return self._bridge is None or not missing_runs(self._supply.store, *self._bridge)

    def _span(self, now: float) -> bool:
        """Have fetched what was missed before a subscription that is Established, if one is."""
        subscriptions = self._supply.subscriptions
        established = [s for s in subscriptions if s.state is UpstreamState.ESTABLISHED]
        if not established:
            return False
        self._deadline = None
        starts = [s.live_from for s in established if s.live_from is not None]
        if starts and self._since is not None:
            self._bridge, self._since = (self._since, min(starts) - 1), None
            backlog = Backlog(self._supply.is_wanted, lambda: self._fail_later(now))
            for start, through in missing_runs(self._supply.store, *self._bridge):
                self._supply.wait_for_backlog(backlog, start, through, now=now)
        return True

    def _look(self, now: float) -> None:
        """Look for a publisher again, and fetch what can be had without one."""
        if self._deadline is None or now >= self._deadline:
            return
        if not self._supply.is_wanted():
            self._reset()
            return
        if not self._supply.seek_publisher(now=now) and self._since is not None:
            missing = missing_runs(self._supply.store, self._since, MAX_POSITION)
            if missing:
                self._supply.fetch_rest(missing[0][0], now=now)
            else:
                self.fetched(now=now)
        self._supply.schedule(now + _RETRY, self._look)

    def _is_complete(self) -> bool:
        store = self._supply.store
        return (
            store.end is not None
            and self._since is not None
            and not missing_runs(store, self._since, MAX_POSITION)
        )

    def _expire(self, now: float) -> None:
        if self._deadline is not None and now >= self._deadline:
            self._fail(now)

    def _fail_later(self, now: float) -> None:
        """Fail at the next opportunity: gaps are being looked through."""
        self._supply.schedule(now, self._fail_to_bridge)

    def _fail_to_bridge(self, now: float) -> None:
        if not self._is_bridged():
            self._bridge = None
            self._supply.end_subscriptions(PublishDoneCode.INTERNAL_ERROR, forced=True, now=now)

    def _fail(self, now: float) -> None:
        self._finish(PublishDoneCode.INTERNAL_ERROR, now)

    def _finish(self, code: PublishDoneCode, now: float) -> None:
        self._reset()
        self._supply.end_subscriptions(code, now=now)

    def _reset(self) -> None:
        self._since = self._deadline = self._bridge = self._final = None
