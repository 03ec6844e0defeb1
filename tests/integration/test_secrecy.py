"""Everything that a secure run writes down, searched for what nobody may read there.

Publishers, two relays and consumers run with logs at DEBUG and every part of Trust in use;
strangers, a consumer without keys and one with a token of another scope fail on the way. Whatever
came out of it as text (logs with all their fields, errors, metrics, the status page and its JSON,
reprs, names of Tracks), and of what is sealed also what the relays have on their disks, must have
no scope key, object key, producer or token key, no token, no token of the prompt, no piece of the
cache, and nothing of the model. What is published in clear is in clear on the way, and in no text.
"""

import asyncio

import pytest
from tests.integration.secrecy import (
    BLOCKS,
    LAYERS,
    Scene,
    clear_world,
    debug_log,
    found_in,
    sealed_world,
    stored,
)

from kvcs.cli.demo.search import search

pytestmark = pytest.mark.timeout(90)

PATIENCE = 40


@pytest.fixture
def scene(certificate, tmp_path):
    return Scene(sealed_world(), certificate, tmp_path / "disk")


async def test_nothing_secret_is_written_down_anywhere(scene, caplog, monkeypatch):
    debug_log(caplog, monkeypatch)
    sealed, clear = scene.world, clear_world(scene.world)
    async with asyncio.timeout(PATIENCE), scene.relays() as relays:
        async with scene.published(sealed) as publication, scene.published(clear) as other:
            verdicts = [
                await scene.take(sealed, scene.consumer),
                await scene.take(sealed, scene.consumer, publication=publication),
                await scene.take(clear, scene.consumer),
            ]
            await scene.failures()
            assert await publication.wait_delivered(5)
            assert await other.wait_delivered(5)
            await scene.look(*relays)
        await stored(*relays)
    scene.written += [str(it.name) for it in (publication, other)]
    scene.take_log(caplog)

    # The run did what it was for, and was written down.
    assert [verdict.complete for verdict in verdicts] == [True] * 3
    assert [verdict.authenticated for verdict in verdicts] == [True, True, False]
    assert verdicts[0].padding > 0
    text = "\n".join(scene.written)
    for what in ("a token of another scope", "a damaged token", "a consumer's token to publish"):
        assert f"{what}: RequestRejected" in text
    assert "no producer to trust and no object key: no error" not in text
    assert "kvcs_relay" in text
    statuses = [part for part in scene.written if '"is_ready"' in part]
    assert len(statuses) == 2
    assert all(str(it.name) in part for it in (publication, other) for part in statuses)
    assert "session-opened" in text
    assert "event ObjectReceived" in text
    assert found_in(text, sealed.secrets(scene.tokens)) == set()
    assert found_in(text, clear.secrets(scene.tokens)) == set()
    findings = search(scene.disk, sealed.secrets(scene.tokens))
    assert findings.size_bytes > 2 * LAYERS * BLOCKS * 2 * 4096
    assert findings.found == set()


async def test_what_is_looked_for_would_be_found(scene):
    """The search itself: in clear, on the disks of relays, everything of the cache is there."""
    world = clear_world(scene.world)
    async with asyncio.timeout(PATIENCE), scene.relays() as relays, scene.published(world) as it:
        await scene.take(world, scene.consumer)
        assert await it.wait_delivered(5)
        await stored(*relays)

    secrets = world.secrets(scene.tokens)
    for place in ("upper", "lower"):
        found = search(scene.disk / place, secrets).found
        assert {name for name in secrets if name.startswith("layer")} <= found
        assert {"weights_sha256", "tokenizer_sha256"} <= found
        assert not any("key" in name for name in found)
    text = f"{scene.consumer.hex()} {world.prompt}"
    assert found_in(text, secrets) == {"token 1", "prompt"}
    # Each of them, as it would be in a line of text.
    assert all(found_in(texts[1].decode(), {name: texts}) for name, texts in secrets.items())
