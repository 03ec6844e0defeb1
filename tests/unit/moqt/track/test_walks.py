import pytest

from kvcs.moqt.track.walks import MAX_WAIT, WALK_INTERVAL, Walks


def test_slots_are_one_after_the_other_and_free_ones_are_not_saved_up():
    walks = Walks()

    taken = [walks.reserve(now=now) for now in (1.0, 1.0, 1.0, 5.0)]

    assert taken == pytest.approx([1.0, 1.0 + WALK_INTERVAL, 1.0 + 2 * WALK_INTERVAL, 5.0])


def test_slots_that_were_taken_in_vain_do_not_push_others_away_for_ever():
    walks = Walks()
    for _ in range(10 * round(MAX_WAIT / WALK_INTERVAL)):
        walks.reserve(now=0.0)

    assert walks.reserve(now=1.0) - 1.0 <= MAX_WAIT
