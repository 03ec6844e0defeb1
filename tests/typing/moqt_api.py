"""The types that users of `kvcs.moqt` see; pyright checks this file, nobody runs it."""

from typing import assert_type

from kvcs.moqt import (
    Action,
    Event,
    FillParameters,
    GroupOrder,
    LocationFilter,
    LocationRange,
    Message,
    Object,
    ObjectStatus,
    Outbox,
    Parameters,
    ParameterType,
    Properties,
    Range,
    RangeFilter,
    RequestId,
    Session,
    SessionConfig,
    SessionLimits,
    SetupOptions,
    Side,
    Token,
    TrackResponder,
    TrackStore,
    decode_message,
)
from kvcs.moqt.session import ObjectReceived, SendStream, SubscribeAccepted
from kvcs.names import FullTrackName, Location


def drive(session: Session, track: FullTrackName) -> None:
    session.start(now=0.0)
    session.receive_stream(3, b"\x00", False, now=0.1)
    fill = FillParameters(location_filter=LocationFilter.absolute_start(0, 0))
    parameters = Parameters(
        location_filter=LocationFilter.next_object(),
        fill=fill,
        group_order=GroupOrder.ASCENDING,
        authorization_tokens=(Token(value=b"t"),),
    )
    assert_type(session.subscribe(track, parameters, now=0.2), RequestId)
    assert_type(session.next_deadline(), float | None)
    actions: list[Action] = session.take_actions()
    for action in actions:
        if isinstance(action, SendStream):
            assert_type(action.data, bytes)
    events: list[Event] = session.take_events()
    for event in events:
        match event:
            case ObjectReceived(obj=obj):
                assert_type(obj, Object)
                assert_type(obj.location, Location)
                assert_type(obj.status, ObjectStatus)
                assert_type(obj.properties, Properties)
                assert_type(obj.payload, bytes)
            case SubscribeAccepted(parameters=accepted):
                assert_type(accepted.largest_object, Location | None)
            case _:
                pass


def make(track: FullTrackName, data: bytes) -> None:
    options = SetupOptions(path=b"/", max_filter_ranges=16)
    limits = SessionLimits(max_object_bytes=2**20)
    session = Session(Side.CLIENT, SessionConfig(options=options, limits=limits))
    outbox = Outbox(on_ready=lambda: None)
    responder = TrackResponder(session, outbox, max_fetches=4)
    store = TrackStore(track, properties=Properties.of((4, 1000)), authoritative=True)
    assert_type(store.largest, Location | None)
    assert_type(outbox.send(session, room=2**20, now=0.0), int)
    assert_type(responder.close(), None)
    message, end = decode_message(data)
    assert_type(end, int)
    kept: Message = message
    assert_type(kept.encode(), bytes)
    first = RangeFilter(kind=ParameterType.OBJECTID_FILTER, ranges=(Range(0, 3),))
    assert_type(first.ranges, tuple[Range, ...])
    assert_type(LocationFilter.none().subscription_range(None), LocationRange)
