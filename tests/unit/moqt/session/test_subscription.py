import pytest

from kvcs.errors import LocalProtocolError, PublishDoneCode, TerminationCode
from kvcs.moqt.session.actions import CloseSession, ResetStream, SendStream, StopSending
from kvcs.moqt.session.events import (
    FetchOpened,
    ObjectReceived,
    PublishDoneReceived,
    RequestCancelled,
    RequestRejected,
    StateNotified,
    StreamAborted,
    StreamFinished,
    SubgroupOpened,
    SubscribeAccepted,
    SubscribeReceived,
    SubscriberFinished,
    SubscriptionDrained,
)
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import NO_PARAMETERS, FillParameters, Parameters
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.moqt.wire.publish import UNKNOWN_STREAM_COUNT, PublishDone
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.moqt.wire.subscribe import Subscribe, SubscribeOk
from kvcs.moqt.wire.token import Token
from kvcs.names import FullTrackName, Location, TrackNamespace

TRACK = FullTrackName(TrackNamespace((b"kvcs",)), b"t")
HEADER = SubgroupHeader(track_alias=0, group_id=1, subgroup_id=0, publisher_priority=5)
TRACK_ENDED = PublishDoneCode.TRACK_ENDED


def obj(object_id, payload=b"data"):
    return Object(
        group_id=1, object_id=object_id, subgroup_id=0, publisher_priority=5, payload=payload
    )


@pytest.fixture
def subscribed(pair):
    """An established subscription with Request ID 0 and Track Alias 1."""
    pair.client.subscribe(TRACK, now=0)
    pair.run()
    pair.server.accept_subscribe(0, now=0)
    pair.run()
    return pair


def test_subscribe_is_answered_with_what_the_publisher_says(pair):
    asked = Parameters(
        subscriber_priority=7, authorization_tokens=(Token.use_value(b"secret"),), forward=True
    )
    answered = Parameters(largest_object=Location(4, 1), expires_ms=5)
    properties = Properties.of((0x04, 60_000))

    request_id = pair.client.subscribe(TRACK, asked, now=0)
    _, received = pair.run()
    pair.server.accept_subscribe(request_id, answered, properties=properties, now=0)
    accepted, _ = pair.run()

    assert received == [SubscribeReceived(request_id, TRACK, asked)]
    assert accepted == [SubscribeAccepted(request_id, answered, properties)]
    assert pair.client.next_deadline() is None


def test_objects_arrive_with_header_and_payload_as_separate_actions(subscribed):
    payload = bytes(1000)
    server = subscribed.server

    stream_id = server.open_subgroup(0, HEADER, priority=8, now=0)
    server.take_actions()
    server.send_object(stream_id, obj(0, payload), now=0)
    actions = server.take_actions()

    assert [len(action.data) for action in actions] == [3, 1000]
    assert actions[1].data is payload


def test_a_whole_subscription_from_first_object_to_drained(subscribed):
    server = subscribed.server

    stream_id = server.open_subgroup(0, HEADER, priority=8, now=0)
    server.send_object(stream_id, obj(0), now=0)
    server.send_object(stream_id, obj(3, b""), now=0)
    server.finish_stream(stream_id, now=0)
    server.publish_done(0, TRACK_ENDED, reason="end", now=0)
    events, others = subscribed.run()

    assert [type(event) for event in events] == [
        SubgroupOpened,
        ObjectReceived,
        ObjectReceived,
        StreamFinished,
        PublishDoneReceived,
        SubscriptionDrained,
    ]
    assert events[0].header.track_alias == 1
    assert events[1] == ObjectReceived(0, stream_id, obj(0), is_fetch=False)
    assert events[4] == PublishDoneReceived(0, TRACK_ENDED, 1, "end")
    assert events[5].complete
    assert others == [SubscriberFinished(0, in_order=True)]
    assert not subscribed.client._registry.by_stream
    assert not subscribed.server._registry.by_stream


def test_publish_done_waits_for_open_streams_of_ours(subscribed):
    stream_id = subscribed.server.open_subgroup(0, HEADER, priority=8, now=0)

    with pytest.raises(LocalProtocolError, match="1 streams"):
        subscribed.server.publish_done(0, TRACK_ENDED, now=0)
    subscribed.server.reset_stream(stream_id, 1, now=0)
    subscribed.server.publish_done(0, TRACK_ENDED, now=0)

    assert not subscribed.server.is_active(0)


