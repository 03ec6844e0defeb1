import pytest

from kvcs.errors import LocalProtocolError, TerminationCode
from kvcs.moqt.session.actions import CloseSession
from kvcs.moqt.session.events import (
    NamespaceDoneReceived,
    NamespaceReceived,
    PublishNamespaceReceived,
    PublishSkippedReceived,
    RequestAccepted,
    RequestCancelled,
    RequestRejected,
    SubscribeNamespaceReceived,
    SubscribeTracksReceived,
)
from kvcs.moqt.wire.namespace import (
    Namespace,
    NamespaceDone,
    PublishNamespace,
    PublishSkipped,
    SubscribeNamespace,
    SubscribeTracks,
)
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.request import RequestOk
from kvcs.moqt.wire.token import Token
from kvcs.names import MAX_FIELDS, TrackNamespace


def ns(*fields):
    return TrackNamespace(tuple(field.encode() for field in fields))


def closing_code(session):
    (action,) = session.take_actions()
    assert isinstance(action, CloseSession)
    return action.code


def test_publish_namespace_lives_until_it_is_withdrawn(pair):
    parameters = Parameters(authorization_tokens=(Token.use_value(b"secret"),))
    request_id = pair.client.publish_namespace(ns("kvcs", "a"), parameters, now=0)
    _, received = pair.run()
    pair.server.accept(request_id, now=0)
    accepted, _ = pair.run()
    pair.client.cancel(request_id, now=0)
    _, withdrawn = pair.run()

    assert received == [PublishNamespaceReceived(0, ns("kvcs", "a"), parameters)]
    assert [type(event) for event in accepted] == [RequestAccepted]
    assert withdrawn == [RequestCancelled(0, 1)]


def test_fin_does_not_withdraw_a_namespace(to_server):
    peer = to_server()
    message = PublishNamespace(request_id=0, track_namespace_prefix=ns("kvcs"))
    peer.say(0, message, fin=True)
    peer.session.accept(0, now=0)

    assert peer.session.is_active(0)


def test_namespaces_are_announced_and_withdrawn_by_suffix(pair):
    request_id = pair.client.subscribe_namespace(ns("kvcs"), now=0)
    _, received = pair.run()
    pair.server.accept(request_id, now=0)
    pair.server.announce(request_id, ns("a", "b"), now=0)
    pair.server.announce(request_id, ns(), now=0)
    pair.server.withdraw(request_id, ns("a", "b"), now=0)
    events, _ = pair.run()

    assert received == [SubscribeNamespaceReceived(0, ns("kvcs"), Parameters())]
    assert events[1:] == [
        NamespaceReceived(0, ns("a", "b")),
        NamespaceReceived(0, ns()),
        NamespaceDoneReceived(0, ns("a", "b")),
    ]


def test_end_of_the_answering_stream_takes_all_namespaces_back(to_client):
    peer = to_client()
    peer.session.subscribe_namespace(ns("kvcs"), now=0)
    peer.say(0, RequestOk(), *(Namespace(track_namespace_suffix=ns(x)) for x in "ba"))

    events = peer.say(0, fin=True)

    assert events == [
        NamespaceDoneReceived(0, ns("a")),
        NamespaceDoneReceived(0, ns("b")),
        RequestCancelled(0, 0),
    ]


def test_revoked_discovery_takes_all_namespaces_back(pair):
    pair.client.subscribe_namespace(ns("kvcs"), now=0)
    pair.run()
    pair.server.accept(0, now=0)
    pair.server.announce(0, ns("a"), now=0)
    pair.run()

    pair.server.revoke(0, code=9, now=0)
    events, _ = pair.run()

    assert events == [NamespaceDoneReceived(0, ns("a")), RequestCancelled(0, 9)]


def test_namespace_done_without_namespace_is_a_violation(to_client):
    peer = to_client()
    peer.session.subscribe_namespace(ns("kvcs"), now=0)
    peer.say(0, RequestOk(), Namespace(track_namespace_suffix=ns("a")))
    peer.session.take_actions()

    peer.say(0, NamespaceDone(track_namespace_suffix=ns("b")))

    assert closing_code(peer.session) == TerminationCode.PROTOCOL_VIOLATION


def test_suffix_that_makes_the_namespace_too_long_is_a_violation(to_client, pair):
    long = ns(*["x"] * MAX_FIELDS)
    peer = to_client()
    peer.session.subscribe_namespace(ns("kvcs"), now=0)
    peer.say(0, RequestOk())
    peer.session.take_actions()

    peer.say(0, Namespace(track_namespace_suffix=long))

    assert closing_code(peer.session) == TerminationCode.PROTOCOL_VIOLATION
    pair.client.subscribe_namespace(ns("kvcs"), now=0)
    pair.run()
    pair.server.accept(0, now=0)
    with pytest.raises(LocalProtocolError):
        pair.server.announce(0, long, now=0)


