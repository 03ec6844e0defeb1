"""Each lie of the forgers by itself, through a relay in memory: told, and believed by nobody."""

import asyncio
import random

import pytest
from tests.chaos.actor import wrongs
from tests.chaos.forger import LIES, Forger, falsified, genuine
from tests.chaos.material import DESCRIPTOR, LAYERS, SCOPE_KEY, is_genuine, tokens
from tests.sim.forest import A, relay, url

from kvcs.client import Consumer
from kvcs.endpoint.connect import connect
from kvcs.errors import KvcsError
from kvcs.testing import MemoryNetwork, run

PROMPT = 3
#: Lies about something else than the Data. Priorities that contradict each other end the Track.
HARMLESS = {"priority", "properties"}
#: What is not said is not counted.
SILENT = {"absence"}


async def scenario(lies, joined):
    """Retrieve a forgery; return the forger, the verdict, and the layers that were false."""
    network = MemoryNetwork()
    true = genuine(PROMPT, bytes(16))
    live = falsified(true, lies, PROMPT, random.Random(1))
    forger = Forger(true, live, live, joined=joined, pace=0.2)
    false, layers, verdict = [], 0, None
    async with (
        relay(network, A),
        connect(url(A), transport=network) as source,
        connect(url(A), transport=network) as sink,
    ):
        forger.attach(source)
        source.publish_namespace(true.namespace)
        consumer = Consumer(sink, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
        await asyncio.sleep(0.1)
        try:
            (found,) = await consumer.discover(tokens(PROMPT))
            async with consumer.retrieve(found, timeout=10) as retrieval:
                async for layer in retrieval:
                    layers += 1
                    if not is_genuine(PROMPT, layer):
                        false.append(layer.layer_index)
            verdict = retrieval.verdict
        except KvcsError:
            return forger, None, false, layers
    return forger, verdict, false, layers


@pytest.mark.parametrize("joined", [0, LAYERS // 2, LAYERS])
@pytest.mark.parametrize("lie", LIES)
def test_lie_is_told_and_not_believed(lie, joined):
    forger, verdict, false, layers = run(scenario([lie], joined))

    assert forger.told or lie in SILENT
    if verdict is None:
        return
    assert list(wrongs(verdict, false, layers)) == []
    assert lie in HARMLESS or not verdict.complete


@pytest.mark.parametrize("joined", [0, LAYERS])
def test_forger_without_a_lie_is_an_honest_publisher(joined):
    forger, verdict, false, _ = run(scenario([], joined))

    assert (forger.told, false) == (0, [])
    assert verdict.complete
