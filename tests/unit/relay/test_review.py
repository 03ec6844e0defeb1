import logging

import pytest
from tests.unit.relay.test_publish import push
from tests.unit.relay.world import BLOCKS, NAMESPACE, TRACK, WHOLE, block, whole

from kvcs.c4m import TOKEN_TYPE, Claims, Role, TokenConfig, mint, role_scopes
from kvcs.cose import MacKey
from kvcs.errors import PublishDoneCode, RequestErrorCode, StreamResetCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.token import Token
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.auth import Grant
from kvcs.relay.token_policy import RECHECK_INTERVAL, TokenPolicy

KEY = MacKey(b"issuer", bytes(32))
EPOCH = 1_700_000_000.0
SCOPE = TrackNamespace(NAMESPACE.fields[:2])
ALL = LocationFilter.absolute_start(0, 0)


class Authority:
    """A relay that goes by tokens, and who makes them."""

    def __init__(self, make_world):
        self.policy = TokenPolicy([KEY], TokenConfig(leeway=0.0), clock=self.wall)
        self.world = make_world(authorize=self.policy)
        self.set_by = 0.0  # seconds by which somebody set the wall clock

    def wall(self):
        return EPOCH + self.world.now + self.set_by

    def token(self, role, ttl, *, scope=SCOPE, key=KEY, **claims):
        scopes = role_scopes(role, [scope])
        made = mint(Claims(scopes=scopes, expires_at=self.wall() + ttl, **claims), key)
        return Token.use_value(made, token_type=TOKEN_TYPE)

    def with_token(self, role, ttl, parameters=None, **claims):
        token = self.token(role, ttl, **claims)
        values = {} if parameters is None else _values(parameters)
        return Parameters(**values, authorization_tokens=(token,))

    def publisher(self, ttl=1000.0, namespace=NAMESPACE):
        client = self.world.client()
        client.store()
        client.announced = client.send(
            client.session.publish_namespace, namespace, self.with_token(Role.PRODUCER, ttl)
        )
        return client

    @property
    def ended(self):
        return dict(self.world.statistics.grants_ended)


def _values(parameters):
    return {
        name: getattr(parameters, name)
        for name in ("location_filter", "fill")
        if getattr(parameters, name) is not None
    }


@pytest.fixture
def authority(make_world):
    return Authority(make_world)


def renew(authority, client, request_id, role, ttl, **values):
    parameters = Parameters(authorization_tokens=(authority.token(role, ttl),), **values)
    client.send(client.session.update, request_id, parameters)


def test_a_subscription_ends_with_its_token(authority):
    world = authority.world
    publisher = authority.publisher()
    publisher.add_groups(0)
    consumer = world.client()
    request_id = consumer.subscribe(authority.with_token(Role.CONSUMER, 10.0, WHOLE))
    publisher.add(block(1, 0))  # the Group goes on, so its stream stays open

    world.pass_time(9.5)
    assert consumer.of(request_id, ev.PublishDoneReceived) == []
    world.pass_time(1.0)
    publisher.add(block(1, 1))

    done = consumer.one(request_id, ev.PublishDoneReceived)
    aborted = consumer.of(request_id, ev.StreamAborted)
    assert done.status_code == PublishDoneCode.EXPIRED
    assert {event.code for event in aborted} == {StreamResetCode.EXPIRED_AUTH_TOKEN}
    assert consumer.objects(request_id) == [*whole(1), (1, 0)]
    assert authority.ended == {"EXPIRED_AUTH_TOKEN": 1}
    assert consumer.peer.granted == {}


def test_a_wall_clock_that_is_set_forward_ends_what_runs_within_the_recheck_interval(authority):
    world = authority.world
    publisher = authority.publisher(ttl=10_000.0)
    publisher.add_groups(0)
    consumer = world.client()
    request_id = consumer.subscribe(authority.with_token(Role.CONSUMER, 1000.0, WHOLE))
    world.pass_time(30.0)

    authority.set_by = 2000.0
    world.pass_time(RECHECK_INTERVAL - 30.0 + 0.5)

    assert consumer.one(request_id, ev.PublishDoneReceived).status_code == PublishDoneCode.EXPIRED
    assert authority.ended == {"EXPIRED_AUTH_TOKEN": 1}