def test_only_announced_namespaces_can_be_withdrawn(pair):
    pair.client.subscribe_namespace(ns("kvcs"), now=0)
    pair.run()
    pair.server.accept(0, now=0)

    with pytest.raises(LocalProtocolError):
        pair.server.withdraw(0, ns("a"), now=0)


def test_too_many_namespaces_cancel_the_request(to_client):
    peer = to_client(max_namespaces=2)
    peer.session.subscribe_namespace(ns("kvcs"), now=0)
    peer.say(0, RequestOk())

    events = peer.say(0, *(Namespace(track_namespace_suffix=ns(x)) for x in "abcd"))

    assert events[-1] == RequestCancelled(0, 9)
    assert not peer.session.is_active(0)
    assert not peer.session.is_closed


@pytest.mark.parametrize(
    ("second", "overlaps"),
    [
        (ns("kvcs", "a"), True),
        (ns("kvcs", "a", "b"), True),
        (ns("kvcs"), True),
        (ns(), True),
        (ns("kvcs", "b"), False),
        (ns("kvc"), False),
    ],
)
def test_overlapping_prefixes_are_refused(pair, second, overlaps):
    pair.client.subscribe_namespace(ns("kvcs", "a"), now=0)
    pair.run()

    pair.client.subscribe_namespace(second, now=0)
    events, received = pair.run()

    assert bool(received) is not overlaps
    assert (RequestRejected(2, 0x30, "prefixes overlap") in events) is overlaps


def test_prefixes_of_tracks_and_namespaces_and_of_both_sides_are_apart(pair):
    pair.client.subscribe_namespace(ns("kvcs"), now=0)
    pair.client.subscribe_tracks(ns("kvcs"), now=0)
    pair.client.publish_namespace(ns("kvcs"), now=0)
    pair.client.publish_namespace(ns("kvcs"), now=0)
    pair.server.subscribe_namespace(ns("kvcs"), now=0)

    events, received = pair.run()

    assert len(received) == 4
    assert len(events) == 1


def test_prefix_is_free_again_after_its_subscription(pair):
    pair.client.subscribe_namespace(ns("kvcs"), now=0)
    pair.run()
    pair.client.cancel(0, now=0)
    pair.client.subscribe_namespace(ns("kvcs"), now=0)

    _, received = pair.run()

    assert isinstance(received[-1], SubscribeNamespaceReceived)


def test_tracks_that_will_not_be_published_are_named(pair):
    pair.client.subscribe_tracks(ns("kvcs"), now=0)
    _, received = pair.run()
    pair.server.accept(0, now=0)
    pair.server.skip_publish(0, ns("a"), b"t", now=0)
    events, _ = pair.run()

    assert received == [SubscribeTracksReceived(0, ns("kvcs"), Parameters())]
    assert events[-1] == PublishSkippedReceived(0, ns("a"), b"t")


def test_commands_that_cross_a_cancellation_are_ignored(pair):
    pair.client.subscribe_namespace(ns("kvcs"), now=0)
    pair.client.subscribe_tracks(ns("kvcs"), now=0)
    pair.run()
    pair.server.accept(0, now=0)
    pair.client.cancel(0, now=0)
    pair.client.cancel(2, now=0)
    pair.run()

    pair.server.announce(0, ns("a"), now=0)
    pair.server.withdraw(0, ns("a"), now=0)
    pair.server.skip_publish(2, ns("a"), b"t", now=0)
    pair.server.accept(2, now=0)

    assert pair.server.take_actions() == []


@pytest.mark.parametrize(
    "message",
    [
        Namespace(track_namespace_suffix=ns("a")),
        PublishSkipped(track_namespace_suffix=ns("a"), track_name=b"t"),
    ],
    ids=["NAMESPACE", "PUBLISH_SKIPPED"],
)
def test_nothing_comes_before_the_answer(to_client, message):
    peer = to_client()
    peer.session.subscribe_namespace(ns("kvcs"), now=0)
    peer.session.take_actions()

    peer.say(0, message)

    assert closing_code(peer.session) == TerminationCode.PROTOCOL_VIOLATION


@pytest.mark.parametrize("kind", [PublishNamespace, SubscribeNamespace, SubscribeTracks])
def test_reserved_prefix_is_refused(to_server, kind):
    peer = to_server()

    events = peer.say(0, kind(request_id=0, track_namespace_prefix=ns(".session")))

    assert events == []
    assert not peer.session.is_active(0)
