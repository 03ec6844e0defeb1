"""A cache to exchange, and the places where kvcs and aiomoqt meet.

aiomoqt is driven through its session API: its PublishedTrack paces by dropping, which no KV
cache survives.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiomoqt.client import MOQTClient
from aiomoqt.server import MOQTServer
from aiomoqt.types import MOQTMessageType
from tests.integration.network import free_port

from kvcs.client import Publisher
from kvcs.client.signal import Signal
from kvcs.endpoint.certificate import DevCertificate as Certificate
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.endpoint.serve import ServeConfig, serve
from kvcs.kv import (
    KVSP_PROVISIONAL,
    BlockPlace,
    Component,
    DataTrackName,
    Descriptor,
    Dtype,
    Layout,
    ScopeKey,
    encode_payload,
    publisher_priority,
)
from kvcs.kv.codecs import RAW
from kvcs.relay.auth import allow_all
from kvcs.relay.config import RelayConfig
from kvcs.relay.relay import Relay
from kvcs.transport.interface import ClientTls, TransportConfig

__all__ = (
    "BLOCKS",
    "HOST",
    "LAYERS",
    "PATIENCE",
    "Certificate",
    "K",
    "Prompt",
    "Site",
    "V",
    "client",
    "client_config",
    "dialing",
    "foreign_relay",
    "listening",
    "relay_of",
    "relayed",
    "server",
    "url",
)

HOST = "127.0.0.1"
DRAFT = 22
LAYERS = 6
BLOCKS = 5
BLOCK_TOKENS = 32
#: Bounds one exchange; none takes a second on an idle machine.
PATIENCE = 40.0
K = DataTrackName(Component.K, RAW.name, 0)
V = DataTrackName(Component.V, RAW.name, 0)

_TRANSPORT = TransportConfig(idle_timeout=15, connect_timeout=15, close_timeout=5)


class Prompt:
    """A prompt and its cache, every block different from all others."""

    def __init__(self, *, head_dim: int = 64) -> None:
        self.scope_key = ScopeKey(bytes(range(32)))
        self.descriptor = Descriptor(
            layers=LAYERS,
            block_tokens=BLOCK_TOKENS,
            dtype=Dtype.FLOAT16,
            position="rope-applied",
            weights_sha256="11" * 32,
            tokenizer_sha256="22" * 32,
            kv_heads=4,
            head_dim=head_dim,
        )
        self.layout = Layout(self.descriptor)
        self.tokens = [token * 7 for token in range(BLOCKS * BLOCK_TOKENS + 1)]
        profile = KVSP_PROVISIONAL
        self.scope_id = profile.scope_id(self.scope_key)
        self.compatibility_id = profile.compatibility_id(self.scope_key, self.descriptor)
        self.keys = profile.block_keys(
            self.scope_key, self.compatibility_id, self.tokens, block_tokens=BLOCK_TOKENS
        )

    def block(self, component: Component, layer_index: int, block_index: int) -> bytes:
        """Data of one Object."""
        size = self.layout.data_bytes(component, layer_index)
        return bytes([component, layer_index, block_index, 255 - block_index]) * (size // 4)

    def tensor(self, component: Component, layer_index: int, blocks: int = BLOCKS) -> bytes:
        """Keys or values of the first blocks of one layer."""
        return b"".join(self.block(component, layer_index, block) for block in range(blocks))

    def payload(
        self, track: DataTrackName, layer_index: int, block_index: int
    ) -> tuple[bytes, bytes]:
        """Payload of one Object and its Data Digest."""
        place = BlockPlace(
            component=track.component,
            codec=RAW.number,
            layer_index=layer_index,
            block_index=block_index,
            token_start=block_index * BLOCK_TOKENS,
            token_count=BLOCK_TOKENS,
        )
        return encode_payload(place, self.block(track.component, layer_index, block_index))

    def objects(
        self, track: DataTrackName, layers: range = range(LAYERS), blocks: range = range(BLOCKS)
    ) -> dict[tuple[int, int], tuple[int, bytes]]:
        """Priority and payload of every Object of some layers, by Location."""
        return {
            (layer_index, block_index): (
                publisher_priority(layer_index, LAYERS),
                self.payload(track, layer_index, block_index)[0],
            )
            for layer_index in layers
            for block_index in blocks
        }

    async def publish(self, segment, layers: range) -> None:
        """Publish some layers with our publisher."""
        for layer_index in layers:
            k, v = (self.tensor(component, layer_index) for component in (Component.K, Component.V))
            await segment.publish_layer(layer_index, k, v)

    def is_equal(self, layer, blocks: int = BLOCKS) -> bool:
        """Compare a retrieved layer with what was computed."""
        k, v = (
            self.tensor(component, layer.layer_index, blocks)
            for component in (Component.K, Component.V)
        )
        return bytes(layer.k) == k and bytes(layer.v) == v


@dataclass
class Site:
    """Where aiomoqt takes our publication.

    Attributes:
        publisher: Ours.
        session: Gives an aiomoqt session that reaches the publication, once it has a segment.
    """

    publisher: Publisher
    session: Callable[[], Awaitable]


def client_config(certificate: Certificate) -> ConnectConfig:
    """Settings of our clients."""
    return ConnectConfig(tls=ClientTls(ca_file=str(certificate.ca_file)), transport=_TRANSPORT)


def url(port: int) -> str:
    """Where our clients find a port."""
    return f"moqt://{HOST}:{port}/"


@asynccontextmanager
async def client(port: int, certificate: Certificate, handlers=()) -> AsyncGenerator:
    """An aiomoqt client's session."""
    peer = MOQTClient(
        HOST, port, use_quic=True, ca_file=str(certificate.ca_file), supported_drafts=DRAFT
    )
    for message_type, handler in handlers:
        peer.register_handler(message_type, handler)
    async with peer.connect() as session:
        await session.client_session_init(timeout=15)
        yield session


