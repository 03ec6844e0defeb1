"""Properties of the MOQT session.

Any cut of the input gives the same events; two sessions whose applications keep to the
tables never accuse each other, however their streams overtake; garbage ends a session
with one action and one event.
"""

from collections import deque
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.seeds import examples

from kvcs.errors import RemoteProtocolError
from kvcs.moqt.codepoints import GroupOrder, ObjectStatus, RangeMarker
from kvcs.moqt.session.actions import (
    CloseSession,
    ResetStream,
    SendDatagram,
    SendStream,
    SetPriority,
    StopSending,
)
from kvcs.moqt.session.events import (
    ObjectBegun,
    ObjectPayload,
    ObjectReceived,
    SessionClosed,
    StreamFinished,
)
from kvcs.moqt.session.limits import SessionConfig, SessionLimits, Side
from kvcs.moqt.session.session import Session
from kvcs.moqt.session.state import Input, RequestKind, next_state
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import NO_PARAMETERS, FillParameters, Parameters
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.moqt.wire.setup import Setup, SetupOptions
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.names import FullTrackName, Location, TrackNamespace

NAMESPACE = TrackNamespace((b"kvcs",))
TRACK = FullTrackName(NAMESPACE, b"t")
FILL = Parameters(fill=FillParameters(group_order=GroupOrder.ASCENDING))


def connected(**settings_):
    """Return a client and a server with SETUP done."""
    client = Session(Side.CLIENT, SessionConfig(**settings_))
    server = Session(Side.SERVER, SessionConfig())
    client.start(now=0)
    server.start(now=0)
    exchange(client, server)
    client.take_events()
    server.take_events()
    return client, server


def exchange(client, server):
    while True:
        out, back = client.take_actions(), server.take_actions()
        for actions, receiver in ((out, server), (back, client)):
            for action in actions:
                if isinstance(action, SendStream):
                    receiver.receive_stream(action.stream_id, action.data, action.fin, now=0)
        if not out and not back:
            return


# Any cut.

payloads = st.binary(max_size=40)


@st.composite
def scripts(draw):
    """What a publisher does on a few streams: Objects, gaps, markers, ends."""
    streams = []
    for _ in range(draw(st.integers(1, 3))):
        is_fetch = draw(st.booleans()) and not any(fetch for fetch, _, _ in streams)
        properties = draw(st.sampled_from([EMPTY_PROPERTIES, Properties.of((0x3800, 1))]))
        objects, object_id = [], -1
        for payload in draw(st.lists(payloads, max_size=5)):
            object_id += draw(st.integers(1, 200))
            objects.append((object_id, payload))
        streams.append((is_fetch, properties, objects))
    return streams


def publish(server, script):
    """Play a script on a server whose client has sent SUBSCRIBE 0 and FETCH 2."""
    for group_id, (is_fetch, properties, objects) in enumerate(script):
        if is_fetch:
            stream_id = server.open_fetch_stream(2, priority=4, now=0)
        else:
            header = SubgroupHeader(
                track_alias=0,
                group_id=group_id,
                subgroup_id=0,
                publisher_priority=5,
                has_properties=bool(properties),
            )
            stream_id = server.open_subgroup(0, header, priority=4, now=0)
        object_id = -1
        for object_id, payload in objects:
            obj = Object(
                group_id=group_id,
                object_id=object_id,
                subgroup_id=0,
                publisher_priority=5,
                properties=properties,
                payload=payload,
            )
            server.send_object(stream_id, obj, now=0)
        if is_fetch:
            location = Location(group_id + 9, 9)
            server.send_marker(stream_id, RangeMarker.UNKNOWN, location, now=0)
        else:
            end = Object(
                group_id=group_id,
                object_id=object_id + 1,
                subgroup_id=0,
                publisher_priority=5,
                status=ObjectStatus.END_OF_GROUP,
            )
            server.send_object(stream_id, end, now=0)
        server.finish_stream(stream_id, now=0)


