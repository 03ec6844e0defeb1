"""Everything that a secure run writes down, searched for what nobody may read there.

Publisher, relay and consumers run with logs at DEBUG and every part of Trust in use; strangers,
a consumer without keys and one with a token of another scope fail on the way. Whatever came out
of it as text (logs with all their fields, errors, metrics, the status page and its JSON, reprs,
names of Tracks), and what the relay has on its disk, must have no scope key, object key, producer
or token key, no token, no token of the prompt, no piece of the cache, and nothing of the model.
"""

import asyncio
import logging
import os
import random
import time
import traceback
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from kvcs.admin import AdminConfig, AdminServer
from kvcs.c4m import TOKEN_TYPE, Claims, Role, mint, role_scopes
from kvcs.cli.demo.search import forms, search
from kvcs.client import Consumer, ConsumerConfig, Publisher, PublisherConfig
from kvcs.endpoint.certificate import create_dev_certificate
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.errors import KvcsError
from kvcs.keyring import (
    Jwk,
    KeyKind,
    KeyRing,
    Purpose,
    new_object_key,
    new_pair,
)
from kvcs.kv import (
    KVSP_PROVISIONAL,
    Component,
    Descriptor,
    Dtype,
    Layout,
)
from kvcs.kv.signing import TrustedProducers
from kvcs.moqt import Token
from kvcs.names import TrackNamespace
from kvcs.relay import DiskConfig, Relay, RelayConfig, TokenPolicy
from kvcs.transport.interface import ClientTls, TransportConfig

PATIENCE = 40
QUICK = TransportConfig(idle_timeout=5, connect_timeout=5)
LAYERS, BLOCKS, BLOCK_TOKENS = 3, 2, 16


@dataclass
class World:
    """Keys, tokens and a cache, all of them random: whatever is found is found for a reason."""

    ring: KeyRing
    descriptor: Descriptor
    prompt: list[int]
    issuer: KeyRing
    written: list[str] = field(default_factory=list)

    @property
    def layout(self):
        return Layout(self.descriptor)

    def tensor(self, component, layer_index):
        size = self.layout.data_bytes(component, layer_index) * BLOCKS
        return random.Random(f"{component} {layer_index}").randbytes(size)

    def token(self, role, *, scope_id=None):
        prefix = TrackNamespace((b"kvcs-1", scope_id or self.scope_id))
        claims = Claims(scopes=role_scopes(role, [prefix]), expires_at=time.time() + 600)
        return mint(claims, self.issuer.token_key)

    @property
    def scope_id(self):
        return KVSP_PROVISIONAL.scope_id(self.ring.scope_key)

    def secrets(self, tokens):
        """What must be nowhere, by name, in each form that it could be written in."""
        found = {f"token {number}": forms(token) for number, token in enumerate(tokens)}
        for ring in (self.ring, self.issuer):
            for purpose in ring.sets:
                for key in ring.keys(purpose):
                    found[f"{purpose} key"] = forms(key.secret)
        for name in ("weights_sha256", "tokenizer_sha256"):
            found[name] = forms(bytes.fromhex(getattr(self.descriptor, name)))
        first = self.prompt[:4]
        found["prompt"] = tuple(sign.join(map(str, first)).encode() for sign in (", ", ",", " "))
        for component in (Component.K, Component.V):
            for layer_index in range(LAYERS):
                piece = self.tensor(component, layer_index)[100:132]
                found[f"layer {layer_index} {component.label}"] = (
                    *forms(piece),
                    repr(piece).encode(),
                )
        return found


@pytest.fixture
def world():
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
    scope_key = Jwk(kind=KeyKind.OCTETS, secret=os.urandom(32))
    ring = KeyRing().added(Purpose.SCOPE, scope_key)
    ring = ring.added(Purpose.PRODUCER, new_pair(KeyKind.P256))
    ring = ring.added(Purpose.OBJECT, new_object_key())
    issuer = KeyRing().added(Purpose.TOKEN, new_pair(KeyKind.P256))
    chance = random.Random(os.urandom(8))
    prompt = [chance.randrange(10_000, 2**31) for _ in range(BLOCKS * BLOCK_TOKENS + 1)]
    return World(ring, descriptor, prompt, issuer)


