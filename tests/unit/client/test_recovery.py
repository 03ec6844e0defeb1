import pytest

from kvcs.client.ledger import BlockState, TrackLedger
from kvcs.client.recovery import FetchCoverage, Refusal, judge_refusal, plan_fetches
from kvcs.errors import RequestErrorCode
from kvcs.moqt.codepoints import LocationFilterType, RangeMarker
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.names import Location

DIGEST = bytes(32)


def ledger_without(layers, blocks, held):
    ledger = TrackLedger(layers, blocks)
    for layer, block in held:
        ledger.accept(layer, block, DIGEST)
    return ledger


def places(ledger, state):
    return [(run.layer_index, run.first, run.end) for run in ledger.missing() if run.state is state]


def test_plan_takes_whole_layers_in_one_fetch():
    ledger = TrackLedger((2, 3, 4), 8)

    (plan,) = plan_fetches(ledger, segment_blocks=8, filter_ranges=0, layers=range(9))

    assert plan.parameters.location_filter == LocationFilter.absolute_start_group_end(2, 0, 2)
    assert plan.parameters.range_filters == ()
    assert not plan.filtered


def test_plan_splits_where_layers_are_not_wanted():
    plans = plan_fetches(
        TrackLedger((0, 2, 3), 8), segment_blocks=8, filter_ranges=0, layers=range(9)
    )

    assert [(plan.first_layer, plan.last_layer) for plan in plans] == [(0, 0), (2, 3)]


def test_plan_filters_the_first_blocks_when_the_peer_takes_filters():
    (plan,) = plan_fetches(
        TrackLedger((0, 1), 3), segment_blocks=8, filter_ranges=1, layers=range(9)
    )

    assert plan.filtered
    assert plan.parameters.range_filters[0].ranges[0].start == 0
    assert plan.parameters.range_filters[0].ranges[0].end == 2


def test_plan_takes_whole_layers_when_the_peer_takes_no_filters():
    (plan,) = plan_fetches(
        TrackLedger((0, 1), 3), segment_blocks=8, filter_ranges=0, layers=range(9)
    )

    assert not plan.filtered
    assert plan.parameters.range_filters == ()
    assert plan.blocks == range(3)


def test_plan_names_exactly_the_blocks_that_one_layer_lacks():
    ledger = ledger_without((0, 1), 4, [(0, 0), (0, 3), *((1, block) for block in range(4))])

    (plan,) = plan_fetches(ledger, segment_blocks=4, filter_ranges=0, layers=range(9))

    assert plan.parameters.location_filter == LocationFilter.absolute_range(0, 1, 0, 2)
    assert plan.covers(0, 1)
    assert not plan.covers(0, 3)
    assert not plan.covers(1, 1)


def test_plan_asks_for_every_hole_of_a_layer():
    ledger = ledger_without((0, 1), 5, [(0, 1), (0, 3), (1, 1), (1, 3)])

    plans = plan_fetches(ledger, segment_blocks=5, filter_ranges=0, layers=range(9))

    asked = {
        (layer, block)
        for plan in plans
        for layer in (0, 1)
        for block in plan.blocks
        if plan.covers(layer, block)
    }
    assert asked == {(layer, block) for layer in (0, 1) for block in (0, 2, 4)}
    assert all(
        plan.parameters.location_filter.kind is LocationFilterType.ABSOLUTE_RANGE for plan in plans
    )


def test_plan_shares_a_filter_over_layers_that_lack_the_same_middle():
    ledger = ledger_without((0, 1), 4, [(0, 0), (1, 0), (0, 3), (1, 3)])

    (plan,) = plan_fetches(ledger, segment_blocks=4, filter_ranges=4, layers=range(9))

    assert (plan.first_layer, plan.last_layer, plan.blocks) == (0, 1, range(1, 3))
    assert plan.filtered


def test_plan_for_one_layer_leaves_the_others():
    plans = plan_fetches(TrackLedger((0, 1), 2), segment_blocks=2, filter_ranges=0, layers=[1])

    assert [(plan.first_layer, plan.last_layer) for plan in plans] == [(1, 1)]


def test_plan_of_nothing_is_empty():
    ledger = ledger_without((0,), 1, [(0, 0)])

    assert plan_fetches(ledger, segment_blocks=1, filter_ranges=0, layers=range(9)) == []


@pytest.mark.parametrize(
    ("code", "subscribing", "expected"),
    [
        (RequestErrorCode.DOES_NOT_EXIST, True, Refusal.FETCH_INSTEAD),
        (RequestErrorCode.TIMEOUT, True, Refusal.FETCH_INSTEAD),
        (RequestErrorCode.DOES_NOT_EXIST, False, Refusal.FINAL),
        (RequestErrorCode.TIMEOUT, False, Refusal.RETRY),
        (RequestErrorCode.EXCESSIVE_LOAD, True, Refusal.LATER),
        (RequestErrorCode.INVALID_RANGE, False, Refusal.RETRY),
        (RequestErrorCode.UNAUTHORIZED, True, Refusal.FINAL),
        (RequestErrorCode.MALFORMED_TRACK, True, Refusal.FINAL),
        (0x7777, True, Refusal.RETRY),
    ],
)
def test_refusal_is_judged_by_its_code(code, subscribing, expected):
    assert judge_refusal(code, subscribing=subscribing) is expected


def test_coverage_gap_of_an_unfiltered_fetch_does_not_exist():
    ledger = TrackLedger((0, 1), 4)
    coverage = FetchCoverage(ledger, Location(0, 0), filtered=False)

    coverage.receive_object(0, 2)
    coverage.receive_object(1, 1)
    coverage.finish(Location(1, 4))

    assert places(ledger, BlockState.NON_EXISTENT) == [(0, 0, 2), (0, 3, 4), (1, 0, 1), (1, 2, 4)]


def test_coverage_gap_of_a_filtered_fetch_says_nothing():
    ledger = TrackLedger((0, 1), 4)
    coverage = FetchCoverage(ledger, Location(0, 0), filtered=True)

    coverage.receive_object(1, 1)
    coverage.finish(Location(1, 4))

    assert places(ledger, BlockState.NON_EXISTENT) == []


def test_coverage_marker_speaks_for_its_range_only():
    ledger = TrackLedger((0, 1), 3)
    coverage = FetchCoverage(ledger, Location(0, 0), filtered=True)

    coverage.receive_object(0, 0)
    coverage.receive_marker(RangeMarker.UNKNOWN, Location(1, 0))
    coverage.receive_marker(RangeMarker.TIMED_OUT, Location(1, 2))

    assert places(ledger, BlockState.UNKNOWN) == [(0, 1, 3), (1, 0, 1)]
    assert places(ledger, BlockState.TIMED_OUT) == [(1, 1, 3)]


def test_coverage_of_a_range_far_beyond_the_track_is_cheap():
    ledger = TrackLedger((0,), 2)
    coverage = FetchCoverage(ledger, Location(0, 0), filtered=False)

    coverage.receive_marker(RangeMarker.NON_EXISTENT, Location(2**63, 2**63))

    assert places(ledger, BlockState.NON_EXISTENT) == [(0, 0, 2)]
