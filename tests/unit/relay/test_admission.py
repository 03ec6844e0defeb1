import pytest
from tests.unit.relay.test_publish import push
from tests.unit.relay.world import TOKEN_CACHE_BYTES, TRACK, WHOLE, whole

from kvcs.errors import PublishDoneCode, RequestErrorCode, TerminationCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.subscribe import Subscribe
from kvcs.moqt.wire.token import Token
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.auth import AccessAction

ALL = LocationFilter.absolute_start(0, 0)
OPEN = TrackNamespace((b"kvcs-1", b"open", b"compat", b"anchor", b"pub"))
SECRET = TrackNamespace((b"kvcs-1", b"secret", b"compat", b"anchor", b"pub"))
NOWHERE = TrackNamespace((b"kvcs-1", b"open", b"compat", b"anchor", b"none"))
ROOT = TrackNamespace((b"kvcs-1",))
KEY = (Token.use_value(b"key"),)
READING = {
    AccessAction.SUBSCRIBE,
    AccessAction.FETCH,
    AccessAction.TRACK_STATUS,
    AccessAction.SUBSCRIBE_NAMESPACE,
    AccessAction.SUBSCRIBE_TRACKS,
}


def hides_secrets(access):
    """Hide the secret scope from everybody without the key."""
    is_secret = SECRET.fields[:2] == access.namespace.fields[:2]
    has_key = any(token.value == b"key" for token in access.tokens)
    if is_secret and access.action in READING and not has_key:
        return RequestErrorCode.DOES_NOT_EXIST
    return None


@pytest.fixture
def guarded(make_world):
    """A relay with an open and a secret publication, of a Track each."""
    world = make_world(authorize=hides_secrets)
    for namespace in (OPEN, SECRET):
        publisher = world.publisher(namespace)
        publisher.add_groups(0, track=FullTrackName(namespace, b"t"))
    return world


def refusal(client, request_id):
    (rejection,) = client.of(request_id, ev.RequestRejected)
    return rejection.code, rejection.reason, rejection.retry_after, rejection.redirect


ASKS = {
    "subscribe": lambda client, track: client.subscribe(track=track),
    "fetch": lambda client, track: client.fetch(ALL, track=track),
    "track-status": lambda client, track: client.send(client.session.track_status, track),
}


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
@pytest.mark.parametrize("name", [b"t", b"no such track"])
def test_what_is_hidden_is_refused_as_what_does_not_exist(guarded, ask, name):
    client = guarded.client()

    hidden = ask(client, FullTrackName(SECRET, name))
    absent = ask(client, FullTrackName(NOWHERE, name))

    # Both at once: nothing passed between the two that a peer could measure.
    assert refusal(client, hidden) == refusal(client, absent)
    assert refusal(client, hidden)[0] == RequestErrorCode.DOES_NOT_EXIST


def test_what_is_hidden_lets_wait_as_long_as_what_does_not_exist(guarded):
    client = guarded.client()
    parameters = Parameters(rendezvous_timeout_ms=3000)
    requests = [
        client.subscribe(parameters, track=FullTrackName(namespace, b"t"))
        for namespace in (SECRET, NOWHERE)
    ]

    guarded.pass_time(2.5)
    assert [client.of(request_id) for request_id in requests] == [[], []]
    guarded.pass_time(1.0)

    hidden, absent = (refusal(client, request_id) for request_id in requests)
    assert hidden == absent
    assert hidden[0] == RequestErrorCode.TIMEOUT


WRITES = {
    "publish-namespace": lambda client, _: client.announce(SECRET),
    "publish": lambda client, track: client.send(client.session.publish, track),
}


