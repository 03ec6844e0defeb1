"""A run with every part of Trust in use, and the search of whatever came out of it as text.

Everything secret is random, so that whatever is found is found for a reason.
"""

import asyncio
import logging
import os
import random
import time
import traceback
from contextlib import asynccontextmanager
from dataclasses import dataclass

from kvcs.admin import AdminConfig, AdminServer
from kvcs.c4m import TOKEN_TYPE, Claims, Role, mint, role_scopes
from kvcs.cli.demo.search import forms
from kvcs.client import Consumer, ConsumerConfig, IndexEntry, Publisher, PublisherConfig
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.errors import KvcsError
from kvcs.keyring import Jwk, KeyKind, KeyRing, Purpose, new_object_key, new_pair
from kvcs.kv import KVSP_PROVISIONAL, Component, Descriptor, Dtype, Layout
from kvcs.kv.signing import TrustedProducers
from kvcs.moqt import Token
from kvcs.names import TrackNamespace
from kvcs.relay import DiskConfig, Relay, RelayConfig, TokenPolicy
from kvcs.transport.interface import ClientTls, TransportConfig

__all__ = (
    "BLOCKS",
    "BLOCK_TOKENS",
    "LAYERS",
    "Scene",
    "World",
    "ask",
    "clear_world",
    "debug_log",
    "digests",
    "found_in",
    "ring_secrets",
    "runs_of_tokens",
    "runs_of_words",
    "sealed_world",
    "stored",
)

QUICK = TransportConfig(idle_timeout=5, connect_timeout=5)
LAYERS, BLOCKS, BLOCK_TOKENS = 3, 2, 16
PADDED_BLOCKS = 8


def runs_of_tokens(tokens):
    """Four tokens at a time, as a list of numbers could be written."""
    texts = list(map(str, tokens))
    runs = [texts[at : at + 4] for at in range(0, len(texts) - 3, 4)]
    return tuple(sign.join(run).encode() for run in runs for sign in (", ", ",", " "))


def runs_of_words(text):
    """Five words of a text at a time."""
    words = text.split()
    return tuple(" ".join(words[at : at + 5]).encode() for at in range(0, len(words) - 4, 5))


def digests(descriptor):
    """What tells a model without its name, by the member of its descriptor."""
    return {
        name: forms(bytes.fromhex(getattr(descriptor, name)))
        for name in ("weights_sha256", "tokenizer_sha256")
    }


def ring_secrets(ring):
    """The secret keys of a ring, by purpose and number."""
    return {
        f"{purpose} key {number}": forms(key.secret)
        for purpose in ring.sets
        for number, key in enumerate(ring.keys(purpose))
        if key.is_secret
    }


def found_in(text, secrets):
    """Return the names of what is in a text, in whatever form."""
    octets = text.encode()
    return {name for name, texts in secrets.items() if any(each in octets for each in texts)}


@dataclass
class World:
    """A cache of one prompt, the keys of who made it, and who issues tokens for its scope."""

    ring: KeyRing
    descriptor: Descriptor
    prompt: list[int]
    layers: list[tuple[bytes, bytes]]
    issuer: KeyRing

    @property
    def scope_id(self):
        return KVSP_PROVISIONAL.scope_id(self.ring.scope_key)

    def token(self, role, *, scope_id=None):
        prefix = TrackNamespace((b"kvcs-1", scope_id or self.scope_id))
        claims = Claims(scopes=role_scopes(role, [prefix]), expires_at=time.time() + 600)
        return mint(claims, self.issuer.token_key)

    def secrets(self, tokens):
        """What must be nowhere, by name, in each form that it could be written in."""
        found = {f"token {number}": forms(token) for number, token in enumerate(tokens)}
        found |= ring_secrets(self.ring) | ring_secrets(self.issuer) | digests(self.descriptor)
        found["prompt"] = runs_of_tokens(self.prompt)
        for layer_index, pair in enumerate(self.layers):
            for component, octets in zip((Component.K, Component.V), pair, strict=True):
                piece = octets[100:132]
                name = f"layer {layer_index} {component.label}"
                found[name] = (*forms(piece), repr(piece).encode())
        return found


