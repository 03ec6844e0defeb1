import pytest

from kvcs.moqt.track.walks import MAX_WAIT, WALK_INTERVAL, WalkQueue, Walks


def test_slots_are_one_after_the_other_and_free_ones_are_not_saved_up():
    walks = Walks()

    taken = [walks.reserve(now=now) for now in (1.0, 1.0, 1.0, 5.0)]

    assert taken == pytest.approx([1.0, 1.0 + WALK_INTERVAL, 1.0 + 2 * WALK_INTERVAL, 5.0])


def test_slots_that_were_taken_in_vain_do_not_push_others_away_for_ever():
    walks = Walks()
    for _ in range(10 * round(MAX_WAIT / WALK_INTERVAL)):
        walks.reserve(now=0.0)

    assert walks.reserve(now=1.0) - 1.0 <= MAX_WAIT


def test_a_session_has_one_slot_at_a_time_and_its_deliveries_take_turns():
    queue = WalkQueue(Walks())
    first, second = object(), object()
    queue.add(first, now=1.0)
    queue.add(second, now=1.0)

    assert queue.due_at == 1.0
    assert queue.take(now=0.9) is None
    assert queue.take(now=1.0) is first
    queue.add(first, now=1.0)
    assert queue.due_at == pytest.approx(1.0 + WALK_INTERVAL)
    assert queue.take(now=1.0) is None
    assert queue.take(now=2.0) is second
    assert queue.take(now=3.0) is first
    assert (len(queue), queue.due_at) == (0, None)


def test_a_slot_stays_with_the_session_whoever_leaves():
    walks = Walks()
    queue = WalkQueue(walks)
    for _ in range(5):
        one = object()
        queue.add(one, now=1.0)
        assert one in queue
        queue.discard(one)
        assert queue.due_at is None

    # One slot was taken, not five.
    assert walks.reserve(now=1.0) == pytest.approx(1.0 + WALK_INTERVAL)
