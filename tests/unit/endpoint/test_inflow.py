"""What one peer sends, and what it makes the transport keep."""

from kvcs.endpoint.inflow import STREAM_BYTES, Inflow


def inflow(**changes):
    return Inflow(**{"max_rate": 1e9, "max_window_bytes": 1000, "window_bytes": 100, **changes})


def test_streams_that_end_hold_nothing():
    it = inflow()

    for stream_id in range(1000):
        assert it.receive(stream_id, 100, fin=False, now=0.0) is None
        assert it.receive(stream_id, 0, fin=True, now=0.0) is None
    for stream_id in range(1000):
        assert it.receive(stream_id, 100, fin=False, now=0.0) is None
        it.end(stream_id)
        it.end(stream_id)


def test_one_stream_holds_its_window_however_much_it_carries():
    it = inflow()

    assert [it.receive(1, 1000, fin=False, now=0.0) for _ in range(100)] == [None] * 100


def test_many_streams_that_do_not_end_are_too_much():
    it = inflow()
    reasons = [it.receive(stream_id, 150, fin=False, now=0.0) for stream_id in range(11)]

    assert reasons[:10] == [None] * 10
    assert "1000 octets in the rings" in reasons[10]


def test_streams_with_next_to_nothing_on_them_count_too():
    it = inflow(max_window_bytes=10 * STREAM_BYTES, window_bytes=2**22)
    reasons = [it.receive(stream_id, 1, fin=False, now=0.0) for stream_id in range(11)]

    assert reasons[:10] == [None] * 10
    assert reasons[10] is not None


def test_more_octets_a_second_than_allowed_are_too_much():
    it = inflow(max_rate=500)

    assert it.receive(1, 400, fin=False, now=0.0) is None
    assert "500 octets a second" in it.receive(1, 400, fin=False, now=0.1)
    assert it.receive(1, 400, fin=False, now=5.0) is None