def test_reset_by_the_subscriber_after_publish_done_is_no_sign_of_delivery(to_server):
    peer = to_server()
    peer.say(0, Subscribe(request_id=0, track=TRACK, parameters=NO_PARAMETERS))
    peer.session.accept_subscribe(0, now=0)
    peer.session.publish_done(0, TRACK_ENDED, now=0)

    peer.session.receive_reset(0, 1, now=0)

    assert peer.session.take_events() == [SubscriberFinished(0, in_order=False)]


def test_subscriber_that_ended_its_side_first_is_finished_with_publish_done(to_server):
    peer = to_server()
    peer.say(0, Subscribe(request_id=0, track=TRACK, parameters=NO_PARAMETERS), fin=True)
    peer.session.accept_subscribe(0, now=0)

    peer.session.publish_done(0, TRACK_ENDED, now=0)

    assert peer.session.take_events() == [SubscriberFinished(0, in_order=True)]


def test_done_that_overtakes_its_streams_keeps_the_subscription_until_they_end(to_client):
    peer = to_client()
    peer.session.subscribe(TRACK, now=0)
    peer.say(0, SubscribeOk(track_alias=7))
    done = PublishDone(status_code=TRACK_ENDED, stream_count=2)

    events = peer.say(0, done, fin=True)
    assert events == [PublishDoneReceived(0, TRACK_ENDED, 2, "")]
    assert peer.session.streams_seen(0) == 0
    peer.say(7, bytes.fromhex("500701050000"), b"\x00", fin=True)
    assert peer.session.streams_seen(0) == 1
    peer.say(11, bytes.fromhex("50070205"))
    assert peer.session.open_streams(0) == {11}
    sent = [action for action in peer.session.take_actions() if isinstance(action, SendStream)]
    last = peer.say(11, b"", fin=True)

    assert last == [StreamFinished(0, 11), SubscriptionDrained(0, complete=True)]
    # The FIN of the subscriber tells that everything has arrived.
    assert not any(action.fin for action in sent)
    assert peer.session.take_actions() == [SendStream(0, b"", fin=True)]
    assert peer.session.streams_seen(0) == 0
    assert peer.session.next_deadline() is None


@pytest.mark.parametrize("count", [2, UNKNOWN_STREAM_COUNT])
def test_streams_that_never_come_are_given_up_after_the_drain_timeout(to_client, count):
    peer = to_client()
    peer.session.subscribe(TRACK, now=0)
    peer.say(0, SubscribeOk(track_alias=7))
    (done,) = peer.say(0, PublishDone(status_code=2, stream_count=count), fin=True)

    peer.session.advance(now=10)

    assert done.stream_count == (2 if count == 2 else None)
    assert peer.session.take_events() == [SubscriptionDrained(0, complete=False)]
    # A straggler finds a tombstone.
    peer.session.take_actions()
    assert peer.say(7, bytes.fromhex("50070105")) == []
    assert peer.session.take_actions() == [StopSending(7, 1)]


def test_drain_timeout_counts_from_the_last_progress(to_client):
    peer = to_client()
    peer.session.subscribe(TRACK, now=0)
    peer.say(0, SubscribeOk(track_alias=7))
    peer.say(7, bytes.fromhex("50070105"))
    peer.say(0, PublishDone(status_code=2, stream_count=1), fin=True)
    peer.now = 8
    peer.say(7, bytes.fromhex("000141"))

    peer.session.advance(now=10)
    assert peer.session.is_active(0)
    assert peer.session.next_deadline() == 18
    peer.session.advance(now=18)

    assert SubscriptionDrained(0, complete=False) in peer.session.take_events()
    assert StopSending(7, 1) in peer.session.take_actions()


def test_cancel_by_the_subscriber_ends_all_streams_on_both_sides(subscribed):
    stream_id = subscribed.server.open_subgroup(0, HEADER, priority=8, now=0)
    subscribed.server.send_object(stream_id, obj(0), now=0)
    subscribed.run()

    subscribed.client.cancel(0, now=0)
    asked = subscribed.client.take_actions()
    for action in asked:
        if isinstance(action, ResetStream):
            subscribed.server.receive_reset(0, action.code, now=0)
    answer = subscribed.server.take_actions()

    assert asked == [ResetStream(0, 1), StopSending(0, 1), StopSending(stream_id, 1)]
    assert answer == [ResetStream(0, 1), ResetStream(stream_id, 1)]
    assert subscribed.server.take_events() == [RequestCancelled(0, 1)]


