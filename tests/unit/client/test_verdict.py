from kvcs.client.ledger import BlockState, TrackLedger
from kvcs.client.verdict import MissingReason, missing_ranges, verified_prefix

DIGEST = bytes(32)


def verified(layers, blocks, held):
    ledger = TrackLedger(layers, blocks)
    for layer, block in held:
        ledger.accept(layer, block, DIGEST)
    return ledger


def test_verified_prefix_ends_in_the_segment_with_the_first_hole():
    whole = verified((0,), 2, [(0, 0), (0, 1)])
    holed = verified((0,), 3, [(0, 0), (0, 2)])

    assert verified_prefix([[whole, whole], [holed, whole_of(3)]]) == 3
    assert verified_prefix([[holed], [whole]]) == 1
    assert verified_prefix([[whole], [whole]]) == 4
    assert verified_prefix([]) == 0


def whole_of(blocks):
    return verified((0,), blocks, [(0, block) for block in range(blocks)])


def test_missing_ranges_name_the_gravest_reason_of_both_components():
    k = verified((0, 1), 4, [(0, 0), *((1, block) for block in range(4))])
    v = whole_of(4)
    v = verified((0, 1), 4, [(0, 0), (0, 1), (0, 3), *((1, block) for block in range(4))])
    k.mark(0, range(1, 3), BlockState.UNKNOWN)
    v.mark(0, range(2, 3), BlockState.REJECTED)

    pending = (MissingReason.DEADLINE, MissingReason.DEADLINE)
    ranges = [
        (r.segment, r.layer, r.first, r.end, r.reason) for r in missing_ranges(7, (k, v), pending)
    ]

    assert ranges == [
        (7, 0, 1, 2, MissingReason.UNKNOWN),
        (7, 0, 2, 3, MissingReason.REJECTED),
        (7, 0, 3, 4, MissingReason.DEADLINE),
    ]


def test_missing_ranges_of_whole_tracks_are_empty():
    assert list(missing_ranges(0, (whole_of(2),), (MissingReason.DEADLINE,))) == []