def token_of(value):
    return (Token.use_value(value, token_type=TOKEN_TYPE),)


@asynccontextmanager
async def noted(world, what):
    """Write down an expected failure with everything that a person could be shown of it."""
    try:
        yield
    except (KvcsError, TimeoutError) as error:
        world.written.append(f"{what}: {error!r} {error}")
        world.written.extend(traceback.format_exception(error))
    else:
        world.written.append(f"{what}: no error")


class Scene:
    """Real QUIC, and an admin listener, in one process."""

    def __init__(self, world, certificate, disk):
        self.world = world
        self.disk = disk
        self.certificate = certificate
        self.producer = world.token(Role.PRODUCER)
        self.consumer = world.token(Role.CONSUMER)
        self.foreign = world.token(Role.RELAY, scope_id=bytes(16))
        self.tokens = (self.producer, self.consumer, self.foreign)

    @asynccontextmanager
    async def relay(self):
        config = RelayConfig(
            tls=self.certificate.tls,
            port=0,
            authorize=TokenPolicy(self.world.issuer.token_verifiers),
            transport=QUICK,
            disk=DiskConfig(directory=self.disk),
        )
        async with Relay(config) as relay, AdminServer(relay, AdminConfig(port=0)) as admin:
            self.url = f"moqt://{relay.address}/"
            yield relay, admin

    def connect(self):
        ca_file = str(self.certificate.ca_file)
        return connect(self.url, ConnectConfig(tls=ClientTls(ca_file=ca_file), transport=QUICK))

    @asynccontextmanager
    async def published(self):
        world = self.world
        async with self.connect() as connection:
            publisher = Publisher(
                connection,
                scope_key=world.ring.scope_key,
                descriptor=world.descriptor,
                config=PublisherConfig(
                    signing_key=world.ring.signing_key,
                    object_key=world.ring.object_keys.current,
                    authorization=token_of(self.producer),
                ),
            )
            async with publisher.publication(world.prompt) as publication:
                segment = await publication.add_segment()
                for layer_index in range(LAYERS):
                    pair = (world.tensor(each, layer_index) for each in (Component.K, Component.V))
                    await segment.publish_layer(layer_index, *pair)
                await publication.complete()
                world.written += [repr(each) for each in (publisher, publication, segment)]
                yield publication

    async def take(self, token, *, ring=None, **settings):
        world = self.world
        ring = world.ring if ring is None else ring
        keys = ring.trusted_producers
        config = ConsumerConfig(
            trusted_producers=TrustedProducers(keys) if keys else None,
            object_keys=ring.object_keys if len(ring.object_keys) else None,
            authorization=token_of(token),
            **settings,
        )
        world.written += [repr(config), repr(ring), repr(ring.signing_key), repr(ring.object_keys)]
        async with self.connect() as connection:
            consumer = Consumer(
                connection,
                scope_key=world.ring.scope_key,
                descriptor=world.descriptor,
                config=config,
            )
            (candidate, *_) = await consumer.discover(world.prompt, timeout=5) or [None]
            assert candidate is not None
            async with consumer.retrieve(candidate, timeout=10) as retrieval:
                async for layer in retrieval:
                    assert layer.k == world.tensor(Component.K, layer.layer_index)
                verdict = await retrieval.finished()
            world.written += [repr(verdict), repr(retrieval), repr(candidate)]
            return verdict

    async def failures(self):
        """What goes wrong for those who lack something."""
        world = self.world
        async with noted(world, "a token of another scope"):
            await self.take(self.foreign)
        async with noted(world, "a damaged token"):
            await self.take(self.consumer[:-1] + bytes([self.consumer[-1] ^ 1]))
        async with noted(world, "no producer to trust and no object key"):
            await self.take(self.consumer, ring=KeyRing())
        other = KeyRing(
            {**world.ring.sets, Purpose.OBJECT: KeyRing().added(
                Purpose.OBJECT, new_object_key()
            ).sets[Purpose.OBJECT]}
        )  # fmt: skip
        async with noted(world, "another object key"):
            verdict = await self.take(self.consumer, ring=other)
            world.written.append(repr(verdict))
        async with noted(world, "a consumer's token to publish"):
            self.producer, kept = self.consumer, self.producer
            try:
                async with self.published():
                    pass
            finally:
                self.producer = kept


