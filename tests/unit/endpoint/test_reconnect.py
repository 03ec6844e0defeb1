import asyncio
import logging
import random

import pytest
from tests.unit.endpoint.bench import TRACK, URL, peers, scenario

from kvcs.endpoint.connect import ConnectConfig
from kvcs.endpoint.reconnect import Backoff, PersistentConnection
from kvcs.errors import (
    CertificateRefused,
    ConfigError,
    ConnectFailed,
    DraftRefused,
    SessionRefused,
)
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.parameters import Parameters
from kvcs.testing import MemoryNetwork, run
from kvcs.transport.interface import TransportConfig

QUICK = ConnectConfig(transport=TransportConfig(connect_timeout=0.5, idle_timeout=2))


def persistent(network, **options):
    return PersistentConnection(URL, QUICK, transport=network, rng=random.Random(1), **options)


def test_delays_grow_to_the_cap_and_are_drawn_from_their_upper_half():
    backoff = Backoff(initial=1, factor=2, maximum=10)
    rng = random.Random(1)

    delays = [[backoff.delay(failures, rng) for _ in range(50)] for failures in (1, 2, 3, 4, 5, 99)]

    for full, drawn in zip((1, 2, 4, 8, 10, 10), delays, strict=True):
        assert full / 2 <= min(drawn) < max(drawn) <= full


@scenario
async def test_session_is_there_when_the_server_is():
    async with peers() as bench, persistent(bench.network) as keeper:
        connection = await keeper.connection(timeout=5)

        assert connection is keeper.current
        assert keeper.last_error is None
        assert keeper.attempts == 1


@scenario
async def test_lost_session_comes_back_and_everybody_is_told():
    connected = []
    async with peers() as bench, persistent(bench.network, on_connected=connected.append) as keeper:
        first = await keeper.connection()
        bench.network.transports[0].cut()
        await first.wait_closed()
        lost = keeper.current
        second = await keeper.connection(timeout=30)

        assert lost is None
        assert connected == [first, second]
        assert not second.closed


@scenario
async def test_session_that_the_server_closes_comes_back():
    async with peers() as bench, persistent(bench.network) as keeper:
        first = await keeper.connection()
        await bench.connections[0].close()
        await first.wait_closed()
        second = await keeper.connection(timeout=30)

        assert second is not first


@scenario
async def test_server_that_comes_late_is_found():
    network = MemoryNetwork()
    async with persistent(network) as keeper:
        await asyncio.sleep(60)
        failed = (keeper.attempts, str(keeper.last_error))
        async with peers(network=network):
            connection = await keeper.connection(timeout=30)

            assert not connection.closed

    assert 5 < failed[0] < 15
    assert "no answer within 0.5 s" in failed[1]


@scenario
async def test_waiting_in_vain_gives_the_last_real_error():
    async with persistent(MemoryNetwork()) as keeper:
        with pytest.raises(ConnectFailed, match=r"no answer within 0\.5 s"):
            await keeper.connection(timeout=5)


class Refusing(MemoryNetwork):
    """A network where a server answers `refusals` attempts with an error."""

    def __init__(self, error, refusals):
        super().__init__()
        self.error, self.refusals = error, refusals

    async def connect(self, host, port, **settings):
        if self.refusals:
            self.refusals -= 1
            raise self.error
        return await super().connect(host, port, **settings)


@pytest.mark.parametrize("kind", [CertificateRefused, DraftRefused, SessionRefused])
def test_server_that_refuses_is_not_waited_for(kind, caplog):
    async def refused_and_then_not():
        loop = asyncio.get_running_loop()
        network = Refusing(kind("127.0.0.1:4443", "no"), refusals=2)
        async with peers(network=network), persistent(network) as keeper:
            with pytest.raises(kind):
                await keeper.connection(timeout=30)
            waited, attempts = loop.time(), keeper.attempts
            await asyncio.sleep(5)
            assert not (await keeper.connection(timeout=0)).closed
        # Whoever waited was told, and nobody is told twice.
        assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
        assert waited < 0.1
        assert (attempts, keeper.attempts) == (1, 3)

    run(refused_and_then_not())


@scenario
async def test_each_wait_gets_the_refusal_of_an_attempt_of_its_own():
    network = Refusing(SessionRefused("127.0.0.1:4443", "no"), refusals=3)
    async with peers(network=network), persistent(network) as keeper:
        attempts = []
        for _ in range(3):
            with pytest.raises(SessionRefused) as raised:
                await keeper.connection(timeout=30)
            attempts.append(keeper.attempts)
            # Frames of earlier waits are not kept.
            assert len(raised.traceback) < 10

        # Who asks again at once does not get the old answer, nor hold up what would bring another.
        assert attempts == [1, 2, 3]
        assert not (await keeper.connection(timeout=30)).closed


@scenario
async def test_waiting_too_short_for_any_error_is_an_error_too():
    async with persistent(MemoryNetwork()) as keeper:
        with pytest.raises(ConnectFailed, match=r"no connection within 0\.1 s"):
            await keeper.connection(timeout=0.1)