@asynccontextmanager
async def server(certificate: Certificate, handlers=()) -> AsyncGenerator[int]:
    """An aiomoqt server; gives its port."""
    port = free_port()
    peer = MOQTServer(
        HOST,
        port,
        str(certificate.certificate_file),
        str(certificate.private_key_file),
        use_quic=True,
        supported_drafts=DRAFT,
        max_filter_ranges=16,
    )
    for message_type, handler in handlers:
        peer.register_handler(message_type, handler)
    handle = await peer.serve()
    try:
        yield port
    finally:
        await peer.close_sessions()
        handle.close()


@asynccontextmanager
async def relay_of(certificate: Certificate) -> AsyncGenerator[Relay]:
    """Our relay."""
    config = RelayConfig(
        tls=certificate.tls, host=HOST, port=0, authorize=allow_all, transport=_TRANSPORT
    )
    async with Relay(config) as relay:
        yield relay


@asynccontextmanager
async def listening(prompt: Prompt, certificate: Certificate) -> AsyncGenerator[Site]:
    """Our publisher listens, aiomoqt dials it."""
    publisher = Publisher(scope_key=prompt.scope_key, descriptor=prompt.descriptor)
    config = ServeConfig(tls=certificate.tls, transport=_TRANSPORT)

    def attach(connection) -> None:
        publisher.attach(connection, announces=False)

    async with (
        serve(HOST, 0, attach, config=config) as ours,
        client(ours.address.port, certificate) as session,
    ):

        async def get():
            return session

        yield Site(publisher, get)


@asynccontextmanager
async def dialing(prompt: Prompt, certificate: Certificate) -> AsyncGenerator[Site]:
    """Our publisher dials an aiomoqt server, as it would a relay."""
    announced, signal = [], Signal()

    async def accept(session, message) -> None:
        session.publish_namepace_ok(message)
        announced.append(session)
        signal.set()

    handlers = [(MOQTMessageType.PUBLISH_NAMESPACE, accept)]
    async with (
        server(certificate, handlers) as port,
        connect(url(port), client_config(certificate)) as connection,
    ):

        async def get():
            await signal.until(lambda: announced)
            return announced[0]

        yield Site(
            Publisher(connection, scope_key=prompt.scope_key, descriptor=prompt.descriptor), get
        )


@asynccontextmanager
async def relayed(prompt: Prompt, certificate: Certificate) -> AsyncGenerator[Site]:
    """Our publisher and aiomoqt meet at our relay."""
    async with (
        relay_of(certificate) as relay,
        connect(url(relay.address.port), client_config(certificate)) as connection,
        client(relay.address.port, certificate) as session,
    ):

        async def get():
            return session

        yield Site(
            Publisher(connection, scope_key=prompt.scope_key, descriptor=prompt.descriptor), get
        )


@asynccontextmanager
async def foreign_relay(certificate: Certificate) -> AsyncGenerator[int]:
    """aiomoqt's test relay in a process of its own; gives its port, which may not be open yet."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "aiomoqt.tools.moq_interop_relay",
        "--quic",
        "--draft",
        "22",
        "--port",
        str(port),
        "--cert",
        str(certificate.certificate_file),
        "--key",
        str(certificate.private_key_file),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        # Its settings also come from the environment.
        env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
    )
    try:
        yield port
    finally:
        process.kill()
        await process.wait()
