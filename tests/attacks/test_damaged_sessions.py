"""Real sessions whose bytes are damaged at random: only they suffer.

A relay, an honest publisher and an honest consumer work beside one session that is damaged on
its way: of a consumer or of a publisher, in what it says or in what it hears. The honest
ones get every byte; the damaged one ends with what is genuine, a verdict or an error.
"""

import asyncio
import logging
import random

from tests.attacks.actors import consume, publish, serving
from tests.attacks.liar import TLS, TOKENS
from tests.attacks.tampering import Damage, TamperedNetwork
from tests.seeds import seeded

from kvcs.errors import KvcsError
from kvcs.relay import Relay, RelayConfig, allow_all
from kvcs.testing import LinkProfile, MemoryNetwork, run

PART = 10


async def suffer(work):
    """Run the damaged one to its end; only errors on purpose may come of it."""
    try:
        async with asyncio.timeout(150):
            await work
    except KvcsError:
        pass


async def scenario(seed):
    chance = random.Random(seed)
    profile = LinkProfile(delay=0.005, reorder=chance.choice([0.0, 0.02]), bandwidth=2_000_000)
    network = MemoryNetwork(seed, profile)
    damage = Damage(chance, rate=chance.choice([0.02, 0.1, 0.5]))
    damage.outgoing = chance.random() < 0.6
    damage.incoming = not damage.outgoing or chance.random() < 0.3
    tampered = TamperedNetwork(network, damage)
    config = RelayConfig(tls=TLS, authorize=allow_all)
    async with Relay(config, transport=network) as relay, asyncio.TaskGroup() as group:
        publisher = group.create_task(publish(network, 0.05))
        if chance.random() < 0.5:
            victim = consume(tampered, after=chance.uniform(0.0, 0.4))
        else:
            other = [token + 1 for token in TOKENS]
            victim = publish(tampered, 0.03, tokens=other, name=1 + chance.randrange(2), linger=1.0)
        suffering = group.create_task(suffer(victim))
        honest = [group.create_task(consume(network, after=after)) for after in (0.1, 0.2, 1.0)]
        wholes = [await task for task in honest]
        await suffering
        publisher.cancel()
        await asyncio.wait([publisher])
    statistics = relay.statistics()
    assert (statistics.sessions, statistics.subscriptions, statistics.fetches) == (0, 0, 0)
    return wholes


@seeded("part", range(2), soak=range(2, 28))
def test_only_the_damaged_session_suffers(part):
    for seed in range(part * PART, (part + 1) * PART):
        assert run(scenario(seed), seed=seed) == [True] * 3, f"seed {seed}"


async def direct_scenario(seed):
    """Consumers connect to the publisher itself; one of them is damaged."""
    chance = random.Random(seed)
    network = MemoryNetwork(seed, LinkProfile(delay=0.005, bandwidth=2_000_000))
    damage = Damage(chance, rate=chance.choice([0.02, 0.1, 0.5]), outgoing=True)
    damage.incoming = chance.random() < 0.2
    tampered = TamperedNetwork(network, damage)
    async with serving(network, 0.05), asyncio.TaskGroup() as group:
        suffering = group.create_task(suffer(consume(tampered, after=chance.uniform(0.05, 0.4))))
        honest = [group.create_task(consume(network, after=after)) for after in (0.1, 1.0)]
        wholes = [await task for task in honest]
        await suffering
    return wholes


@seeded("part", range(2), soak=range(2, 28))
def test_only_the_damaged_consumer_of_a_publisher_suffers(part):
    for seed in range(part * PART, (part + 1) * PART):
        assert run(direct_scenario(seed), seed=seed) == [True] * 2, f"seed {seed}"


def test_damage_leaves_one_warning_in_the_log(caplog):
    """Whoever closes a session for a breach says so, once, without a traceback."""
    warned = []
    for seed in range(10):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="kvcs.endpoint"):
            run(scenario(seed), seed=seed)
        records = [r for r in caplog.records if r.name == "kvcs.endpoint"]
        warned.append([r for r in records if r.levelno == logging.WARNING])
        assert len(warned[-1]) <= 2  # one at each end, where both were damaged
    assert any(warned)