@pytest.fixture
def blind(make_world, monkeypatch):
    """A relay that decides in one way, and whose every look-up raises."""

    def make(decision):
        world = make_world(authorize=lambda _: decision)

        def look_up(*_, **__):
            raise AssertionError("looked up")

        monkeypatch.setattr(type(world.core._room), "obtain", look_up)
        for name in ("publish", "publishers", "withdraw"):
            monkeypatch.setattr(type(world.core.discovery.namespaces), name, look_up)
        return world.client()

    return make


@pytest.mark.parametrize("code", [RequestErrorCode.DOES_NOT_EXIST, RequestErrorCode.UNAUTHORIZED])
def test_nothing_is_looked_up_for_what_is_refused(blind, code):
    client = blind(code)

    requests = [ask(client, TRACK) for ask in (ASKS | WRITES).values()]

    assert {client.rejection(request_id) for request_id in requests} == {code}
    assert not client.link.session.is_closed


@pytest.mark.parametrize("ask", (ASKS | WRITES).values(), ids=ASKS | WRITES)
def test_what_is_allowed_is_looked_up(blind, ask):
    """The control of the test before."""
    client = blind(None)

    with pytest.raises(AssertionError, match="looked up"):
        ask(client, TRACK)


def test_listing_below_a_short_prefix_leaves_out_what_is_hidden(guarded):
    stranger, member = guarded.client(), guarded.client()
    blind = stranger.send(stranger.session.subscribe_namespace, ROOT)
    seeing = member.send(
        member.session.subscribe_namespace, ROOT, Parameters(authorization_tokens=KEY)
    )
    late = guarded.publisher(TrackNamespace((*SECRET.fields[:4], b"late")))
    late.lose()

    def told(client, request_id, kind):
        return [event.suffix.fields[0] for event in client.of(request_id, kind)]

    assert told(stranger, blind, ev.NamespaceReceived) == [b"open"]
    assert told(stranger, blind, ev.NamespaceDoneReceived) == []
    assert told(member, seeing, ev.NamespaceReceived) == [b"open", b"secret", b"secret"]
    assert told(member, seeing, ev.NamespaceDoneReceived) == [b"secret"]


@pytest.mark.parametrize("kind", ["subscribe_namespace", "subscribe_tracks"])
def test_prefix_that_is_hidden_stays_empty_as_one_with_nothing_below(guarded, kind):
    client = guarded.client()
    requests = [
        client.send(getattr(client.session, kind), TrackNamespace(namespace.fields[:4]))
        for namespace in (SECRET, TrackNamespace((*NOWHERE.fields[:3], b"other")))
    ]
    push(guarded.client(), FullTrackName(SECRET, b"pushed"))

    hidden, empty = ([type(e) for e in client.of(request_id)] for request_id in requests)

    assert hidden == empty == [ev.RequestAccepted]
    assert not [event for event in client.received if isinstance(event, ev.PublishReceived)]


def test_prefix_that_moves_out_of_what_is_hidden_is_listed(guarded):
    client = guarded.client()
    request_id = client.send(client.session.subscribe_namespace, TrackNamespace(SECRET.fields[:2]))

    prefix = TrackNamespace(OPEN.fields[:4])
    client.send(client.session.update, request_id, Parameters(track_namespace_prefix=prefix))

    assert client.one(request_id, ev.NamespaceReceived).suffix.fields == (b"pub",)


def test_tracks_below_a_prefix_are_published_to_those_who_may_see_each(guarded):
    stranger, member = guarded.client(), guarded.client()
    blind = stranger.send(stranger.session.subscribe_tracks, ROOT)
    member.send(member.session.subscribe_tracks, ROOT, Parameters(authorization_tokens=KEY))

    publisher = guarded.client()
    for namespace in (OPEN, SECRET):
        push(publisher, FullTrackName(namespace, b"pushed"))

    def published(client):
        return [event.track.namespace for event in client.asked(ev.PublishReceived)]

    assert published(stranger) == [OPEN]
    assert stranger.of(blind, ev.PublishSkippedReceived) == []
    assert published(member) == [OPEN, SECRET]