def test_commands_that_cross_a_cancellation_are_ignored(subscribed):
    server = subscribed.server
    stream_id = server.open_subgroup(0, HEADER, priority=8, now=0)
    subscribed.run()
    subscribed.client.cancel(0, now=0)
    subscribed.run()
    server.take_actions()

    server.send_object(stream_id, obj(0), now=0)
    server.finish_stream(stream_id, now=0)
    server.reset_stream(stream_id, 1, now=0)
    server.set_stream_priority(stream_id, 4, now=0)
    server.publish_done(0, TRACK_ENDED, now=0)
    server.revoke(0, now=0)
    server.accept_update(0, now=0)
    server.reject_update(0, 0, now=0)
    server.reject(0, 0, now=0)
    server.accept_subscribe(0, now=0)
    server.notify_state(0, NO_PARAMETERS, now=0)
    server.send_datagram(0, obj(0), now=0)
    subscribed.client.update(0, NO_PARAMETERS, now=0)
    subscribed.client.cancel(0, now=0)

    assert server.take_actions() == []
    assert subscribed.client.take_actions() == []
    assert not server.is_open(stream_id)
    with pytest.raises(LocalProtocolError):
        server.open_subgroup(0, HEADER, priority=8, now=0)


def test_revoke_by_the_publisher_is_reported(subscribed):
    subscribed.server.revoke(0, code=9, now=0)

    events, _ = subscribed.run()

    assert events == [RequestCancelled(0, 9)]
    assert not subscribed.client._registry.by_stream


def test_end_without_publish_done_is_a_failure(to_client):
    peer = to_client()
    peer.session.subscribe(TRACK, now=0)
    peer.say(0, SubscribeOk(track_alias=7))

    assert peer.say(0, fin=True) == [RequestCancelled(0, 0)]


def test_end_without_an_answer_is_a_rejection(to_client):
    peer = to_client()
    peer.session.subscribe(TRACK, now=0)

    (event,) = peer.say(0, fin=True)

    assert isinstance(event, RequestRejected)
    assert event.code == 0


def test_one_alias_for_two_tracks_closes_the_session(to_client):
    peer = to_client()
    peer.session.subscribe(TRACK, now=0)
    peer.session.subscribe(FullTrackName(TRACK.namespace, b"other"), now=0)
    peer.say(0, SubscribeOk(track_alias=7))
    peer.session.take_actions()

    peer.say(4, SubscribeOk(track_alias=7))

    (action,) = peer.session.take_actions()
    assert isinstance(action, CloseSession)
    assert action.code == TerminationCode.DUPLICATE_TRACK_ALIAS


def test_two_subscriptions_to_one_track_may_share_an_alias(to_client):
    peer = to_client()
    peer.session.subscribe(TRACK, now=0)
    peer.session.subscribe(TRACK, now=0)
    peer.say(0, SubscribeOk(track_alias=7))
    peer.say(4, SubscribeOk(track_alias=7))

    (first,) = peer.say(7, bytes.fromhex("50070105"))
    peer.session.cancel(0, now=0)
    (second,) = peer.say(11, bytes.fromhex("50070205"))

    assert (first.request_id, second.request_id) == (0, 2)


def test_alias_of_a_finished_track_can_be_taken_over(to_client):
    peer = to_client()
    peer.session.subscribe(TRACK, now=0)
    peer.session.subscribe(FullTrackName(TRACK.namespace, b"other"), now=0)
    peer.say(0, SubscribeOk(track_alias=7))
    peer.say(0, PublishDone(status_code=2, stream_count=1), fin=True)
    peer.say(4, SubscribeOk(track_alias=7))

    (event,) = peer.say(7, bytes.fromhex("50070105"))
    peer.session.advance(now=10)

    assert event.request_id == 2
    assert not peer.session.is_closed


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        (Properties.of((0x4000, 1)), 0x33),
        (Properties.decode(bytes.fromhex("0b000000")), 0x12),
    ],
    ids=["unknown mandatory property", "IMMUTABLE_PROPERTIES twice"],
)
def test_track_that_cannot_be_taken_ends_the_subscription(to_client, properties, code):
    peer = to_client()
    peer.session.subscribe(TRACK, now=0)
    peer.session.take_actions()

    (event,) = peer.say(0, SubscribeOk(track_alias=7, properties=properties))

    assert isinstance(event, RequestRejected)
    assert event.code == code
    assert peer.session.take_actions() == [ResetStream(0, 1), StopSending(0, 1)]


