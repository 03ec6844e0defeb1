"""A relay core with real sessions around it, joined by perfect streams and a clock by hand."""

from collections import deque

from kvcs.errors import ConnectionLost, PublishDoneCode, RequestErrorCode
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.session import events as ev
from kvcs.moqt.session.actions import (
    CloseSession,
    ResetStream,
    SendDatagram,
    SendStream,
    SetPriority,
    StopSending,
)
from kvcs.moqt.session.limits import SessionConfig, Side
from kvcs.moqt.session.session import Session
from kvcs.moqt.track.outbox import Outbox
from kvcs.moqt.track.responder import TrackResponder
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import FillParameters, Parameters
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES
from kvcs.moqt.wire.setup import SetupOptions
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.auth import allow_all
from kvcs.relay.config import RelayLimits
from kvcs.relay.core import RelayCore

NAMESPACE = TrackNamespace((b"kvcs-1", b"scope", b"compat", b"anchor", b"pub-1"))
TRACK = FullTrackName(NAMESPACE, b"k.raw.s0")
BLOCKS = 4
TOKEN_CACHE_BYTES = 1024
WHOLE = Parameters(
    location_filter=LocationFilter.next_object(),
    fill=FillParameters(location_filter=LocationFilter.absolute_start(0, 0)),
)


