"""A peer keeps what it has with a token that would not have opened it."""

from dataclasses import replace

import pytest
from tests.attacks.guarded import (
    NAMESPACE,
    OTHER_SCOPE,
    SCOPE,
    UNAUTHORIZED,
    Guarded,
    raw,
)

from kvcs.c4m import Action, Match, Role, Scope, mint
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import FullTrackName

LESSER = {
    "another role": lambda guarded: guarded.token(Role.PRODUCER),
    "another scope": lambda guarded: guarded.token(Role.RELAY, scope=OTHER_SCOPE),
    "expired": lambda guarded: guarded.token(Role.RELAY, -1.0),
    "rubbish": lambda _: raw(b"\xd1"),
}


def update(guarded, request_id, token, **more):
    client = guarded.stranger
    parameters = Parameters(authorization_tokens=(token,), **more)
    client.send(client.session.update, request_id, parameters)


@pytest.mark.parametrize("lesser", LESSER.values(), ids=LESSER)
@pytest.mark.parametrize("kind", ["subscribe", "subscribe_namespace", "subscribe_tracks"])
def test_an_update_with_a_lesser_token_ends_what_it_updates(kind, lesser):
    guarded = Guarded()
    request_id = guarded.ask(kind, guarded.token(Role.CONSUMER))

    update(guarded, request_id, lesser(guarded))
    guarded.publisher.add_groups(1)

    assert guarded.stranger.of(request_id, ev.UpdateRejected)
    assert guarded.stranger.objects(request_id) == []
    assert guarded.stranger.peer.granted == {}
    guarded.assert_untouched()


def test_an_update_without_a_token_does_not_prolong_anything():
    guarded = Guarded()
    request_id = guarded.ask("subscribe", guarded.token(Role.CONSUMER, 10.0))
    client = guarded.stranger
    for _ in range(9):
        guarded.world.pass_time(1.0)
        client.send(client.session.update, request_id, Parameters(subscriber_priority=1))

    guarded.world.pass_time(1.5)

    assert client.of(request_id, ev.PublishDoneReceived)


def test_a_prefix_does_not_move_out_of_the_scope_of_the_token():
    guarded = Guarded()
    request_id = guarded.ask(
        "subscribe_namespace", guarded.token(Role.CONSUMER, scope=OTHER_SCOPE),
        namespace=OTHER_SCOPE,
    )  # fmt: skip

    update(
        guarded,
        request_id,
        guarded.token(Role.CONSUMER, scope=OTHER_SCOPE),
        track_namespace_prefix=SCOPE,
    )

    (rejected,) = guarded.stranger.of(request_id, ev.UpdateRejected)
    assert rejected.code == UNAUTHORIZED
    assert guarded.stranger.of(request_id, ev.NamespaceReceived) == []


def test_a_publisher_with_a_lesser_token_is_listed_no_longer():
    guarded = Guarded()
    name = NAMESPACE.fields[:-1]
    request_id = guarded.ask(
        "publish_namespace", guarded.token(Role.PRODUCER), namespace=type(NAMESPACE)((*name, b"x"))
    )
    assert guarded.world.statistics.namespaces == 2

    update(guarded, request_id, guarded.token(Role.CONSUMER))

    guarded.assert_untouched()


def test_a_track_that_another_token_lets_through_ends_with_that_one():
    """The one opens the prefix and no Track that is there, the other one all Tracks for a while."""
    guarded = Guarded()
    actions = frozenset({Action.SUBSCRIBE_NAMESPACE, Action.SUBSCRIBE})
    fields = tuple(map(Match.exact, SCOPE.fields))
    other = Scope(actions=actions, namespace=fields, track=Match.exact(b"another"))
    claims = replace(guarded.claims(Role.CONSUMER), scopes=(other,))
    tokens = raw(mint(claims, guarded.mac)), guarded.token(Role.CONSUMER, 5.0)
    asked = guarded.ask("subscribe_tracks", *tokens, namespace=SCOPE)
    publisher, track = guarded.world.client(), FullTrackName(NAMESPACE, b"pushed")
    parameters = Parameters(authorization_tokens=(guarded.token(Role.PRODUCER),))
    request_id = publisher.send(publisher.session.publish, track, parameters)
    publisher.responder.serve_publish(
        request_id, publisher.store(track), parameters, now=guarded.world.now
    )
    guarded.world.settle()
    (published,) = [e for e in guarded.stranger.events if isinstance(e, ev.PublishReceived)]
    guarded.stranger.send(guarded.stranger.session.accept, published.request_id)

    guarded.world.pass_time(5.5)

    assert guarded.stranger.of(published.request_id, ev.PublishDoneReceived)
    assert guarded.stranger.link.session.is_active(asked)