def test_what_runs_goes_on_when_the_wall_clock_is_set_back(authority):
    world = authority.world
    publisher = authority.publisher(ttl=100.0)
    publisher.add_groups(0)
    consumer = world.client()
    request_id = consumer.subscribe(authority.with_token(Role.CONSUMER, 100.0, WHOLE))

    authority.set_by = -1000.0
    world.pass_time(200.0)
    publisher.add_groups(1)
    assert sorted(consumer.objects(request_id)) == whole(2)
    assert authority.ended == {}

    world.pass_time(901.0)
    assert consumer.one(request_id, ev.PublishDoneReceived).status_code == PublishDoneCode.EXPIRED


def test_an_update_with_a_new_token_renews_a_subscription(authority):
    world = authority.world
    publisher = authority.publisher()
    consumer = world.client()
    request_id = consumer.subscribe(authority.with_token(Role.CONSUMER, 10.0, WHOLE))
    world.pass_time(8.0)

    renew(authority, consumer, request_id, Role.CONSUMER, 10.0)
    world.pass_time(8.0)
    publisher.add_groups(0)

    assert consumer.objects(request_id) == whole(1)
    assert consumer.of(request_id, ev.PublishDoneReceived) == []
    world.pass_time(3.0)
    assert consumer.one(request_id, ev.PublishDoneReceived).status_code == PublishDoneCode.EXPIRED


def test_an_update_with_a_lesser_token_ends_a_subscription(authority):
    authority.publisher()
    consumer = authority.world.client()
    request_id = consumer.subscribe(authority.with_token(Role.CONSUMER, 10.0, WHOLE))

    renew(authority, consumer, request_id, Role.PRODUCER, 1000.0)

    refused = consumer.one(request_id, ev.UpdateRejected)
    assert refused.code == RequestErrorCode.UNAUTHORIZED
    assert consumer.of(request_id, ev.PublishDoneReceived)


def test_a_token_of_the_setup_lasts_no_longer_than_another(authority):
    authority.publisher()
    consumer = authority.world.client()
    consumer.peer.tokens = (authority.token(Role.CONSUMER, 10.0),)
    request_id = consumer.subscribe(WHOLE)

    authority.world.pass_time(11.0)

    assert consumer.one(request_id, ev.PublishDoneReceived).status_code == PublishDoneCode.EXPIRED
    assert consumer.rejection(consumer.subscribe(WHOLE)) == RequestErrorCode.EXPIRED_AUTH_TOKEN


def test_a_fetch_that_runs_is_reset(authority):
    publisher = authority.publisher()
    publisher.add_groups(0, 1)
    consumer = authority.world.client()
    consumer.room = 150  # an Object, then nothing more
    request_id = consumer.send(
        consumer.session.fetch,
        TRACK,
        Parameters(
            location_filter=LocationFilter.absolute_range(0, 0, 1, BLOCKS),
            authorization_tokens=(authority.token(Role.CONSUMER, 10.0),),
        ),
    )

    authority.world.pass_time(11.0)
    consumer.room = 2**30
    authority.world.settle()

    got = consumer.objects(request_id)
    assert 0 < len(got) < 2 * BLOCKS
    (ended,) = consumer.of(request_id, ev.StreamAborted) or consumer.of(
        request_id, ev.RequestCancelled
    )
    assert ended.code == StreamResetCode.EXPIRED_AUTH_TOKEN
    assert authority.ended == {"EXPIRED_AUTH_TOKEN": 1}


def test_a_request_that_waits_is_refused(authority):
    publisher = authority.publisher()
    publisher.silent = {ev.FetchReceived, ev.SubscribeReceived, ev.TrackStatusReceived}
    consumer = authority.world.client()
    granted = authority.with_token(Role.CONSUMER, 10.0)
    requests = [
        consumer.send(consumer.session.subscribe, TRACK, granted),
        consumer.send(consumer.session.fetch, TRACK, granted),
        consumer.send(consumer.session.track_status, TRACK, granted),
    ]

    authority.world.pass_time(11.0)

    assert {consumer.rejection(request_id) for request_id in requests} == {
        RequestErrorCode.EXPIRED_AUTH_TOKEN
    }
    assert consumer.peer.granted == {}
    assert consumer.peer.followed() == []