def payload(group_id, object_id, size=100):
    return bytes([group_id % 256, object_id]) * (size // 2)


def block(group_id, object_id, size=100, priority=0):
    return Object(
        group_id=group_id,
        object_id=object_id,
        subgroup_id=0,
        publisher_priority=priority,
        payload=payload(group_id, object_id, size),
    )


def status(group_id, object_id, kind=ObjectStatus.END_OF_GROUP, priority=0):
    return Object(
        group_id=group_id,
        object_id=object_id,
        subgroup_id=0,
        publisher_priority=priority,
        status=kind,
    )


class Link:
    """The relay's end of a session."""

    def __init__(self, world):
        self.session = Session(
            Side.SERVER,
            SessionConfig(
                options=SetupOptions(
                    max_filter_ranges=16, max_auth_token_cache_size=TOKEN_CACHE_BYTES
                )
            ),
        )
        self.outbox = Outbox()
        self.peer = "192.0.2.1:1"
        self.max_request_streams = 1024
        self._world = world

    @property
    def now(self):
        return self._world.now

    def wake(self):
        pass


class Client:
    """A session to the relay; as a publisher it serves what is in its stores."""

    def __init__(self, world):
        self.world = world
        self.make_sessions(world)
        self.outbox = Outbox()
        self.responder = TrackResponder(self.session, self.outbox)
        self.stores = {}
        self.silent = set()  # kinds of requests that are not answered
        self.busy = False  # serves no FETCH now
        self.refusing = {}  # kinds of requests, and how REQUEST_ERROR answers them
        self.events = []
        self.received = []  # requests of the relay
        self.bytes_out = 0
        self.room = 2**30  # what the relay may send before the next turn
        self.held = None  # decides which actions of ours wait
        self.waiting = deque()
        self.session.start(now=world.now)
        self.link.session.start(now=world.now)

    def make_sessions(self, world):
        self.session = Session(
            Side.CLIENT, SessionConfig(options=SetupOptions(max_filter_ranges=16))
        )
        self.link = Link(world)
        self.peer = world.core.connect(self.link)

    # What it does.

    def store(self, track=TRACK, properties=EMPTY_PROPERTIES):
        if track not in self.stores:
            self.stores[track] = TrackStore(track, properties=properties, authoritative=True)
        return self.stores[track]

    def add(self, *objects, track=TRACK):
        for obj in objects:
            self.store(track).add(obj, now=self.world.now)
            if obj.status is ObjectStatus.END_OF_GROUP:
                self.store(track).finish_subgroup(
                    obj.group_id, 0, end_of_group=True, now=self.world.now
                )
            if obj.status is ObjectStatus.END_OF_TRACK:
                self.store(track).finish_subgroup(
                    obj.group_id, 0, end_of_group=True, now=self.world.now
                )
        self.world.settle()

    def add_groups(self, *groups, track=TRACK):
        for group_id in groups:
            self.add(*(block(group_id, object_id) for object_id in range(BLOCKS)), track=track)
            self.add(status(group_id, BLOCKS), track=track)

    def end_track(self, groups, track=TRACK):
        """End of Track, and PUBLISH_DONE to all who subscribed."""
        self.add(status(groups, 0, ObjectStatus.END_OF_TRACK, 128), track=track)
        self.responder.end(self.store(track), PublishDoneCode.TRACK_ENDED, now=self.world.now)
        self.world.settle()

    def announce(self, namespace=NAMESPACE):
        return self.send(self.session.publish_namespace, namespace)

    def subscribe(self, parameters=WHOLE, track=TRACK):
        return self.send(self.session.subscribe, track, parameters)

    def fetch(self, location_filter, track=TRACK, **parameters):
        return self.send(
            self.session.fetch, track, Parameters(location_filter=location_filter, **parameters)
        )

    def send(self, command, *args, **kwargs):
        request_id = command(*args, now=self.world.now, **kwargs)
        self.world.settle()
        return request_id

    def lose(self):
        """The connection breaks."""
        error = ConnectionLost(0, "gone")
        for session in (self.session, self.link.session):
            if not session.is_closed:
                session.connection_lost(error, now=self.world.now)
        self.world.settle()
        self.world.clients.remove(self)

    # What it was told.

    def of(self, request_id, kind=None):
        return [
            event
            for event in self.events
            if getattr(event, "request_id", None) == request_id
            and (kind is None or isinstance(event, kind))
        ]

    def one(self, request_id, kind):
        (event,) = self.of(request_id, kind)
        return event

    def objects(self, request_id, *, fetched=None):
        """Locations of data that came, in order; all payloads are right."""
        locations = []
        for event in self.of(request_id, ev.ObjectReceived):
            obj = event.obj
            if fetched not in (None, event.is_fetch):
                continue
            if obj.status is ObjectStatus.NORMAL:
                size = len(obj.payload)
                assert obj.payload == payload(obj.group_id, obj.object_id, size)
                locations.append((obj.group_id, obj.object_id))
        return locations

    def rejection(self, request_id):
        return RequestErrorCode(self.one(request_id, ev.RequestRejected).code)

    def markers(self, request_id):
        return [
            (event.marker, event.location.group_id, event.location.object_id)
            for event in self.of(request_id, ev.RangeEnded)
        ]

    def asked(self, kind):
        return [event for event in self.received if isinstance(event, kind)]

    # The pump.

    def turn(self):
        """Move what can be moved; tell whether anything was."""
        world, moved = self.world, False
        for event in self.link.session.take_events():
            moved = True
            world.core.receive(self.peer, event, now=world.now)
        for event in self.session.take_events():
            moved = True
            self.events.append(event)
            self.answer(event)
        if self.room > 0:
            self.room -= self.link.outbox.send(self.link.session, room=self.room, now=world.now)
        self.outbox.send(self.session, room=2**30, now=world.now)
        if self.room > 0:
            moved |= any(is_due(box, world.now) for box in (self.link.outbox, self.outbox))
        for action in self.link.session.take_actions():
            moved = True
            apply(action, self.session, world.now)
        self.waiting.extend(self.session.take_actions())
        for _ in range(len(self.waiting)):
            action = self.waiting.popleft()
            if self.held is not None and self.held(action):
                self.waiting.append(action)
                continue
            moved = True
            if isinstance(action, SendStream):
                self.bytes_out += len(action.data)
            apply(action, self.link.session, world.now)
        return moved

    def answer(self, event):
        if self.responder.receive(event, now=self.world.now):
            return
        requests = (ev.SubscribeReceived, ev.FetchReceived, ev.TrackStatusReceived)
        if isinstance(event, (*requests, ev.PublishReceived)):
            self.received.append(event)
        if not isinstance(event, requests) or type(event) in self.silent:
            return
        store = self.stores.get(event.track)
        now = self.world.now
        if type(event) in self.refusing:
            self.session.reject(event.request_id, **self.refusing[type(event)], now=now)
        elif store is None:
            self.session.reject(event.request_id, RequestErrorCode.DOES_NOT_EXIST, now=now)
        elif isinstance(event, ev.SubscribeReceived):
            self.responder.answer_subscribe(event, store, now=now)
        elif isinstance(event, ev.FetchReceived) and self.busy:
            code = RequestErrorCode.EXCESSIVE_LOAD
            self.session.reject(event.request_id, code, retry_interval_ms=1000, now=now)
        elif isinstance(event, ev.FetchReceived):
            self.responder.answer_fetch(event, store, now=now)
        else:
            self.responder.answer_track_status(event, store, now=now)


class World:
    def __init__(self, *, cache_bytes=2**26, authorize=allow_all, secret=bytes(16), **limits):
        self.now = 100.0
        self.core = RelayCore(
            cache_bytes=cache_bytes,
            authorize=authorize,
            limits=RelayLimits(**limits),
            secret=secret,
        )
        self.clients = []

    def client(self):
        client = Client(self)
        self.clients.append(client)
        self.settle()
        return client

    def publisher(self, namespace=NAMESPACE):
        publisher = self.client()
        publisher.announce(namespace)
        return publisher

    def settle(self):
        while sum(client.turn() for client in tuple(self.clients)):
            pass

    def pass_time(self, seconds):
        """Let time go on in steps, so that whatever is due happens in order."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.25)
            self.core.advance(now=self.now)
            for client in self.clients:
                client.session.advance(now=self.now)
                client.link.session.advance(now=self.now)
            self.settle()

    @property
    def statistics(self):
        return self.core.statistics()


def is_due(outbox, now):
    due_at = outbox.next_deadline()
    return due_at is not None and due_at <= now


def apply(action, receiver, now):
    match action:
        case SendStream(stream_id, data, fin):
            receiver.receive_stream(stream_id, data, fin, now=now)
        case ResetStream(stream_id, code):
            receiver.receive_reset(stream_id, code, now=now)
        case StopSending(stream_id, code):
            receiver.receive_stop_sending(stream_id, code, now=now)
        case SendDatagram(data):
            receiver.receive_datagram(data, now=now)
        case CloseSession(code, reason):
            if not receiver.is_closed:
                receiver.connection_lost(ConnectionLost(code, reason), now=now)
        case SetPriority():
            pass


def whole(groups):
    return [(group_id, object_id) for group_id in range(groups) for object_id in range(BLOCKS)]
