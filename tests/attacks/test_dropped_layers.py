"""A relay drops layers of a sealed publication, signed or not."""

import pytest
from tests.attacks.liar import BLOCKS, LAYERS, K, Liar, LiveLiar, V
from tests.attacks.sealed_copy import CONSUMER, DEMANDING, SEALED, SIGNED, WANTED, attack, genuine

from kvcs.client import MissingReason

KINDS = pytest.mark.parametrize(
    ("config", "demands"), [(SEALED, CONSUMER), (SIGNED, DEMANDING)], ids=["sealed", "signed too"]
)


@KINDS
@pytest.mark.parametrize("kind", [Liar, LiveLiar])
@pytest.mark.parametrize("layer", [0, 2, LAYERS - 1])
@pytest.mark.parametrize("tracks", [(K,), (K, V)], ids=["one track", "both"])
def test_a_dropped_layer_is_missing(config, demands, kind, layer, tracks):
    copy = genuine(config=config)
    for track in tracks:
        copy.remove(track, lambda obj: obj.group_id == layer)

    outcome = attack(copy, kind, config=demands)

    verdict = outcome.verdict
    assert [(run.layer, run.first, run.end) for run in verdict.missing] == [(layer, 0, BLOCKS)]
    # Who leaves Objects out of a FETCH says that they do not exist: it cannot be told from a lie.
    assert {run.reason for run in verdict.missing} == {MissingReason.NON_EXISTENT}
    assert verdict.verified == WANTED - len(tracks) * BLOCKS
    assert verdict.verified_prefix_blocks == 0
    assert verdict.rejected == {}
    assert outcome.layers == layer
    assert verdict.authenticated == (config is SIGNED)


@KINDS
def test_a_dropped_block_leaves_those_before_it(config, demands):
    copy = genuine(config=config)
    copy.remove(K, lambda obj: (obj.group_id, obj.object_id) == (2, 1))

    verdict = attack(copy, config=demands).verdict

    (run,) = verdict.missing
    assert (run.layer, run.first, run.end) == (2, 1, 2)
    assert run.reason is MissingReason.NON_EXISTENT
    assert verdict.verified_prefix_blocks == 1
    assert verdict.rejected == {}