def test_state_notify_reaches_the_subscriber(subscribed):
    changed = Parameters(forward=False, largest_object=Location(4, 1))

    subscribed.server.notify_state(0, changed, now=0)
    events, _ = subscribed.run()

    assert events == [StateNotified(0, changed)]
    with pytest.raises(LocalProtocolError):
        subscribed.server.notify_state(0, Parameters(subscriber_priority=1), now=0)


def test_answers_of_the_wrong_kind_are_refused_here(pair):
    fetched = pair.client.fetch(TRACK, now=0)
    subscribed = pair.client.subscribe(TRACK, now=0)
    pair.run()

    with pytest.raises(LocalProtocolError):
        pair.server.accept_subscribe(fetched, now=0)
    with pytest.raises(LocalProtocolError):
        pair.server.accept_fetch(subscribed, end_of_track=False, end_location=Location(0, 0), now=0)
    with pytest.raises(LocalProtocolError):
        pair.server.accept(subscribed, now=0)
    with pytest.raises(LocalProtocolError):
        pair.server.cancel(subscribed, now=0)
    with pytest.raises(LocalProtocolError):
        pair.client.revoke(subscribed, now=0)
    with pytest.raises(LocalProtocolError):
        pair.server.open_subgroup(subscribed, HEADER, priority=4, now=0)


def test_rejection_carries_when_to_come_back(pair):
    request_id = pair.client.subscribe(TRACK, now=0)
    other_id = pair.client.subscribe(TRACK, now=0)
    pair.run()

    pair.server.reject(request_id, 9, reason="busy", retry_interval_ms=1500, now=0)
    pair.server.reject(other_id, 0x10, now=0)
    events, _ = pair.run()

    assert events == [
        RequestRejected(request_id, 9, "busy", retry_after=1.5),
        RequestRejected(other_id, 0x10, "", retry_after=None),
    ]
    assert not pair.client._registry.by_stream
    assert not pair.server._registry.by_stream


def test_unanswered_subscribe_times_out_later_when_it_asked_to_wait(pair):
    pair.client.subscribe(TRACK, now=0)
    pair.client.subscribe(TRACK, Parameters(rendezvous_timeout_ms=5000), now=0)
    pair.run()

    assert pair.client.next_deadline() == 30
    first, server = pair.pass_time(30)
    second, _ = pair.pass_time(5)

    assert first == [RequestRejected(0, 2, "no answer in time")]
    assert second == [RequestRejected(2, 2, "no answer in time")]
    assert server == [RequestCancelled(0, 1)]


def test_fill_without_an_order_waits_for_the_order_of_the_publisher(to_client):
    peer = to_client()
    parameters = Parameters(fill=FillParameters())
    peer.session.subscribe(TRACK, parameters, now=0)
    fill = bytes.fromhex("05001c050080 0161 0c0000 0162")

    early = peer.say(7, fill, fin=True)
    descending = Properties.of((0x22, 2))
    events = peer.say(0, SubscribeOk(track_alias=7, properties=descending))

    assert early == []
    objects = [event.obj for event in events if isinstance(event, ObjectReceived)]
    assert [(o.group_id, o.payload) for o in objects] == [(5, b"a"), (4, b"b")]


def test_streams_before_subscribe_ok_are_held_and_given_after_it(to_client):
    peer = to_client()
    peer.session.subscribe(TRACK, now=0)
    peer.say(7, bytes.fromhex("500701050001"))
    peer.say(7, b"x")
    peer.say(11, bytes.fromhex("5007020500015a"), fin=True)
    peer.say(15, bytes.fromhex("500703"))
    peer.say(15, bytes.fromhex("05"))
    peer.session.receive_reset(15, 5, now=0)

    events = peer.say(0, SubscribeOk(track_alias=7, properties=EMPTY_PROPERTIES))

    assert [type(event).__name__ for event in events] == [
        "SubscribeAccepted",
        "SubgroupOpened",
        "ObjectReceived",
        "SubgroupOpened",
        "ObjectReceived",
        "StreamFinished",
        "SubgroupOpened",
        "StreamAborted",
    ]
    assert peer.session.streams_seen(0) == 3
    assert peer.session.next_deadline() is None


