import asyncio
import logging

import pytest
from tests.unit.endpoint.bench import NAMESPACE, TLS, TRACK, Heard, connected, peers, scenario

from kvcs.endpoint.connection import Connection
from kvcs.errors import (
    ConnectionLost,
    RemoteProtocolError,
    RequestErrorCode,
    RequestRejected,
    RequestTimedOut,
    TerminationCode,
)
from kvcs.moqt.session.actions import SendStream
from kvcs.moqt.session.events import (
    FetchReceived,
    GoawayReceived,
    ObjectReceived,
    PublishNamespaceReceived,
    RequestAccepted,
    RequestCancelled,
    SessionClosed,
    SetupComplete,
    StreamFinished,
    SubscribeAccepted,
    SubscribeNamespaceReceived,
    SubscribeReceived,
    TrackStatusReceived,
    UpdateAccepted,
    UpdateReceived,
)
from kvcs.moqt.session.limits import SessionConfig, SessionLimits, Side
from kvcs.moqt.session.session import Session
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.testing import LinkProfile, MemoryNetwork, run
from kvcs.transport.interface import Address, ClientTls, Closed, TransportConfig

MIB = 1 << 20


def _accept(connection, event):
    now = connection.now
    match event:
        case SubscribeReceived():
            connection.session.accept_subscribe(event.request_id, now=now)
        case PublishNamespaceReceived() | TrackStatusReceived():
            connection.session.accept(event.request_id, now=now)
        case UpdateReceived():
            connection.session.accept_update(event.request_id, now=now)
        case _:
            pass


class Backlog:
    """A delivery that owes Objects of one size on one stream."""

    def __init__(self, request_id, objects, size_bytes):
        self.request_id = request_id
        self.objects = objects
        self.size_bytes = size_bytes
        self.sent = 0
        self.stream_id = None
        self.on_ready = None
        self.deadline = None
        self.is_walking = False

    @property
    def finished(self):
        return self.sent == self.objects

    def rank(self):
        return (128, 128, 0)

    def step(self, session, *, now):
        if self.finished:
            return 0
        if self.stream_id is None:
            header = SubgroupHeader(
                track_alias=0, group_id=0, subgroup_id=0, publisher_priority=128
            )
            self.stream_id = session.open_subgroup(self.request_id, header, priority=4, now=now)
        obj = Object(
            group_id=0,
            object_id=self.sent,
            subgroup_id=0,
            publisher_priority=128,
            payload=bytes(self.size_bytes),
        )
        session.send_object(self.stream_id, obj, now=now)
        self.sent += 1
        if self.finished:
            session.finish_stream(self.stream_id, now=now)
        return self.size_bytes


# Requests and answers.


@scenario
async def test_request_is_answered():
    async with peers() as bench, connected(bench) as (client, _):
        bench.answer = _accept

        answer = await client.answer(client.publish_namespace(NAMESPACE))

        assert isinstance(answer, RequestAccepted)
        assert bench.heard.of(PublishNamespaceReceived)[0].namespace == NAMESPACE


@scenario
async def test_request_is_rejected_with_the_peers_reason():
    def refuse(connection, event):
        if isinstance(event, SubscribeReceived):
            connection.session.reject(
                event.request_id,
                RequestErrorCode.EXCESSIVE_LOAD,
                reason="come back later",
                retry_interval_ms=1500,
                now=connection.now,
            )

    async with peers() as bench, connected(bench) as (client, _):
        bench.answer = refuse

        with pytest.raises(RequestRejected, match="come back later") as caught:
            await client.answer(client.subscribe(TRACK))

        assert caught.value.code == RequestErrorCode.EXCESSIVE_LOAD
        assert caught.value.retry_after == pytest.approx(1.5, abs=0.01)


@scenario
async def test_request_without_an_answer_times_out_and_is_cancelled():
    async with peers() as bench, connected(bench) as (client, _):
        with pytest.raises(RequestTimedOut, match="no answer within 2 s"):
            await client.answer(client.subscribe(TRACK), timeout=2)
        await asyncio.sleep(1)

        assert bench.heard.of(RequestCancelled)
        assert not client.closed


@scenario
async def test_request_without_a_timeout_ends_at_the_sessions_own():
    limits = SessionLimits(request_timeout=5)
    async with peers() as bench, connected(bench, limits=limits) as (client, _):
        start = client.now

        with pytest.raises(RequestTimedOut):
            await client.answer(client.subscribe(TRACK))

        assert client.now - start == pytest.approx(5, abs=0.1)