def normalised(events):
    """Join the parts of payloads, so that only their content is compared."""
    joined = []
    parts = {}
    for event in events:
        match event:
            case ObjectBegun(request_id, stream_id, obj, length, data, is_fetch):
                assert stream_id not in parts
                parts[stream_id] = (request_id, obj, length, is_fetch, bytearray(data))
            case ObjectPayload(_, stream_id, data):
                parts[stream_id][4].extend(data)
            case _:
                joined.append(event)
                continue
        request_id, obj, length, is_fetch, payload = parts[stream_id]
        if len(payload) == length:
            del parts[stream_id]
            joined.append(("taken", request_id, stream_id, obj, bytes(payload), is_fetch))
    assert not parts
    return joined


def asked(taken_from):
    client, server = connected()
    for request_id in (client.subscribe(TRACK, now=0), client.fetch(TRACK, now=0)):
        if taken_from is not None:
            client.take_payloads(request_id, taken_from)
    exchange(client, server)
    server.take_events()
    client.take_actions()
    return client, server


@given(script=scripts(), data=st.data(), taken_from=st.sampled_from([None, 1, 8]))
@settings(max_examples=examples(60), deadline=None)
def test_any_cut_of_the_input_gives_the_same_events(script, data, taken_from):
    whole, server = asked(taken_from)
    cut, _ = asked(taken_from)
    server.accept_subscribe(0, now=0)
    server.accept_fetch(2, end_of_track=False, end_location=Location(9, 9), now=0)
    publish(server, script)
    server.publish_done(0, 2, now=0)
    streams = {}
    for action in server.take_actions():
        if isinstance(action, SendStream):
            octets, _ = streams.get(action.stream_id, (b"", False))
            streams[action.stream_id] = (octets + action.data, action.fin)

    for stream_id, (octets, fin) in streams.items():
        whole.receive_stream(stream_id, octets, fin, now=0)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(octets)), max_size=8)))
        bounds = [0, *cuts, len(octets)]
        for start, end in pairwise(bounds):
            piece = octets[start:end]
            cut.receive_stream(stream_id, memoryview(piece), fin and end == len(octets), now=0)
            if fin and end == len(octets):
                break

    expected = normalised(whole.take_events())
    assert normalised(cut.take_events()) == expected
    assert sum(isinstance(event, StreamFinished) for event in expected) == len(script)
    objects = [event for event in expected if isinstance(event, ObjectReceived | tuple)]
    assert len(objects) == sum(len(s[2]) + (not s[0]) for s in script)
    assert cut._context.partial_bytes == whole._context.partial_bytes == 0


# Garbage.


@given(
    chunks=st.lists(
        st.tuples(
            st.sampled_from([0, 4, 3, 7, 11, 1, 5, 2, 6]), st.binary(max_size=60), st.booleans()
        ),
        max_size=6,
    ),
    with_setup=st.booleans(),
    datagrams=st.lists(st.binary(max_size=20), max_size=2),
)
@settings(max_examples=examples(150), deadline=None)
def test_garbage_ends_a_session_with_one_action_and_one_event(chunks, with_setup, datagrams):
    session = Session(Side.CLIENT, SessionConfig())
    session.start(now=0)
    session.subscribe(TRACK, now=0)
    if with_setup:
        session.receive_stream(15, Setup(SetupOptions()).encode(), False, now=0)
    for stream_id, octets, fin in chunks:
        session.receive_stream(stream_id, octets, fin, now=0)
    for datagram in datagrams:
        session.receive_datagram(datagram, now=0)
    session.advance(now=1000)

    actions, events = session.take_actions(), session.take_events()
    if session.is_closed:
        (action,), (event,) = actions, events
        assert isinstance(action, CloseSession)
        assert isinstance(event, SessionClosed)
        assert isinstance(event.error, RemoteProtocolError)
        assert event.error.code == action.code
    else:
        assert not any(isinstance(action, CloseSession) for action in actions)
        assert session._context.partial_bytes == 0


# Two applications that keep to the tables.