def test_a_namespace_is_withdrawn_with_its_token_and_what_came_from_there_ends(authority):
    world = authority.world
    publisher = authority.publisher(ttl=10.0)
    publisher.add_groups(0)
    consumer = world.client()
    listed = consumer.send(
        consumer.session.subscribe_namespace, SCOPE, authority.with_token(Role.CONSUMER, 1000.0)
    )
    request_id = consumer.subscribe(authority.with_token(Role.CONSUMER, 1000.0, WHOLE))
    assert consumer.objects(request_id) == whole(1)

    world.pass_time(10.5)
    publisher.add_groups(1)

    assert consumer.of(listed, ev.NamespaceDoneReceived)
    assert consumer.objects(request_id) == whole(1)
    cancelled = publisher.one(publisher.announced, ev.RequestCancelled)
    assert cancelled.code == StreamResetCode.EXPIRED_AUTH_TOKEN
    world.pass_time(15.0)  # publisher_wait
    assert consumer.of(request_id, ev.PublishDoneReceived)


def test_a_publisher_that_comes_back_with_a_new_token_goes_on(authority):
    world = authority.world
    publisher = authority.publisher(ttl=10.0)
    publisher.add_groups(0)
    consumer = world.client()
    request_id = consumer.subscribe(authority.with_token(Role.CONSUMER, 1000.0, WHOLE))

    world.pass_time(10.5)
    publisher.add_groups(1)
    publisher.send(
        publisher.session.publish_namespace, NAMESPACE, authority.with_token(Role.PRODUCER, 100.0)
    )
    publisher.add_groups(2)
    world.pass_time(1.0)

    assert sorted(consumer.objects(request_id)) == whole(3)
    assert consumer.of(request_id, ev.PublishDoneReceived) == []


def test_an_update_with_a_new_token_renews_a_namespace(authority):
    world = authority.world
    publisher = authority.publisher(ttl=10.0)
    world.pass_time(8.0)

    renew(authority, publisher, publisher.announced, Role.PRODUCER, 10.0)
    world.pass_time(8.0)
    publisher.add_groups(0)
    consumer = world.client()
    request_id = consumer.subscribe(authority.with_token(Role.CONSUMER, 1000.0, WHOLE))

    assert consumer.objects(request_id) == whole(1)
    assert authority.ended == {}


def test_a_pushed_track_ends_with_its_token(authority):
    publisher = authority.world.client()
    publisher.peer.tokens = (authority.token(Role.PRODUCER, 10.0),)
    request_id = push(publisher)
    publisher.add_groups(0)

    authority.world.pass_time(11.0)
    publisher.add_groups(1)

    (cancelled,) = publisher.of(request_id, ev.RequestCancelled)
    assert cancelled.code == StreamResetCode.EXPIRED_AUTH_TOKEN
    assert authority.world.core.track(TRACK).supply.subscriptions == []


def test_a_subscription_to_namespaces_ends_with_its_token(authority):
    consumer = authority.world.client()
    request_id = consumer.send(
        consumer.session.subscribe_namespace, SCOPE, authority.with_token(Role.CONSUMER, 10.0)
    )

    authority.world.pass_time(11.0)
    authority.publisher()

    assert consumer.of(request_id, ev.NamespaceReceived) == []
    cancelled = consumer.one(request_id, ev.RequestCancelled)
    assert cancelled.code == StreamResetCode.EXPIRED_AUTH_TOKEN


