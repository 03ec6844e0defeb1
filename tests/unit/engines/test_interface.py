"""How prefills are divided into passes."""

import pytest

from kvcs.engines.interface import NO_SPLIT, PassPlan, PrefixLost


@pytest.mark.parametrize(
    ("plan", "start", "end", "expected"),
    [
        (NO_SPLIT, 0, 10, [(0, 10)]),
        (NO_SPLIT, 4, 5, [(4, 5)]),
        (NO_SPLIT, 5, 5, []),
        (PassPlan(pass_tokens=4), 0, 10, [(0, 4), (4, 8), (8, 10)]),
        (PassPlan(pass_tokens=4), 3, 10, [(3, 7), (7, 10)]),
        (PassPlan(pass_tokens=40), 0, 10, [(0, 10)]),
        (PassPlan(split_at=8), 0, 10, [(0, 8), (8, 10)]),
        (PassPlan(split_at=8), 8, 10, [(8, 10)]),
        (PassPlan(split_at=10), 0, 10, [(0, 10)]),
        (PassPlan(pass_tokens=3, split_at=7), 0, 10, [(0, 3), (3, 6), (6, 7), (7, 10)]),
    ],
)
def test_passes_cover_the_range_once_and_in_order(plan, start, end, expected):
    assert plan.passes(start, end) == expected


def test_pass_plan_refuses_passes_without_tokens():
    with pytest.raises(ValueError, match="at least one token"):
        PassPlan(pass_tokens=0)


def test_prefix_lost_names_layer_and_reason():
    assert str(PrefixLost(7, "deadline")) == "layer 7 of the prefix is missing: deadline"
