"""Requests that a session refuses by itself, and updates of what is over: no policy sees either.

A stranger can send either as fast as its line lets it. They count like what is decided.
"""

import pytest
from tests.attacks.guarded import NAMESPACE, TRACK, Guarded

from kvcs.c4m import Role
from kvcs.moqt.session.limits import SessionLimits
from kvcs.moqt.wire.namespace import SubscribeNamespace
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.request import RequestUpdate
from kvcs.moqt.wire.subscribe import Subscribe
from kvcs.moqt.wire.token import Token
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay import RelayLimits

BURST = RelayLimits().max_request_burst
NO_PARAMETERS = Parameters()
MANY = Parameters(
    authorization_tokens=tuple(
        Token.use_value(number.to_bytes(2))
        for number in range(SessionLimits().max_request_tokens + 1)
    )
)


class Flood:
    """Speaks bytes to the relay, since our own sessions would not send such requests."""

    def __init__(self):
        self.guarded = Guarded()
        self.session = self.guarded.stranger.link.session
        self.sent = 0

    def send(self, make, *, stream_id=None):
        data = make(2 * self.sent).encode()
        place = 4 * self.sent if stream_id is None else stream_id
        self.session.receive_stream(place, data, False, now=self.guarded.world.now)
        self.sent += 1
        if self.sent % 100 == 0:
            self.guarded.world.settle()

    def assert_ended(self):
        self.guarded.world.settle()
        assert self.session.is_closed
        assert self.guarded.world.statistics.sessions_flooded == 1
        self.guarded.stranger = self.guarded.world.client()
        self.guarded.assert_untouched()


def of_what_is_reserved(request_id):
    track = FullTrackName(TrackNamespace((b".",)), b"t")
    return Subscribe(request_id=request_id, track=track, parameters=NO_PARAMETERS)


def with_too_many_tokens(request_id):
    return Subscribe(request_id=request_id, track=TRACK, parameters=MANY)


@pytest.mark.parametrize("make", [of_what_is_reserved, with_too_many_tokens])
def test_requests_that_the_session_refuses_count_like_others(make):
    flood = Flood()
    for _ in range(2 * BURST + 200):
        flood.send(make)

    flood.assert_ended()


def test_updates_of_a_request_that_was_refused_count_like_others():
    flood = Flood()
    flood.send(lambda number: Subscribe(request_id=number, track=TRACK, parameters=NO_PARAMETERS))
    flood.guarded.world.settle()
    update = Parameters(subscriber_priority=1)
    for _ in range(2 * BURST + 200):
        flood.send(lambda number: RequestUpdate(request_id=number, parameters=update), stream_id=0)

    flood.assert_ended()


def test_overlapping_prefixes_count_like_others():
    flood = Flood()
    flood.guarded.stranger.peer.tokens = (flood.guarded.token(Role.RELAY),)
    for _ in range(2 * BURST + 200):
        flood.send(
            lambda number: SubscribeNamespace(
                request_id=number, track_namespace_prefix=NAMESPACE, parameters=NO_PARAMETERS
            )
        )

    flood.assert_ended()


def test_a_few_of_them_close_nothing():
    flood = Flood()
    for _ in range(200):
        flood.send(of_what_is_reserved)

    flood.guarded.world.settle()
    assert not flood.session.is_closed
    flood.guarded.assert_untouched()
