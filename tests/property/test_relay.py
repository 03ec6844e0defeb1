"""Random operations of publishers and subscribers on a relay: nothing breaks, everything ends.

All peers keep to the protocol, so that a session that closes shows a fault of the relay, or of
the session itself. What they do with their Tracks is another matter: they contradict
themselves, refuse, stall, leave and come back.
"""

from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.seeds import examples
from tests.unit.relay.world import BLOCKS, World, block, payload, status

from kvcs.errors import PublishDoneCode, RequestErrorCode, TerminationCode
from kvcs.moqt.codepoints import GroupOrder, ObjectStatus, ParameterType, PropertyType
from kvcs.moqt.session import events as ev
from kvcs.moqt.track.fetch_delivery import WALKED_RUNS
from kvcs.moqt.wire.filters import LocationFilter, Range, RangeFilter
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import FillParameters, Parameters
from kvcs.moqt.wire.properties import Properties
from kvcs.moqt.wire.request import Redirect
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.moqt.wire.token import Token
from kvcs.names import FullTrackName, Location, TrackNamespace
from kvcs.relay.cache import TRACK_BYTES

NAMESPACES = [TrackNamespace((b"a", b"x")), TrackNamespace((b"a", b"y"))]
TRACKS = [FullTrackName(NAMESPACES[0], b"d"), *(FullTrackName(n, b"k") for n in NAMESPACES)]
PREFIXES = [TrackNamespace(), TrackNamespace((b"a",)), *NAMESPACES]
PROPERTIES = Properties.of((PropertyType.DYNAMIC_GROUPS, 1), (0x3800, 1))
REDIRECT = {"code": RequestErrorCode.REDIRECT, "redirect": Redirect("", TRACKS[0])}
REFUSALS = [
    REDIRECT,
    *(
        {"code": code}
        for code in (
            RequestErrorCode.DOES_NOT_EXIST,
            RequestErrorCode.GOING_AWAY,
            RequestErrorCode.UNAUTHORIZED,
            RequestErrorCode.TIMEOUT,
        )
    ),
]
KINDS = [ev.SubscribeReceived, ev.FetchReceived, ev.TrackStatusReceived]
BAD = (Token.use_value(b"bad"),)

tracks = st.sampled_from(TRACKS)
prefixes = st.sampled_from(PREFIXES)
places = st.integers(0, 5)
location_filters = st.one_of(
    st.just(LocationFilter.next_object()),
    st.just(LocationFilter.none()),
    st.builds(LocationFilter.relative_start, st.integers(0, 3)),
    st.builds(LocationFilter.absolute_start, places, places),
    st.builds(LocationFilter.absolute_start_group_end, places, places, places),
    st.builds(LocationFilter.absolute_range, places, places, places, places),
)
NOTE = 0x3802
BY_PROPERTY = RangeFilter(
    kind=ParameterType.OBJECT_PROPERTY_FILTER, property_type=NOTE, ranges=(Range(1, 2),)
)
range_filters = st.sampled_from(
    [
        (),
        (RangeFilter(kind=ParameterType.OBJECTID_FILTER, ranges=(Range(1, 2),)),),
        (BY_PROPERTY,),
    ]
)
orders = st.sampled_from([None, GroupOrder.ASCENDING, GroupOrder.DESCENDING])
timeouts = st.sampled_from([None, 0, 500, 5000])
fills = st.none() | st.builds(
    FillParameters,
    fill_timeout_ms=timeouts,
    location_filter=st.none() | location_filters,
    group_order=orders,
)
subscriptions = st.builds(
    Parameters,
    location_filter=location_filters,
    fill=fills,
    forward=st.sampled_from([None, True, False]),
    rendezvous_timeout_ms=st.sampled_from([None, 1500]),
    object_delivery_timeout_ms=timeouts,
    subgroup_delivery_timeout_ms=timeouts,
    new_group_request=st.sampled_from([None, 0, 3]),
    include_properties=st.sampled_from([None, False]),
    range_filters=range_filters,
    group_order=orders,
    subscriber_priority=st.sampled_from([None, 3]),
)
updates = st.builds(
    Parameters,
    location_filter=st.none() | location_filters,
    fill=fills,
    forward=st.sampled_from([None, True, False]),
    new_group_request=st.sampled_from([None, 0, 9]),
    object_delivery_timeout_ms=timeouts,
    authorization_tokens=st.sampled_from([(), (), BAD]),
)
fetches = st.builds(
    Parameters,
    location_filter=location_filters,
    fill_timeout_ms=timeouts,
    group_order=orders,
    range_filters=range_filters,
)


