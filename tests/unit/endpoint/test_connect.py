import asyncio

import pytest
from tests.unit.endpoint.bench import NAMESPACE, TLS, Heard, connected, peers, scenario

from kvcs.endpoint.connect import ConnectConfig, connect, dial
from kvcs.errors import ConfigError, ConnectFailed, RemoteProtocolError
from kvcs.moqt.codepoints import ALPN
from kvcs.moqt.session.events import PublishNamespaceReceived, SetupComplete
from kvcs.moqt.session.limits import SessionLimits
from kvcs.moqt.wire.token import Token
from kvcs.testing import MemoryNetwork
from kvcs.transport.interface import Address, ClientTls, TransportConfig


@pytest.mark.parametrize(
    ("url", "path", "authority"),
    [
        ("moqt://localhost:4433/a/b?c=d#kvcs:x", b"/a/b?c=d", b"localhost:4433"),
        ("moqt://localhost:4433/", b"/", b"localhost:4433"),
        ("moqt://LocalHost:4433", None, b"LocalHost:4433"),
    ],
)
def test_setup_carries_path_and_authority(url, path, authority):
    @scenario
    async def check():
        async with peers() as bench, connected(bench, url):
            options = bench.heard.of(SetupComplete)[0].options

            assert (options.path, options.authority) == (path, authority)

    check()


@scenario
async def test_setup_carries_tokens_and_limits():
    token = Token(token_type=5, value=b"secret")
    async with peers() as bench, connected(bench, tokens=(token,), max_filter_ranges=3):
        options = bench.heard.of(SetupComplete)[0].options

        assert options.authorization_tokens == (token,)
        assert options.max_filter_ranges == 3
        assert options.max_request_updates == SessionLimits().max_request_updates


@scenario
async def test_block_that_ends_closes_the_session_at_both_ends():
    async with peers() as bench:
        async with connected(bench) as (client, server):
            pass

        assert client.closed
        assert await client.wait_closed() is None
        assert await server.wait_closed() is None
        assert bench.server.connections == set()


@scenario
async def test_listeners_are_registered_before_anything_arrives():
    heard = Heard()

    async with peers() as bench:
        bench.answer = lambda connection, event: (
            connection.publish_namespace(NAMESPACE) if isinstance(event, SetupComplete) else None
        )
        async with connect(
            "moqt://localhost:4433/",
            transport=bench.network,
            on_connection=lambda connection: connection.listen(heard),
        ):
            await asyncio.sleep(1)

    assert [type(event) for event in heard[:2]] == [SetupComplete, PublishNamespaceReceived]


@scenario
async def test_nobody_there_is_one_sentence_with_address_and_reason():
    with pytest.raises(ConnectFailed) as caught:
        await dial("moqt://localhost:1/", transport=MemoryNetwork())

    assert str(caught.value) == "cannot connect to localhost:1: no answer within 10 s"


@scenario
async def test_server_that_closes_before_setup_is_a_failed_connect():
    async with peers(max_connections=0) as bench:
        with pytest.raises(ConnectFailed, match=r"localhost:4433: the session ended before"):
            await dial("moqt://localhost:4433/", transport=bench.network)


@scenario
async def test_server_that_says_nothing_ends_at_the_setup_timeout():
    network = MemoryNetwork()
    await network.listen(
        Address("h", 4433), lambda _: None, alpn=ALPN, tls=TLS, config=TransportConfig()
    )
    config = ConnectConfig(limits=SessionLimits(setup_timeout=2))

    with pytest.raises(RemoteProtocolError, match="SETUP"):
        await dial("moqt://localhost:4433/", config, transport=network)

    assert asyncio.get_running_loop().time() == pytest.approx(2, abs=0.1)


@scenario
async def test_dial_that_is_cancelled_leaves_no_connection():
    network = MemoryNetwork()
    await network.listen(
        Address("h", 4433), lambda _: None, alpn=ALPN, tls=TLS, config=TransportConfig()
    )
    task = asyncio.create_task(dial("moqt://localhost:4433/", transport=network))
    await asyncio.sleep(1)

    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(1)

    assert task.cancelled()
    assert network.transports == []


@scenario
async def test_verification_is_skipped_only_towards_this_machine():
    config = ConnectConfig(tls=ClientTls(verify=False))

    with pytest.raises(ConfigError, match=r"tls\.verify: expected true, except"):
        await dial("moqt://relay.test/", config, transport=MemoryNetwork())


@scenario
async def test_wrong_url_is_refused_before_anything_is_sent():
    with pytest.raises(ConfigError, match="url"):
        await dial("https://relay.test/", transport=MemoryNetwork())
