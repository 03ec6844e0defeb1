"""Objects of a subscription that travel in datagrams: each once, or not at all.

A datagram is not worth waiting for. One that was dropped from the store, has expired or is
beyond its delivery timeout is left out, and of a Group no more than `MAX_DATAGRAM_BACKLOG`
wait for a subscriber that is slow: the oldest are dropped first. Nobody is asked for them.

Source: MOQT draft 22, Sections 5.2, 8 and 11.2.
"""

from typing import Final

from kvcs.moqt.track.cursor import Cursor
from kvcs.moqt.track.delivery import DeliveryTerms
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.track.timeouts import DeliveryTimeouts
from kvcs.moqt.wire.filters import LocationRange
from kvcs.moqt.wire.object import Object

__all__ = ("MAX_DATAGRAM_BACKLOG", "next_datagram")

# More than a round trip brings at any sensible rate.
MAX_DATAGRAM_BACKLOG: Final = 256


def next_datagram(
    store: TrackStore,
    cursor: Cursor,
    *,
    terms: DeliveryTerms,
    wanted: LocationRange,
    timeouts: DeliveryTimeouts,
    now: float,
) -> Object | None:
    """Return the next Object to send in a datagram, and count those before it as dealt with.

    Args:
        store: The Track.
        cursor: Where the subscription is among the Objects of a Group that have no Subgroup.
        terms: What the subscriber asked for.
        wanted: Locations to deliver.
        timeouts: Delivery timeouts.
        now: Monotonic seconds.
    """
    ids = cursor.subgroup.ids
    if len(ids) > MAX_DATAGRAM_BACKLOG:
        cursor.last_id = max(cursor.last_id, ids[-MAX_DATAGRAM_BACKLOG] - 1)
    while (object_id := cursor.next_id()) is not None:
        cursor.advance(object_id)
        obj = store.held(cursor.subgroup.group_id, object_id, now=now)
        if obj is None or obj.location not in wanted or not terms.admits(obj):
            continue
        if not timeouts.is_datagram_over(obj, now=now):
            return obj
    return None
