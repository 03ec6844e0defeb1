"""A subscriber and a publisher on two real sessions, joined without a network."""

from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.session.actions import (
    ResetStream,
    SendDatagram,
    SendStream,
    SetPriority,
    StopSending,
)
from kvcs.moqt.session.events import (
    DatagramReceived,
    FetchOpened,
    FetchReceived,
    ObjectReceived,
    RangeEnded,
    StreamAborted,
    StreamFinished,
    SubgroupOpened,
    SubscribeReceived,
    TrackStatusReceived,
)
from kvcs.moqt.session.limits import SessionConfig, Side
from kvcs.moqt.session.session import Session
from kvcs.moqt.track.outbox import Outbox
from kvcs.moqt.track.responder import TrackResponder
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES
from kvcs.moqt.wire.setup import SetupOptions
from kvcs.names import FullTrackName, TrackNamespace

PLENTY = 1 << 30


class Site:
    """One Track, a session that serves it and a session that asks for it.

    Attributes:
        store: The Track.
        subscriber: Asks.
        publisher: Serves.
        events: What the subscriber was told, apart from data.
        datagrams: What came in datagrams.
        streams: What came on each data stream, as short text, by stream id.
        headers: Headers of Subgroup streams, by stream id.
        requests: Which request each data stream belongs to, by stream id.
        priorities: QUIC priorities that the publisher gave, in order.
        gaps: Gaps that deliveries waited for.
    """

    def __init__(self, *, authoritative=True, properties=EMPTY_PROPERTIES, fill_gaps=False):
        self.track = FullTrackName(TrackNamespace((b"test",)), b"track")
        self.store = TrackStore(self.track, properties=properties, authoritative=authoritative)
        self.now = 0.0
        options = SetupOptions(max_filter_ranges=16, max_request_updates=8)
        config = SessionConfig(options=options)
        self.subscriber = Session(Side.CLIENT, config)
        self.publisher = Session(Side.SERVER, config)
        self.outbox = Outbox()
        self.responder = TrackResponder(self.publisher, self.outbox, max_fetches=2)
        self.fill_gaps = fill_gaps
        self.events = []
        self.streams = {}
        self.datagrams = []
        self.headers = {}
        self.requests = {}
        self.priorities = []
        self.gaps = []
        self.deliveries = {}
        self.answering = True
        self.subscriber.start(now=0.0)
        self.publisher.start(now=0.0)
        self.settle()
        self.events.clear()

    # The Track.

    def add(self, group_id, *object_ids, payload=b"x", **fields):
        priority = fields.pop("publisher_priority", group_id % 256)
        subgroup_id = fields.pop("subgroup_id", 0)
        for object_id in object_ids:
            obj = Object(
                group_id=group_id,
                object_id=object_id,
                subgroup_id=subgroup_id,
                publisher_priority=priority,
                payload=payload,
                **fields,
            )
            self.store.add(obj, now=self.now)

    def fetched(self, group_id, object_id):
        """Add an Object as a fetch brings it."""
        obj = Object(
            group_id=group_id,
            object_id=object_id,
            subgroup_id=0,
            publisher_priority=group_id,
            payload=b"x",
        )
        self.store.add(obj, now=self.now, fetched=True)

    def end_group(self, group_id, object_id, kind=ObjectStatus.END_OF_GROUP):
        self.add(group_id, object_id, payload=b"", status=kind)
        self.finish(group_id)

    def finish(self, group_id, subgroup_id=0, *, end_of_group=True):
        self.store.finish_subgroup(group_id, subgroup_id, end_of_group=end_of_group, now=self.now)

    def publish(self, layers, blocks):
        """Publish a whole Track as KVCS does."""
        for group_id in range(layers):
            self.add(group_id, *range(blocks))
            self.end_group(group_id, blocks)
        self.end_group(layers, 0, ObjectStatus.END_OF_TRACK)

    # Requests.

    def subscribe(self, **parameters):
        request_id = self.subscriber.subscribe(self.track, Parameters(**parameters), now=self.now)
        self.settle(room=0)
        return request_id

    def fetch(self, **parameters):
        request_id = self.subscriber.fetch(self.track, Parameters(**parameters), now=self.now)
        self.settle(room=0)
        return request_id

    def update(self, request_id, **parameters):
        update_id = self.subscriber.update(request_id, Parameters(**parameters), now=self.now)
        self.settle(room=0)
        return update_id

    # The way between.

    def settle(self, *, room=PLENTY):
        """Carry everything both ways until nothing moves; send `room` octets at most."""
        while True:
            room -= self.outbox.send(self.publisher, room=room, now=self.now) if room > 0 else 0
            moved = self.carry()
            due_at = self.outbox.next_deadline()
            if not moved and (room <= 0 or due_at is None or due_at > self.now):
                return

    def carry_to_publisher(self):
        """Carry what the subscriber sent, and tell nobody but the session."""
        self._carry(self.subscriber, self.publisher)

    def carry(self):
        """Carry once what was sent each way; tell whether that was anything."""
        moved = self._carry(self.subscriber, self.publisher)
        moved |= self._carry(self.publisher, self.subscriber)
        for event in self.publisher.take_events():
            self._serve(event)
        for event in self.subscriber.take_events():
            self._note(event)
        return moved

    def _carry(self, sender, receiver):
        actions = sender.take_actions()
        for action in actions:
            match action:
                case SendStream(stream_id, data, fin):
                    receiver.receive_stream(stream_id, data, fin, now=self.now)
                case ResetStream(stream_id, code):
                    receiver.receive_reset(stream_id, code, now=self.now)
                case StopSending(stream_id, code):
                    receiver.receive_stop_sending(stream_id, code, now=self.now)
                case SendDatagram(data):
                    receiver.receive_datagram(data, now=self.now)
                case SetPriority(_, priority) if sender is self.publisher:
                    self.priorities.append(priority)
        return bool(actions)

    def _serve(self, event):
        if self.responder.receive(event, now=self.now) or not self.answering:
            return
        on_gap = self._on_gap if self.fill_gaps else None
        options = {"now": self.now}
        match event:
            case SubscribeReceived():
                delivery = self.responder.answer_subscribe(
                    event, self.store, on_gap=on_gap, **options
                )
                self.deliveries[event.request_id] = delivery
            case FetchReceived():
                delivery = self.responder.answer_fetch(event, self.store, on_gap=on_gap, **options)
                self.deliveries[event.request_id] = delivery
            case TrackStatusReceived():
                self.responder.answer_track_status(event, self.store, **options)

    def _on_gap(self, delivery, start, through):
        self.gaps.append((delivery, start, through))

    def _note(self, event):
        match event:
            case SubgroupOpened(request_id, stream_id, header):
                self.streams[stream_id] = []
                self.headers[stream_id] = header
                self.requests[stream_id] = request_id
            case FetchOpened(_, stream_id, trigger_id):
                self.streams[stream_id] = []
                self.requests[stream_id] = trigger_id
            case ObjectReceived(_, stream_id, obj):
                mark = {0: "", 3: "!", 4: "!!"}[obj.status]
                self.streams[stream_id].append(f"{obj.group_id}/{obj.object_id}{mark}")
            case DatagramReceived(obj=obj):
                self.datagrams.append(event)
                self.streams.setdefault("datagrams", []).append(f"{obj.group_id}/{obj.object_id}")
            case RangeEnded(_, stream_id, marker, location):
                name = {0x8C: "absent", 0x10C: "unknown", 0x20C: "late"}[marker]
                text = f"{name}<={location.group_id}/{_short(location.object_id)}"
                self.streams[stream_id].append(text)
            case StreamFinished(_, stream_id):
                self.streams[stream_id].append("FIN")
            case StreamAborted(_, stream_id, code):
                self.streams[stream_id].append(f"RESET {code}")
            case _:
                self.events.append(event)

    # What came.

    def received(self, request_id=None):
        """Return the data streams in the order of opening, each as one text."""
        return [
            " ".join(items)
            for stream_id, items in self.streams.items()
            if request_id in (None, self.requests.get(stream_id))
        ]

    def told(self, kind):
        """Return the events of one type that the subscriber got."""
        return [event for event in self.events if isinstance(event, kind)]


def _short(object_id):
    return "*" if object_id == 2**64 - 1 else object_id
