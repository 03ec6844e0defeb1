"""Publisher and relay die and come back: what was begun ends, and what comes next is whole.

A publisher process that starts again has a new Publication ID, and never goes on with an old one;
inside one process a publisher that has lost its relay announces the same publication again. A
relay that starts again knows nothing: publishers tell it anew, and consumers ask again.
"""

import asyncio
from contextlib import AsyncExitStack

from tests.attacks.actors import publish_all
from tests.attacks.liar import (
    DESCRIPTOR,
    LAYERS,
    SCOPE_KEY,
    TLS,
    TOKENS,
    URL,
    is_genuine,
)

from kvcs.client import Consumer, MissingReason, Publisher
from kvcs.endpoint.connect import connect
from kvcs.endpoint.reconnect import Backoff, PersistentConnection
from kvcs.relay import Relay, RelayConfig, RelayLimits, allow_all
from kvcs.testing import LinkProfile, MemoryNetwork, run

PACE = 0.2
QUICK = Backoff(maximum=1.0)
CONFIG = RelayConfig(tls=TLS, authorize=allow_all, limits=RelayLimits(publisher_wait=3.0))


def publisher_of(number):
    """A publisher process; its Publication IDs begin with its number."""
    return Publisher(
        scope_key=SCOPE_KEY, descriptor=DESCRIPTOR, random_bytes=lambda size: bytes([number]) * size
    )


def serving(network, source):
    return PersistentConnection(URL, on_connected=source.attach, transport=network, backoff=QUICK)


async def find(network):
    """Return the Publication IDs that are listed, best first."""
    async with connect(URL, transport=network) as connection:
        it = Consumer(connection, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
        return [found.name.publication_id for found in await it.discover(TOKENS)]


async def take(network, publication_id, **options):
    """Retrieve one publication; return how many layers came, and the verdict."""
    async with connect(URL, transport=network) as connection:
        it = Consumer(connection, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
        (candidate,) = [
            found
            for found in await it.discover(TOKENS)
            if found.name.publication_id == publication_id
        ]
        layers = 0
        async with it.retrieve(candidate, **{"timeout": 30, **options}) as retrieval:
            async for layer in retrieval:
                assert is_genuine(layer)
                layers += 1
        return layers, retrieval.verdict


def test_publisher_that_starts_again_publishes_anew_and_the_old_one_is_a_verdict():
    async def scenario():
        network = MemoryNetwork(profile=LinkProfile(delay=0.005))
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(Relay(CONFIG, transport=network))
            first, second = publisher_of(1), publisher_of(2)
            keeper = await stack.enter_async_context(serving(network, first))
            connection = await keeper.connection(5.0)
            publishing = asyncio.ensure_future(publish_all(first, PACE, linger=60.0))
            await asyncio.sleep(0.3)
            old = asyncio.ensure_future(take(network, bytes([1]) * 16))
            await asyncio.sleep(0.3)
            # The whole process dies: its tasks end, and nothing is said.
            keeper._keeper.cancel()
            connection._transport.kill()
            publishing.cancel()
            await asyncio.sleep(0.1)
            again = await stack.enter_async_context(serving(network, second))
            await again.connection(5.0)
            republishing = asyncio.ensure_future(publish_all(second, PACE, linger=60.0))
            await asyncio.sleep(1.5)
            new = await take(network, bytes([2]) * 16)
            ended = await old
            listed = await find(network)
            republishing.cancel()
            await asyncio.wait([publishing, republishing])
        return ended, new, listed

    (old_layers, old), (new_layers, new), listed = run(scenario())

    assert new.complete
    assert new_layers == LAYERS
    assert listed == [bytes([2]) * 16]
    assert not old.complete
    assert 0 < old_layers < LAYERS
    assert {gap.layer for gap in old.missing} == set(range(old_layers, LAYERS))
    assert MissingReason.DEADLINE not in {gap.reason for gap in old.missing}


def test_relay_that_starts_again_is_told_and_asked_anew():
    async def scenario():
        network = MemoryNetwork(profile=LinkProfile(delay=0.005))
        source = publisher_of(1)
        async with AsyncExitStack() as stack:
            async with Relay(CONFIG, transport=network) as relay:
                keeper = await stack.enter_async_context(serving(network, source))
                await keeper.connection(5.0)
                publishing = asyncio.ensure_future(publish_all(source, PACE, linger=60.0))
                await asyncio.sleep(0.3)
                torn = asyncio.ensure_future(take(network, bytes([1]) * 16))
                await asyncio.sleep(0.3)
                for connection in relay._server.connections:
                    connection._transport.kill()
            async with Relay(CONFIG, transport=network):
                # The publisher notices at its idle timeout, and comes back.
                ended = await torn
                await asyncio.sleep(15.0)
                listed = await find(network)
                after = await take(network, bytes([1]) * 16)
                publishing.cancel()
                await asyncio.wait([publishing])
        return ended, listed, after

    (torn_layers, torn), listed, (layers, verdict) = run(scenario())

    assert not torn.complete
    assert torn_layers < LAYERS
    assert {gap.reason for gap in torn.missing} == {MissingReason.CONNECTION_LOST}
    assert listed == [bytes([1]) * 16]
    assert verdict.complete
    assert layers == LAYERS
