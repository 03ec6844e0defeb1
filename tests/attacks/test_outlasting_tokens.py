"""A publisher goes on sending when its token is over: what is received goes by a token always.

Taking a namespace back ends no subscription, and a FETCH that is under way brings all of its range.
So both can be begun with a token and go on without one.
"""

import pytest
from tests.attacks.guarded import NAMESPACE, OTHER_SCOPE, SCOPE, TRACK, Guarded, raw
from tests.unit.relay.world import BLOCKS, World, whole

from kvcs.c4m import Role
from kvcs.errors import PublishDoneCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.session.actions import SendStream
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import FullTrackName, TrackNamespace

NAME = TrackNamespace((*SCOPE.fields, b"compat", b"anchor", b"liar"))
OWN = FullTrackName(NAME, TRACK.name)
UNIDIRECTIONAL = 2


class Outlasting:
    """A publisher with a token for five seconds, and a subscriber of its one Track."""

    def __init__(self):
        self.guarded = Guarded()
        self.world = self.guarded.world
        self.liar, self.consumer = self.guarded.stranger, self.world.client()
        self.announced = self.announce()
        self.liar.add_groups(0, track=OWN)

    def token(self, ttl=5.0, role=Role.PRODUCER, **more):
        return self.guarded.token(role, ttl, key=self.guarded.signer, **more)

    def announce(self, namespace=NAME, **more):
        return self.guarded.ask("publish_namespace", self.token(**more), namespace=namespace)

    def take(self, kind):
        reader = self.guarded.token(Role.CONSUMER)
        return self.guarded.ask(kind, reader, namespace=NAME, client=self.consumer)

    def update(self, token):
        update = Parameters(authorization_tokens=(token,))
        self.liar.send(self.liar.session.update, self.announced, update)

    def hold(self):
        """Send no data for now."""
        self.liar.held = lambda action: (
            isinstance(action, SendStream) and bool(action.stream_id & UNIDIRECTIONAL)
        )

    def let_go(self):
        self.liar.held = None
        self.world.settle()

    def is_received(self, request_id):
        """Send a Group; tell whether it came through."""
        self.liar.add_groups(1, track=OWN)
        return (1, 0) in self.consumer.objects(request_id)


@pytest.fixture
def outlasting():
    return Outlasting()


