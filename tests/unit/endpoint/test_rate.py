"""A bucket that leaks."""

from kvcs.endpoint.rate import LeakyBucket


def test_burst_is_admitted_and_no_more():
    bucket = LeakyBucket(10, burst=3)

    assert [bucket.admit(1, now=5.0) for _ in range(4)] == [True, True, True, False]


def test_time_makes_room_at_the_rate():
    bucket = LeakyBucket(10, burst=3)
    for _ in range(3):
        bucket.admit(1, now=0.0)

    assert not bucket.admit(1, now=0.01)
    assert bucket.admit(1, now=0.2)


def test_long_silence_saves_up_no_more_than_the_burst():
    bucket = LeakyBucket(10, burst=3)
    bucket.admit(1, now=0.0)

    assert [bucket.admit(1, now=1000.0) for _ in range(4)] == [True, True, True, False]


def test_who_goes_on_stays_shut_out_and_is_a_flood_in_the_end():
    bucket = LeakyBucket(10, burst=3)
    admitted = [bucket.admit(1, now=step / 20) for step in range(20)]

    assert admitted[-1] is False
    assert bucket.is_flooded


def test_who_keeps_to_the_rate_is_never_refused():
    bucket = LeakyBucket(10, burst=3)

    assert all(bucket.admit(1, now=step / 10) for step in range(1000))
    assert not bucket.is_flooded


def test_what_is_not_taken_does_not_fill_the_bucket():
    bucket = LeakyBucket(10.0, burst=20.0)
    assert bucket.take(15.0, now=0.0)
    assert [bucket.take(6.0, now=0.0) for _ in range(5)] == [False] * 5

    assert bucket.take(5.0, now=0.0)
    assert not bucket.is_flooded
    assert bucket.take(10.0, now=1.0)
