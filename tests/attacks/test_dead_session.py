"""A session that has died is one error or one verdict, never a bug of the caller's or a group."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from tests.attacks.liar import DESCRIPTOR, SCOPE_KEY, TLS, TOKENS, URL, Copy, K, Liar, is_genuine

from kvcs.client import Consumer, MissingReason, Publisher
from kvcs.endpoint.connect import connect, dial
from kvcs.endpoint.serve import ServeConfig, serve
from kvcs.errors import ConnectionLost, RequestErrorCode, TerminationCode
from kvcs.moqt.session.events import FetchReceived
from kvcs.relay import Relay, RelayConfig, allow_all
from kvcs.testing import MemoryNetwork, run


async def on_dead_session(work):
    """Let the peer close the session, then work on it."""
    network = MemoryNetwork()
    liar = Liar(Copy.genuine())
    async with liar.open(network), connect(URL, transport=network) as connection:
        liar.connections[0].abort(TerminationCode.INTERNAL_ERROR, "")
        await asyncio.sleep(1)
        assert connection.closed
        with pytest.raises(ConnectionLost):
            await work(connection, liar)


def consumer_on(connection):
    return Consumer(connection, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)


def test_discovering_on_a_dead_session_tells_how_it_died():
    async def discover(connection, _):
        await consumer_on(connection).discover(TOKENS)

    run(on_dead_session(discover))


def test_retrieving_on_a_dead_session_tells_how_it_died():
    async def retrieve(connection, liar):
        consumer = consumer_on(connection)
        candidate = consumer.candidate(liar.copies[0].name, TOKENS)
        async with consumer.retrieve(candidate):
            pass

    run(on_dead_session(retrieve))


def test_requests_on_a_dead_session_tell_how_it_died():
    async def publish(connection, liar):
        await connection.answer(connection.publish_namespace(liar.copies[0].namespace))

    run(on_dead_session(publish))


def test_publishing_on_a_dead_session_ends():
    async def publish(connection, _):
        publisher = Publisher(connection, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
        async with publisher.publication(TOKENS) as publication:
            await publication.add_segment()

    run(on_dead_session(publish))


@pytest.mark.parametrize("pause", [0.01, 0.05, 0.15, 0.25, 0.45])
def test_session_that_dies_between_two_requests_is_a_verdict(pause):
    """The track waits before it asks again, and has no request that would hear of the end."""

    async def scenario():
        network = MemoryNetwork()
        liar = Liar(Copy.genuine())

        def refuse_and_die(_, connection, event, __):
            liar.reject(connection, event, RequestErrorCode.EXCESSIVE_LOAD)
            loop = asyncio.get_running_loop()
            loop.call_later(pause, connection.abort, TerminationCode.INTERNAL_ERROR, "")

        liar.lying(FetchReceived, refuse_and_die)
        async with liar.open(network), connect(URL, transport=network) as connection:
            consumer = consumer_on(connection)
            candidate = consumer.candidate(liar.copies[0].name, TOKENS)
            async with consumer.retrieve(candidate, timeout=30) as retrieval:
                async for layer in retrieval:
                    assert is_genuine(layer)
            return retrieval.verdict

    verdict = run(scenario())

    assert {gap.reason for gap in verdict.missing} == {MissingReason.CONNECTION_LOST}
    assert isinstance(verdict.error, ConnectionLost)


# Requests and the end of their session in one batch.

ASKING = {
    "subscribe": lambda session, name, now: session.subscribe(name.track(K), now=now),
    "fetch": lambda session, name, now: session.fetch(name.track(K), now=now),
    "track_status": lambda session, name, now: session.track_status(name.track(K), now=now),
    "publish": lambda session, name, now: session.publish(name.track(b"x"), now=now),
    "announce": lambda session, name, now: session.publish_namespace(name.namespace(), now=now),
    "search": lambda session, name, now: session.subscribe_namespace(name.namespace(), now=now),
    "prefix": lambda session, name, now: session.subscribe_tracks(name.namespace(), now=now),
}


@pytest.mark.parametrize("how", ["close", "kill"])
@pytest.mark.parametrize("asking", ASKING)
@pytest.mark.parametrize("server", ["relay", "publisher"])
def test_peer_that_asks_and_leaves_at_once_is_forgotten(server, asking, how):
    """The server reads the request when the session is over already."""

    async def scenario():
        network = MemoryNetwork()
        name = Copy.genuine().name
        async with asyncio.timeout(100), AsyncExitStack() as stack:
            if server == "relay":
                config = RelayConfig(tls=TLS, authorize=allow_all)
                relay = await stack.enter_async_context(Relay(config, transport=network))
                connections = relay._server.connections
            else:
                publisher = Publisher(scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
                served = serve(
                    "localhost",
                    4433,
                    lambda connection: publisher.attach(connection, announces=False),
                    config=ServeConfig(tls=TLS),
                    transport=network,
                )
                connections = (await stack.enter_async_context(served)).connections
                publication = await stack.enter_async_context(publisher.publication(TOKENS))
                await publication.add_segment()
                name = publication.name
            connection = await dial(URL, transport=network)
            end = network.transports[1]
            end.stall()
            ASKING[asking](connection.session, name, connection.now)
            connection.wake()
            await asyncio.sleep(0.1)
            if how == "close":
                await connection.close()
            else:
                connection._transport.kill()
            await asyncio.sleep(11)
            end.resume()
            await asyncio.sleep(11)
            return len(connections)

    assert run(scenario()) == 0
