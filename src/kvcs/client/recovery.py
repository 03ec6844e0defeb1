"""What to ask for next: the exact FETCHes for what is missing, and what a refusal means.

Everything here is a pure function of the ledger and of the peer's answer. Who sends the
requests is `kvcs.client.track`.

Source:
    KVCS, "Retrieval of Completed Caches" and "Verification and Recovery".
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from kvcs.client.ledger import BlockState, TrackLedger
from kvcs.errors import RequestErrorCode
from kvcs.moqt.codepoints import GroupOrder, ParameterType, RangeMarker
from kvcs.moqt.wire.filters import LocationFilter, Range, RangeFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import Location

__all__ = (
    "FetchCoverage",
    "FetchPlan",
    "Refusal",
    "judge_refusal",
    "object_filter",
    "plan_fetches",
)


class Refusal(Enum):
    """What a refused request leaves to try."""

    FETCH_INSTEAD = auto()  # no live subscription, but whoever refused may hold the Objects
    RETRY = auto()  # a passing state of the peer
    LATER = auto()  # the peer does as much as it will at a time, perhaps for this very consumer
    FINAL = auto()  # asking this peer again is futile


_FETCH_INSTEAD: Final = frozenset((RequestErrorCode.DOES_NOT_EXIST, RequestErrorCode.TIMEOUT))
_RETRY: Final = frozenset(
    (
        RequestErrorCode.INTERNAL_ERROR,
        RequestErrorCode.TIMEOUT,
        RequestErrorCode.GOING_AWAY,
        RequestErrorCode.INVALID_RANGE,
    )
)


def judge_refusal(code: int, *, subscribing: bool) -> Refusal:
    """Say what to do after REQUEST_ERROR.

    Args:
        code: The code as sent; one that this draft does not know counts as INTERNAL_ERROR.
        subscribing: The refused request was a SUBSCRIBE, not a FETCH.
    """
    if code not in RequestErrorCode:
        return Refusal.RETRY
    if subscribing and code in _FETCH_INSTEAD:
        return Refusal.FETCH_INSTEAD
    if code == RequestErrorCode.EXCESSIVE_LOAD:
        return Refusal.LATER
    return Refusal.RETRY if code in _RETRY else Refusal.FINAL


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """One FETCH for a run of layers.

    Attributes:
        first_layer: First layer of the FETCH.
        last_layer: Last layer, inclusive.
        blocks: Blocks that are wanted of each of these layers.
        filtered: Blocks are narrowed by an OBJECTID_FILTER, so an unmarked gap means nothing.
        parameters: Parameters of the FETCH, without priority and tokens.
    """

    first_layer: int
    last_layer: int
    blocks: range
    filtered: bool
    parameters: Parameters

    def covers(self, layer_index: int, block_index: int) -> bool:
        """Tell whether the FETCH asks for that block."""
        return self.first_layer <= layer_index <= self.last_layer and block_index in self.blocks


def plan_fetches(
    ledger: TrackLedger,
    *,
    segment_blocks: int,
    filter_ranges: int,
    layers: Container[int],
) -> list[FetchPlan]:
    """Plan the FETCHes that bring exactly what the ledger misses.

    Neighbouring layers that miss the same blocks share one FETCH, narrowed by OBJECTID_FILTER
    where the peer takes one. A peer without filters is asked for whole layers when their
    first n blocks are missing, and the excess is discarded; blocks in the middle of a layer
    are named by an exact range, one FETCH per layer.

    Args:
        ledger: What is wanted and verified.
        segment_blocks: Blocks of the segment as published.
        filter_ranges: MAX_FILTER_RANGES of the peer; 0 forbids range filters.
        layers: Plan for these layers alone.
    """
    plans: list[FetchPlan] = []
    holes = (hole for hole in ledger.holes() if hole[0] in layers)
    for first, last, blocks in _merge(holes):
        whole = blocks == range(segment_blocks)
        if first == last and not whole:
            plans.append(_one_layer(first, blocks))
        elif whole or blocks.start == 0 or filter_ranges > 0:
            plans.append(_layers(first, last, blocks, filtered=not whole and filter_ranges > 0))
        else:
            plans += (_one_layer(layer, blocks) for layer in range(first, last + 1))
    return plans


def object_filter(blocks: range) -> RangeFilter:
    """Return the OBJECTID_FILTER for `blocks`."""
    ranges = (Range(blocks.start, blocks.stop - 1),)
    return RangeFilter(kind=ParameterType.OBJECTID_FILTER, ranges=ranges)


def _merge(holes: Iterator[tuple[int, range]]) -> Iterator[tuple[int, int, range]]:
    """Join holes of the same blocks in neighbouring layers that have no other hole."""
    by_layer: dict[int, list[range]] = {}
    for layer_index, blocks in holes:
        by_layer.setdefault(layer_index, []).append(blocks)
    first: int | None = None
    last = -1
    shared: Sequence[range] = ()
    for layer_index, ranges in (*by_layer.items(), (-1, [])):
        if first is not None and layer_index == last + 1 and len(ranges) == 1 and ranges == shared:
            last = layer_index
            continue
        if first is not None:
            yield from ((first, last, blocks) for blocks in shared)
        first, last, shared = layer_index, layer_index, ranges


def _one_layer(layer_index: int, blocks: range) -> FetchPlan:
    location = LocationFilter.absolute_range(layer_index, blocks.start, 0, blocks.stop - 1)
    parameters = Parameters(location_filter=location, group_order=GroupOrder.ASCENDING)
    return FetchPlan(layer_index, layer_index, blocks, filtered=False, parameters=parameters)


def _layers(first: int, last: int, blocks: range, *, filtered: bool) -> FetchPlan:
    parameters = Parameters(
        location_filter=LocationFilter.absolute_start_group_end(first, 0, last - first),
        group_order=GroupOrder.ASCENDING,
        range_filters=(object_filter(blocks),) if filtered else (),
    )
    return FetchPlan(first, last, blocks, filtered=filtered, parameters=parameters)


class FetchCoverage:
    """What the gaps and markers of one ascending fetch stream say about missing blocks.

    In an unfiltered fetch an unmarked gap says that nothing exists there; in a filtered one it
    says nothing. An End of Range record speaks for itself.

    Args:
        ledger: Where the reasons are noted.
        start: First Location of the fetch.
        filtered: The request carried a range filter.
    """

    __slots__ = ("_filtered", "_group_id", "_ledger", "_object_id")

    def __init__(self, ledger: TrackLedger, start: Location, *, filtered: bool) -> None:
        self._ledger = ledger
        self._filtered = filtered
        # The Location that is expected next; in plain integers, since each Object moves it.
        self._group_id = start.group_id
        self._object_id = start.object_id

    def receive_object(self, group_id: int, object_id: int) -> None:
        """Take the Location of the next Object of the stream."""
        if object_id != self._object_id or group_id != self._group_id:
            location = Location(group_id, object_id)
            if location > self._next and not self._filtered:
                self._mark(location, BlockState.NON_EXISTENT)
            self._group_id = group_id
        self._object_id = object_id + 1

    def receive_marker(self, marker: RangeMarker, location: Location) -> None:
        """Take an End of Range record; `location` is the last one of its range."""
        after = Location(location.group_id, location.object_id + 1)
        if after > self._next:
            self._mark(after, _MARKED[marker])
            self._group_id, self._object_id = after.group_id, after.object_id

    def finish(self, end: Location) -> None:
        """Take the FIN of the stream; `end` is the End Location of the fetch, inclusive."""
        if end >= self._next and not self._filtered:
            self._mark(Location(end.group_id, end.object_id + 1), BlockState.NON_EXISTENT)

    @property
    def _next(self) -> Location:
        return Location(self._group_id, self._object_id)

    def _mark(self, end: Location, state: BlockState) -> None:
        """Note `state` for what is missing from the expected Location up to before `end`."""
        for layer_index in self._ledger.layers:
            if self._group_id <= layer_index <= end.group_id:
                first = self._object_id if layer_index == self._group_id else 0
                last = end.object_id if layer_index == end.group_id else self._ledger.blocks
                self._ledger.mark(layer_index, range(first, last), state)


_MARKED: Final = {
    RangeMarker.NON_EXISTENT: BlockState.NON_EXISTENT,
    RangeMarker.UNKNOWN: BlockState.UNKNOWN,
    RangeMarker.TIMED_OUT: BlockState.TIMED_OUT,
}
