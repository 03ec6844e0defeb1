import pytest

from kvcs.errors import LocalProtocolError, TerminationCode
from kvcs.moqt.codepoints import GroupOrder, ParameterType
from kvcs.moqt.session.actions import CloseSession, ResetStream
from kvcs.moqt.session.events import (
    FetchOpened,
    PublishDoneReceived,
    RequestCancelled,
    RequestRejected,
    StreamAborted,
    SubscriptionDrained,
    Unheard,
    UpdateAccepted,
    UpdateReceived,
    UpdateRejected,
)
from kvcs.moqt.session.limits import SessionConfig, SessionLimits
from kvcs.moqt.wire.filters import Range, RangeFilter
from kvcs.moqt.wire.parameters import FillParameters, Parameters
from kvcs.moqt.wire.properties import Properties
from kvcs.moqt.wire.publish import Publish
from kvcs.moqt.wire.request import RequestOk, RequestUpdate
from kvcs.moqt.wire.setup import SetupOptions
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.moqt.wire.subscribe import Subscribe, SubscribeOk
from kvcs.moqt.wire.token import Token
from kvcs.names import FullTrackName, Location, TrackNamespace

PREFIX = TrackNamespace((b"kvcs",))
TRACK = FullTrackName(PREFIX, b"t")
HEADER = SubgroupHeader(track_alias=0, group_id=1, subgroup_id=0, publisher_priority=5)
PAUSE = Parameters(forward=False)


def object_ids(*ranges):
    return RangeFilter(
        kind=ParameterType.OBJECTID_FILTER, ranges=tuple(Range(a, b) for a, b in ranges)
    )


def update(request_id, *filters):
    return RequestUpdate(request_id=request_id, parameters=Parameters(range_filters=filters))


@pytest.fixture
def subscribed(pair):
    pair.client.subscribe(TRACK, now=0)
    pair.run()
    pair.server.accept_subscribe(0, now=0)
    pair.run()
    return pair


def closing_code(session):
    (action,) = session.take_actions()
    assert isinstance(action, CloseSession)
    return action.code


def test_updates_are_answered_in_order(subscribed):
    first = subscribed.client.update(0, PAUSE, now=0)
    second = subscribed.client.update(0, Parameters(subscriber_priority=3), now=0)
    _, received = subscribed.run()

    subscribed.server.accept_update(0, Parameters(expires_ms=5), now=0)
    subscribed.server.accept_update(0, now=0)
    answered, _ = subscribed.run()

    assert received == [
        UpdateReceived(0, first, PAUSE),
        UpdateReceived(0, second, Parameters(subscriber_priority=3)),
    ]
    assert answered == [
        UpdateAccepted(0, first, Parameters(expires_ms=5)),
        UpdateAccepted(0, second, Parameters()),
    ]
    assert subscribed.client.next_deadline() is None
    with pytest.raises(LocalProtocolError):
        subscribed.server.accept_update(0, now=0)
    with pytest.raises(LocalProtocolError):
        subscribed.server.reject_update(0, 0, now=0)


def test_rejected_update_ends_a_subscription_with_update_failed(subscribed):
    stream_id = subscribed.server.open_subgroup(0, HEADER, priority=4, now=0)
    update_id = subscribed.client.update(0, PAUSE, now=0)
    subscribed.run()

    subscribed.server.reject_update(0, 1, "no", now=0)
    events, _ = subscribed.run()

    assert events == [
        UpdateRejected(0, update_id, 1, "no"),
        StreamAborted(0, stream_id, 1),
        PublishDoneReceived(0, 8, 1, ""),
        SubscriptionDrained(0, complete=True),
    ]
    assert not subscribed.server._registry.by_stream


def test_rejected_update_ends_a_fetch_with_its_stream(pair):
    pair.client.fetch(TRACK, now=0)
    pair.run()
    stream_id = pair.server.open_fetch_stream(0, priority=4, now=0)
    pair.server.accept_fetch(0, end_of_track=False, end_location=Location(0, 0), now=0)
    update_id = pair.client.update(0, Parameters(subscriber_priority=1), now=0)
    pair.run()

    pair.server.reject_update(0, 1, now=0)
    events, _ = pair.run()

    assert events == [UpdateRejected(0, update_id, 1, ""), StreamAborted(0, stream_id, 1)]
    assert ResetStream(stream_id, 1) in pair.server_actions
    assert not pair.client._registry.by_stream


