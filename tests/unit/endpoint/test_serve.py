import asyncio
import logging

import pytest
from tests.unit.endpoint.bench import TLS, connected, peers, scenario

from kvcs.endpoint.connect import dial
from kvcs.endpoint.serve import ServeConfig, serve
from kvcs.errors import ConnectFailed, SessionRefused, TransportError
from kvcs.moqt.session.limits import SessionLimits
from kvcs.testing import MemoryNetwork, run


@scenario
async def test_server_keeps_its_connections_until_they_end():
    async with peers() as bench, connected(bench) as (_, first):
        async with connected(bench) as (_, second):
            both = set(bench.server.connections)
        await second.wait_closed()

        assert both == {first, second}
        assert bench.server.connections == {first}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_server_closes_others_before_setup(caplog, host):
    accepted = []

    async def session():
        network = MemoryNetwork()
        network.client_host = "192.0.2.7"
        async with serve(
            host, 4433, accepted.append, config=ServeConfig(tls=TLS), transport=network
        ):
            await dial("moqt://relay.test:4433/", transport=network)

    with pytest.raises(SessionRefused, match="UNAUTHORIZED"):
        run(session())

    assert accepted == []
    assert "connection from 192.0.2.7:49152 refused" in caplog.text
    assert caplog.records[0].levelno == logging.WARNING


@scenario
async def test_public_server_takes_everybody():
    network = MemoryNetwork()
    network.client_host = "192.0.2.7"
    accepted = []

    async with serve(
        "0.0.0.0", 4433, accepted.append, config=ServeConfig(tls=TLS), transport=network
    ):
        connection = await dial("moqt://relay.test:4433/", transport=network)
        await connection.close()

    assert accepted[0].peer == "192.0.2.7:49152"


@scenario
async def test_setup_says_how_many_tokens_may_be_stored():
    limits = SessionLimits(max_token_cache_bytes=777)
    async with peers(limits=limits) as bench, connected(bench) as (connection, _):
        assert connection.session.peer_options.max_auth_token_cache_size == 777


@scenario
async def test_connections_beyond_the_limit_are_refused():
    async with peers(max_connections=1) as bench, connected(bench):
        with pytest.raises(ConnectFailed, match="INTERNAL_ERROR"):
            await dial("moqt://localhost:4433/", transport=bench.network)


@scenario
async def test_one_address_cannot_take_all_connections():
    async with peers(max_connections_per_address=2) as bench:
        config = ServeConfig(tls=TLS, max_connections_per_address=2)
        network = bench.network
        async with serve("0.0.0.0", 4434, lambda _: None, config=config, transport=network):
            url = "moqt://relay.test:4434/"
            first, second = [await dial(url, transport=network) for _ in range(2)]
            with pytest.raises(ConnectFailed, match="INTERNAL_ERROR"):
                await dial(url, transport=network)
            network.client_host = "192.0.2.7"
            await (await dial(url, transport=network)).close()
            network.client_host = "127.0.0.1"
            await first.close()
            await (await dial(url, transport=network)).close()
            await second.close()


@scenario
async def test_end_of_the_block_closes_all_sessions_cleanly():
    async with peers() as bench:
        clients = [await dial("moqt://localhost:4433/", transport=bench.network) for _ in range(3)]

    ends = await asyncio.gather(*(client.wait_closed() for client in clients))
    assert ends == [None] * 3
    assert bench.network.transports == []


@scenario
async def test_port_zero_is_a_free_port():
    network = MemoryNetwork()
    config = ServeConfig(tls=TLS)

    async with (
        serve("localhost", 0, lambda _: None, config=config, transport=network) as first,
        serve("localhost", 0, lambda _: None, config=config, transport=network) as second,
    ):
        assert 0 < first.address.port != second.address.port


@scenario
async def test_port_that_is_taken_is_one_sentence():
    async with peers() as bench:
        with pytest.raises(TransportError, match=r"cannot listen on 127\.0\.0\.1:4433"):
            async with peers(network=bench.network):
                pass


def test_failing_on_connection_ends_that_session_only(caplog):
    async def session():
        network = MemoryNetwork()
        seen = []

        def accept(connection):
            seen.append(connection)
            if len(seen) == 1:
                raise ZeroDivisionError

        async with serve("localhost", 4433, accept, config=ServeConfig(tls=TLS), transport=network):
            with pytest.raises(ConnectFailed, match="INTERNAL_ERROR"):
                await dial("moqt://localhost:4433/", transport=network)
            connection = await dial("moqt://localhost:4433/", transport=network)
            await connection.close()

    run(session())

    assert "ZeroDivisionError" in caplog.text


@scenario
async def test_server_that_leaves_takes_no_new_sessions_and_keeps_the_others():
    async with peers() as bench, connected(bench) as (connection, _):
        bench.server.leave()

        with pytest.raises(ConnectFailed, match="takes no new sessions"):
            await dial("moqt://localhost:4433/", transport=bench.network)
        assert not connection.closed
        assert len(bench.server.connections) == 1