async def ask(admin, path):
    """Return what the admin listener answers."""
    reader, writer = await asyncio.open_connection(*admin.address)
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: {admin.address}\r\nConnection: close\r\n\r\n".encode()
    )
    answer = await reader.read()
    writer.close()
    return answer.decode(errors="replace")


def lines(caplog):
    """Return every log record with all of its fields."""
    return [f"{record.getMessage()} {record.__dict__!r}" for record in caplog.records]


@pytest.mark.timeout(90)
async def test_nothing_secret_is_written_down_anywhere(world, tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "kvcs")
    # A command that ran before in this process may have taken the log to itself.
    monkeypatch.setattr(logging.getLogger("kvcs"), "propagate", True)
    certificate = create_dev_certificate(tmp_path / "certificate")
    scene = Scene(world, certificate, tmp_path / "disk")

    async with asyncio.timeout(PATIENCE), scene.relay() as (relay, admin):
        async with scene.published() as publication:
            verdict = await scene.take(scene.consumer)
            await scene.failures()
            assert await publication.wait_delivered(5)
            pages = [
                await ask(admin, path) for path in ("/metrics", "/status.json", "/", "/readyz")
            ]
        await stored(relay)
        world.written += [repr(relay), repr(relay.statistics()), str(publication.name)]
    world.written += [*pages, *lines(caplog)]

    # The run did what it was for, and was written down.
    assert verdict.complete
    assert verdict.authenticated
    text = "\n".join(world.written)
    for what in ("a token of another scope", "a damaged token", "a consumer's token to publish"):
        assert f"{what}: RequestRejected" in text
    assert "no producer to trust and no object key: no error" not in text
    assert "kvcs_relay" in text
    assert all(str(publication.name) in page for page in pages[1:2])
    assert "session-opened" in text
    secrets = world.secrets(scene.tokens)
    assert found_in(text, secrets) == set()
    findings = search(tmp_path / "disk", secrets)
    assert findings.size_bytes > LAYERS * BLOCKS * 2 * 4096
    assert findings.found == set()


async def stored(relay):
    """Wait until the relay has written what it has."""
    for _ in range(200):
        if not relay.statistics().disk_queued_bytes:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(relay.statistics())


def found_in(text, secrets):
    octets = text.encode()
    return {name for name, texts in secrets.items() if any(each in octets for each in texts)}


async def test_what_is_looked_for_would_be_found(world, tmp_path):
    """The search itself: in clear, on the disk of a relay, everything of the cache is there."""
    certificate = create_dev_certificate(tmp_path / "certificate")
    scene = Scene(world, certificate, tmp_path / "disk")
    world.ring = KeyRing({Purpose.SCOPE: world.ring.sets[Purpose.SCOPE]})

    async with asyncio.timeout(PATIENCE), scene.relay() as (relay, _), scene.published() as it:
        await scene.take(scene.consumer)
        assert await it.wait_delivered(5)
        await stored(relay)

    secrets = world.secrets(scene.tokens)
    found = search(tmp_path / "disk", secrets).found
    assert {name for name in secrets if name.startswith("layer")} <= found
    assert {"weights_sha256", "tokenizer_sha256"} <= found
    assert "scope key" not in found
    text = f"{scene.consumer.hex()} {world.prompt}"
    assert found_in(text, secrets) == {"token 1", "prompt"}