def test_rejected_update_ends_a_namespace_request(pair):
    pair.client.publish_namespace(PREFIX, now=0)
    pair.run()
    pair.server.accept(0, now=0)
    update_id = pair.client.update(0, Parameters(), now=0)
    pair.run()

    pair.server.reject_update(0, 1, now=0)
    events, _ = pair.run()

    assert events == [UpdateRejected(0, update_id, 1, ""), RequestCancelled(0, 1)]
    assert not pair.client._registry.by_stream
    assert not pair.server._registry.by_stream


def test_subscriber_that_rejects_an_update_leaves_the_end_to_the_publisher(pair):
    pair.server.publish(TRACK, now=0)
    pair.run()
    pair.client.accept(1, now=0)
    pair.run()
    update_id = pair.server.update(1, PAUSE, now=0)
    pair.run()

    pair.client.reject_update(1, 1, "no", now=0)
    _, events = pair.run()

    assert events == [UpdateRejected(1, update_id, 1, "no")]
    assert pair.client.is_active(1)


def test_subscriber_updates_a_publication(pair):
    pair.server.publish(TRACK, now=0)
    pair.run()
    pair.client.accept(1, now=0)
    update_id = pair.client.update(1, PAUSE, now=0)
    _, events = pair.run()

    assert events[-1] == UpdateReceived(1, update_id, PAUSE)


def test_fill_of_an_update_names_the_update_and_its_order(subscribed):
    fill = Parameters(fill=FillParameters(group_order=GroupOrder.DESCENDING))
    update_id = subscribed.client.update(0, fill, now=0)
    subscribed.run()

    stream_id = subscribed.server.open_fetch_stream(
        update_id, order=GroupOrder.DESCENDING, priority=4, now=0
    )
    events, _ = subscribed.run()

    assert events == [FetchOpened(0, stream_id, update_id)]
    assert subscribed.client.open_streams(0) == subscribed.server.open_streams(0) == {stream_id}


def test_update_without_fill_takes_no_fetch_stream(subscribed):
    update_id = subscribed.client.update(0, PAUSE, now=0)
    subscribed.run()

    with pytest.raises(LocalProtocolError):
        subscribed.server.open_fetch_stream(update_id, priority=4, now=0)


def test_number_of_remembered_fills_is_bounded(make_pair):
    config = SessionConfig(limits=SessionLimits(max_request_updates=2))
    pair = make_pair(config, config).connect()
    pair.client.subscribe(TRACK, now=0)
    pair.run()
    pair.server.accept_subscribe(0, now=0)
    ids = []
    for _ in range(4):
        ids.append(pair.client.update(0, Parameters(fill=FillParameters()), now=0))
        pair.run()
        pair.server.accept_update(0, now=0)
        pair.run()

    assert list(pair.client._registry.by_id[0].fills) == ids[1:]
    with pytest.raises(LocalProtocolError):
        pair.server.open_fetch_stream(ids[0], priority=4, now=0)


def test_too_many_unanswered_updates_close_the_session(to_server):
    peer = to_server(options=SetupOptions(max_request_updates=1))
    peer.say(0, Subscribe(request_id=0, track=TRACK))
    peer.say(0, RequestUpdate(request_id=2))
    peer.session.take_actions()

    peer.say(0, RequestUpdate(request_id=4))

    assert closing_code(peer.session) == TerminationCode.TOO_MANY_REQUEST_UPDATES


def test_sender_keeps_to_the_number_of_updates_the_peer_takes(make_pair):
    limited = SessionConfig(options=SetupOptions(max_request_updates=1))
    pair = make_pair(None, limited).connect()
    pair.client.subscribe(TRACK, now=0)
    pair.client.update(0, PAUSE, now=0)

    with pytest.raises(LocalProtocolError, match="unanswered already"):
        pair.client.update(0, PAUSE, now=0)