def refuses_bad_tokens(access):
    is_bad = any(token.value == b"bad" for token in access.tokens)
    return RequestErrorCode.UNAUTHORIZED if is_bad else None


class RelayMachine(RuleBasedStateMachine):
    """A relay with a few peers, each of which publishes and subscribes."""

    @initialize(
        cache_bytes=st.sampled_from([12_000, 40_000, 2**20]),
        cut_through_bytes=st.sampled_from([1, 2**18]),
        walked_runs=st.sampled_from([1, WALKED_RUNS]),
    )
    def begin(self, cache_bytes, cut_through_bytes, walked_runs):
        self.walked_runs = patch("kvcs.moqt.track.fetch_delivery.WALKED_RUNS", walked_runs)
        self.walked_runs.start()
        self.world = World(
            cache_bytes=cache_bytes + len(TRACKS) * TRACK_BYTES,
            authorize=refuses_bad_tokens,
            cut_through_bytes=cut_through_bytes,
        )
        self.requests = []  # (client, request_id) of subscriptions, fetches and prefixes
        self.filtered = []  # (client, request_id, parameters) of subscriptions and fetches
        self.updated = set()
        for _ in range(3):
            self.world.client()
        publisher = self.world.publisher(TrackNamespace((b"a",)))
        for track in TRACKS:
            publisher.store(track, properties=PROPERTIES)
        publisher.add(*(block(0, object_id) for object_id in range(BLOCKS)), track=TRACKS[1])

    def client(self, index):
        return self.world.clients[index % len(self.world.clients)]

    def send(self, client, command, *args, **kwargs):
        request_id = client.send(command, *args, **kwargs)
        self.requests.append((client, request_id))
        return request_id

    # Peers.

    @precondition(lambda self: len(self.world.clients) < 5)
    @rule()
    def join(self):
        self.world.client()

    @precondition(lambda self: len(self.world.clients) > 3)
    @rule(index=places)
    def leave(self, index):
        self.client(index).lose()

    @rule(index=places, room=st.sampled_from([0, 150, 2**30]))
    def read(self, index, room):
        self.client(index).room = room
        self.world.settle()

    @rule(index=places, is_serious=st.integers(0, 4))
    def go_away(self, index, is_serious):
        client = self.client(index)
        if not client.session.is_leaving and is_serious == 4:
            client.send(client.session.goaway, "", 10_000.0)

    @rule(seconds=st.sampled_from([0.25, 2.0]))
    def wait(self, seconds):
        self.world.pass_time(seconds)

    # Publishers.

    @rule(index=places, namespace=st.sampled_from(NAMESPACES))
    def announce(self, index, namespace):
        client = self.client(index)
        self.send(client, client.session.publish_namespace, namespace)

    @rule(index=places, track=tracks, forward=st.sampled_from([None, False]))
    def push(self, index, track, forward):
        client = self.client(index)
        store = client.store(track, properties=PROPERTIES)
        parameters = Parameters(largest_object=store.largest, forward=forward, expires_ms=3000)
        now = self.world.now
        request_id = client.session.publish(track, parameters, properties=PROPERTIES, now=now)
        client.responder.serve_publish(request_id, store, parameters, now=now)
        self.requests.append((client, request_id))
        self.world.settle()

    @rule(index=places, track=tracks, count=st.integers(1, BLOCKS), in_datagrams=st.booleans())
    def publish(self, index, track, count, in_datagrams):
        makers = [client for client in self.world.clients if track in client.stores]
        client = makers[index % len(makers)] if makers else self.client(index)
        store = client.store(track, properties=PROPERTIES)
        if store.end is not None:
            return
        group_id = 0 if store.largest is None else store.largest.group_id + 1
        if in_datagrams and track is TRACKS[0]:
            objects = [datagram(group_id, object_id) for object_id in range(count)]
            client.add(*objects, track=track)
        else:
            objects = [noted(group_id, object_id) for object_id in range(count)]
            client.add(*objects, status(group_id, count), track=track)

    @rule(index=places, track=tracks)
    def end_track(self, index, track):
        client = self.client(index)
        store = client.stores.get(track)
        if store is not None and store.end is None and store.largest is not None:
            client.end_track(store.largest.group_id + 1, track=track)

    @rule(index=places, track=tracks, code=st.sampled_from(PublishDoneCode))
    def give_up(self, index, track, code):
        client = self.client(index)
        if track in client.stores:
            client.responder.end(client.stores[track], code, drain=False, now=self.world.now)
            self.world.settle()

    @rule(
        index=places,
        kind=st.sampled_from(KINDS),
        refusal=st.sampled_from([*[None] * len(REFUSALS), *REFUSALS]),
    )
    def refuse(self, index, kind, refusal):
        client = self.client(index)
        client.refusing.pop(kind, None)
        if refusal is not None:
            client.refusing[kind] = refusal

    @rule(index=places, kind=st.sampled_from(KINDS))
    def be_silent(self, index, kind):
        client = self.client(index)
        client.silent = set() if client.silent else {kind}

    def subscribed(self, client):
        """Requests of the relay that this peer serves."""
        asked = client.asked(ev.SubscribeReceived)
        return [
            event
            for event in asked
            if event.request_id in client.responder._subscriptions
            and client.session.is_active(event.request_id)
        ]

    @rule(index=places, forward=st.sampled_from([None, True, False]), place=places)
    def notify(self, index, forward, place):
        client = self.client(index)
        for event in self.subscribed(client)[:1]:
            parameters = Parameters(forward=forward, largest_object=Location(place, 0))
            client.send(client.session.notify_state, event.request_id, parameters)

    @rule(index=places)
    def ask_to_move(self, index):
        client = self.client(index)
        for event in self.subscribed(client)[:1]:
            request = client.session._registry.by_id[event.request_id]
            if not request.sent_away:
                client.send(client.session.goaway, "", 5.0, request_id=event.request_id)

    @rule(index=places)
    def contradict(self, index):
        client = self.client(index)
        for event in self.subscribed(client)[:1]:
            session, now = client.session, self.world.now
            header = SubgroupHeader(track_alias=0, group_id=0, subgroup_id=0, publisher_priority=77)
            stream_id = session.open_subgroup(event.request_id, header, priority=4, now=now)
            lie = Object(
                group_id=0,
                object_id=0,
                subgroup_id=0,
                publisher_priority=77,
                payload=payload(0, 0),
            )
            session.send_object(stream_id, lie, now=now)
            session.finish_stream(stream_id, now=now)
            self.world.settle()

    # Subscribers.

    @rule(index=places, track=tracks, parameters=subscriptions)
    def subscribe(self, index, track, parameters):
        client = self.client(index)
        request_id = self.send(client, client.session.subscribe, track, parameters)
        self.filtered.append((client, request_id, parameters))

    @rule(index=places, track=tracks, parameters=fetches)
    def fetch(self, index, track, parameters):
        client = self.client(index)
        request_id = self.send(client, client.session.fetch, track, parameters)
        self.filtered.append((client, request_id, parameters))

    @rule(index=places, track=tracks)
    def ask(self, index, track):
        client = self.client(index)
        self.send(client, client.session.track_status, track)

    @rule(index=places, prefix=prefixes)
    def list_namespaces(self, index, prefix):
        client = self.client(index)
        self.send(client, client.session.subscribe_namespace, prefix)

    @rule(index=places, prefix=prefixes, fill=fills, forward=st.sampled_from([None, False]))
    def list_tracks(self, index, prefix, fill, forward):
        client = self.client(index)
        parameters = Parameters(
            fill=fill, forward=forward, location_filter=LocationFilter.next_object()
        )
        self.send(client, client.session.subscribe_tracks, prefix, parameters)

    def pick(self, number):
        """Return a request that is not over, or None."""
        living = [
            (client, request_id)
            for client, request_id in self.requests
            if client.session.is_active(request_id)
        ]
        return living[number % len(living)] if living else None

    @rule(number=st.integers(0, 50), parameters=updates, prefix=prefixes)
    def update(self, number, parameters, prefix):
        picked = self.pick(number)
        if picked is None:
            return
        client, request_id = picked
        request = client.session._registry.by_id[request_id]
        if len(request.updates_sent) > 5 or not request.can_send:
            return
        match request.kind.name:
            case "SUBSCRIBE":
                pass
            case "SUBSCRIBE_NAMESPACE" | "SUBSCRIBE_TRACKS":
                parameters = Parameters(
                    track_namespace_prefix=prefix,
                    authorization_tokens=parameters.authorization_tokens,
                )
            case "FETCH":
                parameters = Parameters(
                    subscriber_priority=9, authorization_tokens=parameters.authorization_tokens
                )
            case _:
                return
        self.updated.add((client, request_id))
        client.send(client.session.update, request_id, parameters)

    @rule(number=st.integers(0, 50))
    def cancel(self, number):
        picked = self.pick(number)
        if picked is not None:
            client, request_id = picked
            client.send(client.session.cancel, request_id)

    # What must be true.

    @invariant()
    def no_session_is_closed(self):
        for client in self.world.clients:
            closed = [event for event in client.events if isinstance(event, ev.SessionClosed)]
            assert not closed, closed
            assert not client.link.session.is_closed

    @invariant()
    def filters_let_nothing_else_through(self):
        for client, request_id, parameters in self.filtered:
            if (client, request_id) in self.updated or parameters.range_filters != (BY_PROPERTY,):
                continue
            for event in client.of(request_id, ev.ObjectReceived):
                # A fill of a subscription has filters of its own.
                if event.obj.status is ObjectStatus.NORMAL and not (
                    event.is_fetch and parameters.fill is not None
                ):
                    assert event.obj.properties.find(NOTE) in {1, 2}, event.obj

    @invariant()
    def every_object_comes_once(self):
        for client, request_id in self.requests:
            if (client, request_id) not in self.updated:
                locations = client.objects(request_id)
                assert len(locations) == len(set(locations)), (request_id, locations)

    def teardown(self):
        """Drain the relay: whatever is going on, everything ends in time."""
        try:
            self.drain(self.world)
        finally:
            self.walked_runs.stop()

    def drain(self, world):
        for client in world.clients:
            client.room = 2**30
        world.core.drain.begin(3.0, "", now=world.now)
        world.pass_time(4.0)
        for client in world.clients:
            (error,) = [e.error for e in client.events if isinstance(e, ev.SessionClosed)]
            assert error.code in (TerminationCode.NO_ERROR, TerminationCode.GOAWAY_TIMEOUT)
            assert client.peer.granted == {}
        statistics = world.statistics
        assert (statistics.sessions, statistics.subscriptions, statistics.fetches) == (0, 0, 0)
        for track in world.core.tracks():
            assert track.is_idle, track


def noted(group_id, object_id):
    """Return an Object of a Subgroup whose property is its Object ID."""
    properties = Properties.of((NOTE, object_id))
    return block(group_id, object_id)._replace(properties=properties)


def datagram(group_id, object_id):
    return Object(
        group_id=group_id,
        object_id=object_id,
        subgroup_id=None,
        publisher_priority=0,
        status=ObjectStatus.NORMAL,
        payload=payload(group_id, object_id),
    )


RelayMachine.TestCase.settings = settings(
    max_examples=examples(40),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestRelay = RelayMachine.TestCase
