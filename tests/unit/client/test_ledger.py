import pytest

from kvcs.client.ledger import BlockState, MissingRun, TrackLedger
from kvcs.errors import IntegrityError

DIGEST = bytes(range(32))
OTHER = bytes(32)


def test_ledger_starts_with_everything_missing():
    ledger = TrackLedger((1, 3), 4)

    assert ledger.remaining == 8
    assert list(ledger.missing()) == [
        MissingRun(1, 0, 4, BlockState.PENDING),
        MissingRun(3, 0, 4, BlockState.PENDING),
    ]
    assert not ledger.is_wanted(2, 0)
    assert not ledger.is_wanted(1, 4)


def test_ledger_accept_reports_the_last_block_of_a_layer():
    ledger = TrackLedger((0,), 2)

    assert not ledger.accept(0, 1, DIGEST)
    assert ledger.accept(0, 0, OTHER)
    assert ledger.is_whole(0)
    assert ledger.remaining == 0
    assert ledger.digest(0, 1) == DIGEST
    assert ledger.digest(0, 0) == OTHER


def test_ledger_mark_leaves_verified_blocks_alone():
    ledger = TrackLedger((0,), 5)
    ledger.accept(0, 2, DIGEST)

    ledger.mark(0, range(1, 100), BlockState.UNKNOWN)
    ledger.mark(7, range(2), BlockState.UNKNOWN)

    assert list(ledger.missing()) == [
        MissingRun(0, 0, 1, BlockState.PENDING),
        MissingRun(0, 1, 2, BlockState.UNKNOWN),
        MissingRun(0, 3, 5, BlockState.UNKNOWN),
    ]


def test_ledger_holes_join_neighbours_whatever_the_reason():
    ledger = TrackLedger((0, 1), 4)
    ledger.accept(0, 3, DIGEST)
    ledger.mark(0, range(1, 2), BlockState.RESET)

    assert list(ledger.holes()) == [(0, range(3)), (1, range(4))]


def test_ledger_verified_prefix_is_the_shortest_of_all_layers():
    ledger = TrackLedger((0, 1), 3)
    for layer, block in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 2)):
        ledger.accept(layer, block, DIGEST)

    assert ledger.verified_prefix() == 1


def test_ledger_confirm_accepts_equal_digests_and_ignores_missing_blocks():
    ledger = TrackLedger((0, 1), 2)
    ledger.accept(0, 1, DIGEST)

    ledger.confirm(0, (OTHER, DIGEST, OTHER))

    assert ledger.unconfirmed() == 1


def test_ledger_confirm_raises_on_another_digest():
    ledger = TrackLedger((0,), 2)
    ledger.accept(0, 1, DIGEST)

    with pytest.raises(IntegrityError, match="layer 0, block 1"):
        ledger.confirm(0, (DIGEST, OTHER))
    assert ledger.unconfirmed() == 1
