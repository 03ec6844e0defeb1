"""A client says in its SETUP that it is a relay: it learns nothing by that, and can end nothing."""

import pytest
from tests.unit.relay.kin import Child, Parent, place
from tests.unit.relay.world import NAMESPACE, World

from kvcs.errors import RequestErrorCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.token import Token
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.ancestry import RELAY_ID_BYTES
from kvcs.relay.auth import AccessAction, Grant
from kvcs.relay.circle import CircleProbe
from kvcs.relay.track_interest import TrackInterest

SCOPE = TrackNamespace(NAMESPACE.fields[:2])
OTHER = TrackNamespace((b"kvcs-1", b"other"))
OFFERS = {AccessAction.PUBLISH_NAMESPACE, AccessAction.PUBLISH}
SECRET = bytes(range(16))


def policy(access):
    """Everybody takes; who has the word for a scope publishes there."""
    words = {token.value for token in access.tokens}
    if access.action not in OFFERS or access.namespace.fields[1] in words:
        return Grant(60.0)
    return RequestErrorCode.UNAUTHORIZED


@pytest.fixture
def world():
    return World(authorize=policy)


def word(scope):
    return Token.use_value(scope.fields[1])


def want(client, prefix=SCOPE):
    return client.send(client.session.subscribe_tracks, prefix, Parameters())


def skip(relay, name, prefix=SCOPE):
    """Say that a Track below a prefix was skipped, on whatever request there is."""
    (asked,) = relay.active(ev.SubscribeTracksReceived)
    suffix = NAMESPACE.suffix_of(prefix)
    relay.send(relay.session.skip_publish, asked.request_id, suffix, name)


def test_a_client_that_says_so_is_not_told_what_others_want(world):
    before, consumer, after = Child(world, place(5)), world.client(), None
    want(consumer)
    after = Child(world, place(6))
    want(world.client(), OTHER)

    assert before.asked(ev.SubscribeTracksReceived) == []
    assert after.asked(ev.SubscribeTracksReceived) == []


def test_a_relay_of_one_scope_is_not_told_of_another(world):
    relay = Child(world, place(5))
    relay.peer.tokens = (word(SCOPE),)
    for prefix in (SCOPE, OTHER):
        want(world.client(), prefix)

    assert relay.track_prefixes() == [SCOPE]


def test_many_prefixes_of_one_relay_are_not_merged_beyond_what_it_may_publish(world):
    def narrow(access):
        """Only what is exactly three fields long, or longer, may be published."""
        is_offer = access.action in OFFERS
        return RequestErrorCode.UNAUTHORIZED if is_offer and len(access.namespace) < 3 else None

    world = World(authorize=narrow)
    relay, client = Child(world, place(5)), world.client()
    prefixes = [SCOPE.joined(TrackNamespace((b"%d" % number,))) for number in range(30)]
    for prefix in prefixes:
        want(client, prefix)

    assert relay.track_prefixes() == prefixes


def test_a_relay_whose_token_comes_late_is_asked_then(world):
    relay = Child(world, place(5))
    want(world.client())
    assert relay.track_prefixes() == []

    relay.send(
        relay.session.publish_namespace, NAMESPACE, Parameters(authorization_tokens=(word(SCOPE),))
    )

    assert relay.track_prefixes() == [SCOPE]


def test_skipped_tracks_count_only_from_who_could_have_published_them(world):
    relay, consumer = Child(world, place(5)), world.client()
    relay.peer.tokens = (word(SCOPE),)
    request_id = want(consumer)
    skip(relay, b"k.raw.s0")
    assert len(consumer.of(request_id, ev.PublishSkippedReceived)) == 1

    relay.peer.tokens = ()
    skip(relay, b"v.raw.s0")

    assert len(consumer.of(request_id, ev.PublishSkippedReceived)) == 1


def test_a_flood_of_skipped_tracks_is_not_passed_on_and_ends_the_session():
    world = World(authorize=policy, max_request_burst=20)
    relay, consumer = Child(world, place(5)), world.client()
    relay.peer.tokens = (word(SCOPE),)
    request_id = want(consumer)
    for number in range(60):
        if not relay.session.is_closed:
            skip(relay, b"%d" % number)

    assert relay.session.is_closed
    assert len(consumer.of(request_id, ev.PublishSkippedReceived)) <= 20
    assert not consumer.session.is_closed


@pytest.mark.parametrize("ancestry", [None, place(1)])
def test_nobody_ends_the_session_with_the_parent_by_what_relays_say_of_themselves(ancestry):
    world = World(authorize=policy, secret=SECRET)
    parent, stranger = Parent(world, ancestry), world.client()
    told = bytes(RELAY_ID_BYTES)
    guesses = (told, bytes(16), SECRET[::-1])
    names = [CircleProbe(guess, world.core, is_parent=bool).track for guess in guesses]

    for name in names:
        stranger.send(stranger.session.track_status, name)

    assert not parent.session.is_closed


def test_what_is_asked_of_a_parent_that_tells_where_it_is_proves_nothing():
    world = World(authorize=policy, secret=SECRET)
    parent, stranger = Parent(world, place(1)), world.client()

    name = CircleProbe(SECRET, world.core, is_parent=bool).track
    stranger.send(stranger.session.track_status, FullTrackName(name.namespace, name.name))

    assert parent.asked(ev.TrackStatusReceived) == []
    assert not parent.session.is_closed


def test_a_relay_that_refuses_everything_for_ever_costs_a_look_at_what_it_refused(
    world, monkeypatch
):
    relay, client = Child(world, place(5)), world.client()
    relay.peer.tokens = (word(SCOPE),)
    relay.silent.add(ev.SubscribeTracksReceived)
    prefixes = [SCOPE.joined(TrackNamespace((b"%d" % n, b"x"))) for n in range(40)]
    covered = []
    really = TrackInterest._cover
    monkeypatch.setattr(
        TrackInterest,
        "_cover",
        lambda self, neighbour, wish, now: (
            covered.append(wish) or really(self, neighbour, wish, now)
        ),
    )
    for prefix in prefixes:
        want(client, prefix)
    assert len(covered) == len(prefixes)

    for event in relay.asked(ev.SubscribeTracksReceived):
        relay.send(relay.session.reject, event.request_id, RequestErrorCode.PREFIX_OVERLAP)
    world.pass_time(0.5)

    # Each is looked at when it is refused, and when it is asked for again.
    assert len(covered) == 3 * len(prefixes)
    assert relay.track_prefixes() == prefixes