def sealed_world():
    """A cache that is signed and sealed."""
    ring = KeyRing().added(Purpose.SCOPE, Jwk(kind=KeyKind.OCTETS, secret=os.urandom(32)))
    ring = ring.added(Purpose.PRODUCER, new_pair(KeyKind.P256))
    ring = ring.added(Purpose.OBJECT, new_object_key())
    return _world(ring, KeyRing().added(Purpose.TOKEN, new_pair(KeyKind.P256)))


def clear_world(beside):
    """Another cache of the scope, without a signature and in clear."""
    return _world(KeyRing({Purpose.SCOPE: beside.ring.sets[Purpose.SCOPE]}), beside.issuer)


def _world(ring, issuer):
    descriptor = Descriptor(
        layers=LAYERS,
        block_tokens=BLOCK_TOKENS,
        dtype=Dtype.FLOAT16,
        position="rope-applied",
        weights_sha256=os.urandom(32).hex(),
        tokenizer_sha256=os.urandom(32).hex(),
        kv_heads=2,
        head_dim=64,
    )
    chance = random.Random(os.urandom(8))
    prompt = [chance.randrange(10_000, 2**31) for _ in range(BLOCKS * BLOCK_TOKENS + 1)]
    size = BLOCKS * Layout(descriptor).data_bytes(Component.K, 0)
    layers = [(chance.randbytes(size), chance.randbytes(size)) for _ in range(LAYERS)]
    return World(ring, descriptor, prompt, layers, issuer)


class Index:
    """Knows one publication."""

    def __init__(self, publication):
        self._entry = IndexEntry(
            name=publication.name, blocks=BLOCKS, segment_keys=publication.block_keys
        )

    async def look_up(self, block_keys):
        assert block_keys == self._entry.segment_keys
        return (self._entry,)


def token_of(value):
    return (Token.use_value(value, token_type=TOKEN_TYPE),)


