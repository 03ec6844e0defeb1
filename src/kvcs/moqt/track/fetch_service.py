"""One FETCH that is served from a store: its Objects, and FETCH_OK as soon as it can be said.

Theory of operation. The delivery begins at once. FETCH_OK names the End Location, and that
may have to be learned from a publisher: where a range goes to the end of a Group, it ends
with the last Object of that Group. So the service watches the store until this is known,
and answers at the latest when the delivery has sent its last Object. Once a FETCH is
answered it can only be reset; before, it can be refused.

Source: MOQT draft 22, Sections 9.11 and 9.12.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kvcs.errors import RequestErrorCode, StreamResetCode
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.session import Session
from kvcs.moqt.track.fetch_delivery import FetchDelivery
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES
from kvcs.names import Location
from kvcs.varint import MAX_VI64

__all__ = ("FetchService",)


class FetchService:
    """A FETCH that is served here.

    Attributes:
        store: The Track.
        delivery: What it is owed.
    """

    __slots__ = ("_answered", "_session", "_unwatch", "_with_properties", "delivery", "store")

    def __init__(
        self, session: Session, store: TrackStore, delivery: FetchDelivery, *, with_properties: bool
    ) -> None:
        """Take over a FETCH; `answer` is due next.

        Args:
            session: The session of the FETCH.
            store: The Track.
            delivery: What it is owed.
            with_properties: Whether FETCH_OK carries the Track Properties, which may have to
                be learned like its End Location.
        """
        self.store = store
        self.delivery = delivery
        self._session = session
        self._with_properties = with_properties
        self._answered = False
        self._unwatch: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<FetchService answered={self._answered} {self.delivery}>"

    @property
    def request_id(self) -> RequestId:
        """The FETCH."""
        return self.delivery.request_id

    def answer(self, *, can_learn: bool, now: float) -> None:
        """Send FETCH_OK when its End Location is known, at the latest with the last Object.

        Args:
            can_learn: Whether somebody may tell more than the store does.
            now: Monotonic seconds.
        """
        if self._end() is not None or not can_learn:
            self._accept(now)
            return

        def look_again() -> None:
            if self._end() is not None:
                self._accept(now)

        self._unwatch = self.store.watch(look_again)
        self.delivery.on_finished = partial(self._accept, now)

    def update(self, subscriber_priority: int | None, *, now: float) -> None:
        """Accept a REQUEST_UPDATE; only the subscriber priority of a FETCH can change."""
        terms = self.delivery.terms
        if subscriber_priority is not None:
            terms = replace(terms, subscriber_priority=subscriber_priority)
        self._session.accept_update(self.request_id, now=now)
        self.delivery.change(terms)

    def fail(
        self, error: RequestErrorCode, reset: StreamResetCode, *, reason: str = "", now: float
    ) -> None:
        """End what cannot be served: REQUEST_ERROR or a reset, whichever is due."""
        if self._answered and self.delivery.finished:
            return
        self.release()
        if self._answered:
            self.delivery.fail(self._session, now=now, code=reset)
            return
        self.delivery.cancel(self._session, now=now, code=reset)
        self._session.reject(self.request_id, error, reason=reason, now=now)

    def release(self) -> None:
        """Wait for nothing any more."""
        self._stop_watching()
        self.delivery.on_finished = None

    def _accept(self, now: float) -> None:
        self._stop_watching()
        if self._answered or not self._session.is_active(self.request_id):
            return
        self._answered = True
        end = self._end() or self.delivery.terms.location_range.end
        assert end is not None
        self._session.accept_fetch(
            self.request_id,
            end_of_track=end == self.store.end,
            end_location=end,
            properties=self.store.properties if self._with_properties else EMPTY_PROPERTIES,
            now=now,
        )

    def _end(self) -> Location | None:
        """Return the End Location, None while it must be learned.

        A range to the end of a Group ends with the last Object of that Group (Section 9.12),
        a status Object included; where the Group has none from the start of the range on,
        nothing else can be named than what was asked for.
        """
        location_range = self.delivery.terms.location_range
        end = location_range.end
        if end is None or end.object_id < MAX_VI64:
            return end
        known = self.store.group_end(end.group_id)
        if known is None:
            return end if self.store.is_absent(Location(end.group_id, 0), end) else None
        return max(known, location_range.start)

    def _stop_watching(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
