"""Which prefixes are asked for, so that all that is wanted is covered and nothing overlaps."""

import pytest

from kvcs.errors import RequestErrorCode
from kvcs.moqt.session.events import RequestRejected
from kvcs.names import TrackNamespace
from kvcs.relay.prefix_requests import PrefixRequests, retry_wait


def name(*fields):
    return TrackNamespace(tuple(field.encode() for field in fields))


@pytest.fixture
def requests():
    return PrefixRequests()


def with_siblings(requests, count):
    for number in range(count):
        requests.running[name("a", "b", str(number))] = number
    return requests


def test_a_request_covers_what_is_below_it_and_nothing_else(requests):
    requests.running[name("a", "b")] = 1

    assert requests.covering(name("a", "b")) == 1
    assert requests.covering(name("a", "b", "c")) == 1
    assert requests.covering(name("a")) is None
    assert requests.covering(name("a", "c")) is None


def test_many_siblings_are_asked_for_by_what_they_share(requests):
    assert with_siblings(requests, 15).to_ask_for(name("a", "b", "x")) == name("a", "b", "x")
    assert with_siblings(requests, 16).to_ask_for(name("a", "b", "x")) == name("a", "b")


def test_a_shared_prefix_that_may_not_be_asked_for_is_not(requests):
    asked = with_siblings(requests, 16).to_ask_for(name("a", "b", "x"), lambda _: False)

    assert asked == name("a", "b", "x")


def test_scopes_are_never_merged(requests):
    for number in range(20):
        requests.running[name("a", str(number))] = number

    assert requests.to_ask_for(name("a", "x")) == name("a", "x")


def test_what_was_refused_is_not_asked_for(requests):
    requests.refused |= {name("a", "b"), name("a", "b", "x")}
    with_siblings(requests, 16)

    assert requests.to_ask_for(name("a", "b", "x")) is None
    assert requests.to_ask_for(name("a", "b", "y")) == name("a", "b", "y")


def test_a_shorter_request_replaces_those_below_it(requests):
    requests.running.update({name("a", "b", "1"): 1, name("a", "b", "2"): 2, name("c"): 3})

    assert requests.below(name("a", "b")) == [name("a", "b", "1"), name("a", "b", "2")]


def test_only_what_is_wanted_is_kept(requests):
    requests.running.update({name("a", "b"): 1, name("c"): 2})
    requests.refused |= {name("a"), name("d")}

    assert requests.forget_unwanted([name("a", "b", "x")]) == [name("c")]
    assert requests.refused == {name("a")}


@pytest.mark.parametrize(
    ("code", "retry_after", "wait"),
    [
        (RequestErrorCode.PREFIX_OVERLAP, None, 0.25),
        (RequestErrorCode.UNAUTHORIZED, None, None),
        (RequestErrorCode.UNAUTHORIZED, 0.0, 0.25),
        (RequestErrorCode.EXCESSIVE_LOAD, 3.0, 3.0),
    ],
)
def test_a_prefix_is_asked_for_again_where_that_helps(code, retry_after, wait):
    event = RequestRejected(1, code=code, retry_after=retry_after, reason="", redirect=None)

    assert retry_wait(event) == wait