@scenario
async def test_waiting_that_is_cancelled_cancels_the_request():
    async with peers() as bench, connected(bench) as (client, _):
        task = asyncio.create_task(client.answer(client.subscribe(TRACK)))
        await asyncio.sleep(1)

        task.cancel()
        await asyncio.sleep(1)

        assert task.cancelled()
        assert len(bench.heard.of(RequestCancelled)) == 1


@scenario
async def test_update_is_answered_by_its_own_id():
    async with peers() as bench, connected(bench) as (client, _):
        bench.answer = _accept
        heard = Heard()
        request_id = client.subscribe(TRACK, listener=heard)
        await client.answer(request_id)

        update_id = client.update(request_id, Parameters(subscriber_priority=7))
        answer = await client.answer(update_id)

        assert isinstance(answer, UpdateAccepted)
        assert update_id != request_id
        assert heard.of(UpdateAccepted) == [answer]


@scenario
async def test_update_of_a_request_that_ends_is_not_waited_for():
    async with peers() as bench, connected(bench) as (client, server):
        bench.answer = _accept
        request_id = client.subscribe(TRACK)
        await client.answer(request_id)
        bench.answer = lambda *_: None

        waiting = client.answer(client.update(request_id, Parameters(subscriber_priority=7)))
        server.session.revoke(bench.heard.of(SubscribeReceived)[0].request_id, now=server.now)
        server.wake()

        with pytest.raises(RequestRejected):
            await waiting


@scenario
async def test_request_while_nobody_listens_is_refused_at_once():
    async with peers() as bench, connected(bench) as (_, server):
        with pytest.raises(RequestRejected, match="nobody here answers requests") as caught:
            await server.answer(server.publish_namespace(NAMESPACE))

        assert caught.value.code == RequestErrorCode.NOT_SUPPORTED


# Listening.


@scenario
async def test_events_of_a_request_go_to_its_listener_only():
    async with peers() as bench, connected(bench) as (client, server):
        bench.answer = _accept
        heard, others = Heard(), Heard()
        client.listen(others)
        request_id = client.subscribe(TRACK, listener=heard)
        await client.answer(request_id)

        server.outbox.add(
            Backlog(bench.heard.of(SubscribeReceived)[0].request_id, objects=3, size_bytes=100)
        )
        await asyncio.sleep(1)

        assert [event.obj.object_id for event in heard.of(ObjectReceived)] == [0, 1, 2]
        assert heard.of(SubscribeAccepted)
        assert heard.of(StreamFinished)
        assert others == []


@scenario
async def test_forgotten_request_is_heard_by_the_connection():
    async with peers() as bench, connected(bench) as (client, _):
        bench.answer = _accept
        heard, others = Heard(), Heard()
        client.listen(others)
        request_id = client.track_status(TRACK, listener=heard)

        client.forget(request_id)
        await asyncio.sleep(1)
        client.unlisten(others)

        assert heard == []
        assert len(others.of(RequestAccepted)) == 1


@scenario
async def test_every_listener_hears_the_end_once():
    async with peers() as bench, connected(bench) as (client, _):
        bench.answer = _accept
        heard, others, calls = Heard(), Heard(), []
        client.listen(others)
        client.on_closed(lambda: calls.append(1))
        await client.answer(client.subscribe(TRACK, listener=heard))

        await client.close()
        await client.close()

        assert len(heard.of(SessionClosed)) == len(others.of(SessionClosed)) == len(calls) == 1


@scenario
async def test_goaway_is_passed_on():
    async with peers() as bench, connected(bench) as (client, server):
        heard = Heard()
        client.listen(heard)

        server.session.goaway("moqt://elsewhere.test/", 3, now=server.now)
        server.wake()
        await asyncio.sleep(1)

        assert heard.of(GoawayReceived)[0].uri == "moqt://elsewhere.test/"


# Faults.


def test_listener_that_fails_ends_its_session_and_no_other(caplog):
    def fail(event):
        if isinstance(event, SubscribeReceived):
            raise ZeroDivisionError

    async def session():
        async with peers() as bench:
            bench.answer = lambda connection, event: (
                fail(event) if connection is bench.connections[0] else _accept(connection, event)
            )
            async with connected(bench) as (first, _), connected(bench) as (second, _):
                with pytest.raises(ConnectionLost) as caught:
                    await first.answer(first.subscribe(TRACK))
                answer = await second.answer(second.subscribe(TRACK))
                return caught.value, answer

    error, answer = run(session())

    assert error.code == TerminationCode.INTERNAL_ERROR
    assert isinstance(answer, SubscribeAccepted)
    failures = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.exc_info[0] for record in failures] == [ZeroDivisionError]