class Line:
    """One direction of a connection: in order on each stream, any order between them."""

    def __init__(self):
        self.streams = {}
        self.stops = deque()
        self.datagrams = deque()

    def put(self, actions):
        for action in actions:
            match action:
                case SendStream(stream_id):
                    self.streams.setdefault(stream_id, deque()).append(action)
                case ResetStream(stream_id):
                    self.streams.setdefault(stream_id, deque()).append(action)
                case StopSending():
                    self.stops.append(action)
                case SendDatagram():
                    self.datagrams.append(action)
                case SetPriority():
                    pass
                case CloseSession(code, reason):
                    raise AssertionError(f"session closed: {code} {reason}")

    def choices(self):
        busy = [stream_id for stream_id, queue in self.streams.items() if queue]
        return busy + ["stop"] * bool(self.stops) + ["datagram"] * bool(self.datagrams)

    def deliver(self, choice, receiver, *, loses):
        if choice == "stop":
            stop = self.stops.popleft()
            receiver.receive_stop_sending(stop.stream_id, stop.code, now=0)
        elif choice == "datagram":
            receiver.receive_datagram(self.datagrams.popleft().data, now=0)
        else:
            queue = self.streams[choice]
            if loses and isinstance(queue[-1], ResetStream):
                # A reset may overtake the bytes before it.
                queue = self.streams[choice] = deque([queue[-1]])
            match queue.popleft():
                case SendStream(stream_id, data, fin):
                    receiver.receive_stream(stream_id, data, fin, now=0)
                case ResetStream(stream_id, code):
                    receiver.receive_reset(stream_id, code, now=0)


class TwoSessions(RuleBasedStateMachine):
    """Random legal commands on both sides, random order of what arrives."""

    def __init__(self):
        super().__init__()
        config = SessionConfig(limits=SessionLimits(max_pending_streams=1000))
        self.sessions = (Session(Side.CLIENT, config), Session(Side.SERVER, config))
        self.lines = (Line(), Line())
        for session in self.sessions:
            session.start(now=0)
        self.collect()
        self.requests = 0

    def collect(self):
        for session, line in zip(self.sessions, self.lines, strict=True):
            line.put(session.take_actions())
            session.take_events()

    @rule(side=st.sampled_from([0, 1]), data=st.data())
    def deliver(self, side, data):
        choices = self.lines[side].choices()
        if choices:
            choice = data.draw(st.sampled_from(choices))
            loses = data.draw(st.booleans())
            self.lines[side].deliver(choice, self.sessions[1 - side], loses=loses)
            self.collect()

    @precondition(lambda self: self.requests < 8)
    @rule(side=st.sampled_from([0, 1]), kind=st.sampled_from(RequestKind))
    def ask(self, side, kind):
        session = self.sessions[side]
        self.requests += 1
        match kind:
            case RequestKind.SUBSCRIBE:
                session.subscribe(TRACK, FILL, now=0)
            case RequestKind.PUBLISH:
                session.publish(TRACK, now=0)
            case RequestKind.FETCH:
                session.fetch(TRACK, now=0)
            case RequestKind.TRACK_STATUS:
                session.track_status(TRACK, now=0)
            case RequestKind.PUBLISH_NAMESPACE:
                session.publish_namespace(NAMESPACE, now=0)
            case RequestKind.SUBSCRIBE_NAMESPACE:
                session.subscribe_namespace(NAMESPACE, now=0)
            case RequestKind.SUBSCRIBE_TRACKS:
                session.subscribe_tracks(NAMESPACE, now=0)
        self.collect()

    @rule(side=st.sampled_from([0, 1]), data=st.data())
    def command(self, side, data):
        session = self.sessions[side]
        legal = [
            (request, step)
            for request in session._registry.by_id.values()
            for step in Input
            if not step.is_received and is_possible(request, step)
        ]
        if legal:
            request, step = data.draw(st.sampled_from(legal))
            give(session, request, step)
            self.collect()

    @rule(side=st.sampled_from([0, 1]), data=st.data())
    def use_stream(self, side, data):
        session = self.sessions[side]
        streams = [
            stream_id
            for request in session._registry.by_id.values()
            for stream_id in sorted(request.outgoing)
        ]
        if streams:
            stream_id = data.draw(st.sampled_from(streams))
            use = data.draw(st.sampled_from(["send", "finish", "reset"]))
            write(session, stream_id, use)
            self.collect()

    @rule(side=st.sampled_from([0, 1]), data=st.data())
    def stop_stream(self, side, data):
        session = self.sessions[side]
        streams = [
            stream_id
            for request in session._registry.by_id.values()
            for stream_id in sorted(request.incoming)
        ]
        if streams:
            session.stop_stream(data.draw(st.sampled_from(streams)), 1, now=0)
            self.collect()

    @invariant()
    def nobody_is_accused(self):
        assert not any(session.is_closed for session in self.sessions)

    def settle(self):
        while any(line.choices() for line in self.lines):
            for side in (0, 1):
                for choice in self.lines[side].choices():
                    self.lines[side].deliver(choice, self.sessions[1 - side], loses=False)
                self.collect()

    def teardown(self):
        self.settle()
        for session in self.sessions:
            for request in list(session._registry.by_id.values()):
                end = session.cancel if request.is_requester else session.revoke
                end(request.request_id, now=0)
        self.collect()
        self.settle()
        self.nobody_is_accused()
        for session in self.sessions:
            assert not session._registry.by_id
            assert not session._registry.by_stream
            assert not session._registry._triggers
            assert not session._incoming._streams
            assert not session._incoming._opening
            assert not session._incoming._discarded
            assert not session._outgoing._streams
            assert session._context.partial_bytes == 0


