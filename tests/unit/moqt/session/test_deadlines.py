from kvcs.moqt.session.deadlines import Deadlines, Timer


def test_earliest_deadline_is_next():
    deadlines = Deadlines()

    deadlines.set(Timer.ANSWER, 1, 5)
    deadlines.set(Timer.ANSWER, 2, 3)
    deadlines.set(Timer.DRAIN, 1, 4)

    assert deadlines.next() == 3
    assert [deadlines.pop_due(4) for _ in range(3)] == [(Timer.ANSWER, 2), (Timer.DRAIN, 1), None]
    assert deadlines.next() == 5


def test_deadline_can_move_both_ways():
    deadlines = Deadlines()

    deadlines.set(Timer.ANSWER, 1, 5)
    deadlines.set(Timer.ANSWER, 1, 9)
    assert deadlines.next() == 9
    deadlines.set(Timer.ANSWER, 1, 2)

    assert deadlines.next() == 2
    assert deadlines.pop_due(9) == (Timer.ANSWER, 1)
    assert deadlines.pop_due(9) is None
    assert deadlines.next() is None


def test_cleared_deadline_does_not_pass():
    deadlines = Deadlines()

    deadlines.set(Timer.ANSWER, 1, 5)
    deadlines.clear(Timer.ANSWER, 1)
    deadlines.clear(Timer.ANSWER, 2)

    assert not deadlines.is_set(Timer.ANSWER, 1)
    assert deadlines.pop_due(9) is None


def test_heap_does_not_grow_while_a_deadline_moves():
    deadlines = Deadlines()

    for now in range(1000):
        deadlines.set(Timer.DATA_STREAM, 7, now + 60)
        if now % 3 == 0:
            deadlines.clear(Timer.DATA_STREAM, 7)

    assert len(deadlines._heap) == 1
    assert "1 set" in repr(deadlines) or "0 set" in repr(deadlines)


def test_all_can_be_cleared_at_once():
    deadlines = Deadlines()
    deadlines.set(Timer.ANSWER, 1, 5)

    deadlines.clear_all()

    assert deadlines.next() is None