class Scene:
    """Two relays on real QUIC, one below the other, each with an admin listener, in one process.

    Publishers are at the lower one, consumers at the upper one. Whatever is text is in `written`.
    """

    def __init__(self, world, certificate, disk):
        self.world = world
        self.disk = disk
        self.certificate = certificate
        self.producer = world.token(Role.PRODUCER)
        self.consumer = world.token(Role.CONSUMER)
        self.foreign = world.token(Role.RELAY, scope_id=bytes(16))
        self.uplink = world.token(Role.RELAY)
        self.tokens = (self.producer, self.consumer, self.foreign, self.uplink)
        self.written = []

    @property
    def _ca(self):
        return ClientTls(ca_file=str(self.certificate.ca_file))

    @asynccontextmanager
    async def relays(self):
        async with self._relay("upper") as upper:
            self.upper_url = f"moqt://{upper[0].address}/"
            above = {"upstream": (self.upper_url,), "upstream_tls": self._ca}
            async with self._relay(
                "lower", **above, upstream_tokens=token_of(self.uplink)
            ) as lower:
                self.lower_url = f"moqt://{lower[0].address}/"
                await until(lambda: lower[0].parent)
                yield upper, lower

    @asynccontextmanager
    async def _relay(self, name, **above):
        config = RelayConfig(
            tls=self.certificate.tls,
            port=0,
            authorize=TokenPolicy(self.world.issuer.token_verifiers),
            transport=QUICK,
            disk=DiskConfig(directory=self.disk / name),
            **above,
        )
        self.written.append(repr(config))
        async with Relay(config) as relay, AdminServer(relay, AdminConfig(port=0)) as admin:
            yield relay, admin

    def connect(self, url):
        return connect(url, ConnectConfig(tls=self._ca, transport=QUICK))

    @asynccontextmanager
    async def publishing(self, world, token=None):
        """A publication without segments."""
        object_key = world.ring.object_keys.current
        config = PublisherConfig(
            signing_key=world.ring.signing_key,
            object_key=object_key,
            pad_segment_blocks=PADDED_BLOCKS if object_key else None,
            authorization=token_of(token or self.producer),
        )
        async with self.connect(self.lower_url) as connection:
            publisher = Publisher(
                connection,
                scope_key=world.ring.scope_key,
                descriptor=world.descriptor,
                config=config,
            )
            async with publisher.publication(world.prompt) as publication:
                yield publication
                self.written += [repr(each) for each in (config, publisher, publication)]

    @asynccontextmanager
    async def published(self, world, token=None):
        async with self.publishing(world, token) as publication:
            segment = await publication.add_segment()
            for layer_index, pair in enumerate(world.layers):
                await segment.publish_layer(layer_index, *pair)
            await publication.complete()
            self.written.append(repr(segment))
            yield publication

    async def take(self, world, token, *, ring=None, publication=None):
        """Take a cache from the upper relay; where a publication is named, by an index."""
        ring = world.ring if ring is None else ring
        keys = ring.trusted_producers
        config = ConsumerConfig(
            trusted_producers=TrustedProducers(keys) if keys else None,
            object_keys=ring.object_keys if len(ring.object_keys) else None,
            authorization=token_of(token),
        )
        async with self.connect(self.upper_url) as connection:
            consumer = Consumer(
                connection,
                scope_key=world.ring.scope_key,
                descriptor=world.descriptor,
                config=config,
                index=None if publication is None else Index(publication),
            )
            (candidate, *_) = await consumer.discover(world.prompt, timeout=5) or [None]
            assert candidate is not None
            async with consumer.retrieve(candidate, timeout=10) as retrieval:
                async for layer in retrieval:
                    assert (layer.k, layer.v) == world.layers[layer.layer_index]
                verdict = await retrieval.finished()
            texts = (verdict, retrieval, candidate, config, ring, ring.signing_key, consumer)
            self.written += [*map(repr, texts), repr(ring.object_keys)]
            return verdict

    @asynccontextmanager
    async def noted(self, what):
        """Write down an expected failure with everything that a person could be shown of it."""
        try:
            yield
        except (KvcsError, TimeoutError) as error:
            self.written.append(f"{what}: {error!r} {error}")
            self.written.extend(traceback.format_exception(error))
        else:
            self.written.append(f"{what}: no error")

    async def failures(self):
        """What goes wrong for those who lack something."""
        world = self.world
        async with self.noted("a token of another scope"):
            await self.take(world, self.foreign)
        async with self.noted("a damaged token"):
            await self.take(world, self.consumer[:-1] + bytes([self.consumer[-1] ^ 1]))
        async with self.noted("no producer to trust and no object key"):
            await self.take(world, self.consumer, ring=KeyRing())
        other = KeyRing().added(Purpose.OBJECT, new_object_key()).sets[Purpose.OBJECT]
        async with self.noted("another object key"):
            ring = KeyRing({**world.ring.sets, Purpose.OBJECT: other})
            self.written.append(repr(await self.take(world, self.consumer, ring=ring)))
        what = "a consumer's token to publish"
        async with self.noted(what), self.published(world, self.consumer):
            pass

    async def look(self, *relays):
        """Write down what the admin listeners of relays show, and the relays themselves."""
        for relay, admin in relays:
            for path in ("/metrics", "/status.json", "/", "/readyz"):
                self.written.append(await ask(admin, path))
            self.written += [repr(relay), repr(relay.statistics())]

    def take_log(self, caplog):
        """Write down every log record with all of its fields."""
        self.written += [f"{it.getMessage()} {it.__dict__!r}" for it in caplog.records]


def debug_log(caplog, monkeypatch):
    """Record the whole log of kvcs."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "kvcs")
    # A command that ran before in this process may have taken the log to itself.
    monkeypatch.setattr(logging.getLogger("kvcs"), "propagate", True)


async def ask(admin, path):
    """Return what the admin listener answers."""
    reader, writer = await asyncio.open_connection(*admin.address)
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: {admin.address}\r\nConnection: close\r\n\r\n".encode()
    )
    answer = await reader.read()
    writer.close()
    return answer.decode(errors="replace")


async def stored(*relays):
    """Wait until relays have written what they have."""
    for relay, _ in relays:
        await until(lambda relay=relay: not relay.statistics().disk_queued_bytes)


async def until(condition):
    """Wait for something that no event tells."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
