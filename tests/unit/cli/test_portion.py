"""The demo's verdict: one byte, one token or one Object that differs is a failure."""

import pytest

from kvcs.cli.demo.messages import Compared, LayerPassed, Retrieved
from kvcs.cli.demo.portion import Portion

PUBLISHED = {0: ["a0", "a1"], 1: ["b0", "b1"]}


def outcome(**changes):
    fields = {
        "complete": True,
        "verified": 8,
        "rejected": 0,
        "missing": 0,
        "duplicate": 0,
        "excess": 0,
        "payload_bytes": 100,
        "first_layer_s": 0.1,
        "last_layer_s": 0.2,
        "layers": 2,
        "blocks": 2,
        "time_to_first_token": 0.3,
    }
    return Retrieved(**{**fields, **changes})


def portion(*, digests=PUBLISHED, compared=True, decodes=True, **changes):
    made = Portion("live", retrieved=outcome(**changes))
    for layer_index, blocks in digests.items():
        made.add(
            LayerPassed(layer_index=layer_index, size_bytes=1, digests=list(blocks), seconds=0.1)
        )
    if compared is not None:
        made.compared = Compared(is_equal=compared, tokens=32, time_to_first_token=0.5)
    made.judge(PUBLISHED, decodes=decodes)
    return made


def test_same_bytes_and_tokens_are_equal_and_whole():
    made = portion()

    assert made.is_equal
    assert made.is_whole


@pytest.mark.parametrize(
    "changes",
    [
        {"digests": {0: ["a0", "xx"], 1: ["b0", "b1"]}},
        {"digests": {0: ["a0"], 1: ["b0", "b1"]}},
        {"compared": False},
        {"compared": None},
        {"is_like_file": False},
    ],
    ids=["another block", "a block less", "other tokens", "no comparison", "unlike the file"],
)
def test_any_difference_is_unequal(changes):
    assert not portion(**changes).is_equal


def test_other_tokens_of_the_same_bytes_are_told_apart_from_other_bytes():
    assert portion(compared=False).has_equal_bytes
    assert not portion(digests={0: ["xx", "a1"], 1: ["b0", "b1"]}).has_equal_bytes


@pytest.mark.parametrize(
    "changes",
    [{"missing": 1}, {"rejected": 1}, {"complete": False}, {"digests": {0: ["a0", "a1"]}}],
    ids=["missing", "rejected", "incomplete", "a layer less"],
)
def test_anything_that_lacks_is_not_whole(changes):
    assert not portion(**changes).is_whole


def test_first_blocks_of_some_layers_are_compared_with_theirs():
    made = portion(digests={0: ["a0"]}, blocks=1, layers=1, compared=None, time_to_first_token=None)

    assert made.is_equal
    assert made.is_whole


def test_report_has_exactly_the_documented_keys():
    assert portion().report() == {
        "name": "live",
        "objects_verified": 8,
        "objects_rejected": 0,
        "objects_missing": 0,
        "objects_duplicate": 0,
        "objects_excess": 0,
        "bytes": 100,
        "first_layer_s": 0.1,
        "last_layer_s": 0.2,
    }


async def test_waiting_for_layers_ends_with_the_last_of_them():
    made = portion()

    await made.has_layers(2)

    assert sorted(made.digests) == [0, 1]
