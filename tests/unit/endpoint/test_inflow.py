"""What one peer sends, and what it makes the transport keep."""

import pytest

from kvcs.endpoint.inflow import STREAM_BYTES, Inflow, WindowBudget


def inflow(**changes):
    return Inflow(**{"max_rate": 1e9, "max_window_bytes": 1000, "window_bytes": 100, **changes})


def test_streams_that_end_hold_nothing():
    it = inflow()

    for stream_id in range(1000):
        assert it.receive(stream_id, 100, fin=False) is None
        assert it.receive(stream_id, 0, fin=True) is None
    for stream_id in range(1000):
        assert it.receive(stream_id, 100, fin=False) is None
        it.end(stream_id)
        it.end(stream_id)


def test_one_stream_holds_its_window_however_much_it_carries():
    it = inflow()

    assert [it.receive(1, 1000, fin=False) for _ in range(100)] == [None] * 100


def test_a_stream_counts_with_twice_what_it_carries_at_most_and_its_window_at_last():
    it = inflow(max_window_bytes=10**9, window_bytes=10 * STREAM_BYTES)
    sizes = []
    for _ in range(12):
        it.receive(1, STREAM_BYTES, fin=False)
        sizes.append(it.held_bytes // STREAM_BYTES)

    assert sizes == [1, 2, 4, 4, 8, 8, 8, 8, 10, 10, 10, 10]


def test_many_streams_that_do_not_end_are_too_much():
    it = inflow()
    reasons = [it.receive(stream_id, 150, fin=False) for stream_id in range(11)]

    assert reasons[:10] == [None] * 10
    assert "1000 octets in the rings" in reasons[10]


def test_streams_with_next_to_nothing_on_them_count_too():
    it = inflow(max_window_bytes=10 * STREAM_BYTES, window_bytes=2**22)
    reasons = [it.receive(stream_id, 1, fin=False) for stream_id in range(11)]

    assert reasons[:10] == [None] * 10
    assert reasons[10] is not None


def test_more_octets_a_second_than_allowed_are_too_much():
    it = inflow(max_rate=500)

    assert it.admit(400, now=0.0) is None
    assert "500 octets a second" in it.admit(400, now=0.1)
    assert it.admit(400, now=5.0) is None


# All connections together.


@pytest.fixture
def shared():
    """A budget of ten windows, and a way to add connections to it."""
    budget, closed = WindowBudget(10 * STREAM_BYTES), []

    def join(name, host):
        it = inflow(max_window_bytes=10**9, window_bytes=STREAM_BYTES, budget=budget)
        budget.join(it, host, lambda reason: closed.append((name, reason)))
        return it

    return budget, closed, join


def open_streams(it, count, first=0):
    for stream_id in range(first, first + count):
        assert it.receive(stream_id, 1, fin=False) is None


def test_of_the_address_that_has_most_the_connection_that_has_most_goes(shared):
    budget, closed, join = shared
    alone = join("alone", "192.0.2.1")
    open_streams(alone, 4)
    crowd = [join(f"crowd {number}", "192.0.2.2") for number in range(3)]
    for it in crowd:
        open_streams(it, 2)

    open_streams(crowd[1], 1, first=2)

    assert [name for name, _ in closed] == ["crowd 1"]
    assert "octets in the rings of all connections" in closed[0][1]
    assert budget.size_bytes == 8 * STREAM_BYTES


def test_connections_that_leave_count_no_longer(shared):
    budget, closed, join = shared
    one, other = join("one", "192.0.2.1"), join("other", "192.0.2.1")
    open_streams(one, 10)
    budget.leave(one)
    budget.leave(one)
    open_streams(other, 10)
    one.end(0)
    other.end(0)

    assert closed == []
    assert budget.size_bytes == 9 * STREAM_BYTES
    assert repr(budget) == f"<WindowBudget {9 * STREAM_BYTES}/{10 * STREAM_BYTES} of 1>"


def test_streams_that_end_leave_room_for_others(shared):
    budget, closed, join = shared
    one, other = join("one", "192.0.2.1"), join("other", "192.0.2.2")
    for _ in range(10):
        for it in (one, other):
            open_streams(it, 5)
            for stream_id in range(5):
                it.receive(stream_id, 0, fin=True)

    assert (closed, budget.size_bytes) == ([], 0)
