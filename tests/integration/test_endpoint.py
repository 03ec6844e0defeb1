"""Sessions over real QUIC on loopback."""

import asyncio
import random

import pytest

from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.endpoint.reconnect import Backoff, PersistentConnection
from kvcs.endpoint.serve import ServeConfig, serve
from kvcs.errors import ConnectFailed
from kvcs.moqt.session.events import ObjectReceived, SubscribeReceived
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.transport.interface import ClientTls, TransportConfig

TRACK = FullTrackName(TrackNamespace((b"kvcs", b"test")), b"track")
GROUPS = 16
OBJECTS = 4
OBJECT_BYTES = 300_000
PATIENCE = 20


@pytest.fixture
def config(certificate):
    return ServeConfig(tls=certificate.tls, transport=TransportConfig(idle_timeout=2))


@pytest.fixture
def client_config(certificate):
    return ConnectConfig(
        tls=ClientTls(ca_file=str(certificate.ca_file)),
        transport=TransportConfig(idle_timeout=2, connect_timeout=2),
    )


def serve_groups(connection, payload):
    """Answer each SUBSCRIBE with all Groups, one stream each."""

    def receive(event):
        if not isinstance(event, SubscribeReceived):
            return
        session, now = connection.session, connection.now
        session.accept_subscribe(event.request_id, now=now)
        for group_id in range(GROUPS):
            header = SubgroupHeader(
                track_alias=0, group_id=group_id, subgroup_id=0, publisher_priority=group_id
            )
            stream_id = session.open_subgroup(event.request_id, header, priority=4, now=now)
            for object_id in range(OBJECTS):
                obj = Object(
                    group_id=group_id,
                    object_id=object_id,
                    subgroup_id=0,
                    publisher_priority=group_id,
                    payload=payload,
                )
                session.send_object(stream_id, obj, now=now)
            session.finish_stream(stream_id, now=now)

    connection.listen(receive)


async def test_objects_of_many_streams_arrive_whole(config, client_config):
    payload = random.Random(1).randbytes(OBJECT_BYTES)
    received = []
    complete = asyncio.Event()

    def receive(event):
        if isinstance(event, ObjectReceived):
            received.append(event.obj)
            if len(received) == GROUPS * OBJECTS:
                complete.set()

    async with serve("localhost", 0, lambda c: serve_groups(c, payload), config=config) as server:
        url = f"moqt://localhost:{server.address.port}/"
        async with connect(url, client_config) as connection, asyncio.timeout(PATIENCE):
            await connection.answer(connection.subscribe(TRACK, listener=receive))
            await complete.wait()

    assert {(obj.group_id, obj.object_id) for obj in received} == {
        (group_id, object_id) for group_id in range(GROUPS) for object_id in range(OBJECTS)
    }
    assert all(obj.payload == payload for obj in received)


async def test_end_of_the_server_is_a_clean_end_for_its_clients(config, client_config):
    async with serve("localhost", 0, lambda _: None, config=config) as server:
        url = f"moqt://localhost:{server.address.port}/"
        async with connect(url, client_config) as connection, asyncio.timeout(PATIENCE):
            await server.close()
            assert await connection.wait_closed() is None


async def test_connection_comes_back_after_the_server_restarts(config, client_config):
    quick = Backoff(initial=0.05, maximum=0.2)
    async with serve("localhost", 0, lambda _: None, config=config) as first:
        url = f"moqt://localhost:{first.address.port}/"
        keeper = PersistentConnection(url, client_config, backoff=quick)
        await keeper.__aenter__()
        before = await keeper.connection(timeout=PATIENCE)
    try:
        async with serve("localhost", first.address.port, lambda _: None, config=config):
            after = await keeper.connection(timeout=PATIENCE)

            assert before.closed
            assert not after.closed
    finally:
        await keeper.__aexit__(None, None, None)


async def test_untrusted_server_is_one_sentence(config):
    async with serve("localhost", 0, lambda _: None, config=config) as server:
        url = f"moqt://localhost:{server.address.port}/"

        with pytest.raises(ConnectFailed, match="certificate is not valid under"):
            async with connect(url):
                pass


async def test_verification_can_be_skipped_towards_this_machine(config):
    async with serve("localhost", 0, lambda _: None, config=config) as server:
        url = f"moqt://127.0.0.1:{server.address.port}/"

        async with connect(url, ConnectConfig(tls=ClientTls(verify=False))) as connection:
            assert connection.session.peer_options is not None