def subscribed_with_key(world):
    client = world.client()
    parameters = Parameters(
        location_filter=WHOLE.location_filter, fill=WHOLE.fill, authorization_tokens=KEY
    )
    return client, client.subscribe(parameters, track=FullTrackName(SECRET, b"t"))


def test_update_with_a_token_that_is_not_good_enough_ends_the_subscription(guarded):
    client, request_id = subscribed_with_key(guarded)
    bad = (Token.use_value(b"bad"),)

    client.send(client.session.update, request_id, Parameters(authorization_tokens=bad))

    assert client.objects(request_id) == whole(1)
    client.one(request_id, ev.UpdateRejected)
    done = client.one(request_id, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.UPDATE_FAILED
    assert guarded.statistics.subscriptions == 0


def test_update_with_a_good_token_or_none_goes_on(guarded):
    client, request_id = subscribed_with_key(guarded)

    client.send(client.session.update, request_id, Parameters(authorization_tokens=KEY))
    client.send(client.session.update, request_id, Parameters(subscriber_priority=3))

    assert len(client.of(request_id, ev.UpdateAccepted)) == 2
    assert guarded.statistics.subscriptions == 1


def test_what_was_granted_is_forgotten_with_the_request(guarded):
    client, request_id = subscribed_with_key(guarded)
    for _ in range(3):
        client.fetch(ALL, track=FullTrackName(NOWHERE, b"t"))
        client.fetch(ALL, track=FullTrackName(OPEN, b"t"))
    client.send(client.session.cancel, request_id)
    guarded.core._room.sweep(guarded.now)

    assert client.peer.granted == {}


def test_token_is_stored_once_and_used_by_its_alias(make_world):
    asked = []
    world = make_world(
        authorize=lambda access: asked.append([token.value for token in access.tokens])
    )
    client = world.client()
    world.publisher(OPEN).add_groups(0, track=FullTrackName(OPEN, b"t"))
    raw = Subscribe(
        request_id=0,
        track=FullTrackName(OPEN, b"t"),
        parameters=Parameters(authorization_tokens=(Token.register(5, b"key"),)),
    )
    again = Subscribe(
        request_id=2,
        track=FullTrackName(OPEN, b"t"),
        parameters=Parameters(authorization_tokens=(Token.use_alias(5),)),
    )
    for stream_id, message in ((0, raw), (4, again)):
        client.link.session.receive_stream(stream_id, message.encode(), False, now=world.now)
        world.settle()

    assert asked[-2:] == [[b"key"], [b"key"]]
    assert not client.link.session.is_closed


def test_tokens_beyond_the_cache_close_that_session_only(make_world):
    world = make_world()
    client, other = world.client(), world.client()
    size = TOKEN_CACHE_BYTES - 15
    raw = Subscribe(
        request_id=0,
        track=TRACK,
        parameters=Parameters(authorization_tokens=(Token.register(5, bytes(size)),)),
    )
    client.link.session.receive_stream(0, raw.encode(), False, now=world.now)
    world.settle()

    (closed,) = [event for event in client.events if isinstance(event, ev.SessionClosed)]
    assert closed.error.code == TerminationCode.AUTH_TOKEN_CACHE_OVERFLOW
    assert not other.session.is_closed


def test_bad_token_for_a_request_that_waits_refuses_the_request(make_world):
    def refuse_bad(access):
        is_bad = any(token.value == b"bad" for token in access.tokens)
        return RequestErrorCode.UNAUTHORIZED if is_bad else None

    client = make_world(authorize=refuse_bad).client()
    request_id = client.subscribe(Parameters(rendezvous_timeout_ms=30_000))
    bad = (Token.use_value(b"bad"),)

    client.send(client.session.update, request_id, Parameters(authorization_tokens=bad))

    assert client.rejection(request_id) is RequestErrorCode.UNAUTHORIZED
    assert not client.link.session.is_closed