def test_parameter_that_cannot_be_updated_is_a_violation(to_server):
    peer = to_server()
    peer.say(0, Subscribe(request_id=0, track=TRACK))
    peer.session.take_actions()

    moved = Parameters(track_namespace_prefix=PREFIX)
    peer.say(0, RequestUpdate(request_id=2, parameters=moved))

    assert closing_code(peer.session) == TerminationCode.PROTOCOL_VIOLATION


def test_filters_add_up_by_kind_over_updates(to_server):
    peer = to_server(options=SetupOptions(max_filter_ranges=2))
    asked = Parameters(range_filters=(object_ids((0, 1), (3, 4)),))
    peer.say(0, Subscribe(request_id=0, track=TRACK, parameters=asked))
    peer.session.accept_subscribe(0, now=0)
    priority = RangeFilter(kind=ParameterType.PRIORITY_FILTER, ranges=(Range(0, 9),))
    removal = RangeFilter(kind=ParameterType.OBJECTID_FILTER)

    events = [
        *peer.say(0, update(2, object_ids((5, 6)))),
        *peer.say(0, update(4, priority)),
        *peer.say(0, update(6, removal)),
    ]

    assert [type(event) for event in events] == [UpdateReceived] * 3
    assert peer.session._registry.by_id[0].filters == (priority,)


def test_update_with_too_many_filters_ends_an_established_subscription(subscribed):
    raw = update(4, object_ids(*[(2 * i, 2 * i) for i in range(9)])).encode()
    subscribed.server.open_subgroup(0, HEADER, priority=4, now=0)
    waiting = subscribed.client.update(0, PAUSE, now=0)
    subscribed.run()

    subscribed.server.receive_stream(0, raw, False, now=0)
    told = subscribed.server.take_events()

    assert waiting == 2
    assert told == [Unheard(), RequestCancelled(0, 1)]
    events, _ = subscribed.run()
    assert UpdateRejected(0, waiting, 0x36, "9 filter ranges, at most 8") in events


def test_update_with_bad_filters_refuses_a_request_that_is_unanswered(to_server):
    peer = to_server(options=SetupOptions())
    peer.say(0, Subscribe(request_id=0, track=TRACK))

    events = peer.say(0, update(2, object_ids((0, 1))))

    assert events == [RequestCancelled(0, 1)]
    (action,) = peer.session.take_actions()
    assert action.fin
    assert action.data[0] == 0x05


def test_subscriber_refuses_bad_filters_of_a_publisher_without_ending(to_client):
    peer = to_client(options=SetupOptions())
    peer.say(1, Publish(request_id=1, track=TRACK, track_alias=1))
    peer.session.accept(1, now=0)

    events = peer.say(1, update(3, object_ids((0, 1))))

    assert events == []
    assert peer.session.is_active(1)


def test_prefix_of_a_namespace_subscription_moves_with_its_update(pair):
    longer = TrackNamespace((b"kvcs", b"a"))
    suffix = TrackNamespace((b"a", b"x"))
    pair.client.subscribe_namespace(PREFIX, now=0)
    pair.run()
    pair.server.accept(0, now=0)
    pair.server.announce(0, suffix, now=0)
    pair.server.announce(0, TrackNamespace((b"b",)), now=0)
    pair.run()
    pair.client.update(0, Parameters(track_namespace_prefix=longer), now=0)
    pair.run()

    pair.server.accept_update(0, now=0)
    pair.server.withdraw(0, TrackNamespace((b"x",)), now=0)
    events, _ = pair.run()

    assert events[-1].suffix == TrackNamespace((b"x",))
    with pytest.raises(LocalProtocolError):
        pair.server.withdraw(0, TrackNamespace((b"b",)), now=0)


def test_update_to_an_overlapping_prefix_is_refused(pair):
    pair.client.subscribe_namespace(PREFIX, now=0)
    pair.client.subscribe_namespace(TrackNamespace((b"other",)), now=0)
    pair.run()
    pair.server.accept(0, now=0)
    pair.server.accept(2, now=0)
    pair.run()
    update_id = pair.client.update(2, Parameters(track_namespace_prefix=PREFIX), now=0)

    events, told = pair.run()

    assert UpdateRejected(2, update_id, 0x30, "prefixes overlap") in events
    assert told == [RequestCancelled(2, 1)]


