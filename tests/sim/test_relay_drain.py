"""A relay that is told to stop while its clients are busy."""

import asyncio
from dataclasses import replace

from kvcs.endpoint.connect import connect
from kvcs.endpoint.reconnect import PersistentConnection
from kvcs.errors import PublishDoneCode, TerminationCode
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.session import events as ev
from kvcs.moqt.track.responder import TrackResponder
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay import Relay, RelayConfig, allow_all
from kvcs.testing import MemoryNetwork, run
from kvcs.transport.interface import ServerTls

URL = "moqt://localhost:4433/"
NAMESPACE = TrackNamespace((b"ns",))
TRACK = FullTrackName(NAMESPACE, b"t")
CONFIG = RelayConfig(tls=ServerTls(certificate_file="", private_key_file=""), authorize=allow_all)


class Publisher:
    def __init__(self, connection):
        self.connection = connection
        self.store = TrackStore(TRACK, properties=EMPTY_PROPERTIES, authoritative=True)
        self.responder = TrackResponder(connection.session, connection.outbox)
        connection.listen(self.receive)

    def receive(self, event):
        now = self.connection.now
        if not self.responder.receive(event, now=now) and isinstance(event, ev.SubscribeReceived):
            self.responder.answer_subscribe(event, self.store, now=now)

    def add(self, group_id, *, end=False):
        status = ObjectStatus.END_OF_TRACK if end else ObjectStatus.NORMAL
        self.store.add(
            Object(
                group_id=group_id,
                object_id=0,
                subgroup_id=0,
                publisher_priority=0,
                status=status,
                payload=b"" if end else b"x" * 100,
            ),
            now=self.connection.now,
        )
        self.store.finish_subgroup(group_id, 0, end_of_group=True, now=self.connection.now)
        if end:
            self.responder.end(self.store, PublishDoneCode.TRACK_ENDED, now=self.connection.now)
        self.connection.wake()


def test_running_production_is_finished_and_the_relay_ends_long_before_the_deadline():
    async def scenario():
        network = MemoryNetwork(1)
        events = []
        async with (
            Relay(CONFIG, transport=network) as relay,
            connect(URL, transport=network) as producing,
            connect(URL, transport=network) as consuming,
        ):
            publisher = Publisher(producing)
            await producing.answer(producing.publish_namespace(NAMESPACE))
            parameters = Parameters(location_filter=LocationFilter.next_object())
            consuming.subscribe(TRACK, parameters, events.append)
            await asyncio.sleep(0.5)
            loop = asyncio.get_running_loop()
            began = loop.time()
            drained = asyncio.create_task(relay.drain(30.0))
            for group_id in range(3):
                await asyncio.sleep(0.5)
                publisher.add(group_id)
            publisher.add(3, end=True)
            await asyncio.sleep(0.5)
            await consuming.close()
            await producing.close()
            await drained
            return events, loop.time() - began

    events, seconds = run(scenario(), seed=1)

    received = [event.obj.group_id for event in events if isinstance(event, ev.ObjectReceived)]
    assert received == [0, 1, 2, 3]
    (done,) = [event for event in events if isinstance(event, ev.PublishDoneReceived)]
    assert done.status_code == PublishDoneCode.TRACK_ENDED
    assert seconds < 5


def test_drain_ends_in_time_whatever_the_clients_do():
    async def scenario():
        network = MemoryNetwork(1)
        async with (
            Relay(CONFIG, transport=network) as relay,
            connect(URL, transport=network) as producing,
            connect(URL, transport=network) as consuming,
        ):
            Publisher(producing)
            await producing.answer(producing.publish_namespace(NAMESPACE))
            consuming.subscribe(TRACK, Parameters(location_filter=LocationFilter.next_object()))
            await asyncio.sleep(0.5)
            loop = asyncio.get_running_loop()
            began = loop.time()
            await relay.drain(3.0)
            waited = loop.time() - began
            return waited, [await it.wait_closed() for it in (producing, consuming)]

    waited, errors = run(scenario(), seed=1)

    assert 2.0 <= waited <= 3.0
    # The subscriber was told that its subscription ends, and has nothing left to wait for.
    assert [error and error.code for error in errors] == [TerminationCode.GOAWAY_TIMEOUT, None]


def test_publisher_that_is_kept_alive_moves_to_the_relay_that_is_named():
    async def scenario():
        network = MemoryNetwork(1)
        other = replace(CONFIG, port=4434)
        told = []
        async with Relay(CONFIG, transport=network) as old, Relay(other, transport=network):

            def announce(connection):
                connection.publish_namespace(NAMESPACE)

            keeper = PersistentConnection(URL, transport=network, on_connected=announce)
            async with keeper, connect("moqt://localhost:4434/", transport=network) as consumer:
                await keeper.connection(timeout=5)
                consumer.subscribe_namespace(TrackNamespace(), listener=told.append)
                await asyncio.sleep(11)
                loop = asyncio.get_running_loop()
                began = loop.time()
                await old.drain(20.0, "moqt://localhost:4434/")
                return told, loop.time() - began

    told, seconds = run(scenario(), seed=1)

    listed = [event.suffix for event in told if isinstance(event, ev.NamespaceReceived)]
    assert listed == [NAMESPACE]
    assert seconds < 5