def test_listener_that_fails_at_the_end_keeps_nobody_from_it(caplog):
    def fail(event):
        if isinstance(event, SessionClosed):
            raise ZeroDivisionError

    async def session():
        async with peers() as bench, connected(bench) as (client, _):
            heard = Heard()
            client.listen(fail)
            client.listen(heard)
            await client.close()
            return heard.of(SessionClosed)

    assert len(run(session())) == 1
    assert "listener failed at the end" in caplog.text


@scenario
async def test_lost_peer_fails_waiting_requests_and_tells_listeners():
    async with peers() as bench, connected(bench) as (client, _):
        heard = Heard()
        waiting = client.answer(client.subscribe(TRACK, listener=heard))
        bench.network.transports[1].kill()

        with pytest.raises(ConnectionLost, match="idle timeout"):
            await waiting
        error = await client.wait_closed()

        assert isinstance(error, ConnectionLost)
        assert heard.of(SessionClosed)[0].error is error
        with pytest.raises(ConnectionLost):
            await client.answer(0)


@scenario
async def test_peer_that_breaks_a_rule_is_closed_with_its_code():
    network = MemoryNetwork(1)
    accepted = []
    await network.listen(
        Address("h", 1), accepted.append, alpn="t", tls=TLS, config=TransportConfig()
    )
    carrier = await network.connect("h", 1, alpn="t", tls=ClientTls(), config=TransportConfig())
    connection = Connection(accepted[0], Session(Side.SERVER, SessionConfig()))
    events = []
    carrier.set_listener(events.extend, lambda: None)
    connection.start()

    carrier.write(2, b"\xaf\x00\x00\x01\x05")
    error = await connection.wait_closed()
    await asyncio.sleep(1)

    assert isinstance(error, RemoteProtocolError)
    assert events[-1] == Closed(error.code, "closed by the peer")


@scenario
async def test_peer_without_setup_is_given_up():
    network = MemoryNetwork(1)
    accepted = []
    await network.listen(
        Address("h", 1), accepted.append, alpn="t", tls=TLS, config=TransportConfig()
    )
    await network.connect("h", 1, alpn="t", tls=ClientTls(), config=TransportConfig())
    limits = SessionLimits(setup_timeout=4)
    connection = Connection(accepted[0], Session(Side.SERVER, SessionConfig(limits=limits)))
    connection.start()

    with pytest.raises(RemoteProtocolError, match=r"(?i)setup"):
        await connection.ready()

    assert asyncio.get_running_loop().time() == pytest.approx(4, abs=0.1)


# Flow.