def test_unanswered_update_times_out_with_its_request(subscribed):
    update_id = subscribed.client.update(0, PAUSE, now=0)
    subscribed.run()

    events, told = subscribed.pass_time(30)

    assert events == [
        UpdateRejected(0, update_id, 2, "no answer in time"),
        RequestCancelled(0, 1),
    ]
    assert told == [RequestCancelled(0, 1)]


def test_answer_to_no_update_is_a_violation(to_client):
    peer = to_client()
    peer.session.subscribe(TRACK, now=0)
    peer.say(0, SubscribeOk(track_alias=1))
    peer.session.take_actions()

    peer.say(0, RequestOk())

    assert closing_code(peer.session) == TerminationCode.PROTOCOL_VIOLATION


def test_answer_to_an_update_has_no_properties(to_client):
    peer = to_client()
    peer.session.subscribe(TRACK, now=0)
    peer.say(0, SubscribeOk(track_alias=1))
    peer.session.update(0, PAUSE, now=0)
    peer.session.take_actions()

    peer.say(0, RequestOk(properties=Properties.of((4, 1))))

    assert closing_code(peer.session) == TerminationCode.PROTOCOL_VIOLATION


def test_rejected_subscribe_takes_its_updates_with_it(pair):
    pair.client.subscribe(TRACK, now=0)
    pair.client.update(0, PAUSE, now=0)
    pair.run()

    pair.server.reject(0, 0x10, now=0)
    events, _ = pair.run()

    assert events == [RequestRejected(0, 0x10, "")]
    assert pair.client.next_deadline() is None


OLD, NEW = Token.use_value(b"old", token_type=1), Token.use_value(b"new", token_type=1)


def test_tokens_are_presented_with_what_runs_and_what_follows(subscribed):
    client, server = subscribed.client, subscribed.server
    namespace = client.publish_namespace(PREFIX, now=0)
    _, events = subscribed.run()
    server.accept(namespace, now=0)
    subscribed.run()

    client.authorize((NEW,), now=0)
    _, events = subscribed.run()
    later = client.fetch(TRACK, Parameters(authorization_tokens=(OLD,)), now=0)
    _, fetched = subscribed.run()

    updates = {e.request_id: e.parameters.authorization_tokens for e in events}
    assert updates == {0: (NEW,), namespace: (NEW,)}
    assert [(e.request_id, e.parameters.authorization_tokens) for e in fetched] == [
        (later, (OLD, NEW))
    ]


def test_tokens_are_presented_for_a_request_without_an_answer(pair):
    pair.client.subscribe(TRACK, now=0)
    pair.run()

    pair.client.authorize((NEW,), now=0)
    _, events = pair.run()

    assert [event.parameters.authorization_tokens for event in events] == [(NEW,)]


def test_tokens_are_presented_once_where_a_request_brings_the_same(pair):
    pair.client.authorize((NEW,), now=0)

    pair.client.subscribe(TRACK, Parameters(authorization_tokens=(NEW,)), now=0)
    _, (event,) = pair.run()

    assert event.parameters.authorization_tokens == (NEW,)


def test_tokens_are_not_presented_where_no_update_is_taken(make_pair):
    options = SetupOptions(max_request_updates=1)
    pair = make_pair(server=SessionConfig(options=options)).connect()
    pair.client.subscribe(TRACK, now=0)
    pair.client.track_status(TRACK, now=0)
    pair.run()
    pair.server.accept_subscribe(0, now=0)
    pair.run()
    pair.client.update(0, PAUSE, now=0)

    pair.client.authorize((NEW,), now=0)
    _, events = pair.run()

    assert [type(event) for event in events] == [UpdateReceived]
    assert not pair.server.is_closed


def test_tokens_are_presented_for_no_request_of_the_peer(subscribed):
    subscribed.server.authorize((NEW,), now=0)

    assert subscribed.run() == ([], [])


@pytest.mark.parametrize("tokens", [(), (Token.use_alias(1),), (NEW, Token.register(1, b"x"))])
def test_tokens_are_presented_by_value(pair, tokens):
    with pytest.raises(LocalProtocolError):
        pair.client.authorize(tokens, now=0)


def test_tokens_are_not_presented_on_a_session_that_is_over(pair):
    pair.client.close(now=0)

    pair.client.authorize((NEW,), now=0)

    assert pair.client.is_closed