@scenario
async def test_end_of_the_block_closes_and_stops():
    async with peers() as bench:
        async with persistent(bench.network) as keeper:
            connection = await keeper.connection()

        await asyncio.sleep(60)

        assert connection.closed
        assert keeper.current is None
        assert keeper.attempts == 1


@scenario
async def test_error_inside_the_block_is_not_wrapped():
    async with peers() as bench:
        with pytest.raises(ZeroDivisionError):
            async with persistent(bench.network):
                raise ZeroDivisionError


def leave(connection, uri="", timeout=10.0):
    connection.session.goaway(uri, timeout, now=connection.now)
    connection.wake()


@scenario
async def test_goaway_moves_to_a_new_session_and_the_old_one_ends_when_it_has_nothing_to_do():
    async with peers() as bench, persistent(bench.network) as keeper:
        bench.answer = lambda connection, event: (
            connection.session.accept_subscribe(event.request_id, now=connection.now)
            if isinstance(event, ev.SubscribeReceived)
            else None
        )
        first = await keeper.connection()
        request_id = first.subscribe(TRACK, Parameters(), lambda _: None)
        await asyncio.sleep(11)
        leave(bench.connections[0])
        await asyncio.sleep(0.5)
        second = await keeper.connection(timeout=5)

        assert second is not first
        await asyncio.sleep(5)
        assert not first.closed
        first.cancel(request_id)
        await asyncio.sleep(1)
        assert first.closed
        assert not second.closed


@scenario
async def test_session_that_is_asked_to_leave_is_not_kept_beyond_its_time():
    async with peers() as bench, persistent(bench.network) as keeper:
        first = await keeper.connection()
        first.subscribe(TRACK, Parameters(rendezvous_timeout_ms=60_000), lambda _: None)
        await asyncio.sleep(11)
        leave(bench.connections[0], timeout=3.0)
        await asyncio.sleep(4)

        assert first.closed
        assert (await keeper.connection(timeout=5)) is not first


@scenario
async def test_goaway_with_a_uri_moves_there():
    network = MemoryNetwork(seed=1)
    async with (
        peers(network=network) as old,
        peers(network=network, port=4434) as new,
        persistent(network) as keeper,
    ):
        await keeper.connection()
        leave(old.connections[0], "moqt://localhost:4434/path")
        await asyncio.sleep(1)

        assert len(new.connections) == 1
        assert keeper.current is not None


@scenario
async def test_uri_of_another_host_or_none_at_all_is_not_followed():
    async with peers() as bench, persistent(bench.network) as keeper:
        for uri in ("moqt://evil.example/path", "https://localhost/", "\N{SNOWMAN}"):
            await keeper.connection(timeout=30)
            await asyncio.sleep(11)
            leave(bench.connections[-1], uri)
            await asyncio.sleep(1)

        await keeper.connection(timeout=30)
        assert len(bench.connections) == 4


@scenario
async def test_host_that_is_allowed_is_followed():
    network = MemoryNetwork(seed=1)
    config = ConnectConfig(transport=QUICK.transport, goaway_hosts=("127.0.0.1",))
    async with (
        peers(network=network) as old,
        peers(network=network, port=4434) as new,
        PersistentConnection(URL, config, transport=network) as keeper,
    ):
        await keeper.connection()
        leave(old.connections[0], "moqt://127.0.0.1:4434/path")
        await asyncio.sleep(1)

        assert len(new.connections) == 1


@scenario
async def test_servers_that_send_each_other_a_client_are_tried_ever_more_rarely():
    network = MemoryNetwork(seed=1)
    async with peers(network=network) as one, peers(network=network, port=4434) as other:
        for bench, port in ((one, 4434), (other, 4433)):
            send_away(bench, f"moqt://localhost:{port}/path")
        async with persistent(network) as keeper:
            await asyncio.sleep(60)

            assert 5 < keeper.attempts < 15
            assert one.connections
            assert other.connections


def send_away(bench, uri):
    accept = bench.accept

    def accept_and_leave(connection):
        accept(connection)
        connection.listen(
            lambda event: leave(connection, uri) if isinstance(event, ev.SetupComplete) else None
        )

    bench.server._on_connection = accept_and_leave


def test_wrong_url_is_refused_at_once():
    with pytest.raises(ConfigError):
        PersistentConnection("nonsense")


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_server_that_stays_away_is_news_once(caplog):
    async def session():
        network = MemoryNetwork()
        async with persistent(network) as keeper:
            await asyncio.sleep(60)
            attempts = keeper.attempts
            assert len(warnings(caplog)) == 1
            async with peers(network=network):
                await keeper.connection(timeout=30)
            # It is away once more.
            await asyncio.sleep(60)
        return attempts

    assert run(session()) > 5
    assert sum("no answer within 0.5 s" in line for line in warnings(caplog)) == 2


def test_server_that_leaves_is_not_joined_again_and_again(caplog):
    async def session():
        async with peers() as bench, persistent(bench.network) as keeper:
            await keeper.connection()
            await asyncio.sleep(60)
            bench.server.leave()
            leave(bench.connections[0], timeout=60.0)
            await asyncio.sleep(30)
            return len(bench.connections)

    assert run(session()) == 1
    refusals = [line for line in warnings(caplog) if "takes no new sessions" in line]
    assert len([line for line in refusals if "next attempt" in line]) == 1
