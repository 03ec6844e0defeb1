import pytest

from kvcs.errors import TerminationCode
from kvcs.moqt.codepoints import GroupOrder
from kvcs.moqt.session.actions import CloseSession, SendStream, StopSending
from kvcs.moqt.session.events import (
    DatagramReceived,
    ObjectReceived,
    PublishDoneReceived,
    PublishReceived,
    RequestAccepted,
    RequestRejected,
    StreamFinished,
    SubgroupOpened,
    SubscriberFinished,
    SubscriptionDrained,
)
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import FillParameters, Parameters
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.moqt.wire.publish import Publish, PublishDone
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.names import FullTrackName, TrackNamespace

TRACK = FullTrackName(TrackNamespace((b"kvcs",)), b"t")
OTHER = FullTrackName(TrackNamespace((b"kvcs",)), b"other")
HEADER = SubgroupHeader(track_alias=0, group_id=1, subgroup_id=0, publisher_priority=None)


def obj(object_id, *, subgroup_id=0, priority=64):
    return Object(
        group_id=1,
        object_id=object_id,
        subgroup_id=subgroup_id,
        publisher_priority=priority,
        payload=b"data",
    )


def publish(request_id, alias, *, track=TRACK, properties=EMPTY_PROPERTIES):
    return Publish(request_id=request_id, track=track, track_alias=alias, properties=properties)


def test_publish_with_data_at_once_and_the_answer_last(pair):
    properties = Properties.of((0x0E, 64))
    request_id = pair.server.publish(TRACK, Parameters(forward=True), properties=properties, now=0)
    stream_id = pair.server.open_subgroup(request_id, HEADER, priority=4, now=0)
    pair.server.send_object(stream_id, obj(0), now=0)
    pair.server.finish_stream(stream_id, now=0)
    pair.server.publish_done(request_id, 2, now=0)
    events, _ = pair.run()

    assert [type(event) for event in events] == [
        PublishReceived,
        SubgroupOpened,
        ObjectReceived,
        StreamFinished,
        PublishDoneReceived,
    ]
    assert events[0] == PublishReceived(1, TRACK, Parameters(forward=True), properties)
    # The priority that the header leaves out is that of the Track.
    assert events[2].obj == obj(0)
    pair.client.accept(request_id, Parameters(expires_ms=9), now=0)
    events, answers = pair.run()

    assert events == [SubscriptionDrained(1, complete=True)]
    assert answers == [
        RequestAccepted(1, Parameters(expires_ms=9), EMPTY_PROPERTIES),
        SubscriberFinished(1, in_order=True),
    ]
    assert not pair.client._registry.by_stream
    assert not pair.server._registry.by_stream


def test_publish_that_is_accepted_first_ends_as_any_subscription(pair):
    request_id = pair.server.publish(TRACK, now=0)
    pair.run()
    pair.client.accept(request_id, now=0)
    pair.run()

    pair.server.publish_done(request_id, 2, now=0)
    events, _ = pair.run()

    assert events == [
        PublishDoneReceived(1, 2, 0, ""),
        SubscriptionDrained(1, complete=True),
    ]
    assert not pair.server._registry.by_stream


def test_refused_publish_refuses_its_streams(to_client):
    peer = to_client()
    peer.say(1, publish(1, 7))
    peer.say(7, bytes.fromhex("50070105"))

    peer.session.reject(1, 0x20, now=0)
    actions = peer.session.take_actions()
    late = peer.say(11, bytes.fromhex("50070205")) + peer.say(
        1, PublishDone(status_code=2, stream_count=1)
    )

    assert [type(action) for action in actions] == [SendStream, StopSending]
    assert late == []
    assert peer.session.take_actions() == [StopSending(11, 1)]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (publish(1, 7, properties=Properties.of((0x4000, 1))), 0x33),
        (publish(1, 7, properties=Properties.decode(bytes.fromhex("0b000000"))), 0x12),
        (publish(1, 7, track=FullTrackName(TrackNamespace((b".session",)), b"t")), 0x10),
    ],
    ids=["mandatory property", "malformed track", "reserved namespace"],
)
def test_publish_that_the_session_refuses_itself_takes_its_early_streams_along(
    to_client, message, code
):
    peer = to_client()
    peer.say(7, bytes.fromhex("50070105"))

    events = peer.say(1, message)

    assert events == []
    answer, stop = peer.session.take_actions()
    assert answer.data[3] == code
    assert stop == StopSending(7, 1)


def test_alias_of_a_publish_is_compared_with_those_of_subscriptions(to_client):
    peer = to_client()
    peer.say(1, publish(1, 7))
    peer.session.take_actions()

    peer.say(5, publish(3, 7, track=OTHER))

    (action,) = peer.session.take_actions()
    assert isinstance(action, CloseSession)
    assert action.code == TerminationCode.DUPLICATE_TRACK_ALIAS


def test_rejected_publish_resets_the_streams_of_the_publisher(pair):
    request_id = pair.server.publish(TRACK, now=0)
    stream_id = pair.server.open_subgroup(request_id, HEADER, priority=4, now=0)
    pair.run()

    pair.client.reject(request_id, 0x20, now=0)
    _, events = pair.run()

    assert events[0] == RequestRejected(request_id, 0x20, "")
    assert not pair.server.is_open(stream_id)


def test_fill_of_a_publication_names_the_publish(pair):
    request_id = pair.server.publish(TRACK, properties=Properties.of((0x22, 2)), now=0)
    stream_id = pair.server.open_fetch_stream(request_id, priority=4, now=0)
    pair.server.finish_stream(stream_id, now=0)

    events, _ = pair.run()

    assert events[1].trigger_id == request_id
    assert pair.client.streams_seen(request_id) == 1


def test_fill_of_a_publication_comes_in_the_order_that_subscribe_tracks_asked_for(pair):
    descending = Parameters(fill=FillParameters(group_order=GroupOrder.DESCENDING))
    pair.client.subscribe_tracks(TrackNamespace((b"kvcs",)), descending, now=0)
    request_id = pair.server.publish(TRACK, now=0)
    stream_id = pair.server.open_fetch_stream(
        request_id, order=GroupOrder.DESCENDING, priority=4, now=0
    )
    for group_id in (2, 1):
        pair.server.send_object(stream_id, obj(0)._replace(group_id=group_id), now=0)

    events, _ = pair.run()

    assert not pair.client.is_closed
    received = [event.obj.group_id for event in events if isinstance(event, ObjectReceived)]
    assert received == [2, 1]


def test_datagrams_reach_the_subscription_and_others_are_dropped(pair, to_client):
    request_id = pair.server.publish(TRACK, now=0)
    pair.run()
    sent = obj(5, subgroup_id=None, priority=9)

    pair.server.send_datagram(request_id, sent, now=0)
    events, _ = pair.run()

    assert events == [DatagramReceived(request_id, sent)]
    peer = to_client()
    peer.session.receive_datagram(bytes.fromhex("040704806869"), now=0)
    peer.session.receive_datagram(bytes.fromhex("f0132b3e290000"), now=0)
    assert peer.session.take_events() == []
    assert not peer.session.is_closed


def test_update_races_with_done(pair):
    request_id = pair.server.publish(TRACK, now=0)
    pair.run()
    pair.client.accept(request_id, now=0)
    pair.run()

    pair.client.update(request_id, Parameters(forward=False), now=0)
    pair.server.publish_done(request_id, 2, now=0)
    pair.run()

    assert not pair.server.is_closed
    assert not pair.client.is_closed
