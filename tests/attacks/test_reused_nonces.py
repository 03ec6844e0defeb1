"""A publisher that starts again, or seals a place again: no nonce is used twice under one key.

Whoever sees two plaintexts under one key and nonce learns their XOR, and with AES-GCM can forge
seals of that key from then on. The relay of these tests sees every Object.
"""

import asyncio
import struct
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from tests.attacks.actors import consume, publish_all
from tests.attacks.liar import (
    BLOCK_TOKENS,
    BLOCKS,
    DESCRIPTOR,
    LAYERS,
    SCOPE_KEY,
    TLS,
    TOKENS,
    URL,
    K,
    tensor,
)
from tests.attacks.sealed_copy import CONSUMER, KEY, SEALED, SIGNED

from kvcs.client import Publisher
from kvcs.endpoint.connect import connect
from kvcs.endpoint.reconnect import Backoff, PersistentConnection
from kvcs.errors import ConfigError, LocalProtocolError
from kvcs.kv import Component
from kvcs.kv.sealing.cipher import derive
from kvcs.moqt.codepoints import PropertyType
from kvcs.relay import Relay, RelayConfig, RelayLimits, allow_all
from kvcs.testing import MemoryNetwork, run

PACE = 0.2
CONFIG = RelayConfig(tls=TLS, authorize=allow_all, limits=RelayLimits(publisher_wait=3.0))


PADDED = replace(SEALED, pad_segment_blocks=4)


def publisher(config, **options):
    """What a process makes when it starts, with nothing but its key from before."""
    return Publisher(
        scope_key=SCOPE_KEY, descriptor=DESCRIPTOR, config=replace(config, push=True), **options
    )


@asynccontextmanager
async def publishing(network, source):
    """Publish to whatever relay is there while the block runs."""
    quick = Backoff(initial=0.05, maximum=0.2)
    async with PersistentConnection(
        URL, on_connected=source.attach, transport=network, backoff=quick
    ) as keeper:
        await keeper.connection(5.0)
        task = asyncio.ensure_future(publish_all(source, PACE, linger=60.0))
        yield
        task.cancel()
        await asyncio.wait([task])


def sealed_objects(relay):
    """The sealed Objects that a relay holds, each with its Full Track Name."""
    return [
        (track, obj)
        for publication in relay._core.cache._publications.values()
        for track, entry in publication.entries.items()
        for obj in entry.store.objects()
        if obj.payload
    ]


def key_and_nonce(track, obj):
    """What an Object was encrypted with; that it opens says that it was."""
    key, salt = derive(KEY, track)
    place = struct.pack(">QI", obj.group_id, obj.object_id)
    nonce = bytes(a ^ b for a, b in zip(salt, place, strict=True))
    (immutable,) = [
        value
        for number, value in obj.properties.pairs
        if number == PropertyType.IMMUTABLE_PROPERTIES
    ]
    AESGCM(key).decrypt(nonce, obj.payload, place + bytes([obj.publisher_priority]) + immutable)
    return key, nonce


@pytest.mark.parametrize("config", [SEALED, SIGNED, PADDED], ids=["sealed", "signed too", "padded"])
@pytest.mark.parametrize("layers", [2, LAYERS], ids=["died", "had finished"])
def test_publisher_that_starts_again_with_its_key_repeats_no_nonce(layers, config):
    async def scenario():
        network = MemoryNetwork()
        async with Relay(CONFIG, transport=network) as relay:
            async with publishing(network, publisher(config)):
                await asyncio.sleep((layers + 0.5) * PACE)
            async with publishing(network, publisher(config)):
                await asyncio.sleep((LAYERS + 0.5) * PACE)
                return sealed_objects(relay)

    objects = run(scenario())

    sizes = Counter(track.namespace for track, _ in objects)
    assert len(sizes) == 2
    assert (min(sizes.values()) == max(sizes.values())) == (layers == LAYERS)
    uses = Counter(key_and_nonce(track, obj) for track, obj in objects)
    assert set(uses.values()) == {1}
    assert any(obj.object_id == BLOCKS for _, obj in objects) == (config is PADDED)
    # Equal Data in equal places, of which one keystream would make equal octets.
    beginnings = Counter(obj.payload[:32] for _, obj in objects)
    assert set(beginnings.values()) == {1}


@pytest.mark.parametrize("tokens", [TOKENS, TOKENS[:-BLOCK_TOKENS]], ids=["same", "other anchor"])
def test_publication_whose_id_was_used_before_is_refused_before_anything_is_sealed(tokens):
    """A source of randomness that repeats itself, as of a machine that was cloned."""

    async def scenario():
        network = MemoryNetwork()
        source = publisher(SEALED, random_bytes=bytes)
        async with Relay(CONFIG, transport=network) as relay, publishing(network, source):
            await asyncio.sleep((LAYERS + 0.5) * PACE)
            before = sealed_objects(relay)
            with pytest.raises(ConfigError, match="has not used before") as refused:
                await publish_all(source, PACE, tokens)
            await asyncio.sleep(1.0)
            assert await consume(network, config=CONSUMER)
            return before, sealed_objects(relay), refused.value

    before, after, refusal = run(scenario())

    assert before == after
    assert refusal.key == "random_bytes"


def test_publication_that_a_new_relay_is_given_repeats_nonces_with_the_same_octets_only():
    async def scenario():
        network = MemoryNetwork()
        source = publisher(SEALED)
        async with Relay(CONFIG, transport=network) as relay:
            keeping = publishing(network, source)
            await keeping.__aenter__()
            await asyncio.sleep(2.5 * PACE)
            before = sealed_objects(relay)
        async with Relay(CONFIG, transport=network) as relay:
            assert await consume(network, after=LAYERS * PACE, config=CONSUMER)
            after = sealed_objects(relay)
            await keeping.__aexit__(None, None, None)
        return before, after

    before, after = (
        {key_and_nonce(track, obj): (obj.location, obj.payload) for track, obj in objects}
        for objects in run(scenario())
    )

    again = before.keys() & after.keys()
    assert len(again) >= 2 * 2 * BLOCKS
    assert [before[use] for use in again] == [after[use] for use in again]


def test_layer_that_was_sealed_is_not_sealed_again_with_other_octets():
    """What was sealed may be out already, however the call has ended that asked for it."""

    async def scenario():
        network = MemoryNetwork()
        config = replace(SEALED, push=True, hash_threshold_bytes=None)
        async with (
            Relay(CONFIG, transport=network) as relay,
            connect(URL, transport=network) as connection,
            Publisher(
                connection, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR, config=config
            ).publication(TOKENS) as publication,
        ):
            segment = await publication.add_segment()
            k, v = tensor(Component.K, 0), tensor(Component.V, 0)
            original, publication.publish_layer = publication.publish_layer, cancelled
            with pytest.raises(asyncio.CancelledError):
                await segment.publish_layer(0, k, v)
            publication.publish_layer = original
            for other in ((v, v), (k, k), (k[:-1] + b"x", v)):
                with pytest.raises(LocalProtocolError, match="another Object"):
                    await segment.publish_layer(0, *other)
            await asyncio.sleep(1.0)
            refused = [track.name for track, _ in sealed_objects(relay)]
            await segment.publish_layer(0, k, v)
            await asyncio.sleep(1.0)
            return refused, [track.name for track, _ in sealed_objects(relay)]

    def cancelled(*_):
        raise asyncio.CancelledError

    refused, published = run(scenario())

    assert K not in refused
    assert published.count(K) == BLOCKS