@scenario
async def test_outbox_fills_the_transport_to_its_high_water_mark_and_goes_on():
    network = MemoryNetwork(1, LinkProfile(bandwidth=20_000_000))
    async with peers(network=network) as bench, connected(bench) as (client, server):
        bench.answer = _accept
        heard = Heard()
        await client.answer(client.subscribe(TRACK, listener=heard))
        carrier = bench.network.transports[1]
        backlog = Backlog(bench.heard.of(SubscribeReceived)[0].request_id, 64, MIB // 2)

        server.outbox.add(backlog)
        levels = []
        while not backlog.finished:
            await asyncio.sleep(0.01)
            levels.append(carrier.queued_bytes)
        await asyncio.sleep(5)

        high = TransportConfig().high_water_bytes
        assert high - MIB < max(levels) < high + MIB
        assert len(heard.of(ObjectReceived)) == 64


@scenario
async def test_clean_close_sends_what_the_outbox_owes():
    network = MemoryNetwork(1, LinkProfile(bandwidth=20_000_000))
    async with peers(network=network) as bench, connected(bench) as (client, server):
        bench.answer = _accept
        heard = Heard()
        await client.answer(client.subscribe(TRACK, listener=heard))

        server.outbox.add(Backlog(bench.heard.of(SubscribeReceived)[0].request_id, 40, MIB // 2))
        await server.close()
        await client.wait_closed()

        assert len(heard.of(ObjectReceived)) == 40


@scenario
async def test_clean_close_is_bounded_when_the_peer_stalls():
    config = TransportConfig(close_timeout=3, max_stream_data=MIB)
    async with (
        peers(transport=config) as bench,
        connected(bench, transport=config) as (client, server),
    ):
        bench.answer = _accept
        await client.answer(client.subscribe(TRACK))
        bench.network.transports[0].stall()
        start = server.now

        server.outbox.add(Backlog(bench.heard.of(SubscribeReceived)[0].request_id, 40, MIB // 2))
        error = await server.close()

        assert error is None
        assert 3 <= server.now - start <= 6.1


@scenario
async def test_peer_that_does_not_read_is_closed_before_memory_runs_out():
    network = MemoryNetwork(1)
    accepted = []
    await network.listen(
        Address("h", 1), accepted.append, alpn="t", tls=TLS, config=TransportConfig()
    )
    config = TransportConfig(max_bidi_streams=1)
    carrier = await network.connect("h", 1, alpn="t", tls=ClientTls(), config=config)
    connection = Connection(
        accepted[0], Session(Side.SERVER, SessionConfig()), max_queued_bytes=1000
    )
    carrier.set_listener(lambda _: None, lambda: None)
    carrier.stall()
    connection.start()

    for _ in range(200):
        connection.subscribe(TRACK)
    error = await connection.wait_closed()

    assert "wait for a peer that does not read" in str(error)


@scenario
async def test_one_batch_of_requests_cannot_make_more_than_one_answer_too_many():
    """A namespace search is a few octets, and its answer everything that is announced."""
    answer = [TrackNamespace((b"%d" % number, bytes(200))) for number in range(100)]
    network, accepted = MemoryNetwork(1), []
    await network.listen(
        Address("h", 1), accepted.append, alpn="t", tls=TLS, config=TransportConfig()
    )
    config = TransportConfig(max_stream_data=100)
    carrier = await network.connect("h", 1, alpn="t", tls=ClientTls(), config=config)
    client = Connection(carrier, Session(Side.CLIENT, SessionConfig()))
    server = Connection(accepted[0], Session(Side.SERVER, SessionConfig()), max_queued_bytes=50_000)
    answered = []

    def announce(event):
        if isinstance(event, SubscribeNamespaceReceived) and not server.closed:
            answered.append(event)
            server.session.accept(event.request_id, now=server.now)
            for suffix in answer:
                server.session.announce(event.request_id, suffix, now=server.now)

    server.listen(announce)
    server.start()
    client.start()
    await client.ready()
    accepted[0].stall()
    for number in range(50):
        client.subscribe_namespace(TrackNamespace((b"%d" % number,)))
    await asyncio.sleep(1)
    carrier.stall()
    accepted[0].resume()
    error = await server.wait_closed()

    assert "wait for a peer that does not read" in str(error)
    # Some 21,000 octets each.
    assert len(answered) <= 4


@scenario
async def test_what_a_piece_brings_is_passed_on_before_the_next_piece_of_its_batch_is_read():
    """A batch may be megabytes, and each Object of it a copy."""
    network, accepted = MemoryNetwork(1), []
    await network.listen(
        Address("h", 1), accepted.append, alpn="t", tls=TLS, config=TransportConfig()
    )
    carrier = await network.connect("h", 1, alpn="t", tls=ClientTls(), config=TransportConfig())
    client, server = (Session(side, SessionConfig()) for side in (Side.CLIENT, Side.SERVER))
    connection, steps = Connection(accepted[0], server), []
    receive_stream = server.receive_stream

    def read(stream_id, data, fin, *, now):
        steps.append("read")
        receive_stream(stream_id, data, fin, now=now)

    server.receive_stream = read
    connection.listen(lambda event: steps.append(type(event)))
    connection.start()

    async def send():
        for action in client.take_actions():
            if isinstance(action, SendStream):
                carrier.write(action.stream_id, action.data, fin=action.fin)
        await asyncio.sleep(1)

    client.start(now=0)
    await send()
    steps.clear()
    for number in range(2):
        client.subscribe(FullTrackName(NAMESPACE, b"%d" % number), now=0)
    await send()

    assert steps == ["read", SubscribeReceived] * 2


@scenario
async def test_listener_that_fails_beside_the_end_of_the_session_keeps_nobody_from_it():
    """A request and the end arrive in one batch; the listener fails at the request."""

    def fail(event):
        assert not isinstance(event, SubscribeReceived), "a bug"

    async with peers() as bench, connected(bench) as (client, server):
        heard = Heard()
        server.listen(fail)
        server.listen(heard)
        end = bench.network.transports[1]
        end.stall()
        client.subscribe(TRACK)
        await asyncio.sleep(1)
        await client.close()
        end.resume()
        await server.wait_closed()

        assert len(heard.of(SessionClosed)) == 1
        assert heard.of(SubscribeReceived) == []


def test_one_line_is_logged_about_the_life_of_each_session(caplog):
    caplog.set_level(logging.INFO, logger="kvcs.endpoint")

    async def session():
        async with peers() as bench, connected(bench) as (client, _):
            bench.answer = _accept
            await client.answer(client.publish_namespace(NAMESPACE))

    run(session())

    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert len(lines) == 2
    assert all("clean close; 1 requests" in line for line in lines)


@scenario
async def test_setup_is_complete_when_connect_returns():
    async with peers() as bench, connected(bench) as (client, server):
        await server.ready()

        assert bench.heard.of(SetupComplete)
        assert client.session.peer_options.implementation == "kvcs"
        assert not bench.heard.of(FetchReceived)