ENDS = {
    "cancels": lambda it: it.liar.send(it.liar.session.cancel, it.announced),
    "another role": lambda it: it.update(it.token(50.0, Role.CONSUMER)),
    "another scope": lambda it: it.update(it.token(50.0, scope=OTHER_SCOPE)),
    "rubbish": lambda it: it.update(raw(b"\xd1")),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_who_takes_a_namespace_back_sends_no_longer_than_its_token_lasts(outlasting, end):
    request_id = outlasting.take("subscribe")

    end(outlasting)
    outlasting.world.pass_time(4.0)
    assert outlasting.is_received(request_id)
    outlasting.world.pass_time(1.5)
    outlasting.liar.add_groups(2, track=OWN)

    assert (2, 0) not in outlasting.consumer.objects(request_id)
    assert outlasting.guarded.ended == {"EXPIRED_AUTH_TOKEN": 1}
    assert outlasting.liar.peer.withdrawn == {}
    outlasting.guarded.assert_untouched()


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_who_takes_a_namespace_back_sends_nothing_once_its_key_is_withdrawn(outlasting, end):
    request_id = outlasting.take("subscribe")
    end(outlasting)

    outlasting.guarded.withdraw(outlasting.guarded.signer.public)

    assert not outlasting.is_received(request_id)
    assert outlasting.guarded.ended == {"UNAUTHORIZED": 1}


def test_a_fetch_that_is_under_way_ends_with_the_token_of_who_serves_it(outlasting):
    outlasting.hold()
    request_id = outlasting.take("fetch")
    outlasting.world.pass_time(5.5)
    outlasting.let_go()

    assert outlasting.consumer.objects(request_id) == []
    assert outlasting.consumer.markers(request_id) or outlasting.consumer.of(
        request_id, ev.RequestRejected
    )


def test_a_fetch_that_is_not_answered_is_for_what_does_not_exist_then(outlasting):
    outlasting.liar.silent = {ev.FetchReceived}
    request_id = outlasting.take("fetch")
    outlasting.world.pass_time(5.5)

    assert outlasting.guarded.refusal(request_id, outlasting.consumer)[:2] == (
        0x10,
        "no publisher",
    )


def push(guarded, track=OWN, ttl=5.0):
    """Publish a Track to the relay, without announcing its namespace."""
    liar = guarded.stranger
    liar.add_groups(0, 1, track=track)
    token, largest = guarded.token(Role.PRODUCER, ttl), liar.store(track).largest
    parameters = Parameters(authorization_tokens=(token,), largest_object=largest)
    request_id = liar.send(liar.session.publish, track, parameters)
    liar.responder.serve_publish(request_id, liar.store(track), parameters, now=guarded.world.now)
    guarded.world.settle()
    return request_id


def asked_of(guarded):
    """Have a FETCH be under way at who published; return that FETCH."""
    guarded.stranger.silent = {ev.FetchReceived}
    consumer = guarded.world.client()
    guarded.ask("fetch", guarded.token(Role.CONSUMER), namespace=NAME, client=consumer)
    (asked,) = guarded.stranger.asked(ev.FetchReceived)
    return asked.request_id


def done(guarded, request_id):
    guarded.stranger.session.publish_done(
        request_id, PublishDoneCode.TRACK_ENDED, now=guarded.world.now
    )
    guarded.world.settle()


PUBLISH_ENDS = {
    "not": lambda *_: None,
    "with PUBLISH_DONE": done,
    "by a reset": lambda guarded, request_id: guarded.stranger.send(
        guarded.stranger.session.cancel, request_id
    ),
}


@pytest.mark.parametrize("end", PUBLISH_ENDS.values(), ids=PUBLISH_ENDS)
def test_a_fetch_ends_with_the_token_of_the_publish_that_it_was_sent_for(end):
    guarded = Guarded()
    liar, published = guarded.stranger, push(guarded)
    request_id = asked_of(guarded)

    end(guarded, published)
    guarded.world.pass_time(4.0)
    assert not liar.of(request_id, ev.RequestCancelled)
    guarded.world.pass_time(1.5)

    assert liar.of(request_id, ev.RequestCancelled)
    assert liar.peer.withdrawn == {}


def test_a_fetch_goes_by_the_token_of_its_own_track():
    guarded = Guarded()
    liar, published = guarded.stranger, push(guarded)
    request_id = asked_of(guarded)
    done(guarded, published)

    other = FullTrackName(NAME, b"another")
    done(guarded, push(guarded, other, ttl=100.0))
    liar.peer.presented = ()
    guarded.world.pass_time(5.5)

    assert liar.of(request_id, ev.RequestCancelled)


def test_what_nobody_fetches_is_not_remembered_when_its_publish_ends():
    guarded = Guarded()
    for number in range(20):
        done(guarded, push(guarded, FullTrackName(NAME, b"%d" % number)))

    assert guarded.stranger.peer.withdrawn == {}
    assert not guarded.stranger.peer.granted


def test_a_publisher_that_announces_again_with_a_new_token_goes_on(outlasting):
    request_id = outlasting.take("subscribe")
    outlasting.liar.send(outlasting.liar.session.cancel, outlasting.announced)
    outlasting.announce(ttl=100.0)
    outlasting.world.pass_time(6.0)

    assert outlasting.is_received(request_id)
    assert outlasting.guarded.ended == {}
    assert outlasting.liar.peer.withdrawn == {}


def test_a_publisher_that_has_shown_another_good_token_since_goes_on(outlasting):
    request_id = outlasting.take("subscribe")
    outlasting.liar.send(outlasting.liar.session.cancel, outlasting.announced)
    other = TrackNamespace((*NAME.fields[:-1], b"other"))
    outlasting.announce(other, ttl=20.0)
    outlasting.world.pass_time(15.0)
    assert outlasting.is_received(request_id)
    assert outlasting.guarded.ended == {}
    outlasting.world.pass_time(6.0)

    outlasting.liar.add_groups(2, track=OWN)
    assert (2, 0) not in outlasting.consumer.objects(request_id)


def test_a_publisher_that_announces_more_with_another_token_goes_on(outlasting):
    request_id = outlasting.take("subscribe")
    outlasting.announce(TrackNamespace(NAME.fields[:-1]), ttl=100.0)
    outlasting.world.pass_time(6.0)

    assert outlasting.is_received(request_id)
    assert outlasting.guarded.ended == {"EXPIRED_AUTH_TOKEN": 1}


@pytest.mark.parametrize("is_used", [False, True])
def test_announcing_and_taking_back_all_day_is_remembered_once_and_only_in_use(outlasting, is_used):
    if is_used:
        outlasting.take("subscribe")
    for _ in range(50):
        outlasting.liar.send(outlasting.liar.session.cancel, outlasting.announced)
        assert list(outlasting.liar.peer.withdrawn) == ([NAME] if is_used else [])
        outlasting.announced = outlasting.announce(ttl=1000.0)

    assert outlasting.guarded.ended == {}
    assert not outlasting.liar.link.session.is_closed


def test_where_everything_is_allowed_nothing_ends_and_nothing_is_remembered_for_good():
    world = World()
    publisher, consumer = world.publisher(), world.client()
    publisher.add_groups(0)
    request_id = consumer.subscribe()
    (announced,) = publisher.peer.granted

    publisher.send(publisher.session.cancel, announced)
    assert list(publisher.peer.withdrawn) == [NAMESPACE]
    world.pass_time(61.0)
    publisher.add_groups(1)
    assert consumer.objects(request_id)[-BLOCKS:] == whole(2)[-BLOCKS:]
    consumer.send(consumer.session.cancel, request_id)
    world.pass_time(75.0)

    assert publisher.peer.withdrawn == {}
    assert not publisher.link.session.is_closed
