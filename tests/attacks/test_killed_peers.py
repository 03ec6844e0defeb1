"""Publisher, relay and consumer killed at every stage: every wait ends, and in its deadline.

A killed peer is noticed at the idle timeout only, since nothing says goodbye. Each scenario is a
publication through a relay; one of the three dies at a moment between connecting and the end.
"""

import asyncio
from contextlib import AsyncExitStack

import pytest
from tests.attacks.actors import consume, publish
from tests.attacks.liar import TLS

from kvcs.errors import KvcsError
from kvcs.relay import Relay, RelayConfig, allow_all
from kvcs.testing import LinkProfile, MemoryNetwork, run

PACE = 0.05
TIMEOUT = 20.0
# Idle timeout of the transports, and what is granted to those who close.
GRACE = 10.0 + 5.0 + 5.0
MOMENTS = [0.0, 0.012, 0.02, 0.03, 0.04, 0.055, 0.07, 0.1, 0.13, 0.16, 0.2, 0.22, 0.25, 0.3, 0.4]


async def outcome_of(work):
    """Return what came of it: a result, or an error on purpose."""
    try:
        return await work
    except KvcsError as error:
        return error


def kill(network, who):
    """Kill the ends of one process: publisher and consumer connect first and second."""
    transports = network.transports
    ends = {
        "publisher": transports[0:1],
        "relay": transports[1::2],
        "consumer": transports[2:3],
    }
    for transport in ends[who]:
        transport.kill()


async def scenario(who, moment, *, waits):
    network = MemoryNetwork(profile=LinkProfile(delay=0.005, bandwidth=500_000))
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        config = RelayConfig(tls=TLS, authorize=allow_all)
        relay = await stack.enter_async_context(Relay(config, transport=network))
        publishing = asyncio.ensure_future(outcome_of(publish(network, PACE, linger=1.0)))
        after = 0.04 if waits else 0.0
        consuming = asyncio.ensure_future(outcome_of(consume(network, after=after)))
        loop.call_later(moment, kill, network, who)
        async with asyncio.timeout(TIMEOUT + 2 * GRACE):
            consumed = await consuming
            published = await publishing
    assert relay.statistics().sessions == 0
    return consumed, published, loop.time()


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("who", ["publisher", "relay", "consumer"])
def test_killed_peer_ends_all_waits(who, moment, waits):
    consumed, published, seconds = run(scenario(who, moment, waits=waits))

    assert consumed in (True, False) or isinstance(consumed, KvcsError)
    assert published is None or isinstance(published, KvcsError)
    if who == "relay" and 0.0 < moment < 0.2:
        assert consumed is not True
    assert seconds < TIMEOUT + GRACE
