import random

import pytest

from kvcs.endpoint.reconnect import Backoff
from kvcs.relay.parents import Parents

FIRST, SECOND = "moqt://first/", "moqt://second/"
BACKOFF = Backoff(initial=1.0, factor=2.0, maximum=8.0)


def parents(*urls, seed=1):
    return Parents(urls or (FIRST, SECOND), backoff=BACKOFF, rng=random.Random(seed))


def test_preferred_parent_comes_first():
    assert parents().choose(now=5.0) == (FIRST, 0.0)


def test_other_parent_has_its_turn_at_once_when_one_fails():
    it = parents()

    it.ended(FIRST, lived=0.0, now=5.0)

    assert it.choose(now=5.0) == (SECOND, 0.0)


def test_preferred_parent_is_tried_again_after_its_wait():
    it = parents()
    it.ended(FIRST, lived=0.0, now=5.0)

    assert it.choose(now=6.0) == (FIRST, 0.0)


def test_when_all_have_failed_the_earliest_is_waited_for():
    it = parents()
    it.ended(FIRST, lived=0.0, now=5.0)
    it.ended(FIRST, lived=0.0, now=5.0)
    it.ended(SECOND, lived=0.0, now=5.0)

    url, wait = it.choose(now=5.0)

    assert url == SECOND
    assert 0.5 <= wait <= 1.0


def test_waits_grow_to_a_cap_and_differ():
    it = parents(FIRST)
    waits = []
    for _ in range(8):
        it.ended(FIRST, lived=0.0, now=0.0)
        waits.append(it.choose(now=0.0)[1])

    for wait, full in zip(waits, (1, 2, 4, 8, 8, 8, 8, 8), strict=True):
        assert full / 2 <= wait <= full
    assert len(set(waits)) == len(waits)


def test_parent_that_closed_in_an_orderly_way_is_waited_for_a_little():
    it = parents()
    it.ended(FIRST, lived=0.1, is_clean=True, now=5.0)
    url, wait = it.choose(now=5.0)

    assert url == FIRST
    assert 0.5 <= wait <= 1.0

    it.ended(FIRST, lived=0.1, is_clean=True, now=6.0)
    it.ended(FIRST, lived=0.1, is_clean=True, now=6.0)
    assert it.choose(now=6.0) == (SECOND, 0.0)


@pytest.mark.parametrize(("lived", "longest"), [(100.0, 1.0), (1.0, 4.0)])
def test_parent_that_served_long_enough_begins_anew(lived, longest):
    it = parents(FIRST)
    it.ended(FIRST, lived=0.0, now=0.0)
    it.ended(FIRST, lived=0.0, now=0.0)

    it.ended(FIRST, lived=lived, now=0.0)

    assert longest / 2 <= it.choose(now=0.0)[1] <= longest


def test_parent_that_is_leaving_is_not_dialled():
    it = parents()

    assert it.choose({FIRST}, now=0.0) == (SECOND, 0.0)
    assert it.choose({FIRST, SECOND}, now=0.0) is None