def test_what_a_subscription_to_tracks_brought_ends_with_its_token(authority):
    publisher = authority.world.client()
    publisher.peer.tokens = (authority.token(Role.PRODUCER, 1000.0),)
    push(publisher)
    consumer = authority.world.client()
    request_id = consumer.send(
        consumer.session.subscribe_tracks, SCOPE, authority.with_token(Role.CONSUMER, 10.0)
    )
    (published,) = consumer.asked(ev.PublishReceived)
    consumer.session.accept(published.request_id, now=authority.world.now)
    authority.world.settle()
    publisher.add_groups(0)
    assert consumer.objects(published.request_id) == whole(1)

    authority.world.pass_time(11.0)
    publisher.add_groups(1)

    assert consumer.of(request_id, ev.RequestCancelled)
    done = consumer.one(published.request_id, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.EXPIRED
    assert consumer.objects(published.request_id) == whole(1)


def test_a_subscription_to_tracks_that_is_renewed_renews_what_it_brought(authority):
    publisher = authority.world.client()
    publisher.peer.tokens = (authority.token(Role.PRODUCER, 1000.0),)
    push(publisher)
    consumer = authority.world.client()
    request_id = consumer.send(
        consumer.session.subscribe_tracks, SCOPE, authority.with_token(Role.CONSUMER, 10.0)
    )
    (published,) = consumer.asked(ev.PublishReceived)
    consumer.session.accept(published.request_id, now=authority.world.now)
    authority.world.pass_time(8.0)

    renew(authority, consumer, request_id, Role.CONSUMER, 100.0)
    authority.world.pass_time(20.0)
    publisher.add_groups(0)

    assert consumer.objects(published.request_id) == whole(1)
    assert authority.ended == {}


def test_a_key_that_is_withdrawn_ends_what_it_allowed(authority):
    publisher = authority.publisher()
    publisher.add_groups(0)
    consumer = authority.world.client()
    request_id = consumer.subscribe(authority.with_token(Role.CONSUMER, 1000.0, WHOLE))

    authority.policy.replace_keys([])
    authority.world.core.admission.review.everything(now=authority.world.now)
    authority.world.settle()

    done = consumer.one(request_id, ev.PublishDoneReceived)
    assert done.status_code == PublishDoneCode.UNAUTHORIZED
    assert publisher.of(publisher.announced, ev.RequestCancelled)
    assert authority.ended == {"UNAUTHORIZED": 2}


def test_keys_that_are_added_change_nothing_that_runs(authority):
    authority.publisher()
    consumer = authority.world.client()
    request_id = consumer.subscribe(authority.with_token(Role.CONSUMER, 1000.0, WHOLE))

    authority.policy.replace_keys([MacKey(b"new", bytes(32)), KEY])
    authority.world.core.admission.review.everything(now=authority.world.now)
    authority.world.settle()

    assert consumer.of(request_id, ev.PublishDoneReceived) == []
    assert authority.ended == {}


def test_a_move_is_judged_by_the_prefix_and_the_token_that_it_brings(authority):
    other = TrackNamespace((b"kvcs-1", b"other"))
    consumer = authority.world.client()
    request_id = consumer.send(
        consumer.session.subscribe_namespace, SCOPE, authority.with_token(Role.CONSUMER, 10.0)
    )
    token = authority.token(Role.CONSUMER, 10.0, scope=other)
    publisher = authority.world.client()
    publisher.peer.tokens = (authority.token(Role.PRODUCER, 1000.0, scope=other),)
    publisher.announce(TrackNamespace((*other.fields, b"pub")))

    consumer.send(
        consumer.session.update,
        request_id,
        Parameters(track_namespace_prefix=other, authorization_tokens=(token,)),
    )

    assert consumer.of(request_id, ev.UpdateAccepted)
    assert [event.suffix for event in consumer.of(request_id, ev.NamespaceReceived)] == [
        TrackNamespace((b"pub",))
    ]


@pytest.mark.parametrize("kind", ["subscribe_namespace", "subscribe_tracks"])
def test_a_move_that_is_refused_leaves_nothing_behind(authority, kind):
    other = TrackNamespace((b"kvcs-1", b"other"))
    consumer = authority.world.client()
    ask = getattr(consumer.session, kind)
    request_id = consumer.send(ask, SCOPE, authority.with_token(Role.CONSUMER, 10.0))

    consumer.send(consumer.session.update, request_id, Parameters(track_namespace_prefix=other))
    again = consumer.send(ask, SCOPE, authority.with_token(Role.CONSUMER, 10.0))

    assert consumer.one(request_id, ev.UpdateRejected).code == RequestErrorCode.UNAUTHORIZED
    assert consumer.of(again, ev.RequestAccepted)
    assert set(consumer.peer.granted) == {again}


def test_the_log_tells_what_ended_and_not_by_which_token(authority, caplog):
    authority.publisher()
    consumer = authority.world.client()
    token = authority.token(Role.CONSUMER, 10.0)
    with caplog.at_level(logging.INFO, logger="kvcs.relay"):
        consumer.subscribe(Parameters(authorization_tokens=(token,)))
        authority.world.pass_time(11.0)

    (record,) = [r for r in caplog.records if getattr(r, "event", "") == "grant-ended"]
    assert record.getMessage().endswith("ended: EXPIRED_AUTH_TOKEN (a token has expired)")
    assert FullTrackName.format(TRACK) in record.getMessage()
    for record in caplog.records:
        text = record.getMessage() + repr(vars(record))
        assert token.value.hex()[:16] not in text
        assert repr(token.value)[2:20] not in text


def test_many_short_grants_cost_few_looks(authority, monkeypatch):
    looks = []
    review = authority.world.core.admission.review
    monkeypatch.setattr(type(review), "_look", lambda _self, now: looks.append(now))
    consumer = authority.world.client()

    for number in range(100):
        name = TrackNamespace((*SCOPE.fields, b"%d" % number))
        parameters = authority.with_token(Role.CONSUMER, 10.0 + number / 1000)
        consumer.send(consumer.session.subscribe_namespace, name, parameters)
    authority.world.pass_time(11.0)

    assert len(looks) == 1


@pytest.mark.parametrize("is_reviewed", [False, True])
def test_very_many_are_decided_in_parts(authority, monkeypatch, is_reviewed):
    monkeypatch.setattr("kvcs.relay.review._MOST_AT_ONCE", 10)
    world, core, clients = authority.world, authority.world.core, []
    for _ in range(3):
        consumer = world.client()
        clients.append(consumer)
        for number in range(15):
            name = TrackNamespace((*SCOPE.fields, b"%d" % number))
            parameters = authority.with_token(Role.CONSUMER, 10.0)
            consumer.send(consumer.session.subscribe_namespace, name, parameters)
    if is_reviewed:
        authority.policy.replace_keys(())
        core.admission.review.everything(now=world.now)
        world.now += 0.25
    else:
        world.now += 10.25
    left = []
    while any(consumer.peer.granted for consumer in clients):
        left.append(sum(len(consumer.peer.granted) for consumer in clients))
        core.advance(now=world.now)

    assert left == ([35, 25, 15, 5] if is_reviewed else [45, 35, 25, 15, 5])


def test_a_parent_is_not_asked_for_tokens(authority):
    client = authority.world.client()
    client.peer.is_parent = True
    request_id = client.send(client.session.subscribe_namespace, SCOPE)

    authority.world.core.admission.review.everything(now=authority.world.now)

    assert client.of(request_id, ev.RequestAccepted)
    assert authority.ended == {}


def test_a_policy_that_fails_lets_nothing_go_on_and_is_asked_for_the_others(make_world):
    failing = set()

    def policy(access):
        if access.track_name in failing:
            raise ValueError("a fault of the policy")
        return Grant(10.0)

    world = make_world(authorize=policy)
    world.publisher()
    consumer = world.client()
    names = [FullTrackName(NAMESPACE, name) for name in (b"first", b"second")]
    waiting = Parameters(rendezvous_timeout_ms=60_000)
    first, second = (consumer.subscribe(waiting, track=name) for name in names)
    failing.update(name.name for name in names)
    for _ in names:
        world.now += 11.0
        with pytest.raises(ValueError, match="a fault of the policy"):
            world.core.advance(now=world.now)
    world.settle()

    assert consumer.rejection(first) == RequestErrorCode.UNAUTHORIZED
    assert consumer.rejection(second) == RequestErrorCode.UNAUTHORIZED
