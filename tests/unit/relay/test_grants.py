"""What is due is found without looking at what is not."""

import math
import random
import time
from dataclasses import replace

import pytest

from kvcs.names import TrackNamespace
from kvcs.relay.auth import Access, AccessAction
from kvcs.relay.grants import GRID, Grants, slot_of

ACCESS = Access(
    action=AccessAction.SUBSCRIBE, namespace=TrackNamespace((b"n",)), track_name=b"t", tokens=()
)


def until(seconds):
    return replace(ACCESS, until=seconds)


def test_what_is_due_comes_in_order_and_stays_until_it_is_decided():
    grants = Grants()
    grants[4], grants[2], grants[6], grants[8] = until(3.0), until(1.1), until(None), until(90.0)

    assert grants.next_due == 1.25
    assert grants.due(now=1.2) == []
    assert grants.due(now=3.0) == grants.due(now=89.0) == [2, 4]
    grants[2] = until(50.0)
    assert (grants.due(now=3.0), grants.next_due) == ([4], 3.0)
    del grants[4]
    assert (grants.due(now=49.9), grants.next_due) == ([], 50.0)


def test_a_grant_for_good_is_never_due():
    grants = Grants()
    grants[0], grants[2] = until(None), until(math.inf)

    assert grants.next_due == math.inf
    assert grants.due(now=1e12) == []


def test_requests_are_those_of_a_map():
    grants = Grants()
    assert grants == {}
    grants[0] = until(1.0)
    assert grants == {0: until(1.0)}
    assert (grants.pop(0, None), grants.pop(0, None)) == (until(1.0), None)
    assert (len(grants), grants.next_due) == (0, math.inf)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_what_is_due_is_what_a_look_at_all_finds(seed):
    chance, grants, model = random.Random(seed), Grants(), {}
    for step in range(2000):
        request_id, now = chance.randrange(30), step / 20
        if chance.random() < 0.3:
            assert (grants.pop(request_id, None)) == model.pop(request_id, None)
        else:
            access = until(chance.choice((None, now, now + chance.random() * 30)))
            grants[request_id] = model[request_id] = access
        slots = {key: slot_of(it.until) for key, it in model.items() if it.until is not None}
        assert set(grants.due(now=now)) == {key for key, slot in slots.items() if slot <= now}
        assert grants.next_due == min(slots.values(), default=math.inf)
        assert all(slot / GRID == slot // GRID for slot in slots.values())


def test_a_session_in_which_nothing_is_due_is_not_looked_through():
    grants = Grants()
    for request_id in range(100_000):
        grants[request_id] = until(1000.0 + request_id)
    began = time.process_time()

    for _ in range(10_000):
        assert grants.due(now=999.0) == []

    assert time.process_time() - began < 1.0