def test_streams_that_nothing_explains_are_refused_in_time(to_client):
    peer = to_client()
    peer.say(7, bytes.fromhex("50070105"))
    peer.say(11, bytes.fromhex("50070105"), fin=True)

    peer.session.advance(now=10)

    assert peer.session.take_actions() == [StopSending(7, 1)]
    assert peer.session.next_deadline() is None


def test_no_more_streams_than_allowed_are_held(to_client):
    peer = to_client(max_pending_streams=1, max_pending_bytes=10)
    peer.say(7, bytes.fromhex("50070105"))
    peer.say(11, bytes.fromhex("50070105"))
    peer.say(7, bytes(7))

    assert peer.session.take_actions() == [StopSending(11, 9), StopSending(7, 9)]
    assert peer.session.next_deadline() is None


@pytest.mark.parametrize("fin", [False, True])
def test_stream_that_was_not_held_is_aborted_when_its_track_is_known(to_client, fin):
    peer = to_client(max_pending_streams=1, max_pending_bytes=10)
    peer.session.subscribe(TRACK, now=0)
    peer.say(7, bytes.fromhex("50070105"))
    peer.say(11, bytes.fromhex("500702050001"), b"x", fin=fin)
    peer.say(7, bytes(7))

    events = peer.say(0, SubscribeOk(track_alias=7, properties=EMPTY_PROPERTIES))
    late = peer.say(11, b"rest") if not fin else []

    assert [(e.header.group_id, e.stream_id) for e in events if isinstance(e, SubgroupOpened)] == [
        (2, 11),
        (1, 7),
    ]
    assert [e for e in events if isinstance(e, StreamAborted)] == [
        StreamAborted(0, 11, 9),
        StreamAborted(0, 7, 9),
    ]
    assert late == []
    assert peer.session.streams_seen(0) == 2
    assert not peer.session.is_closed


def test_stream_that_waited_too_long_is_aborted_when_its_track_is_known(to_client):
    peer = to_client()
    peer.session.subscribe(TRACK, now=0)
    peer.say(7, bytes.fromhex("500701050001"), b"x")
    peer.session.advance(now=10)

    events = peer.say(0, SubscribeOk(track_alias=7, properties=EMPTY_PROPERTIES))

    assert [type(event) for event in events] == [SubscribeAccepted, SubgroupOpened, StreamAborted]
    assert peer.session._incoming.resolve(peer.session._registry.by_id[0]) is None
    assert peer.session.take_events() == []


def test_streams_that_were_not_held_are_remembered_up_to_a_bound(to_client):
    peer = to_client(max_pending_streams=0, max_tombstones=2)
    peer.session.subscribe(TRACK, now=0)
    for stream_id, group_id in ((7, 1), (11, 2), (15, 3)):
        peer.say(stream_id, bytes((0x50, 7, group_id, 5)))

    events = peer.say(0, SubscribeOk(track_alias=7, properties=EMPTY_PROPERTIES))

    assert [e.stream_id for e in events if isinstance(e, StreamAborted)] == [11, 15]


def test_stream_that_was_not_held_of_a_track_that_is_not_taken_is_not_reported(to_client):
    peer = to_client(max_pending_streams=0)
    peer.session.subscribe(TRACK, now=0)
    peer.say(7, bytes.fromhex("50070105"))
    peer.session.take_actions()
    assert repr(peer.session._incoming._lost) == "LostStreams(1 streams)"

    (event,) = peer.say(0, SubscribeOk(track_alias=7, properties=Properties.of((0x4000, 1))))

    assert isinstance(event, RequestRejected)
    assert peer.session.take_actions() == [ResetStream(0, 1), StopSending(0, 1)]


def test_fill_that_was_not_held_is_aborted_when_its_order_is_known(to_client):
    peer = to_client(max_pending_streams=0)
    fill = FillParameters(location_filter=LocationFilter.absolute_start(0, 0))
    peer.session.subscribe(TRACK, Parameters(fill=fill), now=0)
    peer.say(7, b"\x05\x00")

    events = peer.say(0, SubscribeOk(track_alias=7, properties=EMPTY_PROPERTIES))

    assert [type(event) for event in events] == [SubscribeAccepted, FetchOpened, StreamAborted]


def test_first_message_of_a_subscription_is_sent_with_request_priority(pair):
    pair.client.subscribe(TRACK, now=0)

    actions = pair.client.take_actions()

    assert actions[0] == SendStream(0, Subscribe(request_id=0, track=TRACK).encode())
    assert actions[1].priority == 2