def is_possible(request, step):
    """Tell whether an application may give the command `step` now."""
    table = request.rules.requester if request.is_requester else request.rules.responder
    if next_state(table, request.state, step) is None or step is Input.DATA_COMPLETE:
        return False
    match step:
        case Input.SEND_UPDATE:
            return len(request.updates_sent) < SessionLimits().max_request_updates
        case Input.SEND_UPDATE_OK | Input.SEND_UPDATE_ERROR:
            return bool(request.updates_received)
        case Input.SEND_DONE:
            return not request.outgoing
        case Input.SEND_DATA:
            return request.kind is not RequestKind.FETCH or not request.streams_opened
    return True


def give(session, request, step):
    """Give one command."""
    request_id = request.request_id
    match step:
        case Input.SEND_OK if request.kind is RequestKind.SUBSCRIBE:
            session.accept_subscribe(request_id, now=0)
        case Input.SEND_OK if request.kind is RequestKind.FETCH:
            location = Location(9, 9)
            session.accept_fetch(request_id, end_of_track=False, end_location=location, now=0)
        case Input.SEND_OK:
            session.accept(request_id, now=0)
        case Input.SEND_ERROR:
            session.reject(request_id, 0x10, now=0)
        case Input.SEND_UPDATE:
            fills = request.kind is RequestKind.SUBSCRIBE
            session.update(request_id, FILL if fills else NO_PARAMETERS, now=0)
        case Input.SEND_UPDATE_OK:
            session.accept_update(request_id, now=0)
        case Input.SEND_UPDATE_ERROR:
            session.reject_update(request_id, 0, now=0)
        case Input.SEND_DATA if request.kind is RequestKind.FETCH or request.streams_opened % 2:
            session.open_fetch_stream(next(reversed(request.fills)), priority=4, now=0)
        case Input.SEND_DATA:
            header = SubgroupHeader(
                track_alias=0, group_id=0, subgroup_id=0, publisher_priority=None
            )
            session.open_subgroup(request_id, header, priority=4, now=0)
        case Input.SEND_DONE:
            session.publish_done(request_id, 2, now=0)
        case Input.SEND_NOTIFY:
            session.notify_state(request_id, NO_PARAMETERS, now=0)
        case Input.SEND_NAMESPACE if request.namespaces:
            known = next(iter(request.namespaces))
            session.withdraw(request_id, known.suffix_of(request.namespace), now=0)
        case Input.SEND_NAMESPACE:
            session.announce(request_id, TrackNamespace((b"x",)), now=0)
        case Input.SEND_SKIPPED:
            session.skip_publish(request_id, TrackNamespace((b"x",)), b"t", now=0)
        case Input.CANCEL:
            end = session.cancel if request.is_requester else session.revoke
            end(request_id, now=0)


def write(session, stream_id, use):
    """Use one data stream of ours."""
    if use == "finish":
        session.finish_stream(stream_id, now=0)
    elif use == "reset":
        session.reset_stream(stream_id, 1, now=0)
    else:
        writer = session._outgoing._streams[stream_id].writer
        object_id = getattr(writer, "_previous_object_id", None)
        if object_id is None:
            object_id = getattr(writer, "_object_id", -1)
        obj = Object(
            group_id=0,
            object_id=object_id + 1,
            subgroup_id=0,
            publisher_priority=128,
            payload=b"x" * (object_id % 5 + 1),
        )
        session.send_object(stream_id, obj, now=0)


TwoSessions.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=60, deadline=None
)
TestTwoSessions = TwoSessions.TestCase
